"""Machines with EFA need a VPC CNI that knows efa-only interfaces: in the settings, and in a given cluster."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber

from components.documents.efa import cni_problem
from tests.unit.infra.changing import GIVEN_CLUSTER, GIVEN_VPC, POOL, mistakes, settings, with_
from trainyard.preflight import read_inside, run
from trainyard.preflight.account import Account, Denied
from trainyard.preflight.inside import check_network_plugin
from trainyard.preflight.mapping import wanted_of
from trainyard.preflight.services import Cluster
from trainyard.preflight.wanted import Wanted, WantedCluster

pytestmark = pytest.mark.unit

NAME, PINNED = "trainyard:cluster.existing.name", "trainyard:cluster.addonVersions.vpc-cni"
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
REGISTRY = "602401143452.dkr.ecr.us-west-2.amazonaws.com"
DIGEST = f"sha256:{'0' * 64}"
GIVEN = WantedCluster(name="research", versions=("1.35",), efa=True)
FOUND = Cluster(
    name="research", status="ACTIVE", version="1.35", mode="API", vpc_id="v", endpoint="https://x"
)


def told(version: str | None) -> list[str]:
    return [str(problem) for problem in check_network_plugin(GIVEN, version)]


@pytest.mark.parametrize(
    ("version", "is_right"),
    [
        ("v1.18.4-eksbuild.9", False),
        ("v1.9.10-eksbuild.1", False),
        ("v0.99.0", False),
        ("v1.18.5-eksbuild.1", True),
        ("v1.18.5", True),
        ("v1.18.10-eksbuild.1", True),
        ("v1.21.1-eksbuild.3", True),
        ("v2.0.0", True),
    ],
)
def test_efa_only_interfaces_are_known_since_a_version(version: str, is_right: bool) -> None:
    assert (cni_problem(version) is None) is is_right


def test_an_old_version_that_a_stack_pins_is_refused_with_its_pools() -> None:
    config = with_({"cluster": {"addonVersions": {"vpc-cni": "v1.18.4-eksbuild.1"}}})
    (line,) = mistakes(config)
    assert line == (
        f"{PINNED}: 'v1.18.4-eksbuild.1' does not know efa-only interfaces; it must be v1.18.5 or newer,"
        " or the efa of small must be none"
    )
    without = {**config, "trainyard:pools": [{**POOL, "efa": "none"}]}
    assert settings(without).cluster.addon_versions == {"vpc-cni": "v1.18.4-eksbuild.1"}
    newer = with_({"cluster": {"addonVersions": {"vpc-cni": "v1.18.5-eksbuild.1"}}})
    assert settings(newer).pools[0].efa == 1
    other = with_({"cluster": {"addonVersions": {"coredns": "v1.12.4-eksbuild.1"}}})
    assert settings(other).pools[0].efa == 1


def test_a_given_cluster_with_an_old_one_is_told_with_who_mends_it() -> None:
    (line,) = told("v1.15.1-eksbuild.1")
    assert line.startswith(f"{NAME}: 'research' has the VPC CNI v1.15.1-eksbuild.1, which does not know")
    assert "it must be v1.18.5 or newer: its owner must update it (EKS add-on vpc-cni)" in line
    assert told("v1.19.0-eksbuild.1") == []


def test_another_network_plugin_is_not_judged_and_a_version_that_is_none_is_not_checked() -> None:
    assert told(None) == []
    with pytest.raises(Denied, match="whose version can be read, which 'latest' is not"):
        told("latest")


class Session:
    """Hands out one client, whose answers are those of a test."""

    region_name = "us-west-2"

    def __init__(self, client: Any) -> None:
        self._client = client

    def client(self, *_: Any, **__: Any) -> Any:
        return self._client


def asked(answer: str | None) -> Account:
    """An account whose cluster has the add-on in this version; None: EKS knows no such add-on there."""
    client = boto3.client("eks", "us-west-2", aws_access_key_id="a", aws_secret_access_key="b")
    stub = Stubber(client)
    call = {"clusterName": "research", "addonName": "vpc-cni"}
    if answer is None:
        stub.add_client_error("describe_addon", "ResourceNotFoundException", expected_params=call)
    else:
        stub.add_response("describe_addon", {"addon": {"addonVersion": answer}}, call)
    stub.activate()
    return Account("us-west-2", Session(client))


def daemon_set(image: str) -> dict[str, Any]:
    containers = [
        {"name": "aws-eks-nodeagent", "image": "agent:v9.9.9"},
        {"name": "aws-node", "image": image},
    ]
    return {"spec": {"template": {"spec": {"containers": containers}}}}


def never() -> read_inside.Get:
    raise AssertionError("the cluster is asked, although EKS has told")


def test_eks_tells_the_version_of_its_add_on_and_the_cluster_is_left_alone() -> None:
    assert read_inside.network_plugin(asked("v1.20.4-eksbuild.2"), FOUND, never) == "v1.20.4-eksbuild.2"


@pytest.mark.parametrize(
    ("image", "version"),
    [
        (f"{REGISTRY}/amazon-k8s-cni:v1.18.3-eksbuild.3", "v1.18.3-eksbuild.3"),
        (f"registry.example:5000/amazon-k8s-cni:v1.19.0@{DIGEST}", "v1.19.0"),
        (f"registry.example:5000/amazon-k8s-cni@{DIGEST}", f"registry.example:5000/amazon-k8s-cni@{DIGEST}"),
    ],
)
def test_without_the_add_on_the_image_of_the_daemon_set_tells_it(image: str, version: str) -> None:
    paths: list[str] = []

    def get(path: str) -> Any:
        paths.append(path)
        return daemon_set(image)

    assert read_inside.network_plugin(asked(None), FOUND, lambda: get) == version
    assert paths == ["/apis/apps/v1/namespaces/kube-system/daemonsets/aws-node"]


def test_a_cluster_with_neither_has_another_network_plugin() -> None:
    assert read_inside.network_plugin(asked(None), FOUND, lambda: lambda _path: None) is None


def wanted(pools: list[dict[str, Any]]) -> Wanted:
    config = with_({"network": GIVEN_VPC, "pools": pools})
    config["trainyard:cluster"] = {"existing": GIVEN_CLUSTER}
    return wanted_of(settings(config))


def test_the_preflight_asks_where_a_pool_has_efa_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Cluster | None] = [FOUND]
    monkeypatch.setattr(run.services_of, "cluster", lambda _account, _name: found[0])

    def problems(pool: dict[str, Any]) -> list[str]:
        checks = {"VPC CNI": run.CHECKS["VPC CNI of the given cluster"]}
        report = run.examine(asked("v1.18.0-eksbuild.1"), wanted([pool]), NOW, checks)
        return [problem.key for problem in report.problems]

    assert problems(POOL) == [NAME]
    assert problems({**POOL, "efa": "none"}) == []
    found[0] = replace(FOUND, status="CREATING")
    assert problems(POOL) == []
    found[0] = None
    assert problems(POOL) == []
