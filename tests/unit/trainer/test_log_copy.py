"""The copy of a worker's log: bounded, beside the model, and never in the way of the training."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from trainer import log_copy
from trainer.config import Config
from trainer.log_copy import HeadAndTail
from trainer.stores import Directory

# What the first process of a worker does: it and a child print, then it ends, or hangs.
PROGRAM = """
import subprocess, sys, time
from trainer import log_copy
from trainer.stores import destination
log_copy.END_SECONDS, log_copy.DRAIN_SECONDS = 0.3, 0.3
store = destination(sys.argv[1])
class Store:
    uri = store.uri
    def put(self, *words):
        {put}
copy = log_copy.LogCopy(Store(), "r1/logs/0/one.log", first=0.05)
copy.start()
print("of the first process", flush=True)
subprocess.run(["sh", "-c", "echo of its child; echo and its error >&2"])
{then}
copy.close()
print("after it", flush=True)
sys.exit(7)
"""
PRINTED = "of the first process\nof its child\nand its error\n"


def started(place: Path, put: str = "store.put(*words)", then: str = "") -> subprocess.Popen[str]:
    code = PROGRAM.format(put=put, then=then)
    words = [sys.executable, "-c", code, str(place)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_all_that_a_worker_prints_is_kept_and_passed_on(tmp_path: Path) -> None:
    process = started(tmp_path)
    assert process.communicate(timeout=60)[0] == f"{PRINTED}after it\n"
    assert process.returncode == 7
    assert (tmp_path / "r1/logs/0/one.log").read_text() == PRINTED


def test_the_copy_is_there_while_the_worker_runs(tmp_path: Path) -> None:
    """Its machine may be gone the next moment."""
    with started(tmp_path, then="time.sleep(60)") as process:
        file, end = tmp_path / "r1/logs/0/one.log", time.monotonic() + 30
        while not file.exists() or file.read_text() != PRINTED:
            assert time.monotonic() < end
            time.sleep(0.02)
        process.kill()


@pytest.mark.parametrize(
    ("put", "said"),
    [("raise ValueError('no room')", "no room"), ("time.sleep(60)", "")],
    ids=["fails", "hangs"],
)
def test_a_place_that_takes_nothing_changes_nothing(tmp_path: Path, put: str, said: str) -> None:
    began = time.monotonic()
    process = started(tmp_path, put=put, then="time.sleep(0.3)")
    output = process.communicate(timeout=60)[0].splitlines()
    messages = [line for line in output if line.startswith("log: ")]
    assert [line for line in output if line not in messages] == [*PRINTED.splitlines(), "after it"]
    assert (len(messages), process.returncode) == (1 if said else 0, 7)
    assert all(said in line for line in messages)
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("pieces", [1, 3, 1000])
def test_of_a_long_log_the_beginning_and_the_end_are_kept(pieces: int) -> None:
    text = bytes(range(48, 58)) * 300
    ends = HeadAndTail(head=10, tail=20)
    size = len(text) // pieces
    for begin in range(0, len(text), size):
        ends.add(text[begin : begin + size])
    assert ends.read() == text[:10] + b"\n... 2970 bytes are missing ...\n" + text[-20:]
    short = HeadAndTail(head=10, tail=20)
    short.add(text[:30])
    assert short.read() == text[:30]


def test_each_worker_and_each_restart_has_a_file_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "train-r1-master-0/..")
    config = Config.read([], {"TRAINYARD_RUN_ID": "r1", "TRAINYARD_RESTART": "2"})
    assert log_copy.log_path(config, {}) == "r1/logs/2/train-r1-master-0-...log"
    assert log_copy.log_path(config, {"PET_NODE_RANK": "3"}) == "r1/logs/2/3-train-r1-master-0-...log"


def test_copies_become_ever_more_seldom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bucket with versions keeps each of them."""
    copy = log_copy.LogCopy(Directory(tmp_path), "log")
    pauses: list[float] = []

    def wait(seconds: float) -> bool:
        pauses.append(seconds)
        copy._text.add(b"more\n")
        return len(pauses) == 7

    monkeypatch.setattr(copy._closing, "wait", wait)
    copy._write()
    assert pauses == [30, 60, 120, 240, 480, 600, 600]
    assert (tmp_path / "log").read_text() == "more\n" * 7
