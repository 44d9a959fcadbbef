"""What a command does that is killed, interrupted or runs out of disk: the next one goes on, nothing doubled or left.

The steps follow one another on one local cloud. How far the engine gets before each blow is drawn by chance.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from local.guard import cloud_environment
from local.home import Home
from tests.account import connected
from tests.integration.local.account import Inventory, inventory, without
from tests.integration.local.conftest import Command, run
from tests.seed import of_run
from trainyard.cli.engine import ROOT, Engine
from trainyard.cli.engine_session import Session

pytestmark = [pytest.mark.local, pytest.mark.timeout(900)]

STACK = "zz-stopped"
OTHER = "zz-other"
DISK_BYTES = 3 << 30
SPACE_OF_A_STACK = 300_000_000
# What a stopped command says of the two that follow it.
GOES_ON = (("up", "goes on from here"), ("down", "removes all"))
# The last resources of a destroyed stack go after its machines, on a machine that may be busy.
STEP_SECONDS = 400


class Place:
    """A home on a small disk of its own, and the commands that a person types there."""

    def __init__(self, disk: Path) -> None:
        self.disk = disk
        self.home = Home(disk / "home")
        self.variables = {**os.environ, "TRAINYARD_HOME": str(self.home.root)}
        self.chance = random.Random(of_run())  # noqa: S311  (moments, not keys)

    def run(self, command: str, stack: str = STACK) -> Command:
        return run(_command(command, stack), self.variables)

    def start(self, command: str) -> Started:
        """Start a command that will not come to its end by itself."""
        output = self.disk.parent / "output"
        with output.open("w") as sink:
            process = subprocess.Popen(
                _command(command, STACK), cwd=ROOT, env=self.variables, stdout=sink, stderr=subprocess.STDOUT
            )
        return Started(process=process, output=output, place=self)

    def engine(self, stack: str = STACK) -> Engine:
        return Engine(self.home.root, stack, cloud_environment(self.home))

    def resources(self) -> list[dict[str, Any]]:
        """What the engine's state names now; empty where there is none yet."""
        file = self.home.root / "stacks" / "state" / ".pulumi" / "stacks" / "trainyard" / f"{STACK}.json"
        try:
            latest = json.loads(file.read_text())["checkpoint"].get("latest") or {}
        except (FileNotFoundError, ValueError):  # not yet, or half of it
            return []
        found: list[dict[str, Any]] = latest.get("resources") or []
        return found

    def client(self, service: str) -> Any:
        cloud = self.home.cloud()
        assert cloud is not None, "the local cloud is not running"
        return connected(cloud, cloud["region"])(service)

    def account(self) -> Inventory:
        return inventory(self.client)

    def write_stack(self, run_id: str) -> None:
        """The stack `local` under another name, with this run on one node."""
        document = yaml.safe_load((ROOT / "Pulumi.local.yaml").read_text())
        training = {"runId": run_id, "minNodes": 1, "maxNodes": 1, "args": ["--epochs", "1"]}
        document["config"]["trainyard:training"].update(training)
        stack_file().write_text(yaml.safe_dump(document))

    def write_other(self) -> None:
        """The stack `dev` under another name, without a run."""
        document = yaml.safe_load((ROOT / "Pulumi.dev.yaml").read_text())
        del document["config"]["trainyard:training"]
        stack_file(OTHER).write_text(yaml.safe_dump(document))


@dataclass(frozen=True, kw_only=True)
class Started:
    """A command at work."""

    process: subprocess.Popen[bytes]
    output: Path
    place: Place

    def wait_for(self, what: Callable[[int], bool]) -> int:
        """Wait until the engine works and the number of resources in its state is right; returns its process id."""
        record = self.place.home.root / "stacks" / f"{STACK}.session.json"
        deadline = time.monotonic() + STEP_SECONDS
        while time.monotonic() < deadline:
            assert self.process.poll() is None, f"it has ended already:\n{self.output.read_text()}"
            session = Session.load(record)
            if session is not None and what(len(self.place.resources())):
                return session.leader.pid
            # To read the state takes a part of a second of a processor, which the engine needs.
            time.sleep(0.1)
        raise AssertionError(f"not within {STEP_SECONDS} s:\n{self.output.read_text()}")

    def end(self) -> Command:
        """How it ended."""
        code = self.process.wait(300)
        print(self.output.read_text())
        return Command(code=code, output=self.output.read_text())

    def kill(self, engine: int) -> None:
        """As when the machine's memory ends: neither the command nor the engine gets a word."""
        os.kill(engine, signal.SIGKILL)
        self.process.kill()
        self.end()


def _command(command: str, stack: str) -> list[str]:
    return [sys.executable, "-m", "trainyard.cli", command, "--stack", stack, "--cloud", "local"]


def stack_file(stack: str = STACK) -> Path:
    return ROOT / f"Pulumi.{stack}.yaml"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A small disk, and on it a home; the other stack is in place from the start."""
    assert os.geteuid() == 0, (
        "only root can mount the small disk: `make test` makes an ordinary user root of its own"
    )
    disk = tmp_path_factory.mktemp("small") / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "trainyard", disk], check=True)
    here = Place(disk)
    here.write_stack("r1")
    here.write_other()
    try:
        assert here.run("up", OTHER).code == 0
        yield here
    finally:
        for stack in (STACK, OTHER):
            stack_file(stack).unlink(missing_ok=True)
        run([sys.executable, "-m", "local", "reset"], here.variables)
        subprocess.run(["umount", disk], check=True)


@pytest.fixture(scope="module")
def inventory_of_others(place: Place) -> Inventory:
    """What the account holds of the other stack alone."""
    return place.account()


def fill(file: Path, leave: int = 0) -> Path:
    """A file that takes the space that is left on its disk, but for `leave` bytes."""
    with file.open("ab", buffering=0) as sink:
        while (more := shutil.disk_usage(file.parent).free - leave) > 0:
            with contextlib.suppress(OSError):
                sink.write(bytes(min(more, 1 << 20)))
    return file


def test_down_after_a_killed_up_leaves_nothing(place: Place, inventory_of_others: Inventory) -> None:
    killed = place.start("up")
    target = place.chance.randint(1, 100)
    killed.kill(killed.wait_for(lambda count: count >= target))
    print(f"killed after {len(place.resources())} resources")
    answer = place.run("down")
    assert answer.code == 0
    assert without(place.account(), inventory_of_others) == {}
    leftovers = [sys.executable, "-m", "trainyard.cli", "verify-clean", "--stack", STACK, "--cloud", "local"]
    assert run(leftovers, place.variables).code == 0


def test_a_disk_that_fills_up_ends_up_with_its_place(place: Place, inventory_of_others: Inventory) -> None:
    # Most of it before, so that the rest is quickly done.
    ballast = fill(place.disk / "ballast", leave=SPACE_OF_A_STACK)
    command = place.start("up")
    target = place.chance.randint(3, 60)
    command.wait_for(lambda count: count >= target)
    before = len(place.resources())
    fill(ballast)
    print(f"full after {before} and before {len(place.resources())} resources")
    try:
        ended = command.end()
    finally:
        ballast.unlink()
    assert ended.code == 1
    assert "Traceback" not in ended.output
    (line,) = [line for line in ended.output.splitlines() if line.startswith("error:")]
    assert str(place.disk) in line
    assert "full" in line


def test_an_up_that_is_killed_is_taken_over_and_interrupted_in_order(place: Place) -> None:
    killed = place.start("up")
    target = len(place.resources()) + place.chance.randint(5, 40)
    killed.kill(killed.wait_for(lambda count: count >= target))
    assert "cut off" not in killed.output.read_text(), "the full disk cost the state its end"
    command = place.start("up")
    target = len(place.resources()) + 5
    command.wait_for(lambda count: count >= target)
    command.process.send_signal(signal.SIGINT)
    ended = command.end()
    assert "an earlier command was killed" in ended.output
    assert ended.code == 130
    commands = (
        f"`TRAINYARD_HOME={place.home.root} make {target} STACK={STACK} CLOUD=local` {does}"
        for target, does in GOES_ON
    )
    assert ", ".join(commands) in ended.output
    assert "Traceback" not in ended.output


def test_the_next_up_trains_to_the_end_and_nothing_is_there_twice(
    place: Place, inventory_of_others: Inventory
) -> None:
    assert place.run("up").code == 0
    known = {resource.get("id") for resource in place.resources()}
    own = without(place.account(), inventory_of_others)
    for kind in ("vpcs", "addresses", "NAT gateways", "roles", "clusters", "keys", "buckets", "queues"):
        assert own.get(kind), f"no {kind}"
        assert set(own[kind]) <= known, f"{kind} that the state does not know"


def test_a_killed_down_is_finished_by_the_next_and_the_other_stack_stays(
    place: Place, inventory_of_others: Inventory
) -> None:
    whole = len(place.resources())
    command = place.start("down")
    target = place.chance.randint(10, whole - 10)
    command.kill(command.wait_for(lambda count: count <= target))
    answer = place.run("down")
    assert answer.code == 0
    assert "sweep:" not in answer.output, "the program's own destroy left something"
    assert f"stays up for stack {OTHER}" in answer.output
    now = place.account()
    assert without(now, inventory_of_others) == {}
    assert now["clusters"] == inventory_of_others["clusters"]
