"""What a queue's pool can ever give a job, as the queue's status keeps it for `kubectl torchrun submit`. Pure.

The controller writes it (`written`), and counts with it while the pool has no node (`node_of`). `refusal` is the
controller's own judgement (launcher/core/capacity.py: preflight) of a job that is not made yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from launcher.core import capacity, quantity
from launcher.core import contract as c
from launcher.core.observe import Node, NodePool, Observation
from launcher.core.quantity import Amount
from launcher.core.torchrun import pool_request
from launcher.core.torchrun.pods import Making
from launcher.core.torchrun.reading import JsonObject

NAME: Final = "name"
FOUND: Final = "found"
LIMITS: Final = "limits"
NODE: Final = "nodeResources"
NODES: Final = "maxNodes"
DECLARED: Final = "declared"


def written(name: str, seen: Observation, before: Any) -> JsonObject:
    """Return `pool` of the queue's status. `before` is that status as it was."""
    if seen.pool is None:
        return {NAME: name, FOUND: False}
    pool = with_node(seen.pool, seen.nodes, node_of(before, name))
    most = most_nodes(pool)
    return {
        NAME: name,
        FOUND: True,
        LIMITS: _texts(pool.limits),
        NODE: _texts(pool.node),
        DECLARED: pool.declared,
        **({NODES: most} if most is not None else {}),
    }


def with_node(pool: NodePool, nodes: Iterable[Node], before: Mapping[str, Amount]) -> NodePool:
    """Return the pool with what one of its nodes has, where it does not say that itself.

    That is what nodes of the pool have, or had `before`. Of several instance types it is not known which one comes.
    """
    if pool.node or len(pool.offers.get(c.LABEL_INSTANCE_TYPE, ())) != 1:
        return pool
    node = dict(before)
    for each in nodes:
        if each.ready and each.labels.get(c.LABEL_INITIALIZED) == "true":
            node |= {name: max(amount, node.get(name, 0)) for name, amount in each.allocatable.items()}
    return replace(pool, node={name: amount for name, amount in node.items() if amount})


def most_nodes(pool: NodePool) -> int | None:
    """Return how many nodes the pool can have at most; None where that is not known."""
    found = [
        int(limit // (1 if name == "nodes" else pool.node[name]))
        for name, limit in pool.limits.items()
        if name == "nodes" or pool.node.get(name)
    ]
    return min(found, default=None)


def node_of(status: Any, name: str) -> Mapping[str, Amount]:
    """Return what a node of this pool has, as the status of a queue has it; {} where it does not."""
    kept = status.get("pool") if isinstance(status, Mapping) else None
    if not isinstance(kept, Mapping) or kept.get(NAME) != name:
        return {}
    return _amounts(kept.get(NODE))


def refusal(status: Any, making: Making, now: float) -> str:
    """Return why the pool of a queue with this status can never give the nodes of `making`; "" where it may."""
    name = making.settings.queue.pool
    kept = status.get("pool") if isinstance(status, Mapping) else None
    if not name or not isinstance(kept, Mapping) or kept.get(NAME) != name:
        return ""
    pool = NodePool(
        limits=_amounts(kept.get(LIMITS)),
        ready=True,
        problem="",
        node=_amounts(kept.get(NODE)),
        declared=kept.get(DECLARED) is True,
    )
    found = pool if kept.get(FOUND) is True else None
    try:
        request = pool_request.request_of(making, found)
    except pool_request.Unreadable as error:
        return str(error)
    why = capacity.preflight(request, Observation(now=now, fresh=False, pool=found), now)
    return why.reason if why is not None else ""


def _texts(amounts: Mapping[str, Amount]) -> dict[str, str]:
    return {name: pool_request.text(amount) for name, amount in sorted(amounts.items())}


def _amounts(texts: Any) -> dict[str, Amount]:
    try:
        return {str(name): quantity.parse(text) for name, text in texts.items()}
    except (AttributeError, ValueError, TypeError):
        return {}
