"""Let torchrun's agent fork its workers, as torch's DataLoader does.

torchrun starts each worker as a new interpreter, which imports torch for some seconds (docs/decisions/0039). A fork
shares the modules that the agent imported. torch.multiprocessing's own fork can't replace this: at the first failure it
stops the other workers before they report their errors (`ProcessContext.join` in torch/multiprocessing/spawn.py).
"""

from __future__ import annotations

import gc
import io
import multiprocessing.resource_tracker
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler

from trainer.log_copy import using_store
from trainer.process import flush_output, run_and_exit

POLL_SECONDS = 0.02


def fork_workers(module: str, work: Callable[[], int | None]) -> None:
    """Let torchrun's agents in this process fork their workers, instead of starting `python -u -m <module>`.

    Other commands start as before, and while the log is copied all do. `work` finds its arguments in `sys.argv` and
    returns the exit code.
    """
    own_command = [sys.executable, "-u", "-m", module]

    def start_worker(args: Sequence[str], **options: Any) -> Any:
        if list(args[:4]) == own_command and using_store.acquire(blocking=False):
            try:
                return ForkedWorker(args[3:], work, **options)
            finally:
                using_store.release()
        return subprocess.Popen(args, **options)

    vars(subprocess_handler)["Popen"] = start_worker


class ForkedWorker:
    """A forked process, with the parts of subprocess.Popen that the agent uses."""

    def __init__(
        self,
        arguments: Sequence[str],
        work: Callable[[], int | None],
        *,
        env: Mapping[str, str],
        stdout: IO[str] | None,
        stderr: IO[str] | None,
        start_new_session: bool,
    ) -> None:
        self.returncode: int | None = None
        flush_output()
        ready, is_ready = os.pipe()
        # The agent's handlers must not run in the worker.
        previous = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            self.pid = os.fork()
            if self.pid == 0:
                run_and_exit(
                    lambda: self._work(arguments, work, env, (stdout, stderr), start_new_session, previous)
                )
        finally:
            os.close(is_ready)
            signal.pthread_sigmask(signal.SIG_SETMASK, previous)
        # The agent signals the worker's session, which must exist. The worker closes its end after that.
        os.read(ready, 1)
        os.close(ready)

    def _work(
        self,
        arguments: Sequence[str],
        work: Callable[[], int | None],
        environ: Mapping[str, str],
        streams: Sequence[IO[str] | None],
        is_session: bool,
        signal_mask: set[int | signal.Signals],
    ) -> int | None:
        """Run the worker in the new process. Return its exit code."""
        if is_session:
            os.setsid()
        for number, stream in enumerate(streams, 1):
            if stream is not None:
                os.dup2(stream.fileno(), number)
        reset_inherited_state(environ)
        signal.pthread_sigmask(signal.SIG_SETMASK, signal_mask)
        sys.argv = list(arguments)
        return work()

    def poll(self) -> int | None:
        """Return the exit code, or None while the process runs."""
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                # SIGCHLD is ignored, so the kernel collected it; as in subprocess.Popen.
                pid, status = self.pid, 0
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float) -> int:
        """Wait for the exit code. Raise subprocess.TimeoutExpired."""
        end = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired(f"worker {self.pid}", timeout)
            time.sleep(POLL_SECONDS)
        return code


def reset_inherited_state(environ: Mapping[str, str]) -> None:
    """Reset the state that a new interpreter would not inherit."""
    # An object of the agent that is collected here would close a descriptor of this process.
    gc.disable()
    gc.freeze()
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.set_wakeup_fd(-1)
    os.environ.clear()
    os.environ.update(environ)
    # Unbuffered, as `python -u`. A thread of the agent may hold the locks of the old ones.
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(
            os.fdopen(number, "wb", 0, closefd=False), old.encoding, old.errors, write_through=True
        )
        for number, old in ((1, sys.stdout), (2, sys.stderr))
    )
    np.random.seed()  # otherwise all workers have the same numbers; `random` does this itself
    # The tracker of shared memory is a process, reached by a descriptor that is closed now.
    tracker = multiprocessing.resource_tracker._resource_tracker
    tracker._fd = tracker._pid = None  # type: ignore[attr-defined]
    with suppress(OSError):
        Path("/proc/self/comm").write_text(f"rank {environ.get('RANK')}")  # in `top`; the agent is pt_elastic
