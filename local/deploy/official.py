"""The same targets against AWS: the official Pulumi CLI with its own plugins and the person's own credentials."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import Any

from local.deploy.engine import ROOT, EngineError
from local.deploy.follow import Follower, Run
from local.deploy.runs import start_run


def _pulumi(*arguments: str) -> None:
    if shutil.which("pulumi") is None:
        raise EngineError(
            "deploying to AWS needs the official Pulumi CLI on PATH (https://www.pulumi.com/docs/install); "
            "to run this stack on this machine instead, add CLOUD=local"
        )
    code = subprocess.run(["pulumi", *arguments], cwd=ROOT).returncode
    if code != 0:
        raise EngineError(f"pulumi {arguments[0]} failed (exit code {code}); see above")


def _outputs(stack: str) -> dict[str, Any]:
    result = subprocess.run(
        ["pulumi", "stack", "output", "--json", "--stack", stack], cwd=ROOT, capture_output=True, text=True
    )
    if result.returncode != 0:
        raise EngineError(f"pulumi stack output: {' '.join(result.stderr.split())}")
    outputs: dict[str, Any] = json.loads(result.stdout)
    return outputs


def _follow(outputs: dict[str, Any], job: str) -> int:
    """Follow a run with the kubeconfig that the person's `aws eks update-kubeconfig` has written."""
    run = Run(namespace=outputs["trainingNamespace"], launcher_job=job, run_id=job.removeprefix("launch-"))
    result = Follower(None, None, lambda line: print(line, flush=True)).follow(run)
    print(f"run {run.run_id} {'succeeded' if result.succeeded else 'failed: ' + result.message}", flush=True)
    return 0 if result.succeeded else 1


def up(stack: str) -> int:
    """`pulumi up`, then follow the stack's run."""
    _pulumi("up", "--stack", stack)
    outputs = _outputs(stack)
    subprocess.run(outputs["kubeconfigCommand"].split(), cwd=ROOT, check=True)
    return _follow(outputs, outputs["launcherJobName"])


def down(stack: str) -> int:
    """`pulumi destroy` with what really exists read first."""
    _pulumi("destroy", "--refresh", "--stack", stack)
    return 0


def submit(stack: str, minimum: int, maximum: int) -> int:
    """Start another run with the stack's launcher manifest and the current kubeconfig."""
    outputs = _outputs(stack)
    return _follow(outputs, start_run(outputs, minimum, maximum, os.environ))
