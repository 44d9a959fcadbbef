"""The first process of a worker's container, in a PID namespace of its own as the kubelet gives each container one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.local.torchrun_controller import until
from tests.unit.operator.test_signal_forwarder import SAVES
from trainyard.operator.signal_forwarder import wrap_command

pytestmark = pytest.mark.local

UNSHARE = ("unshare", "--pid", "--fork", "--kill-child")
# As torchrun while it imports torch.
DEAF = "import pathlib, sys, time; pathlib.Path(sys.argv[1], 'ready').touch(); time.sleep(60)"


@contextmanager
def contained(words: list[str], place: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """It runs and has started; with the process ID of its first process."""
    with subprocess.Popen([*UNSHARE, *words]) as outside:
        try:
            until((place / "ready").exists, "it has started")
            children = Path(f"/proc/{outside.pid}/task/{outside.pid}/children")
            yield outside, int(children.read_text().split()[0])
        finally:
            outside.kill()


def seconds_to_end(words: list[str], place: Path) -> float:
    with contained(words, place) as (outside, first):
        began = time.monotonic()
        os.kill(first, signal.SIGTERM)
        try:
            outside.wait(5)
        except subprocess.TimeoutExpired:
            return float("inf")
        return time.monotonic() - began


def started(words: list[str]) -> list[str]:
    return [each.replace("$$", "$") for each in wrap_command(words)]


def test_a_program_that_does_not_listen_yet_is_ended_at_once(tmp_path: Path) -> None:
    deaf = [sys.executable, "-c", DEAF, str(tmp_path)]
    assert seconds_to_end(deaf, tmp_path) == float("inf"), "the kernel would not have it so"
    (tmp_path / "ready").unlink()
    assert seconds_to_end(started(deaf), tmp_path) < 5


def test_what_a_shell_has_started_saves_before_the_container_ends(tmp_path: Path) -> None:
    (tmp_path / "save.py").write_text(SAVES)
    typed = f"cd {tmp_path} && {sys.executable} save.py {tmp_path}; echo over"
    assert seconds_to_end(started(["sh", "-c", typed]), tmp_path) < 5
    assert (tmp_path / "saved").exists()
