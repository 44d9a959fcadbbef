"""The same targets against AWS: the official Pulumi CLI with its own plugins and the person's own credentials."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from trainyard.cli import program, sign_in
from trainyard.cli.answers import is_yes
from trainyard.cli.engine import ROOT, EngineError
from trainyard.cli.follow import Follower, JobGoneError, Run
from trainyard.cli.gone import FORGET_UNREACHABLE, is_gone
from trainyard.cli.node_checks import NodeChecks
from trainyard.cli.pool_drift import RETRY, check_pools, refresh_targets
from trainyard.cli.protected_data import EXCEPT_DATA, check, check_deletion, with_deletion_allowed
from trainyard.cli.runs import no_run, start_run
from trainyard.cli.told import make, unwatched
from trainyard.cli.up_messages import (
    deleted_job_message,
    read_changed_settings,
)
from trainyard.cli.watched import Interrupted
from trainyard.k8s import kubeconfig as kubeconfigs
from trainyard.k8s import names
from trainyard.stack_files import display_name, find, is_example, path_of, read

# pulumi.com/docs/iac/cli/environment-variables
KEYS_OF_STATE = "PULUMI_FALLBACK_TO_STATE_SECRETS_MANAGER"


def _pulumi(*arguments: str, variables: dict[str, str] | None = None) -> None:
    code = subprocess.run(
        ["pulumi", *arguments], cwd=ROOT, env={**os.environ, **(variables or {})}
    ).returncode
    if code != 0:
        raise EngineError(f"pulumi {arguments[0]} failed (exit code {code}); see above")


def _pulumi_on(stack: str, command: str, *arguments: str, variables: dict[str, str] | None = None) -> None:
    """Run a command that reads the stack's settings.

    Pulumi finds `Pulumi.<stack>.yaml` by itself, another file by the option `--config-file`. `pulumi stack` commands
    read no settings and do not have the option (pulumi.com/docs/iac/cli/commands). Therefore `pulumi stack init` did
    not write the keys of the stack's secrets into an example. Pulumi takes them from the state and adds them.
    """
    file = path_of(stack)
    option: tuple[str, ...] = ()
    if is_example(file):
        option = ("--config-file", display_name(file))
        variables = {**(variables or {}), KEYS_OF_STATE: "true"}
    _pulumi(command, *arguments, "--stack", stack, *option, variables=variables)


def _asked(stack: str, *arguments: str) -> dict[str, Any]:
    """The JSON that `pulumi stack ...` says of a stack."""
    words = ["pulumi", "stack", *arguments, "--stack", stack]
    result = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    if result.returncode != 0:
        reason = " ".join(result.stderr.split())
        raise EngineError(
            f"stack {stack} can't be read: pulumi stack {arguments[0]}: {reason} (`pulumi stack ls` lists those"
            " that there are)"
        )
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


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
    return _asked(stack, "output", "--json")


def _kubeconfig(outputs: dict[str, Any], directory: Path) -> Path:
    """A kubeconfig for the stack's cluster and for nothing else: the person's own may point anywhere."""
    file = directory / "kubeconfig"
    name, region = outputs["clusterName"], outputs["region"]
    words = ["aws", "eks", "update-kubeconfig", "--name", name, "--region", region, "--kubeconfig", str(file)]
    if shutil.which("aws") is None:
        raise EngineError("reaching the cluster needs the AWS CLI on PATH (https://aws.amazon.com/cli)")
    result = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    if result.returncode != 0:
        raise EngineError(f"aws eks update-kubeconfig --name {name}: {' '.join(result.stderr.split())}")
    return file


def _follow(stack: str, outputs: dict[str, Any], job: str, kubeconfig: Path, again: str) -> int:
    run = Run(
        namespace=outputs["trainingNamespace"],
        launcher_job=job,
        run_id=job.removeprefix(names.LAUNCHER_JOB_PREFIX),
    )
    try:
        result = Follower(kubeconfig, None, lambda line: print(line, flush=True)).follow(run)
    except KeyboardInterrupt:
        raise Interrupted(unwatched(stack, "aws", run.run_id, again)) from None
    print(f"run {run.run_id} {'succeeded' if result.succeeded else 'failed: ' + result.message}", flush=True)
    return 0 if result.succeeded else 1


def up(stack: str) -> int:
    """The preflight, `pulumi up`, then follow the stack's run, if its settings name one.

    Raises:
        AnswerError: the variable PREFLIGHT says neither yes nor no.
    """
    wanted = is_yes("PREFLIGHT", os.environ.get("PREFLIGHT") or "yes")
    program.check(stack)
    use_profile(stack)
    sign_in.check(stack)
    # The preflight checks this too, but it is optional.
    program.check(stack, "--deployed")
    if wanted:
        program.preflight(stack)
    deployment: dict[str, Any] = {}
    with contextlib.suppress(EngineError):  # there is no such stack yet
        deployment = _deployment(stack)
    if missing := _check_pools(stack, deployment):
        # The engine creates again what is not in the state.
        _pulumi_on(stack, "refresh", "--skip-preview", *refresh_targets(missing))
    _pulumi_on(stack, "up")
    outputs = _outputs(stack)
    job = outputs.get("launcherJobName")
    if job is None:
        print(f"stack {stack} is up; {no_run(stack, outputs)}", flush=True)
        return 0
    try:
        with tempfile.TemporaryDirectory() as directory:
            kubeconfig = _kubeconfig(outputs, Path(directory))
            code = _follow(stack, outputs, job, kubeconfig, make("up", stack, "aws"))
    except JobGoneError:
        print(deleted_job_message(outputs["runId"], job, outputs["trainingNamespace"]), flush=True)
        return 0
    if late := read_changed_settings(_deployment(stack)):
        print(late, flush=True)
    return code


def _check_pools(stack: str, deployment: dict[str, Any]) -> dict[str, str]:
    """Report what of the pools is not as the engine takes it; see `pool_drift.check_pools`.

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
            lambda line: print(line, flush=True),
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
    _check_pools(stack, deployment)
    print(f"stack {stack}: the plan of an up against its state", flush=True)
    _pulumi_on(stack, "preview")
    return None


def delete_data(stack: str, confirmed: str) -> int:
    """Delete the data that an earlier destroy kept, without a cluster.

    Raises:
        ProtectedDataError: No data is kept, the stack is up, or `confirmed` is not its name.
    """
    use_profile(stack)
    sign_in.check(stack)
    exported = _asked(stack, "export")
    found = check_deletion(exported.get("deployment") or {}, stack, "aws", confirmed)
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "state.json"
        file.write_text(json.dumps(with_deletion_allowed(exported)))
        _pulumi("stack", "import", "--stack", stack, "--file", str(file))
    _pulumi_on(stack, "destroy", "--yes")
    print(f"stack {stack}: deleted its data: {', '.join(found)}", flush=True)
    return 0


def _deployment(stack: str) -> dict[str, Any]:
    """The stack's state."""
    deployment: dict[str, Any] = _asked(stack, "export").get("deployment") or {}
    return deployment


def down(stack: str, keep_data: bool = False) -> int:
    """`pulumi destroy` with what really exists read first; objects of a cluster that is gone are forgotten.

    Raises:
        ProtectedDataError: the stack has protected data and it is not to be kept, or has none.
    """
    use_profile(stack)
    sign_in.check(stack)
    outputs = _outputs(stack)
    kept = check(_deployment(stack), stack, "aws", keep_data)
    gone = "clusterName" in outputs and is_gone(outputs["clusterName"], outputs["region"])
    variables = {FORGET_UNREACHABLE: "true"} if gone else {}
    _pulumi_on(stack, "destroy", "--refresh", *(EXCEPT_DATA if kept else ()), variables=variables)
    return 0


def submit(stack: str, minimum: int, maximum: int) -> int:
    """Start another run on the stack's own cluster with its launcher manifest."""
    use_profile(stack)
    sign_in.check(stack)
    outputs = _outputs(stack)
    with tempfile.TemporaryDirectory() as directory:
        kubeconfig = _kubeconfig(outputs, Path(directory))
        job = start_run(outputs, minimum, maximum, {**os.environ, "KUBECONFIG": str(kubeconfig)})
        # Not the kubeconfig of this command, which ends with it.
        again = f"kubectl logs -n {outputs['trainingNamespace']} -f job/{job}"
        return _follow(stack, outputs, job, kubeconfig, again)


def check_nodes(stack: str, pool: str) -> int:
    """Check the machines of a pool on the stack's own cluster."""
    use_profile(stack)
    sign_in.check(stack)
    outputs = _outputs(stack)
    with tempfile.TemporaryDirectory() as directory:
        kubeconfig = _kubeconfig(outputs, Path(directory))
        checks = NodeChecks(
            kubeconfig, None, outputs["trainingNamespace"], lambda line: print(line, flush=True)
        )
        return checks.run(pool)
