"""Decides for a TorchrunJob. Level-based: what was done before is seen in what there is. Pure.

An attempt goes through these steps, each with the status as it was read, so that no other decision came between:

1. the status names the next attempt (`Pending`, or `Restarting` with its restart counted),
2. what is left of other attempts, or was made for this one as it is not to be any more, is removed, and waited for,
3. everything is made, the Jobs suspended, and the status says `Provisioning`: the attempt is on record,
4. the Jobs of the record are let go. A Job that is not on record never runs; one that is, is never made again.

An attempt of which enough workers ended well is the last one, wherever the next one is in these steps: its Jobs are not
removed, and the status says that the job has succeeded.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

from launcher.observe import Observation
from trainyard.operator.core import command, job_spec, record, starting
from trainyard.operator.core import names as n
from trainyard.operator.core.decision import Decision, Removal, removal
from trainyard.operator.core.displaced import withdrawn
from trainyard.operator.core.look import Look, Refusal, refused, uncounted
from trainyard.operator.core.observe import observe
from trainyard.operator.core.reading import JsonObject
from trainyard.operator.core.record import Condition
from trainyard.operator.core.refused import template_refused
from trainyard.operator.core.running import ended, go_on, keep
from trainyard.operator.core.storage import Cluster

_STOPPING: Final = "the workers are being stopped"


def decide(
    job: JsonObject,
    queue: JsonObject | None,
    items: Iterable[JsonObject],
    cluster: Cluster,
    now: float,
    progress: JsonObject | None = None,
    pool: Observation | None = None,
    refused: str = "",
    nearby: tuple[str, ...] = (),
) -> Decision:
    """What is to be done for this job.

    `queue` is the TorchrunQueue that it names, `items` every object with its label or with the name of a child,
    `progress` what the trainer of its first worker tells, None for nothing new, `pool` what there is of the pool that
    `nodes.pool_to_count` names, `refused` why the API server did not take a placeholder of the last decision, and
    `nearby` the addresses of other jobs' sync pods that may have the archive of its workspace.
    """
    problems: list[str] = []
    meta = job_spec.meta(job, problems)
    if meta.deleting:
        return Decision()  # all that it owns goes with it
    job_spec.check_name(meta.name, problems)
    spec, wrong = job_spec.read(job.get("spec"))
    if not wrong and (problem := command.check(spec.command, spec.args, spec.launcher)):
        problems.append(problem)
    problems += wrong
    known = record.read(job.get("status"))
    look = Look(
        meta=meta,
        spec=spec,
        record=known,
        seen=observe(meta, items, known.attempt if known.phase == n.PHASE_RESTARTING else 0),
        queue=None if queue is None else queue.get("spec") or {},
        queue_leaves=queue is not None and "deletionTimestamp" in queue["metadata"],
        cluster=cluster,
        now=now,
        progress=progress,
        pool=pool,
        refused=refused,
        problems="; ".join(problems),
        template_refused=template_refused(queue),
        nearby=nearby,
        queue_status=None if queue is None else queue.get("status"),
    )
    if look.record.final:
        return _over(look, job, known=not wrong)
    if problems and not look.has_started:
        return look.end(n.PHASE_FAILED, n.REASON_INVALID_SPEC, look.problems, None)
    return _live(look)


def _live(look: Look) -> Decision:
    if look.seen.trained is not None:
        return _trained(look, look.seen.trained)
    deadline = look.deadline
    if look.late:
        return look.end(n.PHASE_FAILED, n.REASON_DEADLINE_EXCEEDED, _late(look), None)
    if look.spec.suspend:
        decision = _suspend(look)
    elif look.record.running:
        return go_on(look)
    else:
        decision = starting.start(look)
    if deadline is None:
        return decision
    left = deadline - look.now
    return replace(decision, again=left if decision.again is None else min(decision.again, left))


def _trained(look: Look, attempt: int) -> Decision:
    """What is trained is trained, even by an attempt that was to be stopped.

    Its Job says so once its other pods are gone. That is not waited for where anything else would end the attempt.
    """
    stays = look.record.running and attempt == look.record.attempt and not look.spec.suspend and not look.late
    leaves = any(each.deleting for each in look.seen.of(attempt))
    if look.seen.complete(attempt) or leaves or not stays:
        return look.end(n.PHASE_SUCCEEDED, n.REASON_SUCCEEDED, "all workers ended well", 0)
    return keep(look)


def _late(look: Look) -> str:
    seconds = look.settings.deadline if look.settings is not None else look.spec.deadline
    return f"activeDeadlineSeconds, {seconds} s since the first start, are over"


def _suspend(look: Look) -> Decision:
    """The workers go, all else stays. However they end on the way, it is not counted."""
    if look.record.running:
        over = ended(look)
        message = f"suspended after {over.why}" if over is not None else "suspended"
        told = (
            *_wrong(look),
            Condition(type=n.SUSPENDED, so=False, reason=n.REASON_STOPPING, message=_STOPPING),
            Condition(type=n.WORKERS_READY, so=False, reason=n.REASON_SUSPENDED),
        )
        attempt = look.record.attempt + 1
        return look.write(
            n.PHASE_SUSPENDED, n.REASON_SUSPENDED, message, told=told, again=0.0, attempt=attempt
        )
    groups = [item for (kind, _), item in look.seen.objects.items() if kind == "PodGroup"]
    removals = (*starting.leftovers(look.seen.jobs), *_remove(groups), *withdrawn(look))
    strays = [each for each in look.seen.strays if not each.over]
    gone = not (look.seen.jobs or look.seen.workers or strays)
    message = "the job has no workers" if gone else f"{_STOPPING}{starting.ownerless(strays)}"
    idle: tuple[Condition, ...] = (
        *_wrong(look),
        Condition(
            type=n.SUSPENDED,
            so=gone,
            reason=n.REASON_SUSPENDED if gone else n.REASON_STOPPING,
            message=message,
        ),
        Condition(type=n.WORKERS_READY, so=False, reason=n.REASON_SUSPENDED),
        *uncounted(look.record, n.REASON_SUSPENDED),
    )
    decision = look.write(
        n.PHASE_SUSPENDED, n.REASON_SUSPENDED, message, told=idle, workers=look.workers(), capacity=None
    )
    return replace(decision, removals=removals)


def _wrong(look: Look) -> tuple[Condition, ...]:
    """What is wrong with the job, also while it is suspended; put right, it is judged when it begins."""
    if look.problems:
        return refused(Refusal(message=look.problems))[:1]
    before = record.by_type(look.record.raw.get("conditions")).get(n.ACCEPTED, {})
    unknown = Condition(
        type=n.ACCEPTED, so=None, reason=n.REASON_SUSPENDED, message="tried when it is resumed"
    )
    return (unknown,) if before.get("reason") in (n.REASON_INVALID_SPEC, n.REASON_REFUSED) else ()


def _remove(items: Iterable[JsonObject]) -> list[Removal]:
    return [removal(each) for each in items if "deletionTimestamp" not in each["metadata"]]


def _over(look: Look, job: JsonObject, *, known: bool) -> Decision:
    """A job that is over stays so. Its finished Jobs are kept for their pods' logs, all else that takes room goes."""
    # A Job of which a pod failed is about to be failed; those of its other nodes are not.
    failing = {each.job for each in look.seen.workers if each.failed}
    kept = [
        each
        for each in look.seen.jobs
        if each.uid in look.seen.well
        or (each.attempt == look.record.attempt and (each.failed or each.uid in failing))
    ]
    others = [
        removal(each.item, foreground=True)
        for each in look.seen.jobs
        if each not in kept and not each.deleting
    ]
    spent = [item for (kind, _), item in look.seen.objects.items() if kind in ("PodGroup", "Pod")]
    removals: tuple[Removal, ...] = (*others, *_remove(spent))
    raw, seconds = look.record.raw, _time_to_live(look) if known else None
    decision = Decision()
    if raw.get("observedGeneration") != look.meta.generation:
        # How it ended stays; that an edit was seen is told all the same.
        decision = look.write(look.record.phase, raw.get("reason") or "", raw.get("message") or "")
    if seconds is None or look.record.completed is None:
        return replace(decision, removals=removals)
    left = look.record.completed + seconds - look.now
    if left > 0:
        return replace(decision, removals=removals, again=left)
    # Only as it was read: somebody may have given it more time.
    return Decision(removals=(*removals, removal(job, as_read=True)))


def _time_to_live(look: Look) -> Any:
    settings = look.settings
    return settings.time_to_live if settings is not None else look.spec.time_to_live
