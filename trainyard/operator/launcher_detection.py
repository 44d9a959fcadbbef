"""Detect what starts the processes of a command: torchrun, which the controller adds, or the command itself. Pure.

The controller runs only plain programs under torchrun. Under torchrun, another launcher would start its processes once
for each GPU. Entry points: `detect` for the decision, `find_flag_conflict` for a launcher that does not fit the job.

Flags: torch 2.x, torch/distributed/run.py (each is also read from the environment as PET_<FLAG>);
https://huggingface.co/docs/accelerate/package_reference/cli; deepspeed/launcher/runner.py; composer/cli/launcher.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from trainyard.operator.api.job import NO_LAUNCHER, TORCHRUN, JobSpec
from trainyard.operator.command_parser import (
    PREFIXES,
    PYTHON,
    RUNNERS,
    SHELLS,
    SOURCES,
    TORCHRUN_MODULES,
    Call,
    SimpleCommand,
)
from trainyard.operator.resources import Size

NONE: Final = NO_LAUNCHER

# Launchers that do not know the job's other nodes, each with the subcommand that starts processes ("" for any).
_LAUNCHERS: Final = {
    **dict.fromkeys(("accelerate-launch", "composer", "deepspeed", "horovodrun", "mpiexec", "mpirun"), ""),
    # The names in distributions with several MPI implementations.
    **dict.fromkeys(
        ("mpiexec.hydra", "mpiexec.mpich", "mpiexec.openmpi", "mpirun.mpich", "mpirun.openmpi"), ""
    ),
    "accelerate": "launch",
    "accelerate.commands.accelerate_cli": "launch",
    **dict.fromkeys(("colossalai", "fabric", "lightning"), "run"),
}
_MODULES: Final = (
    *("accelerate.commands.launch", "composer.cli.launcher"),
    *("deepspeed.launcher.launch", "deepspeed.launcher.runner", "horovod.runner.launch"),
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
_TORCHRUN_VALUES: Final = (
    *("nnodes", "nproc_per_node", "rdzv_backend", "rdzv_endpoint", "rdzv_id", "rdzv_conf", "max_restarts"),
    *("monitor_interval", "start_method", "event_log_handler", "role", "log_dir", "redirects", "tee"),
    *(
        "local_ranks_filter",
        "node_rank",
        "master_addr",
        "master_port",
        "local_addr",
        "logs_specs",
        "numa_binding",
    ),
    *("signals_to_handle", "duplicate_stdout_filters", "duplicate_stderr_filters"),
)
_TORCHRUN_SWITCHES: Final = (
    "standalone",
    "module",
    "no_python",
    "run_path",
    "use_env",
    "virtual_local_rank",
    "help",
)
_SHORT: Final = {"-r": "redirects", "-t": "tee", "-m": "module", "-h": "help"}
_VARIABLE: Final = "PET_"
_LOCAL: Final = re.compile(r"(localhost|127(\.\d+){3}|0\.0\.0\.0|\[?::1?\]?)(:\d*)?")

_BUILTINS: Final = frozenset(
    (
        "!", ":", "[", "[[", "alias", "bg", "bind", "break", "case", "cd", "command", "continue", "declare",
        "dirs", "disown", "do", "done", "echo", "elif", "else", "enable", "esac", "eval", "exit", "export",
        "false", "fc", "fg", "fi", "for", "function", "getopts", "hash", "help", "history", "if", "in", "jobs",
        "kill", "let", "local", "logout", "mapfile", "popd", "printf", "pushd", "pwd", "read", "readarray",
        "readonly", "return", "select", "set", "shift", "shopt", "test", "then", "time", "times", "trap",
        "true", "type", "typeset", "ulimit", "umask", "unalias", "unset", "until", "wait", "while", "{", "}",
    )
)  # fmt: skip
# Programs that prepare or observe. They start no training processes.
_UTILITIES: Final = frozenset(
    (
        "apk", "apt", "apt-get", "awk", "aws", "base64", "basename", "brew", "bunzip2", "bzip2", "cat", "chgrp",
        "chmod", "chown", "cksum", "clear", "cmp", "column", "comm", "cp", "curl", "cut", "date", "dcgmi", "dd",
        "df", "diff", "dirname", "dmesg", "dnf", "dpkg", "ds_report", "du", "dvc", "egrep", "env", "expand",
        "expr", "fallocate", "fgrep", "fi_info", "file", "find", "fmt", "fold", "free", "gawk", "gcloud",
        "gdown", "getconf", "git", "grep", "gsutil", "gunzip", "gzip", "head", "hf", "hostid", "hostname",
        "huggingface-cli", "hwloc-ls", "ibstat", "ibv_devices", "ibv_devinfo", "id", "ifconfig", "install",
        "ip", "jq", "kaggle", "kubectl", "ldconfig", "ldd", "less", "link", "ln", "logger", "ls", "lsblk",
        "lscpu", "lsof", "lspci", "lstopo", "mc", "md5sum", "mkdir", "mkfifo", "mktemp", "module", "more",
        "mount", "mountpoint", "mv", "nl", "nproc", "nslookup", "numfmt", "nvcc", "nvidia-smi", "od", "openssl",
        "paste", "pgrep", "ping", "pip", "pip3", "pkill", "printenv", "ps", "python-config", "rclone",
        "readlink", "realpath", "rev", "rm", "rmdir", "rsync", "s5cmd", "sed", "seq", "sha1sum", "sha256sum",
        "shuf", "sleep", "sort", "split", "ss", "stat", "stty", "sum", "sync", "sysctl", "tac", "tail", "tar",
        "tee", "tensorboard", "timedatectl", "top", "touch", "tput", "tr", "truncate", "tty", "umount", "uname",
        "unexpand", "uniq", "unlink", "unxz", "unzip", "unzstd", "uptime", "vmstat", "wc", "wget", "whereis",
        "which", "who", "whoami", "xz", "yes", "yq", "yum", "zcat", "zip", "zstd",
    )
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Detection:
    """What a command starts.

    Attributes:
        commands: The simple commands that it runs.
        own_launcher: The launcher that it starts, "" for none.
        unknown: The first program that is not known to be a plain program, "" for none.
        place: The file in the workspace that contains the launcher or program, "" for the command itself.
        unread: Whether `unknown` is a script that could not be read.
    """

    commands: tuple[SimpleCommand, ...]
    own_launcher: str = ""
    unknown: str = ""
    place: str = ""
    unread: bool = False

    @property
    def launcher(self) -> str:
        """Return the default launcher: torchrun for plain programs, none for all others."""
        return NONE if self.own_launcher or self.unknown else TORCHRUN

    @property
    def starts_torchrun(self) -> bool:
        """Return whether that launcher is torchrun, which reads the job's nodes from its environment."""
        return self.own_launcher == TORCHRUN


@dataclass(frozen=True, kw_only=True)
class JobShape:
    """The size of a job.

    Attributes:
        nodes: The number of nodes, the maximum for an elastic job.
        minimum: The minimum number of nodes.
        processes: The processes on each node; None if any number is valid.
        backend: The rendezvous backend.
    """

    nodes: int
    minimum: int
    processes: int | None
    backend: str

    @property
    def all_nodes(self) -> str:
        """Return the nodes in the notation of torchrun's --nnodes."""
        return str(self.nodes) if self.minimum == self.nodes else f"{self.minimum}:{self.nodes}"


def detect(commands: Iterable[SimpleCommand]) -> Detection:
    """Return what these commands start."""
    all_of_them = tuple(commands)
    found = Detection(commands=all_of_them)
    for each in all_of_them:
        if any(map(is_torchrun, each.calls)):
            return Detection(commands=all_of_them, own_launcher=TORCHRUN, place=each.place)
    for each in all_of_them:
        if name := next((name for name in map(_launcher, each.calls) if name), ""):
            return Detection(commands=all_of_them, own_launcher=name, place=each.place)
    for each in all_of_them:
        if not _is_known(each):
            name = each.file or _name(each)
            return Detection(
                commands=all_of_them,
                unknown=name,
                place=each.place,
                unread=bool(each.file) and not each.is_read,
            )
    sourced = [each for each in all_of_them if each.file and not each.is_read]
    if sourced and not any(map(_is_plain_command, all_of_them)):
        found = Detection(commands=all_of_them, unknown=sourced[0].file, place=sourced[0].place, unread=True)
    return found


def is_torchrun(call: Call) -> bool:
    """Return whether a call runs torchrun."""
    return call.program == TORCHRUN or call.python[0] in (TORCHRUN, *TORCHRUN_MODULES)


def job_shape(job: JobSpec, size: Size, backend: str) -> JobShape:
    """Return the shape of a job of this size. On CPUs the command sets the number of processes."""
    return JobShape(
        nodes=size.nodes,
        minimum=size.least,
        processes=size.gpus if job.num_gpus else None,
        backend=backend,
    )


def find_conflict(job: JobSpec, found: Detection, shape: JobShape) -> tuple[str, str]:
    """Return where the job's command or environment does not fit its size, and why; ("", "") if it fits.

    The place is a field of the spec, or a file in the workspace.
    """
    variables = {str(each.get("name")): str(each["value"]) for each in job.env if each.get("value")}
    if wrong := _check_torchrun_flags(_variable_flags(variables.items()), shape):
        return "spec.env", f"has {wrong}"
    place, wrong = find_flag_conflict(found, shape, job.launcher)
    return (place or "spec.command", wrong) if wrong else ("", "")


def find_flag_conflict(found: Detection, shape: JobShape, launcher: str = "") -> tuple[str, str]:
    """Return the file in the workspace whose launcher does not fit the job, and why; ("", "") if all fit.

    The file is "" for the command itself. `launcher` is that of the job's spec.
    """
    for each in found.commands:
        for call in each.calls:
            if is_torchrun(call):
                program, arguments = TORCHRUN, call.arguments if call.program == TORCHRUN else call.python[1]
                flags = _torchrun_flags(arguments)
                variables = {**_variable_flags(each.variables.items()), **_variables(each.words)}
                # A flag overrides its variable.
                unset = {
                    key: value for key, value in variables.items() if key.removeprefix(_VARIABLE) not in flags
                }
                wrong = _check_torchrun_flags({**unset, **flags}, shape)
            elif program := _launcher(call):
                wrong = _check_launcher_flags(program, call, shape)
            else:
                continue
            if wrong:
                alone = shape.nodes > 1 and not launcher and not found.starts_torchrun
                return each.place, f"{program} has {wrong}" + (f". {_ADVICE}" if alone else "")
    if found.own_launcher and not found.starts_torchrun and not launcher and shape.nodes > 1:
        return found.place, (
            f"starts {found.own_launcher}, which does not know the job's {shape.all_nodes} nodes: each would train "
            f"alone. {_ADVICE}"
        )
    return "", ""


def _check_torchrun_flags(flags: Mapping[str, str], shape: JobShape) -> str:
    """Return which of torchrun's flags does not fit the job, and why; "" if all fit."""
    several = shape.nodes > 1
    if "standalone" in flags and several:
        return (
            f"{_notation('standalone', flags)}, but the job has {shape.all_nodes} nodes: each would train alone. "
            "Remove it: the job configures the rendezvous"
        )
    value = flags.get("nnodes", "")
    if value and "$" not in value and not _is_range(value, shape):
        return _mismatch("nnodes", flags, f"{shape.all_nodes} node{'s' * several}", shape.all_nodes)
    value = flags.get("nproc_per_node", "")
    count = shape.processes
    if value.isdecimal() and count is not None and int(value) != count:
        return _mismatch("nproc_per_node", flags, f"{count} GPU{'s' * (count > 1)} on each node", str(count))
    if not several:
        return ""
    value = flags.get("node_rank", "")
    if value.isdecimal():
        return (
            f"{_notation('node_rank', flags)} on each of the job's {shape.all_nodes} nodes. It must be "
            "$TORCHRUN_NODE_RANK, or be omitted"
        )
    for name in ("rdzv_endpoint", "master_addr"):
        if _LOCAL.fullmatch(flags.get(name, "")):
            return (
                f"{_notation(name, flags)}, but the job has {shape.all_nodes} nodes, which could not connect. "
                "Remove it: the job sets it"
            )
    value = flags.get("rdzv_backend", "")
    if value and "$" not in value and value != shape.backend and "rdzv_endpoint" not in flags:
        return _mismatch("rdzv_backend", flags, f"distributed.rdzvBackend {shape.backend}", shape.backend)
    return ""


def _is_range(value: str, shape: JobShape) -> bool:
    """Return whether a value of --nnodes equals the job's nodes: `2` and `2:2` are the same."""
    minimum, _, maximum = value.partition(":")
    return (minimum, maximum or minimum) == (str(shape.minimum), str(shape.nodes))


def _mismatch(name: str, flags: Mapping[str, str], actual: str, expected: str) -> str:
    return f"{_notation(name, flags)}, but the job has {actual}. It must be {expected}, or be omitted"


def _notation(name: str, flags: Mapping[str, str]) -> str:
    """Return a flag or variable in the notation of the command, for a message."""
    if f"{_VARIABLE}{name}" in flags:
        return f"{_VARIABLE}{name.upper()}={flags[name]}"
    value = flags[name]
    return f"--{name.replace('_', '-')}" + (f"={value}" if value else "")


def _variables(words: Sequence[str]) -> dict[str, str]:
    """Return torchrun's variables among the assignments before a command."""
    pairs = (word.partition("=") for word in words if word.startswith(_VARIABLE))
    return _variable_flags((name, value) for name, equals, value in pairs if equals)


def _variable_flags(variables: Iterable[tuple[str, str]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in variables:
        if name.startswith(_VARIABLE) and (flag := name.removeprefix(_VARIABLE).lower()):
            if flag in _TORCHRUN_SWITCHES and value in ("", "0"):
                continue
            found |= {flag: value, f"{_VARIABLE}{flag}": ""}
    return found


def _torchrun_flags(arguments: Sequence[str]) -> dict[str, str]:
    """Return torchrun's own flags with their values, "" for switches. As argparse does, accept unique prefixes."""
    found: dict[str, str] = {}
    rest = iter(arguments)
    for word in rest:
        if not word.startswith("-") or word == "--":
            break
        name, equals, value = word.partition("=")
        flag = _SHORT.get(name, "") or _complete_flag(name.lstrip("-").replace("-", "_"))
        if flag in _TORCHRUN_SWITCHES:
            found[flag] = ""
        elif flag:
            found[flag] = value if equals else next(rest, "")
    return found


def _complete_flag(flag: str) -> str:
    known = (*_TORCHRUN_VALUES, *_TORCHRUN_SWITCHES)
    if flag in known:
        return flag
    begins = [each for each in known if flag and each.startswith(flag)]
    return begins[0] if len(begins) == 1 else ""


def _check_launcher_flags(program: str, call: Call, shape: JobShape) -> str:
    """Return which flag of another launcher does not fit the job, and why; "" if all fit."""
    named = program.removeprefix("python -m ")
    flags = next((flags for name, flags in _FLAGS.items() if named.startswith(name)), {})
    count = shape.processes
    values = {
        _NODES: shape.nodes,
        _EACH: count,
        _ALL: None if count is None else count * shape.nodes,
    }
    for flag, written, value in _launcher_flags(call, flags):
        expected = values[flags[flag]]
        if expected is not None and value.isdecimal() and int(value) != expected:
            return f"{written}. In this job, the number of {flags[flag]} must be {expected}"
    return ""


def _launcher_flags(call: Call, flags: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield the launcher's own flags among `flags`, before the program that it starts: name, notation and value."""
    rest = iter(call.python[1] if call.python[0] else call.arguments)
    for word in rest:
        if word.endswith(".py") or PYTHON.fullmatch(word.rpartition("/")[2]):
            return
        name, equals, value = word.partition("=")
        flag = name.lstrip("-").replace("-", "_")
        if name.startswith("-") and flag in flags:
            value = value if equals else next(rest, "")
            yield flag, f"{name}{'=' if equals else ' '}{value}", value


def _launcher(call: Call) -> str:
    """Return the name of the launcher, other than torchrun, that a call starts; "" for none."""
    if call.unsure:
        return ""
    module, arguments = call.python
    named, arguments = (module, arguments) if module else (call.program, call.arguments)
    if not arguments or arguments[0] in _HELP_FLAGS:
        return ""
    if named in _MODULES:
        return f"python -m {named}"
    if named not in _LAUNCHERS:
        return ""
    verb = _LAUNCHERS[named]
    name = "accelerate" if named.startswith("accelerate.") else named
    return name if not verb else f"{name} {verb}" if arguments[0] == verb else ""


def _is_known(command: SimpleCommand) -> bool:
    """Return whether a command starts only plain programs, or the parser yields its commands separately."""
    if not command.calls or command.is_read or command.runs_text or command.words[0] in command.functions:
        return True
    if _is_plain_command(command):
        return True
    # A sourced file usually sets variables only. A shell without a script reads it from a here-document.
    runs = [each for each in command.calls if each.program not in PREFIXES]
    return all(each.program in SOURCES or (each.program in SHELLS and not each.script) for each in runs)


def _is_plain_command(command: SimpleCommand) -> bool:
    return command.is_python or any(map(_is_plain, command.calls))


def _is_plain(call: Call) -> bool:
    """Return whether a call starts no launcher: a utility, a shell builtin, or Python with a program of the user."""
    program, arguments = call.program, call.arguments
    if program in PREFIXES:
        return False
    if program in RUNNERS:
        module = call.python[0]
        return bool(module) and not _LAUNCHER_PACKAGES.fullmatch(module)
    if program.endswith(".py") or program in _UTILITIES or program in _BUILTINS:
        return True
    if program == "wandb":  # its subcommands `agent` and `launch` start programs
        return arguments[:1] in (["login"], ["offline"], ["online"], ["sync"])
    if program in _LAUNCHERS:  # another subcommand, or --help
        return not _launcher(call)
    if PYTHON.fullmatch(program):
        module = call.python[0]
        if module and not any(each == "-m" or _MODULE_FLAG.match(each) for each in arguments):
            # Python runs a program in a directory `bin` as its script.
            return module.endswith(".py") or module in _UTILITIES
        return not (module and _LAUNCHER_PACKAGES.fullmatch(module))
    if call.variable:
        return (
            any(each.endswith(".py") for each in arguments[:2])
            or "-m" in arguments[:2]
            or bool(call.python[0])
        )
    return False


_MODULE_FLAG: Final = re.compile(r"-[bBdEiIOPqRsSuvVx]*m")


def _name(command: SimpleCommand) -> str:
    """Return the name of the unknown program, with its subcommand."""
    call = next((each for each in command.calls if each.program not in PREFIXES), command.calls[0])
    if call.program in RUNNERS and len(command.calls) > 1:
        call = next((each for each in command.calls if each.program not in (*PREFIXES, *RUNNERS)), call)
    module = call.python[0]
    if module:
        return f"python -m {module}" if "." in module else module
    verb = call.arguments[0] if call.arguments and re.fullmatch(r"[a-z]{2,12}", call.arguments[0]) else ""
    return f"{call.program} {verb}".strip() if call.program != "$" else "$(...)"
