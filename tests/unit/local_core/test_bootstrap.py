"""The virtual environment: created once, and again if an earlier command was interrupted.

What goes wrong meanwhile is one line.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from local import bootstrap
from tests.benchmarks.local_cloud import DOWNLOADS


@pytest.fixture
def steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What is run for a checkout in a directory of its own, without running it."""
    (tmp_path / "requirements.lock").write_text("a==1\n")
    monkeypatch.setattr(bootstrap, "ROOT", tmp_path)
    monkeypatch.setattr(bootstrap, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(bootstrap, "LOCK", tmp_path / "requirements.lock")
    monkeypatch.setattr(bootstrap, "PROGRAM", tmp_path / ".venv" / "bin" / "trainyard")
    monkeypatch.setattr(bootstrap, "STAMP", tmp_path / ".venv" / "stamp")
    commands: list[list[str]] = []

    def run(_step: str, command: list[str]) -> str:
        commands.append(command)
        (tmp_path / ".venv" / "bin").mkdir(parents=True, exist_ok=True)
        for name in ("python", "pip"):
            (tmp_path / ".venv" / "bin" / name).touch()
        return "Prepared 148 packages in 1m 05s\n" if "sync" in command else ""

    monkeypatch.setattr(bootstrap, "run", run)
    return commands


def test_environment_without_pip_is_created_again(steps: list[list[str]]) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bootstrap.VENV], check=True)
    (bootstrap.VENV / "half").touch()
    bootstrap.main()
    assert steps[0][1:] == ["-m", "venv", str(bootstrap.VENV)]
    assert not (bootstrap.VENV / "half").exists()
    assert bootstrap.STAMP.exists()


def test_an_environment_is_kept_when_the_lock_changes_and_left_alone_when_it_does_not(
    steps: list[list[str]],
) -> None:
    bootstrap.main()
    assert len(steps) == 3
    bootstrap.main()
    assert len(steps) == 3
    bootstrap.LOCK.write_text("a==2\n")
    bootstrap.main()
    assert [command[1:3] for command in steps[3:]] == [["-m", "pip"], ["pip", "sync"]]
    assert steps[3][-3:] == ["--require-hashes", "--requirement", str(bootstrap.UV_LOCK)]
    assert bootstrap.UV_LOCK.read_text().count("==") == 1
    assert steps[-1][-1] == steps[-1][steps[-1].index("--build-constraints") + 1] == str(bootstrap.LOCK)


def test_environment_of_another_python_is_replaced(
    steps: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    bootstrap.main()
    (bootstrap.VENV / "of the first").touch()
    monkeypatch.setattr(sys, "version_info", (3, 13 if sys.version_info[1] != 13 else 12, 1))
    bootstrap.main()
    assert steps[3][1:] == ["-m", "venv", str(bootstrap.VENV)]
    assert not (bootstrap.VENV / "of the first").exists()


def test_second_install_waits_for_the_first(
    steps: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    bootstrap.main()
    stamp = bootstrap.STAMP.read_text()
    bootstrap.STAMP.unlink()
    capsys.readouterr()
    with bootstrap.locked():
        second = threading.Thread(target=bootstrap.install)
        second.start()
        said, ends = "", time.monotonic() + 10
        while "\n" not in said and time.monotonic() < ends:
            time.sleep(0.01)
            said += capsys.readouterr().out
        bootstrap.STAMP.write_text(stamp)
    second.join()
    assert said == "python environment: another command installs it; waiting ...\n"
    assert len(steps) == 3


def test_bootstrap_names_standard_output_that_is_full(tmp_path: Path) -> None:
    shutil.copytree(Path(bootstrap.__file__).parent, tmp_path / "local", ignore=lambda *_: ["aws", "tools"])
    (tmp_path / "requirements.lock").touch()
    with open("/dev/full", "w") as full:
        words = [sys.executable, str(tmp_path / "local" / "bootstrap.py")]
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (1, "error: standard output: No space left on device\n")


@pytest.mark.parametrize("version", [(3, 10, 9), (3, 14, 0)])
def test_unsupported_python_is_refused(
    steps: list[list[str]], monkeypatch: pytest.MonkeyPatch, version: tuple[int, int, int]
) -> None:
    monkeypatch.setattr(sys, "version_info", version)
    with pytest.raises(
        SystemExit, match=rf"Python {version[0]}\.{version[1]}.* must be 3\.11, 3\.12 or 3\.13"
    ):
        bootstrap.main()
    assert steps == []


@pytest.mark.parametrize(
    ("line", "seconds"),
    [
        ("Prepared 148 packages in 1m 05s", 65),
        ("Prepared 2 packages in 25.31s", 25.31),
        ("Prepared 1 package in 731ms", 0.731),
        ("Resolved 148 packages in 731ms", 0),
    ],
)
def test_uv_says_how_long_it_fetched(line: str, seconds: float) -> None:
    assert bootstrap.preparing_seconds(f"a\n{line}\nb\n") == pytest.approx(seconds)


def test_downloads_are_reported_as_the_benchmark_reads_them(
    steps: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    counts = iter([1_000_000, 2_001_000_000])
    monkeypatch.setattr(bootstrap, "received_bytes", lambda: next(counts))
    clock = iter([100.0, 200.0])
    monkeypatch.setattr(bootstrap.time, "monotonic", lambda: next(clock, 200.0))
    bootstrap.main()
    assert steps
    said = capsys.readouterr().out.splitlines()[-1]
    assert said == "python environment: installed in 35 s; downloads: 2000 MB in 65 s"
    assert DOWNLOADS.findall(said) == ["65"]


@pytest.fixture
def own_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(bootstrap, "ROOT", tmp_path)
    return tmp_path


def test_failed_step_reports_its_last_lines_and_the_log(own_root: Path) -> None:
    (own_root / ".venv.log").write_text("No space left on device, said by an earlier step\n")
    with pytest.raises(SystemExit) as ended:
        bootstrap.run("installing x", ["sh", "-c", "echo no such package; exit 3"])
    log = own_root / ".venv.log"
    assert ended.value.code == (
        f"installing x failed with exit code 3; the whole output is in {log}\nno such package"
    )


def test_a_step_that_takes_long_says_that_it_goes_on(
    own_root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bootstrap, "QUIET_SECONDS", 0.02)
    assert bootstrap.run("installing x", ["sh", "-c", "sleep 0.1; echo done"]) == "done\n"
    said = capsys.readouterr().out.splitlines()
    assert said
    assert set(said) <= {f"python environment: still installing x, {seconds} s" for seconds in (0, 1)}


@pytest.mark.parametrize(
    "words", ["No space left on device (os error 28)", "[Errno 122] Disk quota exceeded"]
)
def test_step_with_a_full_disk_reports_it(own_root: Path, words: str) -> None:
    with pytest.raises(SystemExit) as ended:
        bootstrap.run("installing x", ["sh", "-c", f"echo 'failed to write: {words}'; echo more; exit 2"])
    message = str(ended.value.code)
    assert message.startswith("installing x failed: the disk is full (")
    assert message.endswith(f"log: {own_root / '.venv.log'}")
    assert "\n" not in message


@pytest.mark.parametrize(
    ("number", "message"), [(errno.ENOSPC, "the disk is full ("), (errno.EACCES, "Permission denied: /x")]
)
def test_what_the_machine_refuses_is_one_line(
    steps: list[list[str]], monkeypatch: pytest.MonkeyPatch, number: int, message: str
) -> None:
    def refused(_step: str, _command: list[str]) -> str:
        raise OSError(number, os.strerror(number), "/x")

    monkeypatch.setattr(bootstrap, "run", refused)
    with pytest.raises(SystemExit) as ended:
        bootstrap.main()
    assert str(ended.value.code).startswith(f"python environment: {message}")
    assert "\n" not in str(ended.value.code)
    assert not bootstrap.STAMP.exists()


def test_ctrl_c_ends_with_one_line(
    steps: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_step: str, _command: list[str]) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(bootstrap, "run", interrupted)
    assert bootstrap.main() == 130
    assert capsys.readouterr().err == "\ninterrupted; the same command goes on from here\n"


def test_trainyard_runs_this_checkout_through_a_link(steps: list[list[str]], tmp_path: Path) -> None:
    bootstrap.main()
    assert len(steps) == 3
    written = bootstrap.PROGRAM.stat().st_mtime_ns
    bootstrap.main()
    assert bootstrap.PROGRAM.stat().st_mtime_ns == written
    python = tmp_path / ".venv" / "bin" / "python"
    python.write_text('#!/bin/sh\necho "$PYTHONPATH $TRAINYARD_STARTED $@"\n')
    python.chmod(0o755)
    elsewhere = tmp_path / "a b"
    elsewhere.mkdir()
    (elsewhere / "trainyard").symlink_to(bootstrap.PROGRAM)
    words = [str(elsewhere / "trainyard"), "up", "it's one"]
    done = subprocess.run(words, cwd=elsewhere, capture_output=True, text=True, check=True)
    assert done.stdout == f"{tmp_path} yes -P -m trainyard.cli up it's one\n"
    # A program of pip is replaced.
    bootstrap.PROGRAM.write_text("#!/usr/bin/python\n")
    bootstrap.main()
    assert "trainyard.cli" in bootstrap.PROGRAM.read_text()
