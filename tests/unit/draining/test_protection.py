"""The drain turns off the deletion protection of a cluster that its stack created."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError

from components.draining import entry, protection
from components.draining.cluster_api import DrainError
from tests.unit.draining.test_steps import Time
from tests.unit.emulator import Cloud


class Eks:
    """EKS with one protected cluster.

    The first updates fail with the codes `refusals`. The update then ends after `polls` calls of `describe_update`.
    """

    def __init__(self, *refusals: str, polls: int = 0, end: str = "Successful") -> None:
        self.refusals = list(refusals)
        self.polls = polls
        self.end = end
        self.requests: list[dict[str, Any]] = []

    def describe_cluster(self, name: str) -> Any:
        return {"cluster": {"name": name, "deletionProtection": True}}

    def update_cluster_config(self, **request: Any) -> Any:
        if self.refusals:
            error = {"Code": self.refusals.pop(0), "Message": "not now"}
            raise ClientError({"Error": error}, "UpdateClusterConfig")
        self.requests.append(request)
        return {"update": self._update()}

    def describe_update(self, name: str, updateId: str) -> Any:
        self.polls -= 1
        return {"update": self._update()}

    def _update(self) -> dict[str, Any]:
        errors = [] if self.end == "Successful" else [{"errorMessage": "no subnets"}]
        return {"id": "u1", "status": "InProgress" if self.polls > 0 else self.end, "errors": errors}


def turn_off(eks: Any, cluster: str = "main") -> list[str]:
    lines: list[str] = []
    protection.turn_off(eks, cluster, report=lines.append, clock=Time())
    return lines


def test_turn_off_lets_a_protected_cluster_be_deleted(cloud: Cloud) -> None:
    eks = cloud.client("eks")
    name = cloud.cluster()["name"]
    eks.update_cluster_config(name=name, deletionProtection=True)
    with pytest.raises(ClientError, match="deletion protection"):
        eks.delete_cluster(name=name)
    assert turn_off(eks, name) == ["turning off the cluster's deletion protection"]
    assert turn_off(eks, name) == [], "the protection is already off"
    eks.delete_cluster(name=name)


def test_turn_off_of_a_missing_cluster_does_nothing(cloud: Cloud) -> None:
    assert turn_off(cloud.client("eks"), "nobody") == []


def test_turn_off_waits_for_both_updates() -> None:
    eks = Eks("ResourceInUseException", "ThrottlingException", polls=3)
    turn_off(eks)
    assert eks.requests == [{"name": "main", "deletionProtection": False}]
    assert eks.polls == 0


@pytest.mark.parametrize(
    ("eks", "reason"),
    [
        (Eks("AccessDeniedException"), "not now"),
        (Eks(*["ResourceInUseException"] * 1000), "not now"),
        (Eks(polls=1000), "update u1 is still in progress"),
        (Eks(end="Failed"), "update u1 is Failed: no subnets"),
    ],
)
def test_turn_off_failure_is_one_line_with_the_command(eks: Eks, reason: str) -> None:
    with pytest.raises(DrainError, match=reason) as caught:
        turn_off(eks)
    assert "aws eks update-cluster-config --name main --no-deletion-protection" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("pools", "clusters"), [(None, ["main"]), (["small"], [])])
def test_drain_turns_off_protection_last_in_own_cluster_only(
    pools: list[str] | None, clusters: list[str], monkeypatch: pytest.MonkeyPatch, deployer: Cloud
) -> None:
    calls: list[str] = []
    monkeypatch.setattr(entry, "connect", lambda *_: None)
    monkeypatch.setattr(entry.steps, "run", lambda *_, **__: calls.append("drained"))
    monkeypatch.setattr(entry.protection, "turn_off", lambda _eks, name, **_: calls.append(name))
    props = {"task": "drain", "cluster": "main", "region": "us-west-2", "timeoutSeconds": 60}
    entry.at_delete(props if pools is None else {**props, "pools": pools})
    assert calls == ["drained", *clusters]
