"""The status of a job: what the controller remembers, and what people see. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from launcher.manifests import stamp
from trainyard.operator import names as n
from trainyard.operator.api.fields import MAX_INT32, JsonObject, parse_time

_LONGEST_MESSAGE: Final = 4096
# Phases in which the attempt's Jobs are on record: their pods may run, and they are never made again.
STARTED_PHASES: Final = (n.PHASE_PROVISIONING, n.PHASE_RUNNING)
_CONDITION_ORDER: Final = {each: place for place, each in enumerate((*n.JOB_CONDITIONS, *n.QUEUE_CONDITIONS))}


@dataclass(frozen=True, kw_only=True)
class Condition:
    """One thing that is so (True), is not so (False), or is not known (None)."""

    type: str
    status: bool | None
    reason: str
    message: str = ""


@dataclass(frozen=True, kw_only=True)
class CapacityWait:
    """The wait for nodes of a pool. Moments are seconds since the epoch.

    `since` is when this try began, `tries` how many there have been with it, `enough_since` since when there are as
    many nodes as the job needs at least, and `retry` when the next try begins after one that failed.
    """

    since: float
    tries: int = 1
    quorum_since: float | None = None
    retry: float | None = None

    def to_status(self) -> JsonObject:
        """`capacity` of the status."""
        moments = {"since": self.since, "enoughSince": self.quorum_since, "retryTime": self.retry}
        return {"tries": self.tries, **{key: stamp(at) for key, at in moments.items() if at is not None}}


@dataclass(frozen=True, kw_only=True)
class JobStatus:
    """What was remembered. Moments are seconds since the epoch. `raw` is the status as it was read."""

    phase: str
    attempt: int
    restarts: int
    started: float | None
    completed: float | None
    raw: JsonObject
    capacity_wait: CapacityWait | None = None

    @property
    def final(self) -> bool:
        """Whether the job is over, for ever."""
        return self.phase in n.FINAL_PHASES

    @property
    def running(self) -> bool:
        """Whether the attempt's Jobs are on record."""
        return self.phase in STARTED_PHASES


def read_status(status: Any) -> JobStatus:
    """The record in a status; a value that is none of ours is as if it were missing."""
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
    """A message as long as a status may have it."""
    return message[:_LONGEST_MESSAGE]


def conditions_by_type(value: Any) -> dict[str, JsonObject]:
    """Conditions by their type; what is none is left out."""
    entries = value if isinstance(value, list) else []
    return {
        each["type"]: dict(each)
        for each in entries
        if isinstance(each, Mapping) and isinstance(each.get("type"), str)
    }


def merge_conditions(
    old: Any, conditions: Sequence[Condition], generation: int, now: float
) -> list[JsonObject]:
    """The conditions with those that are told in their place; one that is not told stays as it is.

    They are in their kind's order. Where nothing else is new the order stays, too: it is no reason to write.
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
    """One that is none of ours comes last."""
    return _CONDITION_ORDER.get(condition["type"], len(_CONDITION_ORDER))


def build_status(
    record: JobStatus,
    *,
    generation: int,
    now: float,
    phase: str,
    reason: str,
    message: str = "",
    conditions: Sequence[Condition] = (),
    **fields: Any,
) -> JsonObject:
    """The status with these values; fields that are None are taken away, others stay."""
    status: JsonObject = {
        **record.raw,
        "observedGeneration": generation,
        "phase": phase,
        "reason": reason,
        "message": truncate_message(message),
        "conditions": merge_conditions(record.raw.get("conditions"), conditions, generation, now),
        "attempt": record.attempt,
        "restarts": record.restarts,
        **fields,
    }
    return {key: value for key, value in status.items() if value is not None}


_MAX_LINE: Final = 300


def template_rejection(queue: JsonObject | None) -> str:
    """Why the API server does not take a pod of this queue, in one line; "" where it does, or did not say.

    The queue's condition has it, of a dry run of the queue as it is now.
    """
    status = (queue or {}).get("status")
    conditions = conditions_by_type(status.get("conditions") if isinstance(status, Mapping) else None)
    found = conditions.get(n.POD_TEMPLATE_VALID, {})
    seen = (found.get("status"), found.get("reason"), found.get("observedGeneration"))
    if queue is None or seen != ("False", n.REASON_REFUSED, queue["metadata"].get("generation")):
        return ""
    return " ".join(str(found.get("message") or "").split())[:_MAX_LINE]
