"""One TorchrunJob on a small API server, with or without a pool, and the controller that reconciles it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.unit.operator.api import Api
from tests.unit.operator.made import CLUSTER, job, queue
from tests.unit.operator.pool import POOL, PoolApi
from trainyard.operator import names as n
from trainyard.operator.nodes import pool_to_count
from trainyard.operator.observe import Cluster
from trainyard.operator.plan import ReconcilePlan
from trainyard.operator.reconciler import plan_job


class Life:
    """One job in a namespace, and the controller that reconciles it."""

    def __init__(
        self,
        of_job: dict[str, Any] | None = None,
        of_queue: dict[str, Any] | None = None,
        *,
        cluster: Cluster = CLUSTER,
        queued: bool = True,
        api: Api | None = None,
    ) -> None:
        self.api, self.cluster = api or Api(), cluster
        self.queue = queue(of_queue)
        if queued:
            self.api.create(self.queue)
        made = job(of_job)
        made["metadata"]["namespace"] = "team"
        self.api.create(made)
        self.requeue_after: float | None = None
        self.taken: list[dict[str, Any]] = []

    def reconcile(self) -> int:
        """Reconcile until nothing is left to do. Return how many plans wrote something."""
        for count in range(20):
            item = self.api.get(n.JOB_KIND, "vit")
            if item is None:
                return count
            children = [each for each in self.api.list() if each["kind"] not in (n.JOB_KIND, n.QUEUE_KIND)]
            its_queue = self.api.get(n.QUEUE_KIND, "research")
            decision = self._decided(item, its_queue, children, fresh=False)
            if decision.recount:
                decision = self._decided(item, its_queue, children, fresh=True)
            self.requeue_after = decision.requeue_after
            self.api.apply(item, decision)
            self.api.settle()
            idle = replace(decision, requeue_after=None, events=()) == type(decision)()
            if idle:
                return count
        raise AssertionError(f"no end: {decision}")

    def _decided(
        self,
        item: dict[str, Any],
        its_queue: dict[str, Any] | None,
        children: list[dict[str, Any]],
        *,
        fresh: bool,
    ) -> ReconcilePlan:
        pool = None
        if isinstance(self.api, PoolApi) and pool_to_count(item, its_queue):
            pool = self.api.observation(fresh=fresh)
        return plan_job(item, its_queue, children, self.cluster, self.api.now, pool=pool)

    @property
    def status(self) -> dict[str, Any]:
        item = self.api.get(n.JOB_KIND, "vit")
        assert item is not None
        found: dict[str, Any] = item.get("status", {})
        return found

    def condition(self, kind: str) -> tuple[str, str]:
        one = next(each for each in self.status["conditions"] if each["type"] == kind)
        return one["status"], one["reason"]

    def names(self, kind: str) -> list[str]:
        return sorted(each["metadata"]["name"] for each in self.api.list(kind))

    def run(self) -> Life:
        """Reconcile until all workers run, also after a pause."""
        self.reconcile()
        if self.status["reason"] == n.REASON_BACKING_OFF:
            self.api.now += self.requeue_after or 0.0
            self.reconcile()
        self.api.run_pods("Running")
        self.reconcile()
        assert self.status["phase"] == "Running"
        return self


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
        """Reconcile and let the cluster act, in turn."""
        for _ in range(times):
            self.reconcile()
            self.api.turn()
            self.reconcile()

    def later(self, seconds: float) -> None:
        self.api.now += seconds

    @property
    def phase_and_reason(self) -> tuple[str, str]:
        return self.status["phase"], self.status["reason"]
