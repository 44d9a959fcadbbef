"""Whether a command starts torchrun itself, so that none is put around it. Pure.

Only a program that would be run counts: in a path or a message `torchrun` says nothing. Scripts are not read.
https://pubs.opengroup.org/onlinepubs/9799919799/utilities/V3_chap02.html has the words of a shell.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from typing import Final

_LAUNCHERS: Final = ("torch.distributed.run", "torch.distributed.launch")
# Of a runner: Python's own with a module.
_MODULE: Final = ("-m", "--module")
_PYTHON: Final = re.compile(r"python[0-9.]*")
# Flags, and behind them one that takes what follows.
_PYTHON_OPTION: Final = re.compile(r"-([bBdEiIOPqRsSuvVx]*)(?:([cmWX])(.*))?", re.DOTALL)
_SHELLS: Final = ("sh", "bash", "dash", "ash", "ksh", "zsh")
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=.*", re.DOTALL)
_KEYWORDS: Final = ("!", "{", "if", "then", "elif", "else", "while", "until", "do")
# Behind these only an operator may follow.
_CLOSING: Final = ("}", "fi", "done", "esac")
# Words that no line has: a command has no zero. An array's words stand behind the second one.
_ONE_MORE: Final = "\0"
_ARRAY: Final = "\0("
# Programs that run a command, and how many words other than options they have before it.
_PREFIXES: Final = {
    **dict.fromkeys(("catchsegv", "command", "dumb-init", "env", "eval", "exec", "ionice", "ncu", "nice"), 0),
    **dict.fromkeys(
        ("nohup", "numactl", "setsid", "stdbuf", "strace", "sudo", "time", "tini", "unbuffer", "xvfb-run"), 0
    ),
    **dict.fromkeys(("chrt", "flock", "gosu", "taskset", "timeout"), 1),
}
# Programs that do so behind this word.
_RUNNERS: Final = {
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
        if self.program in _RUNNERS:
            options = self.arguments
            return next(
                (
                    (name, options[at + 2 :])
                    for at, (each, name) in enumerate(pairwise(options))
                    if each in _MODULE
                ),
                ("", ()),
            )
        return _runs(self.arguments) if self.variable or _PYTHON.fullmatch(self.program) else ("", ())


def in_words(words: Sequence[str]) -> bool:
    """Whether a program with these arguments is torchrun, or runs it."""
    return _starts(words)


def in_line(line: str, args: Sequence[str] = ()) -> bool:
    """Whether a shell runs torchrun in this line, whose last command has these arguments, too."""
    return any(map(_starts, _commands_of(line, args)))


def calls_of_line(line: str, args: Sequence[str] = ()) -> Iterator[Call]:
    """The programs that a shell may run in this line, as far as it can be read, and the scripts in it."""
    for words in _commands_of(line, args):
        yield from calls_of_words(words)


def calls_of_words(words: Sequence[str]) -> Iterator[Call]:
    """This program with its arguments, and those that it may run."""
    scripts = set[str]()
    yield from _calls(words, scripts)
    for script in scripts:
        yield from calls_of_line(script)


def takes_words(line: str) -> bool:
    """Whether a word behind a shell's line is one more of its last command, and neither in a comment nor its first."""
    last = next((each for each in _commands(f"{line} {_ONE_MORE}") if _ONE_MORE in each), [])
    return len(last) > 1 and last[0] not in _CLOSING


def _starts(words: Sequence[str]) -> bool:
    """Whether a simple command is torchrun or runs it."""
    scripts = set[str]()
    for call in _calls(words, scripts):
        if call.program == "torchrun" or call.python[0] in ("torchrun", *_LAUNCHERS):
            return True
    return any(map(in_line, scripts))


def _calls(words: Sequence[str], scripts: set[str]) -> Iterator[Call]:
    """The programs that a simple command may run, and into `scripts` what its shells do."""
    words = words[:_MOST_WORDS]
    # Where a program may be, and whether that is unsure.
    places, seen = [(0, False)], set[int]()
    while places:
        place, unsure = places.pop()
        while place < len(words) and (words[place] in _KEYWORDS or _ASSIGNMENT.fullmatch(words[place])):
            place += 1
        if place >= len(words) or place in seen:
            continue
        seen.add(place)
        call = Call(word=words[place], arguments=words[place + 1 :], unsure=unsure)
        program, rest = call.program, call.arguments
        if program not in _RUNNERS:
            yield call
        if program in _SHELLS or (program == "eval" and len(rest) == 1):
            scripts.add(_script(rest) if program in _SHELLS else rest[0])
        elif program in _RUNNERS:
            runs = [each for each in _behind(words, place + 1) if words[each] == _RUNNERS[program]]
            for run in runs:
                yield Call(word=program, arguments=words[run + 1 :], unsure=unsure)
                for each in _behind(words, run + 1):
                    places.append((each, unsure or bool(_RUNNER_NAMES.fullmatch(words[each - 1]))))
        elif program in _PREFIXES and not (program == "command" and rest[:1] in (["-v"], ["-V"])):
            for each in _behind(words, place + 1):
                named = bool(_PREFIX_NAMES.fullmatch(words[each - 1]))
                places.append((each + _PREFIXES[program], unsure or named))
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
            if adjoined or target:
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
            elif text == "\n":
                for words, operator, end in pending:
                    if not (documents and _reads(words)):
                        place = _behind_document(line, place, operator, end)
                pending = []
            now, target = [_ARRAY] if array else [], ""
            commands.append(now)
    return commands


def _tests(words: Sequence[str]) -> bool:
    """Whether these are the words of a `[[` that goes on: operators in it are its own."""
    first = next((each for each in words[:_MOST_WORDS] if each not in _KEYWORDS), "")
    return first == "[[" and words[-1] != "]]"


def _reads(words: Sequence[str]) -> bool:
    """Whether a command is a shell without a script, which reads one."""
    return (
        bool(words)
        and words[0].rpartition("/")[2] in _SHELLS
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
