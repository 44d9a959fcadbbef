"""Validation of FSx requests for a Lustre file system.

Amazon FSx API reference (CreateFileSystem, CreateFileSystemLustreConfiguration, UpdateFileSystem,
CreateDataRepositoryAssociation) and the FSx for Lustre user guide, "Managing storage capacity".
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from local.aws.errors import ApiError
from local.aws.fsx.store import Document, bad_request

DEPLOYMENTS = ("SCRATCH_2", "PERSISTENT_1", "PERSISTENT_2")
DRIVE_CACHES = ("NONE", "READ")
# MB/s for each TiB of storage.
THROUGHPUT = {
    ("PERSISTENT_1", "SSD"): (50, 100, 200),
    ("PERSISTENT_1", "HDD"): (12, 40),
    ("PERSISTENT_2", "SSD"): (125, 250, 500, 1000),
}
# Size unit of a file system on HDD, in GiB, by its throughput. Its size and its growth are multiples of it.
HDD_STEP = {12: 6000, 40: 1800}
# Size unit on SSD. The smallest file system has half of it.
SSD_STEP = 2400
METADATA_MODES = ("AUTOMATIC", "USER_PROVISIONED")
METADATA_IOPS = (1500, 3000, 6000, *range(12000, 192001, 12000))
# Growth unit of a file system with EFA, in GiB, by its throughput.
EFA_STEP = {125: 38400, 250: 19200, 500: 9600, 1000: 4800}


def created(params: Document) -> None:
    """Check a CreateFileSystem request.

    Raises:
        ApiError: BadRequest or a more specific error.
    """
    storage, lustre = params.get("StorageType") or "SSD", params["LustreConfiguration"]
    deployment = lustre.get("DeploymentType")
    if deployment not in DEPLOYMENTS:
        raise bad_request(f"DeploymentType: the local cloud has {', '.join(DEPLOYMENTS)}, got {deployment!r}")
    _drive_cache(deployment, storage, lustre)
    throughput = _throughput(deployment, storage, lustre.get("PerUnitStorageThroughput"))
    _capacity(deployment, storage, throughput, params["StorageCapacity"])
    _metadata(lustre.get("MetadataConfiguration"))
    if deployment == "SCRATCH_2":
        _not_with(deployment, "AutomaticBackupRetentionDays", lustre)
        _not_with(deployment, "KmsKeyId", params)
    if deployment == "PERSISTENT_2":
        _not_with(deployment, "ImportPath", lustre)
    else:
        _not_with(deployment, "MetadataConfiguration", lustre)
        _not_with(deployment, "EfaEnabled", lustre)
    if lustre.get("ImportPath") and lustre.get("AutomaticBackupRetentionDays"):
        raise bad_request("Backups are not for file systems that are linked to a data repository.")
    if lustre.get("EfaEnabled"):
        _efa(params["StorageCapacity"], throughput, lustre)


def updated(document: Document, params: Document) -> None:
    """Check an UpdateFileSystem request against the file system that it changes."""
    lustre, live = params.get("LustreConfiguration") or {}, document["LustreConfiguration"]
    if lustre.get("PerUnitStorageThroughput"):
        if document["StorageType"] == "HDD":
            raise bad_request("PerUnitStorageThroughput cannot be changed for HDD file systems.")
        _throughput(live["DeploymentType"], "SSD", lustre["PerUnitStorageThroughput"])
    wanted = params.get("StorageCapacity")
    if wanted is not None and wanted != document["StorageCapacity"]:
        is_slow = document["StorageType"] == "HDD"
        step = HDD_STEP[live["PerUnitStorageThroughput"]] if is_slow else SSD_STEP
        if wanted % step:
            raise bad_request(f"Storage capacity must be a multiple of {step} GiB, got {wanted}.")
        if live.get("EfaEnabled"):
            _efa(wanted, live["PerUnitStorageThroughput"], live)
    _metadata(lustre.get("MetadataConfiguration"), (live.get("MetadataConfiguration") or {}).get("Mode"))


def linked(document: Document) -> None:
    """Check whether a file system can be linked to a data repository."""
    if document["Lifecycle"] != "AVAILABLE":
        raise bad_request(f"The file system is {document['Lifecycle']}, it must be AVAILABLE.")
    if document["LustreConfiguration"].get("AutomaticBackupRetentionDays"):
        raise bad_request("Backups are not for file systems that are linked to a data repository.")


def _capacity(deployment: str, storage: str, throughput: int, capacity: int) -> None:
    if storage == "HDD":
        step = HDD_STEP[throughput]
        if capacity <= 0 or capacity % step:
            raise bad_request(
                f"Invalid storage capacity for {deployment} HDD with {throughput} MB/s/TiB: {capacity}. "
                f"Valid values are increments of {step} GiB."
            )
        return
    if capacity != SSD_STEP // 2 and (capacity <= 0 or capacity % SSD_STEP):
        raise bad_request(
            f"Invalid storage capacity for {deployment}: {capacity}. "
            f"Valid values are 1200, 2400, and increments of {SSD_STEP} GiB."
        )


def _drive_cache(deployment: str, storage: str, lustre: Document) -> None:
    given = lustre.get("DriveCacheType")
    if storage == "SSD":
        if given is not None:
            raise bad_request("DriveCacheType is for HDD file systems.")
        return
    if deployment != "PERSISTENT_1":
        raise bad_request(f"StorageType HDD is not supported for {deployment}.")
    _one_of("DriveCacheType", given, DRIVE_CACHES)


def _metadata(given: Document | None, default_mode: str | None = None) -> None:
    if not given:
        return
    mode, iops = given.get("Mode", default_mode), given.get("Iops")
    _one_of("MetadataConfiguration.Mode", mode, METADATA_MODES)
    if mode == "AUTOMATIC" and iops is not None:
        raise bad_request("MetadataConfiguration.Iops is for the mode USER_PROVISIONED.")
    if mode == "USER_PROVISIONED" and iops not in METADATA_IOPS:
        raise bad_request(
            f"MetadataConfiguration.Iops must be 1500, 3000, 6000, 12000, or a multiple of 12000 up to 192000, "
            f"got {iops}."
        )


def _throughput(deployment: str, storage: str, value: Any) -> int:
    known = THROUGHPUT.get((deployment, storage))
    if known is None:
        if value is not None:
            raise bad_request(f"PerUnitStorageThroughput is not supported for {deployment}.")
        return 0
    if value is None:
        raise bad_request(f"PerUnitStorageThroughput is required for {deployment}.")
    if value not in known:
        raise ApiError(
            "InvalidPerUnitStorageThroughput",
            f"PerUnitStorageThroughput of {deployment} must be one of {', '.join(map(str, known))}, got {value}.",
        )
    return int(value)


def _efa(capacity: int, throughput: int, lustre: Document) -> None:
    if not lustre.get("MetadataConfiguration"):
        raise bad_request("EfaEnabled needs a MetadataConfiguration.")
    if capacity % EFA_STEP[throughput]:
        raise bad_request(
            f"Storage capacity of an EFA-enabled file system with {throughput} MB/s/TiB must be a multiple of "
            f"{EFA_STEP[throughput]} GiB, got {capacity}."
        )


def _one_of(name: str, value: Any, known: Collection[str]) -> None:
    if value not in known:
        raise bad_request(f"{name} must be one of {', '.join(known)}, got {value!r}.")


def _not_with(deployment: str, name: str, given: Document) -> None:
    if given.get(name):
        raise bad_request(f"{name} is not supported for {deployment}.")
