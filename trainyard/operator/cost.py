"""Count the node-hours and the cost of jobs, over all attempts. Entry point: `CostMeters.count`.

The job's status stores the usage, and a restarted controller continues from there. Its downtime is not counted. A node
counts while a placeholder or a worker of the job is on it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from launcher.cost import ON_DEMAND, Meter, Offering, Price
from launcher.progress import Usage
from trainyard.operator.api.fields import JsonObject
from trainyard.operator.context import JobCost, ReconcileContext
from trainyard.operator.observe import Children, is_over

log = logging.getLogger(__name__)

# The interval at which the status of a job is written if only its cost has changed.
WRITE_SECONDS: Final = 60.0
# A job with nodes is counted at least every WRITE_SECONDS. After a longer pause, this controller was not the leader, or
# had no API server.
_PAUSE_SECONDS: Final = 300.0
_UNKNOWN: Final = Offering("", "", ON_DEMAND)


@dataclass(kw_only=True)
class _JobMeter:
    """The meter of a job. Times are in seconds of the clock."""

    uid: str
    meter: Meter
    stored: JsonObject  # `cost` of the status as last read
    reported: JsonObject  # `cost` of the last plan, which may be stored
    due: float  # when the status is written if only its cost has changed
    counted: float  # the time of the last count
    offerings: Mapping[str, Offering] = field(default_factory=dict)  # of its nodes, by the nodes' names


class CostMeters:
    """The meters of all jobs. Any thread may use it, but each job only one at a time.

    `read_offerings` returns the offerings of nodes, by their names. `clock` counts seconds, and is never set back.
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

    def count(self, path: str, ctx: ReconcileContext) -> JobCost | None:
        """Return the cost of the job at this path so far; None if nothing is left to count or write."""
        uid, stored, now = ctx.meta.uid, ctx.status.raw.get("cost") or {}, self._clock()
        nodes, state = find_nodes(ctx.children), self._jobs.get(path)
        if state is not None and state.uid != uid:
            state = None
        if ctx.status.final or not (nodes or state):
            self.forget(path)
            return None
        if state is None:
            meter, due = Meter(self._price), now + WRITE_SECONDS
            state = _JobMeter(uid=uid, meter=meter, stored={}, reported={}, due=due, counted=now)
            self._jobs[path] = state
        if stored not in (state.stored, state.reported):  # another controller has counted
            state.meter.resume(read_usage(stored))
        elif now - state.counted > _PAUSE_SECONDS:
            state.meter.resume(state.meter.usage)
        if stored != state.stored:
            state.due = (state.counted if stored == state.reported else now) + WRITE_SECONDS
        if not nodes.keys() <= state.offerings.keys():
            state.offerings = {**state.offerings, **self._find_offerings(path)}
        state.offerings = {name: node for name, node in state.offerings.items() if name in nodes}
        counted = [(state.offerings.get(name, _UNKNOWN), is_idle) for name, is_idle in nodes.items()]
        usage = state.meter.count_nodes(counted, now)
        state.stored, state.reported, state.counted = stored, to_status(usage), now
        if not nodes and state.reported == stored:
            self.forget(path)
        is_due = now >= state.due
        if is_due:
            state.due = now + WRITE_SECONDS
        left = state.due - now
        return JobCost(status=state.reported, summary=usage.describe(), is_due=is_due, requeue_after=left)

    def _find_offerings(self, path: str) -> dict[str, Offering]:
        """Return the offerings of the nodes that have their labels. After an error, nodes have no price for now."""
        try:
            found = self._read_offerings()
        except Exception as error:
            log.warning("%s: the instance types of its nodes can't be read: %s", path, error)
            return {}
        return {name: node for name, node in found.items() if node.instance_type and node.zone}

    def forget(self, path: str) -> None:
        """Forget a job that was deleted, or that has ended."""
        self._jobs.pop(path, None)


def find_nodes(children: Children) -> dict[str, bool]:
    """Return the nodes of a job, and whether each is idle: it has a placeholder and no worker."""
    held = (pod for pod in children.placeholders if not is_over(pod))
    nodes = {(pod.get("spec") or {}).get("nodeName") or "": True for pod in held}
    nodes |= {worker.node: False for worker in children.workers if not worker.finished}
    nodes.pop("", None)
    return nodes


def to_status(usage: Usage) -> JsonObject:
    """Return `cost` of the status; {} for no node-hours. `usd` is missing if no price is known."""
    if not usage.node_seconds:
        return {}
    hours = {"nodeHours": usage.node_seconds / 3600, "idleNodeHours": usage.idle_node_seconds / 3600}
    if usage.unpriced_node_seconds:
        hours["unpricedNodeHours"] = usage.unpriced_node_seconds / 3600
    if usage.usd:
        hours["usd"] = usage.usd
    return {key: round(value, 4) for key, value in hours.items()}


def read_usage(cost: JsonObject) -> Usage:
    """Return the usage in `cost` of a status."""
    return Usage(
        node_seconds=cost.get("nodeHours", 0.0) * 3600,
        idle_node_seconds=cost.get("idleNodeHours", 0.0) * 3600,
        unpriced_node_seconds=cost.get("unpricedNodeHours", 0.0) * 3600,
        usd=cost.get("usd", 0.0),
    )
