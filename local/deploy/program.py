"""What the program itself is asked before anything is built or made; it is never imported here."""

from __future__ import annotations

import os
import subprocess
import sys

from local.deploy.engine import ROOT


class RefusedError(Exception):
    """The stack file has mistakes, or the account lacks something; the text names each."""


def check(stack: str) -> None:
    """Have the stack file read: a mistake in it is told before tools are built for it.

    Raises:
        RefusedError: with every mistake.
    """
    words = [sys.executable, "-m", "infra.check", "--stack", stack]
    answer = subprocess.run(words, cwd=ROOT, env=_environment(), capture_output=True, text=True)
    if answer.returncode != 0:
        raise RefusedError(answer.stderr.strip())


def preflight(stack: str) -> None:
    """Ask the account of the environment's credentials what it lacks for the stack, and show the answer.

    Raises:
        RefusedError: something is missing, or the account could not be asked.
    """
    words = [sys.executable, "-m", "infra.preflight", "--stack", stack]
    if subprocess.run(words, cwd=ROOT, env=_environment()).returncode != 0:
        raise RefusedError(
            f"the preflight of stack {stack} found what is told above, and nothing was made; mend it, or go on "
            f"without it: make up STACK={stack} PREFLIGHT=no"
        )


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}
