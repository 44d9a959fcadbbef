"""A given cluster's name is EKS's alone: what has narrower names is named by the stack."""

from __future__ import annotations

import copy
import json

import pytest

from infra.settings import Settings, read
from tests.unit.components.recording import Recorded
from tests.unit.infra.changing import NOW
from tests.unit.infra.examples import IS_GIVEN_EVERYTHING
from tests.unit.infra.whole import in_a_small_checkout, whole
from trainyard.preflight import resource_names

pytestmark = [
    pytest.mark.unit,
    pytest.mark.filterwarnings("ignore:.*has been deprecated in favor:DeprecationWarning"),
]

AWKWARD = "Prod_ML-Cluster-" + "x" * 84


def given(name: str) -> Settings:
    config = copy.deepcopy(IS_GIVEN_EVERYTHING)
    config["trainyard:cluster"]["existing"]["name"] = name
    config["trainyard:network"]["flowLogs"] = True
    config["trainyard:serviceAccounts"] = [{"name": "a" * 36}]
    config["trainyard:images"] = {}
    return read("blue", config, NOW)


@pytest.fixture(scope="module")
def made() -> Recorded:
    with in_a_small_checkout():
        return whole(given(AWKWARD))


def test_no_name_that_is_bounded_holds_the_clusters(made: Recorded) -> None:
    """Auto-named ones get eight characters more."""
    bounded = {
        "aws:iam/role:Role": 56,
        "aws:iam/policy:Policy": 120,
        "aws:cloudwatch/eventRule:EventRule": 56,
        "aws:s3/bucket:Bucket": 55,
    }
    for kind, most in bounded.items():
        names = [each.name for each in made.of(kind)]
        assert names, kind
        assert [name for name in names if AWKWARD in name or len(name) > most] == []
    (queue,) = made.of("aws:sqs/queue:Queue")
    assert queue.inputs["name"] == "trainyard-blue"
    assert {each.inputs["name"] for each in made.of("aws:ecr/repository:Repository")} == {
        "trainyard-blue/launcher",
        "trainyard-blue/trainer",
    }


def test_what_speaks_to_the_cluster_has_its_name(made: Recorded) -> None:
    release = made.one("kubernetes:helm.sh/v3:Release", "karpenter")
    assert release.inputs["values"]["settings"]["clusterName"] == AWKWARD
    assert {each.inputs["clusterName"] for each in made.of("aws:eks/accessEntry:AccessEntry")} == {AWKWARD}
    policies = json.dumps([each.inputs["policy"] for each in made.of("aws:iam/policy:Policy")])
    assert f"kubernetes.io/cluster/{AWKWARD}" in policies


def test_preflight_checks_the_names() -> None:
    settings = given(AWKWARD)
    assert resource_names.key_aliases(settings)[0] == "alias/trainyard-blue-secrets"
    assert resource_names.repositories(settings) == ["trainyard-blue/launcher", "trainyard-blue/trainer"]
    assert "research/trainer" in resource_names.repositories(given("research"))
