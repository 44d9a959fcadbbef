"""Names with an existing cluster: resources with stricter name limits use the stack's name."""

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

AWKWARD = "Prod_ML-Cluster-" + "x" * 84


def settings_with_cluster(name: str) -> Settings:
    config = copy.deepcopy(IS_GIVEN_EVERYTHING)
    config["trainyard:cluster"]["existing"]["name"] = name
    config["trainyard:network"]["flowLogs"] = True
    config["trainyard:serviceAccounts"] = [{"name": "a" * 36}]
    config["trainyard:images"] = {}
    return read("blue", config, NOW)


@pytest.fixture(scope="module")
def made() -> Recorded:
    with in_a_small_checkout():
        return whole(settings_with_cluster(AWKWARD))


def test_length_limited_names_do_not_contain_cluster_name(made: Recorded) -> None:
    """Auto-naming adds eight characters."""
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


def test_clients_of_the_cluster_use_its_name(made: Recorded) -> None:
    release = made.one("kubernetes:helm.sh/v3:Release", "karpenter")
    assert release.inputs["values"]["settings"]["clusterName"] == AWKWARD
    assert {each.inputs["clusterName"] for each in made.of("aws:eks/accessEntry:AccessEntry")} == {AWKWARD}
    policies = json.dumps([each.inputs["policy"] for each in made.of("aws:iam/policy:Policy")])
    assert f"kubernetes.io/cluster/{AWKWARD}" in policies


def test_preflight_checks_the_names() -> None:
    settings = settings_with_cluster(AWKWARD)
    assert resource_names.key_aliases(settings)[0] == "alias/trainyard-blue-secrets"
    assert resource_names.repositories(settings) == ["trainyard-blue/launcher", "trainyard-blue/trainer"]
    assert "research/trainer" in resource_names.repositories(settings_with_cluster("research"))
