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
from trainer.process import Leave, leave, tell

SIGNALS = (signal.SIGTERM, signal.SIGINT)
NOTICE_SECONDS = 1.0
# After a signal a process that has nothing to save comes to its end by itself within this time, or is ended.
PROMPT_SECONDS = 5.0
# Beside the numbers of signals (1 to 64) in the pipe.
_LOOK, _CLOSE = 0, 255
# What torchrun takes for the time between its SIGTERM and its SIGKILL (torch 2.15, LaunchConfig in
# torch/distributed/launcher/api.py and --shutdown-timeout in torch/distributed/run.py), and its default in seconds.
_SHUTDOWN = ("PET_SHUTDOWN_TIMEOUT", SHUTDOWN_VARIABLE)
_SHUTDOWN_SECONDS = 30.0


class Urgency(IntEnum):
    """How pressing a wish to stop is; of several the greatest counts."""

    NONE = 0
    NOTICE = 1  # somebody will send a signal, but later
    SIGNAL = 2  # torchrun sends SIGKILL after its shutdown timeout


_ELSEWHERE = {Urgency.NOTICE: "a notice to another process", Urgency.SIGNAL: "a signal to another process"}


@dataclass(frozen=True)
class Wish:
    """A wish to stop: how pressing, who told, and when, in seconds of `time.monotonic`."""

    urgency: Urgency = Urgency.NONE
    reason: str = ""
    at: float = 0.0

    def joined(self, other: Wish) -> Wish:
        """The more pressing of the two, the earlier where they are alike."""
        return other if other.urgency > self.urgency else self


def patience(environ: Mapping[str, str]) -> float:
    """Seconds after a signal in which a process may come to its end by itself: well before torchrun kills it.

    20 of torchrun's usual 30 s; of more than that all but 10. Raises TrainerError where the variable is no number.
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
    """Which file is at `path`, None for none. Raises OSError when it can't be seen whether there is one."""
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_ino, found.st_mtime_ns


class Stop:
    """The wish to stop of this process, and its agreement with the others.

    - `listen()` in the main thread, before anything that takes long; `join()` in all processes together, once the
      process group is there; `agreed()` in the loop; `settle()` before the process group is destroyed; `close()` last.
    - When a signal was not followed by `close()` within `patience` seconds, the process ends with Exit.STOPPED, saying
      the `phase` it hung in, and does `last` before. A notice file alone has no deadline: whoever writes it sends a
      signal when time is over.
    - While nothing is `at_stake`, as it is before the first step, PROMPT_SECONDS take the place of `patience`.
    - A notice file that is there at the start is somebody's old one, and counts once it is written anew.
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
        self._most, self._phase, self._notice, self._leave = patience, phase, notice, leave
        self._last = last
        self._patience, self._since = min(patience, PROMPT_SECONDS), 0.0
        self._wish = Wish()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._old: tuple[tuple[int, int] | None] | None = (
            None  # the notice of before, once that was looked at
        )
        self._group: dist.ProcessGroup | None = None
        self._round: tuple[dist.Work, torch.Tensor] | None = None
        self._agreed = False
        self._threads: list[threading.Thread] = []
        self._handlers: dict[signal.Signals, Any] = {}
        self._read = self._write = -1

    @property
    def wish(self) -> Wish:
        """What this process was told, itself or by the others."""
        return self._wish

    def listen(self) -> None:
        """Take over the signals and start to look for the notice. Only the main thread may do this."""
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in SIGNALS:
            self._handlers[number] = signal.signal(number, _handled_by_the_thread)
            signal.siginterrupt(number, False)  # libraries in C need not expect to be interrupted
        global _listening
        _listening = True
        self._start(self._hear, "stop-signals")
        if self._notice is not None:
            self._start(self._watch_for_notice, "stop-notice")

    def join(self, timeout: timedelta) -> None:
        """Make the group in which the processes agree: its own, so that no collective of the training is disturbed.

        All processes call this together; a round of agreement that takes longer than `timeout` raises RuntimeError.
        """
        if dist.get_world_size() > 1:
            group = dist.new_group(backend="gloo", timeout=timeout)
            self._group = group if isinstance(group, dist.ProcessGroup) else None  # all processes are in it

    def at_stake(self, unsaved: bool) -> None:
        """Whether there is work now that an end would lose."""
        self._patience = self._most if unsaved else min(self._most, PROMPT_SECONDS)
        self._since = time.monotonic()
        self._send(_LOOK)

    def _left(self, wish: Wish) -> float | None:
        """Seconds until the process is ended, None where no signal came.

        Patience that becomes less counts from then on: what takes long before is not held against what comes after.
        """
        if wish.urgency < Urgency.SIGNAL:
            return None
        end = min(max(wish.at, self._since) + self._patience, wish.at + self._most)
        return end - time.monotonic()

    def is_noticed(self) -> bool:
        """Whether a new notice is on this machine, looked at now: another of its processes may have seen it first."""
        if self._notice is None or self._old is None:
            return False
        with suppress(OSError):
            return _state(self._notice) not in (None, *self._old)
        return False

    @property
    def groups(self) -> tuple[dist.ProcessGroup, ...]:
        """The groups made here, for who shortens their timeouts after the first step."""
        return () if self._group is None else (self._group,)

    def agreed(self) -> bool:
        """Whether all processes stop now. All of them get True at the same call, at most two calls after the wish.

        To be called equally often in every process: once per micro-batch of a step, whose gradients are dropped on
        True, and once per evaluation batch. It costs one round of four bytes between the
        hosts, waited for a call later; the device is not waited for. Raises RuntimeError when another process is
        gone, or hangs for longer than the group's timeout.
        """
        if self._agreed:
            return True
        if self._group is None:
            self._agreed = self._wish.urgency > Urgency.NONE
            return self._agreed
        flag = torch.tensor([int(self._wish.urgency)], dtype=torch.int32)
        work = dist.all_reduce(flag, dist.ReduceOp.MAX, self._group, async_op=True)
        before, self._round = self._round, (work, flag)
        if before is not None:
            before[0].wait()
            found = Urgency(int(before[1].item()))
            self._agreed = found > Urgency.NONE
            if found > self._wish.urgency:
                self._add(found, _ELSEWHERE[found])
                self._send(_LOOK)
        return self._agreed

    def agreed_at_once(self) -> bool:
        """`agreed()`, but waited for: what any process was told before its call counts. For between two phases."""
        return self.agreed() or self.agreed()

    def settle(self) -> None:
        """Wait for the round that is still on its way, so that the process group can be destroyed."""
        pending, self._round, self._group = self._round, None, None
        if pending is not None:
            # It fails only where another process is gone, which is for the training's own collectives to tell.
            with suppress(RuntimeError):
                pending[0].wait()

    def close(self) -> None:
        """All is done and saved: no deadline any more, and the handlers of before. Can be repeated."""
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
            thread.join(NOTICE_SECONDS)  # one that looks at a file system that hangs stays behind
        os.close(self._write)

    def _start(self, work: Callable[[], None], name: str) -> None:
        thread = threading.Thread(target=work, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _send(self, byte: int) -> None:
        """To the thread that keeps the deadline. A pipe that is full wakes it anyway."""
        if self._handlers:
            with suppress(BlockingIOError):
                os.write(self._write, bytes([byte]))

    def _add(self, urgency: Urgency, reason: str) -> None:
        with self._lock:
            self._wish = self._wish.joined(Wish(urgency, reason, time.monotonic()))

    def _hear(self) -> None:
        """Read the signals' numbers, and end the process when one was not followed by its end in time."""
        while True:
            wish = self._wish
            left = self._left(wish)
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
                f"error: told to stop by {wish.reason} {time.monotonic() - wish.at:.0f} s ago and still in this phase: "
                f"{self._phase()}; ended without another checkpoint, what was saved before stays",
                self._last,
            )

    def _watch_for_notice(self) -> None:
        """A thread of its own: a look at a file system that hangs must not keep the deadline waiting."""
        assert self._notice is not None  # noqa: S101 - started with one only
        said = False
        while not self._closed.is_set():
            try:
                now = _state(self._notice)
            except OSError as error:
                if not said:
                    tell(f"warning: the notice {self._notice} can't be looked at: {error.strerror}")
                said = True
            else:
                if self._old is not None and now not in (None, *self._old):
                    self._add(Urgency.NOTICE, f"the notice {self._notice}")
                    return
                if self._old is None and now is not None:
                    tell(
                        f"warning: the notice {self._notice} is an old one; it counts once it is written anew"
                    )
                self._old = (now,)
            self._closed.wait(NOTICE_SECONDS)


_listening = False


def _handled_by_the_thread(_number: int, _frame: FrameType | None) -> None:
    """Nothing: that a handler is there is what makes the interpreter write to the pipe."""


# A forked child, such as a data loader's, shares the pipe: it has to end by its own signals and to write nothing there.
# None may reach it before that is so.


def _before_fork() -> None:
    if _listening:
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def _after_fork() -> None:
    if _listening:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def _in_a_fork() -> None:
    if _listening:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_a_fork)
