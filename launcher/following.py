"""The part of a run in which its training exists. Pure."""

from __future__ import annotations

from dataclasses import replace

from launcher import block, giveback, starts
from launcher import progress as progresses
from launcher.actions import Action, End, Memory, Recount, Report, Step, placeholders, remove
from launcher.endings import Ending, ending, gang, workers
from launcher.observe import Observation, Pod, Training
from launcher.progress import Progress
from launcher.request import Request
from launcher.restarting import retire
from trainyard.k8s import names

# The training operator makes a job's pods within a second or two, or it does not run.
UNRECONCILED_SECONDS = 60


def follow(request: Request, memory: Memory, seen: Observation) -> Step:
    """One step of a run whose training exists, or did at the last step."""
    training, held = seen.training, placeholders(request, seen)
    claims = sum(not claim.deleting for claim in seen.claims)
    report = Report(state=names.STATE_FAILED, nodes=0, of=request.max_nodes, claims=claims, reason="")

    def end(state: str, code: int, reason: str, also: tuple[Action, ...] = ()) -> Step:
        actions: tuple[Action, ...] = (*remove(held), *also, End(code=code, reason=reason))
        return Step(memory=memory, report=replace(report, state=state, reason=reason), actions=actions)

    if training is None:
        return end(
            names.STATE_FAILED, names.EXIT_TRAINING_FAILED, f"PyTorchJob {request.training_job} was deleted"
        )
    if not training.ours:
        return end(
            names.STATE_FAILED,
            names.EXIT_IMPOSSIBLE,
            f"a PyTorchJob {request.training_job} that no launcher made is in the way; choose another run id",
        )
    if memory.training_uid and training.uid != memory.training_uid:
        return end(
            names.STATE_FAILED, names.EXIT_TRAINING_FAILED, f"PyTorchJob {request.training_job} was replaced"
        )
    progress = progresses.adopted(memory.progress, training, seen.now)
    candidate = progresses.asked(request, progress)
    pods = workers(request, seen)
    report = replace(report, state=names.STATE_FOLLOWING, nodes=training.nodes, of=training.nodes)
    if training.outcome == "Succeeded":
        nodes = f"{training.nodes} node{'' if training.nodes == 1 else 's'}"
        again = progresses.counted(request, progress)
        reason = f"trained on {nodes}" + (f" ({again})" if again else "")
        return end(names.STATE_SUCCEEDED, names.EXIT_SUCCEEDED, reason)
    if training.deleting:
        reason = f"PyTorchJob {request.training_job} is being deleted"
        return Step(memory=memory, report=replace(report, reason=reason), actions=())
    if training.suspended and not training.outcome:
        return _suspended(request, memory, progress, report, training, seen)
    if progress.suspended and not training.outcome:
        if not seen.fresh:
            return Step(memory=memory, report=report, actions=(Recount(),))
        after = progresses.retired(progress, training, "it was resumed", seen.now, counted=False)
        return retire(request, Memory(progress=after), after, seen)
    # A node that is not Ready for a moment has not lost its worker, unless the others have missed it.
    known = seen.nodes if training.outcome == "Failed" else ()
    ended = ending(candidate, training, pods, memory.gang, seen.now, known)
    # What the watches say of the pods may be older than what they say of the job.
    if ended is not None and not seen.fresh:
        return Step(memory=memory, report=report, actions=(Recount(),))
    if ended is not None and ended.again and progress.restarts < request.max_restarts:
        after = progresses.retired(progress, training, ended.reason, seen.now, counted=True)
        return retire(request, Memory(progress=after), after, seen)
    if ended is not None:
        left = tuple(pod for pod in pods if pod.phase in ("Pending", "Running") and not pod.deleting)
        # Those that came for a worker's second pod, perhaps.
        unneeded = giveback.unneeded(candidate, seen, since=progress.since)
        also: tuple[Action, ...] = (*remove(left), *unneeded)
        return end(names.STATE_FAILED, names.EXIT_TRAINING_FAILED, _last(request, progress, ended), also)
    memory = replace(memory, progress=progress, training_uid=training.uid, gang=gang(pods))
    placed = sum(bool(pod.node) for pod in pods)
    following = replace(report, reason=_told(candidate, memory, seen, training, pods))
    # Until every worker has its node, the placeholders that are left hold those nodes.
    actions = remove(held) if placed >= training.nodes else ()
    return Step(memory=memory, report=following, actions=actions)


def _suspended(
    request: Request,
    memory: Memory,
    progress: Progress,
    report: Report,
    training: Training,
    seen: Observation,
) -> Step:
    """One step while somebody wants the training to have no pods. Nothing is held, and no time to train is used up."""
    progress = progresses.suspended(progress, training, seen.now)
    memory = replace(memory, progress=progress, training_uid=training.uid, gang={})
    reason = (
        f"PyTorchJob {request.training_job} is suspended; it goes on when spec.runPolicy.suspend is false"
    )
    report = replace(report, state=names.STATE_SUSPENDED, nodes=0, reason=reason)
    return Step(memory=memory, report=report, actions=remove(placeholders(request, seen)))


def _last(request: Request, progress: Progress, ended: Ending) -> str:
    """Why the run is over, and that its restarts are used up where that is the reason."""
    if not progress.restarts:
        return ended.reason
    before = f", the last one because {progress.why}" if progress.why else ""
    return f"{ended.reason}; after {progresses.counted(request, progress)}{before}"


def _told(
    request: Request, memory: Memory, seen: Observation, training: Training, pods: tuple[Pod, ...]
) -> str:
    """What there is to say of a training that goes on."""
    running = sum(pod.phase == "Running" for pod in pods)
    finished = sum(pod.phase == "Succeeded" for pod in pods)
    parts = (
        _unreconciled(training, pods, seen.now) or _at_work(running, finished, training.nodes),
        starts.told(pods, memory.ordered) if running == training.nodes else "",
        starts.held(pods, seen.now),
        progresses.counted(request, memory.progress) if memory.progress else "",
        block.notice(request, seen.now),
    )
    return "; ".join(part for part in parts if part)


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
