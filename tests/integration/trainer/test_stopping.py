"""Stops by signals and notices: all processes agree on the same step, and the deadline of each."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from tests.integration.trainer.together import run_processes
from trainer.contract import Exit, TrainerError
from trainer.shutdown import Stop, StopRequest, Urgency, patience

pytestmark = pytest.mark.trainer

LIMIT_SECONDS = 120.0


def wait_for(condition: Callable[[], Any]) -> Any:
    """Wait until `condition` returns a true value; return it."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def agree() -> tuple[int, str]:
    """In each process: return the calls of `agreed()` from a signal to process 1 until all stop, and the reason."""
    stop = Stop(patience=60, phase=lambda: "evaluation")
    stop.listen()
    stop.create_group(timedelta(seconds=60))
    start = time.perf_counter()
    for _ in range(50):
        assert not stop.agreed()
    assert (time.perf_counter() - start) / 50 < 0.02, "seconds a call; 0.0003 on an idle machine"
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGTERM)
        wait_for(lambda: stop.request.urgency == Urgency.SIGNAL)
    dist.barrier()
    calls = 1
    while not stop.agreed():
        calls += 1
    stop.settle()
    dist.barrier()
    stop.close()
    return calls, stop.request.reason


def test_signal_to_one_process_stops_all_at_the_same_call() -> None:
    """The first call sends the request, the second one receives it."""
    assert run_processes(2, agree) == [(2, "a signal to another process"), (2, "SIGTERM")]


@pytest.fixture
def create_stop() -> Iterator[Callable[..., tuple[Stop, list[tuple[Any, ...]]]]]:
    """`create_stop(patience, notice)`: a listening Stop, and the list of its calls of `leave`."""
    stops: list[Stop] = []

    def make(patience: float = 60, notice: Path | None = None) -> tuple[Stop, list[tuple[Any, ...]]]:
        ends: list[tuple[Any, ...]] = []
        stop = Stop(
            patience=patience,
            phase=lambda: "evaluation",
            notice=notice,
            leave=lambda *words, **_: ends.append(words),
        )
        stops.append(stop)
        stop.listen()
        return stop, ends

    yield make
    for stop in stops:
        stop.close()


def test_stop_of_a_single_process_is_agreed_at_the_next_call(create_stop: Any) -> None:
    stop, ends = create_stop()
    assert not stop.agreed()
    os.kill(os.getpid(), signal.SIGINT)  # must not raise KeyboardInterrupt
    wait_for(lambda: stop.request.urgency == Urgency.SIGNAL)
    assert stop.agreed()
    assert stop.agreed()
    assert stop.request.reason == "SIGINT"
    assert ends == []


def test_deadline_ends_the_process_once_and_names_the_phase(create_stop: Any) -> None:
    stop, ends = create_stop(patience=0.3)
    start_time = time.monotonic()
    os.kill(os.getpid(), signal.SIGTERM)
    code, line, _ = wait_for(lambda: ends)[0]
    assert time.monotonic() - start_time >= 0.3
    assert code == Exit.STOPPED
    assert line == (
        "error: stop requested by SIGTERM 0 s ago, still in this phase: evaluation; "
        "ended without another checkpoint, earlier checkpoints stay"
    )
    stop.close()
    assert len(ends) == 1


def test_deadline_is_short_once_all_work_is_saved(create_stop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.shutdown.PROMPT_SECONDS", 0.5)
    stop, ends = create_stop(patience=60)
    stop.set_unsaved_work(True)
    os.kill(os.getpid(), signal.SIGTERM)
    wait_for(lambda: stop.request.urgency == Urgency.SIGNAL)
    time.sleep(1)
    assert ends == []
    start_time = time.monotonic()
    stop.set_unsaved_work(False)
    code, line, _ = wait_for(lambda: ends)[0]
    assert 0.4 < time.monotonic() - start_time < 10
    assert (code, line.split(" s ago")[0]) == (Exit.STOPPED, "error: stop requested by SIGTERM 2")


def test_deadline_before_any_unsaved_work_is_short(create_stop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.shutdown.PROMPT_SECONDS", 0.3)
    _, ends = create_stop(patience=60)
    os.kill(os.getpid(), signal.SIGTERM)
    assert wait_for(lambda: ends)[0][0] == Exit.STOPPED


def test_stop_closed_in_time_restores_the_signal_handlers(create_stop: Any) -> None:
    before = signal.getsignal(signal.SIGTERM)
    stop, ends = create_stop(patience=0.3)
    os.kill(os.getpid(), signal.SIGTERM)
    wait_for(stop.agreed)
    stop.close()
    stop.close()
    time.sleep(0.6)
    assert ends == []
    assert signal.getsignal(signal.SIGTERM) is before
    assert signal.set_wakeup_fd(-1) == -1
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("stop-")]


def test_notice_has_no_deadline_and_a_later_signal_has_one(create_stop: Any, tmp_path: Path) -> None:
    stop, ends = create_stop(patience=0.3, notice=tmp_path / "notice")
    time.sleep(0.2)
    (tmp_path / "notice").touch()
    wait_for(stop.agreed)
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    os.kill(os.getpid(), signal.SIGUSR1)  # wakes the deadline's thread without a request
    signal.signal(signal.SIGUSR1, before)
    time.sleep(0.6)
    assert ends == []
    os.kill(os.getpid(), signal.SIGTERM)
    assert "stop requested by SIGTERM" in wait_for(lambda: ends)[0][1]


def test_earlier_notice_counts_once_it_is_written_again(create_stop: Any, tmp_path: Path) -> None:
    (tmp_path / "notice").touch()
    stop, _ = create_stop(notice=tmp_path / "notice")
    time.sleep(1.5)
    assert not stop.agreed()
    (tmp_path / "new").touch()
    (tmp_path / "new").rename(tmp_path / "notice")
    wait_for(stop.agreed)


def test_unreadable_notice_is_one_warning_and_stops_nothing(
    create_stop: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    stop, _ = create_stop(notice=tmp_path / "loop")
    time.sleep(1.5)
    assert not stop.agreed()
    assert capfd.readouterr().err == (
        f"warning: the notice {tmp_path / 'loop'} can't be read: Too many levels of symbolic links\n"
    )


def test_signal_to_a_forked_child_does_not_reach_its_parent(create_stop: Any) -> None:
    stop, _ = create_stop()
    for _ in range(20):  # most receive the signal before they run
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        os.kill(child, signal.SIGTERM)
        _, status = os.waitpid(child, 0)
        assert os.WTERMSIG(status) == signal.SIGTERM
    time.sleep(0.2)
    assert stop.request == StopRequest()


def test_most_urgent_request_counts_then_the_first(create_stop: Any) -> None:
    stop, _ = create_stop()
    found = []
    for urgency, reason in ((1, "notice"), (2, "early"), (2, "late"), (1, "notice")):
        stop._add(Urgency(urgency), reason)
        found.append(stop.request.reason)
    assert found == ["notice", "early", "early", "early"]


@pytest.mark.parametrize(
    ("environ", "seconds"),
    [
        ({}, 20),
        ({"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "120"}, 110),
        ({"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "120", "PET_SHUTDOWN_TIMEOUT": "60"}, 50),
        ({"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "6"}, 4),
    ],
)
def test_patience_is_well_below_torchruns(environ: dict[str, str], seconds: float) -> None:
    assert patience(environ) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["soon", "0", "-1", "nan", "inf"])
def test_invalid_shutdown_timeout_is_refused(text: str) -> None:
    with pytest.raises(TrainerError, match=f"PET_SHUTDOWN_TIMEOUT: '{text}' is not a positive") as caught:
        patience({"PET_SHUTDOWN_TIMEOUT": text})
    assert caught.value.code == Exit.CONFIGURATION


def test_torchrun_takes_its_timeout_from_the_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """`patience` relies on torch's variable names, their precedence and the default."""
    from torch.distributed.run import config_from_args, parse_args

    def waits() -> int | None:
        return config_from_args(parse_args(["script.py"]))[0].shutdown_timeout

    assert waits() == 30
    monkeypatch.setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "120")
    assert waits() == 120
    monkeypatch.setenv("PET_SHUTDOWN_TIMEOUT", "60")
    assert waits() == 60
