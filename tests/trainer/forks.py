"""Start Python programs as forks of one process that has imported torch: the import takes 2 s of processor time.

`ForkedProgram` is the entry point, and `start.fork` the usual way to it. A fork runs a program as `python` does
with the same words: with its own environment, output and signal handlers, with a `sitecustomize.py` on PYTHONPATH, and
with the trainer's modules imported anew. torchrun's agent is such a program, and its processes are forks of the agent.
A fork can't show what a new interpreter does before the program: tests of that call `start` itself.
"""

from __future__ import annotations

import atexit
import io
import multiprocessing
import multiprocessing.resource_tracker
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn, TextIO

import torch
from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler

ROOT = Path(__file__).parents[2]
# Modules that a program imports itself: a sitecustomize.py may patch one before another one uses it.
_OWN = ("trainer", "tests")
LIMIT_SECONDS = 600.0
# What a shell says of a program that it can't run.
_NOT_RUN = 126


class ForkedProgram:
    """A program that runs in a fork, with the parts of subprocess.Popen that tests use. stderr is in stdout."""

    def __init__(
        self,
        words: Sequence[str],
        environ: Mapping[str, str],
        *,
        directory: Path = ROOT,
        has_own_group: bool = False,
    ) -> None:
        # Imported here: it lists this module among the preloaded ones.
        from tests.trainer.together import fork_server

        receive, send = fork_server().Pipe(duplex=False)
        arguments = (list(words), dict(environ), directory, has_own_group, send)
        self._process = fork_server().Process(target=_run_program, args=arguments)
        self._process.start()
        send.close()
        self.stdout: TextIO = os.fdopen(os.dup(receive.fileno()), encoding="utf-8", errors="replace")
        receive.close()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(f"fork {self.pid}", timeout or 0.0)
        return self._process.exitcode

    def communicate(self, timeout: float = LIMIT_SECONDS) -> tuple[str, None]:
        """Return the rest of the output once no process holds it open and the program has ended."""
        until, output = time.monotonic() + timeout, list[str]()
        reader = threading.Thread(target=lambda: output.append(self.stdout.read()), daemon=True)
        reader.start()
        reader.join(timeout)
        if reader.is_alive():
            raise subprocess.TimeoutExpired(f"fork {self.pid}", timeout)
        self.stdout.close()
        self.wait(max(0.1, until - time.monotonic()))
        return output[0], None

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class _ForkedChild:
    """A process that a torchrun agent forked, with the parts of subprocess.Popen that the agent uses."""

    def __init__(
        self,
        args: Sequence[str],
        *,
        env: Mapping[str, str],
        stdout: Any,
        stderr: Any,
        start_new_session: bool,
    ) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            if start_new_session:
                os.setsid()
            for stream, number in ((stdout, 1), (stderr, 2)):
                if stream is not None:
                    os.dup2(stream.fileno(), number)
            _run(args[1:], env)

    def poll(self) -> int | None:
        return self._collect(os.WNOHANG)

    def wait(self, timeout: float) -> int:
        until = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired(f"fork {self.pid}", timeout)
            time.sleep(0.02)
        return code

    def _collect(self, options: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


def _popen(args: Sequence[str], **more: Any) -> Any:
    """Return a fork that runs these words of a command where they are Python's, else a process."""
    is_python = Path(args[0]).name.startswith("python")
    return _ForkedChild(args, **more) if is_python else subprocess.Popen(args, **more)


def _run_program(
    words: Sequence[str], environ: Mapping[str, str], directory: Path, has_own_group: bool, output: Connection
) -> NoReturn:
    """Run a program in this new fork of the fork server."""
    if has_own_group:
        os.setpgrp()
    os.chdir(directory)
    for number in (1, 2):
        os.dup2(output.fileno(), number)
    subprocess_handler.Popen = _popen  # type: ignore[misc, assignment]
    _run(words, environ)


def _run(words: Sequence[str], environ: Mapping[str, str]) -> NoReturn:
    """Become what `python` is with these words, and end as it does."""
    code = _NOT_RUN
    try:
        os.closerange(3, 4096)
        _reset(environ)
        code = run_words(list(words))
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _reset(environ: Mapping[str, str]) -> None:
    """Undo what this process inherited and a new interpreter has not."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(environ)
    atexit._clear()
    tempfile.tempdir = None
    # Else files that a killed program shares would stay until the end of the tests.
    multiprocessing.resource_tracker._resource_tracker = multiprocessing.resource_tracker.ResourceTracker()
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(os.fdopen(number, "wb", 0, closefd=False), "utf-8", "replace", write_through=True)
        for number in (1, 2)
    )
    torch.set_num_threads(int(environ.get("OMP_NUM_THREADS", "1")))
    for name in [name for name in sys.modules if name.partition(".")[0] in _OWN]:
        del sys.modules[name]
    paths = [path for path in environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = [*paths, *(path for path in sys.path if path not in paths)]
    for path in paths:
        if (patch := Path(path) / "sitecustomize.py").exists():
            runpy.run_path(str(patch))
            break


def run_words(words: list[str]) -> int:
    """Run `[-u] -m MODULE`, `[-u] -c CODE` or `[-u] FILE` with the rest as its arguments; return its exit code."""
    if words[0] == "-u":
        words = words[1:]
    try:
        if words[0] == "-m":
            sys.argv = words[1:]
            sys.modules.pop(words[1], None)
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        elif words[0] == "-c":
            sys.argv = ["-c", *words[2:]]
            exec(compile(words[1], "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102
        else:
            sys.argv = words
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        return 1
    return 0
