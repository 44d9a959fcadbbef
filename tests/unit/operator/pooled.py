"""One TorchrunJob whose queue names a pool, and the controller that reconciles it."""

from __future__ import annotations

from typing import Any

from tests.unit.operator.life import Life
from tests.unit.operator.pool import POOL, PoolApi

POOLED = {"scheduling.pool": POOL}
TWO = {"numGPUs": 16}
ELASTIC = {"numGPUs": 32, "elastic": {"minNodes": 2, "maxNodes": 4}}


class Pooled(Life):
    api: PoolApi

    def __init__(
        self, of_job: dict[str, Any] | None = None, of_queue: dict[str, Any] | None = None, **options: Any
    ) -> None:
        limit, api = options.pop("limit", 4), options.pop("api", None)
        super().__init__(of_job or TWO, {**POOLED, **(of_queue or {})}, api=api or PoolApi(limit), **options)

    def turn(self, times: int = 1) -> None:
        """Looks and what the cluster makes of them, in turn."""
        for _ in range(times):
            self.reconcile()
            self.api.turn()
            self.reconcile()

    def later(self, seconds: float) -> None:
        self.api.now += seconds

    @property
    def phase_and_reason(self) -> tuple[str, str]:
        return self.status["phase"], self.status["reason"]
