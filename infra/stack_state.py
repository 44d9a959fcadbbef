"""The state of a stack: in a file, or where `pulumi` keeps it."""

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
# github.com/pulumi/pulumi v3.250.0, pkg/cmd/pulumi/stack: what the CLI says of a stack that is not in the backend.
NO_STACK: Final = re.compile(r"no stack named|stack '.*' not found", re.IGNORECASE)


class StateError(Exception):
    """The state can't be read; one line."""


def load(file: Path) -> dict[str, Any]:
    """Return the state in a file: an export, or a checkpoint of a file backend. Without the file it is empty.

    Raises:
        StateError: the file can't be read.
    """
    try:
        return _deployment(json.loads(file.read_text()))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise StateError(f"{file} can't be read: {' '.join(str(error).split())}") from None


def export(stack: str, environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Return what `pulumi stack export` says; empty where the backend has no such stack.

    Raises:
        StateError: nobody is logged in to a backend, or it can't be read.
    """
    if shutil.which("pulumi", path=environment.get("PATH")) is None:
        raise StateError("the pulumi CLI is not on PATH")
    if not _logged_in(environment):
        raise StateError("nobody is logged in to Pulumi")
    words = ["pulumi", "stack", "export", "--stack", stack, "--non-interactive"]
    answer = subprocess.run(
        words, cwd=ROOT, env=dict(environment), stdin=subprocess.DEVNULL, capture_output=True, text=True
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


def _logged_in(environment: Mapping[str, str]) -> bool:
    """Whether `pulumi` knows where states are, so that it neither asks a person nor makes a home for itself.

    The places are those of github.com/pulumi/pulumi/sdk/v3@v3.250.0, go/common/workspace/creds.go.
    """
    if environment.get("PULUMI_BACKEND_URL") or environment.get("PULUMI_ACCESS_TOKEN"):
        return True
    kept = environment.get("PULUMI_CREDENTIALS_PATH") or environment.get("PULUMI_HOME") or "~/.pulumi"
    try:
        return bool(json.loads((Path(kept).expanduser() / "credentials.json").read_text())["current"])
    except (OSError, ValueError, KeyError, TypeError):
        return False
