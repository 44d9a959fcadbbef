"""Read the state of a stack, from a file (`load`) or from the Pulumi backend (`export`)."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
# The error of the CLI for a stack that is not in the backend (github.com/pulumi/pulumi v3.250.0, pkg/cmd/pulumi/stack).
NO_STACK: Final = re.compile(r"no stack named|stack '.*' not found", re.IGNORECASE)


class StateError(Exception):
    """The state can't be read. The message has one line."""


def load(file: Path) -> dict[str, Any]:
    """Return the state in a file: an export, or a checkpoint of a file backend. It is empty if there is no file.

    Raises:
        StateError: The file can't be read.
    """
    try:
        return _deployment(json.loads(file.read_text()))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise StateError(f"{file} can't be read: {' '.join(str(error).split())}") from None


def export(stack: str, environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Return the state from `pulumi stack export`. It is empty if the backend has no such stack.

    Raises:
        StateError: The user is not logged in to a backend, or the backend can't be read.
    """
    if shutil.which("pulumi", path=environment.get("PATH")) is None:
        raise StateError("the pulumi CLI is not on PATH")
    if not is_logged_in(environment):
        raise StateError("pulumi is not logged in. Run `pulumi login`")
    command = ["pulumi", "stack", "export", "--stack", stack, "--non-interactive"]
    answer = subprocess.run(
        command, cwd=ROOT, env=dict(environment), stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if answer.returncode == 0:
        try:
            return _deployment(json.loads(answer.stdout))
        except ValueError:
            raise StateError("pulumi stack export printed no state") from None
    if NO_STACK.search(answer.stderr):
        return {}
    raise StateError(f"pulumi stack export: {' '.join(answer.stderr.split())}")


def _deployment(document: Mapping[str, Any]) -> dict[str, Any]:
    found = document.get("deployment") or (document.get("checkpoint") or {}).get("latest") or {}
    return dict(found)


def is_logged_in(environment: Mapping[str, str]) -> bool:
    """Return whether `pulumi` has a backend. Without one it would prompt, and create its home directory.

    Source of the paths: github.com/pulumi/pulumi/sdk/v3@v3.250.0, go/common/workspace/creds.go.
    """
    if environment.get("PULUMI_BACKEND_URL") or environment.get("PULUMI_ACCESS_TOKEN"):
        return True
    home = environment.get("PULUMI_CREDENTIALS_PATH") or environment.get("PULUMI_HOME") or "~/.pulumi"
    try:
        return bool(json.loads((Path(home).expanduser() / "credentials.json").read_text())["current"])
    except (OSError, ValueError, KeyError, TypeError, RuntimeError):  # a RuntimeError: `~` of an unknown user
        return False
