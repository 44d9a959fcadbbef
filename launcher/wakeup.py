"""The wait between two rounds of the launcher. Changes and signals end it early."""

from __future__ import annotations

import time
from queue import Empty, SimpleQueue

# Changes come in bursts: a starting node updates its Node object several times, and many nodes start together.
SETTLE_SECONDS = 0.05


class Wakeup:
    """An event that one thread awaits, and that other threads and signal handlers set.

    A signal handler may interrupt the waiting thread between any two of its steps. The locks of `threading` are not
    safe there; `SimpleQueue.put` is (https://docs.python.org/3/library/queue.html#queue.SimpleQueue.put).
    """

    def __init__(self) -> None:
        self._calls: SimpleQueue[None] = SimpleQueue()

    def set(self) -> None:
        """End the present wait, or the next one if there is none."""
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
