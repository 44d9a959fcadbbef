"""Express a TorchrunJob as a request to a Karpenter pool, with the rules of the launcher. Pure.

The limits of the pool stand in the queue's status, for `kubectl torchrun submit`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil
from typing import Any, Final

from launcher import capacity, manifests, observe
from launcher.manifests import Owner, add_mark, mark
from launcher.observe import Node, NodePool, Observation
from launcher.request import GPU_RESOURCE, Placeholder, Pool, Request, Worker
from trainyard.k8s import names, quantity
from trainyard.k8s.quantity import Amount
from trainyard.operator import names as n
from trainyard.operator.api.fields import JsonObject
from trainyard.operator.children import build_worker, owner_reference, pull_secrets, spec_digest
from trainyard.operator.context import AttemptSpec
from trainyard.operator.placement import LOST_NODE_TAINTS, REQUIRED

# The defaults of a launcher's run (docs/settings.md: training.capacityDeadlineSeconds and others).
DEADLINE_SECONDS: Final = 1200
HOLD_SECONDS: Final = 60
NODE_START_SECONDS: Final = 900
RETRY_SECONDS: Final = 240
# A first process without a handler ignores SIGTERM, so the trap ends it at once.
_PLACEHOLDER_COMMAND: Final = ["sh", "-c", "trap 'exit 0' TERM; sleep infinity & wait"]
_HOSTNAME: Final = "kubernetes.io/hostname"
_SOFT_EFFECT: Final = "PreferNoSchedule"


class Unreadable(ValueError):
    """An amount in the pod template can't be read; the message says which."""


@dataclass(frozen=True, kw_only=True)
class JobRequest(Request):
    """The request of a job. Its placeholders are named after it, and request `asks`, as its workers do.

    A run of the launcher takes whole nodes. A worker may request a part of a node, and each one still counts as one
    node. `affinity` is the workers' nodeAffinity, {} for none.
    """

    job: str
    asks: Mapping[str, str]
    affinity: Mapping[str, Any]

    def placeholder_name(self, index: int) -> str:
        return n.hold_pod(self.job, index)

    @property
    def resources(self) -> dict[str, str]:
        return dict(self.asks)


def build_request(attempt: AttemptSpec, pool: NodePool | None) -> JobRequest:
    """Return the request for the nodes of an attempt. Raises Unreadable."""
    size, queue = attempt.size, attempt.settings.queue
    spec = _worker_spec(attempt)
    amounts = worker_requests(attempt)
    resource = GPU_RESOURCE if size.gpus else "cpu"
    return JobRequest(
        job=attempt.name,
        asks={name: format_amount(amount) for name, amount in amounts.items()},
        affinity=_node_affinity(spec),
        run_id=f"{n.RUN_PREFIX}{attempt.name}",
        namespace=attempt.namespace,
        pool=Pool(
            name=queue.scheduling.pool,
            instance_type=_offered(pool, names.LABEL_INSTANCE_TYPE) or "any type",
            zone=_offered(pool, names.LABEL_ZONE) or "any zone",
            resource=resource,
            per_node=size.gpus or max(1, int(amounts.get(resource, 1))),
            max_nodes=size.nodes,  # the NodePool's limit is the real maximum
            efa_per_node=int(amounts.get(names.EFA_RESOURCE, 0)),
            node_selector=spec["nodeSelector"],
            tolerations=_tolerations(spec["tolerations"], pool),
        ),
        min_nodes=size.least,
        max_nodes=size.nodes,
        deadline_seconds=DEADLINE_SECONDS,
        hold_seconds=HOLD_SECONDS,
        node_start_seconds=NODE_START_SECONDS,
        attempts=1,
        retry_seconds=RETRY_SECONDS,
        max_restarts=attempt.settings.max_restarts,
        shape=names.SHAPE_ELASTIC if size.elastic else names.SHAPE_STATIC,
        active_deadline_seconds=None,
        placeholder=Placeholder(
            image=attempt.cluster.tools_image, priority_class=names.PLACEHOLDER_PRIORITY_CLASS
        ),
        worker=Worker(
            image=queue.image,
            service_account="",
            priority_class=queue.scheduling.priority_class_name,
            processes_per_node=size.processes,
            cpu=format_amount(amounts.get("cpu", 0)),
            memory=format_amount(amounts.get("memory", 0)),
            shared_memory="0",
            env={},
            args=(),
            command=None,
            mounts={},
        ),
        fallbacks=(),
    )


def _worker_spec(attempt: AttemptSpec) -> JsonObject:
    node = 0 if attempt.storage.each_node_its_own else None
    spec: JsonObject = build_worker(attempt, node)["spec"]
    return spec


def _node_affinity(spec: JsonObject) -> Mapping[str, Any]:
    return (spec.get("affinity") or {}).get("nodeAffinity") or {}


def worker_requests(attempt: AttemptSpec) -> dict[str, quantity.Amount]:
    """Return what the scheduler reserves for a worker.

    Raises:
        Unreadable: An amount can't be read.
    """
    try:
        return observe.effective_requests(_worker_spec(attempt))
    except (ValueError, TypeError, AttributeError) as error:
        raise Unreadable(f"podTemplate.spec asks for what is no amount: {error}") from None


def format_amount(amount: quantity.Amount) -> str:
    """Return an amount as a quantity, rounded up to a thousandth."""
    return f"{ceil(amount * 1000)}m" if isinstance(amount, Fraction) else str(amount)


def _offered(pool: NodePool | None, label: str) -> str:
    return ", ".join(pool.offers.get(label, ())) if pool is not None else ""


def _tolerations(given: Iterable[Mapping[str, Any]], pool: NodePool | None) -> tuple[Mapping[str, Any], ...]:
    """Return the worker's tolerations, each for one key. One for all taints would hide startup taints."""
    own = [each for each in given if each.get("key") and each.get("key") not in LOST_NODE_TAINTS]
    keys = {each.get("key") for each in own}
    taints = pool.taints if pool is not None else ()
    named = [
        {"key": key, "operator": "Exists", "effect": effect}
        for key, value, effect in taints
        if key not in keys and any(_tolerates(each, key, value, effect) for each in given)
    ]
    return (*own, *named)


def untolerated_taints(attempt: AttemptSpec, pool: NodePool) -> list[str]:
    """Return the pool's taints that the workers do not tolerate."""
    given = _worker_spec(attempt)["tolerations"]
    return [
        f"{key}={value}:{effect}" if value else f"{key}:{effect}"
        for key, value, effect in pool.taints
        if effect != _SOFT_EFFECT and not any(_tolerates(each, key, value, effect) for each in given)
    ]


def taint_problem(attempt: AttemptSpec, pool: NodePool) -> str:
    """Return which taints of the queue's pool keep the workers off its nodes; "" if none does."""
    refused = untolerated_taints(attempt, pool)
    if not refused:
        return ""
    name = attempt.settings.queue.scheduling.pool
    return (
        f"NodePool {name} has taints that the workers do not tolerate: {', '.join(refused)}; "
        "scheduling.tolerations of the queue must have them"
    )


def _tolerates(toleration: Mapping[str, Any], key: str, value: str, effect: str) -> bool:
    """Return whether a toleration matches a taint.

    https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/
    """
    if (toleration.get("key") or key) != key or (toleration.get("effect") or effect) != effect:
        return False
    if toleration.get("operator") == "Exists":
        return True
    return bool(toleration.get("key")) and (toleration.get("value") or "") == value


def build_placeholder(attempt: AttemptSpec, request: JobRequest, index: int, wait: str) -> JsonObject:
    """Return the launcher's placeholder, owned by the job, each on a node of its own, where workers may run."""
    made = manifests.placeholder(request, index, Owner(name=attempt.name, uid=attempt.uid), wait)
    meta, spec = made["metadata"], made["spec"]
    meta["labels"] |= attempt.labels
    meta["ownerReferences"] = [owner_reference(attempt.name, attempt.uid)]
    apart = {"matchLabels": {n.LABEL_JOB: attempt.name, names.LABEL_ROLE: names.ROLE_PLACEHOLDER}}
    spec["affinity"] = {
        "nodeAffinity": add_mark(request.affinity, mark(request.namespace, request.run_id)),
        "podAntiAffinity": {REQUIRED: [{"labelSelector": apart, "topologyKey": _HOSTNAME}]},
    }
    spec["containers"][0]["command"] = list(_PLACEHOLDER_COMMAND)
    spec |= pull_secrets(attempt.settings.queue)
    meta["annotations"][n.ANNOTATION_MADE_OF] = spec_digest(spec)
    return made


NAME: Final = "name"
FOUND: Final = "found"
LIMITS: Final = "limits"
NODE: Final = "nodeResources"
NODES: Final = "maxNodes"
DECLARED: Final = "declared"
RESERVATIONS: Final = "reservations"
TAINTS: Final = "taints"
_TAINT: Final = ("key", "value", "effect")


def pool_status(name: str, seen: Observation, before: Any) -> JsonObject:
    """Return `pool` of the queue's status. `before` is the previous status."""
    if seen.pool is None:
        return {NAME: name, FOUND: False}
    pool = with_node_resources(seen.pool, seen.nodes, node_resources(before, name))
    maximum = max_nodes(pool)
    return {
        NAME: name,
        FOUND: True,
        LIMITS: _format_amounts(pool.limits),
        NODE: _format_amounts(pool.node),
        DECLARED: pool.declared,
        **({NODES: maximum} if maximum is not None else {}),
        **({RESERVATIONS: pool.reservations} if pool.reservations is not None else {}),
        **({TAINTS: [dict(zip(_TAINT, each, strict=True)) for each in pool.taints]} if pool.taints else {}),
    }


def with_node_resources(pool: NodePool, nodes: Iterable[Node], before: Mapping[str, Amount]) -> NodePool:
    """Return the pool with the resources of one node, if the pool does not declare them.

    They come from the present nodes of the pool, or from `before`. A pool with several instance types does not change,
    because the type of its next node is not known.
    """
    if pool.node or len(pool.offers.get(names.LABEL_INSTANCE_TYPE, ())) != 1:
        return pool
    node = dict(before)
    for each in nodes:
        if each.ready and each.labels.get(names.LABEL_INITIALIZED) == "true":
            node |= {name: max(amount, node.get(name, 0)) for name, amount in each.allocatable.items()}
    return replace(pool, node={name: amount for name, amount in node.items() if amount})


def max_nodes(pool: NodePool) -> int | None:
    """Return the maximum number of nodes of the pool; None if it is not known."""
    found = [
        int(limit // (1 if name == "nodes" else pool.node[name]))
        for name, limit in pool.limits.items()
        if name == "nodes" or pool.node.get(name)
    ]
    return min(found, default=None)


def node_resources(status: Any, name: str) -> Mapping[str, Amount]:
    """Return the resources of a node of this pool from a queue's status; {} if the status has none."""
    pool = status.get("pool") if isinstance(status, Mapping) else None
    if not isinstance(pool, Mapping) or pool.get(NAME) != name:
        return {}
    return _parse_amounts(pool.get(NODE))


def pool_rejection_reason(status: Any, attempt: AttemptSpec, now: float) -> str:
    """Return why the pool of a queue with this status can never provide the nodes of `making`; "" if it can."""
    name = attempt.settings.queue.scheduling.pool
    pool_fields = status.get("pool") if isinstance(status, Mapping) else None
    if not name or not isinstance(pool_fields, Mapping) or pool_fields.get(NAME) != name:
        return ""
    pool = NodePool(
        limits=_parse_amounts(pool_fields.get(LIMITS)),
        ready=True,
        problem="",
        node=_parse_amounts(pool_fields.get(NODE)),
        declared=pool_fields.get(DECLARED) is True,
        taints=_parse_taints(pool_fields.get(TAINTS)),
    )
    found = pool if pool_fields.get(FOUND) is True else None
    try:
        request = build_request(attempt, found)
    except Unreadable as error:
        return str(error)
    why = capacity.preflight(request, Observation(now=now, fresh=False, pool=found), now)
    if why is not None or found is None:
        return why.reason if why is not None else ""
    return taint_problem(attempt, found)


def reservation_warning(status: Any, name: str) -> str:
    """Return why the pool of this name can't buy a node now, which a reservation that begins later changes; or ""."""
    kept = status.get("pool") if isinstance(status, Mapping) else None
    if not name or not isinstance(kept, Mapping) or kept.get(NAME) != name or kept.get(RESERVATIONS) != 0:
        return ""
    return capacity.no_reservation(name)


def _format_amounts(amounts: Mapping[str, Amount]) -> dict[str, str]:
    return {name: format_amount(amount) for name, amount in sorted(amounts.items())}


def _parse_amounts(texts: Any) -> dict[str, Amount]:
    try:
        return {str(name): quantity.parse(text) for name, text in texts.items()}
    except (AttributeError, ValueError, TypeError):
        return {}


def _parse_taints(items: Any) -> tuple[tuple[str, str, str], ...]:
    taints = [each for each in items if isinstance(each, Mapping)] if isinstance(items, list) else []
    return tuple(
        (str(each.get("key", "")), str(each.get("value", "")), str(each.get("effect", ""))) for each in taints
    )
