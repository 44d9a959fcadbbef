"""Configuration of the EKS add-ons that a stack makes, as their schemas take it. Pure: no Pulumi."""

from __future__ import annotations

import json
from typing import Final

from components.shared import addresses

AGENT: Final = "eks-node-monitoring-agent"
# Add-on -> its configuration, where it has one (`aws eks describe-addon-configuration` prints the schema).
VALUES: Final = {
    # Without `enableNetworkPolicy` network policies are stored and have no effect
    # (https://docs.aws.amazon.com/eks/latest/userguide/cni-network-policy-configure.html). Without the targets, a node
    # takes one or two whole interfaces of addresses. The schema takes texts only.
    "vpc-cni": json.dumps(
        {
            "enableNetworkPolicy": "true",
            "env": {
                "MINIMUM_IP_TARGET": str(addresses.LEAST),
                "WARM_IP_TARGET": str(addresses.SPARE),
            },
        }
    ),
    # The DaemonSet dcgm-server, through which the agent reads NVIDIA GPUs, tolerates no taint by itself, although the
    # agent tolerates all (github.com/aws/eks-node-monitoring-agent, charts/eks-node-monitoring-agent/values.yaml 1.7).
    # On nodes with a taint the agent then reports AcceleratedHardwareReady=False (DCGMError), and node repair replaces
    # healthy nodes. The chart's own affinity keeps dcgm-server on nodes with NVIDIA GPUs.
    AGENT: json.dumps({"dcgmAgent": {"tolerations": [{"operator": "Exists"}]}}),
}
