"""Pools whose NodePool is deleted while the stack file has them."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from tests.unit.cli.test_up_messages import Answers, queue
from trainyard.cli.engine import EngineError
from trainyard.cli.errors import CommandError
from trainyard.cli.pool_drift import NODE_POOL, check_deployed_pools, find_missing
from trainyard.k8s.client import ApiError, ApiUnavailable

CONFIG = {"trainyard:pools": [{"name": "small"}, {"name": "new"}]}
STATE = {
    "resources": [
        {"type": "pulumi:pulumi:Stack", "urn": "stack", "outputs": {"clusterName": "c"}},
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
    with pytest.raises(CommandError, match="pool small: is being deleted"):
        find_missing(STATE, CONFIG, [node_pool("small", deletionTimestamp="2027-01-15T08:00:00Z")])
    removed = node_pool("removed", deletionTimestamp="2027-01-15T08:00:00Z")
    assert find_missing(STATE, CONFIG, [node_pool("small"), removed]) == {}


def check_with(monkeypatch: pytest.MonkeyPatch, connect: Mock) -> dict[str, str]:
    monkeypatch.setattr("trainyard.k8s.kubeconfig.connect", connect)
    stack: Any = SimpleNamespace(kubeconfig=lambda _outputs: contextlib.nullcontext(Path("kubeconfig")))
    return check_deployed_pools(stack, STATE, CONFIG)


def test_all_of_the_pools_is_read_with_one_client(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    connect = Mock(return_value=(Answers(queue("theirs", "removed")), ""))
    assert check_with(monkeypatch, connect) == {"small": "urn-small"}
    assert connect.call_count == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["pool removed", "pool small"]


@pytest.mark.parametrize(
    "error",
    [
        OSError(),
        ApiError("GET", "/", 403, "Forbidden", ""),
        ApiUnavailable("no answer"),
        EngineError("no AWS CLI"),
    ],
)
def test_pools_of_an_unreachable_cluster_are_not_reported(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check_with(monkeypatch, Mock(side_effect=error)) == {}
    assert capsys.readouterr().out == ""
