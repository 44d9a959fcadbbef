"""What is told of a job or queue for which the API server does not take a request. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from trainyard.operator.core import names as n
from trainyard.operator.core import record
from trainyard.operator.core.decision import WARNING, Decision, Event
from trainyard.operator.core.reading import JsonObject
from trainyard.operator.core.record import Condition

_LINE: Final = 300


def decide(item: JsonObject, message: str, now: float) -> Decision:
    """Its status with the refusal, and an Event where that is new. What was known of it before stays.

    A job that is over keeps how it ended: nothing is told on it, and the controller's log has the refusal.
    """
    status = item.get("status")
    old: JsonObject = dict(status) if isinstance(status, Mapping) else {}
    told = Condition(
        type=n.READY if item["kind"] == n.QUEUE_KIND else n.ACCEPTED,
        so=False,
        reason=n.REASON_REFUSED,
        message=message,
    )
    generation = item["metadata"].get("generation", 0)
    if item["kind"] == n.JOB_KIND:
        noted = record.read(old)
        if noted.final:
            return Decision()
        phase = noted.phase or n.PHASE_PENDING
        new = record.written(
            noted,
            generation=generation,
            now=now,
            phase=phase,
            reason=n.REASON_REFUSED,
            message=message,
            told=[told],
        )
    else:
        conditions = record.conditions(old.get("conditions"), [told], generation, now)
        new = {**old, "observedGeneration": generation, "conditions": conditions}
    if new == status:
        return Decision()
    return Decision(status=new, events=(Event(type=WARNING, reason=n.REASON_REFUSED, message=message),))


def template_refused(queue: JsonObject | None) -> str:
    """Why the API server does not take a pod of this queue, in one line; "" where it does, or did not say.

    The queue's condition has it, of a dry run of the queue as it is now.
    """
    status = (queue or {}).get("status")
    told = record.by_type(status.get("conditions") if isinstance(status, Mapping) else None)
    found = told.get(n.POD_TEMPLATE_VALID, {})
    seen = (found.get("status"), found.get("reason"), found.get("observedGeneration"))
    if queue is None or seen != ("False", n.REASON_REFUSED, queue["metadata"].get("generation")):
        return ""
    return " ".join(str(found.get("message") or "").split())[:_LINE]
