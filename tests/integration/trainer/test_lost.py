"""The real trainer loses a process that hangs, and the machine where all processes met."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from torch.distributed.flight_recorder.components.loader import read_dump

from tests.integration.trainer.conftest import Node, Start
from tests.integration.trainer.test_others import last_record
from tests.integration.trainer.test_stopping import wait_for
from trainer.contract import Exit

pytestmark = pytest.mark.trainer

ENDLESS = ("--device", "cpu", "--epochs", "100000")


def workers(node: Node) -> list[int]:
    """The ids of the processes of torchrun's agent, or of a gang, by rank."""
    agent = node.process.pid
    # In the order in which they were started (man 5 proc_tid_children).
    return [int(each) for each in Path(f"/proc/{agent}/task/{agent}/children").read_text().split()]


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or an entry that its parent has yet to read: torchrun may first end all others."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def until_it_trains(node: Node) -> None:
    """Read its log up to the first step's line."""
    assert node.process.stdout is not None
    while not node.process.stdout.readline().startswith("step="):
        assert node.process.poll() is None


def test_process_that_hangs_ends_the_run_with_25_and_dumps(start: Start, tmp_path: Path) -> None:
    words = ("--timeout-seconds", "6", "--metrics-directory", str(tmp_path))
    node = start.gang(*ENDLESS, *words, processes=2)
    until_it_trains(node)
    still = workers(node)
    os.kill(still[1], signal.SIGSTOP)
    began = time.monotonic()
    wait_for(lambda: has_ended(still[0]))
    took = time.monotonic() - began
    os.kill(still[1], signal.SIGCONT)
    ended = node.end()
    assert ended.code == Exit.HUNG, ended.output
    assert 5 < took < 6 + 20
    dumps = tmp_path / "hangs" / "run"
    assert "error: rank 0 hung: no progress for 6 s in this phase: " in ended.output
    assert "trainer/trainer.py" in (dumps / "stacks_0").read_text()
    told = read_dump("flight_gloo_", str(dumps / "flight_gloo_0"))
    assert told["rank"] == 0
    assert [entry for entry in told["entries"] if entry["state"] != "completed"], told["entries"][-3:]
    assert last_record(tmp_path) == {"kind": "end", "outcome": "failed", "exit_code": 25, "failed_rank": None}


def test_a_training_of_which_a_process_is_killed_tells_its_end(start: Start, tmp_path: Path) -> None:
    node = start.gang(*ENDLESS, "--metrics-directory", str(tmp_path), processes=2)
    until_it_trains(node)
    os.kill(workers(node)[1], signal.SIGKILL)
    ended = node.end()
    assert ended.code not in (Exit.SUCCEEDED, Exit.CONFIGURATION), ended.output
    last = last_record(tmp_path)
    assert (last["kind"], last["failed_rank"]) == ("end", None), "who is killed tells nobody"
    # Whichever it notices first: that the other is gone, or torchrun's signal that follows from it.
    assert (last["outcome"], last["exit_code"]) in (("failed", Exit.FAILED), ("stopped", Exit.STOPPED))


def test_the_others_end_soon_when_the_machine_is_gone_where_all_met(
    start: Start, operator: Callable[[int], list[dict[str, str]]]
) -> None:
    first, second = [start.fork(*ENDLESS, **environ) for environ in operator(2)]
    until_it_trains(first)
    for pid in (first.process.pid, *workers(first)):
        os.kill(pid, signal.SIGKILL)
    began = time.monotonic()
    ended = second.end()
    assert time.monotonic() - began < 20
    assert ended.code == Exit.FAILED, ended.output
    assert len([line for line in ended.output.splitlines() if line.startswith("error: rank 1: ")]) == 1
    assert "Traceback" not in ended.output
    assert "frame #" not in ended.output
