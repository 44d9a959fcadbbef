"""Read and build the status of a job. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from launcher.manifests import stamp
from trainyard.operator import names as n
from trainyard.operator.api.fields import MAX_INT32, JsonObject, parse_time

_LONGEST_MESSAGE: Final = 4096
# Phases in which the attempt's Jobs may run. They are never created again.
STARTED_PHASES: Final = (n.PHASE_PROVISIONING, n.PHASE_RUNNING)
_CONDITION_ORDER: Final = {each: place for place, each in enumerate((*n.JOB_CONDITIONS, *n.QUEUE_CONDITIONS))}


@dataclass(frozen=True, kw_only=True)
class Condition:
    """A condition of Kubernetes. `status` is True, False, or None for Unknown."""

    type: str
    status: bool | None
    reason: str
    message: str = ""


@dataclass(frozen=True, kw_only=True)
class CapacityWait:
    """The wait for nodes of a pool. Times are in seconds since the epoch.

    Attributes:
        since: The start of this try.
        tries: The number of tries, including this one.
        quorum_since: The time since the job's minimum of nodes is available.
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
    capacity_wait: CapacityWait | None = None

    @property
    def final(self) -> bool:
        """Whether the job is finished."""
        return self.phase in n.FINAL_PHASES

    @property
    def running(self) -> bool:
        """Whether the attempt's Jobs may run."""
        return self.phase in STARTED_PHASES


def read_status(status: Any) -> JobStatus:
    """Return the status of a job. An invalid value counts as missing."""
    raw: JsonObject = dict(status) if isinstance(status, Mapping) else {}
    phase = raw.get("phase")
    return JobStatus(
        phase=phase if isinstance(phase, str) and phase in n.PHASES else "",
        attempt=_count(raw.get("attempt")),
        restarts=_count(raw.get("restarts")),
        started=parse_time(raw.get("startTime")),
        completed=parse_time(raw.get("completionTime")),
        raw=raw,
        capacity_wait=_read_capacity_wait(raw.get("capacity")),
    )


def _read_capacity_wait(value: Any) -> CapacityWait | None:
    fields: Mapping[str, Any] = value if isinstance(value, Mapping) else {}
    since = parse_time(fields.get("since"))
    if since is None:
        return None
    return CapacityWait(
        since=since,
        tries=max(1, _count(fields.get("tries"))),
        quorum_since=parse_time(fields.get("enoughSince")),
        retry=parse_time(fields.get("retryTime")),
    )


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_INT32 else 0


def truncate_message(message: str) -> str:
    """Cut a message to the length that a status may have."""
    return message[:_LONGEST_MESSAGE]


def conditions_by_type(value: Any) -> dict[str, JsonObject]:
    """Return conditions by their type, without invalid entries."""
    entries = value if isinstance(value, list) else []
    return {
        each["type"]: dict(each)
        for each in entries
        if isinstance(each, Mapping) and isinstance(each.get("type"), str)
    }


def merge_conditions(
    old: Any, conditions: Sequence[Condition], generation: int, now: float
) -> list[JsonObject]:
    """Return the old conditions with the new ones in their place, in the order of their kind.

    The order alone is no change.
    """
    before = conditions_by_type(old)
    result = dict(before)
    for each in conditions:
        status = {True: "True", False: "False", None: "Unknown"}[each.status]
        last = result.get(each.type, {})
        same = last.get("status") == status and parse_time(last.get("lastTransitionTime")) is not None
        result[each.type] = {
            "type": each.type,
            "status": status,
            "observedGeneration": generation,
            "lastTransitionTime": last["lastTransitionTime"] if same else stamp(now),
            "reason": each.reason,
            "message": truncate_message(each.message),
        }
    return list(before.values()) if result == before else sorted(result.values(), key=_condition_order)


def _condition_order(condition: JsonObject) -> int:
    """Unknown conditions come last."""
    return _CONDITION_ORDER.get(condition["type"], len(_CONDITION_ORDER))


def build_status(
    before: JobStatus,
    *,
    generation: int,
    now: float,
    phase: str,
    reason: str,
    message: str = "",
    conditions: Sequence[Condition] = (),
    **fields: Any,
) -> JsonObject:
    """Return the status with these values. None removes a field, and other fields stay."""
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


_MAX_LINE: Final = 300


def template_rejection(queue: JsonObject | None) -> str:
    """Return why the API server rejects a pod of this queue, in one line; "" if it does not.

    It comes from the queue's condition for the dry run of its present generation.
    """
    status = (queue or {}).get("status")
    conditions = conditions_by_type(status.get("conditions") if isinstance(status, Mapping) else None)
    found = conditions.get(n.POD_TEMPLATE_VALID, {})
    seen = (found.get("status"), found.get("reason"), found.get("observedGeneration"))
    if queue is None or seen != ("False", n.REASON_REFUSED, queue["metadata"].get("generation")):
        return ""
    return " ".join(str(found.get("message") or "").split())[:_MAX_LINE]
