"""Reading bucket and file system of a stack file; part of `infra.settings`."""

from __future__ import annotations

from components.documents import checkpoints, lustre
from infra import formats
from infra.model import ExistingLustre, Lustre, LustreLink, Network, PoolEntry, Storage
from infra.network_settings import zones_of
from infra.reading import Problems, Section

# What only a file system that the stack makes has.
ONLY_NEW = (
    "deploymentType",
    "storageType",
    "driveCache",
    "capacityGiB",
    "throughput",
    "metadataIops",
    "zone",
    "compression",
    "s3",
    "efa",
    "backupDays",
)
OWN_BUCKET = "models"
# Of an image's system and of its runtime, /dev/shm among them, and where the workspaces of torchrun jobs are.
TAKEN = (
    *(
        "app",
        "bin",
        "boot",
        "dev",
        "etc",
        "lib",
        "lib32",
        "lib64",
        "libx32",
        "proc",
        "run",
        "sbin",
        "sys",
        "tmp",
    ),
    *("usr", "var"),
)
# Of EFA's libraries and of the trainer itself (trainer/Dockerfile); others may be below /opt.
TAKEN_BELOW = ("/opt/amazon", "/opt/trainyard")


def read_storage(
    problems: Problems, value: object, network: Network, region: str, pools: list[PoolEntry]
) -> Storage:
    """The model bucket and the file system. The network's zones have subnets; the file system lies with its pools."""
    section = Section(problems, "trainyard:storage", value)
    prefix = section.text(
        "prefix", "models", pattern=formats.KEY_PREFIX, wanted="a key prefix such as models"
    )
    if prefix.split("/")[0] == checkpoints.PREFIX and "prefix" not in section.wrong:
        section.reject(
            "prefix", f"'{prefix}' is where checkpoints go; it must be another one, such as models"
        )
    days = section.integer("keepOldVersionsDays", 30, least=1, unit="days")
    log_days = section.integer("keepJobLogsDays", 30, least=1, unit="days")
    file_system = section.optional_section("lustre")
    result = Storage(
        prefix=prefix,
        keep_old_versions_days=days,
        keep_job_logs_days=log_days,
        lustre=_lustre(file_system, network, region, pools) if file_system else None,
    )
    section.done()
    return result


def given_bucket(name: str) -> str | None:
    """A bucket's name as the settings give it; None for the stack's own."""
    return None if name == OWN_BUCKET else name


def _lustre(section: Section, network: Network, region: str, pools: list[PoolEntry]) -> Lustre:
    given = section.optional_section("existing")
    existing = _existing(given, region) if given else None
    if existing:
        if network.existing is None and not section.problems.about("trainyard:network.vpcId"):
            section.reject(
                "existing",
                "is given, and the stack makes a VPC of its own, from which it can't be reached; network.vpcId must be"
                " the VPC that it is in",
            )
        for key in ONLY_NEW:
            if section.has(key):
                section.reject(
                    key, "is for a file system that the stack makes, and existing gives one; leave it out"
                )
    deployment = section.choice("deploymentType", lustre.DEPLOYMENTS, lustre.PERSISTENT_2)
    storage = section.choice("storageType", lustre.STORAGE_TYPES, lustre.SSD)
    offered = lustre.THROUGHPUT.get((deployment, storage), lustre.THROUGHPUT[lustre.PERSISTENT_2, lustre.SSD])
    throughput = section.integer("throughput", offered[0], least=1, unit="MB/s per TiB")
    smallest = lustre.least_capacity(deployment, storage, throughput)
    capacity = section.integer("capacityGiB", smallest, least=1, unit="GiB")
    link = section.optional_section("s3")
    result = Lustre(
        deployment_type=deployment,
        storage_type=storage,
        drive_cache=section.choice("driveCache", lustre.DRIVE_CACHES, lustre.DRIVE_CACHES[0]),
        capacity_gib=capacity,
        throughput=throughput,
        metadata_iops=section.integer("metadataIops", 0, least=0, unit="operations per second"),
        zone=_zone(section, zones_of(region, network.zones), pools),
        compression=section.choice("compression", lustre.COMPRESSIONS, lustre.COMPRESSIONS[0]),
        mount_path=_mount_path(section),
        link=_link(link) if link else None,
        efa=section.boolean("efa", False),
        existing=existing,
        backup_days=section.integer("backupDays", 0, least=0, most=90, unit="days"),
    )
    if not existing:
        _check(section, result)
    section.done()
    return result


def _check(section: Section, wanted: Lustre) -> None:
    """What FSx offers (`components.documents.lustre`)."""
    if {"deploymentType", "storageType"} & section.wrong:
        return
    deployment, storage = wanted.deployment_type, wanted.storage_type
    capacity, throughput = wanted.capacity_gib, wanted.throughput
    if problem := lustre.storage_problem(deployment, storage):
        section.reject("storageType", f"{storage}: {problem}")
        return
    told = (
        ("driveCache", wanted.drive_cache, lustre.cache_problem(storage, wanted.drive_cache)),
        ("throughput", throughput, lustre.throughput_problem(deployment, storage, throughput)),
        ("capacityGiB", capacity, lustre.capacity_problem(deployment, storage, capacity, throughput)),
        ("metadataIops", wanted.metadata_iops, lustre.metadata_problem(deployment, wanted.metadata_iops)),
    )
    for key, value, problem in told:
        if problem and key not in section.wrong:
            section.reject(key, f"{value}: {problem}")
    if wanted.efa and not {"capacityGiB", "throughput"} & section.wrong:
        problem = lustre.efa_problem(deployment, storage, capacity, throughput)
        if problem:
            section.reject("efa", f"true: {problem}")
    if wanted.link and wanted.link.path != "/" and deployment == lustre.PERSISTENT_1:
        section.reject(
            "s3.path", f"'{wanted.link.path}': {deployment} shows a bucket at its root alone; it must be /"
        )
    if wanted.backup_days and "backupDays" not in section.wrong:
        if not lustre.keeps_backups(deployment):
            section.reject("backupDays", f"{wanted.backup_days}: {deployment} has no backups; it must be 0")
        elif wanted.link:
            section.reject(
                "backupDays",
                f"{wanted.backup_days}: a file system with a bucket behind it (s3) has no backups; it must be 0",
            )


def _zone(section: Section, zones: tuple[str, ...], pools: list[PoolEntry]) -> str:
    """A file system is in one zone, and its clients are there, too: anything else costs time and cross-zone traffic."""
    used = sorted({each.zone for each in pools if each.zone})
    default = used[0] if used else (zones[0] if zones else "")
    zone = section.text("zone", default, wanted="the name of a zone")
    if "zone" in section.wrong:
        return zone
    if section.has("existing"):
        # Which zone it is in only the account knows (`trainyard.preflight`).
        if len(used) > 1:
            section.reject(
                "existing",
                f"is in one zone, but pools are in {', '.join(used)}; pools and file system must be in one zone",
            )
        return zone
    if zones and zone not in zones:
        section.reject("zone", f"'{zone}' has no subnets here; it must be one of {', '.join(zones)}")
    elif others := [each for each in used if each != zone]:
        section.reject(
            "zone",
            f"is '{zone}', but pools are in {', '.join(others)}; pools and file system must be in one zone",
        )
    return zone


def _mount_path(section: Section) -> str:
    path = section.text(
        "mountPath", "/fsx", pattern=formats.ABSOLUTE_PATH, wanted="an absolute path such as /fsx"
    )
    hides = any(f"{each}/".startswith(f"{path}/") or path.startswith(f"{each}/") for each in TAKEN_BELOW)
    if "mountPath" not in section.wrong and (hides or path.split("/")[1] in TAKEN):
        section.reject(
            "mountPath",
            f"'{path}' lies in a directory that pods need for themselves; it must be one of your own, such as /fsx",
        )
    return path


def _link(section: Section) -> LustreLink:
    bucket = section.text(
        "bucket",
        OWN_BUCKET,
        pattern=formats.BUCKET,
        wanted=f"{OWN_BUCKET} (the stack's own) or a bucket's name",
    )
    result = LustreLink(
        bucket=given_bucket(bucket),
        prefix=section.text(
            "prefix", "", pattern=rf"({formats.KEY_PREFIX}/?)?", wanted="a key prefix such as data"
        ),
        path=section.text(
            "path", "/", pattern=rf"/|{formats.ABSOLUTE_PATH}", wanted="an absolute path such as /data"
        ),
    )
    section.done()
    return result


def _existing(section: Section, region: str) -> ExistingLustre:
    result = ExistingLustre(
        file_system_id=section.text(
            "fileSystemId", pattern=r"fs-[0-9a-f]{8,21}", wanted="an id such as fs-0123456789abcdef0"
        ),
        dns_name=section.text(
            "dnsName",
            pattern=r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)+",
            wanted="a name such as fs-0123456789abcdef0.fsx.us-west-2.amazonaws.com",
        ),
        mount_name=section.text(
            "mountName", pattern=r"[A-Za-z0-9_]{1,8}", wanted="the mount name that FSx gave, such as abcdefgh"
        ),
    )
    # FSx makes the name of both (https://docs.aws.amazon.com/fsx/latest/LustreGuide/mounting-ec2-instance.html).
    begin = f"{result.file_system_id}.fsx.{region}."
    if region and not {"fileSystemId", "dnsName"} & section.wrong and not result.dns_name.startswith(begin):
        section.reject(
            "dnsName",
            f"'{result.dns_name}' is not of this file system in {region}; it must begin with {begin}",
        )
    section.done()
    return result
