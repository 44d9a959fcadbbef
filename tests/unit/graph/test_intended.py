"""What an upgrade may take away: each rule lets its resource through and no other."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.graph.intended import INTENDED, Intended, unintended
from tests.integration.graph.recordings import Recording
from tests.integration.graph.upgrades import How, harms
from tests.unit.graph.invented import SUBNET, a_job, a_pod, one, previewed

pytestmark = pytest.mark.unit

VOLUME = "trainyard:storage:LustreVolume"
LAUNCHER = "trainyard:training:LauncherJob"


def left(before: Recording, now: Recording, rules: tuple[Intended, ...] = INTENDED) -> list[str]:
    return [harm.what for harm in unintended(harms(before, now), rules)]


def proof(image: str, kind: Any = a_job, **spec: Any) -> Recording:
    return previewed(kind(image, inside=VOLUME, name="lustre-proof", **spec))


def run(name: str, **options: Any) -> Recording:
    return previewed(
        {**a_job("i", inside=LAUNCHER, name=name), "ignoreChanges": ["spec", "metadata"], **options}
    )


def test_a_rule_lets_through_exactly_its_resource_its_cause_and_what_becomes_of_it() -> None:
    rule = Intended(resource=rf"{SUBNET}::a", how=How.REPLACED, paths=("cidrBlock",), reason="because")
    before = {
        **one(SUBNET, "a", cidrBlock="c", availabilityZone="z"),
        **one(SUBNET, "ab", cidrBlock="c", availabilityZone="z"),
    }
    other_block = {
        **one(SUBNET, "a", cidrBlock="d", availabilityZone="z"),
        **one(SUBNET, "ab", cidrBlock="d", availabilityZone="z"),
    }
    (harm,) = unintended(harms(before, other_block), [rule])
    assert str(harm) == f"replaced for cidrBlock: {SUBNET}::ab"
    other_zone = one(SUBNET, "a", cidrBlock="c", availabilityZone="y")
    assert left(one(SUBNET, "a", cidrBlock="c", availabilityZone="z"), other_zone, (rule,)) == [
        "replaced for availabilityZone"
    ]
    assert left(one(SUBNET, "a", cidrBlock="c"), {}, (rule,)) == ["deleted"]


@pytest.mark.parametrize("kind", [a_job, a_pod])
def test_another_trainer_image_proves_the_mount_anew(kind: Any) -> None:
    assert list(harms(proof("i", kind), proof("j", kind))) != []
    assert left(proof("i", kind), proof("j", kind)) == []


def test_a_pod_may_take_the_place_of_the_job_that_proves_the_mount_and_not_the_other_way_round() -> None:
    assert left(proof("i", a_job), proof("i", a_pod)) == []
    assert left(proof("i", a_pod), proof("i", a_job)) == ["deleted"]


@pytest.mark.parametrize(
    ("inside", "name"), [(LAUNCHER, "lustre-proof"), (VOLUME, "another"), ("", "lustre-proof")]
)
def test_another_job_with_another_image_is_a_replacement(inside: str, name: str) -> None:
    before, now = (previewed(a_job(image, inside=inside, name=name)) for image in "ij")
    assert left(before, now) == ["replaced for spec.template.spec.containers[0].image"]


def test_another_run_leaves_the_job_of_the_earlier_one_in_the_cluster() -> None:
    assert left(run("launch-r1", retainOnDelete=True), run("launch-r2", retainOnDelete=True)) == []
    assert left(run("launch-r1"), run("launch-r2")) == ["deleted"]


def test_the_job_of_a_run_must_go_on_ignoring_changes() -> None:
    exposed = previewed(a_job("i", inside=LAUNCHER, name="launch-r1"))
    assert left(run("launch-r1"), exposed) == ["no longer ignores spec", "no longer ignores metadata"]


def test_every_rule_has_its_reason() -> None:
    assert [rule.resource for rule in INTENDED if len(rule.reason.split()) < 5] == []
