"""The settings of a stack as values; `infra.settings` reads and checks them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from components.documents.launch import Candidate
from components.documents.pool import Pool
from components.documents.torchrun_queue import Queue


@dataclass(frozen=True, kw_only=True)
class ExistingVpc:
    """A VPC that is given. Subnets are ids by zone; `worker_group_id` None: a security group is made in it."""

    vpc_id: str
    private_subnet_ids: dict[str, str]
    public_subnet_ids: dict[str, str]
    worker_group_id: str | None


@dataclass(frozen=True, kw_only=True)
class Network:
    """The VPC, made by the stack or, with `existing`, given to it.

    `zones` are names such as us-west-2a; one NAT gateway in all, or one per zone. `cidr` is None where a given VPC's
    range is not needed. `private`: no way out and none in, AWS is reached by `interface_endpoints` (short names such
    as ecr.api, those of the settings alone) and those that a private network always has.
    """

    cidr: str | None
    zones: tuple[str, ...]
    nat_per_zone: bool
    existing: ExistingVpc | None
    private: bool
    interface_endpoints: tuple[str, ...]
    flow_logs: bool
    flow_log_retention_days: int


@dataclass(frozen=True, kw_only=True)
class ExistingCluster:
    """An EKS cluster that is given, as DescribeCluster tells of it; the certificate authority is in base64."""

    endpoint: str
    certificate_authority: str
    oidc_provider_arn: str
    oidc_issuer: str
    security_group_id: str


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The EKS cluster and its system nodes, or with `existing` a given cluster, whose name `name` is.

    `prefix` is what the names of everything else that the stack makes begin with: the name too, where all services
    take it.
    `version` is the Kubernetes version of a cluster that the stack makes, `account_id` the account that it is, or will
    be, in. `late_log_seconds` is how long entries of its control plane's logs may come after it is gone.
    """

    name: str
    prefix: str
    account_id: str
    version: str
    existing: ExistingCluster | None
    deploy_from: str
    administrators: tuple[str, ...]
    public_access_cidrs: tuple[str, ...]
    system_instance_type: str
    system_count: int
    karpenter_replicas: int
    node_repair: bool
    addon_versions: dict[str, str]
    ami: str
    volume_key: str | None
    log_retention_days: int
    late_log_seconds: int


@dataclass(frozen=True, kw_only=True)
class Images:
    """Container images; `launcher` and `trainer` are None where the stack builds them.

    `base_images` are those that launcher and trainer are built on, where they are not the Dockerfiles' own. `mirror`
    is a registry and prefix that third-party images are pulled from, where their own key gives none. `package_index` is
    the address that pip takes packages from in both builds, None where that is its own.
    """

    build: bool
    launcher: str | None
    trainer: str | None
    placeholder: str
    training_operator: str | None
    device_plugin: str
    efa_device_plugin: str
    neuron_device_plugin: str
    kubectl_delivery: str
    debug: str
    base_images: dict[str, str]
    package_index: str | None
    debian_mirror: str | None
    efa_installer: str | None
    mirror: str | None


@dataclass(frozen=True, kw_only=True)
class LustreLink:
    """A bucket behind a file system: `bucket` None is the stack's own. `path` is where its `prefix` appears."""

    bucket: str | None
    prefix: str
    path: str


@dataclass(frozen=True, kw_only=True)
class ExistingLustre:
    """A file system that is given."""

    file_system_id: str
    dns_name: str
    mount_name: str


@dataclass(frozen=True, kw_only=True)
class Lustre:
    """An FSx for Lustre file system, made by the stack or, with `existing`, given to it.

    `capacity_gib` is in GiB, `throughput` in MB/s per TiB, `metadata_iops` 0 where FSx chooses. `backup_days` is how
    long automatic backups are kept, 0: there are none. `mount_path` is the directory in pods.
    """

    deployment_type: str
    storage_type: str
    drive_cache: str
    capacity_gib: int
    throughput: int
    metadata_iops: int
    zone: str
    compression: str
    mount_path: str
    link: LustreLink | None
    efa: bool
    existing: ExistingLustre | None
    backup_days: int


@dataclass(frozen=True, kw_only=True)
class Storage:
    """The model bucket: prefix of the runs' keys, days after which old data is removed; a file system.

    `keep_old_versions_days` applies to replaced versions, `keep_job_logs_days` to logs of torchrun jobs.
    """

    prefix: str
    keep_old_versions_days: int
    keep_job_logs_days: int
    lustre: Lustre | None


@dataclass(frozen=True, kw_only=True)
class ServiceAccount:
    """A service account with access to a bucket; `bucket` None is the stack's own, `access` is read or write."""

    name: str
    namespace: str
    bucket: str | None
    access: str


@dataclass(frozen=True, kw_only=True)
class Training:
    """One training run. `run_id` None: the stack starts none; the manifest in its outputs does.

    `candidates` are the pools that it may train on, in the order in which they are asked: `pool`, then `fallbackPools`.
    A machine that is not usable `node_start_seconds` after it was ordered is given back. All candidates are asked
    `attempts` times, with a pause of `retry_seconds` between. A training that fails is begun anew up to `max_restarts`
    times. `shape` is static (as many machines as at the submit, or none) or elastic (torchrun goes on with fewer).
    `checkpoints` is where they lie (`components.documents.checkpoints.PLACES`).
    """

    candidates: tuple[Candidate, ...]
    run_id: str | None
    min_nodes: int
    max_nodes: int
    device: str
    hold_seconds: int
    node_start_seconds: int
    attempts: int
    retry_seconds: int
    max_restarts: int
    shape: str
    active_deadline_seconds: int | None
    data: str
    checkpoints: str
    args: tuple[str, ...]
    env: dict[str, str]
    secrets: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class PoolEntry:
    """An entry of the pools in a stack file. `wrong` are the keys with invalid values.

    Other sections are checked against its valid values, so that one mistake does not hide others.
    """

    pool: Pool
    wrong: frozenset[str]

    @property
    def sized(self) -> Pool | None:
        """Return the pool if its instance type is valid, else None."""
        return None if "instanceType" in self.wrong else self.pool

    @property
    def max_nodes(self) -> int | None:
        """Return the maximum number of nodes if it is valid, else None."""
        return None if "maxNodes" in self.wrong else self.pool.max_nodes

    @property
    def zone(self) -> str | None:
        """Return the zone if it is valid, else None."""
        return None if "zone" in self.wrong else self.pool.zone

    def has(self, *keys: str) -> bool:
        """Return whether the values of these keys are valid."""
        return not any(re.split(r"[.\[]", each)[0] in keys for each in self.wrong)


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Where charts and manifests come from; a version only for what is fetched from a registry."""

    karpenter_chart: str
    karpenter_crd_chart: str
    karpenter_version: str | None
    training_operator: str


@dataclass(frozen=True, kw_only=True)
class Provider:
    """The AWS provider: a profile of ~/.aws/config, None for the environment; the tags of all resources."""

    profile: str | None
    tags: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings of one stack; `training` None: it has pools and starts no run.

    Without `queues` there is no controller of torchrun jobs.
    """

    stack: str
    region: str
    provider: Provider
    network: Network
    cluster: Cluster
    pools: tuple[Pool, ...]
    images: Images
    storage: Storage
    training: Training | None
    queues: tuple[Queue, ...]
    service_accounts: tuple[ServiceAccount, ...]
    debug_pod: bool
    node_check: bool
    mpi: bool
    sources: Sources
    protect_data: bool
