"""Child processes: started, restarted with a growing pause when they die, stopped, and orphans reaped.

The supervisor is process 1 of its namespace, so it also inherits what pods leave behind. One thread waits for all
of them; nobody polls.
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
# A process that ran this long starts again with the shortest pause.
STEADY_SECONDS = 60.0
TAIL_BYTES = 4096


@dataclass(frozen=True, kw_only=True)
class Command:
    """What to run. `grace` is how many seconds it gets from SIGTERM to SIGKILL."""

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
    """The children of this process. `say` gets one line about everything that a person may ask about later."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._managed: dict[str, _Managed] = {}
        self._lock = threading.RLock()
        self._spawned = threading.Event()
        threading.Thread(target=self._reap, name="reaper", daemon=True).start()

    def start(self, command: Command, on_exit: Callable[[int], None] | None = None) -> None:
        """Start a process and keep it running; with `on_exit` it is not restarted but the function called, in
        a thread of its own, with the exit code."""
        managed = _Managed(command=command, on_exit=on_exit)
        with self._lock:
            self._managed[command.name] = managed
            self._spawn(managed)

    def restarts(self, name: str) -> int:
        """How often a process died and was started again since it last ran steadily."""
        with self._lock:
            return self._managed[name].restarts

    def pid(self, name: str) -> int | None:
        """Id of a running process, None for one that does not run or is unknown."""
        with self._lock:
            managed = self._managed.get(name)
            return managed.process.pid if managed and managed.process else None

    def stop(self, name: str) -> None:
        """End a process: SIGTERM, after its grace SIGKILL; returns when it is gone. Unknown names are no error."""
        with self._lock:
            managed = self._managed.get(name)
            if managed is None:
                return
            managed.wanted = False
            if managed.timer is not None:
                managed.timer.cancel()
            self._signal(managed, signal.SIGTERM)
        if not managed.ended.wait(managed.command.grace):
            self._say(f"{name} did not end within {managed.command.grace:.0f} s of SIGTERM: killing it")
            with self._lock:
                self._signal(managed, signal.SIGKILL)
            managed.ended.wait()
        with self._lock:
            self._managed.pop(name, None)

    def list(self) -> list[tuple[Command, int | None]]:
        """Every process with its id, None for one that waits for its restart."""
        with self._lock:
            return [(m.command, m.process.pid if m.process else None) for m in self._managed.values()]

    def _spawn(self, managed: _Managed) -> None:
        """Called with the lock held, so that the reaper cannot see the child before it is known."""
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
        self._say(f"{command.name} started, process {managed.process.pid}")

    @staticmethod
    def _signal(managed: _Managed, number: signal.Signals) -> None:
        if managed.process is None:
            managed.ended.set()
        else:
            managed.process.send_signal(number)

    def _reap(self) -> None:
        while True:
            try:
                # WNOWAIT leaves the zombie: Popen collects its own children, we the orphans.
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
            self._say(f"{managed.command.name} ended")
            return
        lasted = time.monotonic() - managed.started
        told = f"{managed.command.name} ended unexpectedly ({describe(code)}) after {lasted:.0f} s"
        told += f"; its last words: {last_line(managed.command.log)}"
        if managed.on_exit is not None:
            self._say(told)
            threading.Thread(target=managed.on_exit, args=(code,), daemon=True).start()
            return
        managed.restarts = 1 if lasted > STEADY_SECONDS else managed.restarts + 1
        pause = RESTART_SECONDS[min(managed.restarts, len(RESTART_SECONDS)) - 1]
        self._say(f"{told}; starting it again in {pause:g} s")
        managed.timer = threading.Timer(pause, self._again, (managed,))
        managed.timer.daemon = True
        managed.timer.start()

    def _again(self, managed: _Managed) -> None:
        with self._lock:
            if not managed.wanted:
                return
            try:
                self._spawn(managed)
            except OSError as error:  # a full disk or process table; the next try may succeed
                self._say(f"{managed.command.name} could not be started: {error}; trying again in 30 s")
                managed.timer = threading.Timer(RESTART_SECONDS[-1], self._again, (managed,))
                managed.timer.daemon = True
                managed.timer.start()


def describe(code: int) -> str:
    """An exit code in words."""
    return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"


def last_line(log: Path) -> str:
    """The last line of a log that says something, shortened."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
            lines = [
                line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()
            ]
    except FileNotFoundError:
        lines = []
    return lines[-1][:300] if lines else "(none)"
