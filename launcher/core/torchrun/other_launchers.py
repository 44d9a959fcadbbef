"""Whether a command starts a launcher of its own that is not torchrun. Pure.

torchrun would start it once for each GPU, and each of them processes for all of these. Scripts that use Accelerate or
DeepSpeed run under torchrun as they are: both read its variables
(https://huggingface.co/docs/accelerate/basic_tutorials/launch; `init_distributed` in deepspeed/comm/comm.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from launcher.core.torchrun.own_torchrun import Call

_PROGRAMS: Final = (
    *("accelerate-launch", "deepspeed", "horovodrun", "mpiexec", "mpirun"),
    # As distributions call them that have several.
    *("mpiexec.hydra", "mpiexec.mpich", "mpiexec.openmpi", "mpirun.mpich", "mpirun.openmpi"),
)
_MODULES: Final = ("accelerate.commands.launch", "deepspeed.launcher.launch", "deepspeed.launcher.runner")
# Accelerate's other verbs, such as `config` and `env`, start nothing.
_ACCELERATE: Final = ("accelerate", "accelerate.commands.accelerate_cli")
_ASKS: Final = ("-h", "--help", "-V", "--version")


def first(calls: Iterable[Call]) -> str:
    """What the first of these is called that is one, "" where none is."""
    return next((name for name in map(_launcher, calls) if name), "")


def _launcher(call: Call) -> str:
    if call.unsure:
        return ""
    ran, given = call.python
    named, given = (ran, given) if ran else (call.program, call.arguments)
    if not given or given[0] in _ASKS:
        return ""
    if named in _ACCELERATE:
        return "accelerate launch" if given[0] == "launch" else ""
    if named in _MODULES:
        return f"python -m {named}"
    return named if named in _PROGRAMS else ""
