"""Which FSx for Lustre file systems exist: deployment and storage type, capacity, throughput. Pure: no Pulumi.

Sources, 2026-11-21: Amazon FSx API reference, CreateFileSystem (`StorageCapacity`),
CreateFileSystemLustreConfiguration (throughput, drive cache, EFA) and CreateFileSystemLustreMetadataConfiguration
(IOPS); https://docs.aws.amazon.com/fsx/latest/LustreGuide/increase-storage-capacity.html (steps with EFA).
"""

from __future__ import annotations

from typing import Final

SCRATCH_2: Final = "SCRATCH_2"
PERSISTENT_1: Final = "PERSISTENT_1"
PERSISTENT_2: Final = "PERSISTENT_2"
SSD: Final = "SSD"
HDD: Final = "HDD"
STORAGE_TYPES: Final = (SSD, HDD)
# Of HDD: READ adds SSDs of a fifth of the capacity that hold what is read often.
DRIVE_CACHES: Final = ("NONE", "READ")
COMPRESSIONS: Final = ("LZ4", "NONE")

# Deployment and storage type -> throughput in MB/s per TiB that can be asked for. SCRATCH_2 always has 200.
THROUGHPUT: Final[dict[tuple[str, str], tuple[int, ...]]] = {
    (SCRATCH_2, SSD): (200,),
    (PERSISTENT_1, SSD): (50, 100, 200),
    (PERSISTENT_1, HDD): (12, 40),
    (PERSISTENT_2, SSD): (125, 250, 500, 1000),
}
DEPLOYMENTS: Final = (SCRATCH_2, PERSISTENT_1, PERSISTENT_2)
# On SSD: 1200 GiB, or a multiple of 2400.
SMALLEST_GIB: Final = 1200
STEP_GIB: Final = 2400
# Throughput in MB/s per TiB -> the step of the capacity in GiB, which is the least one, too.
HDD_STEP_GIB: Final = {12: 6000, 40: 1800}
EFA_STEP_GIB: Final = {125: 38400, 250: 19200, 500: 9600, 1000: 4800}
# Metadata operations per second that can be asked for on SSD, and from the last of them on its multiples.
METADATA_IOPS: Final = (1500, 3000, 6000, 12000)
MOST_METADATA_IOPS: Final = 192000


def storage_problem(deployment: str, storage: str) -> str | None:
    """What is wrong with a storage type for a deployment type, as the end of a sentence, or None."""
    if (deployment, storage) in THROUGHPUT:
        return None
    return f"{deployment} is on {SSD} alone; deploymentType must be {PERSISTENT_1}, or storageType {SSD}"


def least_capacity(deployment: str, storage: str, throughput: int) -> int:
    """The smallest capacity in GiB of a file system without EFA; SSD's where the throughput is none of its kind."""
    if (deployment, storage) == (PERSISTENT_1, HDD):
        return HDD_STEP_GIB.get(throughput, SMALLEST_GIB)
    return SMALLEST_GIB


def capacity_problem(deployment: str, storage: str, capacity_gib: int, throughput: int) -> str | None:
    """What is wrong with a capacity in GiB without EFA, or None. An unknown throughput is not told here."""
    if (deployment, storage) == (PERSISTENT_1, HDD):
        step = HDD_STEP_GIB.get(throughput)
        if step is None or _is_multiple(capacity_gib, step):
            return None
        return (
            f"{storage} with {throughput} MB/s per TiB does not come in it; it must be a multiple of {step} GiB,"
            f" such as {_near(capacity_gib, step)}"
        )
    if capacity_gib == SMALLEST_GIB or _is_multiple(capacity_gib, STEP_GIB):
        return None
    near = f"{SMALLEST_GIB}" if capacity_gib < SMALLEST_GIB else _near(capacity_gib, STEP_GIB, SMALLEST_GIB)
    return f"no file system has it; it must be {SMALLEST_GIB} or a multiple of {STEP_GIB} GiB, such as {near}"


def _is_multiple(number: int, step: int) -> bool:
    return number > 0 and number % step == 0


def _near(number: int, step: int, least: int | None = None) -> str:
    """The steps around a number, or the least one."""
    below, above = number // step * step, (number // step + 1) * step
    return f"{below or least} or {above}" if below or least else f"{above}"


def throughput_problem(deployment: str, storage: str, throughput: int) -> str | None:
    """What is wrong with a throughput in MB/s per TiB for a deployment and storage type, or None."""
    offered = THROUGHPUT[deployment, storage]
    if throughput in offered:
        return None
    kind = deployment if storage == SSD else f"{deployment} on {storage}"
    return f"{kind} does not offer it; it must be one of {', '.join(map(str, offered))} MB/s per TiB"


def efa_problem(deployment: str, storage: str, capacity_gib: int, throughput: int) -> str | None:
    """What stands against EFA on a file system, or None."""
    if deployment != PERSISTENT_2 or storage != SSD:
        kind = deployment if storage == SSD else f"{deployment} on {storage}"
        return f"{kind} has no EFA; deploymentType must be {PERSISTENT_2}, on {SSD}"
    step = EFA_STEP_GIB.get(throughput)
    if step is None or _is_multiple(capacity_gib, step):
        return None
    return (
        f"EFA at {throughput} MB/s per TiB needs a capacityGiB that is a multiple of {step}, such as"
        f" {_near(capacity_gib, step)}, and it is {capacity_gib}"
    )


def metadata_problem(deployment: str, iops: int) -> str | None:
    """What is wrong with a number of metadata operations per second, or None; 0 asks for none."""
    if not iops:
        return None
    if deployment != PERSISTENT_2:
        return f"{deployment} provisions none; it must be 0, or deploymentType {PERSISTENT_2}"
    if iops in METADATA_IOPS or (iops <= MOST_METADATA_IOPS and _is_multiple(iops, METADATA_IOPS[-1])):
        return None
    first = ", ".join(map(str, METADATA_IOPS))
    return f"FSx does not offer it; it must be {first} or a multiple of {METADATA_IOPS[-1]} up to {MOST_METADATA_IOPS}"


def cache_problem(storage: str, cache: str) -> str | None:
    """What is wrong with a drive cache for a storage type, or None."""
    if storage == HDD or cache == DRIVE_CACHES[0]:
        return None
    return f"{storage} needs none; it must be {DRIVE_CACHES[0]}, or storageType {HDD}"


def keeps_backups(deployment: str) -> bool:
    """Whether a deployment type can be backed up; scratch ones cannot."""
    return deployment != SCRATCH_2
