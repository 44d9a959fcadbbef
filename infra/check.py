"""`python -m infra.check --stack NAME`: all mistakes in a stack file, without the engine and without an account.

With `--state` or `--deployed` also what the stack's state refuses: settings that are fixed after the first `up`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from infra import changes, stack_state
from infra.preflight.stack_file import StackFileError, load
from infra.settings import SettingsError

NOTHING_DONE = "nothing was changed"


def main() -> int:
    """The exit code is 1 where the file has a mistake; standard error names them all."""
    parser = argparse.ArgumentParser(prog="python -m infra.check", description=__doc__)
    parser.add_argument("--stack", required=True)
    parser.add_argument("--file", type=Path, help="the stack file, where it is another one")
    parser.add_argument("--state", type=Path, help="the stack's state, as a file backend or an export has it")
    parser.add_argument("--deployed", action="store_true", help="ask pulumi for the stack's state")
    arguments = parser.parse_args()
    try:
        settings = load(arguments.stack, arguments.file)
        state = stack_state.load(arguments.state) if arguments.state else {}
        if arguments.deployed:
            state = stack_state.export(arguments.stack)
    except (SettingsError, StackFileError, stack_state.StateError) as error:
        print(error, file=sys.stderr)
        return 1
    refused = changes.refused(settings, state)
    for key, said in refused.items():
        print(f"{key}: {said}", file=sys.stderr)
    if refused:
        print(f"stack {arguments.stack}: {NOTHING_DONE}", file=sys.stderr)
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
