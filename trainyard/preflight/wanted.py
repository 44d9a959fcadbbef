"""What a stack asks of the account, as the checks need it. `trainyard.preflight.mapping` makes it of the settings.

Each part carries the path of its key in the stack file, so that a problem is told where it can be mended.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True, kw_only=True)
class _Told:
    """One line for a person: of which settings key, and what."""

    key: str
    message: str

    def __str__(self) -> str:
        return f"{self.key}: {self.message}"


class Problem(_Told):
    """One thing that is missing or wrong; the message says what is wrong and what would be right."""


class Caution(_Told):
    """One thing that is right as the stack file says it, and may still be in the way."""


class Unasked(_Told):
    """One thing that this account can't be asked about, and why not."""


@dataclass(frozen=True, kw_only=True)
class WantedPool:
    """A pool. `key` is its path (`trainyard:pools[0]`). `vcpus` of one machine count towards quotas. `resource` is the
    name of the devices that its machines offer.

    `reservation_begins` and `reservation_ends` are what the stack file says (aware); `placement_group` names a group
    that exists. A disk of `data_volume_gib` GiB (None: the snapshot's size) is made of the snapshot `snapshot_id`, if
    any. `disks_gib` are all disks of one machine, and `interfaces` its network interfaces.
    """

    key: str
    name: str
    instance_type: str
    zone: str
    max_nodes: int
    vcpus: int
    resource: str = "cpu"
    purchase: str = "on-demand"
    reservation_ids: tuple[str, ...] = ()
    reservation_type: str = "odcr"
    reservation_begins: datetime | None = None
    reservation_ends: datetime | None = None
    on_demand_fallback: bool = False
    placement_group: str | None = None
    placement_group_of_reservation: str | None = None
    snapshot_id: str | None = None
    data_volume_gib: int | None = None
    disks_gib: int = 0
    interfaces: int = 1


@dataclass(frozen=True, kw_only=True)
class WantedSystem:
    """The system nodes: `count` of them, and how many more there are in a zone while EKS replaces them.

    `vcpus`, `disk_gib` and `interfaces` (network interfaces) are those of one.
    """

    instance_type: str
    count: int
    vcpus: int
    spare: int = 0
    disk_gib: int = 0
    interfaces: int = 1


@dataclass(frozen=True, kw_only=True)
class WantedVpc:
    """A VPC that is given: subnets by zone, its range where the stack file says it, and the workers' group unless the
    stack makes one.

    `endpoints` are services that private subnets without a way out must reach by an interface endpoint that exists
    already (`ecr.api`), `made_endpoints` those that the stack makes one for; `addresses` maps a zone to the
    addresses that the stack may take in its private subnet, by what takes them.
    """

    vpc_id: str
    private: dict[str, str]
    cidr: str | None = None
    public: dict[str, str] = field(default_factory=dict)
    worker_group: str | None = None
    isolated: bool = False
    endpoints: tuple[str, ...] = ()
    made_endpoints: tuple[str, ...] = ()
    addresses: dict[str, dict[str, int]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class WantedCluster:
    """A cluster that is given, of one of the Kubernetes `versions`; None where the stack file leaves a value open.

    `definitions`, `namespaces` and `devices` (resources of device plugins) are what the stack makes in it, `drivers`
    the CSI drivers that must be there, `node_repair` that something has to tell which machines are broken, `efa` that
    machines will have efa-only interfaces.
    """

    name: str
    versions: tuple[str, ...]
    vpc_id: str | None = None
    endpoint: str | None = None
    certificate_authority: str | None = None
    oidc_provider_arn: str | None = None
    oidc_issuer: str | None = None
    security_group: str | None = None
    definitions: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    drivers: tuple[str, ...] = ()
    node_repair: bool = False
    efa: bool = False


@dataclass(frozen=True, kw_only=True)
class WantedLustre:
    """A file system that is given. `zones` are where its clients are; `vpc_id` None: in a VPC that the stack makes."""

    file_system_id: str
    dns_name: str
    mount_name: str
    zones: tuple[str, ...] = ()
    vpc_id: str | None = None
    worker_group: str | None = None


@dataclass(frozen=True, kw_only=True)
class WantedBucket:
    """A bucket that is given by name at a key."""

    key: str
    name: str


@dataclass(frozen=True, kw_only=True)
class WantedImage:
    """A container image that the stack uses: the key where it can be mended, its name below `images`, its reference."""

    key: str
    name: str
    reference: str


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Everything of one stack. `vpc`, `existing_cluster`, `lustre` are None where the stack makes its own.

    `account` is the one to deploy to, as the key `account_key` says. `zones` are those that the stack has subnets in;
    `elastic_ips` are the addresses of a new VPC. `endpoints` are services that the stack makes an interface
    endpoint for (`ecr.api`), in a subnet of each zone. `system` is None where a cluster is given. `new_lustre` is
    (deployment type, GiB) of a file system that it makes. `repositories` are the ECR names and `key_aliases` the names
    of KMS keys that it will take, `queue` is that of Karpenter's queue (None: the cluster's).

    `public_ranges` are those that reach the API of a cluster that the stack makes over the internet.
    `kubernetes` is the version of a cluster that the stack makes (None: it is given one), `kubernetes_supported` are
    those that the program knows, `addons` the versions that are pinned, by add-on. `ami` is the alias of the machines'
    image, `images` are the containers'. `volume_key` is the ARN of the key of nodes' disks, where the stack file gives
    one.
    """

    stack: str
    region: str
    account: str
    account_key: str
    tags: dict[str, str]
    cluster: str
    administrators: tuple[str, ...]
    zones: tuple[str, ...]
    pools: tuple[WantedPool, ...]
    system: WantedSystem | None
    ami: str
    vpc: WantedVpc | None = None
    elastic_ips: int = 0
    endpoints: tuple[str, ...] = ()
    existing_cluster: WantedCluster | None = None
    lustre: WantedLustre | None = None
    new_lustre: tuple[str, int] | None = None
    buckets: tuple[WantedBucket, ...] = ()
    repositories: tuple[str, ...] = ()
    key_aliases: tuple[str, ...] = ()
    queue: str | None = None
    kubernetes: str | None = None
    kubernetes_supported: tuple[str, ...] = ()
    addons: dict[str, str] = field(default_factory=dict)
    images: tuple[WantedImage, ...] = ()
    public_ranges: tuple[str, ...] = ()
    volume_key: str | None = None
