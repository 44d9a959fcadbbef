"""Ctrl-C in a terminal: SIGINT to the whole process group of torchrun stops a training as SIGTERM does."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.integration.trainer.conftest import Node, Start
from tests.integration.trainer.trained import SLOWED, TORCHRUN, Trained, read_until, same, stopped_at
from trainer.contract import Exit

pytestmark = pytest.mark.trainer

STEPS = 30
WORDS = ("--steps", str(STEPS), "--log-every", "1")
# A shell makes each command a process group of its own, and the terminal's driver sends SIGINT to all of the one in
# front (man 3 tcsetpgrp, man 4 termios: ISIG). `has_own_group` does the same for a fork.
IN_A_GROUP = (
    "-c",
    "import os, sys; os.setpgrp(); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])",
)
# The entry point, which takes long for what it does before it starts processes.
SLOW_AT_THE_START = """
import sys, time
from trainer import entrypoint
def slowly(*_):
    print("ready", flush=True)
    time.sleep(1000)
entrypoint.check_device = slowly
sys.exit(entrypoint.main())
"""
ENTRIES = {"trainer.entrypoint": ("-m", "trainer.entrypoint"), "torchrun": (*TORCHRUN, "-m", "trainer.train")}


def interrupt(node: Node) -> None:
    """What Ctrl-C does."""
    os.killpg(node.process.pid, signal.SIGINT)


@pytest.fixture(scope="module")
def undisturbed(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    trained = Trained(start, tmp_path_factory.mktemp("undisturbed"), *WORDS)
    trained.end()
    return trained


def test_interrupted_runs_save_and_end_as_undisturbed(
    undisturbed: Trained, start: Start, tmp_path: Path
) -> None:
    """Each entry's training is interrupted and goes on where the one before was."""
    trained = Trained(start, tmp_path, *WORDS, patch=SLOWED)
    came_to = 0
    for entry, stop_at in (("trainer.entrypoint", 5), ("torchrun", 15)):
        node = trained.begin(entry=ENTRIES[entry], has_own_group=True, SLOW_STEP=str(stop_at))
        read = read_until(node, f"step={stop_at} ")
        if came_to:
            assert any(line.startswith(f"checkpoint=loaded step={came_to} ") for line in read)
        began = time.monotonic()
        interrupt(node)
        ended = node.end()
        assert time.monotonic() - began <= 10
        # torchrun itself ends with 1, and a stack trace of its own, after any signal.
        assert ended.code == (Exit.STOPPED if entry == "trainer.entrypoint" else 1), ended.output
        assert "KeyboardInterrupt" not in ended.output
        if entry == "trainer.entrypoint":
            assert "Traceback" not in ended.output
        came_to = stopped_at(ended, "SIGINT")
        assert stop_at <= came_to < STEPS
    last = trained.end()
    assert f"checkpoint=loaded step={came_to} " in last.output
    assert same(trained.model(), undisturbed.model())


def test_interrupt_before_any_process_ends_with_the_same_code(start: Start) -> None:
    """torchrun's agent takes over the signals when it starts the processes; until then it is the entry point's."""
    node = start("--device", "cpu", entry=(*IN_A_GROUP, "-c", SLOW_AT_THE_START))
    read_until(node, "ready")
    interrupt(node)
    ended = node.end()
    assert ended.code == Exit.STOPPED, ended.output
    assert "Traceback" not in ended.output
