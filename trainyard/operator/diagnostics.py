"""Check whether the sync pod of a job has the workspace, and what the job waits for. Pure.

The job gets no nodes and no workers before its sync pod has the archive. The controller replaces a lost sync pod. The
new one gets the archive from the workers, or from the sync pod of another job (trainyard/workspace/transfer.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from launcher.observe import PATIENCE_SECONDS, held_up
from trainyard.operator import names as n
from trainyard.operator.api.fields import JsonObject, parse_time
from trainyard.operator.api.queue import WORKSPACE
from trainyard.operator.context import AttemptSpec, ReconcileContext
from trainyard.operator.names import sync_pod_url
from trainyard.operator.observe import OVER
from trainyard.operator.plan import Deletion, deletion

# Each sync pod that does not answer costs seconds.
MAX_NEARBY: Final = 3


def ended_sync_pod(ctx: ReconcileContext) -> tuple[tuple[Deletion, ...], float | None]:
    """Removes a sync pod that was evicted, or ended with its node: nothing begins such a pod anew, and it has the name.

    Else in how many seconds it may go: one that fails at once is not made anew without a pause.
    """
    pod = _sync_pod(ctx)
    if pod is None or "deletionTimestamp" in pod["metadata"]:
        return (), None
    if not _is_over(pod):
        return (), None
    created = parse_time(pod["metadata"].get("creationTimestamp"))
    left = 0.0 if created is None else created + PATIENCE_SECONDS - ctx.now
    return ((deletion(pod),), None) if left <= 0 else ((), left)


def has_archive(ctx: ReconcileContext) -> bool:
    """Return whether the job's sync pod has an archive. Then the pod is ready."""
    pod = _sync_pod(ctx)
    return (
        pod is not None
        and "deletionTimestamp" not in pod["metadata"]
        and _sync_container(pod).get("ready") is True
    )


def is_abandoned(ctx: ReconcileContext) -> bool:
    """Return whether the sync pod of a job without workers ended, because it received nothing for some minutes."""
    pod = _sync_pod(ctx)
    if pod is None or ctx.has_started or has_archive(ctx):
        return False
    container = _sync_container(pod)
    ends = [(container.get(key) or {}).get("terminated") or {} for key in ("state", "lastState")]
    return any(each.get("exitCode") == n.SYNC_ABANDONED_EXIT for each in ends)


def workspace_wait(ctx: ReconcileContext, attempt: AttemptSpec) -> tuple[str, float | None] | None:
    """Return a message about the missing workspace, and the seconds until the message may change.

    Return None if it is not missing: it is in a bucket, in the sync pod, or in the workers' own claims.
    """
    if not attempt.sync or has_archive(ctx) or _is_in_claims(ctx, attempt):
        return None
    name = ctx.meta.name
    pod, (why, left) = n.sync_pod(name), _sync_pod_pending_reason(ctx)
    if why:
        return f"pod {pod}, which receives the workspace, {why}", left
    command = f"kubectl torchrun sync {name}"
    if ctx.has_started:
        return f"pod {pod} lost the workspace. If no other job has a copy, {command} sends it again", left
    return (
        f"pod {pod} waits for the workspace. If kubectl torchrun submit was stopped, {command} sends it",
        left,
    )


def needs_sync_pod(job: JsonObject) -> bool:
    """Return whether this job from the API may need a sync pod."""
    phase = (job.get("status") or {}).get("phase")
    return phase not in n.FINAL_PHASES and _sync_pod_digest(job) != ""


def nearby_sync_pods(job: JsonObject, jobs: Iterable[JsonObject]) -> tuple[str, ...]:
    """Return the addresses of sync pods that may have this job's workspace, those of running jobs first.

    They belong to jobs in the same namespace with the same digest. A finished job has no sync pod.
    """
    meta, digest = job["metadata"], _sync_pod_digest(job)
    if not digest:
        return ()
    phases = {
        each["metadata"]["name"]: (each.get("status") or {}).get("phase")
        for each in jobs
        if each["metadata"]["name"] != meta["name"] and _sync_pod_digest(each) == digest
    }
    names = sorted(
        (name for name, phase in phases.items() if phase not in n.FINAL_PHASES),
        key=lambda name: (phases[name] != n.PHASE_RUNNING, name),
    )
    return tuple(sync_pod_url(name, meta["namespace"]) for name in names[:MAX_NEARBY])


def _sync_pod_digest(job: JsonObject) -> str:
    """Return the digest of a workspace without a bucket, "" for none."""
    spec = job.get("spec")
    workspace = spec.get("workspace") if isinstance(spec, dict) else None
    if not isinstance(workspace, dict) or workspace.get("url"):
        return ""
    return str(workspace.get("digest") or "")


def is_lost(ctx: ReconcileContext, before: str) -> bool:
    """Return whether a worker failed in this init container because no copy of the workspace exists."""
    workspace = ctx.spec.workspace
    return (
        before == n.FETCH_CONTAINER and workspace is not None and not workspace.url and not has_archive(ctx)
    )


def _is_in_claims(ctx: ReconcileContext, attempt: AttemptSpec) -> bool:
    """Return whether workers unpacked this workspace in their own claims.

    The status has no `workspaceDigest` if later workers did not find it there.
    """
    workspace = attempt.spec.workspace
    placed = workspace is not None and ctx.status.raw.get("workspaceDigest") == workspace.digest
    return placed and ctx.has_started and any(each.volume == WORKSPACE for each in attempt.storage.mounts)


def missing_workspace(ctx: ReconcileContext) -> tuple[str, float | None]:
    """What there is to say of workers that wait for a workspace that nobody sent; else as `unstarted.podless`.

    The first sync pod is made before the first worker: one that is younger than the job's start began empty. Whether
    it was sent anything since is seen by the workers, which wait.
    """
    workspace = ctx.spec.workspace
    if workspace is None or workspace.url:
        return "", None
    waiting = [
        (each.created + PATIENCE_SECONDS - ctx.now, each.name)
        for each in ctx.children.workers_of(ctx.status.attempt)
        if each.fetching and not each.deleting and each.created is not None
    ]
    long = [worker for left, worker in waiting if left <= 0]
    if not long:
        return "", min((left for left, _ in waiting), default=None)
    pod, (why, left) = n.sync_pod(ctx.meta.name), _sync_pod_pending_reason(ctx)
    state = f"the new pod {why}" if why else f"the new pod {pod} gets it from another copy, if there is one"
    return f"{min(long)} waits for the workspace, which was lost with an earlier pod {pod}: {state}", left


def _sync_pod_pending_reason(ctx: ReconcileContext) -> tuple[str, float | None]:
    """What keeps the sync pod from starting, "" for nothing; else as `unstarted.podless`."""
    pod = _sync_pod(ctx)
    if pod is None or "deletionTimestamp" in pod["metadata"] or _is_over(pod):
        return "", None
    why = held_up(pod)
    created = parse_time(pod["metadata"].get("creationTimestamp"))
    left = 0.0 if created is None else created + PATIENCE_SECONDS - ctx.now
    return (why, None) if left <= 0 or not why else ("", left)


def _is_over(pod: JsonObject) -> bool:
    return (pod.get("status") or {}).get("phase") in OVER


def _sync_container(pod: JsonObject) -> JsonObject:
    statuses = (pod.get("status") or {}).get("containerStatuses") or []
    return next((each for each in statuses if each.get("name") == n.SYNC_CONTAINER), {})


def _sync_pod(ctx: ReconcileContext) -> JsonObject | None:
    return ctx.children.objects.get(("Pod", n.sync_pod(ctx.meta.name)))


def pending_reason(ctx: ReconcileContext) -> tuple[str, float | None]:
    """What there is to say of workers that do not start or do not end; and in how many seconds there may be more."""
    told = [
        missing_pods(ctx),
        blocked_pods(ctx),
        missing_workspace(ctx),
        lingering_sidecars(ctx),
    ]
    return ", ".join(text for text, _ in told if text), min(
        (left for _, left in told if left is not None), default=None
    )


def missing_pods(ctx: ReconcileContext) -> tuple[str, float | None]:
    """What there is to say of workers that have no pod; else in how many seconds there may be something.

    The Job controller makes pods at once, if a quota, a policy or a webhook lets it, and tells why not in Events of the
    batch/v1 Job. What each pod of the queue is refused for, such as a PriorityClass that is not there, a dry run has
    told.
    """
    short = jobs_without_pods(ctx)
    if not short:
        return "", None
    left = min(begun for begun, _, _ in short) + PATIENCE_SECONDS - ctx.now
    if left > 0:
        return "", left
    count, named = sum(missing for _, missing, _ in short), short[0][2]
    have = "has" if count == 1 else "have"
    # A pod of a job that overrides anything of its queue is not one of those that were tried.
    said = "" if ctx.spec.overrides else ctx.template_refused
    told = (
        f"TorchrunQueue {ctx.spec.job_queue} says of its pods: {said}; Events" if said else "why, Events say"
    )
    return f"{count} {have} no pod; {told}: kubectl describe job {named}", None


def jobs_without_pods(ctx: ReconcileContext) -> list[tuple[float, int, str]]:
    """The Jobs of the attempt that lack pods: since when they may have them, how many they lack, and their names."""
    pods = Counter(each.job for each in ctx.children.workers_of(ctx.status.attempt))
    found = []
    for job in ctx.children.of(ctx.status.attempt):
        begun = parse_time((job.item.get("status") or {}).get("startTime"))
        missing = job.pods - pods[job.uid]
        if (
            begun is not None
            and missing > 0
            and not (job.suspended or job.complete or job.success_criteria_met)
        ):
            found.append((begun, missing, job.name))
    return found


def blocked_pods(ctx: ReconcileContext) -> tuple[str, float | None]:
    """The first worker whose pod says what keeps it from starting, and how many others are; else as `podless`."""
    waiting = [
        (each.created + PATIENCE_SECONDS - ctx.now, f"{each.name} {each.held}")
        for each in ctx.children.workers_of(ctx.status.attempt)
        if each.held and not (each.ready or each.finished or each.deleting) and each.created is not None
    ]
    long = [told for left, told in waiting if left <= 0]
    left = min((left for left, _ in waiting if left > 0), default=None)
    if not long:
        return "", left
    others = len(long) - 1
    more = f" ({others} more {'is' if others == 1 else 'are'} held up)" if others else ""
    return f"{min(long)}{more}", left


# One that notices the worker's end, and ends as well, has until then.
SIDECAR_GRACE_SECONDS: Final = 60.0


def lingering_sidecars(ctx: ReconcileContext) -> tuple[str, float | None]:
    """What there is to say of the first such worker, and in how many seconds there may be something or more to say."""
    waiting = [
        (each.end.at + SIDECAR_GRACE_SECONDS - ctx.now, each)
        for each in ctx.children.workers_of(ctx.status.attempt)
        if each.running_sidecars and each.end.at is not None and not (each.finished or each.deleting)
    ]
    long = [worker for left, worker in waiting if left <= 0]
    left = min((left for left, _ in waiting if left > 0), default=None)
    if not long:
        return "", left
    first = min(long, key=lambda each: each.name)
    what = (
        f"container {first.running_sidecars[0]} goes"
        if len(first.running_sidecars) == 1
        else f"containers {_join(first.running_sidecars)} go"
    )
    others = f", and so do those of {len(long) - 1} more" if len(long) > 1 else ""
    return (
        f"{first.name} does not end: its container {n.WORKER_CONTAINER} ended with exit code {first.end.code}, and its "
        f"{what} on{others}; what ends with the worker is one of initContainers with restartPolicy: Always"
    ), left


def _join(names: tuple[str, ...]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"
