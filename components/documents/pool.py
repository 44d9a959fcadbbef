"""The pool of worker nodes, and its two Karpenter objects."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from trainyard.k8s import names

from . import JsonObject, user_data
from . import efa as efa_layouts
from . import eks as subnet_addresses

GPU: Final = "nvidia.com/gpu"
NEURON: Final = "aws.amazon.com/neuron"
CPU: Final = "cpu"

DISCOVERY_TAG: Final = "karpenter.sh/discovery"
# EKS puts this tag only on the security group that it creates for a cluster
# (https://docs.aws.amazon.com/eks/latest/userguide/sec-group-reqs.html).
CLUSTER_GROUP_TAG: Final = "aws:eks:cluster-name"

# gp3 limits and prices: https://docs.aws.amazon.com/ebs/latest/userguide/general-purpose.html
DISK_IOPS: Final = 6000
DISK_THROUGHPUT: Final = 600
# The maximum rate in MiB/s to initialize a volume from a snapshot. By default, a block is fetched at its first read
# (https://docs.aws.amazon.com/ebs/latest/userguide/initalize-volume.html).
SNAPSHOT_RATE: Final = 300

ON_DEMAND: Final = "on-demand"
SPOT: Final = "spot"
RESERVED: Final = "reserved"
PURCHASES: Final = (ON_DEMAND, SPOT, RESERVED)
ODCR: Final = "odcr"
CAPACITY_BLOCK: Final = "capacity-block"
RESERVATION_TYPES: Final = (ODCR, CAPACITY_BLOCK)
# The `terminationGracePeriod`: this long after the start of a drain, Karpenter deletes also pods that must not be
# disrupted, early enough for their own grace periods (sigs.k8s.io/karpenter v1.14.1, DeleteExpiringPods in
# pkg/controllers/node/termination/terminator/terminator.go). EC2 announces the end of a Spot Instance two minutes
# before (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html), and Karpenter
# reads that some seconds later. It drains nodes of capacity blocks ten minutes before EC2 ends them
# (trainyard/k8s/names.py).
SPOT_GRACE_SECONDS: Final = 90
BLOCK_GRACE_SECONDS: Final = 540
# Their instances are parts of UltraServers (https://aws.amazon.com/ec2/ultraservers).
ULTRASERVER_FAMILIES: Final = ("p6e-gb200", "p6e-gb300", "trn2u")

# The NodePool adds it to a node, and the FSx CSI driver removes it when it can mount on the node
# (https://github.com/kubernetes-sigs/aws-fsx-csi-driver/blob/master/docs/install.md).
LUSTRE_STARTUP_TAINT: Final = {"key": "fsx.csi.aws.com/agent-not-ready", "effect": "NoExecute"}


@dataclass(frozen=True, kw_only=True)
class Pool:
    """A pool of nodes of one instance type in one zone, with a maximum number of nodes.

    `purchase` is a value of Karpenter's label `karpenter.sh/capacity-type`: on-demand, spot or reserved.
    `accelerators` is the number of devices named `resource` per node (0 for a CPU pool), `memory_gib` and `nvme_gb`
    are a node's memory in GiB and local disks in GB. Karpenter terminates an empty node after `idle_seconds`.

    `efa` is the number of EFA interfaces per node, in the layout of `efa_policy` (`components.documents.efa`) on
    the network cards from `first_efa_card` on. With `on_demand_fallback`, a node is launched on demand while the
    reservations are full. `reservation_type` is odcr or capacity-block. `reservation_begins` and `reservation_ends`
    are the times of a reservation, RFC 3339. `placement_group` is the name of the nodes' placement group, which the
    stack creates if `makes_placement_group` is set; `placement_group_of_reservation` is the group of the reservations.
    `data_snapshot_id` is a snapshot with the container runtime's directory and the images in it. Every node gets it on
    a disk of `data_volume_gib` GiB (None: the snapshot's size). `warm_nodes` is the number of nodes that stay without a
    job. The first network card supports `interfaces` interfaces with `addresses_per_interface` addresses each.
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
    efa: int = 0
    efa_policy: str = efa_layouts.NONE
    cards_per_ip_group: int = 1
    first_efa_card: int = 0
    gigabits: float = 0
    on_demand_fallback: bool = False
    reservation_type: str = ODCR
    reservation_begins: str | None = None
    reservation_ends: str | None = None
    placement_group: str | None = None
    makes_placement_group: bool = False
    placement_group_of_reservation: str | None = None
    data_snapshot_id: str | None = None
    data_volume_gib: int | None = None
    warm_nodes: int = 0
    interfaces: int = 3
    addresses_per_interface: int = 10

    def addresses(self, *, own_cni: bool) -> int:
        """Return the number of addresses of a node in its subnet. `own_cni`: the stack configures the VPC CNI."""
        return self._network(own_cni).address_count

    def network_interfaces(self, *, own_cni: bool) -> int:
        """Return the number of network interfaces of a node. `own_cni`: the stack configures the VPC CNI."""
        return self._network(own_cni).network_interfaces

    def _network(self, own_cni: bool) -> subnet_addresses.NodeNetwork:
        return subnet_addresses.NodeNetwork(
            interfaces=self.interfaces,
            addresses=self.addresses_per_interface,
            cards=self.first_efa_card + max(1, self.efa),
            policy=self.efa_policy,
            cards_per_ip_group=self.cards_per_ip_group,
            first_efa_card=self.first_efa_card,
            own_cni=own_cni,
        )

    @property
    def capacity_types(self) -> list[str]:
        """The values of Karpenter's label `karpenter.sh/capacity-type`. Karpenter prefers reserved ones."""
        return [self.purchase, ON_DEMAND] if self.on_demand_fallback else [self.purchase]

    @property
    def tolerations(self) -> list[JsonObject]:
        """Return the tolerations of pods for the pool's nodes."""
        return [{"key": self.taint["key"], "operator": "Exists", "effect": self.taint["effect"]}]

    @property
    def taint(self) -> dict[str, str]:
        """Return the taint of the pool's nodes. It keeps other pods away, so that nodes can become empty."""
        return {"key": self.resource if self.accelerators else names.LABEL_POOL, "effect": "NoSchedule"}

    @property
    def worker_cpu(self) -> str:
        """The cores that one worker requests: the node's, without those of the system and the daemons."""
        return str(max(1, int(self.vcpus * 0.85)))

    @property
    def worker_memory(self) -> str:
        """The memory that one worker requests. Karpenter subtracts 7.5 % for the hypervisor."""
        return f"{max(1, int(self.memory_gib * 0.75))}Gi"


def limits(pool: Pool) -> JsonObject:
    """Return the limit of a pool.

    The limit is in devices (or in cores), not in `nodes`. That limit is only eventually consistent: six pending
    pods launched six nodes under a limit of four, while the same limit in devices held.
    """
    if pool.accelerators:
        return {pool.resource: str(pool.accelerators * pool.max_nodes)}
    return {CPU: str(pool.vcpus * pool.max_nodes)}


def pool_annotations(pool: Pool) -> dict[str, str]:
    """Return the annotations of the NodePool with the resources of a node, for the launcher's and queues' limits.

    These are the resources of the instance; the kubelet and daemons use a part of the cores and the memory.
    """
    disk = max(pool.root_volume_gib * 2**30, pool.nvme_gb * 10**9)
    resources = {
        CPU: str(pool.vcpus),
        "memory": f"{pool.memory_gib}Gi",
        "ephemeral-storage": str(disk),
        GPU: "0",
        names.EFA_RESOURCE: str(pool.efa),
        **({pool.resource: str(pool.accelerators)} if pool.accelerators else {}),
    }
    return {names.ANNOTATION_NODE_RESOURCES: json.dumps(resources, sort_keys=True)}


def node_pool(pool: Pool, *, lustre: bool = False) -> JsonObject:
    """Return the `spec` of the NodePool (karpenter.sh/v1, https://karpenter.sh/docs/concepts/nodepools/).

    `lustre`: pods mount FSx for Lustre, so no pod starts before the node can mount it. A node with workers is never
    consolidated, expired or replaced for drift; only an empty one is terminated.

    With a `terminationGracePeriod`, Karpenter ends workers despite their do-not-disrupt annotation. Spot Instances
    and nodes of capacity blocks have one: without it, a drain would wait for the workers until EC2 ends the
    instance, and no worker would get SIGTERM in time to save. It would also allow drift to end workers, but the
    budgets forbid that.
    """
    requirements = [
        (names.LABEL_INSTANCE_TYPE, [pool.instance_type]),
        (names.LABEL_ZONE, [pool.zone]),
        (names.LABEL_CAPACITY_TYPE, pool.capacity_types),
    ]
    template: JsonObject = {
        "nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": pool.name},
        "expireAfter": "Never",
        "requirements": [{"key": key, "operator": "In", "values": values} for key, values in requirements],
        "taints": [pool.taint],
    }
    if grace := _grace_seconds(pool):
        template["terminationGracePeriod"] = f"{grace}s"
    if lustre:
        template["startupTaints"] = [dict(LUSTRE_STARTUP_TAINT)]
    return {
        "template": {"metadata": {"labels": {names.LABEL_POOL: pool.name}}, "spec": template},
        "disruption": {
            "consolidationPolicy": "WhenEmpty",
            "consolidateAfter": f"{pool.idle_seconds}s",
            "budgets": [{"nodes": "0", "reasons": ["Drifted", "Underutilized"]}, {"nodes": "100%"}],
        },
        "limits": limits(pool),
    }


def _grace_seconds(pool: Pool) -> int | None:
    """Return the maximum time that workers stay on a node that is drained; None: until they end."""
    if pool.purchase == SPOT:
        return SPOT_GRACE_SECONDS
    return BLOCK_GRACE_SECONDS if pool.reservation_type == CAPACITY_BLOCK else None


def node_class(
    pool: Pool,
    *,
    cluster: str,
    ami: str,
    role: Any,
    subnet_id: Any,
    tags: dict[str, str],
    instance_profile: Any = None,
    worker_security_group_id: Any = None,
    cluster_security_group_id: Any = None,
    lustre_efa: bool = False,
    volume_key: str | None = None,
) -> JsonObject:
    """Return the `spec` of the EC2NodeClass (karpenter.k8s.aws/v1, https://karpenter.sh/docs/concepts/nodeclasses/).

    `role`, `subnet_id` and the others of type Any may be outputs of other resources. With an `instance_profile`,
    Karpenter creates none for `role`, which needs access to IAM. Nodes have two security groups: the workers',
    whose members reach each other over EFA, and the one that EKS created for the cluster, with the system nodes and
    the API server. Without an id, Karpenter finds a group by its tags. `lustre_efa`: a file system has EFA, and
    nodes whose type supports it are configured for it. `volume_key` encrypts the disks; None: the account's default
    key for EBS.
    """
    identity = {"role": role} if instance_profile is None else {"instanceProfile": instance_profile}
    spec: JsonObject = {
        "amiSelectorTerms": [{"alias": ami}],
        **identity,
        "subnetSelectorTerms": [{"id": subnet_id}],
        "securityGroupSelectorTerms": [
            {"tags": {DISCOVERY_TAG: cluster}}
            if worker_security_group_id is None
            else {"id": worker_security_group_id},
            {"tags": {CLUSTER_GROUP_TAG: cluster}}
            if cluster_security_group_id is None
            else {"id": cluster_security_group_id},
        ],
        "blockDeviceMappings": _disks(pool, volume_key),
        # Pods get their identity from their service account, so they need no access to the node's identity (hop limit
        # 1).
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
    if pool.efa:
        spec["networkInterfaces"] = efa_layouts.layout(
            pool.efa, pool.efa_policy, pool.cards_per_ip_group, pool.first_efa_card
        )
    if pool.placement_group:
        spec["placementGroupSelector"] = {"name": pool.placement_group}
    script = user_data.user_data(
        vcpus=pool.vcpus,
        local_disks=pool.nvme_gb > 0,
        images_from_snapshot=pool.data_snapshot_id is not None,
        lustre_interfaces=user_data.interfaces(pool.instance_type, pool.efa) if lustre_efa else 0,
    )
    if script is not None:
        spec["userData"] = script
    return spec


def _disks(pool: Pool, volume_key: str | None) -> list[JsonObject]:
    """Return the disk of the system and, with a snapshot, the disk of the images."""
    common: JsonObject = {
        "volumeType": "gp3",
        "iops": DISK_IOPS,
        "throughput": DISK_THROUGHPUT,
        "encrypted": True,
        "deleteOnTermination": True,
    }
    if volume_key is not None:
        common["kmsKeyID"] = volume_key
    disks = [{"deviceName": "/dev/xvda", "ebs": {"volumeSize": f"{pool.root_volume_gib}Gi", **common}}]
    if pool.data_snapshot_id:
        size = {"volumeSize": f"{pool.data_volume_gib}Gi"} if pool.data_volume_gib else {}
        source = {"snapshotID": pool.data_snapshot_id, "volumeInitializationRate": SNAPSHOT_RATE}
        disks.append({"deviceName": user_data.DATA_DEVICE, "ebs": {**size, **source, **common}})
    return disks


def outside_pools_affinity() -> JsonObject:
    """Return the `affinity` of a pod that runs on no node of a pool."""
    term = {"matchExpressions": [{"key": names.LABEL_NODEPOOL, "operator": "DoesNotExist"}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}


def request(pool: Pool) -> JsonObject:
    """Return the pool in the form of the launcher's request."""
    return {
        "name": pool.name,
        "instanceType": pool.instance_type,
        "zone": pool.zone,
        "resource": pool.resource,
        "perNode": pool.accelerators if pool.accelerators else int(pool.worker_cpu),
        "maxNodes": pool.max_nodes,
        "efaPerNode": pool.efa,
        "nodeSelector": {names.LABEL_NODEPOOL: pool.name},
        "tolerations": pool.tolerations,
        "block": _block(pool),
    }


def taken_back_seconds(instance_type: str) -> int:
    """Return how long before the end of a type's capacity block a run must be over."""
    ultra = instance_type.partition(".")[0] in ULTRASERVER_FAMILIES
    return names.ULTRASERVER_DRAIN_SECONDS if ultra else names.CAPACITY_BLOCK_DRAIN_SECONDS


def _block(pool: Pool) -> JsonObject | None:
    """Return the pool's capacity block, None without one.

    Nodes of an on-demand reservation that has ended stay, as on-demand nodes.
    """
    if pool.reservation_type != CAPACITY_BLOCK:
        return None
    begins = {"begins": pool.reservation_begins} if pool.reservation_begins else {}
    return {
        **begins,
        "ends": pool.reservation_ends,
        "takenBackSeconds": taken_back_seconds(pool.instance_type),
        "onDemandFallback": pool.on_demand_fallback,
    }
