"""Let only one command at a time change the stacks of a local cloud."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from local.home import Home


@contextlib.contextmanager
def turn(directory: Path, report: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock of a directory. If another command has it, print which one and wait. It ends with the process.

    Raises:
        OSError: The lock file can't be written, or the directory belongs to another program.
    """
    Home(directory.parent).claim()
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / "commands.lock"
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report(
                f"waiting for another command (process {os.pread(descriptor, 20, 0).decode()}) on this local cloud"
            )
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(descriptor)
