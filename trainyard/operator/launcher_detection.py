"""Detect what starts the processes of a command: torchrun, which the controller adds, or the command itself. Pure.

Under torchrun, another launcher would start its processes once for each GPU. So only plain programs run under torchrun.
A program that is not known runs without torchrun, and the user gets a message. Commands are read, not evaluated: all
branches count. Entry points: `detect_launcher`, and `find_conflict` for a launcher that does not fit the job.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from posixpath import basename, dirname, join, normpath
from typing import Final

from trainyard.operator.api.job import NO_LAUNCHER, TORCHRUN, JobSpec
from trainyard.operator.resources import Size

PYTHON: Final = re.compile(r"python[0-9.]*")
PYTHON_MODULE: Final = "python -m "
_TORCHRUN: Final = re.compile(r"torchrun|python -m (?:torchrun|torch\.distributed\.(?:run|launch))")
# Launchers that do not know the job's other nodes, with their first argument. --help starts nothing.
_LAUNCHER: Final = re.compile(
    r"(?:python -m )?(accelerate launch|(?:colossalai|fabric|lightning) run)"
    r"|((?:python -m )?(?:accelerate-launch|composer|deepspeed|horovodrun|mpi(?:exec|run)(?:\.\w+)?"
    r"|accelerate\.commands\.launch|composer\.cli\.launcher|deepspeed\.launcher\.(?:launch|runner)"
    r"|horovod\.runner\.launch)) (?!-h|--help|-V|--version|$).*"
)
# These modules are no plain programs.
_LAUNCHER_PACKAGES: Final = re.compile(
    r"(accelerate|axolotl|colossalai|composer|deepspeed|horovod|lightning|lightning_fabric|llamafactory|paddle|ray"
    r"|torch\.backends\.xeon|torch\.distributed\.(run|launch)|torch_xla|torchtune|torchx)(\..*)?"
)
_SHELLS: Final = ("sh", "bash", "dash", "ash", "ksh", "zsh")
_SOURCES: Final = (".", "source")
_KEYWORDS: Final = ("!", "{", "if", "then", "elif", "else", "while", "until", "do")
_DECLARATIONS: Final = ("declare", "export", "local", "readonly", "typeset")
# Builtins, programs that prepare or observe, and launchers with another first argument. They start no processes.
_PLAIN_NAMES: Final = """
    : [ alias break case cd command continue declare done echo esac eval exit export false fi for function getopts
    hash in jobs kill let local popd printf pushd pwd read readarray readonly return select set shift shopt test
    times trap true type typeset ulimit umask unalias unset wait } accelerate colossalai composer deepspeed fabric
    horovodrun lightning mpiexec mpirun activate add clean config create deactivate info init install list lock
    remove stats tool update venv apt apt-get awk aws base64 basename cat chmod chown cmp cp curl cut date dcgmi df
    diff dirname dmesg dnf dpkg ds_report du dvc egrep expr fi_info file find free gcloud git grep gsutil gunzip
    gzip head hf hostname huggingface-cli ibstat ibv_devices ibv_devinfo id ip jq kaggle kubectl ldconfig ldd ln ls
    lsblk lscpu lspci md5sum mkdir mkfifo mktemp module mount mv nproc nvcc nvidia-smi openssl pgrep ping pip pip3
    pkill printenv ps rclone readlink realpath rm rmdir rsync s5cmd sed seq sha256sum shuf sleep sort split stat
    sync sysctl tail tar tee tensorboard top touch tr uname uniq unzip uptime wc wget which whoami xz yes yum zcat
    zip zstd apk bunzip2 bzip2 chgrp cksum clear column disown fold getconf ifconfig less logger lsof mapfile mc more
    nl nslookup paste sha1sum ss tac truncate umount unlink vmstat yq
"""
_PLAIN: Final = frozenset(_PLAIN_NAMES.split())
_PLAIN_PATTERN: Final = re.compile(r"(python[0-9.]*|.*\.py) .*|wandb (login|offline|online|sync)", re.DOTALL)
# Programs that run another command, and their options whose value is the next word.
_WRAPPER_NAMES: Final = """
    builtin catchsegv command conda dumb-init env eval exec hatch ionice mamba micromamba ncu nice nohup nsys numactl
    pdm pipenv pixi poetry rye setsid stdbuf strace sudo taskset time timeout tini unbuffer uv uvx xargs
"""
_WRAPPERS: Final = frozenset(_WRAPPER_NAMES.split())
# Of the wrappers whose options are known, the short ones with a value (their manual pages); `-` is none.
_SHORT_OPTIONS: Final = {
    **dict.fromkeys(("builtin", "catchsegv", "command", "nohup", "setsid", "taskset", "unbuffer"), "-"),
    **dict.fromkeys(("conda", "mamba", "micromamba"), "enp"),
    **{"dumb-init": "r", "env": "Cu", "exec": "a", "ionice": "cn", "nice": "n", "numactl": "CNPimpw"},
    **{"stdbuf": "eio", "strace": "EIOPSUXabeopsu", "sudo": "CDRTUghprtu", "time": "fo", "timeout": "ks"},
    **{"tini": "ep", "xargs": "EILPadns"},
}
_VALUE_OPTION: Final = (
    r"-[CIPaceghknopstuw]|--(?:capture-range|chdir|cwd|directory|env-file|environment|export|from|kernel-name|metrics"
    r"|manifest-path|name|output|prefix|project|python|sample|section|set|signal|trace|unset|user|wait|with"
    r"|with-[a-z]+|(?:[a-z]+-)*(?:extra|group|index|package))"
)
# Subcommands and operands of wrappers, such as `timeout 3600`, and other values that are no programs.
_OPERAND: Final = re.compile(
    r"run|profile|\d[\d.,:-]*[smhd]?|0x[0-9a-f]+|all|true|false|https?://.*|[A-Za-z_]\w*\+?=.*", re.DOTALL
)

_NESTED: Final = r"[^()]*+(?:\((?:[^()]|\([^()]*\))*+\)[^()]*+)*+"
# A word may contain substitutions and the value of an array.
_WORD: Final = rf"""(?:\\.|'[^']*'|"(?:\\.|[^"\\])*"|[$=]\({_NESTED}\)|`[^`]*`|[^\s;&|()<>`'"\\])+"""
_FUNCTION: Final = r"function\s+([\w-]+)(?:\s*\(\))?|(?<![\w-])([A-Za-z_][\w-]*+)\s*\(\)"
_TOKEN: Final = re.compile(
    rf"""[^\S\n]+|\\\n|\#[^\n]*|\[\[\s[^\n]{{0,999}}?\s\]\]|\(\({_NESTED}\)\)|{_FUNCTION}
    | [0-9]*<<-?[^\S\n]*\\?(?P<quote>['"]?)(?P<end>[\w.-]+)(?P=quote)(?P<rest>[^\n]{{0,999}})\n
      (?P<document>.*?)(?:^\t*(?P=end)$|\Z)
    | [0-9]*[<>]+[&|]?[^\S\n]*(?:{_WORD})?
    | (?P<word>{_WORD})
    | (?P<operator>[;&|()\n])
    | .""",
    re.DOTALL | re.MULTILINE | re.VERBOSE,
)
_QUOTED: Final = re.compile(r"""'([^']*)'|"((?:\\.|[^"\\])*)"|\\(.)""", re.DOTALL)
_SUBSTITUTION: Final = re.compile(rf"\$\(({_NESTED})\)|`([^`]*)`")
_MODULE: Final = re.compile(r"-[bBdEiIOPqRsSuvx]*m(.*)|--module")
_ASSIGNMENT: Final = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_REFERENCE: Final = re.compile(r"\$(?:(\w+)|\{(\w+)(?:\[[@*]\])?(?::?-([^{}$`]*))?\})")
# Limits of what one command may expand to, and of the scripts of a job.
_MAX_WORDS, _MAX_LENGTH, _MAX_SCRIPTS = 256, 2048, 99

# The flags that must fit the job, of torchrun (torch/distributed/run.py, 2.x) and of other launchers:
# https://huggingface.co/docs/accelerate/package_reference/cli; deepspeed/launcher/runner.py; composer/cli/launcher.py.
_NODES: Final = ("num_machines", "num_nodes")
_PROCESSES_OF_NODE: Final = ("devices", "nproc", "nproc_per_node", "num_gpus")
_PROCESSES: Final = ("n", "np", "num_proc", "num_processes", "world_size")
# The flags of each launcher, by the start of its name. Other flags may be those of the program that it starts.
_OWN_FLAGS: Final = {
    "accelerate": ("num_machines", "num_processes"),
    "colossalai": ("nproc_per_node",),
    "composer": ("nproc", "world_size"),
    "deepspeed": ("num_nodes", "num_gpus"),
    "fabric": ("num_nodes", "devices"),
    "horovod": ("np", "num_proc"),
    "lightning": ("num_nodes", "devices"),
    "mpi": ("n", "np"),
}
# torchrun's flags without a value.
_SWITCHES: Final = (
    "standalone", "module", "m", "no_python", "run_path", "use_env", "virtual_local_rank", "help",
)  # fmt: skip
_LOCAL: Final = re.compile(r"(localhost|127(\.\d+){3}|0\.0\.0\.0|\[?::1?\]?)(:\d*)?")
_ADVICE: Final = (
    "Use a plain program instead, such as python train.py: torchrun starts it once for each GPU, and Accelerate and "
    "DeepSpeed read its variables. Or set launcher to none, and set the nodes with the launcher's own flags"
)


@dataclass(frozen=True, kw_only=True)
class Program:
    """A program that a command runs, behind wrappers such as `env`.

    Attributes:
        name: Its name, the path of a file `*.py`, or `python -m MODULE`.
        arguments: Its arguments.
        place: The file in the workspace that contains the command, "" for the job's own command.
        file: The script that it runs, "" for none.
        is_read: Whether that script is in the workspace. Then the programs of a shell script follow.
        launcher: The launcher that it is, with its subcommand. "" for a plain program, None for an unknown one.
    """

    name: str
    arguments: Sequence[str]
    place: str
    file: str
    is_read: bool
    launcher: str | None


@dataclass(frozen=True, kw_only=True)
class Detection:
    """The programs of a command, and the launcher that it starts.

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
        return NO_LAUNCHER if self.own_launcher or self.unknown else TORCHRUN


# Returns the text of a file in the workspace; None if there is no such text file.
Read = Callable[[str], str | None]


def detect_launcher(
    command: str,
    args: Sequence[str] = (),
    read: Read = lambda _: None,
    variables: Mapping[str, str] | None = None,
) -> Detection:
    """Return the programs and the launcher that a command with these further arguments and variables starts."""
    text = " ".join((without_line_end(command), *map(shlex.quote, args)))
    programs = tuple(_Reader(read, dict(variables or {})).programs("", text))
    for each in sorted(programs, key=lambda one: one.launcher != TORCHRUN):
        if each.launcher:
            return Detection(programs=programs, own_launcher=each.launcher, place=each.place)
    unknown = [each for each in programs if each.launcher is None]
    # A sourced file usually sets variables only.
    for each in unknown:
        if each.name not in _SOURCES or len(unknown) == len(programs):
            verb = re.fullmatch("[a-z]{2,12}", "".join(each.arguments[:1]))
            name = each.file or f"{each.name} {verb[0] if verb else ''}".rstrip()
            return Detection(programs=programs, unknown=name, place=each.place, unread=bool(each.file))
    return Detection(programs=programs)


def without_line_end(command: str) -> str:
    """Return a command without the end of its last line, so that more words may follow."""
    end = command.rstrip()
    goes_on = end.endswith("\\") and command[len(end) :].startswith("\n")
    return end[:-1].rstrip() if goes_on else end


def takes_args(command: str) -> bool:
    """Return whether a word after this command would be an argument of a program, not a comment or a program."""
    probe = "\0"  # no command contains it
    commands = _simple_commands(f"{without_line_end(command)} {probe}")
    return any(probe in each[1:] and each[0] not in ("}", "fi", "done", "esac") for each in commands)


@dataclass
class _Reader:
    """Read a command and the scripts that it runs, each once.

    Attributes:
        read: Returns the text of a script in the workspace.
        variables: The values of variables. One with several values is `$NAME`; `($NAME)` if one of them is a launcher.
    """

    read: Read
    variables: dict[str, str]
    functions: set[str] = field(default_factory=set)
    directory: str = ""
    texts: set[str] = field(default_factory=set)

    def programs(self, place: str, text: str) -> Iterator[Program]:
        """Yield the programs of a text in the file `place`, and of the scripts that it runs."""
        if text in self.texts or len(self.texts) >= _MAX_SCRIPTS:
            return
        self.texts.add(text)
        # A lookup such as `$(which python)` becomes the program itself.
        text = re.sub(r"(?:\$\(|`)\s*(?:which|command\s+-v)\s+([^\s()`]+)\s*[)`]", r"/bin/\1", text)
        self.functions |= {found[1] or found[2] for found in re.finditer(_FUNCTION, text)}
        for raw in _simple_commands(text):
            # The programs in a substitution compute a value, except for launchers.
            inner = [found[1] or found[2] or "" for word in raw for found in _SUBSTITUTION.finditer(word)]
            yield from (each for one in inner for each in self.programs(place, one) if each.launcher)
            words = [each for word in raw[:_MAX_WORDS] for each in self._expand(word)][:_MAX_WORDS]
            program = _find_program(words)
            self._assign(words if words[0] in _DECLARATIONS else words[: len(words) - len(program)])
            if words[0] == "cd" and len(words) == 2 and not re.search("[$`]", words[1]):
                self.directory = join(self.directory, words[1])
            if program and words[0] not in self.functions:
                yield from self._program(place, *program)

    def _expand(self, word: str) -> list[str]:
        """Return the words after the expansion of known variables."""
        known = self.variables
        new = _REFERENCE.sub(lambda one: known.get(one[1] or one[2]) or one[3] or one[0], word)[:_MAX_LENGTH]
        return new.split() or [""] if new != word and _REFERENCE.fullmatch(word) else [new]

    def _assign(self, words: Sequence[str]) -> None:
        for name, adds, value in (found.groups() for found in map(_ASSIGNMENT.fullmatch, words) if found):
            if value.startswith("(") and value.endswith(")"):
                value = " ".join(value[1:-1].split())
            before = self.variables.get(name, value)
            if adds or before != value:
                # `($NAME)` is no variable, so a program that may be a launcher is not known to be plain.
                is_launcher = before == f"(${name})" or any(map(_starts_launcher, (before, value)))
                value = f"(${name})" if is_launcher else f"${name}"
            self.variables[name] = value[:_MAX_LENGTH]

    def _program(self, place: str, word: str, *arguments: str) -> Iterator[Program]:
        name = word if _is_variable(word) or word.endswith(".py") else basename(word)
        file, content, rest = "", None, list(arguments)
        text = word if re.search(r"\s", word) and not word.startswith(("$(", "`")) else ""  # of `eval`
        if name in _SHELLS:
            rest = _skip_options(rest, "-[a-zA-Z]*[oO]")
            options = arguments[: len(arguments) - len(rest)]
            is_inline = any(re.fullmatch("-[a-zA-Z]*c[a-zA-Z]*", each) for each in options)
            script = "".join(rest[:1])
            text, file = (script, "") if is_inline else ("", script)
        elif name in _SOURCES:
            file = "".join(rest[:1])
        elif PYTHON.fullmatch(name) or _is_variable(word):
            name, rest = _python_target(name, rest)
        elif word != name:
            file = word
        if text or (name in _SHELLS and not file):  # a shell without a script reads a pipe
            # The output of a command substitution is not known here.
            if not text.startswith(("$(", "`")):
                yield from self.programs(place, text)
            return
        if file:
            file, content = self._find_script(place, file)
        is_read = content is not None
        launcher = _classify(name, rest, is_read=is_read)
        yield Program(name=name, arguments=rest, place=place, file=file, is_read=is_read, launcher=launcher)
        if content is not None and not re.match(r"#!.*\b(python[0-9.]*|uv)\b", content):
            yield from self.programs(file, content)

    def _find_script(self, place: str, name: str) -> tuple[str, str | None]:
        """Return the path and the text of a script; its name and None if it can't be read."""
        # An unknown directory, such as "$(dirname "$0")/", may be that of the calling script.
        known = re.sub(rf"(?:\$\{{?\w+\}}?|\$\({_NESTED}\)|`[^`]*`)/+", "", name)
        if len(self.texts) < _MAX_SCRIPTS and not re.search("[$`]", known):
            for directory in (self.directory, dirname(place), ""):
                path = normpath(join(directory, known))
                if (content := self.read(path)) is not None:
                    return path, content
        return name, None


def _starts_launcher(value: str) -> bool:
    """Return whether a command that begins with this value of a variable starts a launcher."""
    return any(each.launcher for each in _Reader(lambda _: None, {}).programs("", f"{value} x"))


def _find_program(words: list[str]) -> list[str]:
    """Return the program that a simple command runs, with its arguments; [] if it runs none."""
    while words:
        name, rest = basename(words[0]), words[1:]
        if words[0] in _KEYWORDS or _ASSIGNMENT.fullmatch(words[0]):
            words = rest
        elif name in _WRAPPERS and not re.match(r"command -[vV]|eval (\$\(|`)", " ".join([name, *rest[:1]])):
            values = [each for each in rest if not each.startswith("-") and not _OPERAND.fullmatch(each)]
            with_value = _VALUE_OPTION
            if letters := _SHORT_OPTIONS.get(name):
                with_value = rf"-[{letters}]|(?!-\w|--wait$)(?:{_VALUE_OPTION})"
            # In doubt, a value is the program.
            words = _skip_options(rest, with_value, _OPERAND, guess=not letters) or values[:1]
            if words and _MODULE.fullmatch(words[0]):
                return ["python", *words]
        elif _is_variable(words[0]) and rest and not re.search(r"^-|\.py$", rest[0]):
            words = rest  # It may be empty, or a wrapper.
        else:
            break
    return words


def _skip_options(
    words: list[str], with_value: str, operand: re.Pattern[str] | None = None, *, guess: bool = False
) -> list[str]:
    """Return the words after the options and operands. `with_value` matches options whose value is the next word.

    With `guess`, some options are not known, and some of these have a value.
    """
    while words and words[0] != "--":
        following = "".join(words[1:2])
        is_module = _MODULE.fullmatch(words[0]) and not following[:1].isdigit()  # not `numactl -m 0`
        if is_module or not (words[0].startswith("-") or (operand and operand.fullmatch(words[0]))):
            return words
        has_value = re.fullmatch(with_value, words[0]) is not None
        if guess and words[0].startswith("-"):
            is_known = _is_known(words[1:])
            # Some wrappers have a switch of this name. In doubt, a known program is no value.
            is_program = _name_in_bin(following) == TORCHRUN or (
                is_known and re.fullmatch("-[^enopuw]", words[0])
            )
            # `--replay-mode application python`, but not `--frozen my-train --lr 1`
            has_other = "=" not in words[0] and following[:1] not in ("", "-") and _is_known(words[2:])
            has_value = not is_program and (has_value or (has_other and not is_known))
        words = words[2 if has_value else 1 :]
    return words[1:]


def _is_known(words: Sequence[str]) -> bool:
    """Return whether the first of these words is a known program."""
    name = _name_in_bin("".join(words[:1]))
    return name in (*_SHELLS, *_WRAPPERS) or _classify(name, words[1:], is_read=False) is not None


def _name_in_bin(word: str) -> str:
    """Return the name of a program in a directory `bin`, and other words as they are."""
    return re.sub(r".*/bin/", "", word)


def _classify(name: str, arguments: Sequence[str], *, is_read: bool) -> str | None:
    """Return the launcher that a program is, "" for a plain program, None for an unknown one."""
    text, module = f"{name} {''.join(arguments[:1])}", name.removeprefix(PYTHON_MODULE)
    if _TORCHRUN.fullmatch(name):
        return TORCHRUN
    if found := _LAUNCHER.fullmatch(text):
        return found[1] or found[2]
    if _is_variable(name):
        is_plain = any(each.endswith(".py") for each in arguments[:2])
    elif name != module:
        is_plain = not _LAUNCHER_PACKAGES.fullmatch(module)
    else:
        is_plain = is_read or name in _PLAIN or _PLAIN_PATTERN.fullmatch(text) is not None
    return "" if is_plain else None


def _python_target(python: str, arguments: list[str]) -> tuple[str, list[str]]:
    """Return the name of the program that Python runs with these arguments, and its arguments."""
    rest = _skip_options(arguments, "-[WX]")
    word = "".join(rest[:1])
    if module := _MODULE.fullmatch(word):
        return f"{PYTHON_MODULE}{module[1] or ''.join(rest[1:2])}", rest[1 if module[1] else 2 :]
    return (basename(word), rest[1:]) if re.search(r"(^|/)bin/[^/]+$", word) else (python, arguments)


def _is_variable(word: str) -> bool:
    """Return whether a program comes from a variable or a command substitution."""
    return word.startswith(("$", "`")) and ("/" not in word or word.endswith(("}", ")", "`")))


def _unquote(found: re.Match[str]) -> str:
    return found[1] or found[3] or re.sub(r'\\([$`"\\])', r"\1", found[2] or "")


def _simple_commands(text: str) -> list[list[str]]:
    """Return the simple commands of a shell text without redirections.

    A here-document is left out, unless it is the script of a shell. Then it becomes an argument after `-c`.
    """
    commands: list[list[str]] = [[]]
    place = depth = 0
    while token := _TOKEN.match(text, place):
        place, words = token.end(), commands[-1]
        if token["word"]:
            words.append(_QUOTED.sub(_unquote, token["word"].replace("\\\n", "")))
        elif token["end"]:
            if words and basename(words[0]) in _SHELLS:
                words += ["-c", token["document"]]
            text, place = f"{token['rest']}\n{text[place:]}", 0
        elif token["operator"]:
            depth += {"(": 1, ")": -1}.get(token["operator"], 0)
            if depth < 0:
                words.clear()  # the pattern of a `case`
                depth = 0
            commands.append([])
    return [each for each in commands if each]


def find_conflict(job: JobSpec, found: Detection, size: Size, backend: str) -> tuple[str, str]:
    """Return the place where command or environment do not fit the job's size, and why; ("", "") if they fit.

    The place is a field of the spec, or a file in the workspace. `backend` is that of the rendezvous.
    """
    variables = [f"{key}={value}" for key, value in job.literal_variables.items() if key.startswith("PET_")]
    if wrong := _find_wrong_flag(TORCHRUN, variables, size, backend):
        return "spec.env", f"has {wrong}"
    alone = size.nodes > 1 and not job.launcher and found.own_launcher not in ("", TORCHRUN)
    for each in found.programs:
        if each.launcher and (wrong := _find_wrong_flag(each.launcher, each.arguments, size, backend)):
            advice = f". {_ADVICE}" if alone else ""
            return each.place or "spec.command", f"{each.launcher} has {wrong}{advice}"
    why = f"starts {found.own_launcher}, which does not know the job's {size.nnodes} nodes: each would train alone"
    return (found.place or "spec.command", f"{why}. {_ADVICE}") if alone else ("", "")


def _find_wrong_flag(launcher: str, words: Sequence[str], size: Size, backend: str) -> str:
    """Return which of a launcher's variables or flags does not fit the job, and why; "" if all fit."""
    several, is_torchrun = size.nodes > 1, launcher == TORCHRUN
    nodes, gpus = f"{size.nnodes} node{'s' * several}", f"{size.gpus} GPU{'s' * (size.gpus > 1)} on each node"
    flags = _read_flags(launcher, words)
    required = {
        "nnodes": (size.nnodes, nodes),
        **dict.fromkeys(_NODES, (str(size.nodes), nodes)),
        # On CPUs the command sets the number of processes.
        **dict.fromkeys(_PROCESSES_OF_NODE, (str(size.gpus or ""), gpus)),
        **dict.fromkeys(_PROCESSES, (str(size.total_gpus or ""), f"{size.total_gpus} GPUs")),
    }
    for flag, (value, notation) in flags.items():
        right, has = required.get(flag, ("", ""))
        first, _, last = value.partition(":")
        if right and first.isdecimal() and value != right and (first, last) != (right, right):
            return f"{notation}, but the job has {has}. It must be {right}" + ", or be omitted" * is_torchrun
        if not (several and is_torchrun):
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
    kind = launcher.removeprefix(PYTHON_MODULE)
    own = next((own for start, own in _OWN_FLAGS.items() if kind.startswith(start)), ())
    is_torchrun, rest, may_be_value = launcher == TORCHRUN, iter(words), False
    for word in rest:
        name, equals, value = word.partition("=")
        flag = name.lstrip("-").replace("-", "_")
        if name.startswith("PET_"):
            flag = name.removeprefix("PET_").lower()
            if flag in _SWITCHES and value in ("", "0"):
                continue
        elif word.startswith("-"):
            flag = "nproc" if flag == "n" and "composer" in launcher else flag
            if not is_torchrun and flag in ("m", "module"):
                break
            may_be_value = not is_torchrun and flag not in own
            if not (may_be_value or equals or flag in _SWITCHES):
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
        if is_torchrun or flag in own:
            flags[flag] = value, f"{name}{equals or ' '}{value}".rstrip()
    return flags
