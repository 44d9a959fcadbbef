"""Run the Pulumi engine with a file state backend in the local cloud's home and the plugins of this checkout."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from local import backend
from local.home import Home, local_command, read_record, write_atomically
from trainyard.cli.disk_space import WholeState, read_checkpoint
from trainyard.cli.engine_run import Interrupted, run_command
from trainyard.cli.engine_session import Session, end_recorded
from trainyard.cli.errors import CommandError
from trainyard.cli.make_variables import user_command
from trainyard.cli.next_steps import stopped
from trainyard.cli.output import OUTPUT
from trainyard.cli.progress import Filter
from trainyard.cli.summary import MAX_ROWS, STACK, EngineSummary, deletion_total, stack_outputs

ROOT = Path(__file__).resolve().parents[2]
# In a pipe, the number of resources comes each time that so many more are done.
COUNTED_RESOURCES = 25
NO_SPACE = os.strerror(errno.ENOSPC).lower()
# Variables of the environment that belong to another engine, account or local cloud.
_NOT_INHERITED = ("PULUMI_", "AWS_", "TRAINYARD_LOCAL_CLOUD", "TRAINYARD_EMULATOR_TOKEN")


class EngineError(CommandError):
    """A pulumi command failed. Its output has already been shown."""


def state_file(directory: Path, stack: str) -> Path:
    """Return the engine's file with the state of a stack."""
    return directory / "state" / ".pulumi" / "stacks" / "trainyard" / f"{stack}.json"


def generation_file(home: Home, stack: str) -> Path:
    """Return the file that names the local cloud on which a stack was deployed last."""
    return home.root / backend.STACKS / f"Pulumi.{stack}.generation"


def is_current(home: Home, stack: str) -> bool:
    """Return whether a stack was deployed last on the local cloud of the present `cloud.json`."""
    cloud, file = home.cloud(), generation_file(home, stack)
    return cloud is not None and file.is_file() and file.read_text() == cloud.get("generation")


class Engine:
    """Runs `pulumi` for one stack.

    Args:
        home: The state directory of the local cloud.
        variables: Added to the environment: endpoint and credentials of the local cloud, or nothing for a preview
            without a cloud.
        state: The name of the folder in the home for the engine's state and the copies of the stack files.
    """

    def __init__(
        self, home: Path, stack: str, variables: Mapping[str, str], state: str = backend.STACKS
    ) -> None:
        self.stack = stack
        self.home = home
        self.directory = home / state
        self.config_file = self.directory / f"Pulumi.{stack}.yaml"
        self._session_file = self.directory / f"{stack}.session.json"  # see `files`
        self._recovery_file = self.directory / f"{stack}.recovering"
        Home(home).claim()
        (self.directory / "state").mkdir(parents=True, exist_ok=True)
        _without_engine_logs(home)
        self._create_passphrase()
        self.state_file = state_file(self.directory, stack)
        self._whole = WholeState(self.state_file, self.directory, stack)
        path = [str(backend.PLUGINS), str(home / "bin"), str(ROOT / ".venv" / "bin"), os.environ["PATH"]]
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(_NOT_INHERITED)},
            **variables,
            "PATH": os.pathsep.join(path),
            "VIRTUAL_ENV": str(ROOT / ".venv"),
            "PYTHONPATH": str(ROOT),
            "TRAINYARD_HOME": str(home),
            **backend.variables(home, state),
            "PULUMI_ERROR_OUTPUT_STRING": "true",
            "PULUMI_DEBUG_COMMANDS": "false",
        }

    def _create_passphrase(self) -> None:
        """Create a random passphrase, once, which only its owner can read."""
        path = backend.passphrase_file(self.directory)
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(secrets.token_hex(32))

    def initialise(self) -> None:
        """Create the stack in the backend unless it exists.

        `pulumi stack init` writes the salt of the stack's secrets into the project's stack file. So it runs in the
        directory of our copies, beside a copy of Pulumi.yaml.
        """
        if self.state_file.exists():
            return
        shutil.copy(ROOT / "Pulumi.yaml", self.directory / "Pulumi.yaml")
        self._capture("stack", "init", self.stack, "--non-interactive", directory=self.directory)

    def has_resources(self) -> bool:
        """Return whether the state has more than the stack itself."""
        deployment = self.deployment()
        return any(r["type"] != STACK for r in deployment.get("resources") or [])

    def was_interrupted(self) -> bool:
        """Return whether a killed run left a lock or pending operations, or its recovery was interrupted."""
        pending = self.deployment().get("pending_operations")
        return self._recovery_file.exists() or bool(self._locks()) or bool(pending)

    def restore_state(self) -> bool:
        """Restore the last complete state if a full disk cut off the state file. Return whether it was so.

        Raises:
            EngineError: There is no complete state.
        """
        try:
            restored = self._whole.restore()
        except FileNotFoundError:
            reset = local_command(Home(self.home), "reset")
            raise EngineError(
                f"{self.state_file}: is damaged, and no whole state was kept. `{reset}` removes the local cloud and "
                "all of its stacks"
            ) from None
        if restored:
            self.begin_recovery()
        return restored

    def begin_recovery(self) -> None:
        """Record that the state may name resources that do not exist, until a refresh has ended."""
        self._recovery_file.touch()

    def end_recovery(self) -> None:
        """Record that a refresh has read all resources."""
        self._recovery_file.unlink(missing_ok=True)

    def wait_for_other(self, report: Callable[[str], None]) -> None:
        """Wait while pulumi of an earlier, killed command still works on the stack."""
        said = False
        while pids := self._at_work():
            if not said:
                report(
                    f"waiting for pulumi (pid {pids[0]}), which an earlier command left at work on stack {self.stack}"
                )
                said = True
            time.sleep(1)

    def _at_work(self) -> list[int]:
        """Return the pulumi processes that work on the stack."""
        session = Session.load(self._session_file)
        recorded = [session.leader.pid] if session and session.leader.alive else []
        return recorded or [pid for pid in self._locks() if _is_pulumi(pid)]

    def end_leftovers(self, report: Callable[[str], None]) -> None:
        """End the processes that a killed pulumi of an earlier command left."""
        end_leftovers(self._session_file, report)

    def _locks(self) -> list[int]:
        """Return the process ids in the stack's lock files (Pulumi's file backend, `pkg/backend/diy/lock.go`)."""
        folder = self.directory / "state" / ".pulumi" / "locks"
        files = folder.rglob(f"{self.stack}/*.json") if folder.is_dir() else []
        # A full disk leaves a lock without content. No process has the id 0.
        return [(read_record(file) or {}).get("pid", 0) for file in files]

    def deployment(self) -> dict[str, Any]:
        """Return the state of the stack, empty if there is none.

        Raises:
            EngineError: The state is damaged.
        """
        if not self.state_file.exists():
            return {}
        checkpoint = read_checkpoint(self.state_file)
        if checkpoint is None:
            raise EngineError(
                f"{self.state_file}: is damaged. `{user_command('up', self.stack, 'local')}` goes on from the last "
                "whole state"
            )
        latest: dict[str, Any] = checkpoint.get("latest") or {}
        return latest

    def cancel(self) -> None:
        """Release the lock of a killed run. It is no error if there is none."""
        with contextlib.suppress(EngineError):
            self._capture("cancel", "--yes", "--stack", self.stack)

    def forget(self) -> None:
        """Remove the stack and its state. Nothing is deleted in the cloud."""
        self.end_recovery()
        self._whole.forget()
        if self.state_file.exists():
            self._capture("stack", "rm", "--force", "--yes", "--preserve-config", "--stack", self.stack)

    def edit(self, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        """Replace the exported state of the stack with the result of `change`."""
        exported = json.loads(self._capture("stack", "export", "--stack", self.stack))
        file = self.directory / "edited.json"
        write_atomically(file, json.dumps(change(exported)), 0o600)
        self._capture("stack", "import", "--stack", self.stack, "--file", str(file))
        file.unlink()

    def refresh(self) -> None:
        """Read all resources into the state. Creations that were never recorded are dropped."""
        self.run("refresh", "--yes", "--skip-preview", "--suppress-outputs", "--clear-pending-creates")

    def run(
        self,
        command: str,
        *arguments: str,
        config_file: Path | None = None,
        choose: Callable[[str], list[str]] | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """Run a command that works on the stack's resources and show its output.

        A preview has its own log and record, so that it does not disturb a running command.

        Args:
            config_file: The stack file (default: that of the last deployment).
            choose: What to print of a line of a preview (default: all of it).
            variables: Further variables of the engine's environment.

        Raises:
            EngineError: the command failed.
            OSError: The disk is full; nothing was changed.
            Interrupted: a person stopped it.
        """
        arguments = (command, *arguments, "--non-interactive", "--color", "never")
        config = str(config_file or self.config_file)
        words = ["pulumi", *arguments, "--stack", self.stack, "--config-file", config]
        reads = command == "preview" or "--preview-only" in arguments
        deployment = self.deployment()
        # With a part of the resources left out, the number of the others is not known.
        is_whole = command == "destroy" and not any(each.startswith("--exclude") for each in arguments)
        summary = engine_summary(command, deployment, deletion_total(deployment) if is_whole else {})

        log, record = self.files("preview" if reads else command)
        log.parent.mkdir(parents=True, exist_ok=True)
        must_stop = (lambda: False) if reads else self._whole.must_stop
        try:
            if not reads:
                self._whole.begin()
            with OUTPUT.stage(f"pulumi {command}", summary.status):
                show = shown_by(command, choose if reads else summary.lines)
                environment = {**self.environment, **(variables or {})}
                code = run_command(words, ROOT, environment, log, record, show, must_stop)
        except Interrupted:
            raise Interrupted(stopped(self.stack, "preview" if reads else command)) from None
        finally:
            if not reads:
                self._whole.end()
        if code != 0:
            if self._whole.disk_was_full or NO_SPACE in log.read_text(errors="replace").lower():
                raise EngineError(
                    f"the disk of {self.home} is full: free some space and run the same command again, which goes on "
                    f"from here (pulumi {command} of stack {self.stack} stopped; log: {log})"
                )
            raise EngineError(
                f"pulumi {command} of stack {self.stack} failed (exit code {code}); see above (log: {log})"
            )

    def files(self, command: str) -> tuple[Path, Path]:
        """Return the log of a command, and the record of its processes."""
        suffix = ".preview" if command == "preview" else ""
        log = self.home / "logs" / f"pulumi-{self.stack}{suffix}.log"
        return log, self.directory / f"{self.stack}{suffix}.session.json"

    def outputs(self) -> dict[str, Any]:
        """Return the outputs of the stack, empty if there is none. The program exports no secrets."""
        return stack_outputs(self.deployment())

    def _capture(self, *arguments: str, directory: Path = ROOT) -> str:
        result = subprocess.run(
            ["pulumi", *arguments], cwd=directory, env=self.environment, capture_output=True, text=True
        )
        if result.returncode != 0:
            reason = " ".join((result.stderr or result.stdout).split())
            raise EngineError(f"pulumi {' '.join(arguments[:2])}: {reason}")
        return result.stdout


def engine_summary(
    command: str, deployment: Mapping[str, Any], totals: Mapping[str, int] | None = None
) -> EngineSummary:
    """Return the summary of a command on a stack with the state `deployment`.

    A command that creates or deletes the whole stack names no resources. The stack itself is one in the state.
    """
    is_whole = command == "destroy" or len(deployment.get("resources") or []) <= 1
    every = 0 if OUTPUT.live else COUNTED_RESOURCES
    return EngineSummary(totals, rows=0 if is_whole else MAX_ROWS, every=every)


def shown_by(command: str, choose: Callable[[str], list[str]] | None = None) -> Callable[[str], None]:
    """Return a function that prints the engine's lines without noise, and logs them. `choose` is as in `Engine.run`."""
    noise = Filter(command)

    def show(line: str) -> None:
        for each in noise.lines(line):
            OUTPUT.detail(each, choose(each) if choose else [each])

    return show


def end_leftovers(record: Path, report: Callable[[str], None]) -> None:
    """End the processes of a recorded engine, and report it where there were any."""
    if found := end_recorded(record):
        pids = ", ".join(str(process.pid) for process in found)
        report(f"ended what a killed pulumi had left running (processes {pids})")


def _without_engine_logs(home: Path) -> None:
    """Put a file where the engine creates a folder for its log of every property, so that it writes none.

    No variable disables that log (pulumi v3.250, pkg/logging/encrypted.go). It takes a fifth of the engine's time in
    `up`, half of it in a refresh, and up to 500 MB. Our own log has the engine's messages.
    """
    logs = backend.engine_logs(home)
    if not logs.exists():
        logs.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        logs.touch()


def _is_pulumi(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() == "pulumi"
    except FileNotFoundError:
        return False
