"""Start a run of a stack that is up, follow it to its end, and fetch its model. `follow_run` is the entry point."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlparse

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from trainyard.cli.engine import ROOT
from trainyard.cli.engine_run import Interrupted
from trainyard.cli.errors import CommandError
from trainyard.cli.follow import Follower
from trainyard.cli.make_variables import user_command
from trainyard.cli.next_steps import run_end, unwatched
from trainyard.cli.output import OUTPUT
from trainyard.cli.summary import RunSummary
from trainyard.k8s import names

STARTED_RUN = "pulumi-python:dynamic/settings:StartedRun"
POOLS_ALONE = "has pools and no run: its settings have no trainyard:training"


class DeployedStack(Protocol):
    """A stack that is up, on AWS or on the local cloud."""

    @property
    def name(self) -> str:
        """The stack's name."""

    @property
    def cloud(self) -> str:
        """Where it is: local or aws."""

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables for programs that call its cluster."""

    def outputs(self) -> dict[str, Any]:
        """Return its outputs."""

    def deployment(self) -> dict[str, Any]:
        """Return its state."""

    def kubeconfig(self, outputs: Mapping[str, Any]) -> contextlib.AbstractContextManager[Path]:
        """Return a kubeconfig for its cluster only. The user's own may point to another cluster."""

    def kubectl(self, outputs: Mapping[str, Any]) -> str:
        """Return the user's command for its cluster."""

    def show_results(self, outputs: Mapping[str, Any], run_id: str, *, succeeded: bool) -> None:
        """Print where the results of a finished run are."""

    def open_log(self, command: str) -> None:
        """Keep all lines of a command in a file, whose path is printed."""


def submit(stack: DeployedStack, minimum: int, maximum: int) -> int:
    """Start another run with the stack's launcher manifest and follow it. Return the exit code."""
    stack.open_log("submit")
    outputs = stack.outputs()
    with stack.kubeconfig(outputs) as kubeconfig:
        job = start_run(outputs, minimum, maximum, {**stack.environment, "KUBECONFIG": str(kubeconfig)})
    OUTPUT.report(f"started {job}")
    again = f"{stack.kubectl(outputs)} logs -n {outputs['trainingNamespace']} -f job/{job}"
    return follow_run(stack, outputs, job, again)


def start_run(outputs: Mapping[str, Any], minimum: int, maximum: int, environment: Mapping[str, str]) -> str:
    """Create the launcher's Job with the kubeconfig of `environment`. Return its name.

    Raises:
        CommandError: The stack has no training settings, the request is invalid, or the API server refused the Job.
    """
    manifest: str | None = outputs.get("launcherManifest")
    if manifest is None:
        raise CommandError(f"the stack {POOLS_ALONE}")
    command = [sys.executable, "-m", "launcher.submit", "--min", str(minimum), "--max", str(maximum)]
    answer = subprocess.run(
        command, input=manifest, capture_output=True, text=True, cwd=ROOT, env=dict(environment)
    )
    created = re.search(r"^job\.batch/(\S+) created", answer.stdout)
    if answer.returncode != 0 or created is None:
        raise CommandError(" ".join((answer.stderr or answer.stdout).split()))
    return created[1]


def no_run(stack: str, cloud: str, outputs: Mapping[str, Any]) -> str:
    """Return the message about a stack whose settings name no run."""
    if outputs.get("launcherManifest") is None:
        return f"it {POOLS_ALONE}"
    start = user_command("submit", stack, cloud, MIN="..", MAX="..")
    return f"its settings name no run (trainyard:training.runId); `{start}` starts one"


def follow_run(
    stack: DeployedStack, outputs: Mapping[str, Any], job: str, again: str, since: float | None = None
) -> int:
    """Follow one run and print how it ended and where its results are. Return the exit code.

    Args:
        job: The name of the launcher's Job.
        again: The command that shows the run.
        since: Seconds since the epoch. Of a run that succeeded before, only the result is printed.
    """
    run_id = job.removeprefix(names.LAUNCHER_JOB_PREFIX)
    summary = RunSummary()

    def show(line: str) -> None:
        OUTPUT.detail(line, summary.lines(line))

    try:
        with stack.kubeconfig(outputs) as kubeconfig, OUTPUT.stage(f"run {run_id}", summary.status):
            result = Follower(kubeconfig, show).follow(outputs["trainingNamespace"], job, since)
    except KeyboardInterrupt:
        raise Interrupted(unwatched(stack.name, stack.cloud, run_id, again)) from None
    OUTPUT.report(run_end(stack.name, stack.cloud, run_id, result))
    stack.show_results(outputs, run_id, succeeded=result.succeeded)
    return 0 if result.succeeded else 1


def fetch_model(uri: str, region: str, directory: Path) -> Path:
    """Copy the object `s3://bucket/key` into `directory` under its own name.

    Raises:
        CommandError: It does not exist or can't be read.
    """
    address = urlparse(uri)
    directory.mkdir(parents=True, exist_ok=True)
    target = directory / Path(address.path).name
    try:
        boto3.client("s3", region_name=region).download_file(
            address.netloc, address.path.lstrip("/"), str(target)
        )
    except (ClientError, BotoCoreError) as error:
        raise CommandError(f"the run's model {uri} can't be read: {error}") from error
    return target


def read_changed_settings(deployment: Mapping[str, Any]) -> str | None:
    """Return the message in the state about settings that changed after their run started; None if there is none."""
    for each in deployment.get("resources") or []:
        if each["type"] == STARTED_RUN and (message := (each.get("inputs") or {}).get("late")):
            return str(message)
    return None


def deleted_job_message(run_id: str, job: str, namespace: str) -> str:
    """Return the message for a run whose Job was deleted. A run ID can be used only once."""
    return (
        f"run {run_id}: ended because its Job {namespace}/{job} was deleted. To start another run, set"
        " trainyard:training.runId to another name"
    )
