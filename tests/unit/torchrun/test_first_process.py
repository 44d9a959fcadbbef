"""The first process of a container passes SIGTERM on, by the shells that images have."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from launcher.core.torchrun import first_process

pytestmark = pytest.mark.unit

SHELLS = ("sh", "bash")
SAVES = """
import pathlib, signal, sys, time
place = pathlib.Path(sys.argv[1])
def save(*_):
    time.sleep(0.1)
    (place / "saved").touch()
    sys.exit(int(sys.argv[2]) if len(sys.argv) > 2 else 3)
signal.signal(signal.SIGTERM, save)
(place / "ready").touch()
time.sleep(60)
"""


@pytest.fixture(autouse=True)
def _quick_polls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script's `sleep 1` takes 20 ms."""
    real = shutil.which("sleep")
    quick = tmp_path / "bin" / "sleep"
    quick.parent.mkdir()
    quick.write_text(f"#!/bin/sh\n[ $1 = 1 ] && exec {real} 0.02\nexec {real} $1\n")
    quick.chmod(0o755)
    monkeypatch.setenv("PATH", f"{quick.parent}:{os.environ['PATH']}")


def inherit_orphans() -> None:
    """As the first process of a container does: PR_SET_CHILD_SUBREAPER of prctl(2)."""
    ctypes.CDLL(None).prctl(36, 1)


@contextmanager
def started(shell: str, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """As the kubelet starts it, which makes $ of $$."""
    _, *rest = (each.replace("$$", "$") for each in first_process.under_it(words))
    with subprocess.Popen([shell, *rest], stderr=subprocess.PIPE, preexec_fn=inherit_orphans) as process:
        yield process


def script(place: Path, code: int = 3) -> list[str]:
    return [sys.executable, "-c", SAVES, str(place), str(code)]


def appears(file: Path) -> None:
    end = time.monotonic() + 30
    while not file.exists():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(("words", "code"), [("true", 0), ("exit 7", 7), ("kill -9 $$", 137)])
def test_the_exit_code_is_the_commands(shell: str, words: str, code: int) -> None:
    with started(shell, "sh", "-c", words.replace("$$", "$$$$")) as process:
        assert process.wait(30) == code


@pytest.mark.parametrize("shell", SHELLS)
def test_a_command_that_is_not_there_is_named(shell: str) -> None:
    with started(shell, "torchrum") as process:
        assert process.wait(30) == 127
        assert process.stderr is not None
        assert b"torchrum" in process.stderr.read()


@pytest.mark.parametrize("shell", SHELLS)
def test_what_has_no_handler_yet_ends_at_once(shell: str, tmp_path: Path) -> None:
    ready = f"touch {tmp_path}/ready; exec sleep 60"
    with started(shell, "sh", "-c", ready) as process:
        appears(tmp_path / "ready")
        began = time.monotonic()
        process.terminate()
        assert process.wait(30) == 128 + signal.SIGTERM
        assert time.monotonic() - began < 10


@pytest.mark.parametrize("shell", SHELLS)
def test_what_has_one_ends_in_its_time_and_says_how(shell: str, tmp_path: Path) -> None:
    with started(shell, *script(tmp_path)) as process:
        appears(tmp_path / "ready")
        process.terminate()
        process.terminate()  # as somebody who is in a hurry
        assert process.wait(30) == 3
    assert (tmp_path / "saved").exists()


@pytest.mark.parametrize("shell", SHELLS)
def test_what_ends_well_because_it_was_told_to_go_has_not_trained(shell: str, tmp_path: Path) -> None:
    """Kubernetes would count its pod, and may call its Job complete."""
    with started(shell, *script(tmp_path, code=0)) as process:
        appears(tmp_path / "ready")
        process.terminate()
        assert process.wait(30) == 128 + signal.SIGTERM
    assert (tmp_path / "saved").exists()


@pytest.mark.parametrize("shell", SHELLS)
def test_what_a_shell_has_started_hears_it_and_is_waited_for(shell: str, tmp_path: Path) -> None:
    """The shell itself ends at once; with the first process all else of a container would be killed."""
    (tmp_path / "save.py").write_text(SAVES)
    with started(shell, "sh", "-c", f"cd {tmp_path} && {sys.executable} save.py {tmp_path}; echo") as process:
        appears(tmp_path / "ready")
        process.terminate()
        process.wait(30)
        assert (tmp_path / "saved").exists()
