"""Being told to stop, by signals and notices, in every phase; two real processes agree on the same step."""

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


def wait_for(happened: Callable[[], Any]) -> Any:
    """What `happened` finds, as soon as it finds something."""
    until = time.monotonic() + LIMIT_SECONDS
    while not (found := happened()):
        assert time.monotonic() < until
        time.sleep(0.02)
    return found


class Loop:
    """Two processes of tests/integration/trainer/loop.py, under torchrun or as a gang, and what they noted."""

    def __init__(self, start: Start, notes: Path, *, torchrun: bool = False, **plan: Any) -> None:
        self.notes = notes
        module, words = "tests.integration.trainer.loop", json.dumps({"notes": str(notes), **plan})
        options = ("--standalone", "--nproc-per-node", "2", "-m", module)
        self.node: Node = (
            start.fork(*options, words, entry=("-m", "torch.distributed.run"))
            if torchrun
            else start.gang(words, module=module, processes=2)
        )

    def noted(self, name: str, rank: int) -> dict[str, Any]:
        """What process `rank` noted under this name, as soon as it did."""
        path = self.notes / f"{name}-{rank}"
        wait_for(lambda: path.exists() or self.node.process.poll() is not None)
        assert path.exists(), self.node.end().output
        return dict(json.loads(path.read_text()))


def exit_codes(output: str) -> dict[int, int]:
    """Process -> exit code, as a gang says it."""
    found = re.findall(r"^gang: process (\d+) ended with (-?\d+)$", output, re.M)
    return {int(rank): int(code) for rank, code in found}


def test_a_signal_to_one_process_in_its_first_step_stops_all_at_the_same_call(
    start: Start, tmp_path: Path
) -> None:
    loop = Loop(start, tmp_path, **{"1": {"first_step_seconds": 2}})
    loop.noted("joined", 0)
    os.kill(loop.noted("joined", 1)["pid"], signal.SIGTERM)
    told = [loop.noted("agreed", rank) for rank in range(2)]
    assert [each["calls"] for each in told] == [2, 2], "the first call sends the wish, the second knows of it"
    assert [each["reason"] for each in told] == ["a signal to another process", "SIGTERM"]
    ended = loop.node.end()
    assert set(exit_codes(ended.output).values()) == {Exit.STOPPED}, ended.output


def test_torchrun_that_is_stopped_waits_for_the_agreement(start: Start, tmp_path: Path) -> None:
    loop = Loop(start, tmp_path, torchrun=True)
    pids = [loop.noted("first-step", rank)["pid"] for rank in range(2)]
    time.sleep(0.5)
    loop.node.process.send_signal(signal.SIGTERM)
    told = [loop.noted("agreed", rank) for rank in range(2)]
    assert told[0]["calls"] == told[1]["calls"]
    ended = [loop.noted("ended", rank) for rank in range(2)]
    assert [each["pid"] for each in ended] == pids
    assert ended[0]["spent"] < 0.02, "seconds a call; 0.0003 on a machine that does nothing else"
    loop.node.end()


def test_a_notice_stops_all_in_an_evaluation_and_an_old_one_nobody(start: Start, tmp_path: Path) -> None:
    notice = tmp_path / "notice"
    notice.write_text("of a training before")
    loop = Loop(start, tmp_path, notice=str(notice), batches=10_000)
    loop.noted("first-step", 0)
    time.sleep(2.5)  # more than two looks
    assert not (tmp_path / "agreed-0").exists()
    (tmp_path / "new").write_text("")
    (tmp_path / "new").rename(notice)
    told = [loop.noted("agreed", rank) for rank in range(2)]
    assert told[0]["calls"] == told[1]["calls"]
    assert [each["phase"] for each in told] == ["evaluation"] * 2
    assert f"the notice {notice}" in [each["reason"] for each in told]
    ended = loop.node.end()
    assert set(exit_codes(ended.output).values()) == {Exit.STOPPED}, ended.output
    assert f"warning: the notice {notice} is an old one; it counts when it is written again" in ended.output


def test_save_that_hangs_at_a_stop_is_named_and_ended(start: Start, tmp_path: Path) -> None:
    """Process 1 is inside a C call that never returns, so that there is nothing to agree on."""
    loop = Loop(start, tmp_path, patience=2, **{"1": {"waits": "save"}})
    os.kill(loop.noted("first-step", 1)["pid"], signal.SIGTERM)
    loop.noted("waits", 1)
    began = time.monotonic()
    ended = loop.node.end()
    assert exit_codes(ended.output).get(1) == Exit.STOPPED, ended.output
    assert "error: stop requested by SIGTERM 2 s ago, still in this phase: save; " in ended.output
    assert time.monotonic() - began < 30


@pytest.fixture
def alone() -> Iterator[Callable[..., tuple[Stop, list[tuple[Any, ...]]]]]:
    """`alone(patience, notice)`: a Stop of this process that listens, and how it would have ended the process."""
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


def test_one_process_alone_stops_at_the_next_call(alone: Any) -> None:
    stop, ends = alone()
    assert not stop.agreed()
    os.kill(os.getpid(), signal.SIGINT)  # and no KeyboardInterrupt
    wait_for(lambda: stop.request.urgency == Urgency.SIGNAL)
    assert stop.agreed()
    assert stop.agreed()
    assert stop.request.reason == "SIGINT"
    assert ends == []


def test_the_deadline_ends_the_process_once_and_names_the_phase(alone: Any) -> None:
    stop, ends = alone(patience=0.3)
    began = time.monotonic()
    os.kill(os.getpid(), signal.SIGTERM)
    code, line, _ = wait_for(lambda: ends)[0]
    assert time.monotonic() - began >= 0.3
    assert code == Exit.STOPPED
    assert line == (
        "error: stop requested by SIGTERM 0 s ago, still in this phase: evaluation; "
        "ended without another checkpoint, earlier checkpoints stay"
    )
    stop.close()
    assert len(ends) == 1


def test_with_nothing_at_stake_the_deadline_is_short_and_counts_from_then_on(
    alone: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.shutdown.PROMPT_SECONDS", 0.5)
    stop, ends = alone(patience=60)
    stop.set_unsaved_work(True)
    os.kill(os.getpid(), signal.SIGTERM)
    wait_for(lambda: stop.request.urgency == Urgency.SIGNAL)
    time.sleep(1)
    assert ends == []
    began = time.monotonic()
    stop.set_unsaved_work(False)
    code, line, _ = wait_for(lambda: ends)[0]
    assert 0.4 < time.monotonic() - began < 10
    assert (code, line.split(" s ago")[0]) == (Exit.STOPPED, "error: stop requested by SIGTERM 2")


def test_before_there_is_anything_to_save_the_deadline_is_short(
    alone: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.shutdown.PROMPT_SECONDS", 0.3)
    _, ends = alone(patience=60)
    os.kill(os.getpid(), signal.SIGTERM)
    assert wait_for(lambda: ends)[0][0] == Exit.STOPPED


def test_who_ends_in_time_meets_no_deadline_and_gets_the_old_handlers_back(alone: Any) -> None:
    before = signal.getsignal(signal.SIGTERM)
    stop, ends = alone(patience=0.3)
    os.kill(os.getpid(), signal.SIGTERM)
    wait_for(stop.agreed)
    stop.close()
    stop.close()
    time.sleep(0.6)
    assert ends == []
    assert signal.getsignal(signal.SIGTERM) is before
    assert signal.set_wakeup_fd(-1) == -1
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("stop-")]


def test_a_notice_has_no_deadline_and_a_signal_after_it_has_one(alone: Any, tmp_path: Path) -> None:
    stop, ends = alone(patience=0.3, notice=tmp_path / "notice")
    time.sleep(0.2)
    (tmp_path / "notice").touch()
    wait_for(stop.agreed)
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    os.kill(os.getpid(), signal.SIGUSR1)  # wakes the thread that keeps the deadline, and says nothing
    signal.signal(signal.SIGUSR1, before)
    time.sleep(0.6)
    assert ends == []
    os.kill(os.getpid(), signal.SIGTERM)
    assert "stop requested by SIGTERM" in wait_for(lambda: ends)[0][1]


def test_earlier_notice_counts_once_it_is_written_again(alone: Any, tmp_path: Path) -> None:
    (tmp_path / "notice").touch()
    stop, _ = alone(notice=tmp_path / "notice")
    time.sleep(1.5)
    assert not stop.agreed()
    (tmp_path / "new").touch()
    (tmp_path / "new").rename(tmp_path / "notice")
    wait_for(stop.agreed)


def test_a_notice_that_cannot_be_looked_at_is_told_once_and_ends_nothing(
    alone: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    stop, _ = alone(notice=tmp_path / "loop")
    time.sleep(1.5)
    assert not stop.agreed()
    assert capfd.readouterr().err == (
        f"warning: the notice {tmp_path / 'loop'} can't be read: Too many levels of symbolic links\n"
    )


def test_a_forked_child_ends_by_its_own_signal_and_tells_its_parent_nothing(alone: Any) -> None:
    stop, _ = alone()
    for _ in range(20):  # most get the signal before they run
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        os.kill(child, signal.SIGTERM)
        _, status = os.waitpid(child, 0)
        assert os.WTERMSIG(status) == signal.SIGTERM
    time.sleep(0.2)
    assert stop.request == StopRequest()


def test_most_urgent_request_counts_and_of_two_the_first(alone: Any) -> None:
    stop, _ = alone()
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
def test_a_shutdown_timeout_that_is_no_number_of_seconds_is_told(text: str) -> None:
    with pytest.raises(TrainerError, match=f"PET_SHUTDOWN_TIMEOUT: '{text}' is not a positive") as caught:
        patience({"PET_SHUTDOWN_TIMEOUT": text})
    assert caught.value.code == Exit.CONFIGURATION


def test_torchrun_waits_as_long_as_the_variable_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `patience` takes from torch: the names of the variables, which of them counts, and the default."""
    from torch.distributed.run import config_from_args, parse_args

    def waits() -> int | None:
        return config_from_args(parse_args(["script.py"]))[0].shutdown_timeout

    assert waits() == 30
    monkeypatch.setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "120")
    assert waits() == 120
    monkeypatch.setenv("PET_SHUTDOWN_TIMEOUT", "60")
    assert waits() == 60
