"""A stack on a local cloud of its own, whose engine is killed at a chosen resource."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3

from local.deploy.engine import ROOT, Engine
from local.deploy.session import Session
from local.deploy.stack_file import read
from local.guard import cloud_environment
from local.home import Home
from tests.sweeps.account import things
from tests.sweeps.plan import Interruption, Outcome

UP_SECONDS = 900.0
POLL_SECONDS = 0.02
DONE = {"up": " created (", "destroy": " deleted ("}
GIVE = """
import sys
from pathlib import Path
from local.deploy.given import with_given
from local.deploy.stack_file import read
with_given(read(Path(sys.argv[1])), print)
"""
# A stack that only keeps the local cloud up, so that what another one left can be counted after `make down`.
KEEPER = "keeper"


class SweepError(Exception):
    """A sweep could not do what it was told; not a finding about the program."""


class World:
    """The commands that a person types, in the home of one local cloud, and the account of that cloud."""

    def __init__(self, home: Home, stack: str) -> None:
        self.home = home
        self.stack = stack
        self._record: dict[str, Any] = home.cloud() or {}
        self.settings: dict[str, Any] = read(ROOT / f"Pulumi.{stack}.yaml")["config"]
        self._log = home.logs / f"pulumi-{stack}.log"

    def client(self, service: str) -> Any:
        """A client of the emulated account in the stack's region, as the deployer."""
        return boto3.client(
            service,
            region_name=self.settings["aws:region"],
            endpoint_url=self._record["awsEndpoint"],
            aws_access_key_id=self._record["accessKeyId"],
            aws_secret_access_key=self._record["secretAccessKey"],
        )

    def keep_up(self) -> None:
        """Let the state say that the stack `keeper` has a resource."""
        stacks = self.home.root / "stacks"
        stacks.mkdir(parents=True, exist_ok=True)
        (stacks / f"Pulumi.{KEEPER}.yaml").write_text("config: {}\n")
        (stacks / f"Pulumi.{KEEPER}.generation").write_text(self._record["generation"])
        engine = Engine(self.home.root, KEEPER, {})
        state = {"checkpoint": {"latest": {"resources": [{"type": "aws:s3/bucket:Bucket"}]}}}
        engine._state_file.parent.mkdir(parents=True, exist_ok=True)
        engine._state_file.write_text(json.dumps(state))

    def give(self) -> None:
        """Make what the stack file says is given, which stays when the stack goes."""
        answer = self._python("-c", GIVE, str(ROOT / f"Pulumi.{self.stack}.yaml"))
        if answer.returncode != 0:
            raise SweepError(
                f"what stack {self.stack} is given can't be made: {answer.stdout}{answer.stderr}"
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
        words = [sys.executable, "-m", "local.deploy", command, "--stack", self.stack, "--cloud", "local"]
        self._log.unlink(missing_ok=True)
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
        raise SweepError("`make up` ended without a stack:\n" + "".join(shown[-20:]))

    def down(self) -> tuple[int, str]:
        """`make down`: its exit code and what it said."""
        process = self.deploy("down")
        output, _ = process.communicate(timeout=UP_SECONDS)
        return process.returncode, output

    def killed(self, interruption: Interruption) -> int:
        """Run the command and kill its engine at the resource; returns how many resources it had finished."""
        process = self.deploy("up" if interruption.command == "up" else "down")
        counter = Counter(self._log, DONE[interruption.command])
        deadline = time.monotonic() + UP_SECONDS
        while process.poll() is None and counter.count() < interruption.at and not self._is_up(interruption):
            if time.monotonic() > deadline:
                process.kill()
                raise SweepError(f"{interruption}: not reached within {UP_SECONDS:.0f} s")
            time.sleep(POLL_SECONDS)
        self._kill_engine()
        reached = counter.count()
        try:
            process.communicate(timeout=60)
        except subprocess.TimeoutExpired:  # it follows the run of a stack that was up before
            process.kill()
            process.communicate()
        return reached

    def _is_up(self, interruption: Interruption) -> bool:
        """Whether the engine had nothing more to do before the resource's turn came."""
        return interruption.command == "up" and "Resources:" in _text(self._log)

    def _kill_engine(self) -> None:
        session = Session.load(self.home.root / "stacks" / f"{self.stack}.session.json")
        if session and session.leader.alive:
            os.kill(session.leader.pid, signal.SIGKILL)

    def interrupt(self, interruption: Interruption) -> Outcome:
        """One interruption from an empty account to what one `make down` leaves."""
        before = things(self.client)
        if interruption.command == "destroy":
            self.up()
        reached = self.killed(interruption)
        code, output = self.down()
        if code != 0:
            print(output[-4000:], flush=True)
        left = sorted(things(self.client) - before)
        if code == 0:
            left += self.tagged()
        return Outcome(
            interruption=interruption,
            reached=reached,
            down=code,
            left=tuple(left),
            taken_over=len(re.findall(r"^taking over ", output, re.M)),
            swept=len(re.findall(r"^sweep: ", output, re.M)),
        )

    def tagged(self) -> list[str]:
        """What `make verify-clean` finds."""
        file = self.home.root / "stacks" / f"Pulumi.{self.stack}.yaml"
        answer = self._python("-m", "infra.leftovers", "--stack", self.stack, "--file", str(file))
        lines = [line for line in answer.stdout.splitlines() if line.startswith(("left: ", "not checked: "))]
        return lines or ([] if answer.returncode == 0 else [f"verify-clean failed: {answer.stderr.strip()}"])


class Counter:
    """Counts lines of a log that grows."""

    def __init__(self, log: Path, mark: str) -> None:
        self._log = log
        self._mark = mark

    def count(self) -> int:
        """How many lines have the mark now."""
        return sum(self._mark in line for line in _text(self._log).splitlines())


def _text(log: Path) -> str:
    return log.read_text(errors="replace") if log.exists() else ""


@contextmanager
def world(root: Path, stack: str) -> Iterator[World]:
    """A local cloud in `root` for a stack; it is ended afterwards."""
    environment = {**os.environ, "TRAINYARD_HOME": str(root)}
    start = [sys.executable, "-m", "local", "up"]
    started = subprocess.run(start, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    if started.returncode != 0:
        raise SweepError(f"the local cloud did not start: {started.stdout}{started.stderr}")
    try:
        made = World(Home(root), stack)
        made.keep_up()
        made.give()
        yield made
    finally:
        end = [sys.executable, "-m", "local", "down"]
        subprocess.run(end, cwd=ROOT, env=environment, capture_output=True, timeout=300)
