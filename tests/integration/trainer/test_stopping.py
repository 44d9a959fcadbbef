"""Stops by signals and notices in every phase: two processes agree on the same step."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.trainer.conftest import Node, Start
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


class Loop:
    """Two processes of tests/integration/trainer/loop.py, under torchrun or as a gang, and their notes."""

    def __init__(self, start: Start, notes: Path, *, torchrun: bool = False, **plan: Any) -> None:
        self.notes = notes
        module, words = "tests.integration.trainer.loop", json.dumps({"notes": str(notes), **plan})
        options = ("--standalone", "--nproc-per-node", "2", "-m", module)
        self.node: Node = (
            start.fork(*options, words, entry=("-m", "torch.distributed.run"))
            if torchrun
            else start.gang(words, module=module, processes=2)
        )

    def read_note(self, name: str, rank: int) -> dict[str, Any]:
        """Wait for this note of process `rank`; return it."""
        path = self.notes / f"{name}-{rank}"
        wait_for(lambda: path.exists() or self.node.process.poll() is not None)
        assert path.exists(), self.node.end().output
        return dict(json.loads(path.read_text()))


def exit_codes(output: str) -> dict[int, int]:
    """Return process -> exit code from a gang's log."""
    found = re.findall(r"^gang: process (\d+) ended with (-?\d+)$", output, re.M)
    return {int(rank): int(code) for rank, code in found}


def test_signal_to_one_process_stops_all_at_the_same_call(start: Start, tmp_path: Path) -> None:
    loop = Loop(start, tmp_path, **{"1": {"first_step_seconds": 2}})
    loop.read_note("joined", 0)
    os.kill(loop.read_note("joined", 1)["pid"], signal.SIGTERM)
    agreements = [loop.read_note("agreed", rank) for rank in range(2)]
    assert [each["calls"] for each in agreements] == [2, 2], (
        "the first call sends the request, the second one receives it"
    )
    assert [each["reason"] for each in agreements] == ["a signal to another process", "SIGTERM"]
    ended = loop.node.end()
    assert set(exit_codes(ended.output).values()) == {Exit.STOPPED}, ended.output


def test_torchrun_that_is_stopped_waits_for_the_agreement(start: Start, tmp_path: Path) -> None:
    loop = Loop(start, tmp_path, torchrun=True)
    pids = [loop.read_note("first-step", rank)["pid"] for rank in range(2)]
    time.sleep(0.5)
    loop.node.process.send_signal(signal.SIGTERM)
    agreements = [loop.read_note("agreed", rank) for rank in range(2)]
    assert agreements[0]["calls"] == agreements[1]["calls"]
    ended = [loop.read_note("ended", rank) for rank in range(2)]
    assert [each["pid"] for each in ended] == pids
    assert ended[0]["spent"] < 0.02, "seconds a call; 0.0003 on an idle machine"
    loop.node.end()


def test_notice_stops_all_in_an_evaluation_unless_it_is_old(start: Start, tmp_path: Path) -> None:
    notice = tmp_path / "notice"
    notice.write_text("of an earlier run")
    loop = Loop(start, tmp_path, notice=str(notice), batches=10_000)
    loop.read_note("first-step", 0)
    time.sleep(2.5)  # more than two polls
    assert not (tmp_path / "agreed-0").exists()
    (tmp_path / "new").write_text("")
    (tmp_path / "new").rename(notice)
    agreements = [loop.read_note("agreed", rank) for rank in range(2)]
    assert agreements[0]["calls"] == agreements[1]["calls"]
    assert [each["phase"] for each in agreements] == ["evaluation"] * 2
    assert f"the notice {notice}" in [each["reason"] for each in agreements]
    ended = loop.node.end()
    assert set(exit_codes(ended.output).values()) == {Exit.STOPPED}, ended.output
    assert f"warning: the notice {notice} is an old one; it counts when it is written again" in ended.output


def test_save_that_hangs_at_a_stop_is_named_and_ended(start: Start, tmp_path: Path) -> None:
    """Process 1 is in a C call that never returns, so the processes cannot agree."""
    loop = Loop(start, tmp_path, patience=2, **{"1": {"waits": "save"}})
    os.kill(loop.read_note("first-step", 1)["pid"], signal.SIGTERM)
    loop.read_note("waits", 1)
    start_time = time.monotonic()
    ended = loop.node.end()
    assert exit_codes(ended.output).get(1) == Exit.STOPPED, ended.output
    assert "error: stop requested by SIGTERM 2 s ago, still in this phase: save; " in ended.output
    assert time.monotonic() - start_time < 30


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
