"""The engine of `make up` or `make down` is killed at a chosen resource, and one `make down` follows."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path

from tests.account import things
from tests.integration.sweeps.plan import Interruption, Outcome, commit
from tests.world import UP_SECONDS, World, WorldError
from trainyard.cli.engine_session import Session

POLL_SECONDS = 0.02
DONE = {"up": " created (", "destroy": " deleted ("}


def interrupt(world: World, interruption: Interruption) -> Outcome:
    """One interruption from an empty account to what one `make down` leaves."""
    before = things(world.client)
    if interruption.command == "destroy":
        world.up()
    reached = _killed(world, interruption)
    code, output = world.down()
    if code != 0:
        print(output, flush=True)
    left = sorted(things(world.client) - before)
    if code == 0:
        left += world.tagged()
    return Outcome(
        interruption=interruption,
        commit=commit(),
        reached=reached,
        down=code,
        left=tuple(left),
        taken_over=len(re.findall(r"^taking over ", output, re.M)),
        swept=len(re.findall(r"^sweep: ", output, re.M)),
    )


def _killed(world: World, interruption: Interruption) -> int:
    """Run the command and kill its engine at the resource; returns how many resources it had finished."""
    process = world.deploy("up" if interruption.command == "up" else "down")
    counter = Counter(world.log, DONE[interruption.command])
    deadline = time.monotonic() + UP_SECONDS
    while process.poll() is None and counter.count() < interruption.at and not _is_up(world, interruption):
        if time.monotonic() > deadline:
            process.kill()
            raise WorldError(f"{interruption}: not reached within {UP_SECONDS:.0f} s")
        time.sleep(POLL_SECONDS)
    session = Session.load(world.home.root / "stacks" / f"{world.stack}.session.json")
    if session and session.leader.alive:
        os.kill(session.leader.pid, signal.SIGKILL)
    reached = counter.count()
    try:
        process.communicate(timeout=60)
    except subprocess.TimeoutExpired:  # it follows the run of a stack that was up before
        process.kill()
        process.communicate()
    return reached


def _is_up(world: World, interruption: Interruption) -> bool:
    """Whether the engine had nothing more to do before the resource's turn came."""
    return interruption.command == "up" and "Resources:" in _text(world.log)


class Counter:
    """Counts lines of a log that grows. Only what is new is read: it is asked fifty times a second."""

    def __init__(self, log: Path, mark: str) -> None:
        self._log = log
        self._mark = mark
        self._read = 0
        self._found = 0

    def count(self) -> int:
        """How many whole lines have the mark now."""
        if self._log.exists():
            if (
                self._log.stat().st_size < self._read
            ):  # the next engine of the same command has started a new one
                self._read = self._found = 0
            with self._log.open("rb") as file:
                file.seek(self._read)
                whole, end, _ = file.read().rpartition(b"\n")
            self._read += len(whole + end)
            self._found += whole.count(self._mark.encode())
        return self._found


def _text(log: Path) -> str:
    return log.read_text(errors="replace") if log.exists() else ""
