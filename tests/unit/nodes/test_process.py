from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
from pathlib import Path

import pytest

from local.cluster.record import read_stat
from local.nodes.process import SANDBOX, Ended, Process
from local.nodes.status import KILLED


def test_process_is_found_by_its_id_and_start_time(tmp_path: Path) -> None:
    me = os.getpid()
    (tmp_path / "keeper").write_text(f"{me} {read_stat(me)}")
    found = Process.found(tmp_path)
    assert found is not None
    assert found.alive
    (tmp_path / "keeper").write_text(f"{me} 1")  # the number was given to another process
    assert not found.alive


def test_process_without_record_is_not_found(tmp_path: Path) -> None:
    assert Process.found(tmp_path) is None
    (tmp_path / "keeper").write_text("")
    assert Process.found(tmp_path) is None


def test_process_without_exit_file_was_killed(tmp_path: Path) -> None:
    (tmp_path / "keeper").write_text("1 1")
    process = Process.found(tmp_path)
    assert process is not None
    assert process.ended().code == KILLED
    (tmp_path / "exit").write_text("7\n")
    (tmp_path / "error").write_text("")
    assert (process.ended().code, process.ended().message) == (7, "")


def test_start_time_with_any_bytes_in_the_name_is_found() -> None:
    name = Path("/proc/self/comm")
    before = name.read_bytes()
    try:
        name.write_bytes("fünfzehn zeiche".encode()[:2])  # cut in the middle of a letter
        assert read_stat(os.getpid()) is not None
    finally:
        name.write_bytes(before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("recorded", [False, True])
def test_process_in_setup_is_killed_as_a_group(
    tmp_path: Path, number: signal.Signals, recorded: bool
) -> None:
    """The sandbox is process 1 of its namespace: it does not even hear of a signal but SIGKILL."""
    deaf = "trap '' TERM; echo $$ > pid; while :; do sleep 1; done"
    keeper = subprocess.Popen(
        ["/bin/sh", "-c", '/bin/sh -c "$0" "$1"; echo $? > exit', deaf, str(SANDBOX)],
        cwd=tmp_path,
        start_new_session=True,
    )
    (tmp_path / "keeper").write_text(f"{keeper.pid} {read_stat(keeper.pid)}")

    async def story() -> Ended:
        async with asyncio.timeout(20):
            while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
                await asyncio.sleep(0.01)
            if recorded:
                pid = int((tmp_path / "pid").read_text())
                (tmp_path / "process").write_text(f"{pid} {read_stat(pid)}")
            process = Process(tmp_path, keeper.pid, keeper)
            process.signal(number)
            ended = await process.wait()
            while read_stat(int((tmp_path / "pid").read_text())) is not None:
                await asyncio.sleep(0.01)
            return ended

    try:
        assert asyncio.run(story()).code == KILLED
    finally:
        if read_stat(int((tmp_path / "pid").read_text())) is not None:
            os.killpg(keeper.pid, signal.SIGKILL)


def test_process_without_writable_record_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []
    real, write = subprocess.Popen, Path.write_text

    def start(_command: list[str], **how: object) -> subprocess.Popen[bytes]:
        started.append(real(["sleep", "60"], **how))  # type: ignore[call-overload]
        return started[0]

    def full(self: Path, text: str) -> int:
        if self.name == "keeper":
            raise OSError(errno.ENOSPC, "no space left on device")
        return write(self, text)

    monkeypatch.setattr(subprocess, "Popen", start)
    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="no space"):
        Process.start(tmp_path / "c", {}, tmp_path / "log")
    try:
        assert read_stat(started[0].pid) is None
    finally:
        started[0].kill()
        started[0].wait()
