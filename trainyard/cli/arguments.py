"""The table of commands of `trainyard`, and their parser. Entry points: `COMMANDS`, `parser()`, `parse()`.

This module imports little, because shell completion runs it at each press of the Tab key.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from trainyard.cli.make_variables import keep_data

PROGRAM: Final = "trainyard"
SHELLS: Final = ("bash", "zsh", "fish")
LOCAL, AWS = "local", "aws"
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
        name: Its name, which the make target has, too.
        summary: What it does, in a few words.
        description: The details, with exit codes other than 0 and 1.
        arguments: Its arguments other than `--help`.
    """

    name: str
    summary: str
    description: str
    arguments: tuple[Argument, ...] = ()


_STACK = Argument(
    "--stack",
    default=LOCAL,
    help="the stack: its file is Pulumi.STACK.yaml, or examples/stacks/STACK.yaml (default: local)",
)
_CLOUD = Argument(
    "--cloud",
    choices=(LOCAL, AWS),
    help="where the stack is: on this machine (local) or on AWS (default: local for stack local, else aws)",
)
_VERBOSE = Argument(
    "-v",
    "--verbose",
    action="store_true",
    help="print every line, as the variable VERBOSE=1 does (default: the important ones)",
)
_POOL = Argument("--pool", required=True, help="the pool, by its name in the stack file")
WHERE: Final = (_STACK, _CLOUD)

COMMANDS: Final = (
    Command(
        name="up",
        summary="deploy a stack, and follow its training run to the end",
        description="Deploy a stack, and follow its training run to the end. On AWS: check the account first, show the "
        "plan, and ask. On this machine: build what is missing, and start the local cloud. Exit code 1 if the "
        "deployment or the run fails, 130 after Ctrl-C. The same command continues after an interruption.",
        arguments=(
            *WHERE,
            Argument(
                "--no-preflight",
                action="store_true",
                help="AWS: do not check the account first, as the variable PREFLIGHT=no",
            ),
            _VERBOSE,
        ),
    ),
    Command(
        name="down",
        summary="destroy a stack, and stop the local cloud",
        description="Destroy a stack. The local cloud stops, too, unless another stack is up on it.",
        arguments=(
            *WHERE,
            Argument(
                "--keep-data",
                type=keep_data,
                nargs="?",
                const=True,
                default=False,
                metavar="YES_OR_NO",
                help="keep the data that trainyard:protectData protects; without it, such a stack is refused",
            ),
            _VERBOSE,
        ),
    ),
    Command(
        name="delete-data",
        summary="delete for good the data that an earlier `down` kept",
        description="Delete for good the data that an earlier `down --keep-data` kept.",
        arguments=(
            *WHERE,
            Argument("--confirm", default="", metavar="STACK", help="the stack's name again"),
            _VERBOSE,
        ),
    ),
    Command(
        name="preview",
        summary="show the plan of `up`",
        description="Show the plan of `up` against the stack's state. Without a state or an account: all resources of "
        "a first `up`.",
        arguments=WHERE,
    ),
    Command(
        name="drift",
        summary="list what was changed or deleted outside of Pulumi",
        description="List what was changed or deleted outside of Pulumi. Changes nothing. Exit code 3 if there is "
        "something, 1 if the resources can't be read.",
        arguments=WHERE,
    ),
    Command(
        name="preflight",
        summary="check what the account lacks for a stack",
        description="Check what the account lacks for a stack: quotas, capacity, subnets, permissions. Changes "
        "nothing. Exit code 1 if something is missing, 3 if AWS can't be reached with your credentials.",
        arguments=WHERE,
    ),
    Command(
        name="verify-clean",
        summary="list what a destroyed stack left in the account",
        description="List what a destroyed stack left in the account. Changes nothing. Exit code 1 if there is "
        "something, 3 if AWS can't be reached with your credentials.",
        arguments=WHERE,
    ),
    Command(
        name="submit",
        summary="start another run on a stack that is up, and follow it",
        description="Start another run on a stack that is up, and follow it to the end. Exit code 1 if the run fails.",
        arguments=(
            *WHERE,
            Argument("--min", required=True, metavar="NODES", help="the run needs at least this many nodes"),
            Argument("--max", required=True, metavar="NODES", help="the run takes at most this many nodes"),
            _VERBOSE,
        ),
    ),
    Command(
        name="check-nodes",
        summary="check each node of a pool before a run",
        description="Check each node of a pool before a run. Launches no node. Exit code 1 if a node is unfit, or none "
        "was checked.",
        arguments=(*WHERE, _POOL),
    ),
    Command(
        name="check-fabric",
        summary="measure the network between nodes of a pool",
        description="Measure the network between nodes of a pool that are up. Launches no node.",
        arguments=(*WHERE, _POOL, Argument("--nodes", required=True, help="how many nodes take part")),
    ),
    Command(
        name="status",
        summary="show what the local cloud runs",
        description="Show what the local cloud runs. Exit code 3 if it is not running.",
        arguments=(Argument("--json", action="store_true", help="print JSON"),),
    ),
    Command(
        name="logs",
        summary="show the logs of the local cloud's processes",
        description="Show the logs of the local cloud's processes.",
        arguments=(
            Argument("-f", "--follow", action="store_true", help="continue as lines come"),
            Argument("process", nargs="?", metavar="PROCESS", help="one process, such as aws (default: all)"),
        ),
    ),
    Command(
        name="completion",
        summary="print a script that completes commands, options and stacks in your shell",
        description="Print the completion script of a shell. In bash: `source <(trainyard completion bash)`; in zsh, "
        "after compinit: `source <(trainyard completion zsh)`; in fish: `trainyard completion fish | source`. Put the "
        "line into ~/.bashrc, ~/.zshrc or ~/.config/fish/config.fish.",
        arguments=(Argument("shell", choices=SHELLS, help="the shell: bash, zsh or fish"),),
    ),
)


class _Formatter(argparse.HelpFormatter):
    """Help that begins on the line of its command or option."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28)
        self._action_max_length = 16  # argparse forgets the indentation of commands


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, formatter_class=_Formatter)

    def error(self, message: str) -> NoReturn:
        print(f"error: {message}. `{self.prog} --help` explains the options", file=sys.stderr)
        sys.exit(EXIT_USAGE)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    result = _Parser(
        prog=PROGRAM,
        description="Deploy stacks for distributed PyTorch training on AWS EKS, or on this machine (the local cloud).",
        epilog=f"`{PROGRAM} COMMAND --help` explains the options of a command.",
    )
    commands = result.add_subparsers(dest="command", metavar="COMMAND", required=True, title="commands")
    for command in COMMANDS:
        one = commands.add_parser(command.name, help=command.summary, description=command.description)
        for argument in command.arguments:
            one.add_argument(*argument.names, **argument.settings)
    return result


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Parse the command line. The result always has `command`, and `cloud` if the command takes a stack.

    Raises:
        SystemExit: It is wrong; one line says why. Or it asks for help.
    """
    if not words:
        parser().print_help(sys.stderr)
        sys.exit(EXIT_USAGE)
    names = [command.name for command in COMMANDS]
    if not words[0].startswith("-") and words[0] not in names:
        near = difflib.get_close_matches(words[0], names, n=1)
        meant = f" Did you mean {near[0]}?" if near else ""
        parser().error(f"there is no command {words[0]!r}.{meant} The commands are {', '.join(names)}")
    arguments = parser().parse_args(words)
    if hasattr(arguments, "stack"):
        arguments.cloud = arguments.cloud or (LOCAL if arguments.stack == LOCAL else AWS)
    return arguments
