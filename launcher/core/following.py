"""The part of a run in which its training exists. Pure."""

from __future__ import annotations

from dataclasses import replace

from launcher.core import block, starts
from launcher.core import contract as c
from launcher.core.actions import Action, End, Memory, Report, Step, placeholders, remove
from launcher.core.observe import Observation, Pod, Training
from launcher.core.request import Request

# The training operator makes a job's pods within a second or two, or it does not run.
UNRECONCILED_SECONDS = 60


def follow(request: Request, memory: Memory, seen: Observation) -> Step:
    """One step of a run whose training exists, or did at the last step."""
    training, held = seen.training, placeholders(request, seen)
    claims = sum(not claim.deleting for claim in seen.claims)
    report = Report(state=c.STATE_FAILED, nodes=0, of=request.max_nodes, claims=claims, reason="")

    def end(state: str, code: int, reason: str, also: tuple[Pod, ...] = ()) -> Step:
        actions: tuple[Action, ...] = (*remove(held), *remove(also), End(code=code, reason=reason))
        return Step(memory=memory, report=replace(report, state=state, reason=reason), actions=actions)

    if training is None:
        return end(c.STATE_FAILED, c.EXIT_TRAINING_FAILED, f"PyTorchJob {request.training_job} was deleted")
    if not training.ours:
        return end(
            c.STATE_FAILED,
            c.EXIT_IMPOSSIBLE,
            f"a PyTorchJob {request.training_job} that no launcher made is in the way; choose another run id",
        )
    if memory.training_uid and training.uid != memory.training_uid:
        return end(c.STATE_FAILED, c.EXIT_TRAINING_FAILED, f"PyTorchJob {request.training_job} was replaced")
    memory = replace(memory, training_uid=training.uid)
    workers = tuple(
        pod
        for pod in seen.pods
        if pod.namespace == request.namespace and pod.labels.get(c.LABEL_JOB_NAME) == request.training_job
    )
    running = sum(pod.phase == "Running" for pod in workers)
    finished = sum(pod.phase == "Succeeded" for pod in workers)
    report = replace(report, nodes=training.nodes, of=training.nodes)
    if training.outcome == "Succeeded":
        nodes = f"{training.nodes} node{'' if training.nodes == 1 else 's'}"
        return end(c.STATE_SUCCEEDED, c.EXIT_SUCCEEDED, f"trained on {nodes}")
    if training.outcome == "Failed":
        left = tuple(pod for pod in workers if pod.phase in ("Pending", "Running") and not pod.deleting)
        return end(c.STATE_FAILED, c.EXIT_TRAINING_FAILED, training.message or "the PyTorchJob failed", left)
    placed = sum(bool(pod.node) for pod in workers)
    started = starts.told(workers, memory.ordered) if running == training.nodes else ""
    parts = (
        _unreconciled(training, workers, seen.now) or _at_work(running, finished, training.nodes),
        started,
        block.notice(request, seen.now),
    )
    following = replace(report, state=c.STATE_FOLLOWING, reason="; ".join(part for part in parts if part))
    # Until every worker has its node, the placeholders that are left hold those nodes.
    actions: tuple[Action, ...] = remove(held) if placed >= training.nodes else ()
    return Step(memory=memory, report=following, actions=actions)


def _at_work(running: int, finished: int, nodes: int) -> str:
    """What the workers do; the PyTorchJob says that it is over a moment after its last worker has ended."""
    if finished >= nodes:
        return f"{finished} of {nodes} workers finished"
    return f"{running} of {nodes} workers running" + (f", {finished} finished" if finished else "")


def _unreconciled(training: Training, workers: tuple[Pod, ...], now: float) -> str:
    """That nobody makes the pods of this training; empty where there are some, or not yet."""
    if workers or not training.created or now - training.created < UNRECONCILED_SECONDS:
        return ""
    return f"submitted, and the training operator has not made its pods for {UNRECONCILED_SECONDS} s"
