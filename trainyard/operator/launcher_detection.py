"""Detect what starts the processes of a command: torchrun, which the controller adds, or the command itself. Pure.

Under torchrun, another launcher would start its processes once for each GPU. So only plain programs run under torchrun.
A program that is not known runs without torchrun, and the user gets a message. Commands are read, not evaluated: all
branches count. Entry point: `detect_launcher`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from posixpath import basename, dirname, join, normpath
from typing import Final

from trainyard.operator.api.job import NO_LAUNCHER, TORCHRUN

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
SOURCES: Final = (".", "source")
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
    rf"""[^\S\n]+ | \\\n | \#[^\n]*  # white space, a continued line, a comment
    | \[\[\s[^\n]{{0,999}}?\s\]\] | \(\({_NESTED}\)\) | {_FUNCTION}  # a test, arithmetic, the name of a function
    | [0-9]*<<-?[^\S\n]*\\?(?P<quote>['"]?)(?P<end>[\w.-]+)(?P=quote)(?P<rest>[^\n]{{0,999}})\n  # a here-document
      (?P<document>.*?)(?:^\t*(?P=end)$|\Z)
    | [0-9]*[<>]+[&|]?[^\S\n]*(?:{_WORD})?  # a redirection
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


@dataclass(frozen=True, kw_only=True)
class Program:
    """A program that a command runs, behind wrappers such as `env`."""

    name: str  # its name, the path of a file `*.py`, or `python -m MODULE`
    arguments: Sequence[str]
    place: str  # the file in the workspace that contains the command, "" for the job's own command
    file: str  # the script that it runs, "" for none
    is_read: bool  # whether that script is in the workspace. Then the programs of a shell script follow.
    launcher: str | None  # its name as a launcher, "" for a plain program, None for an unknown program


@dataclass(frozen=True, kw_only=True)
class Detection:
    """The programs of a command, and the launcher that it starts."""

    programs: tuple[Program, ...]
    own_launcher: str = ""  # the launcher that the command starts, "" for none
    unknown: str = ""  # the first program that is not known to be a plain program, "" for none
    place: str = ""  # the file in the workspace that contains one of these, "" for the command itself
    unread: bool = False  # whether `unknown` is a script that could not be read

    @property
    def launcher(self) -> str:
        """Return the default launcher: torchrun for plain programs, none for all others."""
        return NO_LAUNCHER if self.own_launcher or self.unknown else TORCHRUN


# Returns the text of a file in the workspace; None if there is no such text file.
Read = Callable[[str], str | None]


def detect_launcher(
    command: str,
    args: Sequence[str] = (),
    read: Read | None = None,
    variables: Mapping[str, str] | None = None,
) -> Detection:
    """Return the programs and the launcher that a command with these further arguments and variables starts."""
    text = " ".join((without_line_end(command), *map(shlex.quote, args)))
    if read is None:
        return _detect_without_files(text, tuple((variables or {}).items()))
    return _detect(_Reader(read, dict(variables or {})), text)


# Several steps of a reconcile need it.
@lru_cache(maxsize=32)
def _detect_without_files(text: str, variables: tuple[tuple[str, str], ...]) -> Detection:
    return _detect(_Reader(lambda _: None, dict(variables)), text)


def _detect(reader: _Reader, text: str) -> Detection:
    programs = tuple(reader.programs("", text))
    for program in sorted(programs, key=lambda found: found.launcher != TORCHRUN):
        if program.launcher:
            return Detection(programs=programs, own_launcher=program.launcher, place=program.place)
    unknown = [program for program in programs if program.launcher is None]
    # A sourced file usually sets variables only.
    for program in unknown:
        if program.name not in SOURCES or len(unknown) == len(programs):
            verb = re.fullmatch("[a-z]{2,12}", "".join(program.arguments[:1]))
            name = program.file or f"{program.name} {verb[0] if verb else ''}".rstrip()
            is_file = bool(program.file)
            return Detection(programs=programs, unknown=name, place=program.place, unread=is_file)
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
    return any(probe in words[1:] and words[0] not in ("}", "fi", "done", "esac") for words in commands)


@dataclass
class _Reader:
    """Read a command and the scripts that it runs, each once."""

    read: Read
    variables: dict[str, str]  # one with several values stays unexpanded, unless one of them is a launcher
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
            in_substitutions = (program for script in inner for program in self.programs(place, script))
            yield from (program for program in in_substitutions if program.launcher)
            words = [part for word in raw[:_MAX_WORDS] for part in self._expand(word)][:_MAX_WORDS]
            program = _find_program(words)
            self._assign(words if words[0] in _DECLARATIONS else words[: len(words) - len(program)])
            if words[0] == "cd" and len(words) == 2 and not re.search("[$`]", words[1]):
                self.directory = join(self.directory, words[1])
            if program and words[0] not in self.functions:
                yield from self._program(place, *program)

    def _expand(self, word: str) -> list[str]:
        """Return the words after the expansion of known variables."""

        def value(found: re.Match[str]) -> str:
            return self.variables.get(found[1] or found[2]) or found[3] or found[0]

        expanded = _REFERENCE.sub(value, word)[:_MAX_LENGTH]
        is_split = expanded != word and _REFERENCE.fullmatch(word)
        return expanded.split() or [""] if is_split else [expanded]

    def _assign(self, words: Sequence[str]) -> None:
        """Record the assignments. A script may assign to a variable in several branches, and all of them count."""
        for name, appends, value in (found.groups() for found in map(_ASSIGNMENT.fullmatch, words) if found):
            if value.startswith("(") and value.endswith(")"):
                value = " ".join(value[1:-1].split())
            before = self.variables.get(name, value)
            if appends or before != value:
                value = _find_launcher(before) or _find_launcher(value) or f"${name}"
            self.variables[name] = value[:_MAX_LENGTH]

    def _program(self, place: str, word: str, *arguments: str) -> Iterator[Program]:
        name = word if _is_variable(word) or word.endswith(".py") else basename(word)
        file, content, rest = "", None, list(arguments)
        text = word if re.search(r"\s", word) and not word.startswith(("$(", "`")) else ""  # of `eval`
        if name in _SHELLS:
            rest = _skip_options(rest, "-[a-zA-Z]*[oO]")
            options = arguments[: len(arguments) - len(rest)]
            is_inline = any(re.fullmatch("-[a-zA-Z]*c[a-zA-Z]*", option) for option in options)
            script = "".join(rest[:1])
            text, file = (script, "") if is_inline else ("", script)
        elif name in SOURCES:
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


def _find_launcher(value: str) -> str:
    """Return the launcher that a command with this value of a variable in front starts, "" for none."""
    programs = _Reader(lambda _: None, {}).programs("", f"{value} x")
    return next((program.launcher for program in programs if program.launcher), "")


def _find_program(words: list[str]) -> list[str]:
    """Return the program that a simple command runs, with its arguments; [] if it runs none."""
    while words:
        name, rest = basename(words[0]), words[1:]
        if words[0] in _KEYWORDS or _ASSIGNMENT.fullmatch(words[0]):
            words = rest
        elif name in _WRAPPERS and not re.match(r"command -[vV]|eval (\$\(|`)", " ".join([name, *rest[:1]])):
            values = [word for word in rest if not word.startswith("-") and not _OPERAND.fullmatch(word)]
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
        takes_value = re.fullmatch(with_value, words[0]) is not None
        if guess and words[0].startswith("-"):
            is_known = _is_known(words[1:])
            # Some wrappers have a switch of this name. In doubt, a known program is no value.
            is_program = _name_in_bin(following) == TORCHRUN or (
                is_known and re.fullmatch("-[^enopuw]", words[0])
            )
            # `--replay-mode application python`, but not `--frozen my-train --lr 1`
            is_before_program = (
                "=" not in words[0] and following[:1] not in ("", "-") and _is_known(words[2:])
            )
            takes_value = not is_program and (takes_value or (is_before_program and not is_known))
        words = words[2 if takes_value else 1 :]
    return words[1:]


def _is_known(words: Sequence[str]) -> bool:
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
        is_plain = any(argument.endswith(".py") for argument in arguments[:2])
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
    return [words for words in commands if words]
