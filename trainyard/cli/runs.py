"""Start a run from the launcher's manifest in the outputs of a stack."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from trainyard.cli.engine import ROOT
from trainyard.cli.make_variables import user_command

POOLS_ALONE = "has pools and no run: its settings have no trainyard:training"


class RunError(Exception):
    """The run could not be started."""


def start_run(outputs: Mapping[str, Any], minimum: int, maximum: int, environment: Mapping[str, str]) -> str:
    """Create the launcher's Job with the kubeconfig of `environment`. Return its name.

    Raises:
        RunError: The stack has no training settings, the request is invalid, or the API server refused the Job.
    """
    manifest: str | None = outputs.get("launcherManifest")
    if manifest is None:
        raise RunError(f"the stack {POOLS_ALONE}")
    command = [sys.executable, "-m", "launcher.submit", "--min", str(minimum), "--max", str(maximum)]
    answer = subprocess.run(
        command, input=manifest, capture_output=True, text=True, cwd=ROOT, env=dict(environment)
    )
    created = re.search(r"^job\.batch/(\S+) created", answer.stdout)
    if answer.returncode != 0 or created is None:
        raise RunError(" ".join((answer.stderr or answer.stdout).split()))
    return created[1]


def no_run(stack: str, cloud: str, outputs: Mapping[str, Any]) -> str:
    """Return the message about a stack whose settings name no run."""
    if outputs.get("launcherManifest") is None:
        return f"it {POOLS_ALONE}"
    start = user_command("submit", stack, cloud, MIN="..", MAX="..")
    return f"its settings name no run (trainyard:training.runId); `{start}` starts one"
