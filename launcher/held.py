"""Why a pod does not start, as it says itself. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

# Until a pod is that old, what its status says is mostly over the next moment: it is made within a second, and bound in
# the next one where there is room; of a thousand pods, and on a busy control plane, in several.
PATIENCE_SECONDS: Final = 15.0
_PULLING: Final = ("ErrImagePull", "ImagePullBackOff")
_ON_ITS_WAY: Final = ("ContainerCreating", "PodInitializing")
_LINE: Final = 300


def held_up(pod: Mapping[str, Any]) -> str:
    """Why this pod does not start, to be read after its name; "" where nothing speaks against it.

    The scheduler says it in condition PodScheduled, the kubelet in the first container that waits
    (https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#container-state-waiting).
    One without a condition was seen by neither: a scheduler of that name does not run, or no such node is there.
    """
    status = pod.get("status") or {}
    conditions = status.get("conditions") or []
    containers = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    if status.get("phase", "Pending") == "Pending" and not (conditions or containers):
        return _unseen(pod.get("spec") or {})
    for each in conditions:
        if each.get("type") == "PodScheduled" and each.get("status") == "False":
            # What comes after the first sentence is about preemption.
            why = str(each.get("message") or each.get("reason") or "").split(". ")[0]
            return f"waits for a node: {_one_line(why)}"
    for each in containers:
        waiting = (each.get("state") or {}).get("waiting") or {}
        reason = str(waiting.get("reason") or "")
        if reason in _PULLING:
            # The two take turns, with another message each; one line that stays is told once.
            return f"can't get image {_one_line(each.get('image'))}: kubectl describe pod says why"
        if reason and reason not in _ON_ITS_WAY:
            said = f"{reason}: {waiting['message']}" if waiting.get("message") else reason
            return f"can't start: {_one_line(said)}"
    return ""


def _unseen(spec: Mapping[str, Any]) -> str:
    if node := spec.get("nodeName"):
        return f"waits for the kubelet of node {_one_line(node)}, which has said nothing of it"
    scheduler = spec.get("schedulerName") or "default-scheduler"
    return f"waits for a node: scheduler {_one_line(scheduler)} has said nothing of it"


def _one_line(text: Any) -> str:
    return " ".join(str(text or "").split())[:_LINE].rstrip(".")
