"""Ctrl-C in a terminal: SIGINT to torchrun's process group stops a run as SIGTERM does."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.integration.trainer.conftest import Node, Start
from tests.integration.trainer.trained import (
    SLOWED,
    TORCHRUN,
    RunSeries,
    are_tensors_equal,
    read_until,
    stopped_at,
)
from trainer.contract import Exit

pytestmark = pytest.mark.trainer

STEPS = 30
WORDS = ("--steps", str(STEPS), "--log-every", "1")
# A shell gives each command its own process group, and the terminal sends SIGINT to the foreground group
# (man 3 tcsetpgrp, man 4 termios: ISIG). `has_own_group` does the same for a fork.
IN_A_GROUP = (
    "-c",
    "import os, sys; os.setpgrp(); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])",
)
# The entry point with a slow check before it starts processes.
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
    """Send SIGINT to the process group, as Ctrl-C does."""
    os.killpg(node.process.pid, signal.SIGINT)


@pytest.fixture(scope="module")
def undisturbed(start: Start, tmp_path_factory: pytest.TempPathFactory) -> RunSeries:
    runs = RunSeries(start, tmp_path_factory.mktemp("undisturbed"), *WORDS)
    runs.end()
    return runs


def test_interrupted_runs_save_and_end_as_undisturbed(
    undisturbed: RunSeries, start: Start, tmp_path: Path
) -> None:
    """Each entry point resumes from the checkpoint of the interrupted run before."""
    runs = RunSeries(start, tmp_path, *WORDS, patch=SLOWED)
    stopped_step = 0
    for entry, stop_at in (("trainer.entrypoint", 5), ("torchrun", 15)):
        node = runs.start_torchrun(entry=ENTRIES[entry], has_own_group=True, SLOW_STEP=str(stop_at))
        lines = read_until(node, f"step={stop_at} ")
        if stopped_step:
            assert any(line.startswith(f"checkpoint=loaded step={stopped_step} ") for line in lines)
        start_time = time.monotonic()
        interrupt(node)
        ended = node.end()
        assert time.monotonic() - start_time <= 10
        # torchrun exits with 1 and its own stack trace after any signal.
        assert ended.code == (Exit.STOPPED if entry == "trainer.entrypoint" else 1), ended.output
        assert "KeyboardInterrupt" not in ended.output
        if entry == "trainer.entrypoint":
            assert "Traceback" not in ended.output
        stopped_step = stopped_at(ended, "SIGINT")
        assert stop_at <= stopped_step < STEPS
    last = runs.end()
    assert f"checkpoint=loaded step={stopped_step} " in last.output
    assert are_tensors_equal(runs.model(), undisturbed.model())


def test_interrupt_before_any_process_ends_with_the_same_code(start: Start) -> None:
    """The entry point handles signals until torchrun's agent starts the processes."""
    node = start("--device", "cpu", entry=(*IN_A_GROUP, "-c", SLOW_AT_THE_START))
    read_until(node, "ready")
    interrupt(node)
    ended = node.end()
    assert ended.code == Exit.STOPPED, ended.output
    assert "Traceback" not in ended.output
