"""Processes that begin as forks of a server which has imported torch: what `python -m MODULE` runs, 2 s cheaper.

For tests that aren't about how a process starts. The entry point is `Forked`.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parents[2]
# The server imports these once. Importing them starts no thread.
PRELOADED = (
    "tests.trainer.forked",
    "tests.trainer.together",
    "torch._dynamo",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.distributed.run",
    "trainer.checkpoints",
    "trainer.train",
)


def fork_server() -> ForkServerContext:
    """Return the context whose processes are forks of the server; pytest's process has one server."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    return context


def run_as_main(module: str, arguments: Sequence[str]) -> int:
    """Do what `python -m MODULE ARGUMENT...` does, and return its exit code."""
    sys.argv = [module, *arguments]
    sys.modules.pop(module, None)  # else runpy warns that the server has imported it
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code
        if isinstance(code, str):
            print(code, file=sys.stderr)
        return code if isinstance(code, int) else int(code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def _main(
    output: Connection,
    environ: Mapping[str, str],
    directory: Path,
    has_own_group: bool,
    module: str,
    arguments: Sequence[str],
) -> None:
    import torch

    if has_own_group:
        os.setpgrp()

    for number in (1, 2):
        os.dup2(output.fileno(), number)
    output.close()
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environ)
    torch.set_num_threads(1)
    code = run_as_main(module, arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class Forked:
    """A process with one stream for stdout and stderr; it has what tests use of subprocess.Popen."""

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        environ: Mapping[str, str],
        *,
        directory: Path = ROOT,
        has_own_group: bool = False,
    ) -> None:
        context = fork_server()
        reader, writer = context.Pipe(duplex=False)
        words = (writer, dict(environ), directory, has_own_group, module, arguments)
        self._process = context.Process(target=_main, args=words)
        self._process.start()
        writer.close()
        self.stdout: IO[str] = os.fdopen(os.dup(reader.fileno()), errors="replace")
        reader.close()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code, or the negative number of the signal that ended it."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """Return the exit code, None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end, and return the exit code."""
        self._process.join(timeout)
        code = self._process.exitcode
        if code is None:
            raise subprocess.TimeoutExpired("a forked process", timeout or 0)
        return code

    def communicate(self, timeout: float) -> tuple[str, None]:
        """Return the rest of its output, once it and its children have ended."""
        # Reads without a limit end with the process.
        timer = threading.Timer(timeout, self.kill)
        timer.start()
        try:
            output = self.stdout.read()
            self.wait(timeout)
        finally:
            timer.cancel()
        return output, None

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)
