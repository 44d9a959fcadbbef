"""The wait between two rounds of the launcher, which changes and signals end early."""

from __future__ import annotations

import time
from queue import Empty, SimpleQueue

# Changes come in bursts: a starting node updates its Node object several times, and many nodes start together.
SETTLE_SECONDS = 0.05


class Wakeup:
    """Set by other threads and by signal handlers, awaited by one thread.

    A signal handler may interrupt the waiting thread between any two of its steps. The locks of `threading` are not
    safe there; `SimpleQueue.put` is (https://docs.python.org/3/library/queue.html#queue.SimpleQueue.put).
    """

    def __init__(self) -> None:
        self._calls: SimpleQueue[None] = SimpleQueue()

    def set(self) -> None:
        """End the present wait, or else the next one."""
        if self._calls.empty():
            self._calls.put(None)

    def clear(self) -> None:
        """Discard all calls of `set` so far."""
        try:
            while True:
                self._calls.get_nowait()
        except Empty:
            pass

    def wait(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds for a call of `set`. After one, wait until a burst of changes settles.

        Returns:
            Whether `set` was called.
        """
        try:
            self._calls.get(timeout=timeout)
        except Empty:
            return False
        time.sleep(SETTLE_SECONDS)
        return True
