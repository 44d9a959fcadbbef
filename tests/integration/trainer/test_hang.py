"""A process that makes no progress: its detection, its dumps and its exit."""

from __future__ import annotations

import os
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from tests.integration.trainer.test_stopping import wait_for
from trainer.contract import Exit
from trainer.hang import Watch, set_dump_directory, timed_out, write_dumps

pytestmark = pytest.mark.trainer


CreateWatch = Callable[..., tuple[Watch, list[tuple[Any, ...]]]]


@pytest.fixture
def create_watch() -> Iterator[CreateWatch]:
    """`create_watch(limit)`: a started Watch, and the list of its calls of `leave` and `last`."""
    watches: list[Watch] = []

    def make(limit: float = 0.2, directory: Path | None = None) -> tuple[Watch, list[tuple[Any, ...]]]:
        ends: list[tuple[Any, ...]] = []
        watch = Watch(
            limit=limit,
            long_limit=60,
            rank=3,
            directory=directory,
            leave=lambda *words, **more: ends.append((*words, more)),
            last=lambda: ends.append(("last",)),
        )
        watches.append(watch)
        watch.start()
        return watch, ends

    yield make
    for watch in watches:
        watch.close()


def test_long_phase_has_time_and_a_stalled_short_one_ends(create_watch: CreateWatch, tmp_path: Path) -> None:
    watch, ends = create_watch(directory=tmp_path / "dumps")
    watch.enter("first step", long=True)
    time.sleep(0.8)
    assert not ends
    assert not watch.hung
    watch.enter("step")
    code, line, work, more = wait_for(lambda: ends)[0]
    assert watch.hung
    assert code == Exit.HUNG
    expected = "error: rank 3 hung: no progress for 0 s in this phase: step; stacks: "
    assert line == expected + str(tmp_path / "dumps")
    assert more == {"linger": 5.0}
    assert len(ends) == 1
    work()
    assert "most recent call first" in (tmp_path / "dumps" / "stacks_3").read_text()
    assert ends[1:] == [("last",)]


@pytest.mark.parametrize("late", [2, 10])
def test_watch_with_late_polls_counts_two_polls_at_most(late: int) -> None:
    class Late(threading.Event):
        polls = 0

        def wait(self, timeout: float | None = None) -> bool:
            self.polls += 1
            return super().wait((timeout or 0) * late)

    ends: list[tuple[Any, ...]] = []
    watch = Watch(limit=0.2, long_limit=0.2, rank=0, leave=lambda *words, **_: ends.append(words))
    watch._ended = ended = Late()
    watch.start()
    wait_for(lambda: ends)
    assert ended.polls == 2, "punctual polls would be four"


def test_watch_of_a_loop_with_progress_ends_nothing(create_watch: CreateWatch) -> None:
    watch, ends = create_watch(limit=2.0)
    watch.enter("step")
    for _ in range(30):
        time.sleep(0.1)
        watch.beat()
    assert ends == []
    assert watch.phase == "step"


def test_closed_watch_ends_nothing(create_watch: CreateWatch) -> None:
    watch, ends = create_watch()
    watch.enter("step")
    watch.close()
    time.sleep(0.6)
    assert ends == []


@pytest.mark.parametrize("directory", [None, "in the way"])
def test_stacks_without_a_directory_go_to_stderr(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], directory: str | None
) -> None:
    if directory is not None:
        (tmp_path / directory).write_text("a file")
    write_dumps(tmp_path / directory if directory else None, 1)
    stderr = capfd.readouterr().err
    assert "most recent call first" in stderr
    assert ("rank 1 can't write to" in stderr) == (directory is not None)


def test_failed_recorder_is_one_warning_and_others_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Another version of torch may have other parameters: pybind11 then lists them on several lines."""

    def dump(backend: str, **_: object) -> bytes:
        if backend == "gloo":
            raise TypeError(
                "_dump_fr_trace(): incompatible function arguments. Supported are:\n    1. others"
            )
        return pickle.dumps({"entries": ["one"]})

    monkeypatch.setattr(c10d, "_dump_fr_trace", dump)
    monkeypatch.delattr(c10d, "_dump_nccl_trace", raising=False)
    write_dumps(tmp_path, 3)
    first_line = "_dump_fr_trace(): incompatible function arguments. Supported are:"
    expected = f"warning: rank 3: no flight recorder of gloo: TypeError: {first_line}"
    assert capfd.readouterr().err.splitlines() == [expected]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["flight_nccl_3", "stacks_3"]
    monkeypatch.delattr(c10d, "_dump_fr_trace")
    write_dumps(tmp_path, 3)
    assert capfd.readouterr().err.count("AttributeError") == 2


def test_nccl_dumps_go_to_the_same_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    set_dump_directory(tmp_path / "hang")
    assert os.environ["TORCH_FR_DUMP_TEMP_FILE"] == str(tmp_path / "hang" / "flight_watchdog_")
    assert (tmp_path / "hang").is_dir()
    (tmp_path / "file").write_text("")
    set_dump_directory(tmp_path / "file")
    assert "stacks of a hang can't be written to" in capfd.readouterr().err
    assert os.environ["TORCH_NCCL_DEBUG_INFO_TEMP_FILE"] == str(tmp_path / "hang" / "flight_watchdog_")


def test_torch_timeouts_differ_from_other_errors() -> None:
    """The store's messages come from torch; gloo's was logged by a collective that one process did not enter."""
    store = dist.TCPStore("127.0.0.1", 0, 1, True, timedelta(seconds=1))
    with pytest.raises(RuntimeError) as waiting:
        store.get("missing")
    assert timed_out(waiting.value)
    with pytest.raises(RuntimeError) as joining:
        dist.TCPStore("127.0.0.1", 0, 2, True, timedelta(seconds=1))
    assert timed_out(joining.value)
    gloo = "[unbound_buffer.cc:78] Timed out waiting 3000ms for recv operation to complete"
    assert timed_out(RuntimeError(gloo))
    assert not timed_out(RuntimeError("Connection closed by peer [127.0.0.1]:4242"))
    assert not timed_out(ValueError("Timed out waiting"))
