"""Run the Makefile's commands on stacks: `python -m trainyard.cli COMMAND`."""

from __future__ import annotations

import argparse
import errno
import os
import signal
import sys
from pathlib import Path

from local.guard import ForeignCloudError, NotRunningError
from local.home import Home
from local.tools import ToolError
from trainyard.cli.commands import (
    DeployError,
    check_fabric,
    check_nodes,
    delete_data,
    down,
    drift,
    preview,
    submit,
    up,
)
from trainyard.cli.engine import EngineError
from trainyard.cli.engine_run import Interrupted
from trainyard.cli.existing_resources import GivenError
from trainyard.cli.follow import FollowError
from trainyard.cli.make_variables import AnswerError, is_yes, keep_data, nodes
from trainyard.cli.model import ModelError
from trainyard.cli.node_checks import CheckError
from trainyard.cli.output import OUTPUT
from trainyard.cli.pool_drift import PoolDeletingError
from trainyard.cli.program import RefusedError
from trainyard.cli.protected_data import ProtectedDataError
from trainyard.cli.runs import RunError
from trainyard.cli.stack_file import check_name
from trainyard.k8s.client import ApiUnavailable
from trainyard.stack_files import StackFileError

# The modules that examine an account, by command and cloud. Each has its own messages and exit codes.
ACCOUNT_CHECKS = {
    ("preflight", "aws"): ("trainyard.preflight",),
    ("preflight", "local"): ("trainyard.cli.account", "preflight"),
    ("verify-clean", "aws"): ("trainyard.preflight.leftovers",),
    ("verify-clean", "local"): ("trainyard.cli.account", "leftovers"),
}
# A user error ends in one line and exit code 1.
EXPECTED = (
    AnswerError,
    CheckError,
    DeployError,
    EngineError,
    FollowError,
    GivenError,
    ProtectedDataError,
    ModelError,
    PoolDeletingError,
    RefusedError,
    RunError,
    StackFileError,
    ForeignCloudError,
    NotRunningError,
    ToolError,
    ApiUnavailable,
)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    result = argparse.ArgumentParser(prog="python -m trainyard.cli", description=__doc__)
    commands = result.add_subparsers(dest="command", required=True)
    for name, text in (
        ("up", "deploy the stack, then follow its training run to the end"),
        ("down", "destroy the stack and stop the local cloud"),
        ("delete-data", "delete the data that `down` kept"),
        ("preview", "show the plan of `up`"),
        ("drift", "report what was changed or deleted outside of Pulumi; exit code 3 if there is something"),
        ("preflight", "check what the account lacks for the stack; changes nothing"),
        ("verify-clean", "list what a destroyed stack left in the account"),
        ("submit", "start another run on a stack that is up, and follow it"),
        ("check-nodes", "check each node of a pool before a run; launches no node"),
        ("check-fabric", "measure the network between nodes of a pool; launches no node"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("--stack", default="local")
        command.add_argument("--cloud", choices=("local", "aws"))
        if name in ("up", "down", "delete-data", "submit"):
            command.add_argument(
                "-v",
                "--verbose",
                action="store_true",
                help="print every line, as VERBOSE=1 does (default: those that matter)",
            )
        if name == "down":
            command.add_argument(
                "--keep-data",
                type=keep_data,
                nargs="?",
                const=True,
                default=False,
                metavar="YES_OR_NO",
                help="leave what protectData protects",
            )
        if name == "delete-data":
            command.add_argument("--confirm", default="", metavar="STACK", help="the stack's name")
        if name == "submit":
            command.add_argument("--min", required=True, metavar="NODES")
            command.add_argument("--max", required=True, metavar="NODES")
        if name in ("check-nodes", "check-fabric"):
            command.add_argument("--pool", required=True)
        if name == "check-fabric":
            command.add_argument("--nodes", required=True)
    return result


def message(error: OSError) -> str:
    """Return the message for a user. An error of a full disk does not name its file by itself."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        place = error.filename or Home().root
        return f"the disk of {place} is full: free some space and run the same command again"
    return f"{error.strerror or error}" + (f" ({Path(error.filename)})" if error.filename else "")


def main() -> int:
    """Run one command. A user error ends in one line and exit code 1."""
    arguments = parser().parse_args()
    cloud = arguments.cloud or ("local" if arguments.stack == "local" else "aws")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _terminated)
    try:
        check_name(arguments.stack)
        OUTPUT.verbose = getattr(arguments, "verbose", False) or is_yes(
            "VERBOSE", os.environ.get("VERBOSE") or "no"
        )
        if module := ACCOUNT_CHECKS.get((arguments.command, cloud)):
            words = [sys.executable, "-m", *module, "--stack", arguments.stack]
            os.execv(sys.executable, words)  # noqa: S606  (a module of this project)
        if arguments.command == "up":
            return up(arguments.stack, cloud)
        if arguments.command == "down":
            return down(arguments.stack, cloud, arguments.keep_data)
        if arguments.command == "preview":
            return preview(arguments.stack, cloud)
        if arguments.command == "drift":
            return drift(arguments.stack, cloud)
        if arguments.command == "delete-data":
            return delete_data(arguments.stack, cloud, arguments.confirm)
        if arguments.command == "check-nodes":
            return check_nodes(arguments.stack, cloud, arguments.pool)
        if arguments.command == "check-fabric":
            return check_fabric(arguments.stack, cloud, arguments.pool, nodes("NODES", arguments.nodes))
        least, most = nodes("MIN", arguments.min), nodes("MAX", arguments.max)
        return submit(arguments.stack, cloud, least, most)
    except EXPECTED as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"error: {message(error)}", file=sys.stderr)
        return 1
    except Interrupted as stopped:
        print(f"\n{stopped}", file=sys.stderr)
        return 130
    except KeyboardInterrupt:
        print("\ninterrupted; the same command goes on from here", file=sys.stderr)
        return 130


def _terminated(_number: int, _frame: object) -> None:
    """End a command as Ctrl-C does, when the terminal closes or after `kill`."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
