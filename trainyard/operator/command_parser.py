"""Find the programs that a command runs, also through shells, scripts and wrappers such as `env`. Pure.

The entry point is `parse`. It reads the simple commands of a shell without evaluating them, so all branches count. A
program's name counts only where a shell would run it, not in a path or a message.
https://pubs.opengroup.org/onlinepubs/9799919799/utilities/V3_chap02.html defines the terms of the shell.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Final

# Returns the text of a file in the workspace; None if there is no such text file.
Read = Callable[[str], str | None]
PYTHON: Final = re.compile(r"python[0-9.]*")
PYTHON_MODULE: Final = "python -m "
TORCHRUN_MODULES: Final = ("torchrun", "torch.distributed.run", "torch.distributed.launch")
_SHELLS: Final = ("sh", "bash", "dash", "ash", "ksh", "zsh")
SOURCES: Final = (".", "source")
_KEYWORDS: Final = ("!", "{", "if", "then", "elif", "else", "while", "until", "do")
# Only an operator may follow these words.
_CLOSING: Final = ("}", "fi", "done", "esac")
_DECLARATIONS: Final = ("declare", "export", "local", "readonly", "typeset")
# Launchers that do not know the job's other nodes, each with the subcommand that starts processes ("" for any). A
# system with several implementations of MPI has names such as `mpirun.openmpi`.
LAUNCHERS: Final = {
    **dict.fromkeys(
        ("accelerate-launch", "accelerate.commands.launch", "composer", "composer.cli.launcher"), ""
    ),
    **dict.fromkeys(("deepspeed", "deepspeed.launcher.launch", "deepspeed.launcher.runner"), ""),
    **dict.fromkeys(("horovodrun", "horovod.runner.launch", "mpiexec", "mpiexec.hydra", "mpiexec.mpich"), ""),
    **dict.fromkeys(("mpiexec.openmpi", "mpirun", "mpirun.mpich", "mpirun.openmpi"), ""),
    **dict.fromkeys(("accelerate", "accelerate.commands.accelerate_cli"), "launch"),
    **dict.fromkeys(("colossalai", "fabric", "lightning"), "run"),
}
# Programs that prepare or observe. They start no training processes.
_UTILITIES: Final = """
    apk apt apt-get awk aws base64 basename brew bunzip2 bzip2 cat chgrp chmod chown cksum clear cmp
    column comm cp curl cut date dcgmi dd df diff dirname dmesg dnf dpkg ds_report du dvc egrep env expand
    expr fallocate fgrep fi_info file find fmt fold free gawk gcloud gdown getconf git grep gsutil gunzip
    gzip head hf hostid hostname huggingface-cli hwloc-ls ibstat ibv_devices ibv_devinfo id ifconfig
    install ip jq kaggle kubectl ldconfig ldd less link ln logger ls lsblk lscpu lsof lspci lstopo mc
    md5sum mkdir mkfifo mktemp module more mount mountpoint mv nl nproc nslookup numfmt nvcc nvidia-smi od
    openssl paste pgrep ping pip pip3 pkill printenv ps python-config rclone readlink realpath rev rm
    rmdir rsync s5cmd sed seq sha1sum sha256sum shuf sleep sort split ss stat stty sum sync sysctl tac
    tail tar tee tensorboard timedatectl top touch tput tr truncate tty umount uname unexpand uniq unlink
    unxz unzip unzstd uptime vmstat wc wget whereis which who whoami xz yes yq yum zcat zip zstd
"""
UTILITIES: Final = frozenset(_UTILITIES.split())
# Programs that run another command, each with the number of operands before it.
_WRAPPERS: Final = """
    builtin busybox catchsegv command coproc dumb-init env eval exec ionice ncu nice nohup numactl setarch setsid
    stdbuf strace sudo time tini unbuffer uvx xargs xvfb-run
"""
_PREFIXES: Final = {
    **dict.fromkeys(_WRAPPERS.split(), 0),
    **dict.fromkeys(("chrt", "flock", "gosu", "taskset", "timeout"), 1),
}
# Programs that run another command after this subcommand.
_RUNNERS: Final = {
    **dict.fromkeys(
        ("conda", "hatch", "mamba", "micromamba", "pdm", "pipenv", "pixi", "poetry", "rye", "uv"), "run"
    ),
    "nsys": "profile",
}
# The options of wrappers whose value is the next word (their manual pages). Other wrappers have none.
_VALUE_OPTIONS: Final = {
    "chrt": r"-[DPT]|--sched-(?:deadline|period|runtime)",
    "dumb-init": r"-r|--rewrite",
    "env": r"-[Cu]|--(?:chdir|unset)",
    "exec": r"-a",
    "flock": r"-[Ew]|--(?:conflict-exit-code|timeout|wait)",
    "ionice": r"-[cn]|--class(?:data)?",
    "nice": r"-n|--adjustment",
    "numactl": r"-[CNPimpw]|--(?:cpunodebind|interleave|membind|physcpubind|preferred(?:-many)?|weighted-interleave)",
    "stdbuf": r"-[eio]|--(?:error|input|output)",
    "strace": r"-[EIOPSUXabeopsu]|--(?:env|interruptible|output|string-limit|trace|trace-path|user)",
    "sudo": r"-[CDRTUghprtu]|--(?:chdir|chroot|close-from|command-timeout|group|host|other-user|prompt|role|type|user)",
    "time": r"-[fo]|--(?:format|output)",
    "timeout": r"-[ks]|--(?:kill-after|signal)",
    "tini": r"-[ep]",
    "xargs": r"-[EILPadns]|--(?:arg-file|delimiter|max-args|max-chars|max-lines|max-procs)",
    "xvfb-run": r"-[efnpsw]|--(?:auth-file|error-file|server-args|server-num|wait|xauth-protocol)",
}
# Programs with too many options for a table. The value of any of these options is always the next word. The word after
# another option is its value, unless it is a known program.
_RUNNER_NAMES: Final = re.compile(
    r"-[CPenopw]|--(?:cwd|directory|env|environment|export|feature|from|name|output|prefix|project|python|root-prefix"
    r"|with|with-editable|with-requirements|(?:no-)?extra|(?:no-|only-)?group|(?:[a-z]+-)*package)"
)
_MANY_OPTIONS: Final = ("ncu", "uvx")
# Flags without a value, and then at most one with a value.
_PYTHON_OPTION: Final = re.compile(r"-([bBdEiIOPqRsSuvVx]*)(?:([cmWX])(.*))?", re.DOTALL)
_PROGRAM_LOOKUP: Final = re.compile(
    r"\$\(\s*(?:which|command\s+-v)\s+([^\s()]+)\s*\)|`\s*(?:which|command\s+-v)\s+([^\s`]+)\s*`"
)
# Text with up to four levels of nested parentheses.
_NESTED: Final = reduce(lambda inner, _: rf"[^()]*+(?:\({inner}\)[^()]*+)*+", range(4), "[^()]*+")
# A word may contain substitutions and the value of an array.
_WORD: Final = rf"""(?:\\.|'[^']*'|"(?:\\.|[^"\\])*"|[$=]\({_NESTED}\)|`[^`]*`|\$|[^\s;&|()<>`'"\\$])+"""
_TOKEN: Final = re.compile(
    rf"""(?P<blank>[^\S\n]+|\\\n|\#[^\n]*|\[\[\s[^\n]*?\s\]\]|\(\({_NESTED}\)\))
    | (?P<document>[0-9]*<<(-?)(?!<)[^\S\n]*(?:\\\n\s*)?({_WORD}))
    | (?P<redirection>[0-9]*[<>]+[&|]?[^\S\n]*(?:{_WORD})?)
    | (?P<word>{_WORD})
    | (?P<operator>[;&|()\n])""",
    re.DOTALL | re.VERBOSE,
)
_SUBSTITUTION: Final = re.compile(rf"\$\(({_NESTED})\)|`([^`]*)`")
_FUNCTION: Final = re.compile(
    r"(?:^|[\s;&|{}])(?:function\s+)?([A-Za-z_][-\w]*)\s*\(\)|\bfunction\s+([A-Za-z_][-\w]*)"
)
_ASSIGNMENT: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=(.*)", re.DOTALL)
_REFERENCE: Final = re.compile(
    r"\$(?:([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)(?:\[[@*]\])?(?::?-([^{}$`]*))?\})"
)
# A directory from a variable or a command substitution, such as "$(dirname "$0")/".
_UNKNOWN_DIRECTORY: Final = re.compile(rf"(?:\$\{{?\w+\}}?|\$\({_NESTED}\)|`[^`]*`)/+")
_QUOTED: Final = re.compile(r"""'([^']*)'|"((?:\\.|[^"\\])*)"|\\(.)""", re.DOTALL)
_ESCAPED: Final = re.compile(r'\\([$`"\\\n])')
# No command contains a NUL character.
_PROBE: Final = "\0"
# Limits of what one command may expand to, and of the scripts and variables of a job.
_MAX_WORDS: Final = 256
_MAX_VALUE_LENGTH: Final = 2048
_MAX_SCRIPTS: Final = 32
_MAX_VARIABLES: Final = 200


@dataclass(frozen=True, kw_only=True)
class Program:
    """A program that a simple command runs, behind wrappers such as `env`.

    Attributes:
        word: The program as the command has it.
        name: The program without its directory. If Python runs a module, it is `python -m MODULE`. If Python runs a
            program in a directory `bin`, it is that program: `recipes/deepspeed` is a script of the user.
        arguments: The arguments of `name`.
        place: The file in the workspace that contains the command, "" for the job's own command.
        variables: The variables with known values that the program gets.
        file: The script that it runs, "" for none.
        is_read: Whether that script is in the workspace. Then the programs of a shell script follow.
    """

    word: str
    name: str
    arguments: Sequence[str]
    place: str
    variables: Mapping[str, str]
    file: str = ""
    is_read: bool = False


def parse(
    command: str,
    args: Sequence[str] = (),
    read: Read = lambda _: None,
    variables: Mapping[str, str] | None = None,
) -> Iterator[Program]:
    """Yield the programs of a command and of the scripts that it runs. The last simple command also gets `args`."""
    return _Parser(read, variables or {}).programs("", " ".join((command, *map(shlex.quote, args))))


def takes_words(command: str) -> bool:
    """Return whether a word after this command would be an argument of its last simple command.

    It is not one if it would be in a comment, or the first word of a command.
    """
    last = next((each for each in _simple_commands(f"{command} {_PROBE}") if _PROBE in each), [])
    return len(last) > 1 and last[0] not in _CLOSING


@dataclass
class _Parser:
    """Read a command and the scripts that it runs. It reads no script twice."""

    read: Read
    given: Mapping[str, str]
    # The assigned variables; None for one with several values.
    assigned: dict[str, str | None] = field(default_factory=dict)
    functions: set[str] = field(default_factory=set)
    directory: str = ""
    seen: set[str] = field(default_factory=set)
    files: set[str] = field(default_factory=set)

    def programs(self, place: str, text: str) -> Iterator[Program]:
        # A lookup such as `$(which python)` becomes the program itself.
        text = _PROGRAM_LOOKUP.sub(lambda found: f"/bin/{found[1] or found[2]}", text)
        self.functions |= {found[1] or found[2] for found in _FUNCTION.finditer(text)}
        for raw in _simple_commands(text):
            for inner in (
                found[1] or found[2] or "" for word in raw for found in _SUBSTITUTION.finditer(word)
            ):
                # Its other programs only compute a value.
                yield from (each for each in self._once(place, inner) if _is_launcher(each.name))
            if not (words := self._expand(raw)):
                continue
            program = _find_program(words)
            declares = words[0] in _DECLARATIONS
            self._assign(words[1:] if declares else words[: len(words) - len(program)])
            if words[0] == "cd" and len(words) == 2 and not re.search("[$`]", words[1]):
                self.directory = posixpath.join(self.directory, words[1])
            if program and words[0] not in self.functions:
                yield from self._program(place, *program)

    def _once(self, place: str, script: str) -> Iterator[Program]:
        if script not in self.seen and len(self.seen) < _MAX_SCRIPTS:
            self.seen.add(script)
            yield from self.programs(place, script)

    def _program(self, place: str, word: str, *arguments: str) -> Iterator[Program]:
        name = word if is_variable(word) else word.rpartition("/")[2]
        script = file = ""
        if name == "eval":
            script = arguments[0]
        elif name in _SHELLS:
            script, file = _shell_script(arguments)
            if not script and not file:
                return  # such as the end of a pipe
        elif name in SOURCES:
            file = next(iter(arguments), "")
        elif "/" in word and not PYTHON.fullmatch(name) and not name.endswith(".py"):
            file = word
        if script:
            # The output of a command substitution is not known here.
            if not script.lstrip().startswith(("$(", "`")):
                yield from self._once(place, script)
            return
        file, content = self._find_script(place, file) if file else ("", None)
        if PYTHON.fullmatch(name) or is_variable(word):
            name, arguments = _python_target(name, arguments)
        yield Program(
            word=word,
            name=name,
            arguments=arguments,
            place=place,
            variables=self._variables(),
            file=file,
            is_read=content is not None,
        )
        if content is not None and not _is_python(content) and file not in self.seen:
            self.seen.add(file)
            yield from self.programs(file, content)

    def _find_script(self, place: str, name: str) -> tuple[str, str | None]:
        """Return the path and the text of a script; its name and None if it can't be read.

        An unknown directory may be that of the calling script.
        """
        known = _UNKNOWN_DIRECTORY.sub("", name)
        for directory in () if re.search("[$`]", known) else (self.directory, posixpath.dirname(place), ""):
            path = posixpath.normpath(posixpath.join(directory, known))
            if path not in self.files and len(self.files) >= _MAX_SCRIPTS:
                break
            self.files.add(path)
            if (content := self.read(path)) is not None:
                return path, content
        return name, None

    def _variables(self) -> dict[str, str]:
        known = {name: value for name, value in self.assigned.items() if value is not None}
        return {**{name: value for name, value in self.given.items() if name not in self.assigned}, **known}

    def _assign(self, words: Sequence[str]) -> None:
        """Set the variables of these assignments. A variable with several values counts as unknown."""
        for name, adds, value in (found.groups() for found in map(_ASSIGNMENT.fullmatch, words) if found):
            if value.startswith("(") and value.endswith(")"):
                value = " ".join(value[1:-1].split())
            if len(self.assigned) < _MAX_VARIABLES:
                same = not adds and self.assigned.get(name, value) == value
                self.assigned[name] = value[:_MAX_VALUE_LENGTH] if same else None

    def _expand(self, words: Sequence[str]) -> list[str]:
        """Return the words after the expansion of known variables and word splitting."""

        def value(found: re.Match[str]) -> str:
            name, default = found[1] or found[2], found[3]
            known = self.assigned[name] if name in self.assigned else self.given.get(name, default)
            return found[0] if known is None else known

        expanded: list[str] = []
        for word in words[:_MAX_WORDS]:
            new = _REFERENCE.sub(value, word)[:_MAX_VALUE_LENGTH] if "$" in word else word
            expanded += new.split() if new != word and _REFERENCE.fullmatch(word) else [new]
        return expanded[:_MAX_WORDS]


def _find_program(words: Sequence[str]) -> Sequence[str]:
    """Return the program that a simple command runs, with its arguments; () if it runs none."""
    at = 0
    while at < len(words):
        name = words[at].rpartition("/")[2]
        following = words[at + 1 : at + 2]
        if words[at] in _KEYWORDS or _ASSIGNMENT.fullmatch(words[at]):
            at += 1
        elif name in _RUNNERS:
            at, _ = _guess_options(words, at + 1)
            if words[at : at + 1] != [_RUNNERS[name]]:
                return ()  # such as `conda activate` and `uv sync`
            at, guessed = _guess_options(words, at + 1)
            if words[at : at + 1] in (["-m"], ["--module"]):
                return ("python", "-m", *words[at + 1 :])
            if at >= len(words):
                return words[guessed:]
        elif name == "env" and following in (["-S"], ["--split-string"]):
            return _find_program([*" ".join(words[at + 2 : at + 3]).split(), *words[at + 3 :]])
        elif name in _PREFIXES and not (name == "eval" and len(words) == at + 2):
            if name == "command" and following in (["-v"], ["-V"]):
                return words[at:]
            if name in _MANY_OPTIONS:
                at, guessed = _guess_options(words, at + 1)
                if at >= len(words):
                    return words[guessed:]
            else:
                at = _skip_options(words, at + 1, _VALUE_OPTIONS.get(name, "")) + _PREFIXES[name]
            if name == "flock" and words[at : at + 1] in (["-c"], ["--command"]):
                return ("sh", "-c", *words[at + 1 :])
        elif is_variable(words[at]) and following and not re.search(r"^-|\.py$", following[0]):
            at += 1  # It may be empty, or a wrapper.
        else:
            return words[at:]
    return ()


def _skip_options(words: Sequence[str], at: int, with_value: str) -> int:
    """Return the position after the options and assignments of a wrapper. `with_value` matches options with a value."""
    while at < len(words):
        word = words[at]
        if not word.startswith("-") and not _ASSIGNMENT.fullmatch(word):
            break
        at += 2 if re.fullmatch(with_value, word) else 1
        if word == "--":
            break
    return at


def _guess_options(words: Sequence[str], at: int) -> tuple[int, int]:
    """Return the position after the options and assignments of a runner, and that of the first guessed value.

    A runner's `-m` is no option: it names the program. Without a guessed value, its position is after all words.
    """
    guessed = len(words)
    while at < len(words):
        word = words[at]
        if word in ("-m", "--module") or not (word.startswith("-") or _ASSIGNMENT.fullmatch(word)):
            break
        at += 1
        if word == "--":
            break
        if not word.startswith("-") or "=" in word or at + 1 >= len(words) or words[at].startswith("-"):
            continue
        if _RUNNER_NAMES.fullmatch(word):
            at += 1
        elif not _is_program(words[at]):
            guessed = min(guessed, at)
            at += 1
    return at, guessed


def _is_launcher(name: str) -> bool:
    return name == "torchrun" or name.removeprefix(PYTHON_MODULE) in (*LAUNCHERS, *TORCHRUN_MODULES)


def _is_program(word: str) -> bool:
    """Return whether a word is certainly a program or a runner's subcommand, not the value of an option."""
    name = word.rpartition("/")[2]
    known = (*_SHELLS, *_PREFIXES, *_RUNNERS, *_RUNNERS.values(), *LAUNCHERS)
    return (
        name in known
        or name in UTILITIES
        or name == "torchrun"
        or name.endswith((".py", ".sh"))
        or PYTHON.fullmatch(name) is not None
    )


def is_variable(word: str) -> bool:
    """Return whether the program comes from a variable or a command substitution."""
    return word.startswith(("$", "`")) and ("/" not in word or word.endswith(("}", ")", "`")))


def _python_target(python: str, arguments: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """Return the name of the program that Python runs with these arguments, and its arguments."""
    rest = iter(arguments)
    for word in rest:
        option = _PYTHON_OPTION.fullmatch(word)
        if not option:
            *_, folder, name = ("", *word.split("/"))
            return (name, tuple(rest)) if folder == "bin" else (python, arguments)
        if option[2]:
            value = option[3] or next(rest, "")
            if option[2] == "m":
                return f"{PYTHON_MODULE}{value}", tuple(rest)
            if option[2] == "c":
                break
    return python, arguments


def _shell_script(arguments: Sequence[str]) -> tuple[str, str]:
    """Return the script after `-c` and the script file of a shell; "" for each missing one."""
    rest, inline = iter(arguments), False
    for word in rest:
        if not word.startswith(("-", "+")):
            return (word, "") if inline else ("", word)
        if not word.startswith("--"):
            inline = inline or "c" in word
            if word.endswith(("o", "O")):
                next(rest, "")
        elif word in ("--rcfile", "--init-file"):
            next(rest, "")
    return "", ""


def _is_python(text: str) -> bool:
    """Return whether the first line of a script names Python as the interpreter."""
    found = re.match(r"#!\s*(\S*/env(\s+(-\S+|\w+=\S*))*\s+)?(\S*/)?(\S+)", text)
    return found is not None and (found[5] == "uv" or PYTHON.fullmatch(found[5]) is not None)


def _simple_commands(text: str) -> list[list[str]]:
    """Return the simple commands of a shell text without redirections, up to the first token that it can't parse.

    A here-document is left out, unless it is the script of a shell. Then it becomes an argument after `-c`.
    """
    commands: list[list[str]] = [[]]
    documents: list[tuple[list[str], re.Match[str]]] = []
    place = around = 0
    while place < len(text) and (token := _TOKEN.match(text, place)):
        place, kind, now = token.end(), token.lastgroup, commands[-1]
        if kind == "word":
            now.append(_unquote(token[0]))
        elif kind == "document":
            documents.append((now, token))
        elif kind == "operator":
            around += {"(": 1, ")": -1}.get(token[0], 0)
            if around < 0:
                now.clear()  # the pattern of a `case`
                around = 0
            for command, document in documents if token[0] == "\n" else ():
                indent, end = "\t*" if document[3] else "", re.escape(_unquote(document[4]))
                found = re.compile(rf"^{indent}{end}$", re.MULTILINE).search(text, place)
                body = text[place : found.start() if found else len(text)]
                place = found.end() if found else len(text)
                is_shell = bool(command) and command[0].rpartition("/")[2] in _SHELLS
                if is_shell and _shell_script(command[1:]) == ("", ""):
                    command += ["-c", body]
            if token[0] == "\n":
                documents = []
            commands.append([])
    return [each for each in commands if each]


def _unquote(word: str) -> str:
    """Return the word after quote removal, without line continuations."""

    def bare(found: re.Match[str]) -> str:
        if found[1] is not None:
            return found[1]
        if found[2] is not None:
            return _ESCAPED.sub(lambda one: one[1].strip("\n"), found[2])
        return found[3].strip("\n")

    return _QUOTED.sub(bare, word)
