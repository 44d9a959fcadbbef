"""Reading the run of a stack file; part of `infra.settings`."""

from __future__ import annotations

from components.shared.contract import RUN_ID_MAX_LENGTH
from components.shared.pool import GPU, NEURON, Pool
from infra import formats
from infra.model import Training
from infra.reading import Problems, Section, hint
from infra.training_rules import check_ceiling, read_environment

PATH = "trainyard:training"
RUN_ID = rf"[a-z0-9]([-a-z0-9]{{0,{RUN_ID_MAX_LENGTH - 2}}}[a-z0-9])?"


def read_training(problems: Problems, value: object, pools: list[Pool | None]) -> Training | None:
    """The run; None where the stack has pools alone (an empty mapping is the project's default), or a wrong pool."""
    if value is None or value == {}:
        return None
    section = Section(problems, PATH, value)
    pool = _pool(section, pools)
    run_id = section.optional_text(
        "runId",
        pattern=RUN_ID,
        wanted=f"lower case letters, digits and hyphens, at most {RUN_ID_MAX_LENGTH}",
    )
    least = section.integer("minNodes", least=1, unit="machines")
    most = section.integer("maxNodes", least=1, unit="machines")
    if not {"minNodes", "maxNodes"} & section.wrong and least > most:
        section.reject("minNodes", f"{least} is more than maxNodes; it must be at most {most}")
    check_ceiling(section, pool, least)
    device = section.choice("device", ("cuda", "cpu"), "cuda")
    if pool and device == "cuda" and "device" not in section.wrong and pool.resource != GPU:
        section.reject("device", f"cuda needs GPUs and {pool.instance_type} has none; it must be cpu")
    processes = section.integer("processesPerNode", (pool.accelerators if pool else 0) or 1, least=1)
    if pool and device == "cuda" and pool.accelerators and processes > pool.accelerators:
        section.reject(
            "processesPerNode",
            f"{processes} is more than the GPUs of {pool.instance_type}; it must be at most {pool.accelerators}",
        )
    rest = {
        "capacity_deadline_seconds": section.integer(
            "capacityDeadlineSeconds", 1200, least=10, unit="seconds"
        ),
        "hold_seconds": section.integer("holdSeconds", 60, least=0, unit="seconds"),
    }
    deadline = section.optional_integer("activeDeadlineSeconds", least=60, unit="seconds")
    data = section.text("data", "digits", wanted="digits, or the path of IDX files in the trainer's image")
    args = section.texts("args", (), wanted="a text (numbers in quotes)")
    env = read_environment(section)
    cpu = _quantity(section, "cpu", pool.worker_cpu if pool else "1")
    memory = _quantity(section, "memory", pool.worker_memory if pool else "1Gi")
    shared_memory = _quantity(section, "sharedMemory", "8Gi")
    section.done()
    if pool is None:
        return None
    return Training(
        pool=pool,
        run_id=run_id,
        min_nodes=least,
        max_nodes=most,
        device=device,
        processes_per_node=processes,
        active_deadline_seconds=deadline,
        data=data,
        args=args,
        env=env,
        cpu=cpu,
        memory=memory,
        shared_memory=shared_memory,
        **rest,
    )


def _pool(section: Section, pools: list[Pool | None]) -> Pool | None:
    name = section.text("pool", wanted="the name of a pool")
    if "pool" in section.wrong or not pools:
        return None
    for pool in pools:
        if pool and pool.name == name:
            if pool.resource != NEURON:
                return pool
            # The trainer knows CUDA and CPUs; a Neuron job is the user's own, on the same pool.
            section.reject(
                "pool",
                f"'{name}' is of {pool.instance_type}, whose Neuron devices the trainer can't use; it must be a pool"
                " with NVIDIA GPUs or without accelerators (a stack without training has its pools all the same)",
            )
            return None
    if None in pools:
        # The one that is meant may be among those with mistakes of their own.
        return None
    names = [pool.name for pool in pools if pool]
    section.reject("pool", f"'{name}' is no pool here{hint(name, names)} (pools: {', '.join(names)})")
    return None


def _quantity(section: Section, key: str, default: str) -> str:
    return section.text(
        key, default, pattern=formats.QUANTITY, wanted="a quantity such as 500m or 8Gi, in quotes"
    )
