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

from trainyard.operator import names as n
from trainyard.operator.observe import command_exit_code, read_termination_message
from trainyard.operator.signal_forwarder import MESSAGE_BYTES, wrap_command

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


@pytest.fixture(params=["sh", "bash"])
def shell(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(autouse=True)
def _quick_polls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script's `sleep 1` takes 20 ms, and its `sleep 5` 300."""
    real = shutil.which("sleep")
    quick = tmp_path / "bin" / "sleep"
    quick.parent.mkdir()
    quick.write_text(
        f"#!/bin/sh\n[ $1 = 1 ] && exec {real} 0.02\n[ $1 = 5 ] && exec {real} 0.3\nexec {real} $1\n"
    )
    quick.chmod(0o755)
    monkeypatch.setenv("PATH", f"{quick.parent}:{os.environ['PATH']}")


def inherit_orphans() -> None:
    """As the first process of a container does: PR_SET_CHILD_SUBREAPER of prctl(2)."""
    ctypes.CDLL(None).prctl(36, 1)


@contextmanager
def started(
    shell: str, *words: str, message: Path = Path("/dev/null/none")
) -> Iterator[subprocess.Popen[bytes]]:
    """As the kubelet starts it, which makes $ of $$."""
    _, *rest = (each.replace("$$", "$") for each in wrap_command(words, str(message)))
    with subprocess.Popen([shell, *rest], stdout=subprocess.PIPE, preexec_fn=inherit_orphans) as process:
        yield process


def wait_for(file: Path) -> None:
    end = time.monotonic() + 30
    while not file.exists():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("words", "code", "printed"),
    [
        (("sh", "-c", "exit 0"), 0, ""),
        (("sh", "-c", "exit 7"), 7, ""),
        (("sh", "-c", "kill -9 $$$$"), 137, ""),
        (("torchrum",), 127, "torchrum"),
        # A process that outlives the command does not delay the end.
        (("sh", "-c", "sleep 20 & echo said; exit 3"), 3, "said\n"),
    ],
)
def test_exit_code_is_that_of_the_command(
    shell: str, words: tuple[str, ...], code: int, printed: str
) -> None:
    began = time.monotonic()
    with started(shell, *words) as process:
        assert process.wait(30) == code
        assert time.monotonic() - began < 15
        assert process.stdout is not None
        assert printed in process.stdout.readline().decode()


@pytest.mark.parametrize(
    ("reported", "code"),
    # Kubernetes would count a pod that exits with 0, and may call its Job complete.
    [(3, 3), (0, 143), (255, 255)],
)
def test_sigterm_command_saves_and_ends(shell: str, reported: int, code: int, tmp_path: Path) -> None:
    """The live test has a command that does not listen, and a shell (test_first_process.py)."""
    (tmp_path / "save.py").write_text(SAVES)
    with started(shell, sys.executable, f"{tmp_path}/save.py", str(tmp_path), str(reported)) as process:
        wait_for(tmp_path / "ready")
        began = time.monotonic()
        process.terminate()
        process.terminate()
        assert process.wait(30) == code
        assert time.monotonic() - began < 10
    assert (tmp_path / "saved").exists()


def output_of(*, local: int, others: int) -> str:
    """What torchrun prints when one of its processes fails, and `others` follow with long tracebacks."""
    follows = "".join(
        f"[default{each}]:[rank{each}]: Connection closed by peer {'x' * 99}\n" * 40
        for each in range(others)
        if each != local
    )
    cause = f"[default{local}]:[rank{local}]: KeyError: 'it'\n"
    last = (
        f"  time      : 2026-11-26_16:39:56\n  host      : h\n  rank      : {local} (local_rank: {local})\n"
    )
    agent = (
        "E1126 16:39:57 71 torch/x.py:1] failed (exitcode: 3) local_rank: 0\nTraceback ...\n" + "y\n" * 999
    )
    return f"{cause}{follows}{agent}Root Cause (first observed failure):\n[0]:\n{last}  exitcode  : 3 (pid: 7) \n===\n"


@pytest.mark.parametrize("awk", [True, False])
def test_message_has_lines_of_first_failed_process(
    shell: str, awk: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not awk:
        (tmp_path / "bin/awk").write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / "bin/awk").chmod(0o755)
    (tmp_path / "output").write_text(output_of(local=5, others=8))
    message = tmp_path / "message"
    message.touch()
    with started(shell, "sh", "-c", f"cat {tmp_path}/output; exit 1", message=message) as process:
        assert process.stdout is not None
        assert process.stdout.read().decode() == (tmp_path / "output").read_text()
        assert process.wait(30) == 1
    text = message.read_text()
    assert len(text.encode()) <= MESSAGE_BYTES
    assert command_exit_code(1, read_termination_message(text)) == 3
    assert ("[rank5]: KeyError: 'it'\n" in text) == awk
    assert "closed by peer" not in text or not awk


def test_message_of_plain_command_is_end_of_output(
    shell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    message, log = tmp_path / "message", tmp_path / "worker.log"
    message.touch()
    monkeypatch.setenv(n.ENV_LOG, str(log))
    lines = (
        "i=0; while [ $i -lt 3000 ]; do echo line $i; i=$((i + 1)); done; echo 'ValueError: it' >&2; exit 3"
    )
    with started(shell, "sh", "-c", lines.replace("$", "$$"), message=message) as process:
        printed = process.communicate(timeout=30)[0].decode()
    assert printed.splitlines() == [*(f"line {number}" for number in range(3000)), "ValueError: it"]
    assert log.read_text() == printed
    text = message.read_text()
    assert printed.endswith(text)
    assert 3000 < len(text) <= MESSAGE_BYTES
    with started(shell, "echo", "done", message=message) as process:
        process.communicate(timeout=30)
    assert message.read_text() == text, "a command that exits with 0 writes no message"


def test_output_continues_without_writable_directory(shell: str, tmp_path: Path) -> None:
    (tmp_path / "bin/mkfifo").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "bin/mkfifo").chmod(0o755)
    with started(shell, "echo", "said") as process:
        assert process.communicate(timeout=30)[0] == b"said\n"


AGENT = """import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path(sys.argv[1]).touch()
"""


@pytest.mark.parametrize("saves", ["", "in a process", "as a process of an agent"])
def test_sigterm_idle_agent_is_killed(
    shell: str, saves: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So does torchrun in its exit barrier; what still saves is waited for."""
    if saves == "as a process of an agent":
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "one")
    ends = {
        "": "time.sleep(60)",
        "in a process": "import subprocess; subprocess.run(['sleep', '0.5']); sys.exit(3)",
        "as a process of an agent": "time.sleep(0.5); sys.exit(3)",
    }
    agent = tmp_path / "torchrun"
    agent.write_text(AGENT + ends[saves])
    other = [sys.executable, "-c", "import time; time.sleep(60)", "torchrun"]
    with (
        subprocess.Popen(other, start_new_session=True) as bystander,
        started(shell, sys.executable, str(agent), str(tmp_path / "ready")) as running,
    ):
        wait_for(tmp_path / "ready")
        running.terminate()
        assert running.wait(30) == (3 if saves else 128 + signal.SIGTERM)
        assert bystander.poll() is None, "it is in another session"
        bystander.kill()
