"""Why a training came to no good end, and whether another one may go better. Pure.

A static world can't lose a worker: the others wait for it in their collectives, and the training operator, which makes
a pod anew that is gone, can't bring it back into their world
(github.com/kubeflow/training-operator v1.9.4, ReconcilePods in pkg/controller.v1/common/pod.go). So one worker that is
lost is the end of a training, before anybody else says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from launcher.errors import describe, is_consequence, meaning
from launcher.observe import Node, Observation, Pod, Training
from launcher.request import Request
from trainyard.k8s import names

# What the operator says of a job that ran out of its time (github.com/kubeflow/training-operator v1.9.4, ReconcileJobs
# in pkg/controller.v1/common/job.go). It deletes the pods before it says so.
_OUT_OF_TIME = "active longer than specified deadline"
# The operator counts from its own first look at the job, by its own clock.
_CLOCKS_APART_SECONDS = 10.0
_WORDS = {names.WORKER_EXIT_STOPPED: "it was told to stop", names.WORKER_EXIT_HUNG: "it hung"}
_LIVE = frozenset({"Pending", "Running"})
# A failure may be reported later than its consequences (trainyard/operator/failures.py).
CAUSE_SECONDS = 6.0


@dataclass(frozen=True, kw_only=True)
class Ending:
    """The end of a training; `again` says whether a restart may go better."""

    reason: str
    again: bool


def workers(request: Request, seen: Observation) -> tuple[Pod, ...]:
    """The pods of the run's training, whatever they do."""
    return tuple(
        pod
        for pod in seen.pods
        if pod.namespace == request.namespace and pod.labels.get(names.LABEL_JOB_NAME) == request.training_job
    )


def is_live(pod: Pod) -> bool:
    """Whether this worker holds, or will hold, a node's resources."""
    return pod.phase in _LIVE


def gang(pods: tuple[Pod, ...]) -> dict[str, str]:
    """The uids of the workers that have not finished, by their names."""
    return {pod.name: pod.uid for pod in pods if is_live(pod)}


def ending(
    request: Request,
    training: Training,
    pods: tuple[Pod, ...],
    before: Mapping[str, str],
    now: float,
    nodes: tuple[Node, ...] = (),
) -> Ending | None:
    """How this training ended without success, or None while it may still come to a good end.

    `pods` are its workers and `before` is what `gang` said of them at the last look, if there was one. `request` has
    the time that this training may take. `nodes` are those of the pool, none where nobody has looked.
    """
    late = _late(request, training, now)
    failed = training.outcome == "Failed"
    if late and failed:
        reason = training.message or f"it took longer than {request.active_deadline_seconds} s"
        return Ending(reason=reason, again=False)
    if late:
        return None  # the operator takes its pods away, and says why a moment later
    if request.shape == names.SHAPE_ELASTIC and not failed:
        return None  # torchrun's agents go on without those that are lost, and with those that the operator makes anew
    ended = sorted((pod for pod in pods if pod.exit is not None and not pod.taken), key=_order)
    taken, gone = _taken(pods, nodes), _gone(training, pods, before)
    if failed and not (taken or gone) and _awaits_cause(pods, now):
        return None
    final = [_exited(pod) for pod in ended if _code(pod) in names.WORKER_FINAL_EXIT_CODES]
    if failed and final:
        return Ending(reason=f"{_listed(final)}, which no restart heals", again=False)
    exited = [_exited(pod) for pod in ended] if failed else []
    reasons = [_listed(told) for told in (taken, exited, gone) if told]
    if reasons:
        return Ending(reason="; ".join(reasons), again=True)
    return Ending(reason=training.message or "the PyTorchJob failed", again=False) if failed else None


def _awaits_cause(pods: tuple[Pod, ...], now: float) -> bool:
    """Return whether all reported failures are consequences, and the end of another worker may soon be reported."""
    exits = [pod.exit for pod in pods if pod.exit is not None and not pod.taken]
    unreported = any(is_live(pod) and not pod.deleting for pod in pods)
    if not exits or not unreported or not all(is_consequence(each.lines) for each in exits):
        return False
    return 0 <= now - min(each.at for each in exits) < CAUSE_SECONDS


def _late(request: Request, training: Training, now: float) -> bool:
    """Whether this training has used up its time, so that the operator ends it."""
    if _OUT_OF_TIME in training.message:
        return True
    longest = request.active_deadline_seconds
    return bool(longest and training.created and now - training.created >= longest - _CLOCKS_APART_SECONDS)


def _taken(pods: tuple[Pod, ...], nodes: tuple[Node, ...]) -> list[str]:
    """The workers that somebody else ended, each with why.

    That a machine is gone stands on its worker's pod a minute or more after the others have missed it.
    """
    ready = {node.name: node.ready for node in nodes}
    found = []
    for pod in pods:
        if pod.phase == "Failed" and pod.taken:
            found.append(f"{_where(pod)} was lost: {pod.taken}")
        elif is_live(pod) and pod.deleting:
            found.append(f"{_where(pod)} is being deleted" + (f": {pod.taken}" if pod.taken else ""))
        elif is_live(pod) and pod.node and nodes and not ready.get(pod.node):
            found.append(
                f"{_where(pod)} was lost: its node {'is not Ready' if pod.node in ready else 'is gone'}"
            )
    return found


def _gone(training: Training, pods: tuple[Pod, ...], before: Mapping[str, str]) -> list[str]:
    """The workers that are not there any more, those that have another in their place among them."""
    here = {pod.name: pod for pod in pods}
    found = [
        f"{_where(pod)} took the place of one that is gone"
        for pod in pods
        if before.get(pod.name, pod.uid) != pod.uid
    ]
    found += [f"worker {name} is gone" for name in before if name not in here]
    missing = training.nodes - len(pods)
    if training.outcome == "Failed" and not found and 0 < missing < training.nodes:
        found.append(f"{missing} of {training.nodes} workers {'is' if missing == 1 else 'are'} gone")
    return found


def _where(pod: Pod) -> str:
    return f"worker {pod.name} on {pod.node}" if pod.node else f"worker {pod.name}"


def _exited(pod: Pod) -> str:
    if pod.exit is None:
        return _where(pod)
    container = (
        "" if pod.exit.container in ("", names.TRAINING_CONTAINER) else f"container {pod.exit.container} of "
    )
    known = _WORDS.get(_code(pod), "") if pod.exit.reason in ("", "Error") else ""
    means = known or meaning(pod.exit.code, pod.exit.reason)
    error = "" if _code(pod) == names.WORKER_EXIT_STOPPED else describe(pod.exit.lines)
    said = f"{container}{_where(pod)} ended with {pod.exit.code}" + (f" ({means})" if means else "")
    return f"{said}: {error}" if error else said


def _code(pod: Pod) -> int:
    """The exit code of the worker's own program; 0 where it was another container that failed."""
    if pod.exit is None or pod.exit.container not in ("", names.TRAINING_CONTAINER):
        return 0
    return pod.exit.code


def _order(pod: Pod) -> tuple[bool, float]:
    """Sort consequences after their causes, because the kubelet reports whole seconds."""
    return (is_consequence(pod.exit.lines), pod.exit.at) if pod.exit is not None else (False, 0.0)


def _listed(told: list[str]) -> str:
    """The first, which the others mostly follow from, and how many those are."""
    return told[0] + (f", and {len(told) - 1} more" if len(told) > 1 else "")
