"""The command line of `trainyard.preflight` and `trainyard.preflight.leftovers`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from botocore.exceptions import BotoCoreError, ClientError

from infra.settings import Settings, SettingsError
from infra.stack_file import load
from trainyard.preflight.aws import Aws, error_line
from trainyard.stack_files import StackFileError

# trainyard/cli/program.py has it, too.
NOT_ASKED = 3


def report_line(line: str) -> None:
    """Print a line and flush it, so that a pipe gets it at once."""
    print(line, flush=True)


def main(
    program: str,
    description: str,
    run: Callable[[Settings, Aws, Path | None], int],
    *,
    takes_ended: bool = False,
) -> int:
    """Parse `--stack`, `--file` and `--state`, run the command, and report user errors in one line.

    Args:
        program: The module that is run.
        description: What it does, for `--help`.
        run: The command. Its third argument is the file with the stack's state, None for the Pulumi backend.
        takes_ended: Accept a reservation that has ended.

    Returns:
        The exit code: `NOT_ASKED` if AWS can't be reached with these credentials.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {program}", description=description)
    parser.add_argument("--stack", required=True)
    parser.add_argument(
        "--file",
        type=Path,
        help="the stack file (default: Pulumi.STACK.yaml, else examples/stacks/STACK.yaml)",
    )
    parser.add_argument(
        "--state", type=Path, help="a file with the stack's state (default: read it from the Pulumi backend)"
    )
    arguments = parser.parse_args()
    try:
        settings = load(arguments.stack, arguments.file, takes_ended=takes_ended)
        return run(settings, Aws(settings.region, profile=settings.provider.profile), arguments.state)
    except (SettingsError, StackFileError) as error:
        print(f"error: {error}", file=sys.stderr)
    except BotoCoreError as error:
        # No credentials, an expired session, no connection.
        print(f"error: AWS could not be asked: {' '.join(str(error).split())}", file=sys.stderr)
        return NOT_ASKED
    except ClientError as error:
        print(f"error: AWS refused: {error_line(error)}", file=sys.stderr)
        return NOT_ASKED
    except KeyboardInterrupt:
        print("\ninterrupted; nothing was changed", file=sys.stderr)
        return 130
    return 1
