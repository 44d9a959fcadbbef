"""Check whether the sync pod of a job has the workspace, and what the job waits for. Pure.

The job gets no nodes and no workers before its sync pod has the archive. The controller replaces a lost sync pod. The
new one gets the archive from the workers, or from the sync pod of another job (trainyard/workspace/transfer.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from launcher.held import PATIENCE_SECONDS, held_up
from trainyard.operator.core import names as n
from trainyard.operator.core.addresses import sync_pod_url
from trainyard.operator.core.decision import Removal, removal
from trainyard.operator.core.look import Look
from trainyard.operator.core.observe import OVER
from trainyard.operator.core.pods import Making
from trainyard.operator.core.queue_spec import WORKSPACE
from trainyard.operator.core.reading import JsonObject
from trainyard.operator.core.record import moment

# Each sync pod that does not answer costs seconds.
MOST_NEARBY: Final = 3


def ended_sync_pod(look: Look) -> tuple[tuple[Removal, ...], float | None]:
    """Removes a sync pod that was evicted, or ended with its node: nothing begins such a pod anew, and it has the name.

    Else in how many seconds it may go: one that fails at once is not made anew without a pause.
    """
    pod = _sync_pod(look)
    if pod is None or "deletionTimestamp" in pod["metadata"]:
        return (), None
    if not _is_over(pod):
        return (), None
    created = moment(pod["metadata"].get("creationTimestamp"))
    left = 0.0 if created is None else created + PATIENCE_SECONDS - look.now
    return ((removal(pod),), None) if left <= 0 else ((), left)


def has_archive(look: Look) -> bool:
    """Return whether the job's sync pod has an archive. Then the pod is ready."""
    pod = _sync_pod(look)
    return (
        pod is not None
        and "deletionTimestamp" not in pod["metadata"]
        and _container(pod).get("ready") is True
    )


def is_abandoned(look: Look) -> bool:
    """Return whether the sync pod of a job without workers ended, because it received nothing for some minutes."""
    pod = _sync_pod(look)
    if pod is None or look.has_started or has_archive(look):
        return False
    container = _container(pod)
    ends = [(container.get(key) or {}).get("terminated") or {} for key in ("state", "lastState")]
    return any(each.get("exitCode") == n.SYNC_ABANDONED_EXIT for each in ends)


def workspace_wait(look: Look, making: Making) -> tuple[str, float | None] | None:
    """Return a message about the missing workspace, and the seconds until the message may change.

    Return None if it is not missing: it is in a bucket, in the sync pod, or in the workers' own claims.
    """
    if not making.sync or has_archive(look) or _is_in_claims(look, making):
        return None
    name = look.meta.name
    pod, (why, left) = n.sync_pod(name), _held_up(look)
    if why:
        return f"pod {pod}, which receives the workspace, {why}", left
    command = f"kubectl torchrun sync {name}"
    if look.has_started:
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
    return tuple(sync_pod_url(name, meta["namespace"]) for name in names[:MOST_NEARBY])


def _sync_pod_digest(job: JsonObject) -> str:
    """Return the digest of a workspace without a bucket, "" for none."""
    spec = job.get("spec")
    workspace = spec.get("workspace") if isinstance(spec, dict) else None
    if not isinstance(workspace, dict) or workspace.get("url"):
        return ""
    return str(workspace.get("digest") or "")


def is_lost(look: Look, before: str) -> bool:
    """Return whether a worker failed in this init container because no copy of the workspace exists."""
    workspace = look.spec.workspace
    return (
        before == n.FETCH_CONTAINER and workspace is not None and not workspace.url and not has_archive(look)
    )


def _is_in_claims(look: Look, making: Making) -> bool:
    """Return whether workers unpacked this workspace in their own claims.

    The status has no `workspaceDigest` if later workers did not find it there.
    """
    workspace = making.spec.workspace
    placed = workspace is not None and look.record.raw.get("workspaceDigest") == workspace.digest
    return placed and look.has_started and any(each.volume == WORKSPACE for each in making.storage.mounts)


def unsent(look: Look) -> tuple[str, float | None]:
    """What there is to say of workers that wait for a workspace that nobody sent; else as `unstarted.podless`.

    The first sync pod is made before the first worker: one that is younger than the job's start began empty. Whether
    it was sent anything since is seen by the workers, which wait.
    """
    workspace = look.spec.workspace
    if workspace is None or workspace.url:
        return "", None
    waiting = [
        (each.created + PATIENCE_SECONDS - look.now, each.name)
        for each in look.seen.workers_of(look.record.attempt)
        if each.fetching and not each.deleting and each.created is not None
    ]
    long = [worker for left, worker in waiting if left <= 0]
    if not long:
        return "", min((left for left, _ in waiting), default=None)
    pod, (why, left) = n.sync_pod(look.meta.name), _held_up(look)
    state = f"the new pod {why}" if why else f"the new pod {pod} gets it from another copy, if there is one"
    return f"{min(long)} waits for the workspace, which was lost with an earlier pod {pod}: {state}", left


def _held_up(look: Look) -> tuple[str, float | None]:
    """What keeps the sync pod from starting, "" for nothing; else as `unstarted.podless`."""
    pod = _sync_pod(look)
    if pod is None or "deletionTimestamp" in pod["metadata"] or _is_over(pod):
        return "", None
    why = held_up(pod)
    created = moment(pod["metadata"].get("creationTimestamp"))
    left = 0.0 if created is None else created + PATIENCE_SECONDS - look.now
    return (why, None) if left <= 0 or not why else ("", left)


def _is_over(pod: JsonObject) -> bool:
    return (pod.get("status") or {}).get("phase") in OVER


def _container(pod: JsonObject) -> JsonObject:
    statuses = (pod.get("status") or {}).get("containerStatuses") or []
    return next((each for each in statuses if each.get("name") == n.SYNC_CONTAINER), {})


def _sync_pod(look: Look) -> JsonObject | None:
    return look.seen.objects.get(("Pod", n.sync_pod(look.meta.name)))
