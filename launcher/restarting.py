"""The part of a run in which a training is taken away, so that the next one can have its name. Pure.

The next PyTorchJob is submitted only when the last one is gone with all of its pods: two gangs of a run never train at
the same time. Until then each node that a worker has left gets a placeholder, so that it is still there for the next
capacity decision; workers and placeholders together are never more than the training had nodes.
"""

from __future__ import annotations

from dataclasses import replace

from launcher import giveback
from launcher import progress as progresses
from launcher.actions import Action, End, Memory, Recount, Report, Retire, Step, placeholders, remove
from launcher.endings import is_live, workers
from launcher.holding import hold
from launcher.observe import Observation, Pod, Training
from launcher.progress import Progress
from launcher.request import Request
from trainyard.k8s import names

# A pod on a machine that is gone leaves the API within two minutes of its Node (kubernetes/kubernetes v1.35,
# pkg/controller/podgc: every 20 s, 40 s after it saw the Node missing). The Node of a machine that does not answer is
# there until somebody sees that there is no machine any more.
LONGEST_SECONDS = 600


def retired(progress: Progress, request: Request, seen: Observation) -> bool:
    """Whether nothing is left of the training that goes."""
    return _old(progress, seen) is None and not workers(request, seen)


def retire(request: Request, memory: Memory, progress: Progress, seen: Observation) -> Step:
    """One step while something is left of the training that goes."""
    candidate, old, left = request.candidate(progress.candidate), _old(progress, seen), workers(request, seen)
    live = sum(map(is_live, left))
    report = Report(
        state=names.STATE_RESTARTING,
        nodes=live,
        of=request.max_nodes,
        claims=0,
        reason=_told(request, progress),
    )
    if retired(progress, request, seen):
        return Step(memory=memory, report=report, actions=(Recount(),))
    if seen.now >= progress.began + LONGEST_SECONDS:
        if not seen.fresh:
            return Step(memory=memory, report=report, actions=(Recount(),))
        reason = f"{_told(request, progress)}; {_stuck(candidate, left)}"
        report = replace(report, state=names.STATE_FAILED, reason=reason)
        end = End(code=names.EXIT_TRAINING_FAILED, reason=reason)
        unneeded = giveback.unneeded(candidate, seen, since=progress.since)
        gone = remove(placeholders(request, seen))
        return Step(memory=memory, report=report, actions=(*gone, *unneeded, end))
    actions: list[Action] = []
    if old is not None and not old.deleting:
        actions.append(Retire(uid=old.uid))
    if old is None:  # its owner is gone without them
        actions += remove(tuple(pod for pod in left if not pod.deleting))
    else:
        actions += hold(candidate, seen, progress, max(0, old.nodes - live))
    return Step(memory=memory, report=report, actions=tuple(actions))


def _old(progress: Progress, seen: Observation) -> Training | None:
    training = seen.training
    return training if training is not None and training.uid == progress.retiring else None


def _told(request: Request, progress: Progress) -> str:
    return f"{progresses.counted(request, progress)}: {progress.why}"


def _stuck(candidate: Request, left: tuple[Pod, ...]) -> str:
    """What is in the way of the next training, and what a person can do."""
    pods = ", ".join(f"{pod.name} on {pod.node or 'no node'}" for pod in left[:3])
    return (
        f"PyTorchJob {candidate.training_job} or its pods are not gone after {LONGEST_SECONDS} s"
        f" ({pods or 'no pod is left'}); delete the node that does not answer"
    )
