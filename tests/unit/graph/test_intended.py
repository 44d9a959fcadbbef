"""Intended harms of an upgrade: each rule permits its own resource and no other."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.graph.intended import INTENDED, Intended, unintended
from tests.integration.graph.recordings import Recording
from tests.integration.graph.upgrades import How, harms
from tests.unit.graph.invented import SUBNET, a_job, a_pod, one, previewed

VOLUME = "trainyard:storage:LustreVolume"
LAUNCHER = "trainyard:training:LauncherJob"


def unintended_harms(before: Recording, now: Recording, rules: tuple[Intended, ...] = INTENDED) -> list[str]:
    return [harm.what for harm in unintended(harms(before, now), rules)]


def proof(image: str, kind: Any = a_job, **spec: Any) -> Recording:
    return previewed(kind(image, inside=VOLUME, name="lustre-proof", **spec))


def run(name: str, **options: Any) -> Recording:
    return previewed(
        {**a_job("i", inside=LAUNCHER, name=name), "ignoreChanges": ["spec", "metadata"], **options}
    )


def test_rule_permits_only_its_resource_path_and_outcome() -> None:
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
    assert unintended_harms(one(SUBNET, "a", cidrBlock="c", availabilityZone="z"), other_zone, (rule,)) == [
        "replaced for availabilityZone"
    ]
    assert unintended_harms(one(SUBNET, "a", cidrBlock="c"), {}, (rule,)) == ["deleted"]


@pytest.mark.parametrize("kind", [a_job, a_pod])
def test_mount_proof_new_trainer_image_may_be_replaced(kind: Any) -> None:
    assert list(harms(proof("i", kind), proof("j", kind))) != []
    assert unintended_harms(proof("i", kind), proof("j", kind)) == []


def test_mount_proof_job_to_pod_is_permitted_but_not_back() -> None:
    assert unintended_harms(proof("i", a_job), proof("i", a_pod)) == []
    assert unintended_harms(proof("i", a_pod), proof("i", a_job)) == ["deleted"]


@pytest.mark.parametrize(
    ("inside", "name"), [(LAUNCHER, "lustre-proof"), (VOLUME, "another"), ("", "lustre-proof")]
)
def test_other_job_new_image_is_an_unintended_replacement(inside: str, name: str) -> None:
    before, now = (previewed(a_job(image, inside=inside, name=name)) for image in "ij")
    assert unintended_harms(before, now) == ["replaced for spec.template.spec.containers[0].image"]


def test_new_run_must_retain_the_job_of_the_previous_run() -> None:
    assert (
        unintended_harms(run("launch-r1", retainOnDelete=True), run("launch-r2", retainOnDelete=True)) == []
    )
    assert unintended_harms(run("launch-r1"), run("launch-r2")) == ["deleted"]


def test_run_job_no_longer_ignoring_changes_is_reported() -> None:
    exposed = previewed(a_job("i", inside=LAUNCHER, name="launch-r1"))
    assert unintended_harms(run("launch-r1"), exposed) == [
        "no longer ignores spec",
        "no longer ignores metadata",
    ]


def test_every_rule_has_a_reason() -> None:
    assert [rule.resource for rule in INTENDED if len(rule.reason.split()) < 5] == []
