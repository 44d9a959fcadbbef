"""What counts as taking something away from a stack that is deployed."""

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

pytestmark = pytest.mark.unit


def told(before: Recording, now: Recording) -> list[str]:
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


def ignoring(made: dict[str, Any], *paths: str) -> Recording:
    return previewed({**made, "ignoreChanges": list(paths)})


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
def test_a_change_in_place_and_another_random_end_of_a_name_are_none(
    before: Recording, now: Recording
) -> None:
    assert told(before, now) == []


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
def test_a_change_that_the_api_server_refuses_is_told(
    before: dict[str, Any], now: dict[str, Any], path: str
) -> None:
    assert told(previewed(before), previewed(now)) == [f"can't be changed in {path}"]


def test_an_ignored_change_is_none_whether_or_not_it_was_ignored_before() -> None:
    old, new = a_job("i"), a_job("j")
    assert told(ignoring(old, "spec"), ignoring(new, "spec")) == []
    assert told(previewed(old), ignoring(new, "spec")) == []
    assert told(previewed(old), ignoring(new, "spec.template.spec.containers[*].image")) == []
    assert len(told(previewed(old), ignoring(new, "spec.backoffLimit"))) == 1


def test_what_was_ignored_and_no_longer_is_may_be_anything_by_now() -> None:
    made = a_job("i")
    assert told(ignoring(made, "spec.template"), previewed(made)) == ["no longer ignores spec.template"]
    assert told(ignoring(made, "spec.template"), ignoring(made, "spec")) == []


def test_what_one_side_alone_knows_counts_as_changed() -> None:
    known = previewed(a_job("i"))
    for unknown in (an_object(JOB, spec=UNKNOWN), an_object(JOB, spec={"template": UNKNOWN})):
        assert told(known, previewed(unknown)) != []
        assert told(previewed(unknown), known) != []
        assert told(previewed(unknown), previewed(unknown)) == []


def test_a_part_of_an_object_that_no_preview_knows_is_named() -> None:
    job = an_object(JOB, spec=UNKNOWN)
    assert unseen(previewed(job)) == [f"spec of {JOB}::x"]
    assert unseen(ignoring(job, "spec")) == []
    assert unseen(previewed(a_job(UNKNOWN))) == []
    assert unseen(one(SUBNET, vpcId=UNKNOWN)) == []


def test_a_name_that_the_program_gives_now_is_a_replacement() -> None:
    chosen = one(ROLE, __defaults=["name"], name="r-0e38f43", assumeRolePolicy="{}")
    assert told(chosen, one(ROLE, name="fixed", assumeRolePolicy="{}")) == ["replaced for name"]


def test_a_resource_that_is_no_longer_registered_is_deleted_unless_it_was_renamed() -> None:
    before = one(SUBNET, "old", cidrBlock="c")
    now = one(SUBNET, "new", cidrBlock="c")
    assert told(before, now) == ["deleted"]
    now[urn(SUBNET, "new")]["aliases"] = [urn(SUBNET, "old")]
    assert told(before, now) == []


def test_what_is_kept_when_it_is_no_longer_registered_is_left_behind() -> None:
    assert told(previewed({**a_job("i"), "retainOnDelete": True}), {}) == ["left behind"]


def test_a_resource_that_no_plugin_compares_is_told() -> None:
    strange = previewed(state("random:index/randomId:RandomId", inputs={"byteLength": 4}))
    assert told(strange, strange) == ["judged by nobody"]
    image = previewed(state("docker-build:index:Image", inputs={"tags": ["a"]}))
    assert told(image, image) == []
    assert told(image, {}) == ["deleted"]


def test_a_new_resource_harms_nothing() -> None:
    assert told({}, one(SUBNET, cidrBlock="c")) == []
