"""Run a command of `python -m local` (`arguments.py`)."""

from __future__ import annotations

import sys

from local import standard_output
from local.arguments import EXEC, NOT_RUNNING, parse
from local.cluster.lifecycle import CloudError
from local.cluster.shell import execute, print_environment, print_status, show_logs
from local.guard import ForeignCloudError, NotRunningError
from local.home import Home
from local.tools import ToolError


def report(line: str) -> None:
    """Print a line and flush it, also into a pipe."""
    print(line, flush=True)


def run(words: list[str]) -> int:
    """Run one command and return the exit code."""
    from local import tools
    from local.cluster import lifecycle
    from local.nodes.images import preload_library

    arguments = parse(words)
    home = Home(arguments.home)
    if arguments.command == "up":
        preload_library()  # first, so that a missing compiler is reported before the tools are built
        tools.ensure([], home)
        lifecycle.up(home, report, arguments.boot_seconds, arguments.gpu_delay_seconds)
    elif arguments.command == "down":
        lifecycle.down(home, report)
    elif arguments.command == "reset":
        lifecycle.reset(home, report)
    elif arguments.command == "status":
        found = lifecycle.status(home)
        print_status(home, found, as_json=arguments.json)
        return 0 if found else NOT_RUNNING
    elif arguments.command == "logs":
        show_logs(home, arguments.process, follow=arguments.follow)
    elif arguments.command == "env":
        print_environment(home)
    elif arguments.command == "tools":
        if not arguments.names:
            preload_library()
        for name, place in tools.ensure(arguments.names, home, quiet=arguments.quiet).items():
            if not arguments.quiet:
                report(f"{name:30} {place}")
    elif arguments.command == EXEC:
        words = arguments.words
        execute(home, words[1:] if words[:1] == ["--"] else words)
    else:
        execute(home, ["kubectl", *arguments.words], as_administrator=True)
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
    sys.exit(standard_output.run(main))
