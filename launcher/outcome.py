"""Find out why a training job failed, and whether a restart may help. Pure.

A static world can't lose a worker, because the others wait for it in their collectives. The training operator replaces
a lost pod (github.com/kubeflow/training-operator v1.9.4, ReconcilePods in pkg/controller.v1/common/pod.go), but the new
one can't join them. So one lost worker ends the job, before its status says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from launcher import backends
from launcher.backends.backend import Backend
from launcher.errors import describe, is_consequence, meaning
from launcher.observe import Node, Observation, Pod, Training
from launcher.request import Request
from trainyard.k8s import names

# The operator counts from its first reconcile of the job, by its own clock.
_CLOCKS_APART_SECONDS = 10.0
_EXIT_MEANINGS = {names.WORKER_EXIT_STOPPED: "it was asked to stop", names.WORKER_EXIT_HUNG: "it hung"}
_LIVE = frozenset({"Pending", "Running"})
# A failure may be reported later than its consequences (trainyard/operator/failures.py).
CAUSE_SECONDS = 6.0


@dataclass(frozen=True, kw_only=True)
class JobFailure:
    """The failure of a training job. `is_retryable` is whether a restart may help."""

    reason: str
    is_retryable: bool


def workers(request: Request, seen: Observation) -> tuple[Pod, ...]:
    """Return the pods of the run's training job, finished ones among them."""
    return tuple(
        pod
        for pod in seen.pods
        if pod.namespace == request.namespace and pod.labels.get(names.LABEL_JOB_NAME) == request.training_job
    )


def is_live(pod: Pod) -> bool:
    """Return whether this worker uses, or will use, resources of a node."""
    return pod.phase in _LIVE


def gang(pods: tuple[Pod, ...]) -> dict[str, str]:
    """Return the uids of the workers that have not finished, by name."""
    return {pod.name: pod.uid for pod in pods if is_live(pod)}


def job_failure(
    request: Request,
    training: Training,
    pods: tuple[Pod, ...],
    before: Mapping[str, str],
    now: float,
    nodes: tuple[Node, ...] = (),
) -> JobFailure | None:
    """Return the failure of this training job; None while it may still succeed.

    Args:
        request: The request with the rest of `activeDeadlineSeconds`.
        pods: The workers of the job.
        before: The result of `gang` at the last observation, if there was one.
        nodes: The nodes of the pool; empty if they were not read.
    """
    backend, late = backends.of(request), _late(request, training, now)
    failed = training.outcome == "Failed"
    if late and failed:
        reason = training.message or f"it took longer than {request.active_deadline_seconds} s"
        return JobFailure(reason=reason, is_retryable=False)
    if late:
        return None  # the operator deletes the pods, and sets the condition a moment later
    if request.shape == names.SHAPE_ELASTIC and not failed:
        # torchrun's agents continue without lost workers, and with those that the operator creates.
        return None
    ended = sorted((pod for pod in pods if pod.exit is not None and not pod.disruption), key=_order)
    taken, gone = _taken(pods, nodes), _gone(training, pods, before)
    if failed and not (taken or gone) and _awaits_cause(pods, now):
        return None
    final = [_exited(backend, pod) for pod in ended if _code(backend, pod) in names.WORKER_FINAL_EXIT_CODES]
    if failed and final:
        return JobFailure(reason=f"{_listed(final)}; a restart does not help", is_retryable=False)
    exited = [_exited(backend, pod) for pod in ended] if failed else []
    reasons = [_listed(each) for each in (taken, exited, gone) if each]
    if reasons:
        return JobFailure(reason="; ".join(reasons), is_retryable=True)
    if not failed:
        return None
    return JobFailure(reason=training.message or f"the {backend.kind} failed", is_retryable=False)


def _awaits_cause(pods: tuple[Pod, ...], now: float) -> bool:
    """Return whether all reported failures are consequences, and a cause may still be reported soon."""
    exits = [pod.exit for pod in pods if pod.exit is not None and not pod.disruption]
    unreported = any(is_live(pod) and not pod.deleting for pod in pods)
    if not exits or not unreported or not all(is_consequence(each.lines) for each in exits):
        return False
    return 0 <= now - min(each.at for each in exits) < CAUSE_SECONDS


def _late(request: Request, training: Training, now: float) -> bool:
    """Return whether the job has exceeded its activeDeadlineSeconds. Then the operator ends it."""
    if backends.of(request).deadline_message in training.message:
        return True
    longest = request.active_deadline_seconds
    return bool(longest and training.created and now - training.created >= longest - _CLOCKS_APART_SECONDS)


def _taken(pods: tuple[Pod, ...], nodes: tuple[Node, ...]) -> list[str]:
    """Return the workers that something else than their program ended, each with the reason.

    After the loss of a node, the pod of its worker shows it a minute or more after the other workers have failed.
    """
    ready = {node.name: node.ready for node in nodes}
    found = []
    for pod in pods:
        if pod.phase == "Failed" and pod.disruption:
            found.append(f"{_where(pod)} was lost: {pod.disruption}")
        elif is_live(pod) and pod.deleting:
            why = f": {pod.disruption}" if pod.disruption else ""
            found.append(f"{_where(pod)} is being deleted{why}")
        elif is_live(pod) and pod.node and nodes and not ready.get(pod.node):
            state = "is not Ready" if pod.node in ready else "is gone"
            found.append(f"{_where(pod)} was lost: its node {state}")
    return found


def _gone(training: Training, pods: tuple[Pod, ...], before: Mapping[str, str]) -> list[str]:
    """Return the workers that are gone or that another pod has replaced."""
    here = {pod.name: pod for pod in pods}
    found = [
        f"{_where(pod)} replaced a pod that is gone"
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


def _exited(backend: Backend, pod: Pod) -> str:
    if pod.exit is None:
        return _where(pod)
    container = "" if pod.exit.container in ("", backend.container) else f"container {pod.exit.container} of "
    known = _EXIT_MEANINGS.get(_code(backend, pod), "") if pod.exit.reason in ("", "Error") else ""
    means = known or meaning(pod.exit.code, pod.exit.reason)
    error = "" if _code(backend, pod) == names.WORKER_EXIT_STOPPED else describe(pod.exit.lines)
    text = f"{container}{_where(pod)} ended with {pod.exit.code}" + (f" ({means})" if means else "")
    return f"{text}: {error}" if error else text


def _code(backend: Backend, pod: Pod) -> int:
    """Return the exit code of the training container; 0 if another container failed."""
    if pod.exit is None or pod.exit.container not in ("", backend.container):
        return 0
    return pod.exit.code


def _order(pod: Pod) -> tuple[bool, float]:
    """Return the sort key that puts consequences after causes, because the kubelet reports whole seconds."""
    return (is_consequence(pod.exit.lines), pod.exit.at) if pod.exit is not None else (False, 0.0)


def _listed(messages: list[str]) -> str:
    """Return the first message, which is usually the cause of the others, and the count of the others."""
    return messages[0] + (f", and {len(messages) - 1} more" if len(messages) > 1 else "")
