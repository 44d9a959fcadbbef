"""The settings of a stack as values; `infra.settings` reads and checks them."""

from __future__ import annotations

from dataclasses import dataclass

from components.shared.pool import Pool


@dataclass(frozen=True, kw_only=True)
class Network:
    """The VPC. `zones` are names such as us-west-2a; one NAT gateway in all, or one per zone."""

    cidr: str
    zones: tuple[str, ...]
    nat_per_zone: bool


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The EKS cluster and its system nodes."""

    name: str
    version: str
    administrators: tuple[str, ...]
    public_access_cidrs: tuple[str, ...]
    system_instance_type: str
    system_count: int
    karpenter_replicas: int
    addon_versions: dict[str, str]
    ami: str
    log_retention_days: int


@dataclass(frozen=True, kw_only=True)
class Images:
    """Container images; `launcher` and `trainer` are None where the stack builds them."""

    build: bool
    launcher: str | None
    trainer: str | None
    placeholder: str
    training_operator: str | None
    device_plugin: str


@dataclass(frozen=True, kw_only=True)
class Storage:
    """The model bucket: prefix of the runs' keys, days after which replaced versions are removed."""

    prefix: str
    keep_old_versions_days: int


@dataclass(frozen=True, kw_only=True)
class Training:
    """One training run. `run_id` None: the stack starts none; the manifest in its outputs does."""

    pool: Pool
    run_id: str | None
    min_nodes: int
    max_nodes: int
    device: str
    processes_per_node: int
    capacity_deadline_seconds: int
    hold_seconds: int
    active_deadline_seconds: int | None
    data: str
    args: tuple[str, ...]
    env: dict[str, str]
    cpu: str
    memory: str
    shared_memory: str


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Where charts and manifests come from; a version only for what is fetched from a registry."""

    karpenter_chart: str
    karpenter_crd_chart: str
    karpenter_version: str | None
    training_operator: str


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings of one stack."""

    stack: str
    region: str
    network: Network
    cluster: Cluster
    pools: tuple[Pool, ...]
    images: Images
    storage: Storage
    training: Training
    sources: Sources
    protect_data: bool
