"""A job whose attempt is not on record yet: what is left of others goes, then all of the attempt is made. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from trainyard.operator import names as n
from trainyard.operator.children import build_claim, build_jobs, build_service, build_sync_pod
from trainyard.operator.context import (
    AttemptSpec,
    ReconcileContext,
    Refusal,
    Wait,
    acceptance_message,
    prepare_attempt,
    rejected_conditions,
    unknown_capacity,
    valid_conditions,
)
from trainyard.operator.core.reading import JsonObject, parse_time
from trainyard.operator.diagnostics import ended_sync_pod, is_abandoned, workspace_wait
from trainyard.operator.gang import build_pod_group, gang_wait
from trainyard.operator.nodes import NodesChosen, NodesWait, choose_nodes, delete_placeholders
from trainyard.operator.observe import AttemptJob, Worker
from trainyard.operator.plan import POLL_SECONDS, ReconcilePlan, Removal, contains, removal
from trainyard.operator.status import Condition

_SHOWN: Final = 3
_NOT_SENT: Final = (
    f"the workspace did not arrive within {n.SYNC_ABANDONED_SECONDS} s; kubectl torchrun submit may have been stopped. "
    "Submit the job again"
)


def start_attempt(look: ReconcileContext) -> ReconcilePlan:
    """The next step towards the attempt that the record names."""
    if is_abandoned(look):
        return look.end(n.PHASE_FAILED, n.REASON_WORKSPACE_NOT_SENT, _NOT_SENT, None)
    prepared = prepare_attempt(look, look.record.attempt)
    if isinstance(prepared, AttemptSpec):
        prepared = gang_wait(look, prepared) or prepared
    unsent = _wait_for_workspace(look, prepared) if isinstance(prepared, AttemptSpec) else None
    nodes_of: NodesChosen | NodesWait | None = unsent
    if isinstance(prepared, AttemptSpec) and prepared.settings.queue.pool:
        nodes_of = choose_nodes(look, prepared, _count_leaving(look), unsent)
        if isinstance(nodes_of, NodesChosen):
            prepared = prepare_attempt(look, look.record.attempt, nodes_of.nodes)
        elif nodes_of.recount:
            return ReconcilePlan(recount=True)
    wanted = build_jobs(prepared) if isinstance(prepared, AttemptSpec) else []
    usable = [each for each in look.seen.of(look.record.attempt) if _is_up_to_date(each, wanted)]
    rest = [each for each in look.seen.jobs if each not in usable]
    kept = keep_failed_jobs(look, rest)
    groups = _unfit_groups(look, prepared)
    gone = delete_jobs(each for each in rest if each not in kept)
    removals = (*gone, *_old_groups(look), *groups, *ended_sync_pod(look)[0])
    decision = _next_step(look, prepared, rest, groups, nodes_of)
    if nodes_of is None:  # nothing is to be held, or not any more
        return replace(decision, removals=(*removals, *delete_placeholders(look)))
    if isinstance(nodes_of, NodesChosen):
        return replace(decision, removals=removals)
    return replace(
        decision,
        removals=(*removals, *nodes_of.removals),
        makes=(*decision.makes, *nodes_of.makes),
        again=min((each for each in (nodes_of.again, decision.again) if each is not None), default=None),
    )


def _wait_for_workspace(look: ReconcileContext, making: AttemptSpec) -> NodesWait | None:
    """Return the wait for the workspace, without placeholders; None if the workspace is there."""
    wait = workspace_wait(look, making)
    if wait is None:
        return None
    message, again = wait
    return NodesWait(
        reason=n.REASON_WAITING_FOR_WORKSPACE,
        message=message,
        removals=delete_placeholders(look),
        again=again,
    )


def _count_leaving(look: ReconcileContext) -> int:
    """How many workers of earlier attempts have a node still, or may get one."""
    return sum(
        not each.over
        for each in (*look.seen.strays, *look.seen.workers)
        if each.attempt != look.record.attempt or each in look.seen.strays
    )


def delete_jobs(jobs: Iterable[AttemptJob]) -> tuple[Removal, ...]:
    """Removes these Jobs, with their pods before them, only as they were seen.

    One of the attempt that is not on record may be on record meanwhile, and run; one that was to be stopped may have
    succeeded.
    """
    return tuple(removal(each.item, foreground=True, as_read=True) for each in jobs if not each.deleting)


def _old_groups(look: ReconcileContext) -> list[Removal]:
    name = n.attempt_name(look.meta.name, look.record.attempt)
    return [
        removal(item)
        for (kind, each), item in look.seen.objects.items()
        if kind == "PodGroup" and each != name and "deletionTimestamp" not in item["metadata"]
    ]


def _unfit_groups(look: ReconcileContext, prepared: AttemptSpec | Wait | Refusal) -> list[Removal]:
    """The gang of the attempt where it was made of another spec: of another size, or for another queue of KAI."""
    if not isinstance(prepared, AttemptSpec) or not prepared.settings.gang:
        return []
    wanted = build_pod_group(prepared)
    mine = look.seen.objects.get(object_key(wanted))
    let_go = any(not each.suspended for each in look.seen.of(look.record.attempt))
    if mine is None or "deletionTimestamp" in mine["metadata"] or let_go:
        return []
    alike = contains(mine["metadata"].get("annotations"), wanted["metadata"]["annotations"])
    return [] if alike else [removal(mine, as_read=True)]


def _is_up_to_date(job: AttemptJob, wanted: list[JsonObject]) -> bool:
    """Whether a Job from before a crash is as it would be made now, so that all of the attempt are of one kind.

    One that is let go is on record by now, and this look began before that: what its queue became says nothing.
    """
    if job.deleting or job.failed:
        return False
    alike = next((each for each in wanted if each["metadata"]["name"] == job.name), None)
    if alike is None or job.item["spec"].get("completions") != alike["spec"]["completions"]:
        return False
    asks = {**alike["metadata"]["annotations"]}
    if not job.suspended:
        del asks[n.ANNOTATION_MADE_OF]
    return contains(job.item["metadata"].get("annotations"), asks)


def requested(look: ReconcileContext) -> tuple[str, str]:
    """The size and the workspace that the job asks for now, as its Jobs carry them."""
    return look.spec.size_key, look.spec.workspace.digest if look.spec.workspace is not None else ""


def _next_step(
    look: ReconcileContext,
    prepared: AttemptSpec | Wait | Refusal,
    rest: list[AttemptJob],
    groups: list[Removal],
    nodes_of: NodesChosen | NodesWait | None,
) -> ReconcilePlan:
    phase = n.PHASE_RESTARTING if look.record.phase == n.PHASE_RESTARTING else n.PHASE_PENDING
    idle = (
        Condition(type=n.SUSPENDED, so=False, reason="NotAsked"),
        Condition(type=n.WORKERS_READY, so=False, reason=n.REASON_STARTING),
    )
    if isinstance(prepared, Refusal):
        if not look.has_started:
            return look.end(n.PHASE_FAILED, n.REASON_INVALID_SPEC, prepared.message, None)
        # Its queue was changed meanwhile, and may be changed back: what was trained is not given up.
        told = (*rejected_conditions(prepared), *idle)
        return look.write(
            phase, n.REASON_INVALID_SPEC, prepared.message, told=told, workers=look.workers(), capacity=None
        )
    if isinstance(prepared, Wait):
        told = (*prepared.told, *idle)
        return look.write(
            phase,
            prepared.reason,
            prepared.message,
            told=told,
            again=prepared.again,
            workers=look.workers(),
            capacity=None,
        )
    told = (*valid_conditions(prepared.settings, acceptance_message(look, prepared)), *idle)
    pause, left = backoff(look)
    if left > 0:
        return look.write(
            phase, n.REASON_BACKING_OFF, pause, told=told, again=left, workers=look.workers(), capacity=None
        )
    wanted = [*supporting_objects(prepared), *build_jobs(prepared)]
    taken = _name_conflict(look, wanted)
    stuck = _remaining_objects(look, rest, groups)
    if stuck and not (taken and not rest):  # the wait for nodes begins when they are gone
        return look.write(phase, n.REASON_STOPPING, stuck, told=told, workers=look.workers(), capacity=None)
    if isinstance(nodes_of, NodesWait):
        return _wait_for_nodes(look, prepared, phase, told, nodes_of)
    if taken:
        return look.write(
            phase, n.REASON_NAME_TAKEN, taken, told=told, again=POLL_SECONDS, workers=look.workers()
        )
    size = prepared.size
    if nodes_of is None:
        told = (*told, *unknown_capacity(look.record, "NoPool"))
    else:
        so = Condition(type=n.CAPACITY_AVAILABLE, so=True, reason=n.REASON_COUNTED, message=nodes_of.message)
        told = (*told, so)
    decision = look.write(
        n.PHASE_PROVISIONING,
        n.REASON_STARTING,
        f"attempt {look.record.attempt} starts; nodes: {size.nodes}, GPUs on each: {size.gpus}",
        told=told,
        again=0.0,
        nodes=size.nodes,
        gpusPerNode=size.gpus,
        gpus=size.all_gpus,
        workers=look.workers(),
        workspaceDigest=look.spec.workspace.digest if look.spec.workspace is not None else None,
        capacity=None,
        logs={"url": prepared.logs, "image": look.cluster.tools_image} if prepared.logs else None,
    )
    return replace(decision, makes=missing_objects(look, wanted))


def _wait_for_nodes(
    look: ReconcileContext, making: AttemptSpec, phase: str, told: tuple[Condition, ...], waiting: NodesWait
) -> ReconcilePlan:
    """Wait for the workspace or for nodes. Create the objects that need no node, such as the sync pod."""
    wanted = [build_service(making), *([build_sync_pod(making)] if making.sync else [])]
    taken = _name_conflict(look, wanted)
    reason, message = (n.REASON_NAME_TAKEN, taken) if taken else (waiting.reason, waiting.message)
    if making.settings.queue.pool:
        so = Condition(type=n.CAPACITY_AVAILABLE, so=False, reason=waiting.reason, message=waiting.message)
        told = (*told, so)
    noted = waiting.gathering.written() if waiting.gathering is not None else None
    decision = look.write(phase, reason, message, told=told, workers=look.workers(), capacity=noted)
    return replace(decision, makes=() if taken else missing_objects(look, wanted))


def supporting_objects(making: AttemptSpec) -> list[JsonObject]:
    """All that an attempt needs but its Jobs, in the order in which it is made."""
    gang = [build_pod_group(making)] if making.settings.gang else []
    sync = [build_sync_pod(making)] if making.sync else []
    claims = [build_claim(making, each) for each in making.storage.claims]
    return [build_service(making), *claims, *sync, *gang]


def object_key(item: JsonObject) -> tuple[str, str]:
    """An object's kind and name."""
    return item["kind"], item["metadata"]["name"]


def missing_objects(look: ReconcileContext, wanted: list[JsonObject]) -> tuple[JsonObject, ...]:
    """Those that are not there."""
    there = {*look.seen.objects, *(("Job", each.name) for each in look.seen.jobs), *look.seen.others}
    return tuple(each for each in wanted if object_key(each) not in there)


def changed_services(look: ReconcileContext, wanted: list[JsonObject]) -> tuple[JsonObject, ...]:
    """The Service where it is not as it should be; the spec of the others can't be changed, or is nobody else's."""
    return tuple(
        {**each, "metadata": {**each["metadata"], "uid": live["metadata"]["uid"]}}
        for each in wanted
        if each["kind"] == "Service"
        and (live := look.seen.objects.get(object_key(each))) is not None
        and not contains(live, each)
    )


def _remaining_objects(look: ReconcileContext, rest: list[AttemptJob], groups: list[Removal]) -> str:
    """What has to be gone first: two attempts never run at once."""
    pods = [
        *(each for each in look.seen.strays if not each.over),
        *(each for each in look.seen.workers if each.attempt != look.record.attempt),
    ]
    if not (rest or pods or groups):
        return ""
    told = [
        *(f"Job {each.name}" for each in rest),
        *(f"pod {each.name} on {each.node or 'no node'}" for each in pods),
        *(f"PodGroup {each.name}" for each in groups),
    ]
    more = f" and {len(told) - 3} more" if len(told) > 3 else ""
    lost = "; if a node does not answer, delete it" if any(each.deleting for each in pods) else ""
    return f"waits until the workers before are gone: {', '.join(told[:3])}{more}{lost}{orphan_hint(pods)}"


def orphan_hint(pods: Iterable[Worker]) -> str:
    """Tells how to end workers whose Job went without them (`--cascade=orphan`): nobody else does; "" for none."""
    kept = [each.name for each in pods if not each.job and not each.deleting]
    return f"; no Job owns {kept[0]} any more: kubectl delete pod {' '.join(kept[:3])}" if kept else ""


def _name_conflict(look: ReconcileContext, wanted: list[JsonObject]) -> str:
    keys = [object_key(each) for each in wanted]
    others = [(key, look.seen.others[key]["metadata"]) for key in keys if key in look.seen.others]
    if others:
        told = ", ".join(f"{kind} {name}" for (kind, name), _ in others[:_SHOWN])
        more = f" and {len(others) - _SHOWN} more" if len(others) > _SHOWN else ""
        one = len(others) == 1
        verb, they = ("belongs", "it is") if one else ("belong", "they are")
        words = " ".join(f"{kind.lower()}/{name}" for (kind, name), _ in others)
        # Of an earlier job of the name, which was deleted without them.
        ours = all(_is_left_behind(meta) for _, meta in others)
        end = f": kubectl delete {words}, which an earlier job of the name left" if ours else ""
        return f"{told}{more} {verb} to something else; the job begins when {they} gone{end}"
    for kind, name in keys:
        mine = look.seen.objects.get((kind, name))
        if mine is not None and "deletionTimestamp" in mine["metadata"]:
            return f"{kind} {name} is being deleted; the job begins when it is gone"
    return ""


def _is_left_behind(meta: JsonObject) -> bool:
    labels = meta.get("labels") or {}
    return labels.get(n.LABEL_MANAGED_BY) == n.MANAGED_BY and not meta.get("ownerReferences")


BACKOFF_FIRST_SECONDS: Final = 10.0
BACKOFF_MAX_SECONDS: Final = 360.0


def backoff(look: ReconcileContext) -> tuple[str, float]:
    """What there is to say of a pause, and how long it takes still, in seconds; nothing and 0 where there is none."""
    last = look.record.raw.get("lastRestart")
    if look.record.phase != n.PHASE_RESTARTING or not isinstance(last, dict):
        return "", 0.0
    at = parse_time(last.get("time"))
    if at is None:
        return "", 0.0
    seconds = _backoff_seconds(look.record.restarts)
    left = min(seconds, at + seconds - look.now)
    return f"{last.get('message')}, {seconds:.0f} s after {last['time']}", left


def keep_failed_jobs(look: ReconcileContext, jobs: list[AttemptJob]) -> list[AttemptJob]:
    """Of these those that failed, while there is a pause: their pods hold nothing any more, and have the logs.

    What still runs in such a Job the Job controller ends.
    """
    if backoff(look)[1] <= 0:
        return []
    failing = {each.job for each in look.seen.workers if each.failed}
    return [each for each in jobs if each.failed or each.uid in failing]


def _backoff_seconds(restarts: int) -> float:
    if restarts < 2:
        return 0.0
    return min(BACKOFF_MAX_SECONDS, BACKOFF_FIRST_SECONDS * 2.0 ** min(restarts - 2, 10))
