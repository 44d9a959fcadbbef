"""Notifications about changed instances, for callers that wait in `GET /_trainyard/instances`."""

from __future__ import annotations

import threading

_changed = threading.Condition()


def notify() -> None:
    """Wake all callers that wait."""
    with _changed:
        _changed.notify_all()


def wait(seconds: float) -> None:
    """Return at the next change, or after the given number of seconds."""
    with _changed:
        _changed.wait(seconds)
