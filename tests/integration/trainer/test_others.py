"""One process of a real training fails alone, in the middle of it: all end soon, and with its code."""

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

from tests.integration.trainer.conftest import ROOT, Ended, Start, StartNode
from trainer.contract import Exit, TrainerError
from trainer.failure_broadcast import FailureBroadcast, LoneError, SharedError, alone
from trainer.world import World

pytestmark = pytest.mark.trainer

FAILS = """
import os
if os.environ.get("RANK") == "1":
    import time
    from pathlib import Path
    from trainer.contract import Exit, TrainerError
    from trainer.workloads.images import ImageClassification
    batch, calls = ImageClassification.batch, []
    def fails(self, indices, split):
        calls.append(split)
        if len(calls) == 5:
            Path(os.environ["FAILED_AT"]).write_text(str(time.time()))
            raise {error}
        return batch(self, indices, split)
    ImageClassification.batch = fails
"""


def failing(start: StartNode, folder: Path, error: str) -> tuple[Ended, float]:
    """How two processes end when the second cannot get its fifth batch, and the seconds from then to the end."""
    (folder / "sitecustomize.py").write_text(FAILS.format(error=error))
    paths, at = f"{folder}{os.pathsep}{ROOT}", folder / "failed"
    words = ("--device", "cpu", "--epochs", "1000", "--metrics-directory", str(folder / "metrics"))
    environ = {"PYTHONPATH": paths, "TRAINYARD_PROCESSES_PER_NODE": "2", "FAILED_AT": str(at)}
    ended = start(*words, **environ).end()
    return ended, time.time() - float(at.read_text())


def last_record(metrics: Path) -> dict[str, Any]:
    """What rank 0 told last, as far as it says how the training ended."""
    *_, line = (metrics / "run.jsonl").read_text().splitlines()
    told = json.loads(line)
    return {name: told.get(name) for name in ("kind", "outcome", "exit_code", "failed_rank")}


def test_data_error_of_one_process_ends_all_with_22(start: Start, tmp_path: Path) -> None:
    ended, seconds = failing(start.fork, tmp_path, 'TrainerError(Exit.DATA, "data: the disk is gone")')
    assert ended.code == Exit.DATA, ended.output
    said = [line for line in ended.output.splitlines() if line.startswith("error: ")]
    assert said == [
        "error: data: the disk is gone",
        "error: process 1 could not go on; its log says why",
        "error: training ended with exit code 22 (process 1 with 22, process 0 with 22)",
    ]
    assert last_record(tmp_path / "metrics") == {
        "kind": "end",
        "outcome": "failed",
        "exit_code": 22,
        "failed_rank": 1,
    }
    assert "Traceback" not in ended.output
    assert seconds < 10


def test_unforeseen_error_of_one_process_leaves_its_stack_only(start: Start, tmp_path: Path) -> None:
    ended, seconds = failing(start.fork, tmp_path, 'LookupError("not foreseen")')
    assert ended.code == Exit.FAILED, ended.output
    assert ended.output.count("Traceback (most recent call last)") == 1
    assert "LookupError: not foreseen" in ended.output
    assert "error: process 1 could not go on; its log says why" in ended.output
    assert "Connection" not in ended.output
    assert last_record(tmp_path / "metrics") == {
        "kind": "end",
        "outcome": "failed",
        "exit_code": 1,
        "failed_rank": 1,
    }
    assert seconds < 10


def test_alone_wraps_errors_of_one_process_and_no_shared_ones() -> None:
    with pytest.raises(LoneError, match="data: gone") as caught, alone():
        raise TrainerError(Exit.DATA, "data: gone")
    assert caught.value.code == Exit.DATA
    with pytest.raises(SharedError), alone():
        raise SharedError(Exit.DATA, "everywhere")
    with pytest.raises(LookupError), alone():
        raise LookupError


class Three:
    """Three processes' places in one store, all in this process; what each would have ended with."""

    def __init__(self) -> None:
        self.store = dist.TCPStore("127.0.0.1", 0, 1, True, timedelta(seconds=20))  # type: ignore[attr-defined]
        self.ends: list[list[tuple[Any, ...]]] = [[], [], []]
        self.told: list[list[tuple[Any, ...]]] = [[], [], []]
        self.others = [self._made(rank) for rank in range(3)]
        for each in self.others:
            each.join(self.store)

    def _made(self, rank: int) -> FailureBroadcast:
        world = World(rank=rank, size=3, local_rank=rank % 2, local_size=2, nodes=2)

        def leave(code: Exit, line: str, work: Callable[[], object], *, linger: float = 0.0) -> None:
            work()
            self.ends[rank].append((code, line))

        return FailureBroadcast(world, leave=leave, last=lambda *told: self.told[rank].append(told))

    def wait(self, *ranks: int) -> None:
        until = time.monotonic() + 20
        while not all(self.ends[rank] for rank in ranks):
            assert time.monotonic() < until
            time.sleep(0.02)


def test_first_failure_reaches_all_and_is_said_once_per_node() -> None:
    three = Three()
    began = time.monotonic()
    three.others[1].send(Exit.SAVE)
    assert 0.05 < time.monotonic() - began < 2.9, "it waits for the others, no longer"
    three.others[1].send(Exit.DATA)
    three.wait(0, 2)
    time.sleep(1.5)
    line = "error: process 1 could not go on; its log says why"
    assert three.ends == [[(Exit.SAVE, line)], [], [(Exit.SAVE, line)]]
    assert three.told == [[(Exit.SAVE, 1)], [], [(Exit.SAVE, 1)]]


def test_closed_process_hears_nothing_and_delays_nobody() -> None:
    three = Three()
    three.others[2].close()
    began = time.monotonic()
    three.others[1].send(Exit.SAVE)
    assert time.monotonic() - began < 5
    three.wait(0)
    assert not three.ends[2]


def test_errors_after_a_failure_elsewhere_are_held_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("trainer.failure_broadcast.ACKNOWLEDGE_SECONDS", 1.0)
    three = Three()
    three.others[0].wait_for_end()
    three.others[1].send(Exit.SAVE)
    three.wait(0)
    waits = threading.Thread(target=three.others[0].wait_for_end)
    waits.start()
    waits.join(0.5)
    assert waits.is_alive()
    waits.join()
