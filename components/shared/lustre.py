"""Which FSx for Lustre file systems exist: deployment type, capacity, throughput. Pure: no Pulumi.

Sources: https://docs.aws.amazon.com/fsx/latest/APIReference/API_CreateFileSystemLustreConfiguration.html and
https://docs.aws.amazon.com/fsx/latest/LustreGuide/efa-file-systems.html, 2026-11-21.
"""

from __future__ import annotations

from typing import Final

SCRATCH_2: Final = "SCRATCH_2"
PERSISTENT_1: Final = "PERSISTENT_1"
PERSISTENT_2: Final = "PERSISTENT_2"

# Deployment type -> throughput in MB/s per TiB that can be asked for, on SSD. SCRATCH_2 always has 200.
THROUGHPUT: Final[dict[str, tuple[int, ...]]] = {
    SCRATCH_2: (200,),
    PERSISTENT_1: (50, 100, 200),
    PERSISTENT_2: (125, 250, 500, 1000),
}
# Throughput in MB/s per TiB -> least capacity in GiB of a file system with EFA.
EFA_LEAST_GIB: Final = {125: 38400, 250: 19200, 500: 9600, 1000: 4800}
SMALLEST_GIB: Final = 1200
STEP_GIB: Final = 2400
COMPRESSIONS: Final = ("LZ4", "NONE")


def capacity_problem(capacity_gib: int) -> str | None:
    """What is wrong with a capacity in GiB, as the end of a sentence, or None."""
    if capacity_gib == SMALLEST_GIB or (capacity_gib > 0 and capacity_gib % STEP_GIB == 0):
        return None
    below = max(SMALLEST_GIB, capacity_gib // STEP_GIB * STEP_GIB)
    above = max(STEP_GIB, (capacity_gib // STEP_GIB + 1) * STEP_GIB)
    near = f"{SMALLEST_GIB}" if capacity_gib < SMALLEST_GIB else f"{below} or {above}"
    return f"no file system has it; it must be {SMALLEST_GIB} or a multiple of {STEP_GIB} GiB, such as {near}"


def throughput_problem(deployment: str, throughput: int) -> str | None:
    """What is wrong with a throughput in MB/s per TiB for a deployment type, or None."""
    offered = THROUGHPUT[deployment]
    if throughput in offered:
        return None
    return f"{deployment} does not offer it; it must be one of {', '.join(map(str, offered))} MB/s per TiB"


def efa_problem(deployment: str, capacity_gib: int, throughput: int) -> str | None:
    """What stands against EFA on a file system, or None."""
    if deployment != PERSISTENT_2:
        return f"{deployment} has no EFA; deploymentType must be {PERSISTENT_2}"
    least = EFA_LEAST_GIB.get(throughput)
    if least is not None and capacity_gib < least:
        return f"EFA at {throughput} MB/s per TiB needs a capacityGiB of at least {least}, and it is {capacity_gib}"
    return None


def keeps_backups(deployment: str) -> bool:
    """Whether a deployment type can be backed up; scratch ones cannot."""
    return deployment != SCRATCH_2
