"""Gangs that KAI Scheduler would never start: their queue is not there, or may never have as many GPUs. Pure.

Whether there is room right now is KAI's to say, of pods that wait.
"""

from __future__ import annotations

from launcher.core.torchrun import kai
from launcher.core.torchrun import names as n
from launcher.core.torchrun.decision import UNHEARD_SECONDS
from launcher.core.torchrun.look import Look, Wait, standing
from launcher.core.torchrun.pods import Making


def never_starts(look: Look, making: Making) -> Wait | None:
    """Why nothing is made of this job now; it would wait for ever, with pods, and nothing would say why."""
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
    lacking = kai.missing(look.cluster.kai_queues, name) if name else ""
    if not lacking:
        return "", ""
    above = f", which is above {name}" if lacking != name else ""
    message = f"KAI Scheduler has no queue {lacking}{above}; the job begins when it is there"
    return n.REASON_KAI_QUEUE_NOT_FOUND, message


def _above_its_limit(look: Look, making: Making) -> tuple[str, str]:
    """An elastic job asks for what it begins with."""
    name = making.settings.queue.kai_queue or n.KAI_DEFAULT_QUEUE
    gpus = making.size.least * making.size.gpus
    found = kai.tightest(look.cluster.kai_queues, name)
    if found is None or gpus <= found[1]:
        return "", ""
    queue, most = found
    what = "at least " if making.size.elastic else ""
    return n.REASON_KAI_QUEUE_LIMIT, (
        f"the job asks for {what}{gpus} GPUs, and KAI Scheduler's queue {queue} may have {most:g} "
        "(spec.resources.gpu.limit); the job begins when it may have more, or the job asks for fewer"
    )
