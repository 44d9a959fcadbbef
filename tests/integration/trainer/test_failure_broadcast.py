"""One process of a run fails alone: all end soon with its exit code."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from tests.integration.trainer.conftest import ROOT, Start
from trainer.contract import Exit, LocalError, SharedError, TrainerError
from trainer.failure_broadcast import FailureBroadcast, alone
from trainer.world import World

pytestmark = pytest.mark.trainer

FAILING_BATCH = """
import os
import time
from pathlib import Path
from trainer.contract import Exit, TrainerError
from trainer.workloads.images import ImageClassification
batch, calls = ImageClassification.batch, []
def fails(self, indices, split):
    calls.append(split)
    if len(calls) == 5 and os.environ["RANK"] == "1":
        Path(os.environ["FAILED_AT"]).write_text(str(time.time()))
        raise {error}
    return batch(self, indices, split)
ImageClassification.batch = fails
"""


def last_record(metrics: Path) -> dict[str, Any]:
    """Return the outcome fields of rank 0's last record."""
    *_, line = (metrics / "run.jsonl").read_text().splitlines()
    record = json.loads(line)
    return {name: record.get(name) for name in ("kind", "outcome", "exit_code", "failed_rank")}


@pytest.mark.parametrize(
    ("error", "code"),
    [
        ('TrainerError(Exit.DATA, "data: the disk is gone")', Exit.DATA),
        ('LookupError("not foreseen")', Exit.FAILED),
    ],
)
def test_error_of_one_process_ends_all_with_its_code(
    start: Start, tmp_path: Path, error: str, code: Exit
) -> None:
    (tmp_path / "sitecustomize.py").write_text(FAILING_BATCH.format(error=error))
    words = ("--device", "cpu", "--epochs", "1000", "--metrics-directory", str(tmp_path / "metrics"))
    environ = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", "FAILED_AT": str(tmp_path / "failed")}
    ended = start.fork(*words, TRAINYARD_PROCESSES_PER_NODE="2", **environ).end()
    assert time.time() - float((tmp_path / "failed").read_text()) < 10
    assert ended.code == code, ended.output
    lines = [line for line in ended.output.splitlines() if line.startswith("error: ")]
    assert lines[-2:] == [
        "error: process 1 failed. See its log",
        f"error: training ended with exit code {code} (process 1 with {code}, process 0 with {code})",
    ]
    if code == Exit.DATA:
        assert lines[0] == "error: data: the disk is gone"
        assert "Traceback" not in ended.output
    else:  # the stack trace of this process only
        assert ended.output.count("Traceback (most recent call last)") == 1
        assert "LookupError: not foreseen" in ended.output
    assert "Connection" not in ended.output
    record = {"kind": "end", "outcome": "failed", "exit_code": code, "failed_rank": 1}
    assert last_record(tmp_path / "metrics") == record


def test_alone_wraps_only_errors_of_one_process() -> None:
    with pytest.raises(LocalError, match="data: gone") as caught, alone():
        raise TrainerError(Exit.DATA, "data: gone")
    assert caught.value.code == Exit.DATA
    with pytest.raises(SharedError), alone():
        raise SharedError(Exit.DATA, "everywhere")
    with pytest.raises(LookupError), alone():
        raise LookupError


class ThreeProcesses:
    """The failure broadcasts of three ranks in this process, with one store; records the exit of each."""

    def __init__(self) -> None:
        self.store = dist.TCPStore("127.0.0.1", 0, 1, True, timedelta(seconds=20))  # type: ignore[attr-defined]
        self.ends: list[list[tuple[Any, ...]]] = [[], [], []]
        self.records: list[list[tuple[Any, ...]]] = [[], [], []]
        self.broadcasts = [self._create_broadcast(rank) for rank in range(3)]
        for each in self.broadcasts:
            each.start(self.store)

    def _create_broadcast(self, rank: int) -> FailureBroadcast:
        world = World(rank=rank, size=3, local_rank=rank % 2, local_size=2, nodes=2)

        def leave(code: Exit, line: str, work: Callable[[], object], *, linger: float = 0.0) -> None:
            work()
            self.ends[rank].append((code, line))

        return FailureBroadcast(world, leave=leave, last=lambda *record: self.records[rank].append(record))

    def wait(self, *ranks: int) -> None:
        until = time.monotonic() + 20
        while not all(self.ends[rank] for rank in ranks):
            assert time.monotonic() < until
            time.sleep(0.02)


def test_first_failure_reaches_all_and_is_logged_once_per_node() -> None:
    processes = ThreeProcesses()
    start_time = time.monotonic()
    processes.broadcasts[1].send(Exit.SAVE)
    assert 0.05 < time.monotonic() - start_time < 2.9, "it waits for the others' acknowledgement only"
    processes.broadcasts[1].send(Exit.DATA)
    processes.wait(0, 2)
    time.sleep(1.5)
    line = "error: process 1 failed. See its log"
    assert processes.ends == [[(Exit.SAVE, line)], [], [(Exit.SAVE, line)]]
    assert processes.records == [[(Exit.SAVE, 1)], [], [(Exit.SAVE, 1)]]


def test_closed_broadcast_receives_nothing_and_delays_none() -> None:
    processes = ThreeProcesses()
    processes.broadcasts[2].close()
    start_time = time.monotonic()
    processes.broadcasts[1].send(Exit.SAVE)
    assert time.monotonic() - start_time < 5
    processes.wait(0)
    assert not processes.ends[2]


def test_errors_after_a_failure_elsewhere_are_held_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("trainer.failure_broadcast.ACKNOWLEDGE_SECONDS", 1.0)
    processes = ThreeProcesses()
    processes.broadcasts[0].wait_for_end()
    processes.broadcasts[1].send(Exit.SAVE)
    processes.wait(0)
    waiter = threading.Thread(target=processes.broadcasts[0].wait_for_end)
    waiter.start()
    waiter.join(0.5)
    assert waiter.is_alive()
    waiter.join()
