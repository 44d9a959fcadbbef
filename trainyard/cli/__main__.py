"""Run the command line of `trainyard`, which the script `.venv/bin/trainyard` starts. Entry point: `main()`."""

from __future__ import annotations

import signal
import sys

from local import standard_output
from trainyard.cli import completion
from trainyard.cli.arguments import parse


def main() -> int:
    """Run the command line and return the exit code."""
    words = sys.argv[1:]
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _terminated)
    try:
        if words[:1] == [completion.COMPLETE]:
            print("".join(f"{each}\n" for each in completion.suggestions(words[1:])), end="")
            return 0
        arguments = parse(words)
        if arguments.command == "completion":
            print(completion.script(arguments.shell), end="")
            return 0
        # Help and completion need none of the libraries of the commands, whose import takes a second.
        from trainyard.cli import dispatch

        return dispatch.run(arguments)
    except KeyboardInterrupt:
        print("\ninterrupted; the same command goes on from here", file=sys.stderr)
        return 130


def _terminated(_number: int, _frame: object) -> None:
    """End a command as Ctrl-C does, when the terminal closes or after `kill`."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(standard_output.run(main))
