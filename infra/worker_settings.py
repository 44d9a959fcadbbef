"""Reading what one worker takes of its machine; part of `infra.settings`."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from components.documents.launch import WorkerSize
from components.documents.pool import Pool
from infra import formats
from infra.quantities import GIB, amount
from infra.reading import Section

SHARED_MEMORY: Final = "8Gi"
CUDA: Final = "cuda"
DEVICES: Final = (CUDA, "cpu")


def size_of_type(pool: Pool | None) -> WorkerSize:
    """What a worker takes of a machine of this pool where nothing else is said. None: a pool that is not known."""
    return WorkerSize(
        processes_per_node=(pool.accelerators if pool else 0) or 1,
        cpu=pool.worker_cpu if pool else "1",
        memory=pool.worker_memory if pool else "1Gi",
        shared_memory=SHARED_MEMORY,
    )


def size_of_fallback(pool: Pool, first: Pool, size: WorkerSize, *, same_processes: bool) -> WorkerSize:
    """What a worker takes of a machine of a fallback whose entry says nothing of it.

    `size` is what it takes of the `first` pool's. Cores, memory and GPUs are a type's: another type has its own.
    `same_processes`: their number was said, and no GPUs depend on it.
    """
    if pool.instance_type == first.instance_type:
        return size
    own = replace(size_of_type(pool), shared_memory=size.shared_memory)
    return replace(own, processes_per_node=size.processes_per_node) if same_processes else own


def read_size(section: Section, pool: Pool | None, device: str, default: WorkerSize) -> WorkerSize:
    """The size of a worker on a machine of the pool; what no machine of its type could hold is told."""
    processes = section.integer("processesPerNode", default.processes_per_node, least=1)
    said = section.has("processesPerNode")
    if said and pool and device == CUDA and pool.accelerators and processes > pool.accelerators:
        section.reject(
            "processesPerNode",
            f"{processes} is more than the GPUs of {pool.instance_type}; it must be at most {pool.accelerators}",
        )
    cpu = read_quantity(section, "cpu", default.cpu)
    memory = read_quantity(section, "memory", default.memory)
    if pool and section.has("cpu") and "cpu" not in section.wrong:
        _check_cpu(section, pool, cpu)
    if pool and section.has("memory") and "memory" not in section.wrong:
        _check_memory(section, pool, memory)
    shared_memory = read_quantity(section, "sharedMemory", default.shared_memory)
    if not {"memory", "sharedMemory"} & section.wrong and (pool or section.has("memory")):
        _check_shared_memory(section, shared_memory, memory)
    if "sharedMemory" in section.wrong:
        # So that a fallback, which takes it over, is not told of it again.
        shared_memory = default.shared_memory
    return WorkerSize(processes_per_node=processes, cpu=cpu, memory=memory, shared_memory=shared_memory)


def within_memory(size: WorkerSize) -> WorkerSize:
    """The size with a /dev/shm that its memory can hold: the default one where that is more."""
    if amount(size.shared_memory) <= amount(size.memory):
        return size
    return replace(size, shared_memory=size.memory)


def _check_cpu(section: Section, pool: Pool, cpu: str) -> None:
    if not pool.accelerators and amount(cpu) != amount(pool.worker_cpu):
        # The launcher counts such machines by the cores that a worker takes (`components.documents.pool.request`).
        section.reject(
            "cpu",
            f"'{cpu}' is not what machines of {pool.instance_type} are counted by; it must be '{pool.worker_cpu}',"
            " or left out",
        )
    elif amount(cpu) >= pool.vcpus:
        section.reject(
            "cpu",
            f"'{cpu}' leaves nothing of the {pool.vcpus} cores of {pool.instance_type} to the system; it must be"
            f" less, such as '{pool.worker_cpu}'",
        )


def _check_memory(section: Section, pool: Pool, memory: str) -> None:
    if amount(memory) >= pool.memory_gib * GIB:
        section.reject(
            "memory",
            f"'{memory}' leaves nothing of the {pool.memory_gib} GiB of {pool.instance_type} to the system; it must"
            f" be less, such as '{pool.worker_memory}'",
        )


def _check_shared_memory(section: Section, shared_memory: str, memory: str) -> None:
    """What lies in it counts towards the worker's limit, which is its memory: one that filled it would be ended.

    https://kubernetes.io/docs/concepts/storage/volumes/#emptydir
    The default is no promise: where the memory is less, it is as small as that (`within_memory`).
    """
    said = section.has("sharedMemory")
    if (said or shared_memory != SHARED_MEMORY) and amount(shared_memory) > amount(memory):
        section.reject(
            "sharedMemory",
            f"'{shared_memory}'{'' if said else ', as the training has it,'} is more than the worker's memory, of which"
            f" it is a part; it must be at most '{memory}'",
        )


def read_quantity(section: Section, key: str, default: str) -> str:
    """A quantity above 0."""
    wanted = "a quantity above 0 such as 500m or 8Gi, in quotes"
    text = section.text(key, default, pattern=formats.QUANTITY, wanted=wanted)
    if section.has(key) and key not in section.wrong and not amount(text):
        section.reject(key, f"'{text}' is invalid; it must be {wanted}")
    return text
