"""Whether a command starts torchrun itself, so that none is put around it. Pure.

Only a program that would be run counts: in a path or a message `torchrun` says nothing. Scripts are not read.
https://pubs.opengroup.org/onlinepubs/9799919799/utilities/V3_chap02.html has the words of a shell.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
# A word that no line has: a command has no zero.
_ONE_MORE: Final = "\0"
# Programs that run a command, and how many words other than options they have before it.
_PREFIXES: Final = {
    **dict.fromkeys(("catchsegv", "command", "dumb-init", "env", "eval", "exec", "ionice", "ncu", "nice"), 0),
    **dict.fromkeys(
        ("nohup", "numactl", "setsid", "stdbuf", "strace", "sudo", "time", "tini", "unbuffer"), 0
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
# More words are looked at in no one command: options may have values or not, and both are tried.
_MOST_WORDS: Final = 64
_LOOKED_UP: Final = re.compile(
    r"\$\(\s*(?:which|command\s+-v)\s+([^\s()]+)\s*\)|`\s*(?:which|command\s+-v)\s+([^\s`]+)\s*`"
)
_TOKEN: Final = re.compile(
    r"""(?P<blank>[^\S\n]+|\#[^\n]*)
    | (?P<redirection>[0-9]*[<>]+[&|]?)
    | (?P<inner>\$\(|`)
    | (?P<word>(?:\\.|'[^']*'|"(?:\\.|[^"\\])*"|\$(?!\()|[^\s;&|()<>`'"\\$])+)
    | (?P<operator>[;&|()\n])""",
    re.DOTALL | re.VERBOSE,
)
_QUOTED: Final = re.compile(r"""'([^']*)'|"((?:\\.|[^"\\])*)"|\\(.)""", re.DOTALL)
_ESCAPED: Final = re.compile(r'\\([$`"\\\n])')
# Of a line that can't be read.
_ANYWHERE: Final = re.compile(
    r"(?:^|[\s;&|(/])(?:torchrun|python[0-9.]*\s+-m\s+torch\.distributed\.(?:run|launch))(?:\s|$)"
)


@dataclass(frozen=True, kw_only=True)
class Call:
    """A program that a command may run, as it is written, with its arguments; `before` is the word in front of it."""

    word: str
    arguments: Sequence[str]
    before: str

    @property
    def program(self) -> str:
        return self.word.rpartition("/")[2]

    @property
    def variable(self) -> bool:
        return self.word.startswith("$")

    @property
    def python(self) -> tuple[str, Sequence[str]]:
        """The module that Python runs, or the name of the script, and its arguments; "" where it runs neither."""
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
    return bool(_starts(words))


def in_line(line: str, args: Sequence[str] = ()) -> bool:
    """Whether a shell runs torchrun in this line, whose last command has these arguments, too."""
    commands = _commands_of(line, args)
    found = [None] if commands is None else [_starts(each) for each in commands]
    return True in found or (None in found and bool(_ANYWHERE.search(line)))


def calls_of_line(line: str, args: Sequence[str] = ()) -> Iterator[Call]:
    """The programs that a shell may run in this line, as far as it can be read, and the scripts in it."""
    for words in _commands_of(line, args) or []:
        yield from calls_of_words(words)


def calls_of_words(words: Sequence[str]) -> Iterator[Call]:
    """This program with its arguments, and those that it may run."""
    scripts = set[str]()
    yield from _calls(words, scripts)
    for script in scripts:
        yield from calls_of_line(script)


def takes_words(line: str) -> bool:
    """Whether a word behind a shell's line is one more of its last command, and neither in a comment nor its first."""
    commands = _commands(f"{line} {_ONE_MORE}") or []
    last = next((each for each in commands if _ONE_MORE in each), [])
    return len(last) > 1 and last[0] not in _CLOSING


def _starts(words: Sequence[str]) -> bool | None:
    """Whether a simple command is torchrun or runs it; None where a variable says what it is."""
    scripts = set[str]()
    for call in _calls(words, scripts):
        if call.program == "torchrun" or call.python[0] in ("torchrun", *_LAUNCHERS):
            return True
        if call.variable:
            return None
    return any(map(in_line, scripts))


def _calls(words: Sequence[str], scripts: set[str]) -> Iterator[Call]:
    """The programs that a simple command may run, and into `scripts` what its shells do."""
    words = words[:_MOST_WORDS]
    places, seen = [0], set[int]()
    while places:
        place = places.pop()
        while place < len(words) and (words[place] in _KEYWORDS or _ASSIGNMENT.fullmatch(words[place])):
            place += 1
        if place >= len(words) or place in seen:
            continue
        seen.add(place)
        call = Call(word=words[place], arguments=words[place + 1 :], before=words[place - 1] if place else "")
        program, rest = call.program, call.arguments
        if program not in _RUNNERS:
            yield call
        if program in _SHELLS or (program == "eval" and len(rest) == 1):
            scripts.add(_script(rest) if program in _SHELLS else rest[0])
        elif program in _RUNNERS:
            runs = [each for each in _behind(words, place + 1) if words[each] == _RUNNERS[program]]
            for run in runs:
                yield Call(word=program, arguments=words[run + 1 :], before=call.before)
            places += [each for run in runs for each in _behind(words, run + 1)]
        elif program in _PREFIXES and not (program == "command" and rest[:1] in (["-v"], ["-V"])):
            places += [each + _PREFIXES[program] for each in _behind(words, place + 1)]


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
    """The module or the script that Python runs with these arguments, and what those are given."""
    rest = iter(arguments)
    for word in rest:
        option = _PYTHON_OPTION.fullmatch(word)
        if word == "--check-hash-based-pycs":
            next(rest, "")
        elif not option:
            return word.rpartition("/")[2], tuple(rest)
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


def _commands_of(line: str, args: Sequence[str]) -> list[list[str]] | None:
    """The simple commands of a line whose last one has these arguments, too; what is looked up is its name."""
    return _commands(_LOOKED_UP.sub(lambda found: found[1] or found[2], f"{line} {shlex.join(args)}"))


def _commands(line: str) -> list[list[str]] | None:
    """The simple commands of a shell's line, without redirections; None where it is more than that."""
    now: list[str] = []
    commands = [now]
    # The commands that others stand in, each with what ends those.
    around: list[tuple[str, list[str]]] = []
    place, adjoins, target = 0, False, False
    while place < len(line):
        token = _TOKEN.match(line, place)
        if token is None or (token["redirection"] and token[0].count("<") == 2):  # a document follows
            return None
        place, kind, text = token.end(), token.lastgroup, token[0]
        adjoined, adjoins = adjoins, kind == "word"
        if kind == "word":
            if adjoined and now:
                now[-1] += _unquoted(text)
            elif not target and text.replace("\\\n", ""):
                now.append(_unquoted(text))
            target = False
        elif kind == "redirection":
            target = True
        elif around and text == around[-1][0]:
            now, target, adjoins = around.pop()[1], False, True
        elif kind == "inner":
            if adjoined or target:
                target = False
            else:
                now.append("$")
            around.append(("`" if text == "`" else ")", now))
            now = []
            commands.append(now)
        elif kind == "operator":
            if text == "(":
                commands.append([])
                around.append((")", commands[-1]))
            now, target = [], False
            commands.append(now)
    return commands


def _unquoted(word: str) -> str:
    """The word as a shell hands it on: without quotes, and without the ends of lines that go on."""

    def bare(found: re.Match[str]) -> str:
        if found[1] is not None:
            return found[1]
        if found[2] is not None:
            return _ESCAPED.sub(lambda one: one[1].strip("\n"), found[2])
        return found[3].strip("\n")

    return _QUOTED.sub(bare, word)
