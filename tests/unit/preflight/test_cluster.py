"""Kubernetes and add-on versions, and an existing cluster as EKS and IAM describe it."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError

from infra.settings import Settings
from tests.unit.emulator import REGION, Cloud
from tests.unit.preflight.accounts import (
    ADMINISTRATOR,
    EXISTING,
    TAGS,
    VPC,
    Answers,
    account,
    checks,
    expect,
    findings,
    only,
    stack,
)
from trainyard.preflight.checks import examine

KEY, VERSION = "trainyard:cluster.existing", "trainyard:cluster.version"
ADDONS = "trainyard:cluster.addonVersions"
OF_CLUSTER = ("existing cluster", "access to the existing cluster", "OIDC provider")


def existing_cluster(cloud: Cloud, **changes: Any) -> Settings:
    """Create a cluster on the emulator; return the settings of a stack on it, with changes of `existing`."""
    found = cloud.cluster("main")
    issuer = found["identity"]["oidc"]["issuer"]
    arn = cloud.client("iam").create_open_id_connect_provider(
        Url=issuer, ClientIDList=["sts.amazonaws.com"], ThumbprintList=["0" * 40]
    )["OpenIDConnectProviderArn"]
    eks = cloud.client("eks")
    if ADMINISTRATOR not in eks.list_access_entries(clusterName="main")["accessEntries"]:
        eks.create_access_entry(clusterName="main", principalArn=ADMINISTRATOR)
    values = {
        "name": "main",
        "endpoint": found["endpoint"],
        "certificateAuthority": found["certificateAuthority"]["data"],
        "oidcProviderArn": arn,
        "oidcIssuer": issuer,
        "securityGroupId": found["resourcesVpcConfig"]["clusterSecurityGroupId"],
        **changes,
    }
    return stack(cluster={"existing": values}, network={**VPC, "vpcId": found["vpc"]})


def test_cluster_as_in_the_stack_file_passes(cloud: Cloud) -> None:
    assert findings(account(cloud), existing_cluster(cloud), *OF_CLUSTER) == []


@pytest.mark.parametrize(
    ("setting", "value", "part"),
    [
        ("name", "other", f"'other' does not exist in {REGION}"),
        ("endpoint", "https://other.eks.amazonaws.com", "is 'https://other.eks.amazonaws.com', but must be"),
        ("certificateAuthority", "b3RoZXI=", "is 'b3RoZXI=', but must be"),
        ("securityGroupId", "sg-0123456789abcdef0", "is 'sg-0123456789abcdef0', but must be 'sg-"),
    ],
)
def test_value_that_differs_is_named_by_its_key(cloud: Cloud, setting: str, value: str, part: str) -> None:
    settings = existing_cluster(cloud, **{setting: value})
    only(findings(account(cloud), settings, "existing cluster"), f"{KEY}.{setting}", part)


NETWORK = {"vpcId": VPC["vpcId"], "clusterSecurityGroupId": EXISTING["securityGroupId"]}
FOUND = {
    "name": "research",
    "status": "ACTIVE",
    "version": "1.35",
    "accessConfig": {"authenticationMode": "API"},
    "endpoint": EXISTING["endpoint"],
    "certificateAuthority": {"data": EXISTING["certificateAuthority"]},
    "identity": {"oidc": {"issuer": EXISTING["oidcIssuer"]}},
    "resourcesVpcConfig": NETWORK,
}


@pytest.mark.parametrize(
    ("changes", "key", "part"),
    [
        ({}, "", ""),
        ({"accessConfig": {"authenticationMode": "API_AND_CONFIG_MAP"}}, "", ""),
        ({"status": "UPDATING"}, f"{KEY}.name", "is UPDATING. It must be ACTIVE"),
        ({"accessConfig": {}}, f"{KEY}.name", "authentication mode CONFIG_MAP"),
        ({"version": "1.20"}, f"{KEY}.name", "It must be 1.34 or 1.35 or 1.36"),
        ({"identity": {"oidc": {"issuer": "https://b"}}}, f"{KEY}.oidcIssuer", "must be 'b'"),
        ({"resourcesVpcConfig": {**NETWORK, "vpcId": "vpc-1"}}, "trainyard:network.vpcId", "must be 'vpc-1'"),
    ],
)  # fmt: skip
def test_cluster_must_be_usable(changes: dict[str, Any], key: str, part: str) -> None:
    aws = Answers(describe_cluster={"cluster": {**FOUND, **changes}})
    lines = findings(aws, stack(cluster={"existing": EXISTING}), "existing cluster")
    expect(lines, key, part)


def test_cluster_of_ipv6_is_refused() -> None:
    found = {**FOUND, "kubernetesNetworkConfig": {"ipFamily": "ipv6"}}
    settings = stack(cluster={"existing": EXISTING})
    lines = findings(Answers(describe_cluster={"cluster": found}), settings, "existing cluster")
    only(lines, f"{KEY}.name", "the ipFamily ipv6")


@pytest.mark.parametrize(
    ("mode", "entries", "is_refused"),
    [
        ("API", [], True),
        ("API", [ADMINISTRATOR], False),
        # The cluster's own aws-auth may grant access, which EKS does not show.
        ("API_AND_CONFIG_MAP", [], False),
    ],
)
def test_caller_needs_an_access_entry(mode: str, entries: list[str], is_refused: bool) -> None:
    aws = Answers(
        get_caller_identity={"Arn": ADMINISTRATOR},
        describe_cluster={"cluster": {**FOUND, "accessConfig": {"authenticationMode": mode}}},
        list_access_entries=entries,
    )
    lines = findings(aws, stack(cluster={"existing": EXISTING}), "access to the existing cluster")
    assert [line.startswith(f"{KEY}.name: ") and ADMINISTRATOR in line for line in lines] == [
        True
    ] * is_refused


HOST = "oidc.eks.us-west-2.amazonaws.com/id/AB"


@pytest.mark.parametrize(
    ("provider", "part"),
    [
        ({"Url": HOST, "ClientIDList": ["sts.amazonaws.com"]}, ""),
        (None, "does not exist. It must be the IAM OIDC provider of the cluster: eksctl"),
        ({"Url": HOST, "ClientIDList": ["another"]}, "must have the audience sts.amazonaws.com"),
    ],
)
def test_oidc_provider_must_fit_the_cluster(provider: dict[str, Any] | None, part: str) -> None:
    aws = Answers(describe_cluster={"cluster": FOUND}, get_open_id_connect_provider=provider)
    lines = findings(aws, stack(cluster={"existing": EXISTING}), "OIDC provider")
    expect(lines, f"{KEY}.oidcProviderArn", part)


def versions(cloud: Cloud, **cluster: Any) -> list[str]:
    names = ("Kubernetes version", "Kubernetes update", "add-on versions")
    return findings(account(cloud), stack(cluster=cluster), *names)


@pytest.mark.parametrize("version", ["1.34", "1.35", "1.36"])
def test_supported_versions_are_offered(cloud: Cloud, version: str) -> None:
    assert versions(cloud, version=version) == []


def test_version_that_eks_does_not_offer_is_refused() -> None:
    offered = [
        {"clusterVersion": "1.35", "versionStatus": "STANDARD_SUPPORT"},
        {"clusterVersion": "1.36", "versionStatus": "EXTENDED_SUPPORT"},
        {"clusterVersion": "1.34", "versionStatus": "UNSUPPORTED"},
    ]
    aws = Answers(describe_cluster_versions=offered)
    assert findings(aws, stack(), "Kubernetes version") == []
    line = only(findings(aws, stack(cluster={"version": "1.34"}), "Kubernetes version"), VERSION, "1.34")
    assert line.endswith("It must be 1.35 or 1.36")


@pytest.mark.parametrize(
    ("running", "version", "part"),
    [
        ("1.34", "1.34", ""),
        ("1.34", "1.35", ""),
        ("1.34", "1.36", "It must be 1.35 first"),
        ("1.35", "1.34", "It must be 1.35"),
    ],
)
def test_cluster_is_updated_by_one_minor_version(cloud: Cloud, running: str, version: str, part: str) -> None:
    cloud.cluster("train", version=running, tags=TAGS)
    expect(versions(cloud, version=version), VERSION, f"'train' runs {running}", part)


def test_cluster_of_another_stack_decides_no_version(cloud: Cloud) -> None:
    cloud.cluster("train", version="1.34")
    assert versions(cloud, version="1.36") == []


@pytest.mark.parametrize(
    ("name", "version", "part"),
    [
        ("coredns", "v1.12.4-eksbuild.1", ""),
        ("coredns", "v1.12.4-eksbuild.2", "It must be v1."),
        ("kube-proxy", "v1.36.0-eksbuild.14", "for Kubernetes 1.35"),
    ],
)
def test_addon_version_must_be_for_the_kubernetes_version(
    cloud: Cloud, name: str, version: str, part: str
) -> None:
    lines = versions(cloud, addonVersions={"vpc-cni": "v1.21.1-eksbuild.3", name: version})
    if not part:
        assert lines == []
        return
    only(lines, f"{ADDONS}.{name}", f"'{version}'", part)
    cloud.cluster(version="1.35")
    with pytest.raises(ClientError, match="Addon version specified is not supported"):
        cloud.client("eks").create_addon(clusterName="main", addonName=name, addonVersion=version)


def test_addon_that_eks_does_not_have_must_be_omitted() -> None:
    settings = stack(cluster={"addonVersions": {"coredns": "v1.12.4-eksbuild.1"}})
    lines = findings(Answers(), settings, "add-on versions")
    only(lines, f"{ADDONS}.coredns", "It must be omitted")


def test_versions_of_an_existing_cluster_belong_to_its_owner() -> None:
    assert (
        findings(Answers(), stack(cluster={"existing": EXISTING}), "Kubernetes version", "add-on versions")
        == []
    )


def test_missing_permissions_are_named(cloud: Cloud) -> None:
    settings = stack(cluster={"addonVersions": {"coredns": "v1.12.4-eksbuild.1"}})
    names = ("Kubernetes version", "Kubernetes update", "add-on versions")
    report = examine(settings, account(cloud, cloud.session("nobody")), checks(*names))
    permissions = ("eks:DescribeClusterVersions", "eks:DescribeCluster", "eks:DescribeAddonVersions")
    assert report.denied == list(zip(names, permissions, strict=True))
