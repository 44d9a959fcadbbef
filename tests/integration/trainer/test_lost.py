"""The trainer loses a process that hangs, and the node that hosts the rendezvous."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from torch.distributed.flight_recorder.components.loader import read_dump

from tests.integration.trainer.conftest import Node, Operator, Start
from tests.integration.trainer.test_failure_broadcast import last_record
from tests.integration.trainer.test_stopping import wait_for
from tests.integration.trainer.trained import read_until
from trainer.contract import Exit

pytestmark = pytest.mark.trainer

ENDLESS = ("--device", "cpu", "--epochs", "100000")


def workers(node: Node) -> list[int]:
    """Return the process ids of the workers of torchrun's agent or of a gang, by rank."""
    agent = node.process.pid
    # In the order of their start (man 5 proc_tid_children).
    return [int(each) for each in Path(f"/proc/{agent}/task/{agent}/children").read_text().split()]


def has_ended(pid: int) -> bool:
    """Return whether a process has exited. It may be a zombie while torchrun stops the others."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_process_that_hangs_ends_the_run_with_25_and_dumps(start: Start, tmp_path: Path) -> None:
    words = ("--timeout-seconds", "6", "--metrics-directory", str(tmp_path))
    node = start.gang(*ENDLESS, *words, processes=2)
    read_until(node, "step=")
    pids = workers(node)
    os.kill(pids[1], signal.SIGSTOP)
    start_time = time.monotonic()
    wait_for(lambda: has_ended(pids[0]))
    took = time.monotonic() - start_time
    os.kill(pids[1], signal.SIGCONT)
    ended = node.end()
    assert ended.code == Exit.HUNG, ended.output
    assert 5 < took < 6 + 20
    dumps = tmp_path / "hangs" / "run"
    assert "error: rank 0 hung: no progress for 6 s in this phase: " in ended.output
    assert "trainer/trainer.py" in (dumps / "stacks_0").read_text()
    dump = read_dump("flight_gloo_", str(dumps / "flight_gloo_0"))
    assert dump["rank"] == 0
    assert [entry for entry in dump["entries"] if entry["state"] != "completed"], dump["entries"][-3:]
    assert last_record(tmp_path) == {"kind": "end", "outcome": "failed", "exit_code": 25, "failed_rank": None}


def test_run_with_a_killed_process_records_its_end(start: Start, tmp_path: Path) -> None:
    node = start.gang(*ENDLESS, "--metrics-directory", str(tmp_path), processes=2)
    read_until(node, "step=")
    os.kill(workers(node)[1], signal.SIGKILL)
    ended = node.end()
    assert ended.code not in (Exit.SUCCEEDED, Exit.CONFIGURATION), ended.output
    last = last_record(tmp_path)
    assert (last["kind"], last["failed_rank"]) == ("end", None), "a killed process reports no failure"
    # It notices either the lost connection or the agent's signal first.
    assert (last["outcome"], last["exit_code"]) in (("failed", Exit.FAILED), ("stopped", Exit.STOPPED))


def test_workers_end_soon_when_the_rendezvous_node_is_lost(start: Start, operator: Operator) -> None:
    first, second = [start.fork(*ENDLESS, **environ) for environ in operator(2)]
    read_until(first, "step=")
    for pid in (first.process.pid, *workers(first)):
        os.kill(pid, signal.SIGKILL)
    start_time = time.monotonic()
    ended = second.end()
    assert time.monotonic() - start_time < 20
    assert ended.code == Exit.FAILED, ended.output
    assert len([line for line in ended.output.splitlines() if line.startswith("error: rank 1: ")]) == 1
    assert "Traceback" not in ended.output
    assert "frame #" not in ended.output
