"""One TorchrunJob on a small API server, with or without a pool, and the controller that reconciles it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Self

from tests.unit.operator.api import Api
from tests.unit.operator.made import CLUSTER, job, queue
from tests.unit.operator.pool import POOL, PoolApi
from trainyard.operator import names as n
from trainyard.operator.context import build_context
from trainyard.operator.nodes import pool_to_count
from trainyard.operator.observe import ClusterState, KaiQueue
from trainyard.operator.plan import ReconcilePlan
from trainyard.operator.queue import build_queue_context, reconcile_queue
from trainyard.operator.reconciler import plan_job


class Life:
    """One job in a namespace, and the controller that reconciles it."""

    def __init__(
        self,
        of_job: dict[str, Any] | None = None,
        of_queue: dict[str, Any] | None = None,
        *,
        cluster: ClusterState = CLUSTER,
        queued: bool = True,
        api: Api | None = None,
    ) -> None:
        self.api, self.cluster = api or Api(), cluster
        self.queue = queue(of_queue)
        if queued:
            self.api.create(self.queue)
        self.api.create(job(of_job))
        self.requeue_after: float | None = None
        self.taken: list[dict[str, Any]] = []

    def reconcile(self) -> int:
        """Reconcile until nothing is left to do. Return how many plans wrote something."""
        for count in range(20):
            item, queue = self.api.get(n.JOB_KIND, "vit"), self.api.get(n.QUEUE_KIND, "research")
            if item is None:
                return count
            children = [each for each in self.api.list() if each["kind"] not in (n.JOB_KIND, n.QUEUE_KIND)]
            ctx = build_context(item, queue, children, self.cluster, self.api.now)
            for fresh in (False, True):
                if isinstance(self.api, PoolApi) and pool_to_count(ctx):
                    ctx = replace(ctx, pool=self.api.observation(fresh=fresh))
                plan = plan_job(ctx)
                if not plan.recount:
                    break
            self.requeue_after = plan.requeue_after
            self.api.apply(item, plan)
            self.api.settle()
            if replace(plan, requeue_after=None, events=()) == ReconcilePlan():
                return count
        raise AssertionError(f"no end: {plan}")

    @property
    def job(self) -> dict[str, Any]:
        item = self.api.get(n.JOB_KIND, "vit")
        assert item is not None
        return item

    @property
    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.job.get("status", {})
        return found

    @property
    def state(self) -> tuple[str, str]:
        return self.status["phase"], self.status["reason"]

    @property
    def message(self) -> str:
        return str(self.status["message"])

    def shown(self, *fields: str) -> tuple[Any, ...]:
        return tuple(self.status[each] for each in fields)

    def condition(self, kind: str) -> tuple[str, str]:
        one = next(each for each in self.status["conditions"] if each["type"] == kind)
        return one["status"], one["reason"]

    def names(self, kind: str) -> list[str]:
        return sorted(each["metadata"]["name"] for each in self.api.list(kind))

    def plan(self, children: list[dict[str, Any]], *more: Any) -> ReconcilePlan:
        """Return the plan for these objects of the job, which is not applied."""
        queue = self.api.get(n.QUEUE_KIND, "research")
        return plan_job(build_context(self.job, queue, children, self.cluster, self.api.now, *more))

    def begin(self) -> Self:
        self.reconcile()
        return self

    def run(self) -> Self:
        """Reconcile until all workers run, also after a pause."""
        self.reconcile()
        if self.status["reason"] == n.REASON_BACKING_OFF:
            self.wait(self.requeue_after or 0.0)
        self.api.run_pods("Running")
        self.reconcile()
        assert self.status["phase"] == "Running"
        return self

    def fail(self, code: int = 1, **options: Any) -> None:
        """End all workers, or one, with this exit code."""
        self.api.run_pods("Failed", exit_code=code, **options)
        self.reconcile()

    def succeed(self, **options: Any) -> None:
        self.api.run_pods("Succeeded", exit_code=0, **options)
        self.reconcile()

    def edit(self, **spec: Any) -> None:
        self.api.edit(n.JOB_KIND, "vit", **spec)
        self.reconcile()

    def edit_queue(self, **spec: Any) -> None:
        self.api.edit(n.QUEUE_KIND, "research", **spec)
        self.reconcile()

    def settle(self) -> None:
        """Let Kubernetes react, then reconcile."""
        self.api.settle()
        self.reconcile()

    def wait(self, seconds: float) -> None:
        self.api.now += seconds
        self.reconcile()


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


TREE = {each: KaiQueue() for each in (n.KAI_PARENT_QUEUE, "org")}
KAI = replace(CLUSTER, kai=True, kai_queues=TREE)
NAMED = {"kaiQueue": "gpu"}


class QueueLife:
    """One queue, and the controller that reconciles it."""

    def __init__(self, changes: dict[str, Any] | None = None, tried: str | None = "") -> None:
        self.api, self.cluster, self.tried = Api(), KAI, tried
        self.phases: list[str] = []
        self.others: list[dict[str, Any]] = []
        self.requeue_after: float | None = None
        self.api.create(queue(changes))

    def begin(self) -> Self:
        self.reconcile()
        return self

    def edit(self, **spec: Any) -> None:
        self.api.edit(n.QUEUE_KIND, "research", **spec)
        self.reconcile()

    def delete(self) -> None:
        self.api.delete(n.QUEUE_KIND, "research")
        self.reconcile()

    def reconcile(self) -> None:
        for _ in range(10):
            item = self.api.get(n.QUEUE_KIND, "research")
            if item is None:
                return
            ctx = build_queue_context(item, self.api.list("Queue"), self.cluster, self.api.now)
            ctx = replace(ctx, refusal=self.tried, phases=self.phases, gangs=self.others)
            decision = reconcile_queue(ctx)
            self.requeue_after = decision.requeue_after
            self.api.apply(item, decision)
            self.api.settle()
            if replace(decision, requeue_after=None, events=()) == type(decision)():
                return
        raise AssertionError(f"no end: {decision}")

    def condition(self, kind: str) -> tuple[str, str]:
        one = self._condition(kind)
        return one["status"], one["reason"]

    def message(self, kind: str = n.READY) -> str:
        return str(self._condition(kind)["message"])

    def _condition(self, kind: str) -> dict[str, Any]:
        conditions = self.api.objects[n.QUEUE_KIND, "research"]["status"]["conditions"]
        return next(each for each in conditions if each["type"] == kind)

    @property
    def kai(self) -> list[str]:
        return sorted(each["metadata"]["name"] for each in self.api.list("Queue"))

    @property
    def finalizers(self) -> list[str]:
        found: list[str] = self.api.objects[n.QUEUE_KIND, "research"]["metadata"].get("finalizers", [])
        return found
