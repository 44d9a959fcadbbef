"""Run the commands on AWS with the official Pulumi CLI, its own plugins and the user's credentials."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from botocore.exceptions import BotoCoreError, ClientError

from trainyard.cli import program, pulumi_cli, sign_in
from trainyard.cli.deleted_cluster import FORGET_UNREACHABLE, is_gone
from trainyard.cli.drift import EVENT_LOG, EVENT_LOG_VARIABLES, PREVIEW, errors_only
from trainyard.cli.engine import ROOT, EngineError, engine_summary
from trainyard.cli.make_variables import is_yes, user_command
from trainyard.cli.next_steps import shown
from trainyard.cli.output import OUTPUT
from trainyard.cli.pool_drift import check_deployed_pools, refresh_targets
from trainyard.cli.protected_data import EXCEPT_DATA, check, check_deletion, with_deletion_allowed
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


@dataclass(frozen=True, kw_only=True)
class AwsStack:
    """A stack on AWS: see `runs.DeployedStack`."""

    name: str
    cloud: ClassVar[str] = "aws"
    environment: ClassVar[Mapping[str, str]] = os.environ

    @classmethod
    def open(cls, stack: str) -> AwsStack:
        """Return the stack for a command of a user who is signed in.

        Raises:
            EngineError: There is no Pulumi CLI, no login, or there are no credentials.
        """
        use_profile(stack)
        sign_in.check(stack)
        return cls(name=stack)

    def outputs(self) -> dict[str, Any]:
        return pulumi_cli.query(self.name, "output", "--json")

    def deployment(self) -> dict[str, Any]:
        deployment: dict[str, Any] = pulumi_cli.query(self.name, "export").get("deployment") or {}
        return deployment

    @contextlib.contextmanager
    def kubeconfig(self, outputs: Mapping[str, Any]) -> Iterator[Path]:
        name = outputs["clusterName"]
        if shutil.which("aws") is None:
            raise EngineError("reaching the cluster needs the AWS CLI on PATH (https://aws.amazon.com/cli)")
        with tempfile.TemporaryDirectory() as directory:
            file = Path(directory) / "kubeconfig"
            words = ["aws", "eks", "update-kubeconfig", "--name", name]
            words += ["--region", outputs["region"], "--kubeconfig", str(file)]
            result = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
            if result.returncode != 0:
                raise EngineError(
                    f"aws eks update-kubeconfig --name {name}: {' '.join(result.stderr.split())}"
                )
            yield file

    def kubectl(self, _outputs: Mapping[str, Any]) -> str:
        return "kubectl"

    def show_results(self, outputs: Mapping[str, Any], run_id: str, *, succeeded: bool) -> None:
        """Print nothing: the model is in the stack's bucket."""

    def open_log(self, command: str) -> None:
        path = pulumi_cli.log_file(f"commands/{command}-{self.name}.aws.log")
        OUTPUT.open_log(path, shown(path))


def up(stack: str) -> AwsStack:
    """Run the preflight and `pulumi up`.

    Raises:
        CommandError: The variable PREFLIGHT is neither yes nor no.
    """
    with_preflight = is_yes("PREFLIGHT", os.environ.get("PREFLIGHT") or "yes")
    program.check(stack)
    deployed = AwsStack.open(stack)
    pulumi_cli.must_confirm("up")
    deployed.open_log("up")
    # The preflight checks this too, but it is optional.
    program.check(stack, "--deployed")
    if with_preflight:
        program.preflight(stack)
    try:
        deployment = deployed.deployment()
    except pulumi_cli.NoStackError:
        pulumi_cli.offer_new(stack)
        deployment = deployed.deployment()
    pulumi_cli.unlock(stack, deployment)
    if missing := check_deployed_pools(deployed, deployment, read(find(stack))["config"]):
        # The engine creates again what is not in the state.
        pulumi_cli.run(stack, "refresh", "--yes", "--skip-preview", *refresh_targets(missing))
    pulumi_cli.change(stack, "up", deployment=deployment)
    OUTPUT.report(f"outputs:    pulumi stack output --stack {stack}")
    return deployed


def preview(stack: str) -> str | None:
    """Preview an `up` against the stack's state. Return why there is no preview, else None.

    Raises:
        CommandError: The value of a fixed setting changed.
        EngineError: The preview failed.
        CommandError: A pool of the stack file is being deleted.
    """
    try:
        deployed = AwsStack.open(stack)
        deployment = deployed.deployment()
        if not any(each.get("custom") for each in deployment.get("resources") or []):
            return "the stack has no resources yet"
    except EngineError as error:
        return str(error)
    program.check(stack, "--deployed")
    pulumi_cli.unlock(stack, deployment)
    check_deployed_pools(deployed, deployment, read(find(stack))["config"])
    OUTPUT.report(f"stack {stack}: the plan of an up against its state")
    pulumi_cli.run(stack, "preview")
    return None


def drift(stack: str, events: Path) -> None:
    """Preview a refresh of the stack, and write the engine's event log to a file.

    Raises:
        EngineError: There is no such stack, or its resources can't be read.
    """
    pulumi_cli.unlock(stack, AwsStack.open(stack).deployment())
    arguments = (*PREVIEW, EVENT_LOG, str(events))
    pulumi_cli.run(
        stack, "refresh", *arguments, label="drift", choose=errors_only, variables=EVENT_LOG_VARIABLES
    )


def delete_data(stack: str, confirmed: str) -> int:
    """Delete the data that an earlier destroy kept, without a cluster.

    Raises:
        CommandError: No data is kept, the stack is up, or `confirmed` is not its name.
    """
    AwsStack.open(stack).open_log("delete-data")
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
    OUTPUT.report(f"stack {stack}: deleted its data: {', '.join(found)}")
    return 0


def down(stack: str, keep_data: bool = False) -> int:
    """Run `pulumi destroy` with a refresh. Objects of a deleted cluster are removed from the state.

    Raises:
        CommandError: The stack has protected data and `keep_data` is not set, or the opposite.
        EngineError: EKS can't be read.
    """
    deployed = AwsStack.open(stack)
    deployed.open_log("down")
    deployment = deployed.deployment()
    pulumi_cli.unlock(stack, deployment)
    outputs = deployed.outputs()
    kept = check(deployment, stack, "aws", keep_data)
    try:
        gone = "clusterName" in outputs and is_gone(outputs["clusterName"], outputs["region"])
    except (BotoCoreError, ClientError) as error:
        reason = sign_in.aws_reason(error)
        raise EngineError(f"stack {stack}: EKS can't be read, and nothing was changed: {reason}") from error
    variables = {FORGET_UNREACHABLE: "true"} if gone else {}
    words = ("--refresh", *(EXCEPT_DATA if kept else ()))
    pulumi_cli.change(stack, "destroy", *words, deployment=deployment, variables=variables)
    data = (
        f" but for its data: {', '.join(kept)}"
        if kept
        else f"; `{user_command('verify-clean', stack, 'aws')}` lists what is left"
    )
    OUTPUT.report(f"stack {stack} is destroyed{data}")
    return 0
