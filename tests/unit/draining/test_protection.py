"""A cluster's own guard against its deletion, turned off by the drain of the stack that made it."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError

from components.draining import entry, protection
from components.draining.cluster_api import DrainError
from tests.unit.draining.test_steps import Time
from tests.unit.emulator import Cloud

pytestmark = pytest.mark.unit


class Eks:
    """EKS with one protected cluster: refuses with these codes first, then needs so many looks at the update."""

    def __init__(self, *refusals: str, looks: int = 0, end: str = "Successful") -> None:
        self.refusals = list(refusals)
        self.looks = looks
        self.end = end
        self.asked: list[dict[str, Any]] = []

    def describe_cluster(self, name: str) -> Any:
        return {"cluster": {"name": name, "deletionProtection": True}}

    def update_cluster_config(self, **asked: Any) -> Any:
        if self.refusals:
            error = {"Code": self.refusals.pop(0), "Message": "not now"}
            raise ClientError({"Error": error}, "UpdateClusterConfig")
        self.asked.append(asked)
        return {"update": self._update()}

    def describe_update(self, name: str, updateId: str) -> Any:
        self.looks -= 1
        return {"update": self._update()}

    def _update(self) -> dict[str, Any]:
        errors = [] if self.end == "Successful" else [{"errorMessage": "no subnets"}]
        return {"id": "u1", "status": "InProgress" if self.looks > 0 else self.end, "errors": errors}


def told(eks: Any, cluster: str = "main") -> list[str]:
    said: list[str] = []
    protection.turn_off(eks, cluster, say=said.append, clock=Time())
    return said


def test_a_protected_cluster_may_be_deleted_afterwards(cloud: Cloud) -> None:
    eks = cloud.client("eks")
    name = cloud.cluster()["name"]
    eks.update_cluster_config(name=name, deletionProtection=True)
    with pytest.raises(ClientError, match="deletion protection"):
        eks.delete_cluster(name=name)
    assert told(eks, name) == ["turning off the cluster's deletion protection"]
    assert told(eks, name) == [], "it is off already"
    eks.delete_cluster(name=name)


def test_a_cluster_that_is_gone_needs_nothing(cloud: Cloud) -> None:
    assert told(cloud.client("eks"), "nobody") == []


def test_another_update_and_this_one_are_waited_for() -> None:
    eks = Eks("ResourceInUseException", "ThrottlingException", looks=3)
    told(eks)
    assert eks.asked == [{"name": "main", "deletionProtection": False}]
    assert eks.looks == 0


@pytest.mark.parametrize(
    ("eks", "reason"),
    [
        (Eks("AccessDeniedException"), "not now"),
        (Eks(*["ResourceInUseException"] * 1000), "not now"),
        (Eks(looks=1000), "update u1 is still in progress"),
        (Eks(end="Failed"), "update u1 is Failed: no subnets"),
    ],
)
def test_what_eks_refuses_is_one_line_with_the_way_on(eks: Eks, reason: str) -> None:
    with pytest.raises(DrainError, match=reason) as refused:
        told(eks)
    assert "aws eks update-cluster-config --name main --no-deletion-protection" in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("pools", "clusters"), [(None, ["main"]), (["small"], [])])
def test_the_drain_does_it_last_and_leaves_a_given_cluster_alone(
    pools: list[str] | None, clusters: list[str], monkeypatch: pytest.MonkeyPatch, deployer: Cloud
) -> None:
    done: list[str] = []
    monkeypatch.setattr(entry, "connect", lambda *_: None)
    monkeypatch.setattr(entry.steps, "run", lambda *_, **__: done.append("drained"))
    monkeypatch.setattr(entry.protection, "turn_off", lambda _eks, name, **_: done.append(name))
    props = {"task": "drain", "cluster": "main", "region": "us-west-2", "timeoutSeconds": 60}
    entry.at_delete(props if pools is None else {**props, "pools": pools})
    assert done == ["drained", *clusters]
