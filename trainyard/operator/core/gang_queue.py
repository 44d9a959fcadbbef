"""Find gangs that KAI Scheduler would never start: their queue is missing, or its limits are too low. Pure.

KAI itself decides whether there is room at present. The controller keeps the limits in the queue's status
(`kai_status`), so that `kubectl torchrun submit` refuses a job before it is created (`rejection_reason`).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from trainyard.k8s import quantity
from trainyard.operator.core import kai, pool_request
from trainyard.operator.core import names as n
from trainyard.operator.core.decision import UNHEARD_SECONDS
from trainyard.operator.core.look import Look, Wait, standing
from trainyard.operator.core.pods import Making
from trainyard.operator.core.queue_spec import QueueSpec
from trainyard.operator.core.reading import JsonObject
from trainyard.operator.core.storage import Cluster

NAME: Final = "name"
LIMITS: Final = "limits"


def never_starts(look: Look, making: Making) -> Wait | None:
    """Return the wait of a job that KAI would never start. Its pods would stay pending without a reason."""
    if not making.settings.gang:
        return None
    reason, message = _without_its_queue(look, making)
    if not reason:
        reason, message = _above_its_limit(look, making)
    if not reason:
        return None
    return Wait(reason=reason, message=message, told=standing(making.settings), again=UNHEARD_SECONDS)


def _without_its_queue(look: Look, making: Making) -> tuple[str, str]:
    name = making.settings.queue.kai_queue
    lacking = kai.find_missing(look.cluster.kai_queues, name) if name else ""
    if not lacking:
        return "", ""
    above = f", which is above {name}" if lacking != name else ""
    message = f"KAI Scheduler has no queue {lacking}{above}; the job begins when it is there"
    return n.REASON_KAI_QUEUE_NOT_FOUND, message


def _above_its_limit(look: Look, making: Making) -> tuple[str, str]:
    why = _excess(making, kai.lowest_limits(look.cluster.kai_queues, kai_queue_name(making.settings.queue)))
    return (
        (n.REASON_KAI_QUEUE_LIMIT, f"{why}; the job begins when it may have more, or the job asks for less")
        if why
        else ("", "")
    )


def kai_queue_name(queue: QueueSpec) -> str:
    """Return the name of KAI's queue for the gangs of a TorchrunQueue."""
    return queue.kai_queue or n.KAI_DEFAULT_QUEUE


def kai_status(queue: QueueSpec, cluster: Cluster) -> JsonObject | None:
    """Return `kai` of the queue's status; None if KAI does not schedule its jobs."""
    if queue.scheduler != n.KAI_SCHEDULER or not cluster.kai:
        return None
    found = kai.lowest_limits(cluster.kai_queues, kai_queue_name(queue))
    limits = {resource: {"queue": each.queue, "limit": each.most} for resource, each in found.items()}
    return {NAME: kai_queue_name(queue), LIMITS: limits}


def rejection_reason(status: Any, making: Making) -> str:
    """Return why KAI would never start `making` in a queue with this status; "" if it may."""
    fields = status.get("kai") if isinstance(status, Mapping) else None
    if not making.settings.gang or not isinstance(fields, Mapping):
        return ""
    limits = fields.get(LIMITS)
    if fields.get(NAME) != kai_queue_name(making.settings.queue) or not isinstance(limits, Mapping):
        return ""
    found = {
        resource: kai.Limit(queue=str(each.get("queue")), most=most)
        for resource, each in limits.items()
        if isinstance(each, Mapping) and isinstance(most := each.get("limit"), int | float)
    }
    why = _excess(making, found)
    return f"{why}; request less, or a higher limit" if why else ""


def _excess(making: Making, limits: Mapping[str, kai.Limit]) -> str:
    """Return the limit that the job exceeds. For an elastic job, its minimum counts."""
    asked = _asked(making) if limits else {}
    for resource, limit in limits.items():
        need = asked.get(resource, 0)
        if need > limit.most:
            what = "at least " if making.size.elastic else ""
            return (
                f"the job asks for {what}{_shown(resource, need)}, and KAI Scheduler's queue {limit.queue} may have "
                f"{_shown(resource, limit.most)} (spec.resources.{resource}.limit)"
            )
    return ""


def _shown(resource: str, amount: float) -> str:
    if resource == "memory":
        return f"{quantity.in_words(int(amount))} of memory"
    return f"{amount:g} {'GPUs' if resource == kai.GPU else 'processors'}"


def _asked(making: Making) -> dict[str, float]:
    """Return the requests of all workers for the resources that KAI's queues limit."""
    each: Mapping[str, Any] = {}
    with suppress(pool_request.Unreadable):  # the dry run of the queue's pod reports it
        each = pool_request.asked(making)
    workers = making.size.least
    return {
        kai.GPU: workers * making.size.gpus,
        **{name: float(workers * each.get(name, 0)) for name in ("cpu", "memory")},
    }
