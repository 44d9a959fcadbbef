"""Which changes of an upgrade harm a deployed stack."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.graph.model import UNKNOWN
from tests.integration.graph.recordings import Recording
from tests.integration.graph.upgrades import harms, unseen
from tests.unit.graph.invented import (
    CONFIG_MAP,
    JOB,
    ROLE,
    SECRET,
    SUBNET,
    a_job,
    a_pod,
    an_object,
    one,
    previewed,
    state,
    urn,
)


def harm_lines(before: Recording, now: Recording) -> list[str]:
    return [harm.what for harm in harms(before, now)]


FILES = "aws:fsx/lustreFileSystem:LustreFileSystem"
POOL = "kubernetes:karpenter.sh/v1:NodePool"
DEPLOYMENT = "kubernetes:apps/v1:Deployment"
VOLUME = "kubernetes:core/v1:PersistentVolume"
CLAIM = "kubernetes:core/v1:PersistentVolumeClaim"
PRIORITY = "kubernetes:scheduling.k8s.io/v1:PriorityClass"


def deployment(label: str, image: str) -> Recording:
    spec = {
        "selector": {"matchLabels": {"app": label}},
        "template": {"metadata": {"labels": {"app": label}}, "spec": {"containers": [{"image": image}]}},
    }
    return previewed(an_object(DEPLOYMENT, spec=spec))


def ignoring(resource: dict[str, Any], *paths: str) -> Recording:
    return previewed({**resource, "ignoreChanges": list(paths)})


def test_harms_same_program_finds_none() -> None:
    subnet = one(SUBNET, vpcId=UNKNOWN, cidrBlock="10.0.0.0/24", tags={"a": "b"})
    assert harm_lines(subnet, subnet) == []


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
        (deployment("a", "i"), deployment("b", "i"), "spec.selector"),
        (previewed(a_job("i")), previewed(a_job("j")), "spec.template.spec.containers[0].image"),
        (previewed(a_pod("i")), previewed(a_pod("j")), "spec.containers[0].image"),
        (
            previewed(an_object(CONFIG_MAP, data={"a.b": "c"})),
            previewed(an_object(CONFIG_MAP, data={"a.b": "d"})),
            'data["a.b"]',
        ),
        (
            previewed(an_object(SECRET, stringData={"a": "b"})),
            previewed(an_object(SECRET, stringData={"a": "c"})),
            "stringData.a",
        ),
        (
            previewed(an_object(VOLUME, spec={"csi": {"driver": "a"}})),
            previewed(an_object(VOLUME, spec={"csi": {"driver": "b"}})),
            "spec.csi.driver",
        ),
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
def test_harms_immutable_property_is_a_replacement(before: Recording, now: Recording, path: str) -> None:
    (harm,) = harm_lines(before, now)
    assert harm.startswith(f"replaced for {path}")


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (one(SUBNET, cidrBlock="c", tags={"a": "b"}), one(SUBNET, cidrBlock="c", tags={"a": "c"})),
        (
            one(FILES, subnetIds="s", storageCapacity=1200),
            one(FILES, subnetIds="s", storageCapacity=2400),
        ),
        (deployment("a", "i"), deployment("a", "j")),
        (previewed(a_job("i", backoffLimit=1)), previewed(a_job("i", backoffLimit=2))),
        (previewed(a_pod("i")), previewed(a_pod("i", tolerations=[{"operator": "Exists"}]))),
        (
            previewed(an_object(CLAIM, spec={"resources": {"requests": {"storage": "1Gi"}}})),
            previewed(an_object(CLAIM, spec={"resources": {"requests": {"storage": "2Gi"}}})),
        ),
        (
            one(ROLE, __defaults=["name"], name="r-0e38f43", assumeRolePolicy="{}"),
            one(ROLE, __defaults=["name"], name="r-b57375f", assumeRolePolicy="{}"),
        ),
    ],
)
def test_harms_update_in_place_or_new_random_suffix_finds_none(before: Recording, now: Recording) -> None:
    assert harm_lines(before, now) == []


@pytest.mark.parametrize(
    ("before", "now", "path"),
    [
        (
            a_pod("i", tolerations=[{"key": "a"}]),
            a_pod("i", tolerations=[{"key": "b"}]),
            "spec.tolerations[0].key",
        ),
        (a_job("i", podFailurePolicy={"rules": []}), a_job("i"), "spec.podFailurePolicy"),
        (an_object(PRIORITY, value=1), an_object(PRIORITY, value=2), "value"),
    ],
)
def test_harms_change_that_api_server_refuses_is_reported(
    before: dict[str, Any], now: dict[str, Any], path: str
) -> None:
    assert harm_lines(previewed(before), previewed(now)) == [f"can't be changed in {path}"]


def test_harms_ignored_change_finds_none() -> None:
    old, new = a_job("i"), a_job("j")
    assert harm_lines(ignoring(old, "spec"), ignoring(new, "spec")) == []
    assert harm_lines(previewed(old), ignoring(new, "spec")) == []
    assert harm_lines(previewed(old), ignoring(new, "spec.template.spec.containers[*].image")) == []
    assert len(harm_lines(previewed(old), ignoring(new, "spec.backoffLimit"))) == 1


def test_harms_property_no_longer_ignored_is_reported() -> None:
    resource = a_job("i")
    assert harm_lines(ignoring(resource, "spec.template"), previewed(resource)) == [
        "no longer ignores spec.template"
    ]
    assert harm_lines(ignoring(resource, "spec.template"), ignoring(resource, "spec")) == []


def test_harms_value_unknown_on_one_side_counts_as_changed() -> None:
    known = previewed(a_job("i"))
    for unknown in (an_object(JOB, spec=UNKNOWN), an_object(JOB, spec={"template": UNKNOWN})):
        assert harm_lines(known, previewed(unknown)) != []
        assert harm_lines(previewed(unknown), known) != []
        assert harm_lines(previewed(unknown), previewed(unknown)) == []


def test_unseen_unknown_part_of_an_object_is_named() -> None:
    job = an_object(JOB, spec=UNKNOWN)
    assert unseen(previewed(job)) == [f"spec of {JOB}::x"]
    assert unseen(ignoring(job, "spec")) == []
    assert unseen(previewed(a_job(UNKNOWN))) == []
    assert unseen(one(SUBNET, vpcId=UNKNOWN)) == []


def test_harms_fixed_name_instead_of_auto_name_is_replacement() -> None:
    chosen = one(ROLE, __defaults=["name"], name="r-0e38f43", assumeRolePolicy="{}")
    assert harm_lines(chosen, one(ROLE, name="fixed", assumeRolePolicy="{}")) == ["replaced for name"]


def test_harms_unregistered_resource_without_alias_is_deleted() -> None:
    before = one(SUBNET, "old", cidrBlock="c")
    now = one(SUBNET, "new", cidrBlock="c")
    assert harm_lines(before, now) == ["deleted"]
    now[urn(SUBNET, "new")]["aliases"] = [urn(SUBNET, "old")]
    assert harm_lines(before, now) == []


def test_harms_unregistered_retained_resource_is_left_behind() -> None:
    assert harm_lines(previewed({**a_job("i"), "retainOnDelete": True}), {}) == ["left behind"]


def test_harms_resource_without_a_comparing_plugin_is_reported() -> None:
    strange = previewed(state("random:index/randomId:RandomId", inputs={"byteLength": 4}))
    assert harm_lines(strange, strange) == ["judged by nobody"]
    image = previewed(state("docker-build:index:Image", inputs={"tags": ["a"]}))
    assert harm_lines(image, image) == []
    assert harm_lines(image, {}) == ["deleted"]


def test_harms_new_resource_finds_none() -> None:
    assert harm_lines({}, one(SUBNET, cidrBlock="c")) == []
