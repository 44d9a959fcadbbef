"""The table of commands of `python -m local`, and their parser. Entry points: `COMMANDS`, `parse()`.

`trainyard` has STATUS and LOGS, too. This module imports little, because shell completion runs it.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

from local.home import user_program

PROGRAM: Final = "python -m local"
NOT_RUNNING: Final = 3
# argparse exits with it, too.
EXIT_USAGE: Final = 2


class Argument:
    """An argument of a command: what `argparse.ArgumentParser.add_argument` takes."""

    def __init__(self, *names: str, **settings: Any) -> None:
        self.names = names
        self.settings = settings


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command.

    Attributes:
        name: Its name; a command of `trainyard` is a make target, too.
        summary: What it does, in a few words.
        details: What the summary does not say, with exit codes other than 0 and 1.
        arguments: Its arguments other than `--help`.
    """

    name: str
    summary: str
    details: str = ""
    arguments: tuple[Argument, ...] = ()

    @property
    def description(self) -> str:
        """The summary as a sentence, and the details."""
        return f"{self.summary[0].upper()}{self.summary[1:]}. {self.details}".strip()


class _Formatter(argparse.HelpFormatter):
    """Help that begins on the line of its command or option."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28)
        self._action_max_length = 16  # argparse forgets the indentation of commands


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, formatter_class=_Formatter)

    def error(self, message: str) -> NoReturn:
        if user_program() == "make" and "arguments are required" in message:
            message = re.sub(r"--([a-z-]+)", lambda found: found[1].upper().replace("-", "_"), message)
        print(f"error: {message}. `{self.prog} --help` explains the options", file=sys.stderr)
        sys.exit(EXIT_USAGE)


def add_commands(parser: argparse.ArgumentParser, commands: Iterable[Command]) -> None:
    """Add a table of commands to a parser."""
    parsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, title="commands")
    for command in commands:
        one = parsers.add_parser(command.name, help=command.summary, description=command.description)
        for argument in command.arguments:
            one.add_argument(*argument.names, **argument.settings)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number of seconds from 0 to 3600")
    return value


def _directory(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("'' must be a directory")
    return Path(text)


STATUS: Final = Command(
    name="status",
    summary="show what the local cloud runs",
    details=f"Exit code {NOT_RUNNING} if it is not running.",
    arguments=(Argument("--json", action="store_true", help="print JSON"),),
)
LOGS: Final = Command(
    name="logs",
    summary="show the logs of the local cloud's processes",
    arguments=(
        Argument("-f", "--follow", action="store_true", help="continue as lines come"),
        Argument("process", nargs="?", metavar="PROCESS", help="one process, such as aws (default: all)"),
    ),
)
HOME: Final = Argument(
    "--home", type=_directory, help="state directory (default: $TRAINYARD_HOME, else .local)"
)
# Their words are those of another program.
EXEC, KUBECTL = "exec", "kubectl"
COMMANDS: Final = (
    Command(
        name="up",
        summary="start the local cloud unless it is running",
        arguments=(
            Argument(
                "--boot-seconds",
                type=_seconds,
                metavar="N",
                help="a node joins N s after the launch of its instance (default: 2)",
            ),
            Argument(
                "--gpu-delay-seconds",
                type=_seconds,
                metavar="N",
                help="its devices show N s later (default: 1)",
            ),
        ),
    ),
    Command(name="down", summary="stop the local cloud, and wait until every process is gone"),
    Command(name="reset", summary="stop the local cloud, and delete all of its state but the built tools"),
    STATUS,
    LOGS,
    Command(name="env", summary="print the variables to talk to the local cloud, for `eval`"),
    Command(
        name="tools",
        summary="download or build missing tools, and list where every program is",
        arguments=(
            Argument("--quiet", action="store_true", help="print only what is downloaded or built"),
            Argument(
                "names",
                nargs="*",
                metavar="TOOL",
                help="one tool or more (default: all that every stack needs)",
            ),
        ),
    ),
    Command(
        name=EXEC,
        summary="run a command with these variables, where the local cloud's addresses are reachable",
        arguments=(
            Argument("words", nargs=argparse.REMAINDER, metavar="-- COMMAND ...", help="the command"),
        ),
    ),
    Command(
        name=KUBECTL,
        summary="run kubectl as the administrator of the local cloud's clusters",
        arguments=(Argument("words", nargs=argparse.REMAINDER, metavar="...", help="arguments of kubectl"),),
    ),
)


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Parse the command line. All after `exec` and `kubectl` is in `words`, as it was typed.

    `exec --help` is the help of `exec`; `exec -- COMMAND --help` and `kubectl --help` are those of the other program.
    """
    parser = Parser(prog=PROGRAM, description="The local cloud. `up` starts it, `down` stops it.")
    parser.add_argument(*HOME.names, **HOME.settings)
    add_commands(parser, COMMANDS)
    position = 2 if words[:1] == ["--home"] else int("".join(words[:1]).startswith("--home="))
    command, following = words[position : position + 1], words[position + 1 : position + 2]
    is_own_help = command == [EXEC] and following in (["-h"], ["--help"])
    count = position + 1 if command in ([EXEC], [KUBECTL]) and not is_own_help else len(words)
    arguments = parser.parse_args(words[:count])
    if count < len(words):
        arguments.words = words[count:]
    return arguments
