"""`python -m local`: the local cloud. `up` starts it, `down` ends it, `status` and `logs` show it."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from local.cluster.lifecycle import CloudError
from local.cluster.shell import execute, print_environment, print_status, show_logs
from local.guard import ForeignCloudError, NotRunningError
from local.home import Home
from local.tools import ToolError

NOT_RUNNING = 3


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    result = argparse.ArgumentParser(prog="python -m local", description=__doc__)
    result.add_argument("--home", type=Path, help="state directory (default: $TRAINYARD_HOME, else .local)")
    commands = result.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="start the local cloud; at once when it is running")
    up.add_argument(
        "--boot-seconds", type=_seconds, metavar="N", help="a machine joins N s after its launch (5)"
    )
    up.add_argument("--gpu-delay-seconds", type=_seconds, metavar="N", help="its devices show N s later (2)")
    commands.add_parser("down", help="end it and wait until every process is gone")
    commands.add_parser("reset", help="end it and delete all of its state; built tools are kept")
    status = commands.add_parser("status", help=f"what runs; exit code {NOT_RUNNING} when nothing does")
    status.add_argument("--json", action="store_true")
    logs = commands.add_parser("logs", help="logs of its processes")
    logs.add_argument("-f", "--follow", action="store_true", help="go on as lines come")
    logs.add_argument("name", nargs="?", help="one process, for instance `aws` (default: all)")
    commands.add_parser("env", help="print the variables to talk to it, for `eval`")
    tools = commands.add_parser(
        "tools", help="download or build what is missing and list where every program is"
    )
    tools.add_argument("--quiet", action="store_true", help="print only what is downloaded or built")
    tools.add_argument("names", nargs="*", metavar="TOOL")
    run = commands.add_parser(
        "exec", help="run a command with its variables, where its addresses are reachable"
    )
    run.usage = "python -m local exec -- COMMAND ..."
    kubectl = commands.add_parser(
        "kubectl", help="run kubectl as the administrator of its clusters", add_help=False
    )
    kubectl.usage = "python -m local kubectl ..."
    return result


def split_command(words: list[str]) -> tuple[list[str], list[str]]:
    """Split the command line at `exec` or `kubectl`.

    Returns:
        The arguments of this program, and the arguments of the other command, which argparse must not parse.
    """
    position = 2 if words[:1] == ["--home"] else 0
    if words[position : position + 1] in (["exec"], ["kubectl"]):
        return words[: position + 1], words[position + 1 :]
    return words, []


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number of seconds from 0 to 3600")
    return value


def say(line: str) -> None:
    """Print a line and flush it, also into a pipe."""
    print(line, flush=True)


def run(words: list[str]) -> int:
    """Run one command and return the exit code."""
    from local import tools
    from local.cluster import lifecycle
    from local.nodes.images import preload_library

    ours, others = split_command(words)
    arguments = parser().parse_args(ours)
    home = Home(arguments.home)
    if arguments.command == "up":
        preload_library()  # first, so that a missing compiler is reported before the tools are built
        tools.ensure([], home)
        lifecycle.up(home, say, arguments.boot_seconds, arguments.gpu_delay_seconds)
    elif arguments.command == "down":
        lifecycle.down(home, say)
    elif arguments.command == "reset":
        lifecycle.reset(home, say)
    elif arguments.command == "status":
        found = lifecycle.status(home)
        print_status(home, found, as_json=arguments.json)
        return 0 if found else NOT_RUNNING
    elif arguments.command == "logs":
        show_logs(home, arguments.name, follow=arguments.follow)
    elif arguments.command == "env":
        print_environment(home)
    elif arguments.command == "tools":
        if not arguments.names:
            preload_library()
        for name, place in tools.ensure(arguments.names, home, quiet=arguments.quiet).items():
            if not arguments.quiet:
                say(f"{name:30} {place}")
    elif arguments.command == "exec":
        execute(home, others[1:] if others[:1] == ["--"] else others)
    else:
        execute(home, ["kubectl", *others], as_administrator=True)
    return 0


def main() -> int:
    """Run the command line. An error that the user can fix is one line, with exit code 1."""
    try:
        return run(sys.argv[1:])
    except (CloudError, ToolError, ForeignCloudError, NotRunningError) as error:
        print(f"error: {error}", file=sys.stderr)
    except OSError as error:
        place = f": {error.filename}" if error.filename else ""
        print(f"error: {error.strerror or error}{place}", file=sys.stderr)
    except KeyboardInterrupt:
        print("\ninterrupted; the same command goes on from here", file=sys.stderr)
        return 130
    return 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:  # `python -m local logs | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
