"""Which nodes can run a worker now, how many there can be at most, whether to submit, and what is missing. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace

from launcher import block
from launcher.observe import Node, NodePool, Observation, Pod
from launcher.refusals import closed, describe_ended_instances, missing_capacity
from launcher.request import Request
from trainyard.k8s import names, quantity
from trainyard.k8s.quantity import Amount

# Karpenter may see a NodePool a moment before its node class.
CLASS_SECONDS = 10
# A taint with this effect is a wish, not a rule: the scheduler still places pods there.
_SOFT_EFFECT = "PreferNoSchedule"
_BYTES = ("memory", "ephemeral-storage")


@dataclass(frozen=True, kw_only=True)
class Count:
    """The nodes of the pool at one moment.

    `usable` are names in a stable order; `foreign` is the number of nodes that pods of others occupy; `unusable` maps a
    node's name to what is missing.
    """

    usable: tuple[str, ...]
    foreign: int
    unusable: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Wait:
    """Go on waiting. `since` is the moment at which MIN was reached, None below it."""

    since: float | None


@dataclass(frozen=True, kw_only=True)
class Submit:
    """Start the job on this many nodes. `by_events` says that the decision depends on Events only."""

    nodes: int
    reason: str
    by_events: bool = False


@dataclass(frozen=True, kw_only=True)
class GiveUp:
    """End without a training."""

    code: int
    reason: str


Decision = Wait | Submit | GiveUp


def is_placeholder(pod: Pod, request: Request) -> bool:
    """Return whether the pod is a placeholder of this run. Its priority counts too, because labels are not trusted."""
    return (
        pod.namespace == request.namespace
        and pod.priority_class == request.placeholder.priority_class
        and pod.labels.get(names.LABEL_RUN) == request.run_id
        and pod.labels.get(names.LABEL_ROLE) == names.ROLE_PLACEHOLDER
    )


def is_warm(pod: Pod) -> bool:
    """Return whether the pod only keeps a warm node. Workers preempt it, because its priority is the lowest."""
    return pod.priority_class == names.WARM_PRIORITY_CLASS


def count(request: Request, seen: Observation) -> Count:
    """The nodes of the pool that could take a worker of this run now, and what keeps the others from it.

    Placeholders of this run leave when a worker comes, and pods that only keep a node do where it needs their place, so
    they occupy nothing.
    """
    needs = {name: quantity.parse(amount) for name, amount in request.resources.items()}
    taken: dict[tuple[str, str], Amount] = defaultdict(int)
    for pod in seen.pods:
        if not pod.node or pod.phase in ("Succeeded", "Failed"):
            continue
        if not (is_placeholder(pod, request) or is_warm(pod)):
            for name in needs.keys() & pod.requests.keys():
                taken[pod.node, name] += pod.requests[name]
    # Karpenter marks the node up to a second later.
    deleted = {claim.node for claim in seen.claims if claim.deleting}
    usable: list[str] = []
    unusable: dict[str, str] = {}
    foreign = 0
    for node in sorted(seen.nodes, key=lambda node: node.name):
        if any(node.labels.get(key) != value for key, value in request.pool.node_selector.items()):
            continue
        problem = "being deleted" if node.name in deleted else _problem(node, request)
        lacking = [name for name, need in needs.items() if node.allocatable.get(name, 0) < need]
        if not problem and lacking:
            problem = _gap(node, lacking[0], needs[lacking[0]])
        busy = [
            name
            for name, need in needs.items()
            if (node.name, name) in taken and node.allocatable.get(name, 0) - taken[node.name, name] < need
        ]
        if not problem and busy:
            foreign += 1
            problem = f"{busy[0]} in use"
        if problem:
            unusable[node.name] = problem
        else:
            usable.append(node.name)
    return Count(usable=tuple(usable), foreign=foreign, unusable=unusable)


def incomplete(request: Request, node: Node) -> str:
    """What this machine still lacks of the devices that make it one of the pool; empty if nothing."""
    if node.labels.get(names.LABEL_INITIALIZED) != "true":
        return "not initialized"
    pool = request.pool
    for name, need in ((pool.resource, pool.per_node), (names.EFA_RESOURCE, pool.efa_per_node)):
        if node.allocatable.get(name, 0) < need:
            return _gap(node, name, need)
    return ""


def _gap(node: Node, name: str, need: Amount) -> str:
    return f"{float(node.allocatable.get(name, 0)):g} of {float(need):g} {name}"


def _problem(node: Node, request: Request) -> str:
    if node.deleting:
        return "being deleted"
    if not node.ready:
        return "not Ready"
    if node.cordoned:
        return "cordoned"
    for key, effect in node.taints:
        if effect != _SOFT_EFFECT and not any(
            _tolerates(toleration, key, effect) for toleration in request.pool.tolerations
        ):
            return f"taint {key}"
    if node.labels.get(names.LABEL_INITIALIZED) != "true":
        return "not initialized"
    return ""


def _tolerates(toleration: Mapping[str, object], key: str, effect: str) -> bool:
    """Startup and ephemeral taints have keys of their own; a toleration of everything must not hide them."""
    return toleration.get("key") == key and toleration.get("effect") in (None, "", effect)


def ceiling(request: Request, seen: Observation) -> tuple[int, str]:
    """The most nodes the pool can ever have, and what says so.

    All nodes of a pool have one type, so a limit of devices or CPUs is a limit of whole nodes, even if a worker takes a
    part of one.
    """
    most, said = request.pool.max_nodes, f"pool {request.pool.name} may have {request.pool.max_nodes} nodes"
    if seen.pool is None:
        return most, said
    there = max(len(seen.nodes), sum(each.launched for each in seen.claims))
    if seen.pool.reservations == 0 and there < most:
        most, said = there, unreserved(request.pool.name)
    asked: dict[str, Amount] = {name: quantity.parse(amount) for name, amount in request.resources.items()}
    asked |= {request.pool.resource: request.pool.per_node, "nodes": 1}
    for name in {**asked, **seen.pool.node}:
        size = max(asked.get(name, 0), seen.pool.node.get(name, 0)) or 1
        limit = seen.pool.limits.get(name)
        if limit is not None and limit // size < most:
            most = int(limit // size)
            said = (
                f"the limit of NodePool {request.pool.name} is {float(limit):g} {name}, which is {most} nodes"
            )
    return most, said


def unreserved(pool: str) -> str:
    """Return the message for a pool without an active capacity reservation."""
    return f"NodePool {pool} buys reserved capacity alone, and has no active capacity reservation"


def target(request: Request, seen: Observation) -> int:
    """How many nodes to ask for: MAX, or as many as the pool can have."""
    return min(request.max_nodes, ceiling(request, seen)[0])


def preflight(request: Request, seen: Observation, started: float) -> GiveUp | None:
    """The reason for which no waiting can help, or None. `started` is when the wait began."""
    if seen.pool is None:
        return GiveUp(
            code=names.EXIT_IMPOSSIBLE,
            reason=f"there is no NodePool {request.pool.name}; pool must be the name of a NodePool in this cluster",
        )
    for label, wanted in (
        (names.LABEL_INSTANCE_TYPE, request.pool.instance_type),
        (names.LABEL_ZONE, request.pool.zone),
    ):
        offered = seen.pool.offers.get(label)
        if offered is not None and wanted not in offered:
            return GiveUp(
                code=names.EXIT_IMPOSSIBLE,
                reason=f"NodePool {request.pool.name} has {label} {', '.join(offered)} and not {wanted}; the"
                " request must come from the present stack",
            )
    if seen.pool.lost_at is not None and seen.now - seen.pool.lost_at >= CLASS_SECONDS:
        return GiveUp(
            code=names.EXIT_IMPOSSIBLE,
            reason=f"NodePool {request.pool.name} is not ready: {seen.pool.problem}; check its EC2NodeClass",
        )
    large = _too_large(request, seen.pool)
    if large:
        return GiveUp(code=names.EXIT_IMPOSSIBLE, reason=large)
    most, said = ceiling(request, seen)
    if most < request.min_nodes:
        return GiveUp(
            code=names.EXIT_IMPOSSIBLE,
            reason=f"{request.min_nodes} nodes are needed, but {said}; ask for fewer or raise the ceiling",
        )
    refused = block.refusal(request, seen.now, started + request.deadline_seconds)
    if refused:
        return GiveUp(code=names.EXIT_IMPOSSIBLE, reason=refused)
    return None


def _too_large(request: Request, pool: NodePool) -> str:
    """Return which request of a worker exceeds a node of the pool, "" if none is known to."""
    if not pool.declared:  # an observed node may lack a device for a moment
        return ""
    for name, text in request.resources.items():
        need, most = quantity.parse(text), pool.node.get(name, 0)
        if need > most and name in pool.node:
            return (
                f"a worker requests {_readable(name, need)} of {name}, but a node of pool {request.pool.name} has "
                f"{_readable(name, most)}; request less, or use another pool"
            )
    return ""


def _readable(name: str, amount: Amount) -> str:
    return quantity.in_words(int(amount)) if name in _BYTES else f"{float(amount):g}"


def decide(
    request: Request, seen: Observation, counted: Count, *, started: float, quorum_since: float | None
) -> Decision:
    """What to do now. `started` is when the wait began and `quorum_since` what the last Wait said.

    `counted` is what `count` says of the same.
    """
    decision = _decide(request, seen, counted, started, quorum_since)
    warning = block.notice(request, seen.now)
    if isinstance(decision, Submit) and warning:
        return replace(decision, reason=f"{decision.reason}; {warning}")
    return decision


def _decide(
    request: Request, seen: Observation, counted: Count, started: float, quorum_since: float | None
) -> Decision:
    hopeless = preflight(request, seen, started)
    if hopeless is not None:
        return hopeless
    have = min(len(counted.usable), request.max_nodes)
    there = "1 node is there" if have == 1 else f"{have} nodes are there"
    deadline = started + request.deadline_seconds
    if have < request.min_nodes:
        if seen.now >= deadline:
            return GiveUp(
                code=names.EXIT_BELOW_MINIMUM,
                reason=f"{have} of at least {request.min_nodes} nodes after {request.deadline_seconds} s",
            )
        return Wait(since=None)
    # A clock that was set back begins the hold window anew.
    since = seen.now if quorum_since is None else min(quorum_since, seen.now)
    if have == request.max_nodes:
        return Submit(nodes=have, reason=f"all {there}" if have > 1 else there)
    most, said = ceiling(request, seen)
    if have >= most:
        return Submit(nodes=have, reason=f"{there} and no more can come: {said}")
    if have >= most - counted.foreign:
        return Submit(nodes=have, reason=f"{there} and the pool's other {counted.foreign} are in use")
    on_their_way = len(counted.unusable) - counted.foreign
    if not on_their_way and closed(request, seen, started, since + request.hold_seconds):
        refused = missing_capacity(request, seen.warnings, started)
        return Submit(nodes=have, reason=f"{there} and no more can come: {refused}", by_events=True)
    if seen.now >= since + request.hold_seconds:
        return Submit(nodes=have, reason=f"{there} and no more came within {request.hold_seconds} s")
    if seen.now >= deadline:
        return Submit(nodes=have, reason=f"{there} at the deadline of {request.deadline_seconds} s")
    return Wait(since=since)


_MAX_PARTS = 4
_MAX_NAMES = 4


def _starting(names: list[str]) -> str:
    """These NodeClaims, so that a person can look at them."""
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return f"{len(names)} NodeClaim{'s' if len(names) > 1 else ''} starting: {', '.join(names[:_MAX_NAMES])}{more}"


def shortfall(
    request: Request, seen: Observation, counted: Count, since: float, most: int = _MAX_PARTS
) -> str:
    """What is known about the nodes still missing, the most telling first, in up to `most` parts."""
    parts = []
    coming = block.coming(request, seen.now)
    if coming:
        parts.append(coming)
    refused = missing_capacity(request, seen.warnings, since)
    if refused:
        parts.append(refused)
    ended = describe_ended_instances(request, seen.warnings, since)
    if ended:
        parts.append(ended)
    if seen.pool is not None and not seen.pool.ready:
        parts.append(f"NodePool {request.pool.name} is not ready: {seen.pool.problem}")
    highest, said = ceiling(request, seen)
    if highest < request.max_nodes:
        parts.append(said)
    for problem, times in Counter(counted.unusable.values()).most_common(2):
        parts.append(f"{times} node{'s' if times > 1 else ''}: {problem}")
    starting = [claim for claim in seen.claims if not claim.initialized and not claim.deleting]
    for problem, times in Counter(claim.problem for claim in starting if claim.problem).most_common(1):
        parts.append(f"{times} NodeClaim{'s' if times > 1 else ''} not launched: {problem}")
    on_their_way = sorted(claim.name for claim in starting if not claim.problem)
    if on_their_way:
        parts.append(_starting(on_their_way))
    pending = sum(
        is_placeholder(pod, request) and not pod.node and not pod.deleting for pod in seen.pods
    ) - len([claim for claim in starting if not claim.node])
    if pending > 0 and not refused:
        parts.append(f"{pending} placeholder{'s wait' if pending > 1 else ' waits'} for a node")
    return "; ".join(parts[:most]) or "waiting for Karpenter"
