"""The part of a run in which it waits for nodes: candidate after candidate, attempt after attempt. Pure."""

from __future__ import annotations

from dataclasses import replace

from launcher import giveback, starts
from launcher import progress as progresses
from launcher.actions import (
    Action,
    End,
    GiveBack,
    Memory,
    Recount,
    Report,
    Start,
    Step,
    placeholders,
    remove,
)
from launcher.capacity import Count, GiveUp, Submit, Wait, count, decide, target
from launcher.holding import hold, is_of_this_wait
from launcher.manifests import stamp
from launcher.observe import Observation, Pod
from launcher.progress import Failure, Progress
from launcher.reasons import shortfall
from launcher.request import Request
from trainyard.k8s import names


def wait(request: Request, memory: Memory, progress: Progress, seen: Observation, jitter: float) -> Step:
    """One step of a wait. `seen` is of the pool of the candidate that `progress` names."""
    candidate, started = progresses.asked(request, progress), progress.began
    counted = count(candidate, seen)
    progress = replace(progress, idle_node_seconds=progress.idle_node_seconds + _idle(memory, seen))
    memory = replace(
        memory,
        progress=progress,
        seen_at=seen.now,
        idle=min(len(counted.usable), request.max_nodes),
        ordered=starts.orders(seen.claims, seen.now, started),
        complete=giveback.complete_at(candidate, seen, memory.complete),
    )
    decision = decide(candidate, seen, counted, started=started, quorum_since=memory.quorum_since)
    missing = shortfall(candidate, seen, counted, started)
    report = Report(
        state=names.STATE_WAITING,
        nodes=len(counted.usable),
        of=request.max_nodes,
        claims=sum(not claim.deleting for claim in seen.claims),
        reason=_placed(request, progress) + _joined(missing, giveback.told(progress.given_back)),
    )
    step = Step(memory=memory, report=report, actions=())
    match decision:
        case Wait(since=since):
            state = names.STATE_WAITING if since is None else names.STATE_HOLDING
            memory, report = replace(memory, quorum_since=since), replace(report, state=state)
            return _hold_out(candidate, Step(memory=memory, report=report, actions=()), progress, seen)
        case Submit(nodes=nodes) if not seen.fresh:
            # What is too much goes before the fresh lists are read, so that one reading of them is enough.
            return replace(
                step, actions=(*remove(_surplus(candidate, step, counted, nodes, seen)), Recount())
            )
        # A list from a cache may be of before the stack's last change, a pool without its limit, or none.
        case GiveUp() if not seen.fresh:
            return replace(step, actions=(Recount(),))
        case Submit() as submit:
            placed = replace(submit, reason=_placed(request, progress) + submit.reason)
            return _submit(candidate, step, counted, placed, seen)
        case GiveUp(code=code, reason=reason):
            if code == names.EXIT_BELOW_MINIMUM:
                # One of several failures is told shortly.
                parts = {"most": 1} if request.candidates > 1 else {}
                reason = f"{reason}: {shortfall(candidate, seen, counted, started, **parts)}"
            failure = Failure(pool=candidate.pool.name, code=code, reason=reason)
            return _fail(request, step, progress, failure, seen, jitter)


def pause(request: Request, memory: Memory, progress: Progress, seen: Observation) -> Step:
    """One step between two attempts: nothing is held, so that machines that stand idle go."""
    held = placeholders(request, seen)
    claims = sum(not claim.deleting for claim in seen.claims)
    report = Report(
        state=names.STATE_PAUSING,
        nodes=0,
        of=request.max_nodes,
        claims=claims,
        reason=_paused(request, progress),
    )
    return Step(memory=memory, report=report, actions=remove(held))


def due(request: Request, memory: Memory, now: float) -> float | None:
    """The next moment at which the clock alone decides: the end of a hold window, of a wait or of a pause.

    Seconds since the epoch; None where nothing of that lies ahead.
    """
    progress = memory.progress
    if progress is None:
        return None
    candidate = request.candidate(progress.candidate)
    moments = [progress.began + candidate.deadline_seconds]
    if progress.resumes is not None:
        moments = [progress.resumes]
    elif memory.quorum_since is not None:
        moments.append(memory.quorum_since + candidate.hold_seconds)
    return min((moment for moment in moments if moment > now), default=None)


def _idle(memory: Memory, seen: Observation) -> float:
    """The node-seconds since the last observation: as many as usable nodes stood there then, for all that time."""
    return 0.0 if memory.seen_at is None else memory.idle * max(0.0, seen.now - memory.seen_at)


def _hold_out(candidate: Request, step: Step, progress: Progress, seen: Observation) -> Step:
    """Keeps the placeholders, and gives back the machines that never became of use."""
    # What machines did while there was a training is not known: after that each has its time once more.
    heard = progress.began if progress.trainings else progress.since
    late = giveback.overdue(candidate, seen, since=progress.since, heard=heard, complete=step.memory.complete)
    if late and not seen.fresh:
        return replace(step, actions=(Recount(),))
    known = {loss.uid for loss in progress.given_back}
    new = tuple(giveback.loss(one) for one in late if one.claim.uid not in known)
    progress = replace(progress, given_back=(*progress.given_back, *new))
    back: list[Action] = []
    for one in late:
        back += [GiveBack(claim=one.claim.name, uid=one.claim.uid, reason=giveback.loss(one).told)]
        back += remove(one.held_by)
    actions = (*back, *hold(candidate, seen, progress, target(candidate, seen)))
    return replace(step, memory=replace(step.memory, progress=progress), actions=actions)


def _submit(request: Request, step: Step, counted: Count, submit: Submit, seen: Observation) -> Step:
    nodes, reason = submit.nodes, submit.reason
    step = replace(
        step, report=replace(step.report, state=names.STATE_SUBMITTING, nodes=nodes, reason=reason)
    )
    surplus = _surplus(request, step, counted, nodes, seen)
    # Events are not trusted, so no NodeClaim is deleted because of one.
    unneeded = () if submit.by_events else _unneeded(request, step, seen)
    if surplus or unneeded:
        # They go first, so that Karpenter buys nothing more; then the count has to hold without them.
        return replace(step, actions=(*remove(surplus), *unneeded, Recount()))
    return replace(step, actions=(Start(nodes=nodes, reason=reason),))


def _unneeded(candidate: Request, step: Step, seen: Observation) -> tuple[GiveBack, ...]:
    """The machines on their way that are given back, now that the wait is over."""
    progress = step.memory.progress
    return () if progress is None else giveback.unneeded(candidate, seen, since=progress.since)


def _surplus(request: Request, step: Step, counted: Count, nodes: int, seen: Observation) -> tuple[Pod, ...]:
    """Placeholders that hold none of the nodes the training will run on, or are of another wait."""
    held, progress = placeholders(request, seen), step.memory.progress
    usable = frozenset(counted.usable)
    on_counted = [
        pod for pod in held if pod.node in usable and progress is not None and is_of_this_wait(pod, progress)
    ]
    kept = {pod.uid for pod in on_counted[:nodes]}
    return tuple(pod for pod in held if pod.uid not in kept)


def _fail(
    request: Request, step: Step, progress: Progress, failure: Failure, seen: Observation, jitter: float
) -> Step:
    """A candidate can't give MIN nodes: the next one, a pause, or the end. Its placeholders go in each case.

    So do its machines that are on their way. That comes first: the next launcher looks at another pool, if this one is
    killed once the next candidate is noted.
    """
    gone = remove(placeholders(request, seen))
    unneeded = _unneeded(request.candidate(progress.candidate), step, seen)
    if unneeded:
        return replace(step, actions=(*gone, *unneeded, Recount()) if seen.fresh else (Recount(),))
    after = progresses.failed(progress, request, failure, seen.now, jitter)
    if after is None:
        failures = (*progress.failures, failure)
        code = names.EXIT_IMPOSSIBLE if progresses.hopeless(failures) else names.EXIT_BELOW_MINIMUM
        reason = _failures(request, replace(progress, failures=failures), progress.attempt)
        report = replace(step.report, state=names.STATE_FAILED, reason=reason)
        return replace(step, report=report, actions=(*gone, End(code=code, reason=reason)))
    # What is remembered of this candidate's machines says nothing of the next one's.
    memory = Memory(progress=after)
    if after.resumes is not None:
        report = replace(step.report, state=names.STATE_PAUSING, reason=_paused(request, after))
        return Step(memory=memory, report=report, actions=gone)
    following = request.candidate(after.candidate).pool.name
    reason = f"{_placed(request, progress)}{failure.reason}; pool {following} is tried next"
    return Step(memory=memory, report=replace(step.report, reason=reason), actions=gone)


def _placed(request: Request, progress: Progress) -> str:
    """Which restart, attempt and pool a reason is about, where there are several."""
    attempt = f"attempt {progress.attempt} of {request.attempts}" if request.attempts > 1 else ""
    pool = f"pool {request.candidate(progress.candidate).pool.name}" if request.candidates > 1 else ""
    where = ", ".join(part for part in (progresses.counted(request, progress), attempt, pool) if part)
    return f"{where}: " if where else ""


def _paused(request: Request, progress: Progress) -> str:
    failures = _failures(request, progress, progress.attempt - 1)
    return f"{failures}; the next begins at {stamp(progress.resumes or 0.0)}"


def _failures(request: Request, progress: Progress, attempts: int) -> str:
    """Why an attempt failed, each candidate's reason in turn, and what it cost."""
    reasons = [
        f"pool {failure.pool}: {failure.reason}" if request.candidates > 1 else failure.reason
        for failure in progress.failures
    ]
    tried = f"after {attempts} of {request.attempts} attempts: " if request.attempts > 1 else ""
    hopeless = progresses.hopeless(progress.failures)
    idle = "" if hopeless else f"{progress.idle_node_seconds:.0f} node-seconds stood idle"
    again = progresses.counted(request, progress)
    lost = f"{again}, because {progress.why}: " if again else ""
    return lost + tried + _joined(*reasons, idle, giveback.told(progress.given_back))


def _joined(*parts: str) -> str:
    return "; ".join(part for part in parts if part)
