"""Goodput: of all the time since a run began, the share in which the model learned what it still knows.

Each checkpoint carries the seconds that went into it. A run that goes on from it has lost what came later, and the
seconds spent on that count as time, never as use; so do the pause between two trainings, start, compilation,
evaluation, and whatever the training stands still for: data, and checkpoints with all that they take.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields


@dataclass(frozen=True, kw_only=True)
class Carried:
    """What a checkpoint says of the time before it, in seconds; `began_at` since 1970, by the first host's clock."""

    useful_seconds: float
    total_seconds: float
    began_at: float

    def document(self) -> dict[str, float]:
        """For JSON; `read` takes it back."""
        return asdict(self)

    @classmethod
    def read(cls, document: Mapping[str, object]) -> Carried:
        """Raises ValueError that names the value that is no finite number, or negative."""
        values = {}
        for each in fields(cls):
            value = document.get(each.name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ValueError(f"goodput.{each.name} is {value!r}; expected a number of seconds")
            if not math.isfinite(value) or value < 0:
                raise ValueError(f"goodput.{each.name} is {value}; expected a number of seconds from 0 on")
            values[each.name] = float(value)
        return cls(**values)


class Goodput:
    """Counts from its making on, and what an earlier checkpoint carried. Make it when the process starts."""

    def __init__(
        self,
        carried: Carried | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._clock, self._wall = clock, wall
        self._made = clock()
        self._carried = Carried(useful_seconds=0.0, total_seconds=0.0, began_at=wall())
        self._useful = 0.0
        # Of the steps since the last `add`: how many, since when, how long they stood still, the seconds that the last
        # of them ended after without that, and what one gave before them.
        self._running, self._since, self._stood, self._passed = 0, 0.0, 0.0, 0.0
        self._per_step: float | None = None
        self._stepped = False
        if carried is not None:
            self.go_on_from(carried)

    def go_on_from(self, carried: Carried) -> None:
        """The model was loaded from this checkpoint: what came before counts as it carries it."""
        self._carried = carried
        self._useful = 0.0
        self._running, self._stood = 0, 0.0

    def step(self) -> None:
        """A step is done, which the next `add` will count. The first one, which compiles, counts for nothing."""
        if self._stepped:
            self._running += 1
            self._passed = max(0.0, self._clock() - self._since - self._stood)
        else:
            self._stepped, self._since, self._stood = True, self._clock(), 0.0

    def stand(self, seconds: float) -> None:
        """The training stood still for so long between two steps or in one; the next `add` is told less it."""
        self._stood += seconds

    def add(self, useful_seconds: float) -> None:
        """The model learned for so long, in the steps since the last time."""
        self._useful += useful_seconds
        if self._running:
            self._per_step = useful_seconds / self._running
        self._running, self._since, self._stood = 0, self._clock(), 0.0

    def carried(self) -> Carried:
        """For the checkpoint of this moment: up to the last step, also where nobody has measured that yet.

        Steps since the last `add` count as those before it did, without their waits, and never as more than the time
        that they took without `stand`; before the first `add` that time is all there is.
        """
        useful = self._carried.useful_seconds + self._useful + self._unmeasured()
        return Carried(
            useful_seconds=useful, total_seconds=max(self._total(), useful), began_at=self._carried.began_at
        )

    def _unmeasured(self) -> float:
        if not self._running:
            return 0.0
        return self._passed if self._per_step is None else min(self._passed, self._running * self._per_step)

    def share(self) -> float:
        """0 to 1; 0 at the very beginning."""
        now = self.carried()
        return now.useful_seconds / now.total_seconds if now.total_seconds else 0.0

    def _total(self) -> float:
        # Pauses between trainings are known by the wall clock alone. Where that was set back, or another host's goes
        # behind, the seconds that were counted are a lower bound.
        counted = self._carried.total_seconds + (self._clock() - self._made)
        passed = self._wall() - self._carried.began_at
        return max(counted, passed, self._carried.useful_seconds + self._useful)
