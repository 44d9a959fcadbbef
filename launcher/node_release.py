"""Machines that cost and are of no use, and whether they may be given back. Pure.

Karpenter takes an empty machine by itself, once it is initialized. It deletes the NodeClaim of one that has not
registered after 15 minutes (sigs.k8s.io/karpenter v1.14.1, pkg/controllers/nodeclaim/lifecycle/liveness.go), but waits
without end for one that is not initialized, and does not take it for an empty one (pkg/controllers/state/statenode.go,
ValidateNodeDisruptable). So two kinds are given back here: those that take too long, and, when a wait is over, those
that are still on their way and that nobody waits for any more.

A NodeClaim is deleted only if its marks say that Karpenter created it for placeholders of this run and of no other
(launcher/manifests.py). Labels of pods, Events and the devices in a job's spec are not trusted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from launcher.actions import GiveBack
from launcher.capacity import incomplete, is_placeholder, is_warm
from launcher.manifests import mark
from launcher.observe import Claim, Observation, Pod
from launcher.progress import Loss
from launcher.request import Request
from trainyard.k8s import names

# Pods of a DaemonSet are on every machine, and a Node owns the ones that its kubelet itself keeps; Karpenter, too,
# buys a machine for neither (sigs.k8s.io/karpenter v1.14.1, IsProvisionable in pkg/utils/pod/scheduling.go).
_OWNERS_THAT_COME_WITH_A_MACHINE = frozenset({"DaemonSet", "Node"})
_FINISHED = frozenset({"Succeeded", "Failed"})
# Key, value and effect.
Taint = tuple[str, str, str]


@dataclass(frozen=True, kw_only=True)
class Return:
    """A NodeClaim to give back, why, and the placeholders on its node, which would hold up the drain."""

    claim: Claim
    reason: str
    held_by: tuple[Pod, ...]


def complete_at(request: Request, seen: Observation, before: Mapping[str, float]) -> dict[str, float]:
    """When each machine was last seen with everything that it should have, by the uid of its NodeClaim.

    `before` is what this said at the last observation. A device plugin that is restarted takes the devices away for
    moments; such a machine is not one that never came.
    """
    lacking = _lacking(request, seen)
    moments = {claim.uid: before.get(claim.uid) if lacking[claim.uid] else seen.now for claim in seen.claims}
    return {uid: min(moment, seen.now) for uid, moment in moments.items() if moment is not None}


def overdue(
    request: Request, seen: Observation, *, since: float, heard: float, complete: Mapping[str, float]
) -> tuple[Return, ...]:
    """The machines that are given back since they take too long to have all that they should have.

    They were made after `since`, which is when the run began; `heard` is from when on machines are watched, both in
    seconds since the epoch, and `complete` what `complete_at` says. A machine where a pod of somebody else runs is
    never among them.
    """
    lacking = _lacking(request, seen)
    pods: dict[str, list[Pod]] = defaultdict(list)
    for pod in seen.pods:
        pods[pod.node].append(pod)
    found = []
    for claim in seen.claims:
        created = seen.now - claim.age
        if not _is_own(claim, request):
            continue
        silent = seen.now - max(created, heard, complete.get(claim.uid, created))
        if claim.deleting or created < since or silent < request.node_start_seconds or not lacking[claim.uid]:
            continue
        here = pods.get(claim.node, []) if claim.node else []
        if any(_of_somebody_else(pod, request) for pod in here):
            continue
        held_by = tuple(pod for pod in here if is_placeholder(pod, request) and not pod.deleting)
        reason = f"{lacking[claim.uid]} after {request.node_start_seconds} s"
        found.append(Return(claim=claim, reason=reason, held_by=held_by))
    return tuple(found)


def unneeded(request: Request, seen: Observation, *, since: float) -> tuple[GiveBack, ...]:
    """Gives back, when a wait or a run is over, the machines that were made after `since` and are not initialized yet.

    Other pods may also wait for one of these nodes. So none is deleted while a pod of another workload waits for a node
    of the pool. `seen` must come from fresh lists, and the NodeClaims must be listed after the nodes, so that a
    NodeClaim names each node that is counted.
    """
    taints = seen.pool.taints if seen.pool is not None else ()
    if any(_waits_for_pool(pod, request, taints) for pod in seen.pods):
        return ()
    nodes = {node.name: node for node in seen.nodes}
    busy = {pod.node for pod in seen.pods if _of_somebody_else(pod, request)}
    initialized = {node.name for node in seen.nodes if node.labels.get(names.LABEL_INITIALIZED) == "true"}
    found = []
    for claim in seen.claims:
        node = nodes.get(claim.node)
        if claim.node in initialized:
            continue
        if not _is_own(claim, request) or claim.deleting or seen.now - claim.age < since:
            continue
        if claim.node and claim.node in busy:
            continue
        state = "not registered" if node is None else "not initialized"
        reason = f"{_named(claim)}: {state}, and not waited for any more"
        found.append(GiveBack(claim=claim.name, uid=claim.uid, reason=reason, late=False))
    return tuple(found)


def loss(one: Return) -> Loss:
    """A machine that is given back since it took too long, as it is remembered."""
    return Loss(uid=one.claim.uid, told=f"{_named(one.claim)}: {one.reason}")


def _named(claim: Claim) -> str:
    return f"{claim.instance} / NodeClaim {claim.name}" if claim.instance else f"NodeClaim {claim.name}"


def told(losses: Iterable[Loss]) -> str:
    """The machines that were given back in words; empty without any."""
    every = list(losses)
    if not every:
        return ""
    if len(every) == 1:
        return f"1 machine given back: {every[0].told}"
    return f"{len(every)} machines given back, the last: {every[-1].told}"


def _lacking(request: Request, seen: Observation) -> dict[str, str]:
    """What each machine lacks, by the uid of its NodeClaim."""
    nodes = {node.name: node for node in seen.nodes}
    lacking = {}
    for claim in seen.claims:
        node = nodes.get(claim.node)
        lacking[claim.uid] = "not registered" if node is None else incomplete(request, node)
    return lacking


def _is_own(claim: Claim, request: Request) -> bool:
    return claim.marks == {mark(request.namespace, request.run_id)}


def _waits_for_pool(pod: Pod, request: Request, taints: Iterable[Taint]) -> bool:
    """Return whether this pod of another workload has no node and may wait for a node of this pool."""
    own = pod.namespace == request.namespace and pod.labels.get(names.LABEL_RUN) == request.run_id
    if own or pod.node or pod.deleting or pod.phase in _FINISHED:
        return False
    if pod.owner in _OWNERS_THAT_COME_WITH_A_MACHINE or not wants_pool(pod, request):
        return False
    return all(_tolerates(pod, taint) for taint in taints)


def wants_pool(pod: Pod, request: Request) -> bool:
    """Return whether the pod's node selector does not exclude the pool.

    Its resource requests do not matter: a node may have more resources than this run knows.
    """
    labels = request.pool.node_selector
    return not any(labels.get(key, value) != value for key, value in pod.selector.items())


def _tolerates(pod: Pod, taint: Taint) -> bool:
    """Return whether the pod tolerates the taint.

    https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/
    """
    key, value, effect = taint
    if effect == "PreferNoSchedule":
        return True
    return any(
        (each.get("key") or key) == key
        and (each.get("effect") or effect) == effect
        and (each.get("operator") == "Exists" or (each.get("value") or "") == value)
        for each in pod.tolerations
    )


def _of_somebody_else(pod: Pod, request: Request) -> bool:
    ours = is_placeholder(pod, request) or is_warm(pod)
    return not ours and pod.phase not in _FINISHED and pod.owner not in _OWNERS_THAT_COME_WITH_A_MACHINE
