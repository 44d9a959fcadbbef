"""Count the node-hours of jobs and their price, in all attempts. Entry point: `CostMeters.count`.

The status of a job is the store: a restarted controller continues from there, and does not count the time between. A
node counts while a placeholder or a worker of the job is on it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from launcher.cost import ON_DEMAND, Meter, Offering, Price
from launcher.progress import Usage
from trainyard.k8s import names
from trainyard.operator import names as n
from trainyard.operator.api.fields import JsonObject
from trainyard.operator.context import JobCost
from trainyard.operator.observe import OVER, labels_of

# The interval at which the status of a job is written if only its cost has changed.
WRITE_SECONDS: Final = 60.0
_UNKNOWN: Final = Offering("", "", ON_DEMAND)


@dataclass(kw_only=True)
class _JobMeter:
    """The meter of a job. `recorded` is `cost` of its status as last read, and `since` the time of its last change."""

    uid: str
    meter: Meter
    recorded: JsonObject
    since: float
    offerings: Mapping[str, Offering] = field(default_factory=dict)


class CostMeters:
    """The meters of all jobs. Any thread may use it, but each job only one at a time.

    Args:
        price: Returns the price of a node.
        read_offerings: Returns the instance types of nodes, by the nodes' names.
        clock: Counts seconds, and is never set back.
    """

    def __init__(
        self,
        price: Price,
        read_offerings: Callable[[], Mapping[str, Offering]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._price = price
        self._read_offerings = read_offerings
        self._clock = clock
        self._jobs: dict[str, _JobMeter] = {}

    def count(self, path: str, job: JsonObject, children: Iterable[JsonObject]) -> JobCost | None:
        """Return the cost of the job at this path until now; None if it has no nodes and no cost to report."""
        uid, status, now = str(job["metadata"].get("uid")), job.get("status") or {}, self._clock()
        recorded, nodes, state = status.get("cost") or {}, find_nodes(children), self._jobs.get(path)
        if state is not None and state.uid != uid:
            state = None
        if status.get("phase") in n.FINAL_PHASES or not (nodes or state):
            self.forget(path)
            return None
        if state is None:
            state = _JobMeter(uid=uid, meter=Meter(self._price), recorded=recorded, since=now)
            state.meter.resume(read_usage(recorded))
            self._jobs[path] = state
        if recorded != state.recorded:
            state.recorded, state.since = recorded, now
            if recorded.get("nodeHours", 0.0) > to_status(state.meter.usage).get("nodeHours", 0.0):
                state.meter.resume(read_usage(recorded))  # another controller has counted meanwhile
        known = state.offerings
        if not nodes.keys() <= known.keys():
            known = {**known, **self._read_offerings()}
        state.offerings = {name: known[name] for name in nodes if name in known}
        present = ((known.get(name, _UNKNOWN), is_idle) for name, is_idle in nodes.items())
        usage = state.meter.count_nodes(present, now)
        section, left = to_status(usage), state.since + WRITE_SECONDS - now
        if not nodes and section == recorded:
            self.forget(path)
            return None
        return JobCost(
            section=section,
            text=usage.describe(),
            is_due=left <= 0,
            requeue_after=left if left > 0 else WRITE_SECONDS,
        )

    def forget(self, path: str) -> None:
        """Forget a job that was deleted, or that has ended."""
        self._jobs.pop(path, None)


def find_nodes(children: Iterable[JsonObject]) -> dict[str, bool]:
    """Return the nodes of a job, and whether each is idle: it has a placeholder and no worker."""
    nodes: dict[str, bool] = {}
    for each in children:
        labels = labels_of(each)
        is_worker, is_placeholder = (
            n.LABEL_ATTEMPT in labels,
            labels.get(names.LABEL_ROLE) == names.ROLE_PLACEHOLDER,
        )
        if each["kind"] != "Pod" or not (is_worker or is_placeholder):
            continue
        node, phase = (each.get("spec") or {}).get("nodeName"), (each.get("status") or {}).get("phase")
        if node and phase not in OVER:
            nodes[node] = nodes.get(node, True) and not is_worker
    return nodes


def to_status(usage: Usage) -> JsonObject:
    """Return `cost` of the status; {} for no node-hours. `usd` is missing if no price is known."""
    if not usage.node_seconds:
        return {}
    hours = {"nodeHours": usage.node_seconds / 3600, "idleNodeHours": usage.idle_node_seconds / 3600}
    is_priced = usage.unpriced_node_seconds < usage.node_seconds
    return {
        key: round(each, 4) for key, each in {**hours, **({"usd": usage.usd} if is_priced else {})}.items()
    }


def read_usage(section: JsonObject) -> Usage:
    """Return the usage in `cost` of a status."""
    seconds = section.get("nodeHours", 0.0) * 3600
    return Usage(
        node_seconds=seconds,
        idle_node_seconds=section.get("idleNodeHours", 0.0) * 3600,
        unpriced_node_seconds=0.0 if "usd" in section else seconds,
        usd=section.get("usd", 0.0),
    )
