"""Run the checks of the Pulumi program as processes, before anything is built or created."""

from __future__ import annotations

import os
import subprocess
import sys

from trainyard.cli.engine import ROOT
from trainyard.cli.errors import CommandError
from trainyard.cli.make_variables import user_command, user_variable

# The exit code of trainyard.preflight if AWS can not be reached (trainyard/preflight/command.py).
NOT_ASKED = 3


def check(stack: str, *more: str) -> None:
    """Check the stack file before the tools are built.

    Args:
        more: Further arguments of `infra.check`, such as the stack file and its state.

    Raises:
        CommandError: The message has every error.
    """
    words = [sys.executable, "-m", "infra.check", "--stack", stack, *more]
    answer = subprocess.run(words, cwd=ROOT, env=_environment(), capture_output=True, text=True)
    if answer.returncode != 0:
        raise CommandError(answer.stderr.strip())


def preflight(stack: str) -> None:
    """Check the account of the environment's credentials, and print what it lacks for the stack.

    Raises:
        CommandError: Something is missing, or the account could not be read.
    """
    words = [sys.executable, "-m", "trainyard.preflight", "--stack", stack]
    code = subprocess.run(words, cwd=ROOT, env=_environment()).returncode
    if code == NOT_ASKED:
        raise CommandError(
            f"AWS could not be asked for stack {stack}, see above, and nothing was created. Sign in (README, step 3); "
            f"for the local cloud add {user_variable('CLOUD', 'local')}"
        )
    if code != 0:
        raise CommandError(
            f"stack {stack}: preflight found the problems above, and nothing was created. Fix them, or skip preflight: "
            f"{user_command('up', stack, 'aws', PREFLIGHT='no')}"
        )


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}
