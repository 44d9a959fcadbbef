"""Choose the NodeClaims that the launcher deletes, because their nodes are late or no longer needed. Pure.

Karpenter removes an empty node once it is initialized. It deletes the NodeClaim of a node that has not registered after
15 minutes (sigs.k8s.io/karpenter v1.14.1, pkg/controllers/nodeclaim/lifecycle/liveness.go). But it waits without limit
for a node that is not initialized, and does not treat it as empty (pkg/controllers/state/statenode.go,
ValidateNodeDisruptable). So the launcher deletes two kinds of NodeClaims: those whose nodes take too long (`overdue`),
and, at the end of a wait, those whose nodes are not initialized if no pod waits for them (`unneeded`).

A NodeClaim is deleted only if its marks say that Karpenter created it for placeholders of this run and of no other
(launcher/manifests.py). Labels of pods, Events and the devices in a job's spec are not trusted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from launcher.actions import ReleaseNode, Remove, remove
from launcher.capacity import is_placeholder, is_warm, missing_devices
from launcher.manifests import mark
from launcher.observe import Claim, Observation, Pod
from launcher.progress import Loss
from launcher.request import NodeRequest
from trainyard.k8s import names

# Pods of a DaemonSet run on every node, and a Node owns the static pods of its kubelet. Karpenter launches no node for
# either (sigs.k8s.io/karpenter v1.14.1, IsProvisionable in pkg/utils/pod/scheduling.go).
_PER_NODE_OWNERS = frozenset({"DaemonSet", "Node"})
# Key, value and effect.
Taint = tuple[str, str, str]


def complete_at(request: NodeRequest, seen: Observation, before: Mapping[str, float]) -> dict[str, float]:
    """Return when each node was last seen with all of its devices, by the uid of its NodeClaim.

    When a device plugin restarts, the devices are missing for a moment. Such a node is not overdue.

    Args:
        before: The result of the last observation.
    """
    lacking = _lacking(request, seen)
    moments = {claim.uid: before.get(claim.uid) if lacking[claim.uid] else seen.now for claim in seen.claims}
    return {uid: min(moment, seen.now) for uid, moment in moments.items() if moment is not None}


def overdue(
    request: NodeRequest,
    seen: Observation,
    *,
    since: float,
    watched_since: float,
    complete: Mapping[str, float],
) -> tuple[ReleaseNode | Remove, ...]:
    """Return the NodeClaims to delete because their nodes did not get all of their devices within `nodeStartSeconds`.

    A node with a foreign pod is never among them. Each NodeClaim is followed by the placeholders on its node, which
    would block the drain.

    Args:
        since: The start of the run. Only NodeClaims that were created later count. Seconds since the epoch.
        watched_since: The time since when the run watches nodes, in seconds since the epoch.
        complete: The result of `complete_at`.
    """
    lacking = _lacking(request, seen)
    pods: dict[str, list[Pod]] = defaultdict(list)
    for pod in seen.pods:
        pods[pod.node].append(pod)
    found: list[ReleaseNode | Remove] = []
    for claim in _own_claims(request, seen, since):
        silent = seen.now - max(claim.created, watched_since, complete.get(claim.uid, claim.created))
        if silent < request.node_start_seconds or not lacking[claim.uid]:
            continue
        here = pods.get(claim.node, []) if claim.node else []
        if any(_is_foreign(pod, request) for pod in here):
            continue
        reason = f"{_named(claim)}: {lacking[claim.uid]} after {request.node_start_seconds} s"
        found.append(ReleaseNode(claim=claim.name, uid=claim.uid, reason=reason))
        found += remove(tuple(pod for pod in here if is_placeholder(pod, request) and not pod.deleting))
    return tuple(found)


def unneeded(request: NodeRequest, seen: Observation, *, since: float) -> tuple[ReleaseNode, ...]:
    """Return the NodeClaims to delete at the end of a wait or a run: created after `since`, and not initialized.

    Other pods may also wait for one of these nodes. So no NodeClaim is deleted while a pod of another workload waits
    for a node of the pool. `seen` must come from fresh lists, with the NodeClaims listed after the nodes, so that a
    NodeClaim names each node that is counted.
    """
    taints = seen.pool.taints if seen.pool is not None else ()
    if any(_waits_for_pool(pod, request, taints) for pod in seen.pods):
        return ()
    nodes = {node.name: node for node in seen.nodes}
    busy = {pod.node for pod in seen.pods if pod.node and _is_foreign(pod, request)}
    found = []
    for claim in _own_claims(request, seen, since):
        node = nodes.get(claim.node)
        if (node is not None and node.initialized) or claim.node in busy:
            continue
        state = "not registered" if node is None else "not initialized"
        reason = f"{_named(claim)}: {state}, and no longer needed"
        found.append(ReleaseNode(claim=claim.name, uid=claim.uid, reason=reason, late=False))
    return tuple(found)


def _named(claim: Claim) -> str:
    return f"{claim.instance} / NodeClaim {claim.name}" if claim.instance else f"NodeClaim {claim.name}"


def describe(losses: Sequence[Loss]) -> str:
    """Return the message about the released nodes; "" if there are none."""
    if not losses:
        return ""
    if len(losses) == 1:
        return f"1 node released: {losses[0].message}"
    return f"{len(losses)} nodes released, the last: {losses[-1].message}"


def _lacking(request: NodeRequest, seen: Observation) -> dict[str, str]:
    """Return the missing devices of each node, by the uid of its NodeClaim."""
    nodes = {node.name: node for node in seen.nodes}
    lacking = {}
    for claim in seen.claims:
        node = nodes.get(claim.node)
        lacking[claim.uid] = "not registered" if node is None else missing_devices(request, node)
    return lacking


def _own_claims(request: NodeRequest, seen: Observation, since: float) -> list[Claim]:
    """Return the NodeClaims of this run alone that were created after `since` and are not being deleted."""
    own = {mark(request.namespace, request.run_id)}
    return [
        claim for claim in seen.claims if claim.marks == own and claim.created >= since and not claim.deleting
    ]


def _waits_for_pool(pod: Pod, request: NodeRequest, taints: Iterable[Taint]) -> bool:
    """Return whether this pod of another workload has no node and may wait for a node of this pool."""
    own = pod.namespace == request.namespace and pod.labels.get(names.LABEL_RUN) == request.run_id
    if own or pod.node or pod.deleting or pod.finished:
        return False
    if pod.owner in _PER_NODE_OWNERS or not wants_pool(pod, request):
        return False
    return all(taint[2] == "PreferNoSchedule" or tolerates(pod.tolerations, taint) for taint in taints)


def wants_pool(pod: Pod, request: NodeRequest) -> bool:
    """Return whether the pod's node selector does not exclude the pool.

    Its resource requests do not matter: a node may have more resources than this run knows.
    """
    labels = request.pool.node_selector
    return not any(labels.get(key, value) != value for key, value in pod.selector.items())


def tolerates(tolerations: Iterable[Mapping[str, Any]], taint: Taint) -> bool:
    """Return whether one of the tolerations matches the taint.

    https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/
    """
    key, value, effect = taint
    return any(
        (each.get("key") or key) == key
        and (each.get("effect") or effect) == effect
        and (each.get("operator") == "Exists" or (each.get("value") or "") == value)
        for each in tolerations
    )


def _is_foreign(pod: Pod, request: NodeRequest) -> bool:
    ours = is_placeholder(pod, request) or is_warm(pod)
    return not ours and not pod.finished and pod.owner not in _PER_NODE_OWNERS
