"""Read and build the status of a job. Pure.

The schema of the CRD has checked each status that the API server returns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from launcher.manifests import stamp
from trainyard.operator import names as n
from trainyard.operator.api.fields import JsonObject, parse_time

_LONGEST_MESSAGE: Final = 4096
_MAX_LINE: Final = 300
# Phases in which the attempt's Jobs may run. They are never created again.
STARTED_PHASES: Final = (n.PHASE_PROVISIONING, n.PHASE_RUNNING)
_CONDITION_ORDER: Final = {each: place for place, each in enumerate((*n.JOB_CONDITIONS, *n.QUEUE_CONDITIONS))}


@dataclass(frozen=True)
class Condition:
    """A condition of Kubernetes. `status` is True, False, or None for Unknown."""

    type: str
    status: bool | None
    reason: str
    message: str = ""


@dataclass(frozen=True, kw_only=True)
class CapacityStatus:
    """The wait for nodes of a pool. Times are in seconds since the epoch.

    Attributes:
        since: The start of this try.
        tries: The number of tries, including this one.
        quorum_since: The time since when the job's minimum of nodes is available.
        retry: The start of the next try after a failed one.
    """

    since: float
    tries: int = 1
    quorum_since: float | None = None
    retry: float | None = None

    def to_status(self) -> JsonObject:
        """Return `capacity` of the status."""
        moments = {"since": self.since, "enoughSince": self.quorum_since, "retryTime": self.retry}
        return {"tries": self.tries, **{key: stamp(at) for key, at in moments.items() if at is not None}}


@dataclass(frozen=True, kw_only=True)
class JobStatus:
    """The status of a job. Times are in seconds since the epoch. `raw` is the status as it was read."""

    phase: str
    attempt: int
    restarts: int
    started: float | None
    completed: float | None
    raw: JsonObject
    capacity: CapacityStatus | None = None

    @property
    def final(self) -> bool:
        """Whether the job is finished."""
        return self.phase in n.FINAL_PHASES

    @property
    def running(self) -> bool:
        """Whether the attempt's Jobs may run."""
        return self.phase in STARTED_PHASES

    @cached_property
    def conditions(self) -> dict[str, JsonObject]:
        """Return the conditions by their type."""
        return conditions_by_type(self.raw.get("conditions"))


def read_status(status: JsonObject | None) -> JobStatus:
    """Return the status of a job, None before its first reconcile."""
    raw = status or {}
    capacity = raw.get("capacity") or {}
    since = parse_time(capacity.get("since"))
    return JobStatus(
        phase=raw.get("phase", ""),
        attempt=raw.get("attempt", 0),
        restarts=raw.get("restarts", 0),
        started=parse_time(raw.get("startTime")),
        completed=parse_time(raw.get("completionTime")),
        raw=raw,
        capacity=None
        if since is None
        else CapacityStatus(
            since=since,
            tries=max(1, capacity.get("tries", 1)),
            quorum_since=parse_time(capacity.get("enoughSince")),
            retry=parse_time(capacity.get("retryTime")),
        ),
    )


def truncate_message(message: str) -> str:
    """Truncate a message to the maximum length in a status."""
    return message[:_LONGEST_MESSAGE]


def conditions_by_type(conditions: Iterable[JsonObject] | None) -> dict[str, JsonObject]:
    """Return the conditions of a status by their type."""
    return {each["type"]: each for each in conditions or ()}


def merge_conditions(
    old: Iterable[JsonObject] | None, conditions: Sequence[Condition], generation: int, now: float
) -> list[JsonObject]:
    """Replace old conditions by new ones of the same type, in the order of the kind's types.

    A different order alone is not a change. Conditions of other writers come last.
    """
    before = conditions_by_type(old)
    result = dict(before)
    for each in conditions:
        status = {True: "True", False: "False", None: "Unknown"}[each.status]
        last = before.get(each.type, {})
        result[each.type] = {
            "type": each.type,
            "status": status,
            "observedGeneration": generation,
            "lastTransitionTime": last["lastTransitionTime"] if last.get("status") == status else stamp(now),
            "reason": each.reason,
            "message": truncate_message(each.message),
        }
    if result == before:
        return list(before.values())
    return sorted(result.values(), key=lambda each: _CONDITION_ORDER.get(each["type"], len(_CONDITION_ORDER)))


def build_status(
    before: JobStatus,
    generation: int,
    now: float,
    phase: str,
    reason: str,
    message: str,
    conditions: Sequence[Condition],
    **fields: Any,
) -> JsonObject:
    """Return the status with these values. None removes a field. Other fields stay."""
    status: JsonObject = {
        **before.raw,
        "observedGeneration": generation,
        "phase": phase,
        "reason": reason,
        "message": truncate_message(message),
        "conditions": merge_conditions(before.raw.get("conditions"), conditions, generation, now),
        "attempt": before.attempt,
        "restarts": before.restarts,
        **fields,
    }
    return {key: value for key, value in status.items() if value is not None}


def template_rejection(queue: JsonObject | None) -> str:
    """Return why the API server rejects a pod of this queue, in one line; "" if it does not.

    It comes from the queue's condition about the dry run for its present generation.
    """
    found = conditions_by_type(((queue or {}).get("status") or {}).get("conditions")).get(
        n.POD_TEMPLATE_VALID, {}
    )
    seen = (found.get("status"), found.get("reason"), found.get("observedGeneration"))
    if queue is None or seen != ("False", n.REASON_REFUSED, queue["metadata"].get("generation")):
        return ""
    return " ".join((found.get("message") or "").split())[:_MAX_LINE]
