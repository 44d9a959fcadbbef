"""Validation of FSx requests for a Lustre file system.

Amazon FSx API reference (CreateFileSystem, CreateFileSystemLustreConfiguration, UpdateFileSystem,
CreateDataRepositoryAssociation) and the FSx for Lustre user guide, "Managing storage capacity".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from local.aws.fsx.store import Document, FsxError, bad_request

DEPLOYMENTS = ("SCRATCH_1", "SCRATCH_2", "PERSISTENT_1", "PERSISTENT_2")
STORAGE_TYPES = ("SSD", "HDD")
DRIVE_CACHES = ("NONE", "READ")
# MB/s for each TiB of storage.
THROUGHPUT = {
    ("PERSISTENT_1", "SSD"): (50, 100, 200),
    ("PERSISTENT_1", "HDD"): (12, 40),
    ("PERSISTENT_2", "SSD"): (125, 250, 500, 1000),
}
# Size unit of a file system on HDD, in GiB, by its throughput. Its size and its growth are multiples of it.
HDD_STEP = {12: 6000, 40: 1800}
METADATA_MODES = ("AUTOMATIC", "USER_PROVISIONED")
METADATA_IOPS = (1500, 3000, 6000, *range(12000, 192001, 12000))
VERSIONS = ("2.10", "2.12", "2.15")
COMPRESSION = ("NONE", "LZ4")
AUTO_IMPORT = ("NONE", "NEW", "NEW_CHANGED", "NEW_CHANGED_DELETED")
EVENTS = ("NEW", "CHANGED", "DELETED")
LONGEST_RETENTION_DAYS = 90
# Growth unit of a file system with EFA, in GiB, by its throughput.
EFA_STEP = {125: 38400, 250: 19200, 500: 9600, 1000: 4800}
LINKS_PER_FILE_SYSTEM = 8


def created(params: Document) -> None:
    """Check a CreateFileSystem request.

    Raises:
        FsxError: BadRequest or a more specific error.
    """
    if params.get("FileSystemType") != "LUSTRE":
        raise bad_request(
            f"FileSystemType: the local cloud has LUSTRE only, got {params.get('FileSystemType')!r}"
        )
    storage = params.get("StorageType") or "SSD"
    _one_of("StorageType", storage, STORAGE_TYPES)
    lustre = params.get("LustreConfiguration") or {}
    deployment = lustre.get("DeploymentType") or "SCRATCH_1"
    _one_of("DeploymentType", deployment, DEPLOYMENTS)
    _drive_cache(deployment, storage, lustre)
    if len(params.get("SubnetIds") or []) != 1:
        raise FsxError("InvalidNetworkSettings", "Lustre file systems are created in exactly one subnet.")
    throughput = _throughput(deployment, storage, lustre.get("PerUnitStorageThroughput"))
    _capacity(deployment, storage, throughput, params.get("StorageCapacity"))
    _metadata(lustre.get("MetadataConfiguration"))
    if deployment.startswith("SCRATCH"):
        _not_with(deployment, "AutomaticBackupRetentionDays", lustre, zero_is_none=True)
        _not_with(deployment, "DailyAutomaticBackupStartTime", lustre)
        _not_with(deployment, "CopyTagsToBackups", lustre, zero_is_none=True)
        _not_with(deployment, "KmsKeyId", params)
    if deployment == "PERSISTENT_2":
        for name in ("ImportPath", "ExportPath", "ImportedFileChunkSize", "AutoImportPolicy"):
            _not_with(deployment, name, lustre)
    else:
        _not_with(deployment, "MetadataConfiguration", lustre)
        _not_with(deployment, "EfaEnabled", lustre, zero_is_none=True)
    version = params.get("FileSystemTypeVersion") or default_version(deployment)
    _one_of("FileSystemTypeVersion", version, VERSIONS[1:] if deployment == "PERSISTENT_2" else VERSIONS)
    _repository(lustre)
    _common(lustre)
    if lustre.get("EfaEnabled"):
        _efa(params["StorageCapacity"], throughput, lustre)


def default_version(deployment: str) -> str:
    """Return the Lustre version of a file system whose request names none."""
    return "2.12" if deployment == "PERSISTENT_2" else "2.10"


def updated(document: Document, params: Document) -> None:
    """Check an UpdateFileSystem request against the file system that it changes."""
    lustre, live = params.get("LustreConfiguration") or {}, document["LustreConfiguration"]
    deployment = live["DeploymentType"]
    if deployment.startswith("SCRATCH"):
        for name in ("AutomaticBackupRetentionDays", "DailyAutomaticBackupStartTime"):
            _not_with(deployment, name, lustre, zero_is_none=True)
    if lustre.get("PerUnitStorageThroughput"):
        if document["StorageType"] == "HDD":
            raise bad_request("PerUnitStorageThroughput cannot be changed for HDD file systems.")
        _throughput(deployment, "SSD", lustre["PerUnitStorageThroughput"])
        if live.get("EfaEnabled"):
            raise bad_request("PerUnitStorageThroughput cannot be changed for EFA-enabled file systems.")
    wanted, held = params.get("StorageCapacity"), document["StorageCapacity"]
    if wanted is not None and wanted != held:
        if deployment == "SCRATCH_1":
            raise bad_request("Storage capacity cannot be increased for SCRATCH_1 file systems.")
        if wanted < held:
            raise bad_request(f"Storage capacity can be increased only: it is {held} GiB, got {wanted}.")
        step = HDD_STEP[live["PerUnitStorageThroughput"]] if document["StorageType"] == "HDD" else 2400
        if wanted % step:
            raise bad_request(f"Storage capacity must be a multiple of {step} GiB, got {wanted}.")
        if live.get("EfaEnabled"):
            _efa(wanted, live["PerUnitStorageThroughput"], live)
    _metadata(lustre.get("MetadataConfiguration"), (live.get("MetadataConfiguration") or {}).get("Mode"))
    version = params.get("FileSystemTypeVersion")
    if version:
        _one_of("FileSystemTypeVersion", version, VERSIONS)
        if VERSIONS.index(version) < VERSIONS.index(document["FileSystemTypeVersion"]):
            raise bad_request("FileSystemTypeVersion must be newer than the file system's current version.")
    if lustre.get("AutoImportPolicy") and not live.get("DataRepositoryConfiguration"):
        raise bad_request("AutoImportPolicy: the file system has no ImportPath.")
    _common(lustre)


def linked(document: Document, paths: Collection[str], params: Document) -> None:
    """Check a CreateDataRepositoryAssociation request. `paths` are the paths that are already linked."""
    if (
        document["LustreConfiguration"]["DeploymentType"] == "SCRATCH_1"
        or document["FileSystemTypeVersion"] == "2.10"
    ):
        raise FsxError(
            "UnsupportedOperation",
            "Data repository associations need Lustre 2.12 or 2.15, and are not for SCRATCH_1.",
        )
    if document["Lifecycle"] != "AVAILABLE":
        raise bad_request(f"The file system is {document['Lifecycle']}, it must be AVAILABLE.")
    if document["LustreConfiguration"].get("DataRepositoryConfiguration"):
        raise bad_request("The file system has an ImportPath, with which there are no associations.")
    if document["LustreConfiguration"].get("AutomaticBackupRetentionDays"):
        raise bad_request("Backups are not for file systems that are linked to a data repository.")
    if len(paths) >= LINKS_PER_FILE_SYSTEM:
        raise FsxError(
            "ServiceLimitExceeded", f"A file system has at most {LINKS_PER_FILE_SYSTEM} associations."
        )
    path = params.get("FileSystemPath") or "/"
    if not path.startswith("/"):
        raise bad_request(f"FileSystemPath must begin with a slash, got {path!r}.")
    for other in paths:
        if _inside(path, other) or _inside(other, path):
            raise bad_request(f"FileSystemPath {path} overlaps with the association at {other}.")
    _uri("DataRepositoryPath", params.get("DataRepositoryPath"))
    events(params.get("S3") or {})


def events(s3: Mapping[str, Any]) -> None:
    """Check the events of an association's automatic imports and exports."""
    for policy in ("AutoImportPolicy", "AutoExportPolicy"):
        for event in (s3.get(policy) or {}).get("Events") or []:
            _one_of(f"S3.{policy}.Events", event, EVENTS)


def bucket_of(uri: str) -> str:
    """Return the bucket in s3://bucket/prefix."""
    return uri.removeprefix("s3://").partition("/")[0]


def _inside(path: str, other: str) -> bool:
    return f"{path.rstrip('/')}/".startswith(f"{other.rstrip('/')}/")


def _capacity(deployment: str, storage: str, throughput: int, capacity: Any) -> None:
    if capacity is None:
        raise bad_request("StorageCapacity is required.")
    if storage == "HDD":
        step = HDD_STEP[throughput]
        if capacity <= 0 or capacity % step:
            raise bad_request(
                f"Invalid storage capacity for {deployment} HDD with {throughput} MB/s/TiB: {capacity}. "
                f"Valid values are increments of {step} GiB."
            )
        return
    step = 3600 if deployment == "SCRATCH_1" else 2400
    if capacity not in (1200, 2400) and (capacity <= 0 or capacity % step):
        raise bad_request(
            f"Invalid storage capacity for {deployment}: {capacity}. "
            f"Valid values are 1200, 2400, and increments of {step} GiB."
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
        raise FsxError(
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


def _repository(lustre: Document) -> None:
    given, target = lustre.get("ImportPath"), lustre.get("ExportPath")
    if given is None:
        for name in ("ExportPath", "ImportedFileChunkSize", "AutoImportPolicy"):
            if lustre.get(name) is not None:
                raise bad_request(f"{name} needs an ImportPath.")
        return
    _uri("ImportPath", given)
    if target is not None:
        _uri("ExportPath", target)
        if bucket_of(target) != bucket_of(given):
            raise FsxError("InvalidExportPath", "ExportPath must be in the same bucket as ImportPath.")
    if lustre.get("AutomaticBackupRetentionDays"):
        raise bad_request("Backups are not for file systems that are linked to a data repository.")


def _common(lustre: Document) -> None:
    if lustre.get("DataCompressionType"):
        _one_of("DataCompressionType", lustre["DataCompressionType"], COMPRESSION)
    if lustre.get("AutoImportPolicy"):
        _one_of("AutoImportPolicy", lustre["AutoImportPolicy"], AUTO_IMPORT)
    days = lustre.get("AutomaticBackupRetentionDays")
    if days is not None and not 0 <= days <= LONGEST_RETENTION_DAYS:
        raise bad_request(f"AutomaticBackupRetentionDays must be 0 to {LONGEST_RETENTION_DAYS}, got {days}.")


def _uri(name: str, value: Any) -> None:
    if not isinstance(value, str) or not value.startswith("s3://") or not bucket_of(value):
        raise bad_request(f"{name} must have the form s3://bucket/prefix, got {value!r}.")


def _one_of(name: str, value: Any, known: Collection[str]) -> None:
    if value not in known:
        raise bad_request(f"{name} must be one of {', '.join(known)}, got {value!r}.")


def _not_with(deployment: str, name: str, given: Document, zero_is_none: bool = False) -> None:
    if given.get(name) is not None and not (zero_is_none and not given[name]):
        raise bad_request(f"{name} is not supported for {deployment}.")
