"""The Pulumi engine as this project runs it: a file state backend under the home, and the plugins of this checkout."""

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
from local.home import Home, write_atomically
from trainyard.cli.disk_space import WholeState
from trainyard.cli.engine_run import Interrupted, watched
from trainyard.cli.engine_session import Session, end_recorded
from trainyard.cli.next_steps import stopped
from trainyard.cli.output import OUTPUT
from trainyard.cli.pending_operations import with_adopted
from trainyard.cli.progress import Filter
from trainyard.cli.stack_secrets import discard_foreign
from trainyard.cli.summary import MAX_ROWS, EngineSummary, deletion_total

ROOT = Path(__file__).resolve().parents[2]
# In a pipe, the number of resources comes each time that so many more are done.
COUNTED_RESOURCES = 25
NO_SPACE = os.strerror(errno.ENOSPC).lower()
# Variables of the environment that belong to another engine, account or local cloud.
_NOT_INHERITED = ("PULUMI_", "AWS_", "TRAINYARD_LOCAL_CLOUD", "TRAINYARD_EMULATOR_TOKEN")


class EngineError(Exception):
    """A pulumi command that failed; its output has been shown already."""


def state_file(directory: Path, stack: str) -> Path:
    """Where the engine keeps a stack's state under the folder of its states."""
    return directory / "state" / ".pulumi" / "stacks" / "trainyard" / f"{stack}.json"


class Engine:
    """Runs `pulumi` for one stack.

    `home` is the state directory of the local cloud, `variables` are added to the environment (the local cloud's
    endpoint and credentials, or none for a preview without a cloud), `state` names the folder under the home for
    the engine's state and our copies of the stack files.
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
        self._passphrase = self._read_passphrase()
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

    def _read_passphrase(self) -> str:
        """A random passphrase, made once, readable by its owner alone."""
        path = backend.passphrase_file(self.directory)
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(secrets.token_hex(32))
        return path.read_text().strip()

    def initialise(self) -> None:
        """Create the stack in the backend unless it is there. Our copy of its file keeps no foreign keys.

        `pulumi stack init` writes the salt of the stack's secrets into the project's stack file, so it runs in
        the directory of our copies, beside a copy of Pulumi.yaml.
        """
        discard_foreign(self.config_file, self._passphrase)
        if self.state_file.exists():
            return
        shutil.copy(ROOT / "Pulumi.yaml", self.directory / "Pulumi.yaml")
        self._capture("stack", "init", self.stack, "--non-interactive", directory=self.directory)

    def has_resources(self) -> bool:
        """Whether the stack's state names anything but the stack itself."""
        deployment = self.deployment()
        return any(r["type"] != "pulumi:pulumi:Stack" for r in deployment.get("resources") or [])

    def was_interrupted(self) -> bool:
        """Whether a killed run left a lock or pending operations behind, or was killed while it put such right."""
        pending = self.deployment().get("pending_operations")
        return self._recovery_file.exists() or bool(self._locks()) or bool(pending)

    def restore_state(self) -> bool:
        """Take the last whole state where a full disk has cut off the engine's own file; whether it was so.

        Raises:
            EngineError: no whole one was kept.
        """
        try:
            restored = self._whole.restore()
        except FileNotFoundError:
            raise EngineError(
                f"{self.state_file} is cut off and no whole state was kept: `python -m local reset` removes the local "
                "cloud and all of its stacks"
            ) from None
        if restored:
            self.begin_recovery()
        return restored

    def begin_recovery(self) -> None:
        """From here on the state may name what does not exist, until a refresh has read what does."""
        self._recovery_file.touch()

    def end_recovery(self) -> None:
        """What the state names has been read."""
        self._recovery_file.unlink(missing_ok=True)

    def wait_for_other(self, say: Callable[[str], None]) -> None:
        """Wait while a pulumi of an earlier command, whose `make` was killed, still works on the stack."""
        said = False
        while pids := self._at_work():
            if not said:
                say(
                    f"waiting for pulumi (pid {pids[0]}), which an earlier command left at work on stack {self.stack}"
                )
                said = True
            time.sleep(1)

    def _at_work(self) -> list[int]:
        """Pulumi processes that work on the stack."""
        session = Session.load(self._session_file)
        recorded = [session.leader.pid] if session and session.leader.alive else []
        return recorded or [pid for pid in self._locks() if _is_pulumi(pid)]

    def end_leftovers(self, say: Callable[[str], None]) -> None:
        """End the processes that a killed pulumi of an earlier command left."""
        end_leftovers(self._session_file, say)

    def _locks(self) -> list[int]:
        """Process ids in the stack's lock files (Pulumi's file state backend, `pkg/backend/diy/lock.go`)."""
        folder = self.directory / "state" / ".pulumi" / "locks"
        files = folder.rglob(f"{self.stack}/*.json") if folder.is_dir() else []
        return [int(json.loads(file.read_text())["pid"]) for file in files]

    def deployment(self) -> dict[str, Any]:
        """The stack's state; empty where there is none."""
        if not self.state_file.exists():
            return {}
        checkpoint = json.loads(self.state_file.read_text())["checkpoint"]
        latest: dict[str, Any] = checkpoint.get("latest") or {}
        return latest

    def cancel(self) -> None:
        """Release the lock of a killed run. A lock that is not there is no error."""
        with contextlib.suppress(EngineError):
            self._capture("cancel", "--yes", "--stack", self.stack)

    def forget(self) -> None:
        """Remove the stack and its state; nothing is deleted in the cloud."""
        self.end_recovery()
        self._whole.forget()
        if self.state_file.exists():
            self._capture("stack", "rm", "--force", "--yes", "--preserve-config", "--stack", self.stack)

    def adopt(self, found: Mapping[str, str]) -> None:
        """Put pending creations, by URN, into the state with the ids that they turned out to have.

        `pulumi refresh --import-pending-creates` leaves them pending, so the state is edited.
        """
        if not found:
            return
        self.edit(lambda exported: with_adopted(exported, found))

    def edit(self, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        """Replace the exported state of the stack with the result of `change`."""
        exported = json.loads(self._capture("stack", "export", "--stack", self.stack))
        file = self.directory / "edited.json"
        write_atomically(file, json.dumps(change(exported)), 0o600)
        self._capture("stack", "import", "--stack", self.stack, "--file", str(file))
        file.unlink()

    def refresh(self) -> None:
        """Read what really exists into the state; creations that never were recorded are dropped from it."""
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
            command: The engine's command.
            arguments: Its further arguments.
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
        look = (lambda: False) if reads else self._whole.look
        try:
            if not reads:
                self._whole.begin()
            with OUTPUT.stage(f"pulumi {command}", summary.status):
                show = shown_by(command, choose if reads else summary.lines)
                environment = {**self.environment, **(variables or {})}
                code = watched(words, ROOT, environment, log, record, show, look)
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
        """The stack's outputs."""
        text = self._capture("stack", "output", "--json", "--stack", self.stack)
        outputs: dict[str, Any] = json.loads(text)
        return outputs

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

    What creates or deletes the whole stack names no resources; the stack itself is one in the state.
    """
    is_whole = command == "destroy" or len(deployment.get("resources") or []) <= 1
    every = 0 if OUTPUT.live else COUNTED_RESOURCES
    return EngineSummary(totals, rows=0 if is_whole else MAX_ROWS, every=every)


def shown_by(command: str, choose: Callable[[str], list[str]] | None = None) -> Callable[[str], None]:
    """Return a function that prints the engine's lines without noise, and logs them.

    Args:
        command: The engine's command.
        choose: What to print of a line (default: all of it).
    """
    noise = Filter(command)

    def show(line: str) -> None:
        for each in noise.lines(line):
            OUTPUT.detail(each, choose(each) if choose else [each])

    return show


def end_leftovers(record: Path, say: Callable[[str], None]) -> None:
    """End the processes of a recorded engine, and say so where there were any."""
    if found := end_recorded(record):
        pids = ", ".join(str(process.pid) for process in found)
        say(f"ended what a killed pulumi had left running (processes {pids})")


def _without_engine_logs(home: Path) -> None:
    """A file where the engine wants a folder: then it keeps no log of its own of every property that it passes on.

    No variable turns that log off (pulumi v3.250, pkg/logging/encrypted.go). It takes a fifth of the engine's time in
    an `up`, half of it in a refresh, and up to 500 MB of the disk; what the engine says is in our own log.
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
