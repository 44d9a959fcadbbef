"""What counts as taking something away from a stack that is deployed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.graph.model import UNKNOWN
from tests.graph.upgrades import Recording, harms, recorded

pytestmark = pytest.mark.unit


def urn(kind: str, name: str = "x") -> str:
    return f"urn:pulumi:s::p::{kind}::{name}"


def one(kind: str, name: str = "x", /, **inputs: Any) -> Recording:
    """A recording of one resource, as a preview has it."""
    state = {"urn": urn(kind, name), "type": kind, "custom": True, "inputs": inputs}
    return recorded({"steps": [{"op": "create", "newState": state}]})


def told(before: Recording, now: Recording) -> list[str]:
    return [harm.what for harm in harms(before, now)]


SUBNET = "aws:ec2/subnet:Subnet"
FILES = "aws:fsx/lustreFileSystem:LustreFileSystem"
ROLE = "aws:iam/role:Role"
POOL = "kubernetes:karpenter.sh/v1:NodePool"
DEPLOYMENT = "kubernetes:apps/v1:Deployment"


def deployment(label: str, image: str) -> dict[str, Any]:
    spec = {
        "selector": {"matchLabels": {"app": label}},
        "template": {"metadata": {"labels": {"app": label}}, "spec": {"containers": [{"image": image}]}},
    }
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": spec}


def test_the_same_program_harms_nothing() -> None:
    subnet = one(SUBNET, vpcId=UNKNOWN, cidrBlock="10.0.0.0/24", tags={"a": "b"})
    assert told(subnet, subnet) == []


@pytest.mark.parametrize(
    ("before", "now", "path"),
    [
        (one(SUBNET, cidrBlock="10.0.0.0/24"), one(SUBNET, cidrBlock="10.0.0.0/20"), "cidrBlock"),
        (
            one(FILES, subnetIds="s", storageCapacity=2400, deploymentType="SCRATCH_2"),
            one(FILES, subnetIds="s", storageCapacity=2400, deploymentType="PERSISTENT_2"),
            "deploymentType",
        ),
        (
            one(FILES, subnetIds="s", storageCapacity=2400),
            one(FILES, subnetIds="s", storageCapacity=1200),
            "storageCapacity",
        ),
        (one(DEPLOYMENT, **deployment("a", "i")), one(DEPLOYMENT, **deployment("b", "i")), "spec.selector"),
        (
            one(POOL, metadata={"name": "small"}, kind="NodePool", apiVersion="karpenter.sh/v1"),
            one(POOL, metadata={"name": "tiny"}, kind="NodePool", apiVersion="karpenter.sh/v1"),
            "metadata.name",
        ),
        (
            one("pulumi-python:dynamic/drain:Drain", cluster="a"),
            one("pulumi-python:dynamic/drain:Drain", cluster="b"),
            "cluster",
        ),
    ],
)
def test_a_change_that_the_service_can_not_make_in_place_is_a_replacement(
    before: Recording, now: Recording, path: str
) -> None:
    (harm,) = told(before, now)
    assert harm.startswith(f"replaced for {path}")


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (one(SUBNET, cidrBlock="c", tags={"a": "b"}), one(SUBNET, cidrBlock="c", tags={"a": "c"})),
        (
            one(FILES, subnetIds="s", storageCapacity=1200),
            one(FILES, subnetIds="s", storageCapacity=2400),
        ),
        (one(DEPLOYMENT, **deployment("a", "i")), one(DEPLOYMENT, **deployment("a", "j"))),
        (
            one(ROLE, __defaults=["name"], name="r-0e38f43", assumeRolePolicy="{}"),
            one(ROLE, __defaults=["name"], name="r-b57375f", assumeRolePolicy="{}"),
        ),
    ],
)
def test_a_change_in_place_and_another_random_end_of_a_name_are_none(
    before: Recording, now: Recording
) -> None:
    assert told(before, now) == []


def test_a_name_that_the_program_gives_now_is_a_replacement() -> None:
    chosen = one(ROLE, __defaults=["name"], name="r-0e38f43", assumeRolePolicy="{}")
    assert told(chosen, one(ROLE, name="fixed", assumeRolePolicy="{}")) == ["replaced for name"]


def test_a_resource_that_is_no_longer_registered_is_deleted_unless_it_was_renamed() -> None:
    before = one(SUBNET, "old", cidrBlock="c")
    now = one(SUBNET, "new", cidrBlock="c")
    assert told(before, now) == ["deleted"]
    now[urn(SUBNET, "new")]["aliases"] = [urn(SUBNET, "old")]
    assert told(before, now) == []


def test_a_new_resource_harms_nothing() -> None:
    assert told({}, one(SUBNET, cidrBlock="c")) == []
