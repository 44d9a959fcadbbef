"""A stack on a local cloud of its own, and the commands that a person types there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from local.guard import cloud_environment
from local.home import Home
from tests.account import connected, things
from trainyard.cli.engine import ROOT, Engine
from trainyard.stack_files import find, read

UP_SECONDS = 900.0
CREATE_EXISTING = """
import sys
from pathlib import Path
from trainyard.cli.existing_resources import with_existing_resources
from trainyard.stack_files import read
with_existing_resources(read(Path(sys.argv[1])), print)
"""
# A stack that only keeps the local cloud up, so that what another one left can be counted after `make down`.
KEEPER = "keeper"


class WorldError(Exception):
    """The world could not perform a requested step; not a finding about the program."""


class World:
    """The commands that a person types, in the home of one local cloud, and the account of that cloud."""

    def __init__(self, home: Home, stack: str) -> None:
        self.home = home
        self.stack = stack
        self._record: dict[str, Any] = home.cloud() or {}
        self.settings: dict[str, Any] = read(find(stack))["config"]
        self.log = home.logs / f"pulumi-{stack}.log"
        # What the account holds before the stack is made.
        self.before: frozenset[str] = frozenset()

    def client(self, service: str) -> Any:
        """A client of the emulated account in the stack's region, as the deployer."""
        return connected(self._record, self.settings["aws:region"])(service)

    def keep_up(self) -> None:
        """Let the state say that the stack `keeper` has a resource."""
        stacks = self.home.root / "stacks"
        stacks.mkdir(parents=True, exist_ok=True)
        (stacks / f"Pulumi.{KEEPER}.yaml").write_text("config: {}\n")
        (stacks / f"Pulumi.{KEEPER}.generation").write_text(self._record["generation"])
        engine = Engine(self.home.root, KEEPER, {})
        state = {"checkpoint": {"latest": {"resources": [{"type": "aws:s3/bucket:Bucket"}]}}}
        engine.state_file.parent.mkdir(parents=True, exist_ok=True)
        engine.state_file.write_text(json.dumps(state))

    def create_existing(self) -> None:
        """Create the existing resources of the stack file. They stay when the stack goes."""
        answer = self._python("-c", CREATE_EXISTING, str(find(self.stack)))
        if answer.returncode != 0:
            raise WorldError(
                f"existing resources of stack {self.stack} can't be created: {answer.stdout}{answer.stderr}"
            )

    def _python(self, *words: str) -> subprocess.CompletedProcess[str]:
        """A Python program that finds the account as a person's do."""
        return subprocess.run(
            [sys.executable, *words],
            cwd=ROOT,
            env={**os.environ, **cloud_environment(self.home), "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=120,
        )

    def deploy(self, command: str) -> subprocess.Popen[str]:
        """Start `make up` or `make down`."""
        words = [sys.executable, "-m", "trainyard.cli", command, "--stack", self.stack, "--cloud", "local"]
        self.log.unlink(missing_ok=True)
        return subprocess.Popen(
            words,
            cwd=ROOT,
            env={**os.environ, "TRAINYARD_HOME": str(self.home.root)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def up(self) -> None:
        """`make up`, until the stack is there; the run that it starts is not waited for."""
        process = self.deploy("up")
        shown: list[str] = []
        for line in process.stdout or []:
            shown.append(line)
            if line.startswith(f"stack {self.stack} is up"):
                process.kill()
                process.wait()
                return
        raise WorldError("`make up` ended without a stack:\n" + "".join(shown[-20:]))

    def down(self) -> tuple[int, str]:
        """`make down`: its exit code and what it said."""
        process = self.deploy("down")
        output, _ = process.communicate(timeout=UP_SECONDS)
        return process.returncode, output

    def tagged(self) -> list[str]:
        """What `make verify-clean` finds."""
        file = self.home.root / "stacks" / f"Pulumi.{self.stack}.yaml"
        answer = self._python(
            "-m", "trainyard.preflight.leftovers", "--stack", self.stack, "--file", str(file)
        )
        lines = [line for line in answer.stdout.splitlines() if line.startswith(("left: ", "not checked: "))]
        return lines or ([] if answer.returncode == 0 else [f"verify-clean failed: {answer.stderr.strip()}"])


@contextmanager
def world(root: Path, stack: str) -> Iterator[World]:
    """A local cloud in `root` for a stack; it is ended afterwards."""
    environment = {**os.environ, "TRAINYARD_HOME": str(root)}
    start = [sys.executable, "-m", "local", "up"]
    started = subprocess.run(start, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    if started.returncode != 0:
        raise WorldError(f"the local cloud did not start: {started.stdout}{started.stderr}")
    try:
        made = World(Home(root), stack)
        made.keep_up()
        made.create_existing()
        made.before = things(made.client)
        yield made
    finally:
        end = [sys.executable, "-m", "local", "down"]
        subprocess.run(end, cwd=ROOT, env=environment, capture_output=True, timeout=300)
