"""What the program itself is asked before anything is built or made; it is never imported here."""

from __future__ import annotations

import os
import subprocess
import sys

from trainyard.cli.engine import ROOT

# What trainyard.preflight ends with where AWS took no question at all (trainyard/preflight/command.py).
NOT_ASKED = 3


class RefusedError(Exception):
    """The stack file has mistakes, or the account lacks something; the text names each."""


def check(stack: str, *more: str) -> None:
    """Check the stack file before the tools are built.

    Args:
        stack: The stack's name.
        more: Further arguments of `infra.check`, such as the stack file and its state.

    Raises:
        RefusedError: with every mistake.
    """
    words = [sys.executable, "-m", "infra.check", "--stack", stack, *more]
    answer = subprocess.run(words, cwd=ROOT, env=_environment(), capture_output=True, text=True)
    if answer.returncode != 0:
        raise RefusedError(answer.stderr.strip())


def preflight(stack: str) -> None:
    """Ask the account of the environment's credentials what it lacks for the stack, and show the answer.

    Raises:
        RefusedError: something is missing, or the account could not be asked.
    """
    words = [sys.executable, "-m", "trainyard.preflight", "--stack", stack]
    code = subprocess.run(words, cwd=ROOT, env=_environment()).returncode
    if code == NOT_ASKED:
        raise RefusedError(
            f"AWS could not be asked for stack {stack}, see above, and nothing was made; sign in (README, step 3); "
            "for the local cloud add CLOUD=local"
        )
    if code != 0:
        raise RefusedError(
            f"the preflight of stack {stack} found what is told above, and nothing was made; mend it, or go on "
            f"without it: make up STACK={stack} PREFLIGHT=no"
        )


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}
