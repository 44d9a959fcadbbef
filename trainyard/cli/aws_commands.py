"""Run the commands on AWS with the official Pulumi CLI, its own plugins and the user's credentials."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from trainyard.cli import program, pulumi_cli, sign_in
from trainyard.cli.deleted_cluster import FORGET_UNREACHABLE, is_gone
from trainyard.cli.drift import EVENT_LOG, EVENT_LOG_VARIABLES, PREVIEW, errors_only
from trainyard.cli.engine import ROOT, EngineError, engine_summary
from trainyard.cli.engine_run import Interrupted
from trainyard.cli.fabric_check import FabricCheck
from trainyard.cli.follow import Follower, JobGoneError, Run
from trainyard.cli.make_variables import is_yes, user_command
from trainyard.cli.next_steps import run_end, unwatched
from trainyard.cli.node_checks import NodeChecks
from trainyard.cli.output import OUTPUT
from trainyard.cli.pool_drift import RETRY, check_pools, refresh_targets
from trainyard.cli.protected_data import EXCEPT_DATA, check, check_deletion, with_deletion_allowed
from trainyard.cli.runs import no_run, start_run
from trainyard.cli.summary import RunSummary
from trainyard.cli.up_messages import (
    deleted_job_message,
    read_changed_settings,
)
from trainyard.k8s import kubeconfig as kubeconfigs
from trainyard.k8s import names
from trainyard.stack_files import find, path_of, read


def use_profile(stack: str) -> None:
    """Set the environment to `aws:profile` of the stack file, as the program does.

    Credentials in the environment would override the profile, so they are removed.
    """
    file = path_of(stack)
    profile = read(file)["config"].get("aws:profile") if file.exists() else None
    if isinstance(profile, str):
        os.environ["AWS_PROFILE"] = profile
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
            os.environ.pop(name, None)


def _outputs(stack: str) -> dict[str, Any]:
    return pulumi_cli.query(stack, "output", "--json")


def _kubeconfig(outputs: dict[str, Any], directory: Path) -> Path:
    """Return a kubeconfig for the stack's cluster only. The user's own may point to another cluster."""
    file = directory / "kubeconfig"
    name, region = outputs["clusterName"], outputs["region"]
    words = ["aws", "eks", "update-kubeconfig", "--name", name, "--region", region, "--kubeconfig", str(file)]
    if shutil.which("aws") is None:
        raise EngineError("reaching the cluster needs the AWS CLI on PATH (https://aws.amazon.com/cli)")
    result = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    if result.returncode != 0:
        raise EngineError(f"aws eks update-kubeconfig --name {name}: {' '.join(result.stderr.split())}")
    return file


def _follow(
    stack: str,
    outputs: dict[str, Any],
    job: str,
    kubeconfig: Path,
    again: str,
    since: float | None = None,
) -> int:
    run = Run(
        namespace=outputs["trainingNamespace"],
        launcher_job=job,
        run_id=job.removeprefix(names.LAUNCHER_JOB_PREFIX),
    )
    summary = RunSummary()

    def show(line: str) -> None:
        OUTPUT.detail(line, summary.lines(line))

    try:
        with OUTPUT.stage(f"run {run.run_id}", summary.status):
            result = Follower(kubeconfig, None, show).follow(run, since)
    except KeyboardInterrupt:
        raise Interrupted(unwatched(stack, "aws", run.run_id, again)) from None
    OUTPUT.say(run_end(stack, "aws", run.run_id, result))
    return 0 if result.succeeded else 1


def up(stack: str) -> int:
    """Run the preflight and `pulumi up`, then follow the stack's run if the settings name one.

    Raises:
        AnswerError: The variable PREFLIGHT is neither yes nor no.
    """
    since = time.time()
    with_preflight = is_yes("PREFLIGHT", os.environ.get("PREFLIGHT") or "yes")
    program.check(stack)
    use_profile(stack)
    sign_in.check(stack)
    pulumi_cli.must_confirm("up")
    pulumi_cli.open_log("up", stack)
    # The preflight checks this too, but it is optional.
    program.check(stack, "--deployed")
    if with_preflight:
        program.preflight(stack)
    try:
        deployment = _deployment(stack)
    except pulumi_cli.NoStackError:
        pulumi_cli.offer_new(stack)
        deployment = _deployment(stack)
    pulumi_cli.unlock(stack, deployment)
    if missing := _check_pools(stack, deployment):
        # The engine creates again what is not in the state.
        pulumi_cli.run(stack, "refresh", "--yes", "--skip-preview", *refresh_targets(missing))
    pulumi_cli.change(stack, "up", deployment=deployment)
    outputs = _outputs(stack)
    OUTPUT.say(f"outputs:    pulumi stack output --stack {stack}")
    job = outputs.get("launcherJobName")
    if job is None:
        OUTPUT.say(f"stack {stack} is up; {no_run(stack, 'aws', outputs)}")
        return 0
    OUTPUT.say(f"stack {stack} is up; following run {outputs['runId']}")
    try:
        with tempfile.TemporaryDirectory() as directory:
            kubeconfig = _kubeconfig(outputs, Path(directory))
            code = _follow(stack, outputs, job, kubeconfig, user_command("up", stack, "aws"), since)
    except JobGoneError:
        OUTPUT.say(deleted_job_message(outputs["runId"], job, outputs["trainingNamespace"]))
        return 0
    if late := read_changed_settings(_deployment(stack)):
        OUTPUT.say(late)
    return code


def _check_pools(stack: str, deployment: dict[str, Any]) -> dict[str, str]:
    """Report differences between the pools and the state; see `pool_drift.check_pools`.

    Raises:
        PoolDeletingError: A pool of the stack file is being deleted.
    """
    resources: list[dict[str, Any]] = deployment.get("resources") or []
    outputs: dict[str, Any] = next((each["outputs"] for each in resources if "outputs" in each), {})
    if "clusterName" not in outputs:
        return {}
    with tempfile.TemporaryDirectory() as directory:
        return check_pools(
            lambda: kubeconfigs.connect(str(_kubeconfig(outputs, Path(directory))), None, RETRY)[0],
            deployment,
            read(find(stack))["config"],
            OUTPUT.say,
        )


def preview(stack: str) -> str | None:
    """Preview an `up` against the stack's state. Return why there is no preview, else None.

    Raises:
        RefusedError: The value of a fixed setting changed.
        EngineError: The preview failed.
        PoolDeletingError: A pool of the stack file is being deleted.
    """
    use_profile(stack)
    try:
        sign_in.check(stack)
        deployment = _deployment(stack)
        if not any(each.get("custom") for each in deployment.get("resources") or []):
            return "the stack has no resources yet"
    except EngineError as error:
        return str(error)
    program.check(stack, "--deployed")
    pulumi_cli.unlock(stack, deployment)
    _check_pools(stack, deployment)
    OUTPUT.say(f"stack {stack}: the plan of an up against its state")
    pulumi_cli.run(stack, "preview")
    return None


def drift(stack: str, events: Path) -> None:
    """Preview a refresh of the stack, and write the engine's event log to a file.

    Raises:
        EngineError: There is no such stack, or its resources can't be read.
    """
    use_profile(stack)
    sign_in.check(stack)
    pulumi_cli.unlock(stack, _deployment(stack))
    arguments = (*PREVIEW, EVENT_LOG, str(events))
    pulumi_cli.run(
        stack, "refresh", *arguments, label="drift", choose=errors_only, variables=EVENT_LOG_VARIABLES
    )


def delete_data(stack: str, confirmed: str) -> int:
    """Delete the data that an earlier destroy kept, without a cluster.

    Raises:
        ProtectedDataError: No data is kept, the stack is up, or `confirmed` is not its name.
    """
    use_profile(stack)
    sign_in.check(stack)
    pulumi_cli.open_log("delete-data", stack)
    exported = pulumi_cli.query(stack, "export")
    deployment = exported.get("deployment") or {}
    found = check_deletion(deployment, stack, "aws", confirmed)
    pulumi_cli.unlock(stack, deployment)
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "state.json"
        file.write_text(json.dumps(with_deletion_allowed(exported)))
        pulumi_cli.replace_state(stack, file)
    progress = engine_summary("destroy", deployment)
    pulumi_cli.run(stack, "destroy", "--yes", "--skip-preview", choose=progress.lines, status=progress.status)
    OUTPUT.say(f"stack {stack}: deleted its data: {', '.join(found)}")
    return 0


def _deployment(stack: str) -> dict[str, Any]:
    """Return the state of the stack."""
    deployment: dict[str, Any] = pulumi_cli.query(stack, "export").get("deployment") or {}
    return deployment


def down(stack: str, keep_data: bool = False) -> int:
    """Run `pulumi destroy` with a refresh. Objects of a deleted cluster are removed from the state.

    Raises:
        ProtectedDataError: The stack has protected data and `keep_data` is not set, or the opposite.
    """
    use_profile(stack)
    sign_in.check(stack)
    pulumi_cli.open_log("down", stack)
    deployment = _deployment(stack)
    pulumi_cli.unlock(stack, deployment)
    outputs = _outputs(stack)
    kept = check(deployment, stack, "aws", keep_data)
    gone = "clusterName" in outputs and is_gone(outputs["clusterName"], outputs["region"])
    variables = {FORGET_UNREACHABLE: "true"} if gone else {}
    words = ("--refresh", *(EXCEPT_DATA if kept else ()))
    pulumi_cli.change(stack, "destroy", *words, deployment=deployment, variables=variables)
    data = (
        f" but for its data: {', '.join(kept)}"
        if kept
        else f"; `{user_command('verify-clean', stack, 'aws')}` lists what is left"
    )
    OUTPUT.say(f"stack {stack} is destroyed{data}")
    return 0


def submit(stack: str, minimum: int, maximum: int) -> int:
    """Start another run on the stack's cluster with its launcher manifest."""
    use_profile(stack)
    sign_in.check(stack)
    pulumi_cli.open_log("submit", stack)
    outputs = _outputs(stack)
    with tempfile.TemporaryDirectory() as directory:
        kubeconfig = _kubeconfig(outputs, Path(directory))
        job = start_run(outputs, minimum, maximum, {**os.environ, "KUBECONFIG": str(kubeconfig)})
        OUTPUT.say(f"started {job}")
        # Not the kubeconfig of this command, which ends with it.
        again = f"kubectl logs -n {outputs['trainingNamespace']} -f job/{job}"
        return _follow(stack, outputs, job, kubeconfig, again)


def check_nodes(stack: str, pool: str) -> int:
    """Check the nodes of a pool on the stack's cluster."""
    use_profile(stack)
    sign_in.check(stack)
    outputs = _outputs(stack)
    with tempfile.TemporaryDirectory() as directory:
        kubeconfig = _kubeconfig(outputs, Path(directory))
        checks = NodeChecks(kubeconfig, None, outputs["trainingNamespace"], OUTPUT.say)
        return checks.run(pool)


def check_fabric(stack: str, pool: str, nodes: int) -> int:
    """Measure the network between nodes of a pool on the stack's cluster."""
    use_profile(stack)
    sign_in.check(stack)
    outputs = _outputs(stack)
    with tempfile.TemporaryDirectory() as directory:
        kubeconfig = _kubeconfig(outputs, Path(directory))
        return FabricCheck(kubeconfig, None, outputs["trainingNamespace"], OUTPUT.say).run(pool, nodes)
