"""The sources that are watched now, and no others."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from trainyard.k8s.rest import Rest
from trainyard.k8s.watch import Reflector, Source

T = TypeVar("T")

_CLOSING_SECONDS = 2.0


class Stores:
    """One reflector for each source that was asked for."""

    def __init__(self, rest: Rest, changed: Callable[[], None]) -> None:
        self._rest = rest
        self._changed = changed
        self._running: dict[Source[Any], Reflector[Any]] = {}

    def keep(self, sources: Iterable[Source[Any]]) -> None:
        """Watches these from now on, all begun at once, and ends the other watches."""
        wanted = list(sources)
        for source in [source for source in self._running if source not in wanted]:
            self._running.pop(source).stop()
        for source in wanted:
            self.start(source)

    def start(self, source: Source[Any]) -> None:
        """Watches this one, too, from now on."""
        if source not in self._running:
            self._running[source] = Reflector(self._rest, source, self._changed)
            self._running[source].start()

    def items(self, source: Source[T]) -> tuple[T, ...]:
        """What is kept of a source that is watched. Waits for its first list, and raises as `Reflector.items` does."""
        reflector: Reflector[T] = self._running[source]
        return reflector.items()

    def close(self) -> None:
        """Ends every watch, and waits for a moment until they have ended."""
        ended = list(self._running.values())
        self._running.clear()
        for reflector in ended:
            reflector.stop()
        until = time.monotonic() + _CLOSING_SECONDS
        for reflector in ended:
            reflector.join(max(0.0, until - time.monotonic()))
