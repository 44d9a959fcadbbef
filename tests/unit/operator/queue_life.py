"""One TorchrunQueue on a small API server, and the controller that reconciles it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.unit.operator.api import Api
from tests.unit.operator.made import CLUSTER, queue
from trainyard.operator import names as n
from trainyard.operator.observe import KaiQueue
from trainyard.operator.queue import build_queue_context, reconcile_queue

TREE = {each: KaiQueue() for each in (n.KAI_PARENT_QUEUE, "org")}
KAI = replace(CLUSTER, kai=True, kai_queues=TREE)
NAMED = {"kaiQueue": "gpu"}


class Life:
    """One queue, and the controller that reconciles it."""

    def __init__(self, changes: dict[str, Any] | None = None, tried: str | None = "") -> None:
        self.api, self.cluster, self.tried = Api(), KAI, tried
        self.phases: list[str] = []
        self.others: list[dict[str, Any]] = []
        self.requeue_after: float | None = None
        made = queue(changes)
        made["metadata"]["namespace"] = "team"
        self.api.create(made)

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
