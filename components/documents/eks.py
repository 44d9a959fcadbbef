"""The EKS cluster as data: system nodes, add-ons, IP addresses of nodes and pods, kubeconfig."""

from __future__ import annotations

import ipaddress
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from . import efa

# The size in GiB of a system node's only disk (gp3).
VOLUME_GIB: Final = 50
# Eight cores: Karpenter (a core per replica), CoreDNS, the operators, the CSI controllers and the launcher fit on one
# node while the other one is replaced.
SYSTEM_NODE_TYPE: Final = "c5.2xlarge"
# To replace them, EKS first creates new ones, at most this number in each zone
# (https://docs.aws.amazon.com/eks/latest/userguide/managed-node-update-behavior.html, "Scale up phase").
SPARE_IN_A_ZONE: Final = 2
# The first four addresses and the last one of every subnet
# (https://docs.aws.amazon.com/vpc/latest/userguide/subnet-sizing.html).
RESERVED_BY_AWS: Final = 5
# Free addresses in a cluster's subnet for EKS's own interfaces: at least six, sixteen are recommended
# (https://docs.aws.amazon.com/eks/latest/userguide/network-reqs.html).
CONTROL_PLANE: Final = 16
# The maximum number of the stack's pods with their own address on a node: device plugin, the node parts of two CSI
# drivers, monitoring; a worker, its placeholder, the warm pod, a check; and two that have ended, because the CNI does
# not reuse their addresses for half a minute.
PODS: Final = 10
# Pods on a system node while the other one is replaced: add-ons, Karpenter, operators, controllers of the CSI drivers,
# launchers.
SYSTEM_PODS: Final = 20
# Settings of the VPC CNI (docs/decisions/0014-addresses-of-pods.md): the number of free addresses on a node, and the
# minimum number of all its addresses. A node with at most `PODS` pods then calls EC2 only once
# (https://github.com/aws/amazon-vpc-cni-k8s/blob/master/docs/eni-and-ip-target.md).
WARM_IP_TARGET: Final = 4
MINIMUM_IP_TARGET: Final = PODS + WARM_IP_TARGET
# Its default: one whole interface of spare addresses, WARM_ENI_TARGET=1 (the same page).
WARM_INTERFACES: Final = 1
AGENT: Final = "eks-node-monitoring-agent"
# Configuration by add-on (`aws eks describe-addon-configuration` prints the schema).
VALUES: Final = {
    # The agent reads NVIDIA GPUs through the DaemonSet dcgm-server. The agent tolerates all taints, dcgm-server none
    # (github.com/aws/eks-node-monitoring-agent, charts/eks-node-monitoring-agent/values.yaml 1.7). On a tainted node,
    # the agent then reports AcceleratedHardwareReady=False (DCGMError), and node repair replaces a healthy node. The
    # chart's affinity already keeps dcgm-server on nodes with NVIDIA GPUs.
    AGENT: json.dumps({"dcgmAgent": {"tolerations": [{"operator": "Exists"}]}}),
}

# https://kubernetes.io/docs/reference/access-authn-authz/authentication/#client-go-credential-plugins
EXEC_VERSION: Final = "client.authentication.k8s.io/v1beta1"


@dataclass(frozen=True, kw_only=True)
class NodeNetwork:
    """The values that determine how many network interfaces and addresses a node uses.

    The VPC CNI uses interfaces of the first network card, and an EFA there takes the place of one of them
    (Karpenter, `ENILimitedPods` in pkg/providers/instancetype/types.go). No pod gets the first address of an
    interface. The other interfaces for IP traffic, of the policy `bandwidth`, have one address each.

    Args:
        interfaces: The number of network interfaces that the first card supports.
        addresses: The number of IPv4 addresses of each interface.
        cards: The number of network cards.
        policy: `none`, `ip` or `bandwidth`.
        cards_per_ip_group: The number of cards that share their bandwidth for IP traffic.
        first_efa_card: The first network card that supports an EFA.
        pods: The number of pods with their own address.
        own_cni: Whether the stack configures the CNI. If not, in an existing cluster, the calculation assumes that the
            CNI allocates whole interfaces, for a few pods.
    """

    interfaces: int
    addresses: int
    cards: int = 1
    policy: str = efa.NONE
    cards_per_ip_group: int = 1
    first_efa_card: int = 0
    pods: int = PODS
    own_cni: bool = True

    @property
    def address_count(self) -> int:
        """The number of addresses that the node uses in its subnet."""
        if not self.own_cni:
            return self._cni_interfaces * self.addresses + self._other_ip_interfaces
        return self._pod_addresses + self._cni_interfaces + self._other_ip_interfaces

    @property
    def network_interfaces(self) -> int:
        """The number of its EFA and IP interfaces, and of those that the VPC CNI adds for pods."""
        with_efa = 0 if self.policy == efa.NONE else self.cards - self.first_efa_card
        return with_efa + self._cni_interfaces + self._other_ip_interfaces

    @property
    def _usable_interfaces(self) -> int:
        """The number of interfaces of the first network card that the VPC CNI can use."""
        return max(1, self.interfaces - (self.policy != efa.NONE and self.first_efa_card == 0))

    @property
    def _pod_addresses(self) -> int:
        """The number of addresses that pods have, or may soon have."""
        return min(
            max(MINIMUM_IP_TARGET, self.pods + WARM_IP_TARGET), self._usable_interfaces * (self.addresses - 1)
        )

    @property
    def _cni_interfaces(self) -> int:
        """The number of interfaces of the first card that the VPC CNI uses, including the primary one."""
        if not self.own_cni:
            return min(self._usable_interfaces, 1 + WARM_INTERFACES)
        return math.ceil(self._pod_addresses / (self.addresses - 1))

    @property
    def _other_ip_interfaces(self) -> int:
        """The number of interfaces for IP traffic of the other network cards."""
        return len(efa.ip_interfaces(self.cards, self.policy, self.cards_per_ip_group)) - 1


def of_file_system(capacity_gib: int) -> int:
    """Estimate the addresses of an FSx for Lustre file system: two metadata servers, and one server per 1200 GiB."""
    return 2 + capacity_gib // 1200


def usable_addresses(block: str) -> int:
    """Return the number of addresses of a subnet that AWS does not reserve."""
    return ipaddress.IPv4Network(block).num_addresses - RESERVED_BY_AWS


def kubeconfig(
    *, cluster: str, region: str, endpoint: str, authority: str, profile: str | None = None
) -> str:
    """Return a kubeconfig as JSON. It authenticates with `aws eks get-token` and contains no secret.

    Args:
        cluster: The cluster's name.
        region: Its region.
        endpoint: Its address, with https:// in front.
        authority: The certificate authority in base64, as DescribeCluster has it.
        profile: A profile of ~/.aws/config, None for the environment.
    """
    command = ["--region", region, "eks", "get-token", "--cluster-name", cluster, "--output", "json"]
    login = {
        "apiVersion": EXEC_VERSION,
        "command": "aws",
        "args": command,
        "env": [
            {"name": "KUBERNETES_EXEC_INFO", "value": json.dumps({"apiVersion": EXEC_VERSION})},
            *([{"name": "AWS_PROFILE", "value": profile}] if profile else []),
        ],
    }
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": "kubernetes",
                    "cluster": {"server": endpoint, "certificate-authority-data": authority},
                }
            ],
            "users": [{"name": "aws", "user": {"exec": login}}],
            "contexts": [{"name": "aws", "context": {"cluster": "kubernetes", "user": "aws"}}],
            "current-context": "aws",
        }
    )


def cni_values(tags: Mapping[str, str]) -> str:
    """Return the configuration of the add-on vpc-cni, whose schema accepts strings only.

    Without `enableNetworkPolicy`, NetworkPolicies have no effect
    (https://docs.aws.amazon.com/eks/latest/userguide/cni-network-policy-configure.html). Without the IP targets, a node
    allocates the addresses of one or two whole network interfaces. The CNI puts `tags` on interfaces that it creates
    (https://github.com/aws/amazon-vpc-cni-k8s#additional_eni_tags-since-v160).
    """
    return json.dumps(
        {
            "enableNetworkPolicy": "true",
            "env": {
                "ADDITIONAL_ENI_TAGS": json.dumps(tags, sort_keys=True),
                "MINIMUM_IP_TARGET": str(MINIMUM_IP_TARGET),
                "WARM_IP_TARGET": str(WARM_IP_TARGET),
            },
        }
    )
