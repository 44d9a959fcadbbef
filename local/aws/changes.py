"""A bell that rings when instances change, for those that wait in `GET /_trainyard/instances`."""

from __future__ import annotations

import threading

_changed = threading.Condition()


def notify() -> None:
    """Wake everyone who waits."""
    with _changed:
        _changed.notify_all()


def wait(seconds: float) -> None:
    """Return at the next change, or after so many seconds."""
    with _changed:
        _changed.wait(seconds)
