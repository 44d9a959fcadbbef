"""What a pool of worker machines is, and the two Karpenter objects that describe it. Pure: no Pulumi."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from components.shared.contract import LABEL_NODEPOOL

JsonObject = dict[str, Any]

GPU: Final = "nvidia.com/gpu"
NEURON: Final = "aws.amazon.com/neuron"
CPU: Final = "cpu"

DISCOVERY_TAG: Final = "karpenter.sh/discovery"
# EKS puts this tag on the security group that it makes for a cluster, and on nothing else
# (https://docs.aws.amazon.com/eks/latest/userguide/sec-group-reqs.html).
CLUSTER_GROUP_TAG: Final = "aws:eks:cluster-name"

# gp3 limits and prices: https://docs.aws.amazon.com/ebs/latest/userguide/general-purpose.html
ROOT_IOPS: Final = 6000
ROOT_THROUGHPUT: Final = 600


@dataclass(frozen=True, kw_only=True)
class Pool:
    """Machines of exactly one instance type in one zone, bought up to a ceiling.

    `purchase` is a value of Karpenter's label `karpenter.sh/capacity-type`: on-demand, spot or reserved.
    `accelerators` is the number of devices named `resource` per machine (0 for a CPU pool), `memory_gib` and
    `nvme_gb` are the machine's memory in GiB and local disks in GB. An empty machine is given back after
    `idle_seconds`.
    """

    name: str
    instance_type: str
    zone: str
    max_nodes: int
    purchase: str
    capacity_reservation_ids: tuple[str, ...]
    root_volume_gib: int
    idle_seconds: int
    resource: str
    accelerators: int
    vcpus: int
    memory_gib: int
    nvme_gb: int

    @property
    def tolerations(self) -> list[JsonObject]:
        """What a pod needs to be let onto the pool's machines."""
        if self.accelerators == 0:
            return []
        return [{"key": self.resource, "operator": "Exists", "effect": "NoSchedule"}]

    @property
    def worker_cpu(self) -> str:
        """Cores that one worker asks for: the machine's, less what the system and the daemons take."""
        return str(max(1, int(self.vcpus * 0.85)))

    @property
    def worker_memory(self) -> str:
        """Memory that one worker asks for; Karpenter itself takes 7.5 % off for the hypervisor."""
        return f"{max(1, int(self.memory_gib * 0.75))}Gi"


def limits(pool: Pool) -> JsonObject:
    """The ceiling of a pool.

    It is counted in devices (or in cores), not with `nodes`: that limit is only eventually consistent, and six
    pending pods were seen to buy six machines under a limit of four, while the same limit in devices held.
    """
    if pool.accelerators:
        return {pool.resource: str(pool.accelerators * pool.max_nodes)}
    return {CPU: str(pool.vcpus * pool.max_nodes)}


def node_pool(pool: Pool) -> JsonObject:
    """The `spec` of the NodePool (karpenter.sh/v1, https://karpenter.sh/docs/concepts/nodepools/).

    A machine at work is never consolidated, expired or replaced for drift; only an empty one is given back.
    There is no `terminationGracePeriod`: with it, drift may evict pods in spite of their do-not-disrupt.
    """
    requirements = [
        ("node.kubernetes.io/instance-type", pool.instance_type),
        ("topology.kubernetes.io/zone", pool.zone),
        ("karpenter.sh/capacity-type", pool.purchase),
    ]
    template: JsonObject = {
        "nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": pool.name},
        "expireAfter": "Never",
        "requirements": [{"key": key, "operator": "In", "values": [value]} for key, value in requirements],
    }
    if pool.accelerators:
        template["taints"] = [{"key": pool.resource, "effect": "NoSchedule"}]
    return {
        "template": {"metadata": {"labels": {"trainyard.dev/pool": pool.name}}, "spec": template},
        "disruption": {
            "consolidationPolicy": "WhenEmpty",
            "consolidateAfter": f"{pool.idle_seconds}s",
            "budgets": [{"nodes": "0", "reasons": ["Drifted", "Underutilized"]}, {"nodes": "100%"}],
        },
        "limits": limits(pool),
    }


def node_class(
    pool: Pool, *, cluster: str, ami: str, role: Any, subnet_id: Any, tags: dict[str, str]
) -> JsonObject:
    """The `spec` of the EC2NodeClass (karpenter.k8s.aws/v1, https://karpenter.sh/docs/concepts/nodeclasses/).

    `role` and `subnet_id` may be outputs of other resources. Two security groups: ours, which lets workers talk to
    each other over EFA, and the one that EKS made for the cluster, in which the system nodes and the API server are.
    """
    spec: JsonObject = {
        "amiSelectorTerms": [{"alias": ami}],
        "role": role,
        "subnetSelectorTerms": [{"id": subnet_id}],
        "securityGroupSelectorTerms": [
            {"tags": {DISCOVERY_TAG: cluster}},
            {"tags": {CLUSTER_GROUP_TAG: cluster}},
        ],
        "blockDeviceMappings": [
            {
                "deviceName": "/dev/xvda",
                "ebs": {
                    "volumeSize": f"{pool.root_volume_gib}Gi",
                    "volumeType": "gp3",
                    "iops": ROOT_IOPS,
                    "throughput": ROOT_THROUGHPUT,
                    "encrypted": True,
                    "deleteOnTermination": True,
                },
            }
        ],
        # Pods get their identity from their service account, so they need no way to the machine's own (hop limit 1).
        "metadataOptions": {
            "httpEndpoint": "enabled",
            "httpTokens": "required",
            "httpPutResponseHopLimit": 1,
        },
        "tags": tags,
    }
    if pool.nvme_gb:
        spec["instanceStorePolicy"] = "RAID0"
    if pool.capacity_reservation_ids:
        spec["capacityReservationSelectorTerms"] = [{"id": i} for i in pool.capacity_reservation_ids]
    return spec


def request(pool: Pool) -> JsonObject:
    """The pool as the launcher is told of it."""
    return {
        "name": pool.name,
        "instanceType": pool.instance_type,
        "zone": pool.zone,
        "resource": pool.resource,
        "perNode": pool.accelerators if pool.accelerators else int(pool.worker_cpu),
        "maxNodes": pool.max_nodes,
        "efaPerNode": 0,
        "nodeSelector": {LABEL_NODEPOOL: pool.name},
        "tolerations": pool.tolerations,
    }
