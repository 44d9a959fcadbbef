"""The launcher's course as a function: what was seen and remembered goes in, actions come out. No input or output here.

Nothing that matters is only remembered. What the next launcher needs after a crash stands in the cluster: the
placeholders with the moment at which the wait began, and the PyTorchJob with its deterministic name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from launcher.core import block, observe, starts
from launcher.core import contract as c
from launcher.core.capacity import Count, GiveUp, Submit, Wait, count, decide, is_placeholder, target
from launcher.core.observe import Observation, Pod
from launcher.core.reasons import shortfall
from launcher.core.request import Request


@dataclass(frozen=True, kw_only=True)
class Hold:
    """Create the placeholder with this index."""

    index: int
    waiting_since: float


@dataclass(frozen=True, kw_only=True)
class Remove:
    """Delete exactly this pod; another one of the same name is left alone."""

    name: str
    uid: str


@dataclass(frozen=True, kw_only=True)
class Recount:
    """Observe again, from fresh lists, and call `step` again at once."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """Create the PyTorchJob for this many nodes."""

    nodes: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class End:
    """Exit with this code."""

    code: int
    reason: str


Action = Hold | Remove | Recount | Start | End


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a person may see of this step: nodes that are there, out of how many, and NodeClaims of the pool."""

    state: str
    nodes: int
    of: int
    claims: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class Memory:
    """What a launcher carries from step to step. `started` and `quorum_since` are seconds since the epoch.

    `ordered` says when the machines were ordered that came for this run, by their nodes; after a crash it is empty, and
    a line of the report shorter.
    """

    started: float | None = None
    quorum_since: float | None = None
    training_uid: str = ""
    ordered: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Step:
    """The outcome of one step; the actions are to be done in their order."""

    memory: Memory
    report: Report
    actions: tuple[Action, ...]


def placeholders(request: Request, seen: Observation) -> tuple[Pod, ...]:
    """The placeholders of this run that are not yet on their way out."""
    return tuple(pod for pod in seen.pods if is_placeholder(pod, request) and not pod.deleting)


def step(request: Request, memory: Memory, seen: Observation) -> Step:
    """One step of the run."""
    if seen.training is not None or memory.training_uid:
        return _follow(request, memory, seen)
    return _wait(request, memory, seen)


def stop(request: Request, seen: Observation) -> tuple[Action, ...]:
    """What to do when a signal ends the launcher. A training that was submitted goes on."""
    return (*_remove(placeholders(request, seen)), End(code=c.EXIT_STOPPED, reason="stopped by a signal"))


def _remove(pods: tuple[Pod, ...]) -> tuple[Remove, ...]:
    return tuple(Remove(name=pod.name, uid=pod.uid) for pod in pods)


def _began(request: Request, memory: Memory, seen: Observation) -> float:
    """When the wait began: as remembered, else as an earlier launcher of this run noted on its placeholders."""
    if memory.started is not None:
        return memory.started
    noted = [
        observe.seconds(pod.annotations.get(c.ANNOTATION_WAITING_SINCE))
        for pod in seen.pods
        if is_placeholder(pod, request)
    ]
    return min([seen.now, *(moment for moment in noted if moment > 0)])


def _wait(request: Request, memory: Memory, seen: Observation) -> Step:
    started = _began(request, memory, seen)
    memory = replace(memory, started=started, ordered=starts.orders(seen.claims, seen.now, started))
    counted = count(request, seen)
    decision = decide(request, seen, started=started, quorum_since=memory.quorum_since)
    held = placeholders(request, seen)
    report = Report(
        state=c.STATE_WAITING,
        nodes=len(counted.usable),
        of=request.max_nodes,
        claims=sum(not claim.deleting for claim in seen.claims),
        reason=shortfall(request, seen, counted, started),
    )
    match decision:
        case Wait(since=since):
            memory = replace(memory, quorum_since=since)
            if since is not None:
                report = replace(report, state=c.STATE_HOLDING)
            return Step(memory=memory, report=report, actions=_hold(request, seen, held, started))
        case Submit() | GiveUp(code=c.EXIT_BELOW_MINIMUM) if not seen.fresh:
            return Step(memory=memory, report=report, actions=(Recount(),))
        case GiveUp(code=code, reason=reason):
            if code == c.EXIT_BELOW_MINIMUM:
                reason = f"{reason}: {report.reason}"
            report = replace(report, state=c.STATE_FAILED, reason=reason)
            return Step(memory=memory, report=report, actions=(*_remove(held), End(code=code, reason=reason)))
        case Submit(nodes=nodes, reason=reason):
            report = replace(report, state=c.STATE_SUBMITTING, nodes=nodes, reason=reason)
            surplus = _surplus(held, counted, nodes)
            if surplus:
                # They go first, so that Karpenter buys nothing more; then the count has to hold without them.
                return Step(memory=memory, report=report, actions=(*_remove(surplus), Recount()))
            return Step(memory=memory, report=report, actions=(Start(nodes=nodes, reason=reason),))


def _hold(request: Request, seen: Observation, held: tuple[Pod, ...], started: float) -> tuple[Action, ...]:
    """Keeps one placeholder per node that is asked for: makes what is missing, removes what is too much or finished."""
    wanted = {request.placeholder_name(index): index for index in range(target(request, seen))}
    bad = tuple(pod for pod in held if pod.name not in wanted or pod.phase in ("Succeeded", "Failed"))
    # A name that is still on its way out can't be made again yet.
    present = {pod.name for pod in seen.pods if is_placeholder(pod, request)}
    missing = (
        Hold(index=index, waiting_since=started) for name, index in wanted.items() if name not in present
    )
    return (*_remove(bad), *missing)


def _surplus(held: tuple[Pod, ...], counted: Count, nodes: int) -> tuple[Pod, ...]:
    """Placeholders that hold none of the nodes the training will run on."""
    on_counted = [pod for pod in held if pod.node in counted.usable]
    kept = {pod.uid for pod in on_counted[:nodes]}
    return tuple(pod for pod in held if pod.uid not in kept)


def _follow(request: Request, memory: Memory, seen: Observation) -> Step:
    training, held = seen.training, placeholders(request, seen)
    claims = sum(not claim.deleting for claim in seen.claims)
    report = Report(state=c.STATE_FAILED, nodes=0, of=request.max_nodes, claims=claims, reason="")

    def end(state: str, code: int, reason: str, also: tuple[Pod, ...] = ()) -> Step:
        actions: tuple[Action, ...] = (*_remove(held), *_remove(also), End(code=code, reason=reason))
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
    report = replace(report, nodes=training.nodes, of=training.nodes)
    if training.outcome == "Succeeded":
        return end(c.STATE_SUCCEEDED, c.EXIT_SUCCEEDED, f"trained on {training.nodes} nodes")
    if training.outcome == "Failed":
        left = tuple(pod for pod in workers if pod.phase in ("Pending", "Running") and not pod.deleting)
        return end(c.STATE_FAILED, c.EXIT_TRAINING_FAILED, training.message or "the PyTorchJob failed", left)
    placed = sum(bool(pod.node) for pod in workers)
    started = starts.told(workers, memory.ordered) if running == training.nodes else ""
    parts = (
        f"{running} of {training.nodes} workers running",
        started,
        block.notice(request, seen.now),
    )
    following = replace(report, state=c.STATE_FOLLOWING, reason="; ".join(part for part in parts if part))
    # Until every worker has its node, the placeholders that are left hold those nodes.
    actions: tuple[Action, ...] = _remove(held) if placed >= training.nodes else ()
    return Step(memory=memory, report=following, actions=actions)
