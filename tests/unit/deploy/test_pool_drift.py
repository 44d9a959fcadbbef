"""Pools whose NodePool is deleted while the stack file has them."""

from __future__ import annotations

from typing import Any

import pytest

from local.deploy.pool_drift import PoolDeletingError, find_missing
from local.deploy.up_messages import NODE_POOL

pytestmark = pytest.mark.unit
CONFIG = {"trainyard:pools": [{"name": "small"}, {"name": "new"}]}
STATE = {
    "resources": [
        {"type": "pulumi:pulumi:Stack", "urn": "stack"},
        {"type": NODE_POOL, "urn": "urn-small", "inputs": {"metadata": {"name": "small"}}},
        {"type": NODE_POOL, "urn": "urn-removed", "inputs": {"metadata": {"name": "removed"}}},
    ]
}


def node_pool(name: str, **more: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, **more}}


def test_pool_that_is_in_state_and_not_in_cluster_is_missing() -> None:
    assert find_missing(STATE, CONFIG, []) == {"small": "urn-small"}
    assert find_missing(STATE, CONFIG, [node_pool("small")]) == {}
    assert find_missing({}, CONFIG, []) == {}


def test_pool_that_is_being_deleted_is_refused() -> None:
    with pytest.raises(PoolDeletingError, match="pool small: is being deleted"):
        find_missing(STATE, CONFIG, [node_pool("small", deletionTimestamp="2027-01-15T08:00:00Z")])
    removed = node_pool("removed", deletionTimestamp="2027-01-15T08:00:00Z")
    assert find_missing(STATE, CONFIG, [node_pool("small"), removed]) == {}
