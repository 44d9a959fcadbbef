"""A sync pod that has ended, and workers that wait for what it should hold. Pure."""

from __future__ import annotations

from launcher.core.held import PATIENCE_SECONDS, held_up
from launcher.core.torchrun import names as n
from launcher.core.torchrun.decision import Removal, removal
from launcher.core.torchrun.look import Look
from launcher.core.torchrun.observe import OVER
from launcher.core.torchrun.reading import JsonObject
from launcher.core.torchrun.record import moment


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
    name = look.meta.name
    pod, (why, left) = n.sync_pod(name), _held_up(look)
    if _is_first(look):
        told = (
            f": pod {pod}, which takes it, {why}"
            if why
            else f": kubectl torchrun sync {name} sends it to pod {pod}"
        )
    else:
        again = f"the new one {why}" if why else f"kubectl torchrun sync {name} sends it again"
        told = f", which was lost with an earlier pod {pod}: {again}"
    return f"{min(long)} waits for the workspace{told}", left


def _held_up(look: Look) -> tuple[str, float | None]:
    """What keeps the sync pod from starting, "" for nothing; else as `unstarted.podless`."""
    pod = _sync_pod(look)
    if pod is None or "deletionTimestamp" in pod["metadata"] or _is_over(pod):
        return "", None
    why = held_up(pod)
    created = moment(pod["metadata"].get("creationTimestamp"))
    left = 0.0 if created is None else created + PATIENCE_SECONDS - look.now
    return (why, None) if left <= 0 or not why else ("", left)


def _is_first(look: Look) -> bool:
    """Whether the sync pod is that of the job's start, and lives."""
    pod, started = _sync_pod(look), look.record.started
    if pod is None or "deletionTimestamp" in pod["metadata"] or _is_over(pod):
        return False
    made = moment(pod["metadata"].get("creationTimestamp"))
    return started is None or made is None or made <= started


def _is_over(pod: JsonObject) -> bool:
    return (pod.get("status") or {}).get("phase") in OVER


def _sync_pod(look: Look) -> JsonObject | None:
    return look.seen.objects.get(("Pod", n.sync_pod(look.meta.name)))
