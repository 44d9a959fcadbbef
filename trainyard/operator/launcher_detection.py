"""Detect the launcher of a command: torchrun, which the controller adds, or the command itself. Pure.

The controller runs only plain programs under torchrun. Under torchrun, another launcher would start its processes once
for each GPU. Entry points: `detect` for the decision, `find_conflict` for a launcher that does not fit the job.

Flags: torch 2.x, torch/distributed/run.py (each is also read from the environment as PET_<FLAG>);
https://huggingface.co/docs/accelerate/package_reference/cli; deepspeed/launcher/runner.py; composer/cli/launcher.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from trainyard.operator.api.job import NO_LAUNCHER, TORCHRUN, JobSpec
from trainyard.operator.command_parser import (
    LAUNCHERS,
    PYTHON,
    PYTHON_MODULE,
    SOURCES,
    TORCHRUN_MODULES,
    UTILITIES,
    Program,
    is_variable,
)
from trainyard.operator.resources import Size

NONE: Final = NO_LAUNCHER
_TORCHRUN: Final = (
    TORCHRUN,
    *(f"{PYTHON_MODULE}{each}" for each in TORCHRUN_MODULES),
)
# These modules and their submodules are no plain programs.
_LAUNCHER_PACKAGES: Final = re.compile(
    r"(accelerate\.commands|axolotl\.cli|colossalai\.cli|composer\.cli|deepspeed\.launcher|horovod\.runner"
    r"|lightning(_fabric|\.fabric)?|llamafactory\.(cli|launcher)|ray|torch\.distributed\.(run|launch)|torchtune\._cli"
    r"|torchx|paddle\.distributed|torch_xla\.distributed|torch\.backends\.xeon)(\..*)?"
)
_HELP_FLAGS: Final = ("-h", "--help", "-V", "--version")
_ADVICE: Final = (
    "Use a plain program instead, such as python train.py: torchrun starts it once for each GPU, and Accelerate and "
    "DeepSpeed read its variables. Or set launcher to none, and set the nodes with the launcher's own flags"
)
# The meaning of a launcher's flag: the number of nodes, of processes on each node, or of all processes.
_NODES, _EACH, _ALL = "nodes", "processes on each node", "processes"
_FLAGS: Final[Mapping[str, Mapping[str, str]]] = {
    "accelerate": {"num_machines": _NODES, "num_processes": _ALL},
    "deepspeed": {"num_nodes": _NODES, "num_gpus": _EACH},
    "composer": {"n": _EACH, "nproc": _EACH, "world_size": _ALL},
    "mpi": {"n": _ALL, "np": _ALL},
    "horovod": {"np": _ALL, "num_proc": _ALL},
    "fabric": {"num_nodes": _NODES, "devices": _EACH},
    "lightning": {"num_nodes": _NODES, "devices": _EACH},
    "colossalai": {"nproc_per_node": _EACH},
}
# torchrun's flags that must fit the job.
_CHECKED: Final = (
    "standalone", "nnodes", "nproc_per_node", "node_rank", "rdzv_endpoint", "master_addr", "rdzv_backend",
)  # fmt: skip
# Its flags without a value.
_SWITCHES: Final = ("standalone", "module", "no_python", "run_path", "use_env", "virtual_local_rank", "help")
_SHORT_SWITCHES: Final = ("-m", "-h")
_VARIABLE: Final = "PET_"
_LOCAL: Final = re.compile(r"(localhost|127(\.\d+){3}|0\.0\.0\.0|\[?::1?\]?)(:\d*)?")
_BUILTIN_NAMES: Final = """
    ! : [ [[ alias bg bind break case cd command continue declare dirs disown do done echo elif else
    enable esac eval exit export false fc fg fi for function getopts hash help history if in jobs kill let
    local logout mapfile popd printf pushd pwd read readarray readonly return select set shift shopt test
    then time times trap true type typeset ulimit umask unalias unset until wait while { }
"""
_BUILTINS: Final = frozenset(_BUILTIN_NAMES.split())


@dataclass(frozen=True, kw_only=True)
class Detection:
    """The programs and the launcher that a command starts.

    Attributes:
        programs: The programs that it runs.
        own_launcher: The launcher that it starts, "" for none.
        unknown: The first program that is not known to be a plain program, "" for none.
        place: The file in the workspace that contains the launcher or program, "" for the command itself.
        unread: Whether `unknown` is a script that could not be read.
    """

    programs: tuple[Program, ...]
    own_launcher: str = ""
    unknown: str = ""
    place: str = ""
    unread: bool = False

    @property
    def launcher(self) -> str:
        """Return the default launcher: torchrun for plain programs, none for all others."""
        return NONE if self.own_launcher or self.unknown else TORCHRUN


def detect(commands: Iterable[Program]) -> Detection:
    """Return the launcher of a command with these programs."""
    programs = tuple(commands)
    launchers = [(name, each.place) for each in programs if (name := _launcher(each))]
    if launchers:
        name, place = min(launchers, key=lambda one: one[0] != TORCHRUN)
        return Detection(programs=programs, own_launcher=name, place=place)
    unknown = [each for each in programs if not _is_plain(each)]
    # A sourced file usually sets variables only.
    others = [each for each in unknown if each.name not in SOURCES]
    if others or (unknown and len(unknown) == len(programs)):
        first = (others or unknown)[0]
        return Detection(
            programs=programs,
            unknown=first.file or _describe(first),
            place=first.place,
            unread=bool(first.file),
        )
    return Detection(programs=programs)


def find_conflict(job: JobSpec, found: Detection, size: Size, backend: str) -> tuple[str, str]:
    """Return the place where command or environment do not fit the job's size, and why; ("", "") if they fit.

    The place is a field of the spec, or a file in the workspace. `backend` is that of the rendezvous.
    """
    if wrong := _check_torchrun_flags(_variable_flags(job.literal_variables), size, backend):
        return "spec.env", f"has {wrong}"
    place, wrong = find_flag_conflict(found, size, backend, job.launcher)
    return (place or "spec.command", wrong) if wrong else ("", "")


def find_flag_conflict(found: Detection, size: Size, backend: str, launcher: str = "") -> tuple[str, str]:
    """Return the file in the workspace whose launcher does not fit the job, and why; ("", "") if all fit.

    The file is "" for the command itself. `launcher` is that of the job's spec.
    """
    alone = size.nodes > 1 and not launcher and found.own_launcher not in ("", TORCHRUN)
    for each in found.programs:
        if not (name := _launcher(each)):
            continue
        if name == TORCHRUN:
            # A flag overrides its variable.
            flags = {**_variable_flags(each.variables), **_torchrun_flags(each.arguments)}
            wrong = _check_torchrun_flags(flags, size, backend)
        else:
            wrong = _check_launcher_flags(name, each.arguments, size)
        if wrong:
            return each.place, f"{name} has {wrong}" + (f". {_ADVICE}" if alone else "")
    if alone:
        return found.place, (
            f"starts {found.own_launcher}, which does not know the job's {size.nnodes} nodes: each would train alone. "
            f"{_ADVICE}"
        )
    return "", ""


def _check_torchrun_flags(flags: Mapping[str, tuple[str, str]], size: Size, backend: str) -> str:
    """Return which of torchrun's flags does not fit the job, and why; "" if all fit.

    Args:
        flags: The value of each flag, and its notation for the message.
    """
    for name in _CHECKED:
        value, notation = flags.get(name, ("", ""))
        if notation and "$" not in value and (why := _check_torchrun_flag(name, value, size)):
            return f"{notation}{why}"
    value, notation = flags.get("rdzv_backend", ("", ""))
    # A torchrun with its own endpoint has its own backend.
    if size.nodes > 1 and "rdzv_endpoint" not in flags and "$" not in value and value not in ("", backend):
        return f"{notation}, but the job has distributed.rdzvBackend {backend}. It must be {backend}, or be omitted"
    return ""


def _check_torchrun_flag(name: str, value: str, size: Size) -> str:
    nodes, several = f"the job has {size.nnodes} node{'s' * (size.nodes > 1)}", size.nodes > 1
    match name:
        case "standalone" if several:
            return f", but {nodes}: each would train alone. Remove it: the job configures the rendezvous"
        case "nnodes" if value and not _is_range(value, size):
            return f", but {nodes}. It must be {size.nnodes}, or be omitted"
        # On CPUs the command sets the number of processes.
        case "nproc_per_node" if value.isdecimal() and int(value) != size.gpus > 0:
            gpus = f"{size.gpus} GPU{'s' * (size.gpus > 1)}"
            return f", but the job has {gpus} on each node. It must be {size.gpus}, or be omitted"
        case "node_rank" if several and value.isdecimal():
            return f" on each of the job's {size.nnodes} nodes. It must be $TORCHRUN_NODE_RANK, or be omitted"
        case "rdzv_endpoint" | "master_addr" if several and _LOCAL.fullmatch(value):
            return f", but {nodes}, which could not connect. Remove it: the job sets it"
    return ""


def _is_range(value: str, size: Size) -> bool:
    """Return whether a value of --nnodes equals the job's nodes: `2` and `2:2` are the same."""
    minimum, _, maximum = value.partition(":")
    return (minimum, maximum or minimum) == (str(size.least), str(size.nodes))


def _variable_flags(variables: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Return the flags that these variables set, each with its value and its notation."""
    found: dict[str, tuple[str, str]] = {}
    for name, value in variables.items():
        flag = name.removeprefix(_VARIABLE).lower()
        if name.startswith(_VARIABLE) and not (flag in _SWITCHES and value in ("", "0")):
            found[flag] = value, f"{_VARIABLE}{flag.upper()}={value}"
    return found


def _torchrun_flags(arguments: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return torchrun's flags, each with its value and its notation. Accept unique prefixes, as argparse does."""
    found: dict[str, str] = {}
    waiting = ""
    for word in arguments:
        if word.startswith("-") and word != "--":
            name, equals, value = word.partition("=")
            flag = name.lstrip("-").replace("-", "_")
            if name.startswith("--"):
                flag = next((each for each in (*_CHECKED, *_SWITCHES) if each.startswith(flag)), flag)
            found[flag] = value
            waiting = "" if equals or flag in _SWITCHES or name in _SHORT_SWITCHES else flag
        elif waiting:
            found[waiting], waiting = word, ""
        else:
            break
    return {
        flag: (value, f"--{flag.replace('_', '-')}" + (f"={value}" if value else ""))
        for flag, value in found.items()
    }


def _check_launcher_flags(launcher: str, arguments: Sequence[str], size: Size) -> str:
    """Return which flag of another launcher does not fit the job, and why; "" if all fit."""
    named = launcher.removeprefix(PYTHON_MODULE)
    flags = next((flags for name, flags in _FLAGS.items() if named.startswith(name)), {})
    expected = {_NODES: size.nodes, _EACH: size.gpus or None, _ALL: size.total_gpus or None}
    rest = iter(arguments)
    for word in rest:
        if word.endswith(".py") or PYTHON.fullmatch(word.rpartition("/")[2]):
            break  # the program that it starts
        name, equals, value = word.partition("=")
        meaning = flags.get(name.lstrip("-").replace("-", "_"), "") if name.startswith("-") else ""
        if not meaning:
            continue
        value = value if equals else next(rest, "")
        right = expected[meaning]
        if right is not None and value.isdecimal() and int(value) != right:
            return (
                f"{name}{'=' if equals else ' '}{value}. In this job, the number of {meaning} must be {right}"
            )
    return ""


def _launcher(program: Program) -> str:
    """Return the name of the launcher that a program is, with its subcommand; "" for none."""
    if program.name in _TORCHRUN:
        return TORCHRUN
    name = program.name.removeprefix(PYTHON_MODULE)
    if name not in LAUNCHERS or not program.arguments or program.arguments[0] in _HELP_FLAGS:
        return ""
    if verb := LAUNCHERS[name]:
        return f"{name.partition('.')[0]} {verb}" if program.arguments[0] == verb else ""
    return program.name


def _is_plain(program: Program) -> bool:
    """Return whether a program starts no launcher: Python, a utility, a builtin, or a script that was read."""
    name, arguments = program.name, program.arguments
    if program.is_read or name.endswith(".py") or name in UTILITIES or name in _BUILTINS:
        return True
    if name in LAUNCHERS:  # another subcommand, or --help
        return True
    if name == "wandb":  # its subcommands `agent` and `launch` start programs
        return arguments[:1] in (("login",), ("offline",), ("online",), ("sync",))
    if name.startswith(PYTHON_MODULE):
        return _LAUNCHER_PACKAGES.fullmatch(name.removeprefix(PYTHON_MODULE)) is None
    if is_variable(program.word):
        return any(each.endswith(".py") for each in arguments[:2])
    return PYTHON.fullmatch(name) is not None


def _describe(program: Program) -> str:
    """Return the name of the unknown program, with its subcommand."""
    if program.name.startswith(("$(", "`")):
        return "$(...)"
    verb = next(iter(program.arguments), "")
    has_verb = re.fullmatch(r"[a-z]{2,12}", verb) and not program.name.startswith(PYTHON_MODULE)
    return f"{program.name} {verb}" if has_verb else program.name
