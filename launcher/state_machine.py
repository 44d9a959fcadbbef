"""The launcher's state machine. `step` gets the observation and the memory, and returns actions. Pure.

A run waits for nodes (`wait`, `pause`), starts a training job, follows it (`follow`), and removes it before a restart
(`retire`).

The cluster has all state that the next launcher needs after a crash: the progress in the run's Lease, written before
the actions of a step; the placeholders, labelled with their wait; and the training job with its deterministic name. A
restart is counted in the Lease before the failed job is changed.

The next training job is submitted only when the last one (by its uid) and all of its pods are gone, so two gangs of a
run never train at the same time. Until then, each node that a worker has left gets a placeholder, so that the node
still exists at the next capacity decision. There are never more workers and placeholders than the job had nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from launcher import backends, block, node_release
from launcher.actions import (
    Action,
    CreatePlaceholder,
    End,
    Memory,
    Recount,
    ReleaseNode,
    Report,
    Retire,
    Start,
    Step,
    remove,
)
from launcher.capacity import (
    Count,
    GiveUp,
    Submit,
    Wait,
    count,
    decide,
    is_placeholder,
    placeholders,
    shortfall,
    target,
)
from launcher.manifests import stamp
from launcher.observe import PATIENCE_SECONDS, Claim, Observation, Pod, Training
from launcher.outcome import JobFailure, gang, is_live, job_failure, workers
from launcher.progress import Failure, Loss, Progress, initial_progress, is_impossible
from launcher.request import NodeRequest, Request, count_of
from trainyard.k8s import names

# A running operator creates a job's pods within a second or two.
UNRECONCILED_SECONDS = 60
# A pod on a node that is gone leaves the API within two minutes of its Node (kubernetes/kubernetes v1.35,
# pkg/controller/podgc: every 20 s, 40 s after it saw the Node missing). The Node of an instance that does not answer
# exists until somebody notices that the instance is gone.
RETIRE_TIMEOUT_SECONDS = 600
# Kubernetes stores creation times in whole seconds, rounded down.
_ROUNDING_SECONDS = 1.0


def step(request: Request, memory: Memory, seen: Observation, jitter: float = 0.0) -> Step:
    """Decide one step of the run.

    Args:
        memory: The memory of the last step.
        seen: The observation, with the pool of `memory.candidate_index`.
        jitter: A random number from 0 to below 1.
    """
    progress = initial_progress(seen.now)
    if memory.progress is not None:
        progress = memory.progress.limit_to_now(request, seen.now)
        memory = replace(memory, progress=progress)
    if progress.retiring:
        if not seen.fresh or not retired(progress, request, seen):
            return retire(request, progress, seen)
        progress = progress.finish_retirement(seen.now)
        memory = Memory(progress=progress)
    if seen.training is not None or progress.training_uid:
        return follow(request, memory, progress, seen)
    if progress.pause_until is not None:
        if seen.now < progress.pause_until:
            return pause(request, progress, seen)
        progress = progress.end_pause(seen.now)
    return wait(request, memory, progress, seen, jitter)


def due(request: Request, memory: Memory, now: float) -> float | None:
    """Return the next end of a hold window, a wait or a pause, in seconds since the epoch.

    Return None if there is none in the future.
    """
    progress = memory.progress
    if progress is None:
        return None
    candidate = request.candidate(progress.candidate)
    moments = [progress.began + candidate.deadline_seconds]
    if progress.pause_until is not None:
        moments = [progress.pause_until]
    elif memory.quorum_since is not None:
        moments.append(memory.quorum_since + candidate.hold_seconds)
    return min((moment for moment in moments if moment > now), default=None)


def stop(request: Request, memory: Memory, seen: Observation) -> tuple[Action, ...]:
    """Return the actions when a signal ends the launcher. A training job continues, and keeps its nodes.

    Args:
        seen: An observation from fresh lists.
    """
    gone: tuple[Action, ...] = remove(placeholders(request, seen))
    if seen.training is None and memory.progress is not None:
        candidate = request.candidate(memory.candidate_index)
        gone = (*gone, *node_release.unneeded(candidate, seen, since=memory.progress.since))
    return (*gone, End(code=names.EXIT_STOPPED, reason="stopped by a signal"))


def wait(request: Request, memory: Memory, progress: Progress, seen: Observation, jitter: float) -> Step:
    """Wait for nodes, and decide whether to submit or to give up the candidate."""
    candidate, began = progress.remaining_request(request), progress.began
    counted = count(candidate, seen)
    waited = 0.0 if memory.seen_at is None else max(0.0, seen.now - memory.seen_at)
    progress = replace(progress, idle_node_seconds=progress.idle_node_seconds + memory.idle * waited)
    memory = replace(
        memory,
        progress=progress,
        seen_at=seen.now,
        idle=min(len(counted.usable), request.max_nodes),
        ordered=orders(seen.claims, began),
        complete=node_release.complete_at(candidate, seen, memory.complete),
    )
    decision = decide(candidate, seen, counted, began=began, quorum_since=memory.quorum_since)
    missing = shortfall(candidate, seen, counted, began)
    reason = _placed(request, progress) + _joined(missing, node_release.describe(progress.released))
    report = _make_report(names.STATE_WAITING, request, seen, reason, len(counted.usable))
    step = Step(memory=memory, report=report, actions=())
    match decision:
        case Wait(quorum_since=quorum_since):
            state = names.STATE_WAITING if quorum_since is None else names.STATE_HOLDING
            memory = replace(memory, quorum_since=quorum_since)
            return _hold(
                candidate, replace(step, memory=memory, report=replace(report, state=state)), progress, seen
            )
        case Submit(nodes=nodes, reason=reason, by_events=by_events):
            surplus = remove(_surplus(candidate, progress, counted, nodes, seen))
            if not seen.fresh:
                # Delete surplus placeholders before the fresh lists are read, so that one read is enough.
                return replace(step, actions=(*surplus, Recount()))
            reason = _placed(request, progress) + reason
            report = replace(report, state=names.STATE_SUBMITTING, nodes=nodes, reason=reason)
            # Events are not trusted, so no NodeClaim is deleted because of one.
            unneeded = () if by_events else node_release.unneeded(candidate, seen, since=progress.since)
            if surplus or unneeded:
                # Delete these first, so that Karpenter launches no more nodes. Then count the nodes again.
                return replace(step, report=report, actions=(*surplus, *unneeded, Recount()))
            return replace(step, report=report, actions=(Start(nodes=nodes, reason=reason),))
        case GiveUp(code=code, reason=reason):
            if not seen.fresh:
                # A cached list may be older than the last change of the stack: a NodePool without its limit, or none.
                return replace(step, actions=(Recount(),))
            if code == names.EXIT_BELOW_MINIMUM:
                # One of several failures gets a short message.
                parts = {"maximum": 1} if request.candidate_count > 1 else {}
                reason = f"{reason}: {shortfall(candidate, seen, counted, began, **parts)}"
            failure = Failure(pool=candidate.pool.name, code=code, reason=reason)
            return _fail(request, step, progress, failure, seen, jitter)


def _hold(candidate: Request, step: Step, progress: Progress, seen: Observation) -> Step:
    """Create and keep the placeholders, and release the nodes that take too long."""
    # While a job runs, nodes are not watched. After that, the time of each node starts again.
    watched_since = progress.began if progress.total_restarts else progress.since
    late = node_release.overdue(
        candidate, seen, since=progress.since, watched_since=watched_since, complete=step.memory.complete
    )
    if late and not seen.fresh:
        return replace(step, actions=(Recount(),))
    known = {loss.uid for loss in progress.released}
    new = tuple(
        Loss(uid=each.uid, message=each.reason)
        for each in late
        if isinstance(each, ReleaseNode) and each.uid not in known
    )
    progress = replace(progress, released=(*progress.released, *new))
    actions = (*late, *hold_nodes(candidate, seen, progress, target(candidate, seen)))
    return replace(step, memory=replace(step.memory, progress=progress), actions=actions)


def hold_nodes(
    candidate: NodeRequest, seen: Observation, progress: Progress, number: int
) -> tuple[Action, ...]:
    """Return the actions for this number of placeholders, one per node: create missing ones, delete all others."""
    wanted = {candidate.placeholder_name(index): index for index in range(number)}
    bad = tuple(
        pod
        for pod in placeholders(candidate, seen)
        if pod.name not in wanted or pod.finished or not is_of_this_wait(pod, progress)
    )
    # The name of a placeholder that is being deleted can't be used yet.
    present = {pod.name for pod in seen.pods if is_placeholder(pod, candidate)}
    missing = (
        CreatePlaceholder(index=index, wait=progress.label)
        for name, index in wanted.items()
        if name not in present
    )
    return (*remove(bad), *missing)


def is_of_this_wait(pod: Pod, progress: Progress) -> bool:
    """Return whether this placeholder belongs to the present wait."""
    return pod.labels.get(names.LABEL_ATTEMPT) == progress.label


def _surplus(
    request: Request, progress: Progress, counted: Count, nodes: int, seen: Observation
) -> tuple[Pod, ...]:
    """Return the placeholders of another wait, and those that are not on the job's nodes."""
    placeholders_now, usable = placeholders(request, seen), frozenset(counted.usable)
    on_counted = [pod for pod in placeholders_now if pod.node in usable and is_of_this_wait(pod, progress)]
    kept = {pod.uid for pod in on_counted[:nodes]}
    return tuple(pod for pod in placeholders_now if pod.uid not in kept)


def _fail(
    request: Request, step: Step, progress: Progress, failure: Failure, seen: Observation, jitter: float
) -> Step:
    """Continue after a candidate with fewer than MIN nodes: with the next one, a pause, or the end.

    Delete its placeholders, and its NodeClaims whose nodes are not ready. NodeClaims are deleted first: when the next
    candidate is in the Lease, a new launcher reads another pool.
    """
    gone = remove(placeholders(request, seen))
    candidate = request.candidate(progress.candidate)
    unneeded = node_release.unneeded(candidate, seen, since=progress.since)
    if unneeded:
        return replace(step, actions=(*gone, *unneeded, Recount()))
    after = progress.fail(request, failure, seen.now, jitter)
    if after is None:
        failures = (*progress.failures, failure)
        code = names.EXIT_IMPOSSIBLE if is_impossible(failures) else names.EXIT_BELOW_MINIMUM
        reason = _failures(request, replace(progress, failures=failures), progress.attempt)
        report = replace(step.report, state=names.STATE_FAILED, reason=reason)
        return replace(step, report=report, actions=(*gone, End(code=code, reason=reason)))
    # The memory of this candidate's nodes does not apply to the next one.
    memory = Memory(progress=after)
    if after.pause_until is not None:
        report = replace(step.report, state=names.STATE_PAUSING, reason=_paused(request, after))
        return Step(memory=memory, report=report, actions=gone)
    following = request.candidate(after.candidate).pool.name
    reason = f"{_placed(request, progress)}{failure.reason}; pool {following} is tried next"
    return Step(memory=memory, report=replace(step.report, reason=reason), actions=gone)


def pause(request: Request, progress: Progress, seen: Observation) -> Step:
    """Pause between two attempts without placeholders, so that Karpenter removes idle nodes."""
    report = _make_report(names.STATE_PAUSING, request, seen, _paused(request, progress))
    return Step(memory=Memory(progress=progress), report=report, actions=remove(placeholders(request, seen)))


def _placed(request: Request, progress: Progress) -> str:
    """Return the prefix of a reason: restart, attempt and pool, each only if there are several."""
    attempt = f"attempt {progress.attempt} of {request.attempts}" if request.attempts > 1 else ""
    pool = f"pool {request.candidate(progress.candidate).pool.name}" if request.candidate_count > 1 else ""
    restarts = progress.describe_restarts(request)
    where = ", ".join(part for part in (restarts, attempt, pool) if part)
    return f"{where}: " if where else ""


def _paused(request: Request, progress: Progress) -> str:
    failures = _failures(request, progress, progress.attempt - 1)
    return f"{failures}; the next starts at {stamp(progress.pause_until or 0.0)}"


def _failures(request: Request, progress: Progress, attempts: int) -> str:
    """Return why an attempt failed: the reason of each candidate, and the idle node-seconds."""
    reasons = [
        f"pool {failure.pool}: {failure.reason}" if request.candidate_count > 1 else failure.reason
        for failure in progress.failures
    ]
    tried = f"after {attempts} of {request.attempts} attempts: " if request.attempts > 1 else ""
    hopeless = is_impossible(progress.failures)
    idle = "" if hopeless else f"{progress.idle_node_seconds:.0f} node-seconds stood idle"
    restarts = progress.describe_restarts(request)
    lost = f"{restarts}, because {progress.why}: " if restarts else ""
    return lost + tried + _joined(*reasons, idle, node_release.describe(progress.released))


def _joined(*parts: str) -> str:
    return "; ".join(part for part in parts if part)


def _make_report(state: str, request: Request, seen: Observation, reason: str, nodes: int = 0) -> Report:
    claims = sum(not claim.deleting for claim in seen.claims)
    return Report(state=state, nodes=nodes, of=request.max_nodes, claims=claims, reason=reason)


def follow(request: Request, memory: Memory, progress: Progress, seen: Observation) -> Step:
    """Follow a training job that exists, or existed at the last step."""
    training, placeholders_now, job = seen.training, placeholders(request, seen), _job(request)
    report = _make_report(names.STATE_FOLLOWING, request, seen, "")

    def end(code: int, reason: str, also: tuple[Action, ...] = ()) -> Step:
        last = End(code=code, reason=reason)
        actions: tuple[Action, ...] = (*remove(placeholders_now), *also, last)
        return Step(memory=memory, report=replace(report, state=last.state, reason=reason), actions=actions)

    if training is None:
        return end(names.EXIT_TRAINING_FAILED, f"{job} was deleted")
    if not training.ours:
        reason = f"{job}: exists and was not created by a launcher. Use another run id"
        return end(names.EXIT_IMPOSSIBLE, reason)
    if progress.training_uid and training.uid != progress.training_uid:
        reason = f"{job}: another job has this name (uid {training.uid}). Do not create jobs of a run by hand"
        return end(names.EXIT_TRAINING_FAILED, reason)
    progress = progress.adopt(training)
    candidate = progress.remaining_request(request)
    pods = workers(request, seen)
    training = backends.of(request).settle(training, pods)
    report = replace(report, nodes=training.nodes, of=training.nodes)
    if training.outcome == "Succeeded":
        restarts = progress.describe_restarts(request)
        reason = f"trained on {count_of(training.nodes, 'node')}" + (f" ({restarts})" if restarts else "")
        return end(names.EXIT_SUCCEEDED, reason)
    if training.deleting:
        reason = f"{job} is being deleted"
        return Step(memory=memory, report=replace(report, reason=reason), actions=())
    if training.suspended and not training.outcome:
        # This time does not count for activeDeadlineSeconds.
        progress = progress.suspend(training, seen.now)
        reason = f"{job} is suspended; it continues when {backends.of(request).suspend_field} is false"
        report = replace(report, state=names.STATE_SUSPENDED, nodes=0, reason=reason)
        memory = replace(memory, progress=progress, gang={})
        return Step(memory=memory, report=report, actions=remove(placeholders_now))
    if progress.suspended and not training.outcome:
        if not seen.fresh:
            return Step(memory=memory, report=report, actions=(Recount(),))
        after = progress.retire(training, "it was resumed", seen.now, counted=False)
        return retire(request, after, seen)
    # A node that is not Ready for a moment has not lost its worker, unless the job has failed.
    known = seen.nodes if training.outcome == "Failed" else ()
    ended = job_failure(candidate, training, pods, memory.gang, seen.now, known)
    if ended is not None:
        if not seen.fresh:
            # The watch of the pods may lag behind the watch of the job.
            return Step(memory=memory, report=report, actions=(Recount(),))
        if ended.is_retryable and progress.restarts < request.max_restarts:
            after = progress.retire(training, ended.reason, seen.now, counted=True)
            return retire(request, after, seen)
        left = tuple(pod for pod in pods if is_live(pod) and not pod.deleting)
        # A node may have been launched for the second pod of a worker.
        unneeded = node_release.unneeded(candidate, seen, since=progress.since)
        reason = _final_reason(request, progress, ended)
        return end(names.EXIT_TRAINING_FAILED, reason, (*remove(left), *unneeded))
    memory = replace(memory, progress=progress, gang=gang(pods))
    placed = sum(bool(pod.node) for pod in pods)
    following = replace(report, reason=_report_reason(candidate, memory, seen, training, pods))
    # Until every worker has its node, the other placeholders hold the nodes.
    actions = remove(placeholders_now) if placed >= training.nodes else ()
    return Step(memory=memory, report=following, actions=actions)


def _job(request: Request) -> str:
    return f"{backends.of(request).kind} {request.training_job}"


def _final_reason(request: Request, progress: Progress, ended: JobFailure) -> str:
    """Return why the run failed, with the number of restarts."""
    if not progress.restarts:
        return ended.reason
    before = f", the last one because {progress.why}" if progress.why else ""
    return f"{ended.reason}; after {progress.describe_restarts(request)}{before}"


def _report_reason(
    request: Request, memory: Memory, seen: Observation, training: Training, pods: tuple[Pod, ...]
) -> str:
    """Return the state of a running job: its workers, the slowest start, a stuck worker, restarts, warnings."""
    nodes = training.nodes
    running = sum(pod.phase == "Running" for pod in pods)
    finished = sum(pod.phase == "Succeeded" for pod in pods)
    if not pods and training.created and seen.now - training.created >= UNRECONCILED_SECONDS:
        operator = backends.of(request).operator
        state = (
            f"submitted, but the {operator} has not created its pods for {UNRECONCILED_SECONDS} s. See"
            f" kubectl get events -n {request.namespace}, and the pods of the {operator}"
        )
    elif finished >= nodes:  # the job's condition changes a moment after the last one
        state = f"{finished} of {nodes} workers finished"
    else:
        state = f"{running} of {nodes} workers running" + (f", {finished} finished" if finished else "")
    return _joined(
        state,
        slowest_start(pods, memory.ordered) if running == nodes else "",
        first_stuck(pods, seen.now),
        memory.progress.describe_restarts(request) if memory.progress else "",
        block.deadline_warning(request, seen.now),
    )


def slowest_start(workers: Iterable[Pod], ordered: Mapping[str, float]) -> str:
    """Return the message about the slowest start of a worker; "" until all have started.

    The time from scheduling to the first container is mostly the image pull. For nodes that were launched for this run
    (`orders`), the time since the creation of the NodeClaim counts.
    """
    pods = list(workers)
    if not pods or any(not pod.placed_at or not pod.started_at for pod in pods):
        return ""
    text = f"the slowest started {max(pod.started_at - pod.placed_at for pod in pods):.0f} s after it was scheduled"
    waits = [pod.started_at - ordered[pod.node] for pod in pods if pod.node in ordered]
    return f"{text}, {max(waits):.0f} s after its NodeClaim was created" if waits else text


def orders(claims: Iterable[Claim], since: float) -> dict[str, float]:
    """Return the creation times of NodeClaims after `since`, by node, in seconds since the epoch."""
    earliest = since - _ROUNDING_SECONDS
    return {claim.node: claim.created for claim in claims if claim.node and claim.created >= earliest}


def first_stuck(workers: Iterable[Pod], now: float) -> str:
    """Return the first worker that does not start, with the reason; "" for none. `now` is seconds since the epoch."""
    stuck = (
        f"{pod.name} {pod.pending_reason}"
        for pod in workers
        if pod.pending_reason
        and pod.phase == "Pending"
        and not pod.deleting
        and 0 < pod.created <= now - PATIENCE_SECONDS
    )
    return min(stuck, default="")


def retired(progress: Progress, request: Request, seen: Observation) -> bool:
    """Return whether the old training job and all of its pods are gone."""
    return _old(progress, seen) is None and not workers(request, seen)


def _old(progress: Progress, seen: Observation) -> Training | None:
    training = seen.training
    return training if training is not None and training.uid == progress.retiring else None


def retire(request: Request, progress: Progress, seen: Observation) -> Step:
    """Remove the old training job and its pods before a restart, and hold the nodes that its workers leave."""
    candidate, old, left = request.candidate(progress.candidate), _old(progress, seen), workers(request, seen)
    memory, live = Memory(progress=progress), sum(map(is_live, left))
    reason = f"{progress.describe_restarts(request)}: {progress.why}"
    report = replace(_make_report(names.STATE_RESTARTING, request, seen, reason, live), claims=0)
    is_late = seen.now >= progress.began + RETIRE_TIMEOUT_SECONDS
    if retired(progress, request, seen) or (is_late and not seen.fresh):
        return Step(memory=memory, report=report, actions=(Recount(),))
    if is_late:
        pods = ", ".join(f"{pod.name} on {pod.node or 'no node'}" for pod in left[:3])
        reason = (
            f"{reason}; {_job(candidate)} or its pods are not gone after {RETIRE_TIMEOUT_SECONDS} s"
            f" ({pods or 'no pod is left'}); delete the node that does not answer"
        )
        report = replace(report, state=names.STATE_FAILED, reason=reason)
        end = End(code=names.EXIT_TRAINING_FAILED, reason=reason)
        unneeded = node_release.unneeded(candidate, seen, since=progress.since)
        gone = remove(placeholders(request, seen))
        return Step(memory=memory, report=report, actions=(*gone, *unneeded, end))
    actions: list[Action] = []
    if old is not None and not old.deleting:
        actions.append(Retire(uid=old.uid))
    if old is None:  # a TrainJob is deleted in the background, so its pods outlive it
        actions += remove(tuple(pod for pod in left if not pod.deleting))
    nodes = progress.retiring_nodes if old is None else old.nodes
    actions += hold_nodes(candidate, seen, progress, max(0, nodes - live))
    return Step(memory=memory, report=report, actions=tuple(actions))
