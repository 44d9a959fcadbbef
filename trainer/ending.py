"""Ending this process from beside its main thread, whatever that hangs in. Needs no torch.

Nothing here waits for a lock that the main thread may hold: no `print`, no flush, no interpreter's end.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import NoReturn, Protocol

from trainer.contract import Exit

STDERR = 2
# A line of log or a dump may go to a pipe that nobody reads, or to a file system that hangs.
WORK_SECONDS = 5.0


class Leave(Protocol):
    """`leave`, or what stands for it in a test."""

    def __call__(
        self, code: Exit, line: str, work: Callable[[], object] | None = None, *, linger: float = 0.0
    ) -> object: ...


def tell(line: str) -> None:
    """One line on stderr, in one piece, past Python's buffers and their locks."""
    os.write(STDERR, f"{line}\n".encode(errors="replace"))


def leave(
    code: Exit, line: str, work: Callable[[], object] | None = None, *, linger: float = 0.0
) -> NoReturn:
    """Say `line` (nothing when it is empty), do `work`, and end the process with `code`.

    Line and work get WORK_SECONDS together and no more. The end comes `linger` seconds after the call at the soonest,
    for other processes that notice the same thing and are ended as soon as this one is gone.
    """
    began = time.monotonic()

    def last() -> None:
        if line:
            tell(line)
        if work is not None:
            work()

    thread = threading.Thread(target=last, name="last-work", daemon=True)
    thread.start()
    thread.join(WORK_SECONDS)
    time.sleep(max(0.0, began + linger - time.monotonic()))
    os._exit(int(code))
