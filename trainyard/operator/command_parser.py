"""Parse a command into the programs that it may run, through shells, scripts and wrappers such as `env`. Pure.

Entry points: `parse_words` and `parse_line`. A program's name counts only where a shell would
run it, not in a path or a message. The caller passes a function that reads files; without one the parser reads none.
https://pubs.opengroup.org/onlinepubs/9799919799/utilities/V3_chap02.html defines the terms of the shell.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import pairwise
from typing import Final

# Returns the text of a file in the workspace; None if there is no such text file.
Read = Callable[[str], str | None]
TORCHRUN_MODULES: Final = ("torch.distributed.run", "torch.distributed.launch")
# Flags of a runner, such as uv, that run a Python module.
_MODULE: Final = ("-m", "--module")
PYTHON: Final = re.compile(r"python[0-9.]*")
# Flags without a value, and then at most one with a value.
_PYTHON_OPTION: Final = re.compile(r"-([bBdEiIOPqRsSuvVx]*)(?:([cmWX])(.*))?", re.DOTALL)
SHELLS: Final = ("sh", "bash", "dash", "ash", "ksh", "zsh")
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=.*", re.DOTALL)
KEYWORDS: Final = ("!", "{", "if", "then", "elif", "else", "while", "until", "do")
# Only an operator may follow these words.
_CLOSING: Final = ("}", "fi", "done", "esac")
SOURCES: Final = (".", "source")
# Internal markers: no command contains a NUL character. The words of an array follow the second marker.
_PROBE: Final = "\0"
_ARRAY: Final = "\0("
# Programs that run another command, each with the number of positional arguments before it.
PREFIXES: Final = {
    **dict.fromkeys(("catchsegv", "command", "dumb-init", "env", "eval", "exec", "ionice", "ncu", "nice"), 0),
    **dict.fromkeys(("builtin", "busybox", "coproc", "setarch", "uvx", "xargs"), 0),
    **dict.fromkeys(
        ("nohup", "numactl", "setsid", "stdbuf", "strace", "sudo", "time", "tini", "unbuffer", "xvfb-run"), 0
    ),
    **dict.fromkeys(("chrt", "flock", "gosu", "taskset", "timeout"), 1),
}
# Programs that run another command after this subcommand.
RUNNERS: Final = {
    **dict.fromkeys(
        ("conda", "hatch", "mamba", "micromamba", "pdm", "pipenv", "pixi", "poetry", "rye", "uv"), "run"
    ),
    "nsys": "profile",
}
# Options whose value may look like a program: a package, an environment or a file.
_PREFIX_NAMES: Final = re.compile(r"-[Cou]|--(?:chdir|export|output|unset|user)")
_RUNNER_NAMES: Final = re.compile(
    r"-[CPenopw]|--(?:cwd|directory|env|environment|feature|name|output|prefix|project|python|root-prefix|with"
    r"|with-editable|with-requirements|(?:no-)?extra|(?:no-|only-)?group|(?:[a-z]+-)*package)"
)
# The limit of words per command. The parser tries each option both with and without a value.
_MAX_WORDS: Final = 64
_PROGRAM_LOOKUP: Final = re.compile(
    r"\$\(\s*(?:which|command\s+-v)\s+([^\s()]+)\s*\)|`\s*(?:which|command\s+-v)\s+([^\s`]+)\s*`"
)
# The text of an arithmetic expansion, with up to four levels of nested parentheses.
_ARITHMETIC: Final = reduce(lambda inner, _: rf"[^()]*+(?:\({inner}\)[^()]*+)*+", range(4), "[^()]*+")
_TOKEN: Final = re.compile(
    rf"""(?P<blank>[^\S\n]+|\#[^\n]*)
    | (?P<document>[0-9]*<<-?(?!<))
    | (?P<redirection>[0-9]*[<>]+[&|]?)
    | (?P<word>(?:\\.|'[^']*'|"(?:\\.|[^"\\])*"|\$\(\({_ARITHMETIC}\)\)|\$(?!\()|[^\s;&|()<>`'"\\$])+)
    | (?P<inner>\$\(|`)
    | (?P<operator>\(\({_ARITHMETIC}\)\)|[;&|()\n])""",
    re.DOTALL | re.VERBOSE,
)
_FUNCTION: Final = re.compile(
    r"(?:^|[\s;&|{}])(?:function\s+)?([A-Za-z_][-\w]*)\s*\(\)|\bfunction\s+([A-Za-z_][-\w]*)"
)
_SET: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=(.*)", re.DOTALL)
_DECLARATIONS: Final = tuple([each] for each in ("declare", "export", "local", "readonly", "typeset"))
_REFERENCE: Final = re.compile(
    r"\$(?:([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)(?:\[[@*]\])?(?::?-([^{}$`]*))?\})"
)
# A directory from a variable or a command substitution, such as "$(dirname "$0")/".
_UNKNOWN_DIRECTORY: Final = re.compile(r"(?:\$\{?\w+\}?|\$\([^()]*\)|`[^`]*`)/+")
_MAX_FILES: Final = 32
_MAX_VARIABLES: Final = 200
_MAX_EXPANSIONS: Final = 4
_MAX_WORD_LENGTH: Final = 4096
_QUOTED: Final = re.compile(r"""'([^']*)'|"((?:\\.|[^"\\])*)"|\\(.)""", re.DOTALL)
_ESCAPED: Final = re.compile(r'\\([$`"\\\n])')


@dataclass(frozen=True, kw_only=True)
class Call:
    """A program that a command may run.

    Attributes:
        word: The program as the command has it.
        arguments: Its arguments.
        unsure: Whether `word` may be no program, but an option's value or the word after a variable.
    """

    word: str
    arguments: Sequence[str]
    unsure: bool

    @property
    def program(self) -> str:
        return self.word.rpartition("/")[2]

    @property
    def variable(self) -> bool:
        return self.program.startswith("$") or (self.word.startswith("${") and self.word.endswith("}"))

    @property
    def python(self) -> tuple[str, Sequence[str]]:
        """Return the module or program that Python runs, and its arguments; ("", ()) for neither."""
        if self.program in RUNNERS:
            options = self.arguments
            return next(
                (
                    (name, options[at + 2 :])
                    for at, (each, name) in enumerate(pairwise(options))
                    if each in _MODULE
                ),
                ("", ()),
            )
        return _python_target(self.arguments) if self.variable or PYTHON.fullmatch(self.program) else ("", ())

    @property
    def script(self) -> str:
        """Return the script file that a shell runs, or the program's path; "" for neither."""
        if self.program in SOURCES:
            return next(iter(self.arguments), "")
        if self.program in SHELLS:
            return _script_file(self.arguments)
        known = self.program in (*PREFIXES, *RUNNERS) or PYTHON.fullmatch(self.program)
        return self.word if "/" in self.word and not self.unsure and not known else ""


@dataclass(frozen=True, kw_only=True)
class SimpleCommand:
    """A simple command of a shell, with the programs that it may run.

    Attributes:
        words: Its words after expansion.
        calls: The programs that it may run, the likeliest first.
        place: The file in the workspace that contains it, "" for the job's own command.
        functions: The shell functions that its script defines.
        file: The script that it runs, "" for none.
        is_read: Whether that script is in the workspace. Then its commands follow.
        variables: The variables that its script sets.
        is_python: Whether the first line of that script says that Python runs it.
        runs_text: Whether it runs a script that is an argument, as `bash -c` does.
    """

    words: Sequence[str]
    calls: Sequence[Call]
    place: str
    functions: frozenset[str] = frozenset()
    file: str = ""
    is_read: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)
    is_python: bool = False
    runs_text: bool = False


def parse_words(
    words: Sequence[str], read: Read = lambda _: None, variables: Mapping[str, str] | None = None
) -> Iterator[SimpleCommand]:
    """Yield the command with these words, and the commands of the scripts that it runs."""
    return _Walk(read, dict(variables or {})).commands("", [list(words)], "")


def parse_line(
    line: str,
    args: Sequence[str] = (),
    read: Read = lambda _: None,
    variables: Mapping[str, str] | None = None,
) -> Iterator[SimpleCommand]:
    """Yield the commands of a shell line, and the commands of the scripts that it runs.

    The last command of the line also gets `args`.
    """
    return _Walk(read, dict(variables or {})).commands("", _expanded_commands(line, args), line)


@dataclass
class _Walk:
    """Walk through a command and the scripts that it runs. It reads no script twice."""

    read: Read
    variables: dict[str, str]
    directory: str = ""
    seen: set[str] = field(default_factory=set)
    files: set[str] = field(default_factory=set)

    def commands(self, place: str, commands: Sequence[list[str]], text: str) -> Iterator[SimpleCommand]:
        to_do = [(place, commands, text)]
        while to_do:
            place, commands, text = to_do.pop()
            functions = frozenset(one[1] or one[2] for one in _FUNCTION.finditer(text))
            variables = _assignments(commands, self.variables) if text else self.variables
            behind = []
            for raw in commands:
                words = _expand(_split_env_string(raw), variables)
                if not words or words[0] == _ARRAY:
                    continue
                if words[0] == "cd" and len(words) == 2 and "$" not in words[1] and "`" not in words[1]:
                    self.directory = posixpath.join(self.directory, words[1])
                scripts: list[str] = []
                calls = list(_calls(words, scripts))
                # With an inline script, a call that looks like a script file is only an option's value.
                found = ("", None) if scripts else self._find_script(place, calls)
                name, content = found
                is_python = content is not None and _is_python(content)
                yield SimpleCommand(
                    words=words,
                    calls=calls,
                    place=place,
                    functions=functions,
                    file=name,
                    is_read=content is not None,
                    variables=variables,
                    is_python=is_python,
                    runs_text=bool(scripts),
                )
                if content is not None and not is_python and name not in self.seen:
                    self.seen.add(name)
                    behind.append((name, _expanded_commands(content, ()), content))
                for script in scripts:
                    # The output of a command substitution is not known here.
                    if script not in self.seen and not script.lstrip().startswith(("$(", "`")):
                        self.seen.add(script)
                        behind.append((place, _expanded_commands(script, ()), script))
            to_do.extend(reversed(behind))

    def _find_script(self, place: str, calls: Sequence[Call]) -> tuple[str, str | None]:
        """Return the script that one of these calls runs, and its text; None if it can't be read."""
        first = ""
        for call in calls:
            if not (named := call.script):
                continue
            first = first or named
            for name in self._candidate_paths(place, named):
                if name not in self.files and len(self.files) >= _MAX_FILES:
                    break
                self.files.add(name)
                if (content := self.read(name)) is not None:
                    return name, content
        return first, None

    def _candidate_paths(self, place: str, name: str) -> Iterator[str]:
        """Yield the paths where the script may be. An unknown directory may be that of the calling script."""
        name = _UNKNOWN_DIRECTORY.sub("", name)
        if not name or "$" in name or "`" in name:
            return
        for directory in (self.directory, posixpath.dirname(place), ""):
            yield posixpath.normpath(posixpath.join(directory, name))


def takes_words(line: str) -> bool:
    """Return whether a word after this line would be an argument of its last command.

    It is none if it would be in a comment, or the first word of a command.
    """
    last = next((each for each in _commands(f"{line} {_PROBE}") if _PROBE in each), [])
    return len(last) > 1 and last[0] not in _CLOSING


def _calls(words: Sequence[str], scripts: list[str]) -> Iterator[Call]:
    """Yield the programs that a simple command may run; append the inline scripts of shells to `scripts`."""
    words = words[:_MAX_WORDS]
    # Positions of possible programs, and whether each is unsure.
    places, seen = [(0, False)], set[int]()
    while places:
        place, unsure = places.pop()
        while place < len(words) and (words[place] in KEYWORDS or _ASSIGNMENT.fullmatch(words[place])):
            place += 1
        if place >= len(words) or place in seen:
            continue
        seen.add(place)
        call = Call(word=words[place], arguments=words[place + 1 :], unsure=unsure)
        program, rest = call.program, call.arguments
        if program not in RUNNERS:
            yield call
        if program in SHELLS or (program == "eval" and len(rest) == 1):
            if text := _inline_script(rest) if program in SHELLS else rest[0]:
                scripts.append(text)
        elif program in RUNNERS:
            runs = [each for each in _operand_positions(words, place + 1) if words[each] == RUNNERS[program]]
            for run in runs:
                yield Call(word=program, arguments=words[run + 1 :], unsure=unsure)
                for each in _operand_positions(words, run + 1):
                    places.append((each, unsure or bool(_RUNNER_NAMES.fullmatch(words[each - 1]))))
        elif program in PREFIXES and not (program == "command" and rest[:1] in (["-v"], ["-V"])):
            for each in _operand_positions(words, place + 1):
                named = bool(_PREFIX_NAMES.fullmatch(words[each - 1]))
                places.append((each + PREFIXES[program], unsure or named))
        elif call.variable:
            places.append((place + 1, True))


def _operand_positions(words: Sequence[str], place: int) -> list[int]:
    """Return the possible positions of the first word after options and assignments.

    A word after an option may be its value or the first word.
    """
    found = []
    while place < len(words):
        word = words[place]
        if word.startswith("-") and word != "--":
            place += 1
            if "=" not in word and place < len(words) and not words[place].startswith("-"):
                found.append(place)
                place += 1
        elif word == "--" or _ASSIGNMENT.fullmatch(word):
            place += 1
        else:
            found.append(place)
            break
    return found


def _python_target(arguments: Sequence[str]) -> tuple[str, Sequence[str]]:
    """Return the module or script that Python runs with these arguments, and its own arguments.

    A script counts as a program only in a directory `bin`: `recipes/deepspeed` is a script of the user.
    """
    rest = iter(arguments)
    for word in rest:
        option = _PYTHON_OPTION.fullmatch(word)
        if word == "--check-hash-based-pycs":
            next(rest, "")
        elif not option:
            *_, folder, name = ("", *word.split("/"))
            return (name if folder == "bin" else ""), tuple(rest)
        elif option[2]:
            value = option[3] or next(rest, "")
            if option[2] in "cm":
                return (value if option[2] == "m" else ""), tuple(rest)
    return "", ()


def _inline_script(arguments: Sequence[str]) -> str:
    """Return the script after `-c` in the arguments of a shell, "" without `-c`."""
    rest, asked = iter(arguments), False
    for word in rest:
        if not word.startswith(("-", "+")):
            return word if asked else ""
        if not word.startswith("--"):
            asked = asked or "c" in word
            if word.endswith(("o", "O")):
                next(rest, "")
    return ""


def _script_file(arguments: Sequence[str]) -> str:
    """Return the file that a shell with these arguments runs, "" for none."""
    rest = iter(arguments)
    for word in rest:
        if not word.startswith(("-", "+")):
            return word
        if word == "--":
            return next(rest, "")
        if not word.startswith("--"):
            if set("cs") & set(word):
                return ""
            if word.endswith(("o", "O")):
                next(rest, "")
        elif word in ("--rcfile", "--init-file"):
            next(rest, "")
    return ""


def _is_python(text: str) -> bool:
    """Return whether the first line of a script says that Python runs it."""
    first = text.partition("\n")[0]
    if not first.startswith("#!"):
        return False
    words = [each for each in first[2:].split() if not each.startswith("-")]
    programs = [each.rpartition("/")[2] for each in words]
    program = next((each for each in programs if each != "env" and "=" not in each), "")
    return bool(PYTHON.fullmatch(program)) or program == "uv"


def _assignments(commands: Sequence[Sequence[str]], given: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with one value throughout the script, and the variables in `given`."""
    found: dict[str, str] = {}
    unknown = set[str]()
    for at, words in enumerate(commands):
        of_shell = words[1:] if words[:1] in _DECLARATIONS else words
        for word in of_shell[:_MAX_WORDS]:
            assignment = _SET.fullmatch(word)
            if assignment is None:
                if of_shell is words:
                    break
                continue
            name, adds, value = assignment.groups()
            following = commands[at + 1] if at + 1 < len(commands) else ()
            if not value and following[:1] == [_ARRAY]:
                value = " ".join(each for each in following if each != _ARRAY)
            if adds or len(found) >= _MAX_VARIABLES or found.get(name, value) != value:
                unknown.add(name)
            found[name] = value
        if words[:1] in (["read"], ["for"], ["select"], ["shift"]):
            unknown.update(words[1:])
    return {**given, **{name: value for name, value in found.items() if name not in unknown}}


def _split_env_string(words: list[str]) -> list[str]:
    """Split the argument of `env -S` into words."""
    at = next((at for at, word in enumerate(words[:_MAX_WORDS]) if word in ("-S", "--split-string")), 0)
    if not at or at + 1 >= len(words) or not any(each.rpartition("/")[2] == "env" for each in words[:at]):
        return words
    return [*words[:at], *words[at + 1].split(), *words[at + 2 :]]


def _expand(words: Sequence[str], variables: Mapping[str, str]) -> list[str]:
    """Return the words after expansion of the known variables, split as a shell splits them."""
    now = list(words[:_MAX_WORDS])
    for _ in range(_MAX_EXPANSIONS):
        if not any("$" in word for word in now):
            break
        new: list[str] = []
        for word in now[:_MAX_WORDS]:
            value = _REFERENCE.sub(lambda one: _resolve_reference(one, variables), word)[:_MAX_WORD_LENGTH]
            new.extend(value.split() if value != word and _REFERENCE.fullmatch(word) else [value])
        if new == now:
            break
        now = new
    return now


def _resolve_reference(found: re.Match[str], variables: Mapping[str, str]) -> str:
    """Return the value of a variable reference; the reference itself if the value is not known."""
    name, default = found[1] or found[2], found[3]
    if name in variables:
        return variables[name]
    return found[0] if default is None else default


def _expanded_commands(line: str, args: Sequence[str]) -> list[list[str]]:
    """Return the simple commands of a line; the last one also gets `args`.

    A lookup such as `$(which python)` becomes the program itself.
    """
    found = _PROGRAM_LOOKUP.sub(lambda one: f"/bin/{one[1] or one[2]}", line)
    return _commands(" ".join((found, *map(shlex.quote, args))), documents=True)


def _commands(line: str, *, documents: bool = False) -> list[list[str]]:
    """Return the simple commands of a shell line without redirections, up to the first token that it can't parse.

    Here-documents are left out. With `documents`, those that are the script of a shell are kept.
    """
    now: list[str] = []
    commands = [now]
    # The enclosing commands, each with the token that closes the inner one.
    around: list[tuple[str, list[str]]] = []
    # The commands whose here-documents begin on the next line, each with the operator and the delimiter.
    pending: list[tuple[list[str], str, str]] = []
    # The delimiters of here-documents that are parsed as scripts.
    ends: list[list[str]] = []
    # The redirection operator before the next word.
    target = ""
    place, adjoins = 0, False
    while place < len(line) and (token := _TOKEN.match(line, place)):
        place, kind, text = token.end(), token.lastgroup, token[0]
        adjoined, adjoins = adjoins, kind == "word"
        if kind == "word":
            if adjoined and now:
                now[-1] += _unquote(text)
            elif not text.replace("\\\n", ""):
                continue
            elif not target:
                now.append(_unquote(text))
            elif "<<" in target:
                pending.append((now, target, _unquote(text)))
            target = ""
        elif kind == "document":
            target = text
        elif kind == "redirection":
            target = ">"
        elif kind == "operator" and (_is_open_test(now) or (text == "\n" and now[:1] == [_ARRAY])):
            continue
        elif around and text == around[-1][0]:
            now, target, adjoins = around.pop()[1], "", True
        elif kind == "inner":
            if adjoined and now and not target:
                now[-1] += "$()"  # part of the word; its value is not known
            elif adjoined or target:
                target = ""
            else:
                now.append("$")
            around.append(("`" if text == "`" else ")", now))
            now = []
            commands.append(now)
        elif kind == "operator":
            array = (
                text == "(" and adjoined and now and now[-1].endswith("=") and _ASSIGNMENT.fullmatch(now[-1])
            )
            if array:
                around.append((")", now))
            elif text == "(":
                commands.append([])
                around.append((")", commands[-1]))
            elif text == ")":
                now.clear()  # the pattern of a `case`
            elif text == "\n":
                for words, operator, end in pending:
                    if documents and _reads_script_from_stdin(words):
                        ends.append([end])
                    else:
                        place = _end_of_here_document(line, place, operator, end)
                pending = []
            now, target = [_ARRAY] if array else [], ""
            commands.append(now)
    return [each for each in commands if each not in ends] if ends else commands


def _is_open_test(words: Sequence[str]) -> bool:
    """Return whether these words are an unfinished `[[`, in which operators do not separate commands."""
    first = next((each for each in words[:_MAX_WORDS] if each not in KEYWORDS), "")
    return first == "[[" and words[-1] != "]]"


def _reads_script_from_stdin(words: Sequence[str]) -> bool:
    """Return whether a command is a shell that reads its script from standard input."""
    return (
        bool(words)
        and words[0].rpartition("/")[2] in SHELLS
        and all(each.startswith("-") for each in words[1:_MAX_WORDS])
    )


def _end_of_here_document(line: str, place: int, operator: str, end: str) -> int:
    """Return the position after the here-document that begins at `place`."""
    while place < len(line):
        stop = line.find("\n", place)
        stop = len(line) if stop < 0 else stop
        read = line[place:stop]
        place = stop + 1
        if (read.lstrip("\t") if operator.endswith("-") else read) == end:
            break
    return place


def _unquote(word: str) -> str:
    """Return the word after quote removal, without line continuations."""

    def bare(found: re.Match[str]) -> str:
        if found[1] is not None:
            return found[1]
        if found[2] is not None:
            return _ESCAPED.sub(lambda one: one[1].strip("\n"), found[2])
        return found[3].strip("\n")

    return _QUOTED.sub(bare, word)
