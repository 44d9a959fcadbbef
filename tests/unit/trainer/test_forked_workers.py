"""Workers that torchrun's agent forks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import numpy as np
import pytest
from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler, subprocess_handler

from trainer.forked_workers import ForkedWorker, fork_workers
from trainer.log_copy import using_store

SECONDS = 30.0


def fork(output: Path, work: Callable[[], int | None], **environ: str) -> ForkedWorker:
    with output.open("w") as stream:
        return ForkedWorker(
            ["trainer.train", "--steps", "1"],
            work,
            env=environ,
            stdout=stream,
            stderr=stream,
            start_new_session=True,
        )


@pytest.fixture
def agent_handlers() -> Iterator[None]:
    """Handlers of SIGTERM and SIGHUP, as the agent has them."""

    def fail(number: int, _frame: FrameType | None) -> None:
        raise AssertionError(f"the agent's handler of {number} ran")

    previous = {number: signal.signal(number, fail) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in previous.items():
        signal.signal(number, handler)


def test_environment_arguments_session_and_output_are_its_own(tmp_path: Path) -> None:
    reader, writer = os.pipe()

    def work() -> None:
        try:
            os.fstat(writer)
            inherited = True
        except OSError:
            inherited = False
        print(json.dumps([dict(os.environ), sys.argv, os.getsid(0) == os.getpid(), inherited]))
        print("to stderr", file=sys.stderr)
        print("without a line's end", end="")
        os._exit(0)  # as after a hang: nothing is flushed

    worker = fork(tmp_path / "output", work, RANK="1")
    assert worker.wait(SECONDS) == worker.poll() == worker.returncode == 0
    os.close(reader)
    os.close(writer)
    printed, error, last = (tmp_path / "output").read_text().splitlines()
    assert json.loads(printed) == [{"RANK": "1"}, ["trainer.train", "--steps", "1"], True, False]
    assert (error, last) == ("to stderr", "without a line's end")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.usefixtures("agent_handlers")
def test_signal_ends_worker_without_the_agents_handlers(tmp_path: Path, number: signal.Signals) -> None:
    worker = fork(tmp_path / "output", lambda: time.sleep(SECONDS))
    assert worker.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        worker.wait(0.05)
    os.kill(worker.pid, number)
    assert worker.wait(SECONDS) == -number
    assert (tmp_path / "output").read_text() == ""


@pytest.mark.usefixtures("agent_handlers")
def test_signals_reach_the_agent_after_a_fork(tmp_path: Path) -> None:
    fork(tmp_path / "output", lambda: os._exit(0)).wait(SECONDS)
    with pytest.raises(AssertionError, match="the agent's handler of 15 ran"):
        os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize(
    ("work", "code", "output"),
    [
        (lambda: 22, 22, ""),
        (lambda: None, 0, ""),
        (lambda: int("x"), 1, "ValueError: invalid literal for int() with base 10: 'x'\n"),
        (lambda: sys.exit(2), 2, ""),
        (lambda: sys.exit("no data"), 1, "no data\n"),
        (lambda: sys.exit(), 0, ""),
    ],
)
def test_exit_code(tmp_path: Path, work: Callable[[], int | None], code: int, output: str) -> None:
    assert fork(tmp_path / "output", work).wait(SECONDS) == code
    printed = (tmp_path / "output").read_text()
    assert printed.endswith(output)
    assert bool(printed) == bool(output)


def test_the_session_exists_at_once(tmp_path: Path) -> None:
    """The agent may signal it as soon as the worker has a number."""
    for number in range(20):
        worker = fork(tmp_path / str(number), lambda: time.sleep(SECONDS))
        os.killpg(worker.pid, signal.SIGTERM)
        assert worker.wait(SECONDS) == -signal.SIGTERM


def test_a_process_that_the_kernel_collected_has_the_code_0(tmp_path: Path) -> None:
    previous = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert fork(tmp_path / "output", lambda: 3).wait(SECONDS) == 0
    finally:
        signal.signal(signal.SIGCHLD, previous)


def test_top_shows_the_rank(tmp_path: Path) -> None:
    worker = fork(tmp_path / "output", lambda: print(Path("/proc/self/comm").read_text()), RANK="3")
    assert worker.wait(SECONDS) == 0
    assert (tmp_path / "output").read_text() == "rank 3\n\n"


def test_workers_draw_different_random_numbers(tmp_path: Path) -> None:
    def work() -> None:
        print(np.random.randint(10**9))
        os._exit(0)

    outputs = [tmp_path / name for name in ("0", "1")]
    assert [fork(output, work).wait(SECONDS) for output in outputs] == [0, 0]
    first, second = (output.read_text() for output in outputs)
    assert first != second


def test_the_agent_forks_this_module_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(vars(subprocess_handler), "Popen", subprocess.Popen)

    def work() -> None:
        print("forked", sys.argv)
        os._exit(0)

    fork_workers("trainer.train", work)

    def run(name: str, entry: str, *words: str) -> str:
        output = tmp_path / name
        handler = SubprocessHandler(entry, words, {}, str(output), str(output), 0, None)
        assert handler.proc.wait(SECONDS) == 0
        return output.read_text()

    python = sys.executable
    assert run("1", python, "-u", "-m", "trainer.train", "--steps", "2") == (
        "forked ['trainer.train', '--steps', '2']\n"
    )
    assert run("2", python, "-u", "-c", "print('new')", "trainer.train") == "new\n"
    fork_workers("platform", work)
    assert run("4", python, "-u", "-m", "platform") == "forked ['platform']\n"
    with using_store:  # by the thread that copies the log
        assert run("5", python, "-u", "-m", "platform").startswith("Linux")
    assert run("3", "/bin/echo", "-m", "trainer.train") == "-m trainer.train\n"
