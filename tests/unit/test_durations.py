"""Durations of tests: what a run records, and what `make test` shows of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import durations, suite
from tests.benchmarks.figures import Figure, Note
from tests.durations import Duration

SAMPLE = """
import time, pytest

@pytest.fixture
def slow():
    time.sleep(0.2)

def test_a(slow): pass
def test_b(): time.sleep(0.1)
def test_c(): assert 1 == 2, "not equal"
"""


@pytest.mark.long
def test_run_with_workers_records_each_test_once(tmp_path: Path) -> None:
    (tmp_path / "test_sample.py").write_text(SAMPLE)
    recorded = tmp_path / "durations"
    plugin = (
        "import os, sys; sys.path.insert(0, {!r}); from tests.durations import register as pytest_configure"
    )
    (tmp_path / "conftest.py").write_text(plugin.format(str(durations.ROOT)))
    (tmp_path / "pytest.ini").write_text("[pytest]")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "-n", "2", str(tmp_path)]
    environment = {durations.FILE: str(recorded), "PATH": "/usr/bin:/bin"}
    answer = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert answer.returncode == 1, answer.stdout + answer.stderr
    found = {each.test: each for each in durations.read(recorded)}
    assert set(found) == {f"test_sample.py::test_{name}" for name in "abc"}
    assert found["test_sample.py::test_a"].setup >= 0.2
    assert found["test_sample.py::test_b"].call >= 0.1
    assert found["test_sample.py::test_b"].setup < 0.1
    assert found["test_sample.py::test_b"].failure == ""
    assert "not equal" in found["test_sample.py::test_c"].failure
    assert durations.summary(list(found.values()), [])[-2] == "failed tests"


def test_file_that_fails_to_import_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "test_sample.py").write_text("import absent_module\n")
    (tmp_path / "pytest.ini").write_text("[pytest]")
    recorder = durations.Recorder(tmp_path / "durations")
    pytest.main(["-q", "-p", "no:randomly", str(tmp_path)], plugins=[recorder])
    (failure,) = durations.read(tmp_path / "durations")
    assert failure.test == "test_sample.py"
    assert "absent_module" in failure.failure


def test_summary_names_slowest_tests_and_missed_budgets() -> None:
    tests = [Duration(test=f"a.py::test_{n}", call=n, setup=20 - n) for n in range(20)]
    tiers = [Figure(name="check", value=61, limit=60, unit="s"), Note(name="tools", text="900.0 s")]
    lines = durations.summary(tests, tiers)
    begins = [
        lines.index(title) for title in ("slowest tests (without their set-up)", "slowest set-ups", "tiers")
    ]
    assert begins == [0, 6, 12]
    assert [line.rsplit("_", 1)[1] for line in lines[1:3]] == ["19", "18"]
    assert [line.rsplit("_", 1)[1] for line in lines[7:9]] == ["0", "1"]
    assert lines[13].split() == ["check", "61.0", "s", "limit", "60", "s", "MISSED"]
    assert lines[14].endswith("900.0 s")


def test_table_has_each_file_once_and_its_slow_tests() -> None:
    tests = [
        Duration(test="a.py::test_x[1|2]", call=3.0, setup=1.0),
        Duration(test="a.py::test_y", call=0.5, teardown=0.25),
        Duration(test="b.py::test_z", call=9.0),
    ]
    lines = durations.table(tests).splitlines()
    assert lines[2:4] == ["| b.py | 1 | 9.0 | 0.0 | 9.0 |", "| a.py | 2 | 3.5 | 1.2 | 3.0 |"]
    assert lines[-2:] == ["| b.py::test_z | 0.0 | 9.0 | 0.0 |", "| a.py::test_x[1\\|2] | 1.0 | 3.0 | 0.0 |"]


def test_suite_with_unknown_tier_says_which_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert suite.main(["lives"]) == 2
    assert "tier: 'lives' is unknown. It must be one of check, " in capsys.readouterr().err


def test_suite_after_a_failure_stops_and_shows_its_tiers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def tier(name: str, code: int) -> suite.Tier:
        return suite.Tier(name=name, commands=((sys.executable, "-c", f"exit({code})"),), budget=60)

    monkeypatch.setattr(suite, "TIERS", (tier("one", 0), tier("two", 3), tier("three", 0)))
    monkeypatch.setattr(suite, "RECORDED", tmp_path / "durations")
    assert suite.main([]) == 3
    *shown, last = capsys.readouterr().out.partition("tiers\n")[2].splitlines()
    assert [line.split()[0] for line in shown] == ["one", "two"]
    assert last == f"exit code 3: {sys.executable} -c exit(3)"


def test_commands_at_once_all_run_and_show_their_output(capsys: pytest.CaptureFixture[str]) -> None:
    codes = ("print('first'); exit(3)", "print('second')")
    commands = tuple((sys.executable, "-c", code) for code in codes)
    tier = suite.Tier(name="one", commands=commands, budget=60, at_once=True)
    assert suite.run(tier, {}) == {commands[0]: 3}
    assert sorted(capsys.readouterr().out.split()) == ["first", "second"]
