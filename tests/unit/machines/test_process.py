from __future__ import annotations

import os
from pathlib import Path

import pytest

from local.machines.process import LOST, Process, start_time

pytestmark = pytest.mark.unit


def test_a_process_is_known_by_its_number_and_its_start(tmp_path: Path) -> None:
    me = os.getpid()
    (tmp_path / "keeper").write_text(f"{me} {start_time(me)}")
    found = Process.found(tmp_path)
    assert found is not None
    assert found.alive
    (tmp_path / "keeper").write_text(f"{me} 1")  # the number was given to another process
    assert not found.alive


def test_without_a_record_there_is_no_process(tmp_path: Path) -> None:
    assert Process.found(tmp_path) is None
    (tmp_path / "keeper").write_text("")
    assert Process.found(tmp_path) is None


def test_the_exit_code_is_read_from_disk_and_its_absence_is_an_end_by_force(tmp_path: Path) -> None:
    (tmp_path / "keeper").write_text("1 1")
    process = Process.found(tmp_path)
    assert process is not None
    assert process.ended().code == LOST
    (tmp_path / "exit").write_text("7\n")
    (tmp_path / "error").write_text("")
    assert (process.ended().code, process.ended().message) == (7, "")


def test_there_is_no_start_time_of_a_process_that_is_not_there() -> None:
    assert start_time(2**22 + 1) is None
