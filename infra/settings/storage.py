"""Sections `storage` and `serviceAccounts` of a stack file: buckets and the file system, and who has access."""

from __future__ import annotations

from typing import Annotated, Final

from components.documents import checkpoints, lustre
from infra.settings.fields import (
    FIXED,
    IN_PLACE,
    NEXT_RUN,
    REQUIRED,
    Choice,
    Model,
    Text,
    WholeNumber,
    setting,
)
from infra.settings.formats import ABSOLUTE_PATH, KEY_PREFIX, Bucket, DnsLabel, ZoneName
from infra.settings.network import Network, zones_of
from infra.settings.pools import PoolEntry
from infra.settings.problems import Section
from trainyard.k8s import names

ONLY_NEW: Final = (
    *("deploymentType", "storageType", "driveCache", "capacityGiB", "throughput", "metadataIops", "zone"),
    *("compression", "s3", "efa", "backupDays"),
)
# Directories of an image's system and runtime, including /dev/shm, and those of torchrun jobs' workspaces.
TAKEN: Final = (
    *("app", "bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc", "run", "sbin", "sys"),
    *("tmp", "usr", "var"),
)
# Directories of EFA's libraries and of the trainer (trainer/Dockerfile). Others may be below /opt.
TAKEN_BELOW: Final = ("/opt/amazon", "/opt/trainyard")
READ, WRITE = "read", "write"
# Other namespaces would have to exist before the stack.
DEFAULT: Final = "default"
NAMESPACES: Final = (DEFAULT, names.TRAINING_NAMESPACE)
# Kubernetes creates it in every namespace.
OF_EVERY_NAMESPACE: Final = "default"
OF_THE_STACK: Final = {
    (names.TRAINING_NAMESPACE, names.LAUNCHER_SERVICE_ACCOUNT),
    (names.TRAINING_NAMESPACE, names.TRAINER_SERVICE_ACCOUNT),
}
# IAM takes 64 characters (https://docs.aws.amazon.com/IAM/latest/APIReference/API_CreateRole.html), of which an
# automatic suffix takes eight.
ROLE_NAME_MAXIMUM: Final = 56
FileSystemDnsName = Annotated[
    str,
    Text(
        "a name such as fs-0123456789abcdef0.fsx.us-west-2.amazonaws.com",
        r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)+",
    ),
]


class LustreLink(Model):
    """A bucket that is linked to a file system. Without `bucket` it is the stack's own."""

    bucket: Bucket = setting(
        None, "replaces the link; fixed with PERSISTENT_1", example="models", default_text="models"
    )
    """A bucket's name, or `models` for the stack's own."""
    prefix: Annotated[str, Text("a key prefix such as data", rf"({KEY_PREFIX}/?)?")] = setting(
        "", "replaces the link; fixed with PERSISTENT_1", example="data"
    )
    """The linked prefix of the bucket."""
    path: Annotated[str, Text("an absolute path such as /data", rf"/|{ABSOLUTE_PATH}")] = setting(
        "/", "replaces the link", example="/data"
    )
    """The linked directory of the file system; with PERSISTENT_1 it must be `/`."""


class ExistingLustre(Model):
    """An existing file system."""

    file_system_id: Annotated[str, Text("an id such as fs-0123456789abcdef0", r"fs-[0-9a-f]{8,21}")] = (
        setting(REQUIRED, FIXED, example="fs-0123456789abcdef0")
    )
    """Its id."""
    dns_name: FileSystemDnsName = setting(
        REQUIRED, FIXED, example="fs-0123456789abcdef0.fsx.us-west-2.amazonaws.com"
    )
    """Its DNS name, which contains its id and the region."""
    mount_name: Annotated[
        str, Text("the mount name that FSx gave, such as abcdefgh", r"[A-Za-z0-9_]{1,8}")
    ] = setting(REQUIRED, FIXED, example="abcdefgh")
    """Its mount name."""


class Lustre(Model):
    """An FSx for Lustre file system, created by the stack or an existing one.

    After `check`, `zone`, `capacity_gib` and `throughput` have their defaults.
    """

    existing: ExistingLustre | None = setting(None, FIXED)
    """An existing file system, in the VPC of `network.vpcId` and the zone of all pools. It excludes settings of a new
    file system. Pods can read all of it. The stack writes to `trainyard/<stack>` only.
    """
    deployment_type: Annotated[str, Choice(lustre.DEPLOYMENTS)] = setting(
        lustre.PERSISTENT_2, FIXED, example="PERSISTENT_2"
    )
    """SCRATCH_2 does not replicate data; the other types do."""
    storage_type: Annotated[str, Choice(lustre.STORAGE_TYPES)] = setting(lustre.SSD, FIXED, example="SSD")
    """SSD, or HDD with PERSISTENT_1, which is slower and cheaper."""
    throughput: WholeNumber = setting(
        0, FIXED, example=1000, unit="MB/s per TiB", default_text="the type's lowest", ge=1
    )
    """SCRATCH_2 has 200; PERSISTENT_1 50, 100, 200, on HDD 12, 40; PERSISTENT_2 125, 250, 500, 1000."""
    capacity_gib: WholeNumber = setting(
        0,
        "in place, a smaller value is refused",
        example=4800,
        unit="GiB",
        default_text="the smallest: 1200 on SSD",
        ge=1,
    )
    """SSD: 1200, or a multiple of 2400. HDD: a multiple of 6000 at 12 MB/s per TiB, of 1800 at 40."""
    s3: LustreLink | None = setting(None, "replaces the link; fixed with PERSISTENT_1")
    """A bucket that is linked to the file system: objects appear as files, and files become objects."""
    drive_cache: Annotated[str, Choice(lustre.DRIVE_CACHES)] = setting(
        lustre.DRIVE_CACHES[0], FIXED, example="NONE"
    )
    """For HDD: READ caches frequently read data on SSDs with a fifth of the capacity."""
    metadata_iops: WholeNumber = setting(
        0, "in place, a smaller value is refused", example=6000, unit="operations per second", ge=0
    )
    """With PERSISTENT_2: metadata operations per second, 1500, 3000, 6000, 12000, or a multiple of 12000 up to
    192000. 0: FSx's default for the capacity.
    """
    zone: ZoneName = setting("", FIXED, example="us-west-2b", default_text="the pools' zone")
    """The zone, which must be that of all pools."""
    compression: Annotated[str, Choice(lustre.COMPRESSIONS)] = setting(
        lustre.COMPRESSIONS[0], IN_PLACE, example="LZ4"
    )
    """Compression of the data on disk."""
    mount_path: Annotated[str, Text("an absolute path such as /fsx", ABSOLUTE_PATH)] = setting(
        "/fsx", NEXT_RUN, example="/fsx"
    )
    """The mount path in pods. System directories are refused."""
    efa: bool = setting(False, FIXED, example=True)
    """Experimental: EFA for the file system, on nodes of g6, g6e, p5, p5e, p5en, p6-b200, trn1 and trn1n with EFA.
    Other nodes, and nodes whose client can't be configured, use TCP. It needs PERSISTENT_2 with a multiple of 38400
    GiB at 125 MB/s per TiB, of 19200 at 250, of 9600 at 500, of 4800 at 1000.
    """
    backup_days: WholeNumber = setting(0, IN_PLACE, example=0, unit="days", ge=0, le=90)
    """The retention of automatic backups; 0 disables them. Not with `s3`."""


class Storage(Model):
    """The bucket for models, and a file system."""

    prefix: Annotated[str, Text("a key prefix such as models", KEY_PREFIX)] = setting(
        "models", NEXT_RUN, example="models"
    )
    """Models are stored in `s3://<bucket>/<prefix>/<runId>/`. It must not be `checkpoints`."""
    keep_old_versions_days: WholeNumber = setting(30, IN_PLACE, example=30, unit="days", ge=1)
    """Days until an overwritten model is deleted. For checkpoints it is one day."""
    keep_job_logs_days: WholeNumber = setting(30, IN_PLACE, example=30, unit="days", ge=1)
    """Days after its last line until the log of a torchrun job in the bucket is deleted (docs/queues.md)."""
    lustre: Lustre | None = setting(None, "in place, removal deletes the stack's file system with its data")
    """A file system of FSx for Lustre that all training pods share."""


class ServiceAccount(Model):
    """A service account with access to a bucket; without `bucket` it is the stack's own."""

    name: DnsLabel = setting(
        REQUIRED, "replaces the service account and its role", example="pytorch-training-sa"
    )
    """The name of the service account, which must be unique in all namespaces."""
    namespace: Annotated[str, Choice(NAMESPACES)] = setting(
        DEFAULT, "replaces the service account", example="default"
    )
    """Its namespace."""
    bucket: Bucket = setting(None, IN_PLACE, example="models", default_text="models")
    """A bucket's name, or `models` for the stack's own."""
    access: Annotated[str, Choice((READ, WRITE))] = setting(READ, IN_PLACE, example="write")
    """`write` includes read access. Neither allows deletions."""


def check_storage(
    section: Section[Storage], network: Network, region: str, pools: list[PoolEntry]
) -> Storage:
    """Check bucket and file system. The file system is in the zone of the pools."""
    values = section.values
    if values.prefix.split("/")[0] == checkpoints.PREFIX:
        section.reject(
            "prefix", f"'{values.prefix}' is where checkpoints go; it must be another one, such as models"
        )
    if values.lustre is None:
        return values
    found = _check_lustre(section.part("lustre", values.lustre), network, region, pools)
    return values.model_copy(update={"lustre": found})


def _check_lustre(section: Section[Lustre], network: Network, region: str, pools: list[PoolEntry]) -> Lustre:
    values = section.values
    kind = (values.deployment_type, values.storage_type)
    offered = lustre.THROUGHPUT.get(kind, lustre.THROUGHPUT[lustre.PERSISTENT_2, lustre.SSD])
    throughput = values.throughput or offered[0]
    capacity = values.capacity_gib or lustre.least_capacity(*kind, throughput)
    zone = _check_zone(section, zones_of(region, network.zones), pools)
    _check_mount_path(section)
    found = values.model_copy(update={"zone": zone, "throughput": throughput, "capacity_gib": capacity})
    if values.existing is None:
        _check_offer(Section(section.problems, section.path, found))
        return found
    if network.existing is None and not section.problems.about("trainyard:network.vpcId"):
        section.reject(
            "existing",
            "is given, and the stack makes a VPC of its own, from which it can't be reached; network.vpcId must be"
            " the VPC that it is in",
        )
    section.reject_given(
        ONLY_NEW, "is for a file system that the stack makes, and existing gives one; leave it out"
    )
    given = section.part("existing", values.existing)
    # FSx builds the DNS name from both (https://docs.aws.amazon.com/fsx/latest/LustreGuide/mounting-ec2-instance.html).
    begin = f"{values.existing.file_system_id}.fsx.{region}."
    is_valid = given.ok("fileSystemId", "dnsName")
    if region and is_valid and not values.existing.dns_name.startswith(begin):
        given.reject(
            "dnsName",
            f"'{values.existing.dns_name}' is not of this file system in {region}; it must begin with {begin}",
        )
    return found


def _check_offer(section: Section[Lustre]) -> None:
    """Check that FSx offers this file system (`components.documents.lustre`)."""
    values, deployment, storage = section.values, section.values.deployment_type, section.values.storage_type
    capacity, throughput = values.capacity_gib, values.throughput
    if not section.ok("deploymentType", "storageType"):
        return
    if problem := lustre.storage_problem(deployment, storage):
        section.reject("storageType", f"{storage}: {problem}")
        return
    checks = (
        ("driveCache", values.drive_cache, lustre.cache_problem(storage, values.drive_cache)),
        ("throughput", throughput, lustre.throughput_problem(deployment, storage, throughput)),
        ("capacityGiB", capacity, lustre.capacity_problem(deployment, storage, capacity, throughput)),
        ("metadataIops", values.metadata_iops, lustre.metadata_problem(deployment, values.metadata_iops)),
    )
    for key, value, problem in checks:
        if problem:
            section.reject(key, f"{value}: {problem}")
    if values.efa and section.ok("capacityGiB", "throughput"):
        problem = lustre.efa_problem(deployment, storage, capacity, throughput)
        if problem:
            section.reject("efa", f"true: {problem}")
    if values.s3 and values.s3.path != "/" and deployment == lustre.PERSISTENT_1:
        section.reject(
            "s3.path", f"'{values.s3.path}': {deployment} shows a bucket at its root alone; it must be /"
        )
    if values.backup_days and not lustre.keeps_backups(deployment):
        section.reject("backupDays", f"{values.backup_days}: {deployment} has no backups; it must be 0")
    elif values.backup_days and values.s3:
        section.reject(
            "backupDays",
            f"{values.backup_days}: a file system with a bucket behind it (s3) has no backups; it must be 0",
        )


def _check_zone(section: Section[Lustre], zones: tuple[str, ...], pools: list[PoolEntry]) -> str:
    """Return the zone of file system and clients. Traffic between two zones would be slower and cost money."""
    used = sorted({each.zone for each in pools if each.zone})
    default = used[0] if used else zones[0] if zones else ""
    zone = section.values.zone if section.has("zone") else default
    if not section.ok("zone"):
        return zone
    if section.has("existing") or not section.has("zone"):
        # The zone of an existing one is only known in the account (`trainyard.preflight` checks it).
        if len(used) > 1:
            section.problems.add(
                section.at("existing") if section.has("existing") else section.path,
                f"is in one zone, but pools are in {', '.join(used)}; pools and file system must be in one zone",
            )
    elif zones and zone not in zones:
        section.reject("zone", f"'{zone}' has no subnets here; it must be one of {', '.join(zones)}")
    elif others := [each for each in used if each != zone]:
        section.reject(
            "zone",
            f"is '{zone}', but pools are in {', '.join(others)}; pools and file system must be in one zone",
        )
    return zone


def _check_mount_path(section: Section[Lustre]) -> None:
    path = section.values.mount_path
    hides = any(f"{each}/".startswith(f"{path}/") or path.startswith(f"{each}/") for each in TAKEN_BELOW)
    if hides or path.split("/")[1] in TAKEN:
        section.reject(
            "mountPath",
            f"'{path}' lies in a directory that pods need for themselves; it must be one of your own, such as /fsx",
        )


def check_service_accounts(entries: list[Section[ServiceAccount]], prefix: str) -> tuple[ServiceAccount, ...]:
    """Return the service accounts, including invalid ones. Each has a role, whose name begins with `prefix`."""
    most = ROLE_NAME_MAXIMUM - len(prefix) - 1
    seen: dict[str, str] = {}
    for section in entries:
        account = section.values
        if (account.namespace, account.name) in OF_THE_STACK:
            section.reject(
                "name", f"'{account.name}' is the stack's own in {account.namespace}; take another one"
            )
        elif account.name == OF_EVERY_NAMESPACE:
            section.reject("name", f"'{account.name}' is in every namespace already; it must be another name")
        elif account.name and account.name in seen:
            # The role is named after the account, without the namespace.
            section.reject(
                "name",
                f"'{account.name}' is also in {seen[account.name]}; each needs its own name, in whatever namespace",
            )
        elif len(account.name) > most:
            section.reject(
                "name",
                f"'{account.name}' makes its role's name too long for IAM; it must have at most {most} characters",
            )
        seen.setdefault(account.name, account.namespace)
    return tuple(section.values for section in entries)
