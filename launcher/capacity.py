"""Count the nodes that can run a worker now, and decide whether to wait, submit or give up. Pure.

The entry points are `count()`, `decide()` and `shortfall()`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from launcher import block
from launcher.observe import Claim, Node, NodePool, Observation, Pod
from launcher.refusals import describe_ended_instances, is_out_of_capacity, missing_capacity
from launcher.request import NodeRequest, count_of
from trainyard.k8s import names, quantity
from trainyard.k8s.quantity import Amount

# Karpenter may see a NodePool a moment before its node class.
CLASS_SECONDS = 10
# A taint with this effect is a preference: the scheduler still places pods there.
_SOFT_EFFECT = "PreferNoSchedule"
# The problem of a node that the scheduler is about to give to the run.
FREE = "free, but not reserved for the job yet"
# The problems of a node that are a state. The others are something that the node has.
_STATES = (FREE, "not Ready", "not initialized", "cordoned", "being deleted")
# Taints of every node that starts.
_START_TAINTS = (
    "taint node.kubernetes.io/",
    "taint node.cloudprovider.kubernetes.io/",
    "taint karpenter.sh/",
)
_BYTES = ("memory", "ephemeral-storage")


@dataclass(frozen=True, kw_only=True)
class Count:
    """The nodes of the pool at one moment.

    Attributes:
        usable: The names of the nodes that can run a worker, in a stable order.
        foreign: The number of nodes that other workloads occupy.
        unusable: Why each of the other nodes is not usable, by name.
    """

    usable: tuple[str, ...]
    foreign: int
    unusable: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Wait:
    """Continue to wait. `quorum_since` is the time when MIN was reached; None below MIN."""

    quorum_since: float | None


@dataclass(frozen=True, kw_only=True)
class Submit:
    """Start the job on this many nodes. `by_events` says that the decision depends on Events only."""

    nodes: int
    reason: str
    by_events: bool = False


@dataclass(frozen=True, kw_only=True)
class GiveUp:
    """Give up the candidate."""

    code: int
    reason: str


Decision = Wait | Submit | GiveUp


def is_placeholder(pod: Pod, request: NodeRequest) -> bool:
    """Return whether the pod is a placeholder of this run. Its priority counts too, because labels are not trusted."""
    return (
        pod.namespace == request.namespace
        and pod.priority_class == request.placeholder.priority_class
        and pod.labels.get(names.LABEL_RUN) == request.run_id
        and pod.labels.get(names.LABEL_ROLE) == names.ROLE_PLACEHOLDER
    )


def placeholders(request: NodeRequest, seen: Observation) -> tuple[Pod, ...]:
    """Return the placeholders of this run, of all waits, that are not being deleted."""
    return tuple(pod for pod in seen.pods if is_placeholder(pod, request) and not pod.deleting)


def is_warm(pod: Pod) -> bool:
    """Return whether the pod only keeps a warm node. Workers preempt it, because its priority is the lowest."""
    return pod.priority_class == names.WARM_PRIORITY_CLASS


def count(request: NodeRequest, seen: Observation) -> Count:
    """Count the nodes of the pool that can run a worker now, and find why the others can't.

    Placeholders of this run and warm pods do not count as occupying a node, because a worker preempts them.
    """
    needs = {name: quantity.parse(amount) for name, amount in request.resources.items()}
    taken: dict[tuple[str, str], Amount] = defaultdict(int)
    for pod in seen.pods:
        if not pod.node or pod.finished:
            continue
        if not (is_placeholder(pod, request) or is_warm(pod)):
            for name in needs.keys() & pod.requests.keys():
                taken[pod.node, name] += pod.requests[name]
    # The Node object shows the deletion up to a second later.
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


def missing_devices(request: NodeRequest, node: Node) -> str:
    """Return the devices of the pool that this node still lacks; "" for none."""
    if not node.initialized:
        return "not initialized"
    pool = request.pool
    for name, need in ((pool.resource, pool.per_node), (names.EFA_RESOURCE, pool.efa_per_node)):
        if node.allocatable.get(name, 0) < need:
            return _gap(node, name, need)
    return ""


def _gap(node: Node, name: str, need: Amount) -> str:
    return f"{float(node.allocatable.get(name, 0)):g} of {float(need):g} {name}"


def _problem(node: Node, request: NodeRequest) -> str:
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
    if not node.initialized:
        return "not initialized"
    return ""


def _tolerates(toleration: Mapping[str, object], key: str, effect: str) -> bool:
    """Return whether the toleration names this taint. A toleration without a key must not hide startup taints."""
    return toleration.get("key") == key and toleration.get("effect") in (None, "", effect)


def ceiling(request: NodeRequest, seen: Observation) -> tuple[int, str]:
    """Return the maximum number of nodes of the pool, and the reason for it.

    All nodes of a pool have one instance type. So a limit of devices or CPUs is a limit of whole nodes, even if a
    worker uses only a part of a node.
    """
    most = request.pool.max_nodes
    reason = f"pool {request.pool.name} has at most {count_of(most, 'node')}"
    if seen.pool is None:
        return most, reason
    there = max(len(seen.nodes), sum(each.launched for each in seen.claims))
    if seen.pool.reservations == 0 and there < most:
        most, reason = there, no_reservation(request.pool.name)
    asked: dict[str, Amount] = {name: quantity.parse(amount) for name, amount in request.resources.items()}
    asked |= {request.pool.resource: request.pool.per_node, "nodes": 1}
    for name in {**asked, **seen.pool.node}:
        size = max(asked.get(name, 0), seen.pool.node.get(name, 0)) or 1
        limit = seen.pool.limits.get(name)
        if limit is not None and limit // size < most:
            most = int(limit // size)
            why = "" if name == "nodes" else f" (its limit is {_readable(name, limit)} {name})"
            reason = f"NodePool {request.pool.name} has at most {count_of(most, 'node')}{why}"
    return most, reason


def no_reservation(pool: str) -> str:
    """Return the message for a pool without an active capacity reservation."""
    return f"NodePool {pool} buys reserved capacity alone, and has no active capacity reservation"


def target(request: NodeRequest, seen: Observation) -> int:
    """Return how many nodes to request: MAX, or the pool's maximum."""
    return min(request.max_nodes, ceiling(request, seen)[0])


def preflight(request: NodeRequest, seen: Observation, began: float) -> str:
    """Return why waiting can't help; "" if it may. `began` is the start of the wait."""
    if seen.pool is None:
        return (
            f"there is no NodePool {request.pool.name}; pool must be the name of a NodePool in this cluster"
        )
    for label, value in (
        (names.LABEL_INSTANCE_TYPE, request.pool.instance_type),
        (names.LABEL_ZONE, request.pool.zone),
    ):
        offered = seen.pool.offers.get(label)
        if offered is not None and value not in offered:
            return (
                f"NodePool {request.pool.name} has {label} {', '.join(offered)} and not {value}; the"
                " request must come from the present stack"
            )
    if seen.pool.lost_at is not None and seen.now - seen.pool.lost_at >= CLASS_SECONDS:
        return f"NodePool {request.pool.name} is not ready: {seen.pool.problem}; check its EC2NodeClass"
    if large := _too_large(request, seen.pool):
        return large
    most, limit = ceiling(request, seen)
    if most < request.min_nodes:
        advice = [f"ask for at most {request.describe_amount(most)}"] if most else []
        if limit == no_reservation(request.pool.name):
            advice.append("create a reservation")
        elif seen.pool.node:  # a pool of the stack
            advice.append(f"raise maxNodes of pool {request.pool.name}")
        else:
            advice.append(f"raise spec.limits of NodePool {request.pool.name}")
        return f"{request.describe_need()}, but {limit}; {', or '.join(advice)}"
    return block.refusal(request, seen.now, began + request.deadline_seconds)


def _too_large(request: NodeRequest, pool: NodePool) -> str:
    """Return the request of a worker that exceeds a node of the pool; "" for none."""
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
    request: NodeRequest, seen: Observation, counted: Count, *, began: float, quorum_since: float | None
) -> Decision:
    """Decide whether to wait, submit or give up.

    Args:
        counted: The result of `count` for this observation.
        began: The start of the wait.
        quorum_since: `Wait.quorum_since` of the last decision.
    """
    if hopeless := preflight(request, seen, began):
        return GiveUp(code=names.EXIT_IMPOSSIBLE, reason=hopeless)
    have = min(len(counted.usable), request.max_nodes)
    deadline = began + request.deadline_seconds
    if have < request.min_nodes:
        if seen.now < deadline:
            return Wait(quorum_since=None)
        reason = f"{have} of at least {request.min_nodes} nodes after {request.deadline_seconds} s"
        return GiveUp(code=names.EXIT_BELOW_MINIMUM, reason=reason)
    # If the clock was set back, the hold window starts again.
    quorum_since = seen.now if quorum_since is None else min(quorum_since, seen.now)
    held_until = quorum_since + request.hold_seconds
    reason = count_of(have, "node is ready", "nodes are ready")
    most, limit = ceiling(request, seen)
    on_their_way = len(counted.unusable) - counted.foreign
    by_events = False
    if have == request.max_nodes:
        reason = f"all {reason}" if have > 1 else reason
    elif have >= most:
        reason += f", and no more can come: {limit}"
    elif have >= most - counted.foreign:
        verb = "is" if counted.foreign == 1 else "are"
        reason += f", and the pool's other {counted.foreign} {verb} in use"
    elif not on_their_way and is_out_of_capacity(request, seen, began, held_until):
        by_events = True
        reason += f", and no more can come: {missing_capacity(request, seen.warnings, began)}"
    elif seen.now >= held_until:
        reason += f", and no more came within {request.hold_seconds} s"
    elif seen.now >= deadline:
        reason += f" at the deadline of {request.deadline_seconds} s"
    else:
        return Wait(quorum_since=quorum_since)
    if warning := block.deadline_warning(request, seen.now):
        reason += f"; {warning}"
    return Submit(nodes=have, reason=reason, by_events=by_events)


_MAX_PARTS = 4
_MAX_NAMES = 4


def _describe_start(claims: list[Claim], problem: str) -> str:
    """Return the message about the NodeClaims of nodes that start, with the problem of those that have joined."""
    shown = ", ".join(claim.name for claim in claims[:_MAX_NAMES])
    more = f" and {len(claims) - _MAX_NAMES} more" if len(claims) > _MAX_NAMES else ""
    verb = count_of(len(claims), "node is starting", "nodes are starting")
    return f"{verb} ({shown}{more}{problem and f': {problem}'})"


def _describe_unusable(problem: str, times: int) -> str:
    if problem in _STATES:
        return f"{count_of(times, 'node is', 'nodes are')} {problem}"
    return f"{count_of(times, 'node has', 'nodes have')} {problem}"


def _starting_nodes(seen: Observation, counted: Count) -> dict[str, list[Claim]]:
    """Return the NodeClaims whose nodes start, by the problem of their nodes; "" if they have not joined."""
    nodes = {node.name: node for node in seen.nodes}
    found: dict[str, list[Claim]] = defaultdict(list)
    for claim in sorted(seen.claims, key=lambda claim: claim.name):
        node = nodes.get(claim.node)
        if claim.initialized or claim.deleting or claim.problem:
            continue
        if node is None:
            found[""].append(claim)
        elif not node.initialized and not node.deleting:
            problem = counted.unusable.get(node.name, "")
            found["not initialized" if problem.startswith(_START_TAINTS) else problem].append(claim)
    return found


def shortfall(
    request: NodeRequest, seen: Observation, counted: Count, began: float, maximum: int = _MAX_PARTS
) -> str:
    """Return why nodes are missing, in up to `maximum` parts. The most important reason comes first.

    Each node counts once: a NodeClaim whose node has joined is this node. `began` is the start of the wait.
    """
    refused = missing_capacity(request, seen.warnings, began)
    ended = describe_ended_instances(request, seen.warnings, began)
    parts = [part for part in (block.not_started(request, seen.now), refused, ended) if part]
    if seen.pool is not None and not seen.pool.ready:
        parts.append(f"NodePool {request.pool.name} is not ready: {seen.pool.problem}")
    highest, limit = ceiling(request, seen)
    if highest < request.max_nodes:
        parts.append(limit)
    starting = _starting_nodes(seen, counted)
    joined = {claim.node for claims in starting.values() for claim in claims}
    unusable = Counter(problem for name, problem in counted.unusable.items() if name not in joined)
    parts += [_describe_unusable(problem, times) for problem, times in unusable.most_common(2)]
    failing = [
        claim.problem for claim in seen.claims if claim.problem and not claim.initialized | claim.deleting
    ]
    for problem, times in Counter(failing).most_common(1):
        parts.append(f"{count_of(times, 'node is', 'nodes are')} not launched: {problem}")
    groups = sorted(starting.items(), key=lambda group: (not group[0], -len(group[1])))
    parts += [_describe_start(claims, problem) for problem, claims in groups]
    placeholders_now = placeholders(request, seen)
    free = {*counted.usable, *(name for name, problem in counted.unusable.items() if problem == FREE)}
    free -= {pod.node for pod in placeholders_now}
    on_their_way = sum(map(len, starting.values())) + len(failing) + len(free)
    pending = sum(not pod.node for pod in placeholders_now) - on_their_way
    if pending > 0 and not refused:
        parts.append(count_of(pending, "node is not launched yet", "nodes are not launched yet"))
    return "; ".join(parts[:maximum]) or "waiting for Karpenter"
