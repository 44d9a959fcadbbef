"""The table of commands of `trainyard`, and their parser. Entry points: `COMMANDS`, `parser()`, `parse()`.

This module imports little, because shell completion runs it at each press of the Tab key.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Sequence
from typing import Final

from local.arguments import EXIT_USAGE, LOGS, STATUS, Argument, Command, Parser, add_commands
from trainyard.cli.make_variables import keep_data

PROGRAM: Final = "trainyard"
SHELLS: Final = ("bash", "zsh", "fish")
LOCAL, AWS = "local", "aws"


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
        details="On AWS: check the account first, show the plan, and ask. On this machine: build what is missing, and "
        "start the local cloud. Exit code 1 if the deployment or the run fails, 130 after Ctrl-C. The same command "
        "continues after an interruption.",
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
        summary="destroy a stack, and stop the local cloud unless another stack is up on it",
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
        summary="delete for good the data that an earlier `down --keep-data` kept",
        arguments=(
            *WHERE,
            Argument("--confirm", default="", metavar="STACK", help="the stack's name again"),
            _VERBOSE,
        ),
    ),
    Command(
        name="preview",
        summary="show the plan of `up` against the stack's state",
        details="Without a state or an account: all resources of a first `up`.",
        arguments=WHERE,
    ),
    Command(
        name="drift",
        summary="list what was changed or deleted outside of Pulumi",
        details="Changes nothing. Exit code 3 if there is something, 1 if the resources can't be read.",
        arguments=WHERE,
    ),
    Command(
        name="preflight",
        summary="check what the account lacks for a stack: quotas, capacity, subnets, permissions",
        details="Changes nothing. Exit code 1 if something is missing, 3 if AWS can't be reached with your "
        "credentials.",
        arguments=WHERE,
    ),
    Command(
        name="verify-clean",
        summary="list what a destroyed stack left in the account",
        details="Changes nothing. Exit code 1 if there is something, 3 if AWS can't be reached with your credentials.",
        arguments=WHERE,
    ),
    Command(
        name="submit",
        summary="start another run on a stack that is up, and follow it to the end",
        details="Exit code 1 if the run fails.",
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
        details="Launches no node. Exit code 1 if a node is unfit, or none was checked.",
        arguments=(*WHERE, _POOL),
    ),
    Command(
        name="check-fabric",
        summary="measure the network between nodes of a pool that are up",
        details="Launches no node.",
        arguments=(*WHERE, _POOL, Argument("--nodes", required=True, help="how many nodes take part")),
    ),
    STATUS,
    LOGS,
    Command(
        name="completion",
        summary="print a script that completes commands, options and stacks in your shell",
        details="In bash: `source <(trainyard completion bash)`; in zsh, after compinit: `source <(trainyard "
        "completion zsh)`; in fish: `trainyard completion fish | source`. Put the line into ~/.bashrc, ~/.zshrc or "
        "~/.config/fish/config.fish.",
        arguments=(Argument("shell", choices=SHELLS, help="the shell: bash, zsh or fish"),),
    ),
)


def parser() -> Parser:
    """Return the parser of the command line."""
    result = Parser(
        prog=PROGRAM,
        description="Deploy stacks for distributed PyTorch training on AWS EKS, or on this machine (the local cloud).",
        epilog=f"`{PROGRAM} COMMAND --help` explains the options of a command.",
    )
    add_commands(result, COMMANDS)
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
