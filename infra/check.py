"""Check a stack file without the engine and without an account: `python -m infra.check --stack NAME`.

With `--state` or `--deployed`, also check the fixed settings against the stack's state.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from infra import changes, stack_state
from infra.settings import SettingsError
from infra.stack_file import load
from trainyard.stack_files import StackFileError

NOTHING_DONE = "nothing was changed"


def main() -> int:
    """Print all errors to standard error. Return 1 if there are any."""
    parser = argparse.ArgumentParser(prog="python -m infra.check", description=__doc__)
    parser.add_argument("--stack", required=True)
    parser.add_argument(
        "--file", type=Path, help="the stack file (default: Pulumi.NAME.yaml, else examples/stacks/NAME.yaml)"
    )
    parser.add_argument(
        "--state", type=Path, help="a file with the stack's state: of a file backend, or an export"
    )
    parser.add_argument(
        "--deployed", action="store_true", help="read the stack's state from the Pulumi backend"
    )
    arguments = parser.parse_args()
    try:
        settings = load(arguments.stack, arguments.file)
        state = stack_state.load(arguments.state) if arguments.state else {}
        if arguments.deployed:
            state = stack_state.export(arguments.stack)
    except (SettingsError, StackFileError, stack_state.StateError) as error:
        print(error, file=sys.stderr)
        return 1
    refused = changes.find_refused_changes(settings, state)
    for key, message in refused.items():
        print(f"{key}: {message}", file=sys.stderr)
    if refused:
        print(f"stack {arguments.stack}: {NOTHING_DONE}", file=sys.stderr)
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
