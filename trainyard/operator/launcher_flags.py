"""Check the flags of a command's launcher against the size of the job. Pure. Entry point: `find_conflict`.

torchrun's flags: torch/distributed/run.py, 2.x. Those of other launchers:
https://huggingface.co/docs/accelerate/package_reference/cli; deepspeed/launcher/runner.py; composer/cli/launcher.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from posixpath import basename
from typing import Final

from trainyard.operator.api.job import TORCHRUN, JobSpec
from trainyard.operator.launcher_detection import PYTHON, PYTHON_MODULE, Detection
from trainyard.operator.resources import Size

# The flags that must fit the job.
_NODES: Final = ("num_machines", "num_nodes")
_PROCESSES_OF_NODE: Final = ("devices", "nproc", "nproc_per_node", "num_gpus")
_PROCESSES: Final = ("n", "np", "num_proc", "num_processes", "world_size")
# Those of each launcher, by the start of its name. Other flags may be those of the program that it starts.
_FLAGS_OF_LAUNCHER: Final = {
    "accelerate": ("num_machines", "num_processes"),
    "colossalai": ("nproc_per_node",),
    "composer": ("nproc", "world_size"),
    "deepspeed": ("num_nodes", "num_gpus"),
    "fabric": ("num_nodes", "devices"),
    "horovod": ("np", "num_proc"),
    "lightning": ("num_nodes", "devices"),
    "mpi": ("n", "np"),
}
_FLAGS_WITHOUT_VALUE: Final = (
    "standalone", "module", "m", "no_python", "run_path", "use_env", "virtual_local_rank", "help",
)  # fmt: skip
_LOCAL: Final = re.compile(r"(localhost|127(\.\d+){3}|0\.0\.0\.0|\[?::1?\]?)(:\d*)?")
_ADVICE: Final = (
    "Use a plain program instead, such as python train.py: torchrun starts it once for each GPU, and Accelerate and "
    "DeepSpeed read its variables. Or set launcher to none, and set the nodes with the launcher's own flags"
)


def find_conflict(job: JobSpec, found: Detection, size: Size, backend: str) -> tuple[str, str]:
    """Return the place where command or environment do not fit the job's size, and why; ("", "") if they fit.

    The place is a field of the spec, or a file in the workspace. `backend` is that of the rendezvous.
    """
    variables = [f"{key}={value}" for key, value in job.literal_variables.items() if key.startswith("PET_")]
    if wrong := _find_wrong_flag(TORCHRUN, variables, size, backend):
        return "spec.env", f"has {wrong}"
    alone = size.nodes > 1 and not job.launcher and found.own_launcher not in ("", TORCHRUN)
    for program in found.programs:
        name = program.launcher
        if name and (wrong := _find_wrong_flag(name, program.arguments, size, backend)):
            advice = f". {_ADVICE}" if alone else ""
            return program.place or "spec.command", f"{name} has {wrong}{advice}"
    why = f"starts {found.own_launcher}, which does not know the job's {size.nnodes} nodes: each would train alone"
    return (found.place or "spec.command", f"{why}. {_ADVICE}") if alone else ("", "")


def _find_wrong_flag(launcher: str, words: Sequence[str], size: Size, backend: str) -> str:
    """Return which of a launcher's variables or flags does not fit the job, and why; "" if all fit."""
    is_torchrun, is_multi_node = launcher == TORCHRUN, size.nodes > 1
    nodes = f"{size.nnodes} node{'s' * is_multi_node}"
    gpus = f"{size.gpus} GPU{'s' * (size.gpus > 1)} on each node"
    flags = _read_flags(launcher, words)
    # Each flag with its required value and what this value counts. On CPUs the command sets the number of processes.
    required = {
        "nnodes": (size.nnodes, nodes),
        **dict.fromkeys(_NODES, (str(size.nodes), nodes)),
        **dict.fromkeys(_PROCESSES_OF_NODE, (str(size.gpus or ""), gpus)),
        **dict.fromkeys(_PROCESSES, (str(size.total_gpus or ""), f"{size.total_gpus} GPUs")),
    }
    for flag, (value, notation) in flags.items():
        wanted, resources = required.get(flag, ("", ""))
        first, _, last = value.partition(":")
        if wanted and first.isdecimal() and value != wanted and (first, last) != (wanted, wanted):
            omitted = ", or be omitted" * is_torchrun
            return f"{notation}, but the job has {resources}. It must be {wanted}{omitted}"
        if not (is_multi_node and is_torchrun):
            continue
        if flag == "standalone":
            return f"{notation}, but the job has {nodes}: each would train alone. Remove it"
        if flag == "node_rank" and value.isdecimal():
            return f"{notation}, but the job has {nodes}. It must be $TORCHRUN_NODE_RANK, or be omitted"
        if flag in ("rdzv_endpoint", "master_addr") and _LOCAL.fullmatch(value):
            return f"{notation}, but the job has {nodes}, which could not connect. Remove it: the job sets it"
        # A torchrun with its own endpoint has its own backend.
        if flag == "rdzv_backend" and "rdzv_endpoint" not in flags and "$" not in value and value != backend:
            return (
                f"{notation}, but distributed.rdzvBackend is {backend}. It must be {backend}, or be omitted"
            )
    return ""


def _read_flags(launcher: str, words: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return the flags of a launcher before its program, each with its value and its notation."""
    flags: dict[str, tuple[str, str]] = {}
    name = launcher.removeprefix(PYTHON_MODULE)
    known = next((known for start, known in _FLAGS_OF_LAUNCHER.items() if name.startswith(start)), ())
    is_torchrun, rest, may_be_value = launcher == TORCHRUN, iter(words), False
    for word in rest:
        option, equals, value = word.partition("=")
        flag = option.lstrip("-").replace("-", "_")
        if option.startswith("PET_"):
            flag = option.removeprefix("PET_").lower()
            if flag in _FLAGS_WITHOUT_VALUE and value in ("", "0"):
                continue
        elif word.startswith("-"):
            flag = "nproc" if flag == "n" and "composer" in launcher else flag
            if not is_torchrun and flag in ("m", "module"):
                break
            may_be_value = not is_torchrun and flag not in known
            if not (may_be_value or equals or flag in _FLAGS_WITHOUT_VALUE):
                value = next(rest, "")
        elif (
            is_torchrun
            or word.endswith(".py")
            or PYTHON.fullmatch(basename(word))
            or ("/" in word and not may_be_value)  # such as `mpirun -np 8 ./train`
        ):
            break
        else:
            may_be_value = False
        if is_torchrun or flag in known:
            flags[flag] = value, f"{option}{equals or ' '}{value}".rstrip()
    return flags
