"""How long a device had nothing to do while its host waited: a GPU works on what it was given before."""

from __future__ import annotations

import torch


class Idle:
    """From its making on. Make it when the last work was given to `device`, just before the host begins to wait."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._last = self._mark() if device.type == "cuda" else None

    def seconds(self, waited: float) -> float:
        """Of the `waited` seconds until now those in which all work was done; on a CPU all of them."""
        if self._last is None:
            return waited
        if not self._last.query():  # type: ignore[no-untyped-call]
            return 0.0
        now = self._mark()
        now.synchronize()  # nothing is before it
        idle: float = self._last.elapsed_time(now) / 1000  # it tells milliseconds
        return min(waited, idle)

    def _mark(self) -> torch.cuda.Event:
        mark = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        mark.record(torch.cuda.current_stream(self._device))
        return mark
