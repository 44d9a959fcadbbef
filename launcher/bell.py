"""What wakes the launcher between two rounds."""

from __future__ import annotations

import time
from queue import Empty, SimpleQueue

# Changes come in bursts: a machine that starts changes its Node several times, and many start together.
SETTLE_SECONDS = 0.05


class Bell:
    """Rung by other threads and by signal handlers, heard by one thread.

    A handler may run in the very thread that waits, between any two of its steps, where the locks of `threading` are
    not safe; `SimpleQueue.put` is (https://docs.python.org/3/library/queue.html#queue.SimpleQueue.put).
    """

    def __init__(self) -> None:
        self._rings: SimpleQueue[None] = SimpleQueue()

    def ring(self) -> None:
        """Ends the present wait, or else the next one."""
        if self._rings.empty():
            self._rings.put(None)

    def clear(self) -> None:
        """Forgets the rings so far."""
        try:
            while True:
                self._rings.get_nowait()
        except Empty:
            pass

    def wait(self, timeout: float) -> bool:
        """Waits this many seconds for a ring, and a moment for what comes with it; whether there was one."""
        try:
            self._rings.get(timeout=timeout)
        except Empty:
            return False
        time.sleep(SETTLE_SECONDS)
        return True
