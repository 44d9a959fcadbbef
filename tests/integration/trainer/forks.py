"""Start Python programs as forks of a server that has imported torch: the import takes 2 s of processor time.

Tests call `start.fork` (tests/integration/trainer/conftest.py), which creates a `ForkedProgram`. The fork has its own
environment, output and signal handlers. It runs `sitecustomize.py` from PYTHONPATH and imports the trainer's modules
itself. If the program is torchrun's agent, its workers are forks of the agent, which do the same; those of
trainer.entrypoint do not. A fork is not a new interpreter: an uncaught KeyboardInterrupt ends it with 1, and it
does not wait for other threads. Tests of that call `start` itself.
"""

from __future__ import annotations

import atexit
import gc
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn, TextIO

import torch
from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler

from trainer.forked_workers import ForkedWorker, reset_inherited_state

ROOT = Path(__file__).parents[3]
# Packages that each fork imports itself: a sitecustomize.py may patch a module before another one uses it.
REIMPORTED_PACKAGES = ("trainer", "tests")
LIMIT_SECONDS = 600.0
# A shell's exit code for a command that cannot run.
CANNOT_EXECUTE = 126


class ForkedProgram:
    """A program in a fork, with the parts of subprocess.Popen that tests use; stdout includes stderr."""

    def __init__(
        self,
        words: Sequence[str],
        environ: Mapping[str, str],
        *,
        directory: Path = ROOT,
        has_own_group: bool = False,
    ) -> None:
        # Not at the top: the fork server preloads this module.
        from tests.integration.trainer.together import fork_server

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
        """Wait for the end of the output and of the program; return the output."""
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


def _popen(args: Sequence[str], **options: Any) -> Any:
    """Fork for a Python command; start a process for any other."""
    is_python = Path(args[0]).name.startswith("python")
    if not is_python:
        return subprocess.Popen(args, **options)
    return ForkedWorker(args[1:], partial(_run, args[1:], options["env"]), **options)


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
    """Run a Python command line, and exit with its code."""
    code = CANNOT_EXECUTE
    try:
        _reset(environ)
        code = run_python(list(words))
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)


def _reset(environ: Mapping[str, str]) -> None:
    """Reset the state that this process inherited from its parent."""
    reset_inherited_state(environ)
    gc.enable()
    atexit._clear()
    tempfile.tempdir = None
    torch.set_num_threads(int(environ.get("OMP_NUM_THREADS", "1")))
    for name in [name for name in sys.modules if name.partition(".")[0] in REIMPORTED_PACKAGES]:
        del sys.modules[name]
    paths = [path for path in environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = [*paths, *(path for path in sys.path if path not in paths)]
    for path in paths:
        if (patch := Path(path) / "sitecustomize.py").exists():
            runpy.run_path(str(patch))
            break


def run_python(words: list[str]) -> int:
    """Run `[-u] -m MODULE`, `[-u] -c CODE` or `[-u] FILE` with its arguments; return its exit code."""
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
