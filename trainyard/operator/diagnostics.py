"""Find out why workers do not start or end, and whether the workspace is available. Pure.

`pending_reason` explains a job that waits for its workers. A job gets no nodes and no workers before its sync pod has
the archive of the workspace. The controller replaces a lost sync pod. The new one gets the archive from the workers, or
from the sync pod of another job (trainyard/workspace/serve.py).

Each message is returned with the seconds until it may change, None for never.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from launcher.observe import PATIENCE_SECONDS
from launcher.observe import pending_reason as pod_pending_reason
from trainyard.operator import names as n
from trainyard.operator.api.fields import JsonObject, parse_time
from trainyard.operator.api.queue import WORKSPACE
from trainyard.operator.context import AttemptSpec, ReconcileContext, earliest
from trainyard.operator.observe import OVER, Worker
from trainyard.operator.plan import Deletion, deletion
from trainyard.operator.status import template_rejection

# Each sync pod that does not answer takes seconds.
MAX_NEARBY: Final = 3
# The time that a sidecar gets to end by itself.
SIDECAR_GRACE_SECONDS: Final = 60.0


def pending_reason(ctx: ReconcileContext) -> tuple[str, float | None]:
    """Return why workers do not start or end."""
    causes = [missing_pods(ctx), blocked_pods(ctx), missing_workspace(ctx), lingering_sidecars(ctx)]
    return ", ".join(text for text, _ in causes if text), earliest(*(left for _, left in causes))


def missing_pods(ctx: ReconcileContext) -> tuple[str, float | None]:
    """Return a message about workers without a pod.

    The Job controller creates pods at once, unless a quota, a policy or a webhook prevents it. Its Events on the
    batch/v1 Job have the reason. The dry run of the queue's pod finds errors that affect every pod of the queue.
    """
    short = jobs_without_pods(ctx)
    if not short:
        return "", None
    left = min(since for since, _, _ in short) + PATIENCE_SECONDS - ctx.now
    if left > 0:
        return "", left
    count, named = sum(missing for _, missing, _ in short), short[0][2]
    # The dry run did not test pods with overrides.
    said = "" if ctx.spec.overrides else template_rejection(ctx.queue)
    events = (
        f"TorchrunQueue {ctx.spec.job_queue} rejects its pods: {said}; Events" if said else "why, Events say"
    )
    return f"{count} {'has' if count == 1 else 'have'} no pod; {events}: kubectl describe job {named}", None


def jobs_without_pods(ctx: ReconcileContext) -> list[tuple[float, int, str]]:
    """Return the Jobs with missing pods: the time since when, the number of pods, and the name."""
    pods = Counter(each.job for each in ctx.children.workers_of(ctx.status.attempt))
    return [
        (job.started, job.pods - pods[job.uid], job.name)
        for job in ctx.children.of(ctx.status.attempt)
        if job.started is not None and job.pods > pods[job.uid] and not (job.suspended or job.succeeded)
    ]


def _overdue(waiting: Iterable[tuple[Worker, float]], now: float) -> tuple[list[Worker], float | None]:
    """Return the names of the workers that are overdue, and the seconds until the next one is."""
    waiting = list(waiting)
    late = sorted((each for each, at in waiting if at <= now), key=lambda each: each.name)
    return late, min((at - now for _, at in waiting if at > now), default=None)


def blocked_pods(ctx: ReconcileContext) -> tuple[str, float | None]:
    """Return a message about pods that can't start."""
    late, left = _overdue(
        (
            (each, each.created + PATIENCE_SECONDS)
            for each in ctx.children.workers_of(ctx.status.attempt)
            if each.held and not (each.ready or each.finished or each.deleting) and each.created is not None
        ),
        ctx.now,
    )
    if not late:
        return "", left
    others = len(late) - 1
    more = f" ({others} more {'is' if others == 1 else 'are'} held up)" if others else ""
    return f"{late[0].name} {late[0].held}{more}", left


def missing_workspace(ctx: ReconcileContext) -> tuple[str, float | None]:
    """Return a message about workers that wait for a lost workspace.

    The first sync pod exists before the first worker. A sync pod that was created after the job's start was empty at
    first. Only the waiting workers show whether it has an archive now.
    """
    if ctx.spec.workspace is None or ctx.spec.workspace.url:
        return "", None
    late, left = _overdue(
        (
            (each, each.created + PATIENCE_SECONDS)
            for each in ctx.children.workers_of(ctx.status.attempt)
            if each.fetching and not each.deleting and each.created is not None
        ),
        ctx.now,
    )
    if not late:
        return "", left
    pod, (why, left) = n.sync_pod(ctx.meta.name), _sync_pod_pending_reason(ctx)
    state = f"the new pod {why}" if why else f"the new pod {pod} gets it from another copy, if there is one"
    return f"{late[0].name} waits for the workspace, which was lost with an earlier pod {pod}: {state}", left


def lingering_sidecars(ctx: ReconcileContext) -> tuple[str, float | None]:
    """Return a message about workers whose sidecars still run.

    A webhook may add a container to each pod, such as Istio's proxy or Vault's agent. Kubernetes does not stop it, and
    the pod runs as long as one of its containers does. Then the job neither succeeds nor restarts, and keeps its nodes.
    """
    late, left = _overdue(
        (
            (each, each.end.at + SIDECAR_GRACE_SECONDS)
            for each in ctx.children.workers_of(ctx.status.attempt)
            if each.running_sidecars and each.end.at is not None and not (each.finished or each.deleting)
        ),
        ctx.now,
    )
    if not late:
        return "", left
    *names, last = late[0].running_sidecars
    what = f"containers {', '.join(names)} and {last} still run" if names else f"container {last} still runs"
    others = f", and so do those of {len(late) - 1} more" if len(late) > 1 else ""
    return (
        f"{late[0].name} does not end: its container {n.WORKER_CONTAINER} ended with exit code {late[0].end.code}, and "
        f"its {what}{others}. Make it one of initContainers with restartPolicy: Always, so that it ends with the worker"
    ), left


def workspace_wait(ctx: ReconcileContext, attempt: AttemptSpec) -> tuple[str, float | None] | None:
    """Return a message about the missing workspace.

    Return None if it is not missing: it is in a bucket, in the sync pod, or in the workers' own claims.
    """
    if not attempt.sync or has_archive(ctx) or _is_in_claims(ctx, attempt):
        return None
    pod, command = n.sync_pod(ctx.meta.name), f"kubectl torchrun sync {ctx.meta.name}"
    why, left = _sync_pod_pending_reason(ctx)
    if why:
        return f"pod {pod}, which receives the workspace, {why}", left
    if ctx.has_started:
        return f"pod {pod} lost the workspace. If no other job has a copy, {command} sends it again", left
    message = f"pod {pod} waits for the workspace. If kubectl torchrun submit was stopped, {command} sends it"
    return message, left


def _is_in_claims(ctx: ReconcileContext, attempt: AttemptSpec) -> bool:
    """Return whether workers unpacked this workspace in their own claims.

    The status has no `workspaceDigest` if later workers did not find it there.
    """
    workspace = attempt.spec.workspace
    placed = workspace is not None and ctx.status.raw.get("workspaceDigest") == workspace.digest
    return placed and ctx.has_started and any(each.volume == WORKSPACE for each in attempt.storage.mounts)


def is_lost(ctx: ReconcileContext, before: str) -> bool:
    """Return whether a worker failed in this init container because no copy of the workspace exists."""
    workspace = ctx.spec.workspace
    without_bucket = workspace is not None and not workspace.url
    return before == n.FETCH_CONTAINER and without_bucket and not has_archive(ctx)


def has_archive(ctx: ReconcileContext) -> bool:
    """Return whether the job's sync pod has an archive. Then the pod is ready."""
    pod = _sync_pod(ctx)
    return pod is not None and not _is_deleting(pod) and _sync_container(pod).get("ready") is True


def is_abandoned(ctx: ReconcileContext) -> bool:
    """Return whether the sync pod of a job without workers ended, because it received nothing for some minutes."""
    pod = _sync_pod(ctx)
    if pod is None or ctx.has_started or has_archive(ctx):
        return False
    container = _sync_container(pod)
    ends = [(container.get(key) or {}).get("terminated") or {} for key in ("state", "lastState")]
    return any(each.get("exitCode") == n.SYNC_ABANDONED_EXIT for each in ends)


def ended_sync_pod(ctx: ReconcileContext) -> tuple[tuple[Deletion, ...], float | None]:
    """Return the deletion of an ended sync pod, which is never restarted on another node.

    Or return the seconds until the deletion: a sync pod that fails at once is replaced after a pause.
    """
    pod = _sync_pod(ctx)
    if pod is None or _is_deleting(pod) or not _is_over(pod):
        return (), None
    left = _patience(ctx, pod)
    return ((deletion(pod),), None) if left <= 0 else ((), left)


def _sync_pod_pending_reason(ctx: ReconcileContext) -> tuple[str, float | None]:
    """Return why the sync pod does not start, "" for none."""
    pod = _sync_pod(ctx)
    if pod is None or _is_deleting(pod) or _is_over(pod):
        return "", None
    why, left = pod_pending_reason(pod), _patience(ctx, pod)
    return (why, None) if left <= 0 or not why else ("", left)


def _sync_pod(ctx: ReconcileContext) -> JsonObject | None:
    return ctx.children.objects.get(("Pod", n.sync_pod(ctx.meta.name)))


def _sync_container(pod: JsonObject) -> JsonObject:
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return next((each for each in statuses if each["name"] == n.SYNC_CONTAINER), {})


def _is_deleting(pod: JsonObject) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def _is_over(pod: JsonObject) -> bool:
    return (pod.get("status") or {}).get("phase") in OVER


def _patience(ctx: ReconcileContext, pod: JsonObject) -> float:
    """Return the seconds that a new pod gets to start, and before it is deleted again."""
    return (parse_time(pod["metadata"].get("creationTimestamp")) or 0.0) + PATIENCE_SECONDS - ctx.now


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
    return tuple(n.sync_pod_url(name, meta["namespace"]) for name in names[:MAX_NEARBY])


def _sync_pod_digest(job: JsonObject) -> str:
    """Return the digest of a workspace without a bucket, "" for none."""
    workspace = (job.get("spec") or {}).get("workspace") or {}
    return "" if workspace.get("url") else workspace.get("digest") or ""
