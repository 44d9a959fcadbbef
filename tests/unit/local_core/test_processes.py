"""Supervised children. Each test runs in a process of its own: the reaper waits for every child there is."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

from local.cluster.processes import describe, last_line
from local.home import CHECKOUT

PRELUDE = """
import ctypes, os, signal, sys, threading, time
from pathlib import Path
from local.cluster import processes
from local.cluster.processes import Command, Processes

said = []
directory = Path(sys.argv[1])
processes.RESTART_SECONDS = (0.02, 0.04)
children = Processes(said.append)

def command(name, script, grace=5.0):
    return Command(name=name, arguments=["/bin/sh", "-c", script], environment={"PATH": os.environ["PATH"]},
                   log=directory / f"{name}.log", grace=grace)

def until(condition, what):
    for _ in range(2000):
        if condition():
            return
        time.sleep(0.01)
    sys.exit(f"not within 20 s: {what}; said {said}")
"""


def run(directory: Path, body: str) -> None:
    script = PRELUDE + textwrap.dedent(body)
    result = subprocess.run(
        [sys.executable, "-c", script, str(directory)],
        capture_output=True,
        text=True,
        cwd=CHECKOUT,
        timeout=20,
    )
    assert result.returncode == 0, result.stderr


def test_ended_process_restarts_and_its_last_line_is_reported(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
        children.start(command("c", "echo started; echo the reason; exit 7"))
        until(lambda: children.restarts("c") >= 3, "three restarts")
        messages = [line for line in said if "unexpectedly" in line]
        for part in ("exit code 7", "the reason", "again in 0.02 s"):
            assert part in messages[0], messages
        assert "again in 0.04 s" in messages[1], messages
        children.stop("c")
        assert children.list() == []
        """,
    )


def test_stop_asks_first_and_kills_after_the_grace(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
        children.start(command("soft", "trap 'echo bye; exit 0' TERM; echo ready; while :; do sleep 0.02; done"))
        children.start(command("hard", "trap '' TERM; echo ready; while :; do sleep 0.02; done", grace=0.1))
        for name in ("soft", "hard"):
            until(lambda: "ready" in (directory / f"{name}.log").read_text(), name)
        pids = [pid for _, pid in children.list()]
        children.stop("soft")
        assert "bye" in (directory / "soft.log").read_text()
        started = time.monotonic()
        children.stop("hard")
        assert 0.08 < time.monotonic() - started < 4.5
        assert any("killing it" in line for line in said), said
        time.sleep(0.1)
        assert sum("started" in line for line in said) == 2, said
        for pid in pids:
            assert not os.path.exists(f"/proc/{pid}"), pid
        """,
    )


def test_with_a_callback_a_death_is_reported_and_nothing_restarted(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
        codes = []
        children.start(command("c", "kill -9 $$"), on_exit=codes.append)
        until(lambda: codes == [-9], "the callback")
        time.sleep(0.1)
        assert children.pid("c") is None
        assert sum("started" in line for line in said) == 1, said
        """,
    )


def test_orphans_are_reaped(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: what process 1 of a namespace is
        script = "(sleep 0.05 & echo $! > %s/orphan) & wait; echo ready; exec sleep 5" % directory
        children.start(command("parent", script))
        until(lambda: (directory / "orphan").exists() and (directory / "orphan").read_text().strip(), "the orphan")
        orphan = (directory / "orphan").read_text().strip()
        until(lambda: not os.path.exists(f"/proc/{orphan}"), "the orphan is reaped")
        assert children.pid("parent") is not None
        children.stop("parent")
        """,
    )


def test_exit_code_is_described() -> None:
    assert describe(3) == "exit code 3"
    assert describe(-15) == "signal SIGTERM"


def test_the_last_line_of_a_log_is_one_that_says_something(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert last_line(log) == "(none)"
    log.write_text("x" * 10_000 + "\nlast\n\n   \n")
    assert last_line(log) == "last"


def test_a_disk_too_full_for_the_log_stops_no_restarts(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
        from local.cluster.supervisor import report

        os.dup2(os.open("/dev/full", os.O_WRONLY), 1)
        children = Processes(report)
        children.start(command("c", "exit 7"))
        until(lambda: children.restarts("c") >= 3, "three restarts")
        children.stop("c")
        os._exit(0)  # without another try to write what was said
        """,
    )
