"""Of a killed engine nothing stays running, and nothing else is ever ended in its place."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from local.cluster.record import Process, read_stat
from trainyard.cli.engine_run import run_command
from trainyard.cli.engine_session import MARK, Session, end_recorded, started

# As pulumi does, it starts its children in process groups of their own; one of them does not heed SIGTERM.
ENGINE = (
    "set -m; sleep 60 & sh -c \"trap '' TERM; echo \\$\\$ >stubborn; while sleep 0.1; do :; done\" & wait"
)


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[subprocess.Popen[bytes], Session]]:
    monkeypatch.setattr("trainyard.cli.engine_session.PATIENCE_SECONDS", 0.2)
    monkeypatch.setattr("trainyard.cli.engine_session.POLL_SECONDS", 0.02)
    process = subprocess.Popen(
        ["bash", "-c", ENGINE], cwd=tmp_path, env={**os.environ, MARK: "m1"}, start_new_session=True
    )
    session = started(process.pid, "m1")
    until(lambda: (tmp_path / "stubborn").exists() and (tmp_path / "stubborn").read_text())
    yield process, session
    process.kill()
    process.wait()
    for member in session.members():
        os.kill(member.pid, signal.SIGKILL)


def test_what_a_killed_engine_leaves_is_ended_by_the_command_that_shows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainyard.cli.engine_session.PATIENCE_SECONDS", 0.2)
    record, seen = tmp_path / "record", []

    def kill() -> None:
        until(lambda: (tmp_path / "stubborn").exists() and (tmp_path / "stubborn").read_text())
        until(lambda: Session.load(record))  # the engine may be faster than the record
        session = Session.load(record)
        assert session
        seen.append(session)
        os.kill(session.leader.pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    code = run_command(["bash", "-c", ENGINE], tmp_path, os.environ, tmp_path / "log", record, lambda _: None)
    killer.join()
    assert code == -signal.SIGKILL
    assert list(seen[0].members()) == []
    assert read_stat(int((tmp_path / "stubborn").read_text())) is None
    assert not record.exists()


def test_the_next_command_ends_what_was_left_when_both_were_killed(
    engine: tuple[subprocess.Popen[bytes], Session], tmp_path: Path
) -> None:
    process, session = engine
    session.save(tmp_path / "record")
    process.kill()
    process.wait()
    left = {each.pid for each in end_recorded(tmp_path / "record")}
    assert int((tmp_path / "stubborn").read_text()) in left
    assert process.pid not in left
    assert list(session.members()) == []
    assert not (tmp_path / "record").exists()


def test_a_session_whose_id_came_back_is_left_alone(
    engine: tuple[subprocess.Popen[bytes], Session], tmp_path: Path
) -> None:
    process, session = engine
    other = replace(session, mark="of an engine that ended long ago")
    other.save(tmp_path / "record")
    assert end_recorded(tmp_path / "record") == []
    assert process.poll() is None
    assert len(list(session.members())) >= 3


def test_half_a_record_and_none_name_nobody(tmp_path: Path) -> None:
    assert end_recorded(tmp_path / "none") == []
    (tmp_path / "half").write_text('{"pid": 1')
    assert end_recorded(tmp_path / "half") == []


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    session = Session(leader=Process(7, 99), mark="x")
    session.save(tmp_path / "record")
    assert Session.load(tmp_path / "record") == session
