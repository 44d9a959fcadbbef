"""Each record goes to all sinks, and training goes on when one fails."""

from __future__ import annotations

import http.client
import socket
import threading
from contextlib import closing
from pathlib import Path

import pytest

from tests.unit.trainer.records import START, STEP
from trainer.metrics.hub import Metrics, open_metrics
from trainer.metrics.record import Record, to_line

HOST = "127.83.1.1"


class Sink:
    """Keeps the records that it gets, and fails as often as the test asks."""

    def __init__(self, name: str, failures: int = 0) -> None:
        self.name, self.failures = name, failures
        self.records: list[Record] = []
        self.closed = 0

    def write(self, record: Record) -> None:
        if self.failures:
            self.failures -= 1
            raise OSError(28, "No space left on device")
        self.records.append(record)

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def port() -> int:
    """A port that was free a moment ago."""
    with socket.create_server((HOST, 0)) as free:
        number = free.getsockname()[1]
    return number


def test_failing_sink_is_reported_once_and_others_still_write(capsys: pytest.CaptureFixture[str]) -> None:
    failing, other = Sink("records", failures=3), Sink("other")
    metrics = Metrics([failing, other])
    for _ in range(5):
        metrics.write(STEP)
    assert len(other.records) == 5
    assert len(failing.records) == 2
    assert capsys.readouterr().err.splitlines() == [
        "metrics: records can't be written: [Errno 28] No space left on device; training continues",
        "metrics: records is written again; 3 records are missing",
    ]
    failing.failures = 1
    metrics.write(STEP)
    assert capsys.readouterr().err.count("can't be written") == 1, "a second failure is another one"


def test_closing_closes_all_though_one_fails(capsys: pytest.CaptureFixture[str]) -> None:
    class Stuck(Sink):
        def close(self) -> None:
            raise OSError("stuck")

    last = Sink("last")
    Metrics([Stuck("first"), last]).close()
    assert last.closed == 1
    assert capsys.readouterr().err == "metrics: first can't be written: stuck; training continues\n"


def test_open_metrics_opens_every_sink(tmp_path: Path, port: int, capsys: pytest.CaptureFixture[str]) -> None:
    metrics = open_metrics("r1", directory=tmp_path, port=port, host=HOST)
    for record in (START, STEP):
        metrics.write(record)
    with closing(http.client.HTTPConnection(HOST, port, timeout=30)) as connection:
        connection.request("GET", "/metrics")
        assert b'trainyard_trainer_step{run="r1"} 20.0' in connection.getresponse().read()
    metrics.close()
    metrics.close()
    assert (tmp_path / "r1.jsonl").read_text() == to_line(START) + to_line(STEP)
    (events,) = (tmp_path / "tensorboard" / "r1").iterdir()
    assert b"train/loss" in events.read_bytes()
    assert capsys.readouterr().err == ""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((HOST, port), timeout=30)


def test_without_directory_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    open_metrics("r1", directory=None, port=0).write(STEP)
    assert list(tmp_path.iterdir()) == []


def test_sink_that_cannot_open_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        metrics = open_metrics("r1", directory=tmp_path / "file", port=port, host=HOST)
    metrics.write(STEP)
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(": [")[0] for line in lines] == [
        "metrics: no records",
        "metrics: no tensorboard",
        f"metrics: no prometheus on port {port}",
    ]
    assert all(line.endswith("; training continues") for line in lines)


def test_record_after_close_is_dropped(capsys: pytest.CaptureFixture[str]) -> None:
    sink = Sink("records")
    metrics = Metrics([sink])
    metrics.write(START)
    metrics.close()
    sink.failures = 1
    metrics.write(STEP)
    assert (sink.records, sink.closed, capsys.readouterr().err) == ([START], 1, "")


def test_close_waits_for_a_write_in_another_thread() -> None:
    """The main thread trains on while another one ends the process."""
    written, resume = threading.Event(), threading.Event()

    class Slow(Sink):
        def write(self, record: Record) -> None:
            written.set()
            assert resume.wait(20)
            assert not self.closed
            super().write(record)

    sink = Slow("records")
    metrics = Metrics([sink])
    writing = threading.Thread(target=metrics.write, args=(STEP,))
    writing.start()
    assert written.wait(20)
    closing = threading.Thread(target=metrics.close)
    closing.start()
    closing.join(0.05)
    assert closing.is_alive()
    resume.set()
    for thread in (writing, closing):
        thread.join(20)
    assert (sink.records, sink.closed) == ([STEP], 1)
