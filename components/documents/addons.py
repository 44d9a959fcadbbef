"""Configuration values of a stack's EKS add-ons, in the form of their schemas. Pure: no Pulumi."""

from __future__ import annotations

import json
from typing import Final

from components.documents import addresses

AGENT: Final = "eks-node-monitoring-agent"
# Configuration by add-on (`aws eks describe-addon-configuration` prints the schema).
VALUES: Final = {
    # Without `enableNetworkPolicy`, NetworkPolicies have no effect
    # (https://docs.aws.amazon.com/eks/latest/userguide/cni-network-policy-configure.html). Without the IP targets, a
    # node allocates the addresses of one or two whole network interfaces. The schema accepts strings only.
    "vpc-cni": json.dumps(
        {
            "enableNetworkPolicy": "true",
            "env": {
                "MINIMUM_IP_TARGET": str(addresses.MINIMUM_IP_TARGET),
                "WARM_IP_TARGET": str(addresses.WARM_IP_TARGET),
            },
        }
    ),
    # The agent reads NVIDIA GPUs through the DaemonSet dcgm-server. The agent tolerates all taints, dcgm-server none
    # (github.com/aws/eks-node-monitoring-agent, charts/eks-node-monitoring-agent/values.yaml 1.7). On a tainted node,
    # the agent then reports AcceleratedHardwareReady=False (DCGMError), and node repair replaces a healthy node. The
    # chart's affinity already keeps dcgm-server on nodes with NVIDIA GPUs.
    AGENT: json.dumps({"dcgmAgent": {"tolerations": [{"operator": "Exists"}]}}),
}
