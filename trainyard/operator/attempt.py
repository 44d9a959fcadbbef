"""Start an attempt: wait until it can start, delete leftovers, and create its objects. Pure.

`start_attempt` sets the reason of a Pending job. The status does not name the attempt yet, so no worker runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from trainyard.operator import names as n
from trainyard.operator.api.fields import JsonObject, parse_time
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
from trainyard.operator.diagnostics import ended_sync_pod, is_abandoned, workspace_wait
from trainyard.operator.gang import build_pod_group, gang_wait
from trainyard.operator.nodes import NodesChosen, NodesWait, choose_nodes, delete_placeholders
from trainyard.operator.observe import AttemptJob, Worker
from trainyard.operator.plan import POLL_SECONDS, Deletion, ReconcilePlan, contains, deletion
from trainyard.operator.status import Condition

_SHOWN: Final = 3
_NOT_SENT: Final = (
    f"the workspace did not arrive within {n.SYNC_ABANDONED_SECONDS} s; kubectl torchrun submit may have been stopped. "
    "Submit the job again"
)

_NOT_RUNNING: Final = (
    Condition(type=n.SUSPENDED, status=False, reason="NotAsked"),
    Condition(type=n.WORKERS_READY, status=False, reason=n.REASON_STARTING),
)


def start_attempt(ctx: ReconcileContext) -> ReconcilePlan:
    """Return the next step towards the attempt that the status names."""
    if is_abandoned(ctx):
        return ctx.end(n.PHASE_FAILED, n.REASON_WORKSPACE_NOT_SENT, _NOT_SENT, None)
    prepared = prepare_attempt(ctx, ctx.status.attempt)
    if isinstance(prepared, AttemptSpec):
        prepared = gang_wait(ctx, prepared) or prepared
    unsent = _wait_for_workspace(ctx, prepared) if isinstance(prepared, AttemptSpec) else None
    choice: NodesChosen | NodesWait | None = unsent
    if isinstance(prepared, AttemptSpec) and prepared.settings.queue.scheduling.pool:
        choice = choose_nodes(ctx, prepared, _count_leaving(ctx), unsent)
        if isinstance(choice, NodesChosen):
            prepared = prepare_attempt(ctx, ctx.status.attempt, choice.nodes)
        elif choice.recount:
            return ReconcilePlan(recount=True)
    wanted = build_jobs(prepared) if isinstance(prepared, AttemptSpec) else []
    current = [each for each in ctx.children.of(ctx.status.attempt) if _is_up_to_date(each, wanted)]
    outdated = [each for each in ctx.children.jobs if each not in current]
    kept = keep_failed_jobs(ctx, outdated)
    groups = _unfit_groups(ctx, prepared)
    gone = delete_jobs(each for each in outdated if each not in kept)
    deletions = (*gone, *_old_groups(ctx), *groups, *ended_sync_pod(ctx)[0])
    plan = _next_step(ctx, prepared, outdated, groups, choice)
    if choice is None:  # no placeholders are needed
        return replace(plan, deletions=(*deletions, *delete_placeholders(ctx)))
    if isinstance(choice, NodesChosen):
        return replace(plan, deletions=deletions)
    return replace(
        plan,
        deletions=(*deletions, *choice.deletions),
        creations=(*plan.creations, *choice.creations),
        requeue_after=min(
            (each for each in (choice.requeue_after, plan.requeue_after) if each is not None),
            default=None,
        ),
    )


def _wait_for_workspace(ctx: ReconcileContext, attempt: AttemptSpec) -> NodesWait | None:
    """Return the wait for the workspace, without placeholders; None if the workspace is there."""
    wait = workspace_wait(ctx, attempt)
    if wait is None:
        return None
    message, requeue_after = wait
    return NodesWait(
        reason=n.REASON_WAITING_FOR_WORKSPACE,
        message=message,
        deletions=delete_placeholders(ctx),
        requeue_after=requeue_after,
    )


def _count_leaving(ctx: ReconcileContext) -> int:
    """Return the number of earlier workers that still have a node, or may get one."""
    return sum(
        not each.finished
        for each in (*ctx.children.orphans, *ctx.children.workers)
        if each.attempt != ctx.status.attempt or each in ctx.children.orphans
    )


def delete_jobs(jobs: Iterable[AttemptJob]) -> tuple[Deletion, ...]:
    """Delete Jobs after their pods, only as they were read.

    In the meantime, the status may have named the attempt of such a Job, or the Job may have succeeded.
    """
    return tuple(deletion(each.item, foreground=True, as_read=True) for each in jobs if not each.deleting)


def _old_groups(ctx: ReconcileContext) -> list[Deletion]:
    name = n.attempt_name(ctx.meta.name, ctx.status.attempt)
    return [
        deletion(item)
        for (kind, each), item in ctx.children.objects.items()
        if kind == "PodGroup" and each != name and "deletionTimestamp" not in item["metadata"]
    ]


def _unfit_groups(ctx: ReconcileContext, prepared: AttemptSpec | Wait | Refusal) -> list[Deletion]:
    """Delete the attempt's PodGroup if it was created for another size, or for another queue of KAI."""
    if not isinstance(prepared, AttemptSpec) or not prepared.settings.gang:
        return []
    wanted = build_pod_group(prepared)
    mine = ctx.children.objects.get(object_key(wanted))
    is_resumed = any(not each.suspended for each in ctx.children.of(ctx.status.attempt))
    if mine is None or "deletionTimestamp" in mine["metadata"] or is_resumed:
        return []
    alike = contains(mine["metadata"].get("annotations"), wanted["metadata"]["annotations"])
    return [] if alike else [deletion(mine, as_read=True)]


def _is_up_to_date(job: AttemptJob, wanted: list[JsonObject]) -> bool:
    """Return whether an existing Job has the wanted spec, so that all Jobs of an attempt are alike.

    For a running Job, the status names the attempt by now, and later changes of the queue do not matter.
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


def requested(ctx: ReconcileContext) -> tuple[str, str]:
    """Return the size and the workspace digest of the spec, as Jobs have them in annotations."""
    return ctx.spec.size_key, ctx.spec.workspace.digest if ctx.spec.workspace is not None else ""


def _next_step(
    ctx: ReconcileContext,
    prepared: AttemptSpec | Wait | Refusal,
    outdated: list[AttemptJob],
    groups: list[Deletion],
    choice: NodesChosen | NodesWait | None,
) -> ReconcilePlan:
    """Return the first reason why the job is Pending. Without one, create the attempt's objects."""

    def pending(
        reason: str, message: str, conditions: Sequence[Condition], after: float | None = None, **fields: Any
    ) -> ReconcilePlan:
        fields = {"workers": ctx.workers(), "capacity": None, **fields}
        conditions = (*conditions, *_NOT_RUNNING)
        return ctx.write(_phase(ctx), reason, message, conditions=conditions, requeue_after=after, **fields)

    if isinstance(prepared, Refusal):
        if not ctx.has_started:
            return ctx.end(n.PHASE_FAILED, n.REASON_INVALID_SPEC, prepared.message, None)
        # The user may correct the queue again, so the job does not fail.
        return pending(n.REASON_INVALID_SPEC, prepared.message, rejected_conditions(prepared))
    if isinstance(prepared, Wait):
        return pending(prepared.reason, prepared.message, prepared.conditions, prepared.requeue_after)
    conditions = valid_conditions(prepared.settings, acceptance_message(ctx, prepared))
    pause, left = backoff(ctx)
    if left > 0:
        return pending(n.REASON_BACKING_OFF, pause, conditions, left)
    wanted = [*supporting_objects(prepared), *build_jobs(prepared)]
    taken = _name_conflict(ctx, wanted)
    remaining = _remaining_objects(ctx, outdated, groups)
    if remaining and not (taken and not outdated):  # the wait for nodes starts later
        return pending(n.REASON_STOPPING, remaining, conditions)
    if isinstance(choice, NodesWait):
        return _wait_for_nodes(ctx, prepared, conditions, choice)
    if taken:
        kept = ctx.status.raw.get("capacity")
        return pending(n.REASON_NAME_TAKEN, taken, conditions, POLL_SECONDS, capacity=kept)
    if choice is None:
        capacity = unknown_capacity(ctx.status, "NoPool")
    else:
        capacity = (
            Condition(
                type=n.CAPACITY_AVAILABLE, status=True, reason=n.REASON_COUNTED, message=choice.message
            ),
        )
    size = prepared.size
    plan = ctx.write(
        n.PHASE_PROVISIONING,
        n.REASON_STARTING,
        f"attempt {ctx.status.attempt} starts; nodes: {size.nodes}, GPUs on each: {size.gpus}",
        conditions=(*conditions, *_NOT_RUNNING, *capacity),
        requeue_after=0.0,
        nodes=size.nodes,
        gpusPerNode=size.gpus,
        gpus=size.total_gpus,
        workers=ctx.workers(),
        workspaceDigest=ctx.spec.workspace.digest if ctx.spec.workspace is not None else None,
        capacity=None,
        logs={"url": prepared.logs, "image": ctx.cluster.tools_image} if prepared.logs else None,
    )
    return replace(plan, creations=missing_objects(ctx, wanted))


def _phase(ctx: ReconcileContext) -> str:
    return n.PHASE_RESTARTING if ctx.status.phase == n.PHASE_RESTARTING else n.PHASE_PENDING


def _wait_for_nodes(
    ctx: ReconcileContext,
    attempt: AttemptSpec,
    conditions: Sequence[Condition],
    waiting: NodesWait,
) -> ReconcilePlan:
    """Wait for the workspace or for nodes. Create the objects that need no node, such as the sync pod."""
    wanted = [build_service(attempt), *([build_sync_pod(attempt)] if attempt.sync else [])]
    taken = _name_conflict(ctx, wanted)
    reason, message = (n.REASON_NAME_TAKEN, taken) if taken else (waiting.reason, waiting.message)
    if attempt.settings.queue.scheduling.pool:
        condition = Condition(
            type=n.CAPACITY_AVAILABLE, status=False, reason=waiting.reason, message=waiting.message
        )
        conditions = (*conditions, condition)
    noted = waiting.capacity_wait.to_status() if waiting.capacity_wait is not None else None
    plan = ctx.write(
        _phase(ctx),
        reason,
        message,
        conditions=(*conditions, *_NOT_RUNNING),
        workers=ctx.workers(),
        capacity=noted,
    )
    return replace(plan, creations=() if taken else missing_objects(ctx, wanted))


def supporting_objects(attempt: AttemptSpec) -> list[JsonObject]:
    """Return all objects of an attempt except its Jobs, in the order of creation."""
    gang = [build_pod_group(attempt)] if attempt.settings.gang else []
    sync = [build_sync_pod(attempt)] if attempt.sync else []
    claims = [build_claim(attempt, each) for each in attempt.storage.claims]
    return [build_service(attempt), *claims, *sync, *gang]


def object_key(item: JsonObject) -> tuple[str, str]:
    """Return the kind and the name of an object."""
    return item["kind"], item["metadata"]["name"]


def missing_objects(ctx: ReconcileContext, wanted: list[JsonObject]) -> tuple[JsonObject, ...]:
    """Return the objects that do not exist."""
    there = {
        *ctx.children.objects,
        *(("Job", each.name) for each in ctx.children.jobs),
        *ctx.children.others,
    }
    return tuple(each for each in wanted if object_key(each) not in there)


def changed_services(ctx: ReconcileContext, wanted: list[JsonObject]) -> tuple[JsonObject, ...]:
    """Return a patch for a changed Service. The other objects can't be changed, or belong to others."""
    return tuple(
        {**each, "metadata": {**each["metadata"], "uid": live["metadata"]["uid"]}}
        for each in wanted
        if each["kind"] == "Service"
        and (live := ctx.children.objects.get(object_key(each))) is not None
        and not contains(live, each)
    )


def _remaining_objects(ctx: ReconcileContext, outdated: list[AttemptJob], groups: list[Deletion]) -> str:
    """Return which objects must be gone first. Two attempts never run at once."""
    pods = [
        *(each for each in ctx.children.orphans if not each.finished),
        *(each for each in ctx.children.workers if each.attempt != ctx.status.attempt),
    ]
    if not (outdated or pods or groups):
        return ""
    objects = [
        *(f"Job {each.name}" for each in outdated),
        *(f"pod {each.name} on {each.node or 'no node'}" for each in pods),
        *(f"PodGroup {each.name}" for each in groups),
    ]
    more = f" and {len(objects) - 3} more" if len(objects) > 3 else ""
    lost = "; if a node does not answer, delete it" if any(each.deleting for each in pods) else ""
    return f"waits until the workers before are gone: {', '.join(objects[:3])}{more}{lost}{orphan_hint(pods)}"


def orphan_hint(pods: Iterable[Worker]) -> str:
    """Return how to delete workers whose Job was deleted with `--cascade=orphan`; "" for none."""
    kept = [each.name for each in pods if not each.job and not each.deleting]
    return f"; no Job owns {kept[0]} any more: kubectl delete pod {' '.join(kept[:3])}" if kept else ""


def _name_conflict(ctx: ReconcileContext, wanted: list[JsonObject]) -> str:
    keys = [object_key(each) for each in wanted]
    others = [(key, ctx.children.others[key]["metadata"]) for key in keys if key in ctx.children.others]
    if others:
        objects = ", ".join(f"{kind} {name}" for (kind, name), _ in others[:_SHOWN])
        more = f" and {len(others) - _SHOWN} more" if len(others) > _SHOWN else ""
        one = len(others) == 1
        verb, they = ("belongs", "it is") if one else ("belong", "they are")
        words = " ".join(f"{kind.lower()}/{name}" for (kind, name), _ in others)
        # They belong to an earlier job of the name, which was deleted without them.
        ours = all(_is_left_behind(meta) for _, meta in others)
        end = f": kubectl delete {words}, which an earlier job of the name left" if ours else ""
        return f"{objects}{more} {verb} to something else; the job begins when {they} gone{end}"
    for kind, name in keys:
        mine = ctx.children.objects.get((kind, name))
        if mine is not None and "deletionTimestamp" in mine["metadata"]:
            return f"{kind} {name} is being deleted; the job begins when it is gone"
    return ""


def _is_left_behind(meta: JsonObject) -> bool:
    labels = meta.get("labels") or {}
    return labels.get(n.LABEL_MANAGED_BY) == n.MANAGED_BY and not meta.get("ownerReferences")


BACKOFF_FIRST_SECONDS: Final = 10.0
BACKOFF_MAX_SECONDS: Final = 360.0


def backoff(ctx: ReconcileContext) -> tuple[str, float]:
    """Return the message of the pause after a failed attempt and its remaining seconds; "" and 0 for none."""
    last = ctx.status.raw.get("lastRestart")
    if ctx.status.phase != n.PHASE_RESTARTING or not isinstance(last, dict):
        return "", 0.0
    at = parse_time(last.get("time"))
    if at is None:
        return "", 0.0
    seconds = _backoff_seconds(ctx.status.restarts)
    left = min(seconds, at + seconds - ctx.now)
    return f"{last.get('message')}, {seconds:.0f} s after {last['time']}", left


def keep_failed_jobs(ctx: ReconcileContext, jobs: list[AttemptJob]) -> list[AttemptJob]:
    """Return the failed Jobs, which stay during the pause. Their pods have the logs, and use no node.

    The Job controller stops the other pods of such a Job.
    """
    if backoff(ctx)[1] <= 0:
        return []
    failing = {each.job for each in ctx.children.workers if each.failed}
    return [each for each in jobs if each.failed or each.uid in failing]


def _backoff_seconds(restarts: int) -> float:
    if restarts < 2:
        return 0.0
    return min(BACKOFF_MAX_SECONDS, BACKOFF_FIRST_SECONDS * 2.0 ** min(restarts - 2, 10))
