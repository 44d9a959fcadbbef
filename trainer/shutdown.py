"""Stop requests by SIGTERM, SIGINT or a notice file, on which all processes agree at the same step.

Python runs signal handlers between two bytecodes of the main thread, so not while it compiles, waits in a collective
operation or copies a checkpoint. The interpreter's C handler writes the signal's number to a pipe
(docs.python.org/3/library/signal.html, set_wakeup_fd), and a thread reads it there. If C code holds the interpreter's
lock, no thread can run: torchrun's SIGKILL ends that.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

from trainer.contract import SHUTDOWN_VARIABLE, Exit, TrainerError
from trainer.distributed import new_group
from trainer.process import Leave, leave, write_stderr

SIGNALS = (signal.SIGTERM, signal.SIGINT)
NOTICE_SECONDS = 1.0
# A process with nothing to save must end within this time after a signal.
PROMPT_SECONDS = 5.0
# Bytes in the pipe that are not signal numbers (1 to 64).
_WAKE, _CLOSE = 0, 255
# Where torchrun reads the time between its SIGTERM and its SIGKILL (torch 2.15, LaunchConfig in
# torch/distributed/launcher/api.py and --shutdown-timeout in torch/distributed/run.py), and its default in seconds.
_SHUTDOWN = ("PET_SHUTDOWN_TIMEOUT", SHUTDOWN_VARIABLE)
_SHUTDOWN_SECONDS = 30.0


class Urgency(IntEnum):
    """The urgency of a stop request. The highest one counts."""

    NONE = 0
    NOTICE = 1  # a signal will follow later
    SIGNAL = 2  # torchrun sends SIGKILL after its shutdown timeout


_ELSEWHERE = {Urgency.NOTICE: "a notice to another process", Urgency.SIGNAL: "a signal to another process"}


@dataclass(frozen=True)
class StopRequest:
    """A request to stop. `at` is in seconds of `time.monotonic`."""

    urgency: Urgency = Urgency.NONE
    reason: str = ""
    at: float = 0.0


def patience(environ: Mapping[str, str]) -> float:
    """Return how many seconds a process has after a signal to end by itself, before torchrun kills it.

    This is 20 s of torchrun's default of 30 s, and all but 10 s of a longer timeout.

    Raises:
        TrainerError: The environment variable is not a positive number.
    """
    name = next((name for name in _SHUTDOWN if environ.get(name)), "")
    text = environ.get(name, str(_SHUTDOWN_SECONDS))
    try:
        seconds = float(text)
    except ValueError:
        seconds = float("nan")
    if not 0 < seconds < float("inf"):
        raise TrainerError(Exit.CONFIGURATION, f"{name}: {text!r} is not a positive number of seconds")
    return max(seconds * 2 / 3, seconds - 10)


def _state(path: Path) -> tuple[int, int] | None:
    """Return the identity of the file at `path`, None if there is none. Raise OSError if that is unknown."""
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_ino, found.st_mtime_ns


class Stop:
    """Receive stop requests, and agree with the other processes on the step at which all stop.

    Call `listen()` first, in the main thread; `create_group()` in all processes when the process group exists;
    `agreed()` in the loop; `settle()` before the process group is destroyed; `close()` last.

    If `close()` does not follow a signal in time, the process ends with Exit.STOPPED and prints its phase. A notice
    file has no deadline, because a signal follows it. A notice file that exists at the start is an old one: it only
    counts when it is written again.

    `patience` is the number of seconds after a signal in which the process must end. Without unsaved work, as before
    the first step, PROMPT_SECONDS is. `last` is called before this object ends the process.
    """

    def __init__(
        self,
        *,
        patience: float,
        phase: Callable[[], str],
        notice: Path | None = None,
        last: Callable[[], object] | None = None,
        leave: Leave = leave,
    ) -> None:
        self._max_patience, self._phase, self._notice, self._leave = patience, phase, notice, leave
        self._last = last
        self._patience, self._since = min(patience, PROMPT_SECONDS), 0.0
        # The most urgent request that this process has received, also from other processes.
        self.request = StopRequest()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        # The notice file that existed at the start. None until that was checked.
        self._old: tuple[tuple[int, int] | None] | None = None
        self._group: dist.ProcessGroup | None = None
        self._round: tuple[dist.Work, torch.Tensor] | None = None
        self._agreed = False
        self._threads: list[threading.Thread] = []
        self._handlers: dict[signal.Signals, Any] = {}
        self._read = self._write = -1

    def listen(self) -> None:
        """Handle the signals, and start to watch for the notice file. Only the main thread can do this."""
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in SIGNALS:
            self._handlers[number] = signal.signal(number, _handled_by_the_thread)
            signal.siginterrupt(number, False)  # C libraries may not handle interrupted calls
        global _listening
        _listening = True
        self._start(self._read_signals, "stop-signals")
        if self._notice is not None:
            self._start(self._watch_for_notice, "stop-notice")

    def create_group(self, timeout: timedelta) -> None:
        """Create a separate process group for the agreement. All processes call this together.

        A round of agreement that takes longer than `timeout` raises RuntimeError.
        """
        if dist.get_world_size() > 1:
            self._group = new_group(timeout)

    def set_unsaved_work(self, unsaved: bool) -> None:
        """Set whether the process has work that would be lost now. This changes its deadline after a signal."""
        self._patience = self._max_patience if unsaved else min(self._max_patience, PROMPT_SECONDS)
        self._since = time.monotonic()
        self._send(_WAKE)

    def _left(self, request: StopRequest) -> float | None:
        """Return the seconds until this process must end, None if no signal came.

        A deadline that became shorter counts from the change, so that an earlier, longer phase does not use it up.
        """
        if request.urgency < Urgency.SIGNAL:
            return None
        end = min(max(request.at, self._since) + self._patience, request.at + self._max_patience)
        return end - time.monotonic()

    def is_noticed(self) -> bool:
        """Return whether there is a new notice file now. Another process of this node may have seen it first."""
        if self._notice is None or self._old is None:
            return False
        with suppress(OSError):
            return _state(self._notice) not in (None, *self._old)
        return False

    @property
    def groups(self) -> tuple[dist.ProcessGroup, ...]:
        """The process groups of this object, whose timeouts become shorter after the first step."""
        return () if self._group is None else (self._group,)

    def agreed(self) -> bool:
        """Return whether all processes stop now. All get True at the same call, at most two calls after a request.

        Each process must call this equally often: once per micro-batch of a step, whose gradients are dropped on True,
        and once per evaluation batch. It exchanges four bytes between the hosts, and waits for them one call later. It
        does not wait for the device.

        Raises:
            RuntimeError: Another process is gone, or hangs longer than the timeout of the group.
        """
        if self._agreed:
            return True
        if self._group is None:
            self._agreed = self.request.urgency > Urgency.NONE
            return self._agreed
        flag = torch.tensor([int(self.request.urgency)], dtype=torch.int32)
        work = dist.all_reduce(flag, dist.ReduceOp.MAX, self._group, async_op=True)
        previous, self._round = self._round, (work, flag)
        if previous is not None:
            previous[0].wait()
            highest = Urgency(int(previous[1].item()))
            self._agreed = highest > Urgency.NONE
            if highest > self.request.urgency:
                self._add(highest, _ELSEWHERE[highest])
                self._send(_WAKE)
        return self._agreed

    def agreed_now(self) -> bool:
        """Like `agreed()`, but wait for this round, so that each earlier request counts. Use it between two phases."""
        return self.agreed() or self.agreed()

    def settle(self) -> None:
        """Wait for the last round, so that the process group can be destroyed."""
        pending, self._round, self._group = self._round, None, None
        if pending is not None:
            # This only fails if another process is gone, and the collectives of the training report that.
            with suppress(RuntimeError):
                pending[0].wait()

    def close(self) -> None:
        """Remove the deadline and restore the signal handlers, because all is saved. Can be called again."""
        if self._closed.is_set():
            return
        self.settle()
        self._closed.set()
        if not self._handlers:
            return
        global _listening
        _listening = False
        signal.set_wakeup_fd(-1)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._send(_CLOSE)
        for thread in self._threads:
            thread.join(NOTICE_SECONDS)  # do not wait for a file system that hangs
        os.close(self._write)

    def _start(self, work: Callable[[], None], name: str) -> None:
        thread = threading.Thread(target=work, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _send(self, byte: int) -> None:
        """Wake the thread that checks the deadline. A full pipe wakes it anyway."""
        if self._handlers:
            with suppress(BlockingIOError):
                os.write(self._write, bytes([byte]))

    def _add(self, urgency: Urgency, reason: str) -> None:
        with self._lock:
            if urgency > self.request.urgency:  # the first of equally urgent ones counts
                self.request = StopRequest(urgency, reason, time.monotonic())

    def _read_signals(self) -> None:
        """Read the numbers of the signals, and end the process if it misses its deadline."""
        while True:
            request = self.request
            left = self._left(request)
            if left is not None and left <= 0:
                break
            if not select.select([self._read], [], [], left)[0]:
                continue
            for byte in os.read(self._read, 4096):
                if byte == _CLOSE:
                    os.close(self._read)
                    return
                if byte in SIGNALS:
                    self._add(Urgency.SIGNAL, signal.Signals(byte).name)
        if not self._closed.is_set():
            self._leave(
                Exit.STOPPED,
                f"error: stop requested by {request.reason} {time.monotonic() - request.at:.0f} s ago, still in this "
                f"phase: {self._phase()}; ended without another checkpoint, earlier checkpoints stay",
                self._last,
            )

    def _watch_for_notice(self) -> None:
        """Watch for the notice file, in a separate thread because a file system may hang."""
        assert self._notice is not None  # noqa: S101 - started with one only
        warned = False
        while not self._closed.is_set():
            try:
                now = _state(self._notice)
            except OSError as error:
                if not warned:
                    write_stderr(f"warning: the notice {self._notice} can't be read: {error.strerror}")
                warned = True
            else:
                if self._old is not None and now not in (None, *self._old):
                    self._add(Urgency.NOTICE, f"the notice {self._notice}")
                    return
                if self._old is None and now is not None:
                    write_stderr(
                        f"warning: the notice {self._notice} is an old one; it counts when it is written again"
                    )
                self._old = (now,)
            self._closed.wait(NOTICE_SECONDS)


_listening = False


def _handled_by_the_thread(_number: int, _frame: FrameType | None) -> None:
    """Do nothing. With a handler, the interpreter writes the signal number to the pipe."""


# A forked child, such as one of a data loader, shares the pipe with its parent until `_in_a_fork`. Signals are blocked
# until then: a child that is terminated at once (multiprocessing.Pool) would stop its parent instead of itself.


def _before_fork() -> None:
    if _listening:
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def _after_fork() -> None:
    if _listening:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def _in_a_fork() -> None:
    """Let a forked child end by its own signals."""
    if _listening:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_a_fork)
