"""The programs that a command may run, also by shells, scripts and programs that run others. Pure.

Entry points: `simple_commands_of_words` and `simple_commands_of_line`. Only what would be run counts: in a path or a
message the name of a program says nothing. Files are read by a function that the caller gives; without one none is.
https://pubs.opengroup.org/onlinepubs/9799919799/utilities/V3_chap02.html has the words of a shell.
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

# Returns the text of a file of the workspace, None where there is no such text file.
Read = Callable[[str], str | None]
TORCHRUN_MODULES: Final = ("torch.distributed.run", "torch.distributed.launch")
# Of a runner: Python's own with a module.
_MODULE: Final = ("-m", "--module")
PYTHON: Final = re.compile(r"python[0-9.]*")
# Flags, and behind them one that takes what follows.
_PYTHON_OPTION: Final = re.compile(r"-([bBdEiIOPqRsSuvVx]*)(?:([cmWX])(.*))?", re.DOTALL)
SHELLS: Final = ("sh", "bash", "dash", "ash", "ksh", "zsh")
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=.*", re.DOTALL)
KEYWORDS: Final = ("!", "{", "if", "then", "elif", "else", "while", "until", "do")
# Behind these only an operator may follow.
_CLOSING: Final = ("}", "fi", "done", "esac")
SOURCES: Final = (".", "source")
# Words that no line has: a command has no zero. An array's words stand behind the second one.
_ONE_MORE: Final = "\0"
_ARRAY: Final = "\0("
# Programs that run a command, and how many words other than options they have before it.
PREFIXES: Final = {
    **dict.fromkeys(("catchsegv", "command", "dumb-init", "env", "eval", "exec", "ionice", "ncu", "nice"), 0),
    **dict.fromkeys(("builtin", "busybox", "coproc", "setarch", "uvx", "xargs"), 0),
    **dict.fromkeys(
        ("nohup", "numactl", "setsid", "stdbuf", "strace", "sudo", "time", "tini", "unbuffer", "xvfb-run"), 0
    ),
    **dict.fromkeys(("chrt", "flock", "gosu", "taskset", "timeout"), 1),
}
# Programs that do so behind this word.
RUNNERS: Final = {
    **dict.fromkeys(
        ("conda", "hatch", "mamba", "micromamba", "pdm", "pipenv", "pixi", "poetry", "rye", "uv"), "run"
    ),
    "nsys": "profile",
}
# Options whose value may be the name of anything, such as a package, an environment or a file: of either kind.
_PREFIX_NAMES: Final = re.compile(r"-[Cou]|--(?:chdir|export|output|unset|user)")
_RUNNER_NAMES: Final = re.compile(
    r"-[CPenopw]|--(?:cwd|directory|env|environment|feature|name|output|prefix|project|python|root-prefix|with"
    r"|with-editable|with-requirements|(?:no-)?extra|(?:no-|only-)?group|(?:[a-z]+-)*package)"
)
# More words are looked at in no one command: options may have values or not, and both are tried.
_MOST_WORDS: Final = 64
_LOOKED_UP: Final = re.compile(
    r"\$\(\s*(?:which|command\s+-v)\s+([^\s()]+)\s*\)|`\s*(?:which|command\s+-v)\s+([^\s`]+)\s*`"
)
# What stands in the parentheses of arithmetic, which has some of its own.
_SUM: Final = reduce(lambda inner, _: rf"[^()]*+(?:\({inner}\)[^()]*+)*+", range(4), "[^()]*+")
_TOKEN: Final = re.compile(
    rf"""(?P<blank>[^\S\n]+|\#[^\n]*)
    | (?P<document>[0-9]*<<-?(?!<))
    | (?P<redirection>[0-9]*[<>]+[&|]?)
    | (?P<word>(?:\\.|'[^']*'|"(?:\\.|[^"\\])*"|\$\(\({_SUM}\)\)|\$(?!\()|[^\s;&|()<>`'"\\$])+)
    | (?P<inner>\$\(|`)
    | (?P<operator>\(\({_SUM}\)\)|[;&|()\n])""",
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
# A directory that a variable or a command names, such as "$(dirname "$0")/".
_DIRECTORY_OF: Final = re.compile(r"(?:\$\{?\w+\}?|\$\([^()]*\)|`[^`]*`)/+")
_MOST_FILES: Final = 32
_MOST_VARIABLES: Final = 200
_MOST_ROUNDS: Final = 4
_LONGEST_WORD: Final = 4096
_QUOTED: Final = re.compile(r"""'([^']*)'|"((?:\\.|[^"\\])*)"|\\(.)""", re.DOTALL)
_ESCAPED: Final = re.compile(r'\\([$`"\\\n])')


@dataclass(frozen=True, kw_only=True)
class Call:
    """A program that a command may run, as it is written, with its arguments.

    It may be none where that is `unsure`: an option's value, or the word behind a variable.
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
        """The module that Python runs, or the program that is its script, and its arguments; "" where it is neither."""
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
        return _runs(self.arguments) if self.variable or PYTHON.fullmatch(self.program) else ("", ())

    @property
    def script(self) -> str:
        """The file that a shell runs as a script, or that is run by its path; "" for a program that is neither."""
        if self.program in SOURCES:
            return next(iter(self.arguments), "")
        if self.program in SHELLS:
            return _script_file(self.arguments)
        known = self.program in (*PREFIXES, *RUNNERS) or PYTHON.fullmatch(self.program)
        return self.word if "/" in self.word and not self.unsure and not known else ""


@dataclass(frozen=True, kw_only=True)
class SimpleCommand:
    """One command of a shell: the programs that it may run, the first of them the likeliest.

    `place` is the file of the workspace that has it, "" for the job's own command. `file` is the script that it runs,
    `is_read` whether that is a file of the workspace, whose commands follow then. `is_python` says that the file is a
    Python script by its first line. `variables` are those that its script sets.
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


def simple_commands_of_words(
    words: Sequence[str], read: Read = lambda _: None, variables: Mapping[str, str] | None = None
) -> Iterator[SimpleCommand]:
    """The command with these words, and those of the scripts that it runs."""
    return _Walk(read, dict(variables or {})).commands("", [list(words)], "")


def simple_commands_of_line(
    line: str,
    args: Sequence[str] = (),
    read: Read = lambda _: None,
    variables: Mapping[str, str] | None = None,
) -> Iterator[SimpleCommand]:
    """The commands of a shell's line, whose last one has these arguments, too, and those of the scripts it runs."""
    return _Walk(read, dict(variables or {})).commands("", _commands_of(line, args), line)


@dataclass
class _Walk:
    """The way through a command and the scripts that it runs; no script is read twice."""

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
            variables = _assigned(commands, self.variables) if text else self.variables
            behind = []
            for raw in commands:
                words = _expanded(_split(raw), variables)
                if not words or words[0] == _ARRAY:
                    continue
                if words[0] == "cd" and len(words) == 2 and "$" not in words[1] and "`" not in words[1]:
                    self.directory = posixpath.join(self.directory, words[1])
                scripts: list[str] = []
                calls = list(_calls(words, scripts))
                # An option's value may look like a script; the likeliest has the word.
                found = ("", None) if scripts else self._file(place, calls)
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
                    behind.append((name, _commands_of(content, ()), content))
                for script in scripts:
                    # What a shell prints is no script that can be read.
                    if script not in self.seen and not script.lstrip().startswith(("$(", "`")):
                        self.seen.add(script)
                        behind.append((place, _commands_of(script, ()), script))
            to_do.extend(reversed(behind))

    def _file(self, place: str, calls: Sequence[Call]) -> tuple[str, str | None]:
        """The script that one of these runs, and its text."""
        first = ""
        for call in calls:
            if not (named := call.script):
                continue
            first = first or named
            for name in self._places(place, named):
                if name not in self.files and len(self.files) >= _MOST_FILES:
                    break
                self.files.add(name)
                if (content := self.read(name)) is not None:
                    return name, content
        return first, None

    def _places(self, place: str, name: str) -> Iterator[str]:
        """Where a script may be that is called so: a directory that only the shell knows may be its caller's."""
        name = _DIRECTORY_OF.sub("", name)
        if not name or "$" in name or "`" in name:
            return
        for directory in (self.directory, posixpath.dirname(place), ""):
            yield posixpath.normpath(posixpath.join(directory, name))


def takes_words(line: str) -> bool:
    """Whether a word behind a shell's line is one more of its last command, and neither in a comment nor its first."""
    last = next((each for each in _commands(f"{line} {_ONE_MORE}") if _ONE_MORE in each), [])
    return len(last) > 1 and last[0] not in _CLOSING


def _calls(words: Sequence[str], scripts: list[str]) -> Iterator[Call]:
    """The programs that a simple command may run, and into `scripts` what its shells do."""
    words = words[:_MOST_WORDS]
    # Where a program may be, and whether that is unsure.
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
            if text := _script(rest) if program in SHELLS else rest[0]:
                scripts.append(text)
        elif program in RUNNERS:
            runs = [each for each in _behind(words, place + 1) if words[each] == RUNNERS[program]]
            for run in runs:
                yield Call(word=program, arguments=words[run + 1 :], unsure=unsure)
                for each in _behind(words, run + 1):
                    places.append((each, unsure or bool(_RUNNER_NAMES.fullmatch(words[each - 1]))))
        elif program in PREFIXES and not (program == "command" and rest[:1] in (["-v"], ["-V"])):
            for each in _behind(words, place + 1):
                named = bool(_PREFIX_NAMES.fullmatch(words[each - 1]))
                places.append((each + PREFIXES[program], unsure or named))
        elif call.variable:
            places.append((place + 1, True))


def _behind(words: Sequence[str], place: int) -> list[int]:
    """Where the first word behind options and assignments may be: an option's value may be none."""
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


def _runs(arguments: Sequence[str]) -> tuple[str, Sequence[str]]:
    """The module or the script that Python runs with these arguments, and what those are given.

    A script is a program only among programs: `recipes/deepspeed` is the user's.
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


def _script(arguments: Sequence[str]) -> str:
    """What a shell with these arguments has behind `-c`, empty without it."""
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
    """The file that a shell with these arguments runs, empty where it runs none."""
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
    """Whether a program's text says in its first line that Python runs it."""
    first = text.partition("\n")[0]
    if not first.startswith("#!"):
        return False
    words = [each for each in first[2:].split() if not each.startswith("-")]
    programs = [each.rpartition("/")[2] for each in words]
    program = next((each for each in programs if each != "env" and "=" not in each), "")
    return bool(PYTHON.fullmatch(program)) or program == "uv"


def _assigned(commands: Sequence[Sequence[str]], given: Mapping[str, str]) -> dict[str, str]:
    """The variables of a script that have one value wherever they are set, and those that it is `given`."""
    found: dict[str, str] = {}
    unknown = set[str]()
    for at, words in enumerate(commands):
        of_shell = words[1:] if words[:1] in _DECLARATIONS else words
        for word in of_shell[:_MOST_WORDS]:
            assignment = _SET.fullmatch(word)
            if assignment is None:
                if of_shell is words:
                    break
                continue
            name, adds, value = assignment.groups()
            following = commands[at + 1] if at + 1 < len(commands) else ()
            if not value and following[:1] == [_ARRAY]:
                value = " ".join(each for each in following if each != _ARRAY)
            if adds or len(found) >= _MOST_VARIABLES or found.get(name, value) != value:
                unknown.add(name)
            found[name] = value
        if words[:1] in (["read"], ["for"], ["select"], ["shift"]):
            unknown.update(words[1:])
    return {**given, **{name: value for name, value in found.items() if name not in unknown}}


def _split(words: list[str]) -> list[str]:
    """The words where `env -S` takes several of them out of one."""
    at = next((at for at, word in enumerate(words[:_MOST_WORDS]) if word in ("-S", "--split-string")), 0)
    if not at or at + 1 >= len(words) or not any(each.rpartition("/")[2] == "env" for each in words[:at]):
        return words
    return [*words[:at], *words[at + 1].split(), *words[at + 2 :]]


def _expanded(words: Sequence[str], variables: Mapping[str, str]) -> list[str]:
    """The words with the values of the variables that are known, split as a shell splits them."""
    now = list(words[:_MOST_WORDS])
    for _ in range(_MOST_ROUNDS):
        if not any("$" in word for word in now):
            break
        new: list[str] = []
        for word in now[:_MOST_WORDS]:
            value = _REFERENCE.sub(lambda one: _value(one, variables), word)[:_LONGEST_WORD]
            new.extend(value.split() if value != word and _REFERENCE.fullmatch(word) else [value])
        if new == now:
            break
        now = new
    return now


def _value(found: re.Match[str], variables: Mapping[str, str]) -> str:
    """The value of a variable, as it is written where it is not known."""
    name, default = found[1] or found[2], found[3]
    if name in variables:
        return variables[name]
    return found[0] if default is None else default


def _commands_of(line: str, args: Sequence[str]) -> list[list[str]]:
    """The simple commands of a line whose last one has these arguments, too; what is looked up is a program."""
    found = _LOOKED_UP.sub(lambda one: f"/bin/{one[1] or one[2]}", line)
    return _commands(" ".join((found, *map(shlex.quote, args))), documents=True)


def _commands(line: str, *, documents: bool = False) -> list[list[str]]:
    """The simple commands of a shell's line, without redirections, as far as it can be read.

    Here-documents are left out, but with `documents` for those that are the script of a shell.
    """
    now: list[str] = []
    commands = [now]
    # The commands that others stand in, each with what ends those.
    around: list[tuple[str, list[str]]] = []
    # The commands whose here-documents begin with the next line, each with its operator and its last line.
    pending: list[tuple[list[str], str, str]] = []
    # The last lines of those that are read as scripts.
    ends: list[list[str]] = []
    # The redirection that the next word is of.
    target = ""
    place, adjoins = 0, False
    while place < len(line) and (token := _TOKEN.match(line, place)):
        place, kind, text = token.end(), token.lastgroup, token[0]
        adjoined, adjoins = adjoins, kind == "word"
        if kind == "word":
            if adjoined and now:
                now[-1] += _unquoted(text)
            elif not text.replace("\\\n", ""):
                continue
            elif not target:
                now.append(_unquoted(text))
            elif "<<" in target:
                pending.append((now, target, _unquoted(text)))
            target = ""
        elif kind == "document":
            target = text
        elif kind == "redirection":
            target = ">"
        elif kind == "operator" and (_tests(now) or (text == "\n" and now[:1] == [_ARRAY])):
            continue
        elif around and text == around[-1][0]:
            now, target, adjoins = around.pop()[1], "", True
        elif kind == "inner":
            if adjoined and now and not target:
                now[-1] += "$()"  # of the word, whose value nobody knows
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
                    if documents and _reads(words):
                        ends.append([end])
                    else:
                        place = _behind_document(line, place, operator, end)
                pending = []
            now, target = [_ARRAY] if array else [], ""
            commands.append(now)
    return [each for each in commands if each not in ends] if ends else commands


def _tests(words: Sequence[str]) -> bool:
    """Whether these are the words of a `[[` that goes on: operators in it are its own."""
    first = next((each for each in words[:_MOST_WORDS] if each not in KEYWORDS), "")
    return first == "[[" and words[-1] != "]]"


def _reads(words: Sequence[str]) -> bool:
    """Whether a command is a shell without a script, which reads one."""
    return (
        bool(words)
        and words[0].rpartition("/")[2] in SHELLS
        and all(each.startswith("-") for each in words[1:_MOST_WORDS])
    )


def _behind_document(line: str, place: int, operator: str, end: str) -> int:
    """Where a here-document is over that begins at this place."""
    while place < len(line):
        stop = line.find("\n", place)
        stop = len(line) if stop < 0 else stop
        read = line[place:stop]
        place = stop + 1
        if (read.lstrip("\t") if operator.endswith("-") else read) == end:
            break
    return place


def _unquoted(word: str) -> str:
    """The word as a shell hands it on: without quotes, and without the ends of lines that go on."""

    def bare(found: re.Match[str]) -> str:
        if found[1] is not None:
            return found[1]
        if found[2] is not None:
            return _ESCAPED.sub(lambda one: one[1].strip("\n"), found[2])
        return found[3].strip("\n")

    return _QUOTED.sub(bare, word)
