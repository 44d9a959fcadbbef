"""The Kubernetes version and the add-ons' versions that a stack file pins, asked of EKS."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.unit.emulator import REGION, Cloud
from tests.unit.preflight.accounts import NOW, account, checks, only, wanted
from trainyard.preflight.account import Account
from trainyard.preflight.eks_versions import check_version, read_versions
from trainyard.preflight.run import examine

pytestmark = pytest.mark.unit

VERSION, ADDONS = "trainyard:cluster.version", "trainyard:cluster.addonVersions"
OF = checks("Kubernetes version", "Kubernetes update", "versions of add-ons")


def told(cloud: Cloud, **changes: Any) -> list[str]:
    return [str(problem) for problem in examine(account(cloud), wanted(**changes), NOW, OF).problems]


@pytest.mark.parametrize("version", ["1.34", "1.35", "1.36"])
def test_versions_that_the_program_knows_are_offered(cloud: Cloud, version: str) -> None:
    assert told(cloud, kubernetes=version) == []


def test_a_version_that_eks_does_not_offer_is_named_with_those_that_would_do(cloud: Cloud) -> None:
    line = only(told(cloud, kubernetes="1.99"), VERSION, f"EKS offers no Kubernetes 1.99 in {REGION}")
    assert line.endswith("it must be 1.34 or 1.35 or 1.36")
    with pytest.raises(ClientError, match="unsupported Kubernetes version"):
        cloud.cluster(version="1.99")


def test_what_the_program_knows_and_eks_has_given_up_is_not_proposed() -> None:
    (problem,) = check_version(wanted(kubernetes="1.34"), frozenset({"1.36", "1.35", "1.33"}))
    assert problem.message.endswith("it must be 1.35 or 1.36")


def test_a_version_that_eks_lists_as_unsupported_is_not_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = [
        {"clusterVersion": "1.35", "versionStatus": "STANDARD_SUPPORT"},
        {"clusterVersion": "1.33", "versionStatus": "EXTENDED_SUPPORT"},
        {"clusterVersion": "1.30", "versionStatus": "UNSUPPORTED"},
    ]
    monkeypatch.setattr(Account, "items", lambda *_, **__: listed)
    assert read_versions(Account(REGION, object())) == {"1.33", "1.35"}


@pytest.mark.parametrize(
    ("running", "version", "says"),
    [
        ("1.34", "1.34", None),
        ("1.34", "1.35", None),
        ("1.34", "1.36", "it must be 1.35 first"),
        ("1.35", "1.34", "it must be 1.35"),
    ],
)
def test_cluster_is_updated_by_one_minor_version(
    cloud: Cloud, running: str, version: str, says: str | None
) -> None:
    mine = wanted(kubernetes=version)
    cloud.cluster(mine.cluster, version=running, tags=mine.tags)
    lines = told(cloud, kubernetes=version)
    if says is None:
        assert lines == []
    else:
        only(lines, VERSION, f"'{mine.cluster}' runs {running}", says)


def test_another_stacks_cluster_of_the_name_decides_no_version(cloud: Cloud) -> None:
    cloud.cluster(wanted().cluster, version="1.34")
    assert told(cloud, kubernetes="1.36") == []


def test_versions_of_a_given_cluster_are_its_owners(cloud: Cloud) -> None:
    assert told(cloud, kubernetes=None) == []


def test_a_pinned_add_on_that_is_for_the_version_passes(cloud: Cloud) -> None:
    assert told(cloud, addons={"coredns": "v1.12.4-eksbuild.1", "vpc-cni": "v1.21.1-eksbuild.3"}) == []


@pytest.mark.parametrize(
    ("name", "version"), [("coredns", "v1.12.4-eksbuild.2"), ("kube-proxy", "v1.36.0-eksbuild.14")]
)
def test_a_pinned_add_on_that_is_not_is_named_by_its_key_and_refused_by_eks(
    cloud: Cloud, name: str, version: str
) -> None:
    pins = {"vpc-cni": "v1.21.1-eksbuild.3", name: version}
    only(
        told(cloud, addons=pins), f"{ADDONS}.{name}", f"'{version}'", "for Kubernetes 1.35", "it must be v1."
    )
    cloud.cluster(version="1.35")
    with pytest.raises(ClientError, match="Addon version specified is not supported"):
        cloud.client("eks").create_addon(clusterName="main", addonName=name, addonVersion=version)


def test_an_add_on_that_eks_lacks_altogether_is_named(cloud: Cloud) -> None:
    only(told(cloud, addons={"other": "v1.0.0-eksbuild.1"}), f"{ADDONS}.other", "it must be left out")


def test_missing_permissions_are_named(cloud: Cloud) -> None:
    asking = account(cloud, cloud.session("nobody"))
    found = examine(asking, wanted(addons={"coredns": "v1.12.4-eksbuild.1"}), NOW, OF)
    assert found.not_checked == [
        ("Kubernetes version", "eks:DescribeClusterVersions"),
        ("Kubernetes update", "eks:DescribeCluster"),
        ("versions of add-ons", "eks:DescribeAddonVersions"),
    ]
