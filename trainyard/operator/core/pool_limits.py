"""Keep the limits of a queue's NodePool in the queue's status, for `kubectl torchrun submit`. Pure.

The controller writes them (`pool_status`) and uses them while the pool has no node (`node_resources`). Before a job is
created, `rejection_reason` applies the controller's own check (launcher/capacity.py: preflight) to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from launcher import capacity
from launcher.observe import Node, NodePool, Observation
from trainyard.k8s import names, quantity
from trainyard.k8s.quantity import Amount
from trainyard.operator.core import pool_request
from trainyard.operator.core.pods import Making
from trainyard.operator.core.reading import JsonObject

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

    They come from the present nodes of the pool, or from `before`. A pool with several instance types stays as it is,
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


def rejection_reason(status: Any, making: Making, now: float) -> str:
    """Return why the pool of a queue with this status can never provide the nodes of `making`; "" if it can."""
    name = making.settings.queue.pool
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
        request = pool_request.request_of(making, found)
    except pool_request.Unreadable as error:
        return str(error)
    why = capacity.preflight(request, Observation(now=now, fresh=False, pool=found), now)
    if why is not None or found is None:
        return why.reason if why is not None else ""
    return pool_request.taint_problem(making, found)


def reservation_warning(status: Any, name: str) -> str:
    """Return why the pool of this name can't buy a node now, which a reservation that begins later changes; or ""."""
    kept = status.get("pool") if isinstance(status, Mapping) else None
    if not name or not isinstance(kept, Mapping) or kept.get(NAME) != name or kept.get(RESERVATIONS) != 0:
        return ""
    return capacity.unreserved(name)


def _format_amounts(amounts: Mapping[str, Amount]) -> dict[str, str]:
    return {name: pool_request.text(amount) for name, amount in sorted(amounts.items())}


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
