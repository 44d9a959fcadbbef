"""Start, restart and stop child processes, and reap orphans. `Processes` is the entry point.

A process that dies restarts after a growing delay. The supervisor is process 1 of its namespace, so it also inherits
the orphans of pods. One thread waits for all of them, without polling.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

RESTART_SECONDS = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
# A process that ran this long restarts after the shortest delay.
STEADY_SECONDS = 60.0
TAIL_BYTES = 4096


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command to run. `grace` is the time from SIGTERM to SIGKILL in seconds."""

    name: str
    arguments: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    grace: float = 5.0


@dataclass(kw_only=True)
class _Managed:
    command: Command
    on_exit: Callable[[int], None] | None
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    restarts: int = 0
    wanted: bool = True
    timer: threading.Timer | None = None
    ended: threading.Event = field(default_factory=threading.Event)


class Processes:
    """The children of this process. `report` gets one log line about each event."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._managed: dict[str, _Managed] = {}
        self._lock = threading.RLock()
        self._spawned = threading.Event()
        threading.Thread(target=self._reap, name="reaper", daemon=True).start()

    def start(self, command: Command, on_exit: Callable[[int], None] | None = None) -> None:
        """Start a process and restart it when it ends.

        Args:
            on_exit: If set, the process is not restarted. The function is called with the exit code, in its own thread.
        """
        managed = _Managed(command=command, on_exit=on_exit)
        with self._lock:
            self._managed[command.name] = managed
            self._spawn(managed)

    def restarts(self, name: str) -> int:
        """Return how often a process died and restarted since it last ran for STEADY_SECONDS."""
        with self._lock:
            return self._managed[name].restarts

    def pid(self, name: str) -> int | None:
        """Return the id of a running process, None if it is not running or unknown."""
        with self._lock:
            managed = self._managed.get(name)
            return managed.process.pid if managed and managed.process else None

    def stop(self, name: str) -> None:
        """Stop a process: SIGTERM, and SIGKILL after its grace. Return when it is gone.

        An unknown name is no error.
        """
        with self._lock:
            managed = self._managed.get(name)
            if managed is None:
                return
            managed.wanted = False
            if managed.timer is not None:
                managed.timer.cancel()
            self._signal(managed, signal.SIGTERM)
        if not managed.ended.wait(managed.command.grace):
            self._report(f"{name} did not end within {managed.command.grace:.0f} s of SIGTERM: killing it")
            with self._lock:
                self._signal(managed, signal.SIGKILL)
            managed.ended.wait()
        with self._lock:
            self._managed.pop(name, None)

    def list(self) -> list[tuple[Command, int | None]]:
        """Return every process with its id, None if it waits for its restart."""
        with self._lock:
            return [(m.command, m.process.pid if m.process else None) for m in self._managed.values()]

    def _spawn(self, managed: _Managed) -> None:
        """Start the child. The caller holds the lock: the reaper must not see a child that is not registered."""
        command = managed.command
        with command.log.open("ab") as log:
            managed.process = subprocess.Popen(
                command.arguments,
                env=dict(command.environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        managed.started = time.monotonic()
        managed.ended.clear()
        self._spawned.set()
        self._report(f"{command.name} started, process {managed.process.pid}")

    @staticmethod
    def _signal(managed: _Managed, number: signal.Signals) -> None:
        if managed.process is None:
            managed.ended.set()
        else:
            managed.process.send_signal(number)

    def _reap(self) -> None:
        while True:
            try:
                # WNOWAIT leaves the zombie: Popen reaps its own children, this thread the orphans.
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
            except ChildProcessError:
                self._spawned.wait()
                self._spawned.clear()
                continue
            if ended is None:
                continue
            with self._lock:
                managed = next(
                    (m for m in self._managed.values() if m.process and m.process.pid == ended.si_pid), None
                )
                if managed is None:
                    os.waitpid(ended.si_pid, 0)
                else:
                    self._ended(managed)

    def _ended(self, managed: _Managed) -> None:
        assert managed.process is not None  # noqa: S101  (only running processes are looked up)
        code = managed.process.wait()
        managed.process = None
        managed.ended.set()
        if not managed.wanted:
            self._report(f"{managed.command.name} ended")
            return
        lasted = time.monotonic() - managed.started
        message = f"{managed.command.name} ended unexpectedly ({describe(code)}) after {lasted:.0f} s"
        message += f"; its last line: {last_line(managed.command.log)}"
        if managed.on_exit is not None:
            self._report(message)
            threading.Thread(target=managed.on_exit, args=(code,), daemon=True).start()
            return
        managed.restarts = 1 if lasted > STEADY_SECONDS else managed.restarts + 1
        pause = RESTART_SECONDS[min(managed.restarts, len(RESTART_SECONDS)) - 1]
        self._report(f"{message}; starting it again in {pause:g} s")
        managed.timer = threading.Timer(pause, self._restart, (managed,))
        managed.timer.daemon = True
        managed.timer.start()

    def _restart(self, managed: _Managed) -> None:
        with self._lock:
            if not managed.wanted:
                return
            try:
                self._spawn(managed)
            except OSError as error:  # a full disk or process table; the next try may succeed
                self._report(f"{managed.command.name} could not be started: {error}; trying again in 30 s")
                managed.timer = threading.Timer(RESTART_SECONDS[-1], self._restart, (managed,))
                managed.timer.daemon = True
                managed.timer.start()


def describe(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"


def last_line(log: Path) -> str:
    """Return the last line of a log that is not empty, shortened."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
            lines = [
                line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()
            ]
    except FileNotFoundError:
        lines = []
    return lines[-1][:300] if lines else "(none)"
