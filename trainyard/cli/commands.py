"""Run the commands on stacks: up, down, delete-data, preview, drift, submit, check-nodes, check-fabric."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from local.backend import STACKS
from local.cluster import lifecycle
from local.cluster.kubeconfig import current_context
from local.cluster.namespaces import enter_prefix
from local.cluster.record import running
from local.guard import cloud_environment, refuse_foreign
from local.home import Home, local_command
from local.nodes.images import preload_library
from local.tools import OPTIONAL_TOOLS, ensure, module_directory, rendered
from trainyard.cli import aws_commands, program, runs
from trainyard.cli.aws_commands import AwsStack
from trainyard.cli.command_lock import turn
from trainyard.cli.deleted_cluster import CLUSTER, FORGET_UNREACHABLE, gone_cluster
from trainyard.cli.drift import (
    EVENT_LOG,
    EVENT_LOG_VARIABLES,
    EXIT_DRIFT,
    PREVIEW,
    describe,
    errors_only,
    find_drift,
)
from trainyard.cli.engine import Engine, end_leftovers, generation_file, is_current, state_file
from trainyard.cli.errors import CommandError
from trainyard.cli.existing_resources import has_existing_cluster, with_existing_resources
from trainyard.cli.follow import JobGoneError
from trainyard.cli.make_variables import user_command, user_variable
from trainyard.cli.next_steps import kubectl, places, removed_context, shown
from trainyard.cli.output import OUTPUT
from trainyard.cli.pending_operations import identities, with_adopted
from trainyard.cli.pool_checks import FabricCheck, NodeChecks
from trainyard.cli.pool_drift import check_deployed_pools, refresh_targets
from trainyard.cli.protected_data import EXCEPT_DATA, check, check_deletion, with_deletion_allowed
from trainyard.cli.runs import (
    DeployedStack,
    deleted_job_message,
    fetch_model,
    follow_run,
    no_run,
    read_changed_settings,
)
from trainyard.cli.stack_file import cluster_name, for_local_cloud, runs_trainjobs, with_sources, write
from trainyard.cli.sweep import stack_tags, sweep
from trainyard.k8s import names
from trainyard.stack_files import StackFileError, find, read

# Set for a command that went on inside the network of an ordinary user's local cloud.
ENTERED = "TRAINYARD_ENTERED"
NOTHING_LEFT = "the local cloud is not running; its account ended with it, so that nothing is left"


report = OUTPUT.report


def up(stack: str, cloud: str) -> int:
    """Deploy the stack, follow its run to the end, and print where everything is. Return the exit code."""
    since = time.time()
    if cloud == "aws":
        deployed = aws_commands.up(stack)
        late = read_changed_settings(deployed.deployment())
        return _follow_up(deployed, deployed.outputs(), late, f"stack {stack} is up", since)
    document = read(find(stack))
    refuse_foreign(os.environ)
    program.check(stack)
    with turn(Home().root / "stacks", report):
        home = start_local_cloud(document)
        deploying = time.monotonic()
        session = LocalStack.open(home, stack)
        session.open_log("up")
        session.recover()
        document = with_existing_resources(document, report)
        settings = for_local_cloud(document, pinned_sources(document), session.record["deployerArn"])
        session.check(settings)
        missing = check_deployed_pools(session, session.deployment(), settings["config"])
        write(settings, session.engine.config_file)
        if missing:
            # The engine creates again what is not in the state.
            targets = refresh_targets(missing)
            session.engine.run("refresh", "--yes", "--skip-preview", "--suppress-outputs", *targets)
        session.engine.run("up", "--yes", "--skip-preview", "--suppress-outputs")
        outputs, late = session.outputs(), read_changed_settings(session.deployment())
    up_line = f"stack {stack} is up after {time.monotonic() - deploying:.0f} s"
    return _follow_up(session, outputs, late, up_line, since)


def _follow_up(
    stack: DeployedStack, outputs: Mapping[str, Any], late: str | None, up_line: str, since: float
) -> int:
    """Follow the run of a stack that was just deployed, if its settings name one. Return the exit code."""
    job = outputs.get("launcherJobName")
    if job is None:
        report(f"{up_line}; {no_run(stack.name, stack.cloud, outputs)}")
        return 0
    report(f"{up_line}; following run {outputs['runId']}")
    try:
        code = follow_run(stack, outputs, job, user_command("up", stack.name, stack.cloud), since)
    except JobGoneError:
        report(deleted_job_message(outputs["runId"], job, outputs["trainingNamespace"]))
        return 0
    if late:
        report(late)
    report(f"all: {time.time() - since:.0f} s")
    return code


def down(stack: str, cloud: str, keep_data: bool = False) -> int:
    """Destroy the stack, remove what it left, and stop the local cloud unless another stack is up on it.

    With `keep_data` the stack's protected data stays, and the local cloud with it.

    Raises:
        CommandError: There is no such stack, and others are up.
        CommandError: The stack has protected data and `keep_data` is not set, or the opposite.
    """
    if cloud == "aws":
        return aws_commands.down(stack, keep_data)
    home = Home()
    refuse_foreign(os.environ, home)
    with turn(home.root / "stacks", report):
        return _down(home, stack, keep_data)


def _down(home: Home, stack: str, keep_data: bool) -> int:
    if _join(home):
        _refuse_unknown(home, stack)
        session = LocalStack.open(home, stack)
        session.open_log("down")
        before = current_context(home.kubeconfig)
        refreshed = session.recover()
        kept: list[str] = []
        if session.engine.has_resources():
            kept = check(session.engine.deployment(), stack, "local", keep_data)
            if kept and not refreshed:  # the refresh of `destroy` would leave out what is kept
                session.engine.refresh()
                refreshed = True
            options = (*(() if refreshed else ("--refresh",)), *(EXCEPT_DATA if kept else ()))
            session.engine.run("destroy", "--yes", "--skip-preview", "--suppress-outputs", *options)
        # Also where nothing was left to destroy: an earlier `down` may have been killed just before.
        session.sweep()
        if kept:
            report(
                f"stack {stack} is destroyed but for its data: {', '.join(kept)}; the local cloud stays up: "
                f"`{local_command(home, 'down')}` ends it, and this data with it"
            )
            _report_context(home, before)
            return 0
        session.engine.forget()
        others = _up(home)
        if others:
            stacks = "stack" if len(others) == 1 else "stacks"
            report(f"stack {stack} is destroyed; the local cloud stays up for {stacks} {', '.join(others)}")
            _report_context(home, before)
            return 0
    # Without the local cloud no engine on it has anything to do.
    for record in (home.root / "stacks").glob("*.session.json"):
        end_leftovers(record, report)
    lifecycle.down(home, report)
    return 0


def _report_context(home: Home, before: str) -> None:
    if message := removed_context(home, before):
        report(message)


def preview(stack: str, cloud: str) -> int:
    """Show the plan of an `up` against the stack's state; without a state, show all resources of a first `up`.

    The plan of a first `up` needs no account and no local cloud.
    """
    document = read(find(stack))
    program.check(stack)
    why = aws_commands.preview(stack) if cloud == "aws" else _preview_running(stack, document)
    if why is None:
        return 0
    report(f"stack {stack}: no plan against its state: {why}. These are all resources of a first up")
    home = Home()
    ensure(("pulumi", "pulumi-language-python", "kubernetes", "helm"), home)
    with turn(home.root / "preview", report):
        engine = Engine(home.root, stack, {}, state="preview")
        engine.initialise()
        write(with_sources(document, pinned_sources(document)), engine.config_file)
        engine.run("preview")
    return 0


def _preview_running(stack: str, document: Mapping[str, Any]) -> str | None:
    """Show the plan for a stack on the local cloud. Return why there is no plan, else None."""
    home = Home()
    if running(home) is None:
        return "the local cloud is not running"
    refuse_foreign(os.environ, home)
    # Before the command goes on in the network of an ordinary user's local cloud, where nothing is downloaded.
    sources = pinned_sources(document)
    if not _join(home):
        return "the local cloud is not running"
    # Another command may be writing the state. Wait for it.
    with turn(home.root / "stacks", report):
        session = LocalStack.open(home, stack)
        if not session.is_up():
            return "the stack is not up on this local cloud"
        session.engine.wait_for_other(report)
        if session.engine.was_interrupted():
            report(
                f"stack {stack}: an earlier command was killed, so this plan may lack some of its resources"
            )
        settings = for_local_cloud(
            with_existing_resources(document, report), sources, session.record["deployerArn"]
        )
        file = session.check(settings)
        check_deployed_pools(session, session.deployment(), settings["config"])
        report(f"stack {stack}: the plan of an up against its state")
        session.engine.run("preview", "--suppress-outputs", config_file=file)
    return None


def drift(stack: str, cloud: str) -> int:
    """Report what was changed or deleted outside of Pulumi, and return EXIT_DRIFT if there is something.

    Raises:
        CommandError: The stack is not up.
        EngineError: Its resources can't be read.
    """
    with tempfile.TemporaryDirectory() as directory:
        events = Path(directory) / "events"
        if cloud == "aws":
            aws_commands.drift(stack, events)
        else:
            _read_drift(stack, events)
        found = find_drift(events.read_text(errors="replace").splitlines())
    for line in describe(stack, found):
        report(line)
    return EXIT_DRIFT if found else 0


def _read_drift(stack: str, events: Path) -> None:
    """Preview a refresh of a stack on the local cloud, and write the engine's event log to a file."""
    refuse_foreign(os.environ, Home())
    with turn(Home().root / "stacks", report):
        session = _running(stack)
        session.engine.wait_for_other(report)
        arguments = ("--suppress-outputs", *PREVIEW, EVENT_LOG, str(events))
        session.engine.run("refresh", *arguments, choose=errors_only, variables=EVENT_LOG_VARIABLES)


def delete_data(stack: str, cloud: str, confirmed: str) -> int:
    """Delete the data that an earlier `down` kept, without a cluster.

    Raises:
        CommandError: No data is kept, the stack is up, or `confirmed` is not its name.
    """
    if cloud == "aws":
        return aws_commands.delete_data(stack, confirmed)
    home = Home()
    refuse_foreign(os.environ, home)
    with turn(home.root / "stacks", report):
        if not _join(home):
            raise CommandError(f"stack {stack}: the local cloud is not running, and its data ended with it")
        _refuse_unknown(home, stack)
        session = LocalStack.open(home, stack)
        session.open_log("delete-data")
        session.recover()
        found = check_deletion(session.engine.deployment(), stack, "local", confirmed)
        session.engine.edit(with_deletion_allowed)
        session.engine.run("destroy", "--yes", "--skip-preview", "--suppress-outputs")
        session.sweep()
        session.engine.forget()
        report(f"stack {stack}: deleted its data: {', '.join(found)}")
        if not _up(home):
            lifecycle.down(home, report)
        return 0


def local_account(command: str, stack: str) -> list[str] | None:
    """Return the arguments with which `preflight` or `verify-clean` examines the account of the local cloud.

    The preflight starts the local cloud and takes the present stack file. As in `up`, resources that the file names as
    existing are created first. `verify-clean` takes the engine's copy of the file. It returns None if the local cloud
    is not running.
    """
    home = Home()
    refuse_foreign(os.environ, home)
    document = read(find(stack))
    if command == "preflight" and (running(home) is None or home.cloud() is None):
        start_local_cloud(document)
    # Before the command goes on in the network of an ordinary user's local cloud, where nothing is downloaded.
    sources = pinned_sources(document) if running(home) else {}
    if not _join(home):
        if command == "preflight":
            raise CommandError(f"{home.cloud_file}: is missing. Run the same command again")
        report(f"{command} of stack {stack}: {NOTHING_LEFT}")
        return None
    os.environ.update(cloud_environment(home))
    is_deployed = is_current(home, stack)
    # The state of an earlier local cloud is ignored: the other directory has no such file.
    states = home.root / (STACKS if is_deployed else "checks")
    file = home.root / STACKS / f"Pulumi.{stack}.yaml"
    if command == "preflight" or not is_deployed or not file.is_file():
        file = home.root / "checks" / f"Pulumi.{stack}.yaml"
        document = with_existing_resources(document, report)
        write(for_local_cloud(document, sources, (home.cloud() or {})["deployerArn"]), file)
    return ["--file", str(file), "--state", str(state_file(states, stack))]


def submit(stack: str, cloud: str, minimum: int, maximum: int) -> int:
    """Start another run with the stack's launcher manifest and follow it."""
    if not 1 <= minimum <= maximum:
        values = f"{user_variable('MIN', str(minimum))} {user_variable('MAX', str(maximum))}"
        raise CommandError(
            f"{values}: {user_variable('MIN')} must be at least 1 and not above {user_variable('MAX')}"
        )
    return runs.submit(_deployed(stack, cloud), minimum, maximum)


def check_nodes(stack: str, cloud: str, pool: str) -> int:
    """Check each node of a pool. Return 0 if at least one was checked and all checked ones are fit."""
    deployed = _deployed(stack, cloud)
    outputs = deployed.outputs()
    with deployed.kubeconfig(outputs) as kubeconfig:
        return NodeChecks(kubeconfig, outputs["trainingNamespace"], report).run(pool)


def check_fabric(stack: str, cloud: str, pool: str, nodes: int) -> int:
    """Measure the network between nodes of a pool. Return the exit code of `trainer.fabric_check`."""
    deployed = _deployed(stack, cloud)
    outputs = deployed.outputs()
    with deployed.kubeconfig(outputs) as kubeconfig:
        return FabricCheck(kubeconfig, outputs["trainingNamespace"], report).run(pool, nodes)


def _deployed(stack: str, cloud: str) -> DeployedStack:
    return AwsStack.open(stack) if cloud == "aws" else _running(stack)


def _running(stack: str) -> LocalStack:
    """Return the session of a stack that is up on this machine's local cloud.

    Raises:
        CommandError: The stack is not up.
        StackFileError: It has no stack file either, so that the name may be mistyped.
    """
    home = Home()
    if not _join(home):
        find(stack)
        raise CommandError(
            f"stack {stack} is not up on this machine; `{user_command('up', stack, 'local')}` starts it"
        )
    session = LocalStack.open(home, stack)
    if not session.is_up():
        find(stack)
        raise CommandError(f"stack {stack} is not up; `{user_command('up', stack, 'local')}` deploys it")
    return session


def start_local_cloud(document: Mapping[str, Any]) -> Home:
    """Build what is missing for this stack file, and start the local cloud unless it runs.

    Raises:
        CloudError: It did not start.
    """
    refuse_foreign(os.environ)
    home = Home()
    preload_library()  # first: a missing compiler is reported before the tools are built
    ensure((), home)
    if runs_trainjobs(document):
        ensure(OPTIONAL_TOOLS, home)
    if ENTERED not in os.environ:
        lifecycle.up(home, report)
    _enter(home)
    return home


def _enter(home: Home) -> None:
    """Run this command again in the network of an ordinary user's local cloud. For root this does nothing."""
    supervisor = running(home)
    prefix = enter_prefix(supervisor) if supervisor else []
    if prefix:
        safe_path = ["-P"] if sys.flags.safe_path else []
        command = [*prefix, sys.executable, *safe_path, "-m", "trainyard.cli", *sys.argv[1:]]
        environment = {**os.environ, ENTERED: "1"}
        os.execvpe(command[0], command, environment)  # noqa: S606  (this very command, in the other network)


def pinned_sources(document: Mapping[str, Any]) -> dict[str, str]:
    """Return `trainyard:sources` with the charts and manifests of the pinned Go modules that this stack file needs."""
    karpenter, operator = module_directory("karpenter"), module_directory("training-operator")
    sources = {
        "karpenterChart": karpenter / "charts" / "karpenter",
        "karpenterCrdChart": karpenter / "charts" / "karpenter-crd",
        "trainingOperator": rendered("training-operator", operator / "manifests" / "overlays" / "standalone"),
    }
    if runs_trainjobs(document):
        sources["kubeflowTrainer"] = module_directory("kubeflow-trainer") / "manifests" / "base"
        sources["jobset"] = module_directory("jobset") / "config" / "default"
    return {key: str(path) for key, path in sources.items()}


def _join(home: Home) -> bool:
    """Return whether the local cloud runs. An ordinary user's command then runs again in its network."""
    if running(home) is None or home.cloud() is None:
        return False
    _enter(home)
    return True


def _up(home: Home) -> list[str]:
    """Return the stacks that are up on the running local cloud."""
    names = sorted(file.name.split(".")[1] for file in (home.root / "stacks").glob("Pulumi.*.yaml"))
    return [name for name in names if LocalStack.open(home, name).is_up()]


def _refuse_unknown(home: Home, stack: str) -> None:
    """Refuse a stack that was never on this machine while others are up: the name may be mistyped.

    Raises:
        CommandError: There is no such stack.
    """
    directory = home.root / "stacks"
    # The copy of a stack file outlives the stack, so that `down` can be called again.
    if (directory / f"Pulumi.{stack}.yaml").exists() or state_file(directory, stack).exists():
        return
    others = _up(home)
    if others:
        raise CommandError(
            f"there is no stack {stack} on this local cloud, and nothing was changed; up there: {', '.join(others)}"
        )


@dataclass(frozen=True, kw_only=True)
class LocalStack:
    """One stack on the running local cloud: see `runs.DeployedStack`."""

    home: Home
    record: dict[str, Any]
    engine: Engine
    cloud: ClassVar[str] = "local"

    @classmethod
    def open(cls, home: Home, stack: str) -> LocalStack:
        variables = cloud_environment(home)
        # For the SDKs in this process, too; and past a proxy of the environment, since all of it is on this machine.
        os.environ.update(variables)
        return cls(home=home, record=home.cloud() or {}, engine=Engine(home.root, stack, variables))

    def is_up(self) -> bool:
        """Return whether the stack has resources on this local cloud. Those of an earlier one ended with it."""
        return is_current(self.home, self.engine.stack) and self.engine.has_resources()

    def recover(self) -> bool:
        """Make the state of the stack usable after the end of another local cloud or a killed run. Return whether this
        refreshed it.
        """
        mark = generation_file(self.home, self.engine.stack)
        if self.engine.restore_state():
            report(
                f"stack {self.engine.stack}: a full disk cut off its state; continuing from the last complete one"
            )
        if self.engine.has_resources() and not self.is_up():
            report(
                f"stack {self.engine.stack}: its local cloud was stopped, and its resources with it; removing them "
                "from the state"
            )
            self.engine.forget()
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.write_text(self.record["generation"])
        self.engine.initialise()
        self.engine.wait_for_other(report)
        self.engine.end_leftovers(report)
        if gone := gone_cluster(self.engine.deployment(), self._region()):
            report(f"cluster {gone} was deleted, and its objects with it; removing them from the state")
            self.engine.environment[FORGET_UNREACHABLE] = "true"
        if not self.engine.was_interrupted():
            return False
        report(
            f"stack {self.engine.stack}: an earlier command was killed; releasing its lock, reading all resources"
        )
        self.engine.cancel()
        self.engine.begin_recovery()
        account, region = self.record["accountId"], self._region()
        adopted = dict(identities(self.engine.deployment(), account, region, self._released))
        for urn, identity in adopted.items():
            report(f"taking over {urn.rpartition('::')[2]} ({identity}), which was being created")
        if adopted:
            # `pulumi refresh --import-pending-creates` leaves them pending.
            self.engine.edit(lambda exported: with_adopted(exported, adopted))
        self.engine.refresh()
        self.engine.end_recovery()
        return True

    def check(self, settings: Mapping[str, Any]) -> Path:
        """Check the settings against the stack's state, and return the file with the settings.

        Raises:
            CommandError: The value of a fixed setting changed.
        """
        file = self.home.root / "checks" / f"Pulumi.{self.engine.stack}.yaml"
        write(settings, file)
        program.check(self.engine.stack, "--file", str(file), "--state", str(self.engine.state_file))
        return file

    def sweep(self) -> None:
        """Remove what the stack left in the account. On an existing cluster this is limited to the stack's own tags."""
        config = self._config()
        if config:
            tags = stack_tags(self.engine.stack) if has_existing_cluster(config) else None
            sweep(self._region(), cluster_name(config, self.engine.stack), report, tags)

    def _config(self) -> dict[str, Any]:
        """Return the settings of the last command, empty if there was none."""
        try:
            config: dict[str, Any] = read(self.engine.config_file)["config"]
        except StackFileError:  # the engine's own salt may stand there already
            return {}
        return config

    def _region(self) -> str:
        return str(self._config().get("aws:region", self.record["region"]))

    def _released(self, namespace: str, name: str) -> bool:
        """Return whether Helm finished a release that the engine did not record. A deleted cluster has none."""
        clusters = [each["id"] for each in self.engine.deployment()["resources"] if each["type"] == CLUSTER]
        if not clusters:
            return False
        words = ["helm", "status", name, "--namespace", namespace, "--output", "json"]
        words += ["--kubeconfig", str(self.home.kubeconfig), "--kube-context", clusters[0]]
        answer = subprocess.run(words, env=self.engine.environment, capture_output=True, text=True)
        return answer.returncode == 0 and json.loads(answer.stdout)["info"]["status"] == "deployed"

    @property
    def name(self) -> str:
        return self.engine.stack

    @property
    def environment(self) -> Mapping[str, str]:
        return self.engine.environment

    def outputs(self) -> dict[str, Any]:
        return self.engine.outputs()

    def deployment(self) -> dict[str, Any]:
        return self.engine.deployment()

    def kubeconfig(self, outputs: Mapping[str, Any]) -> contextlib.AbstractContextManager[Path]:
        return contextlib.nullcontext(self.home.cluster(outputs["clusterName"]) / "admin.kubeconfig")

    def kubectl(self, outputs: Mapping[str, Any]) -> str:
        return kubectl(self.home, outputs["clusterName"])

    def show_results(self, outputs: Mapping[str, Any], run_id: str, *, succeeded: bool) -> None:
        """Fetch the model of a run that succeeded, and print where everything is."""
        if succeeded:
            target = self.home.root / "models" / self.name / run_id
            uri = f"{outputs['modelUri'].rstrip('/')}/{run_id}/{names.MODEL_FILE}"
            fetch_model(uri, outputs["region"], target)
            report(f"model:      {shown(target / names.MODEL_FILE)}  (copy of {uri})")
        for line in places(self.home, outputs["clusterName"], outputs["trainingNamespace"]):
            report(line)

    def open_log(self, command: str) -> None:
        path = self.home.logs / "commands" / f"{command}-{self.name}.log"
        OUTPUT.open_log(path, shown(path))
