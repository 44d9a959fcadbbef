"""Find out why workers do not start or end, and whether the workspace is available. Pure.

`describe_workers` explains a job that waits for its workers. A job gets no nodes and no workers before its sync pod has
the archive of the workspace. The controller replaces a lost sync pod. The new one gets the archive from the workers, or
from the sync pod of another job (trainyard/workspace/sync_pod.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final, NamedTuple

from launcher.observe import PATIENCE_SECONDS, pending_reason
from trainyard.operator import names as n
from trainyard.operator.api.fields import JsonObject, parse_time
from trainyard.operator.api.queue import WORKSPACE
from trainyard.operator.context import AttemptSpec, ReconcileContext, conditions_by_type, earliest
from trainyard.operator.observe import Worker, container_statuses, is_over
from trainyard.operator.plan import ReconcilePlan, deletion

# Each sync pod that does not answer takes seconds.
MAX_NEARBY: Final = 3
# The time that a sidecar gets to end by itself.
SIDECAR_GRACE_SECONDS: Final = 60.0
_MAX_LINE: Final = 300


class Message(NamedTuple):
    """A message, and the seconds until it may change; None for never."""

    text: str
    requeue_after: float | None = None


def describe_workers(ctx: ReconcileContext) -> Message:
    """Return why workers do not start or end."""
    missing = _report_missing_pods(ctx)
    texts, due = [missing.text], [missing.requeue_after]
    for cause in (_blocked_pod, _lost_workspace, _lingering_sidecars):
        found = [(each.name, *reported) for each in ctx.workers if (reported := cause(ctx, each)) is not None]
        late = [(name, why) for name, at, why in sorted(found) if at <= ctx.now]
        due += [at - ctx.now for _, at, _ in found if at > ctx.now]
        if late:
            name, why = late[0]
            more = f" ({len(late) - 1} more {'worker' if len(late) == 2 else 'workers'})" if late[1:] else ""
            texts.append(f"{name} {why}{more}")
        if late and cause is _lost_workspace:
            due.append(_describe_sync_pod(ctx).requeue_after)
    return Message(", ".join(filter(None, texts)), earliest(*due))


def _report_missing_pods(ctx: ReconcileContext) -> Message:
    """Return a message about workers without a pod.

    The Job controller creates pods at once, unless a quota, a policy or a webhook prevents it. Its Events on the
    batch/v1 Job have the reason. The dry run of the queue's pod finds errors that affect every pod of the queue.
    """
    pods = Counter(worker.job for worker in ctx.workers)
    short = [
        (job.started, job.pods - pods[job.uid], job.name)
        for job in ctx.jobs
        if job.started is not None and job.pods > pods[job.uid] and not (job.suspended or job.succeeded)
    ]
    if not short:
        return Message("")
    left = min(since for since, _, _ in short) + PATIENCE_SECONDS - ctx.now
    if left > 0:
        return Message("", left)
    count, job_name = sum(missing for _, missing, _ in short), short[0][2]
    # The dry run did not test pods with overrides.
    cause = "" if ctx.spec.overrides else _template_rejection(ctx.queue)
    if cause:
        cause = f"the API server rejects pods of TorchrunQueue {ctx.spec.job_queue}: {cause}; "
    missing = f"{count} {'has' if count == 1 else 'have'} no pod"
    describe = f"kubectl describe job {job_name} -n {ctx.meta.namespace}"
    return Message(f"{missing}; {cause}the Events have the cause: {describe}")


def _template_rejection(queue: JsonObject | None) -> str:
    """Return why the API server rejects a pod of this queue, in one line; "" if it does not.

    It comes from the queue's condition about the dry run for its present generation.
    """
    conditions = conditions_by_type(((queue or {}).get("status") or {}).get("conditions"))
    found = conditions.get(n.POD_TEMPLATE_VALID, {})
    seen = (found.get("status"), found.get("reason"), found.get("observedGeneration"))
    if queue is None or seen != ("False", n.REASON_REFUSED, queue["metadata"].get("generation")):
        return ""
    return " ".join((found.get("message") or "").split())[:_MAX_LINE]


# Each function returns the time from which a cause is reported, and the message; None if there is no such cause.


def _blocked_pod(_: ReconcileContext, worker: Worker) -> tuple[float, str] | None:
    why = pending_reason(worker.item)
    if not why or worker.created is None or worker.ready or worker.finished or worker.deleting:
        return None
    return worker.created + PATIENCE_SECONDS, why


def _lost_workspace(ctx: ReconcileContext, worker: Worker) -> tuple[float, str] | None:
    """Report a worker that waits for a lost workspace: the sync pod that replaced a lost one has no archive.

    The first sync pod exists before the first worker.
    """
    fetch = container_statuses(worker.item, "initContainerStatuses").get(n.FETCH_CONTAINER) or {}
    started = parse_time(((fetch.get("state") or {}).get("running") or {}).get("startedAt"))
    if not ctx.spec.has_sync_pod or has_archive(ctx) or started is None or worker.deleting:
        return None
    pod, why = n.sync_pod(ctx.meta.name), _describe_sync_pod(ctx).text
    state = f"the new pod {why}" if why else f"the new pod {pod} gets it from another copy, if there is one"
    lost = f"waits for the workspace, which was lost with an earlier pod {pod}: {state}"
    return started + PATIENCE_SECONDS, lost


def _lingering_sidecars(_: ReconcileContext, worker: Worker) -> tuple[float, str] | None:
    """Report an ended worker whose sidecars still run.

    A webhook may add a container to each pod, such as Istio's proxy or Vault's agent. Kubernetes does not stop it, and
    the pod runs as long as one of its containers does. Then the job neither succeeds nor restarts, and keeps its nodes.
    """
    running = [
        name
        for name, container in container_statuses(worker.item).items()
        if name != n.WORKER_CONTAINER and "terminated" not in (container.get("state") or {})
    ]
    if not running or worker.end.at is None or worker.finished or worker.deleting:
        return None
    still = "container {} still runs" if len(running) == 1 else "containers {} still run"
    which = still.format(" and ".join(running))
    ended = f"its container {n.WORKER_CONTAINER} ended with exit code {worker.end.code}, but {which}"
    advice = "Move it to initContainers with restartPolicy: Always, so that it ends with the worker"
    return worker.end.at + SIDECAR_GRACE_SECONDS, f"does not end: {ended}. {advice}"


def workspace_wait(ctx: ReconcileContext, attempt: AttemptSpec) -> Message | None:
    """Return a message about the missing workspace.

    Return None if it is not missing: it is in a bucket, in the sync pod, or in the workers' own claims.
    """
    # Workers unpacked it in their claims. The status has no `workspaceDigest` if later workers did not find it there.
    unpacked = ctx.has_started and ctx.status.raw.get("workspaceDigest") == ctx.workspace_digest
    in_claims = unpacked and any(each.volume == WORKSPACE for each in attempt.storage.mounts)
    if not ctx.spec.has_sync_pod or has_archive(ctx) or in_claims:
        return None
    pod, command = n.sync_pod(ctx.meta.name), f"kubectl torchrun sync {ctx.meta.name} -n {ctx.meta.namespace}"
    why, left = _describe_sync_pod(ctx)
    if why:
        return Message(f"pod {pod}, which receives the workspace, {why}", left)
    if ctx.has_started:
        text = f"pod {pod} lost the workspace. If no other job has a copy, {command} sends it again"
        return Message(text, left)
    text = f"pod {pod} waits for the workspace. If kubectl torchrun submit was stopped, {command} sends it"
    return Message(text, left)


def is_lost(ctx: ReconcileContext, init_container: str) -> bool:
    """Return whether a worker failed in this init container because no copy of the workspace exists."""
    return init_container == n.FETCH_CONTAINER and ctx.spec.has_sync_pod and not has_archive(ctx)


def has_archive(ctx: ReconcileContext) -> bool:
    """Return whether the job's sync pod has an archive. Then the pod is ready."""
    pod = _sync_pod(ctx)
    return pod is not None and _sync_container(pod).get("ready") is True


def is_abandoned(ctx: ReconcileContext) -> bool:
    """Return whether the sync pod of a job without workers ended, because it received nothing for some minutes."""
    pod = ctx.children.objects.get(("Pod", n.sync_pod(ctx.meta.name)))
    if pod is None or ctx.has_started or has_archive(ctx):
        return False
    container = _sync_container(pod)
    ends = [(container.get(key) or {}).get("terminated") or {} for key in ("state", "lastState")]
    return any(each.get("exitCode") == n.SYNC_ABANDONED_EXIT for each in ends)


def delete_ended_sync_pod(ctx: ReconcileContext) -> ReconcilePlan:
    """Delete an ended sync pod, which is never restarted on another node.

    A sync pod that fails at once is replaced after a pause.
    """
    pod = _sync_pod(ctx)
    if pod is None or not is_over(pod):
        return ReconcilePlan()
    left = _patience(ctx, pod)
    return ReconcilePlan(deletions=(deletion(pod),)) if left <= 0 else ReconcilePlan(requeue_after=left)


def _describe_sync_pod(ctx: ReconcileContext) -> Message:
    """Return why the sync pod does not start, "" for none."""
    pod = _sync_pod(ctx)
    if pod is None or is_over(pod):
        return Message("")
    why, left = pending_reason(pod), _patience(ctx, pod)
    return Message(why) if left <= 0 or not why else Message("", left)


def _sync_pod(ctx: ReconcileContext) -> JsonObject | None:
    """Return the job's sync pod; None if there is none, or if it is being deleted."""
    pod = ctx.children.objects.get(("Pod", n.sync_pod(ctx.meta.name)))
    return None if pod is None or "deletionTimestamp" in pod["metadata"] else pod


def _sync_container(pod: JsonObject) -> JsonObject:
    return container_statuses(pod).get(n.SYNC_CONTAINER) or {}


def _patience(ctx: ReconcileContext, pod: JsonObject) -> float:
    """Return the seconds until the pod is PATIENCE_SECONDS old; negative after that."""
    return (parse_time(pod["metadata"].get("creationTimestamp")) or 0.0) + PATIENCE_SECONDS - ctx.now


def nearby_sync_pods(ctx: ReconcileContext, jobs: Iterable[JsonObject]) -> tuple[str, ...]:
    """Return the addresses of sync pods that may have this job's workspace, those of running jobs first.

    They belong to those of `jobs`, all of the same namespace, with the same digest. A finished job has no sync pod.
    """
    found = []
    for job in jobs:
        name, phase = job["metadata"]["name"], (job.get("status") or {}).get("phase")
        workspace = (job.get("spec") or {}).get("workspace") or {}
        is_same = workspace.get("digest") == ctx.workspace_digest and not workspace.get("url")
        if is_same and name != ctx.meta.name and phase not in n.FINAL_PHASES:
            found.append((phase != n.PHASE_RUNNING, name))
    return tuple(n.sync_pod_url(name, ctx.meta.namespace) for _, name in sorted(found)[:MAX_NEARBY])
