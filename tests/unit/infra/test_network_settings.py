"""The network of a stack file: new or existing, and whether it has enough addresses."""

from __future__ import annotations

from typing import Any

import pytest

from components.documents.vpc import private_endpoints, service_name, short_name
from infra.settings import SettingsError, read
from infra.settings.rules import needed_addresses
from tests.unit.infra.changing import (
    BASE,
    GIVEN_CLUSTER,
    GIVEN_VPC,
    NOW,
    POOL,
    mistakes,
    settings,
    with_,
    with_existing_cluster,
)


def test_existing_vpc_is_read_with_its_zones() -> None:
    network = settings(
        with_({"network": {**GIVEN_VPC, "workerSecurityGroupId": "sg-0123456789abcdef0"}})
    ).network
    assert network.zones == ("us-west-2a", "us-west-2b")
    assert network.existing is not None
    assert network.existing.private_subnet_ids["us-west-2b"] == "subnet-0b23456789abcdef0"
    assert network.existing.worker_security_group_id == "sg-0123456789abcdef0"
    assert network.flow_logs is False, "of a VPC that is given nothing is made that was not asked for"


def test_existing_vpc_with_short_id_is_accepted() -> None:
    found = settings(with_({"network": {**GIVEN_VPC, "vpcId": "vpc-0123abcd"}})).network.existing
    assert found is not None
    assert found.vpc_id == "vpc-0123abcd"


def test_new_vpc_keeps_flow_logs_for_a_year() -> None:
    network = settings(BASE).network
    assert (network.flow_logs, network.flow_log_retention_days) == (True, 365)
    assert network.existing is None


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (
            {"vpcId": "vpc-1"},
            "network.vpcId: 'vpc-1' is invalid; it must be an id of 8 or 17 digits (0-9, a-f), such as vpc-",
        ),
        ({"vpcId": "vpc-0123456789abcdef"}, "network.vpcId: 'vpc-0123456789abcdef' is invalid"),
        (
            {**GIVEN_VPC, "privateSubnetIds": {"us-west-2a": "subnet-0a23456789abcdef01"}},
            "network.privateSubnetIds.us-west-2a: 'subnet-0a23456789abcdef01' is invalid",
        ),
        ({"vpcId": GIVEN_VPC["vpcId"]}, "network.privateSubnetIds: is missing"),
        ({**GIVEN_VPC, "cidr": "10.0.0.0/33x"}, "network.cidr: '10.0.0.0/33x' is invalid"),
        ({**GIVEN_VPC, "natPerZone": True}, "network.natPerZone: is for a VPC that the stack makes"),
        ({**GIVEN_VPC, "zones": ["us-west-2a"]}, "network.zones: is for a VPC that the stack makes"),
        (
            {"privateSubnetIds": GIVEN_VPC["privateSubnetIds"]},
            "network.privateSubnetIds: is given without vpcId",
        ),
        ({"workerSecurityGroupId": "sg-0123456789abcdef0"}, "workerSecurityGroupId: is given without vpcId"),
        (
            {**GIVEN_VPC, "privateSubnetIds": {"us-west-2b": "subnet-0b23456789abcdef0"}},
            "network.privateSubnetIds: has 1 zone; an EKS cluster needs subnets in at least 2",
        ),
        (
            {**GIVEN_VPC, "privateSubnetIds": {"eu-west-1a": "subnet-0b23456789abcdef0"}},
            "network.privateSubnetIds.eu-west-1a: 'eu-west-1a' is not in us-west-2",
        ),
        (
            {**GIVEN_VPC, "privateSubnetIds": {"us-west-2a": "vpc-0b23456789abcdef0"}},
            "network.privateSubnetIds.us-west-2a: 'vpc-0b23456789abcdef0' is invalid",
        ),
        (
            {
                **GIVEN_VPC,
                "privateSubnetIds": dict.fromkeys(("us-west-2a", "us-west-2b"), "subnet-0b23456789abcdef0"),
            },
            "network.privateSubnetIds: 'subnet-0b23456789abcdef0' is listed twice. Each zone must have its own",
        ),
        (
            {**GIVEN_VPC, "publicSubnetIds": {"us-west-2a": "subnet-0a23456789abcdef0"}},
            "network.publicSubnetIds: 'subnet-0a23456789abcdef0' is also in privateSubnetIds. Remove one.",
        ),
        (
            {"interfaceEndpoints": ["ecr.apy"]},
            "interfaceEndpoints[0]: 'ecr.apy' is not known; did you mean ecr.api?",
        ),
        ({"interfaceEndpoints": ["s3"]}, "interfaceEndpoints[0]: 's3' has a gateway endpoint"),
        (
            {"interfaceEndpoints": ["ecr.api", "sts", "ecr.api"]},
            "interfaceEndpoints[2]: 'ecr.api' is listed twice. Remove one.",
        ),
        (
            {"interfaceEndpoints": ["ecr.api", "com.amazonaws.us-west-2.ecr.api"]},
            "interfaceEndpoints[1]: 'com.amazonaws.us-west-2.ecr.api' is also listed as 'ecr.api'. Remove one.",
        ),
        (
            {"interfaceEndpoints": ["com.amazonaws.us-west-2.s3"]},
            "interfaceEndpoints[0]: 'com.amazonaws.us-west-2.s3' has a gateway endpoint; leave it out",
        ),
        (
            {"interfaceEndpoints": ["com.amazonaws.us-east-1.ecr.api"]},
            "interfaceEndpoints[0]: 'com.amazonaws.us-east-1.ecr.api' is of us-east-1, and the VPC is in us-west-2",
        ),
        ({"interfaceEndpoints": ["amazonaws"]}, "interfaceEndpoints[0]: 'amazonaws' is not known"),
        ({"interfaceEndpoints": ["com.amazonaws.vpce.us-west-2.vpce-svc-0"]}, "is not known"),
        (
            {"flowLogRetentionDays": 91},
            "network.flowLogRetentionDays: 91 is not known; it must be one of 1, 3",
        ),
        ({"flowLogRetentionDays": 91}, "2922, 3288, 3653"),
        ({"flowLogRetentionDays": 0}, "network.flowLogRetentionDays: 0 is not known"),
        (
            {**GIVEN_VPC, "interfaceEndpoints": ["sts"]},
            "network.cidr: is missing; interface endpoints in an existing VPC",
        ),
        (
            {"private": True},
            "network.private: is true, so that no public registry is reached, and images.mirror",
        ),
        (
            {"private": True, "natPerZone": True},
            "network.natPerZone: is true, but private: true has no NAT gateway",
        ),
        (
            {"flowLogs": False, "flowLogRetentionDays": 30},
            "network.flowLogRetentionDays: is given, but there are no",
        ),
    ],
)
def test_invalid_network_is_reported(network: dict[str, Any], message: str) -> None:
    assert any(message in line for line in mistakes(with_({"network": network})))


def test_invalid_list_of_endpoints_is_reported_once() -> None:
    for services in (["ecr.api"] * 2, ["amazonaws"], ["com.amazonaws.us-east-1.s3"]):
        assert len(mistakes(with_({"network": {"interfaceEndpoints": services}}))) == 1


def test_full_endpoint_name_replaces_the_short_one() -> None:
    full = ("com.amazonaws.us-west-2.ecr.api", "com.amazonaws.us-west-2.kinesis-streams")
    config = {
        "network": {"private": True, "interfaceEndpoints": list(full)},
        "images": {"mirror": "registry.example"},
    }
    network = settings(with_(config)).network
    assert network.interface_endpoints == full
    made = private_endpoints(file_system=False, more=network.interface_endpoints)
    assert "ecr.api" not in made
    assert set(full) < set(made)
    names = [service_name("us-west-2", service) for service in made]
    assert len(set(names)) == len(names)
    assert short_name("cn.com.amazonaws.cn-north-1.ecr.api") == "ecr.api"


def test_log_retention_not_in_cloudwatch_is_refused() -> None:
    for days in (1, 90, 3653):
        network = settings(with_({"network": {"flowLogRetentionDays": days}})).network
        assert network.flow_log_retention_days == days
    assert settings(with_({"cluster": {"logRetentionDays": 400}})).cluster.log_retention_days == 400
    (line,) = mistakes(with_({"cluster": {"logRetentionDays": 31}}))
    assert line.startswith("trainyard:cluster.logRetentionDays: 31 is not known; it must be one of 1, 3, 5")


@pytest.mark.parametrize(
    ("cidr", "zones", "nodes", "right"),
    [
        # A private subnet of a /20 in three zones is a /22: 1019 addresses, of which the control plane takes 16
        # and three system nodes of 26 (c5.2xlarge: 24 for pods on two interfaces) 78: one, and two while it is
        # replaced.
        ("10.0.0.0/20", 3, 61, True),
        ("10.0.0.0/20", 3, 62, False),
        ("10.0.0.0/16", 3, 542, True),
        ("10.0.0.0/16", 4, 539, True),
        ("10.0.0.0/16", 4, 540, False),
    ],
)
def test_subnet_must_have_addresses_for_all_nodes(cidr: str, zones: int, nodes: int, right: bool) -> None:
    config = with_(
        {
            "network": {"cidr": cidr, "zones": [f"us-west-2{letter}" for letter in "abcd"[:zones]]},
            "pools": [{**POOL, "maxNodes": nodes}],
        }
    )
    if right:
        assert settings(config).network.cidr == cidr
        return
    (line,) = mistakes(config)
    assert line.startswith(f"trainyard:network.cidr: {cidr} gives us-west-2b ")
    assert f"small ({nodes} x g5.12xlarge, 15 each): {15 * nodes}" in line


def taken(network: dict[str, Any], **more: Any) -> dict[str, dict[str, int]]:
    return needed_addresses(settings(with_({"network": network, **more})))


def test_endpoint_and_lustre_addresses_count_per_zone() -> None:
    lustre = {"lustre": {"capacityGiB": 4800}}
    zones = taken({"interfaceEndpoints": ["kms", "sts"]}, storage=lustre)
    always = {"control plane": 16, "system nodes": 78, "endpoints": 2}
    assert zones["us-west-2a"] == zones["us-west-2c"] == always, "endpoints have an address in each zone"
    machines = {"small (4 x g5.12xlarge, 15 each)": 60}
    assert zones["us-west-2b"] == {**machines, **always, "file system": 6}
    private = taken({"private": True}, images={"mirror": "registry.example"}, storage=lustre)
    assert private["us-west-2a"]["endpoints"] == len(private_endpoints(file_system=True))
    assert "endpoints" not in taken({})["us-west-2a"]


def test_existing_cluster_nodes_are_not_counted() -> None:
    assert needed_addresses(settings(with_existing_cluster())) == {
        "us-west-2a": {},
        "us-west-2b": {"small (4 x g5.12xlarge, 100 each)": 400},
    }


def test_existing_cluster_needs_no_setting_of_a_new_one() -> None:
    config = with_existing_cluster()
    cluster = settings(config).cluster
    assert cluster.name == "research"
    assert cluster.existing is not None
    assert cluster.existing.security_group_id == "sg-0123456789abcdef0"
    config["trainyard:network"] = {
        **GIVEN_VPC,
        "privateSubnetIds": {"us-west-2b": "subnet-0b23456789abcdef0"},
    }
    assert settings(config).network.zones == ("us-west-2b",), "its control plane has subnets of its own"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "mine"}, "cluster.name: is for a cluster that the stack makes, and existing gives one"),
        ({"systemNodes": {"count": 1}}, "cluster.systemNodes: is for a cluster that the stack makes"),
        ({"publicAccessCidrs": ["203.0.113.0/24"]}, "cluster.publicAccessCidrs: is for a cluster that"),
        ({"version": "1.35"}, "cluster.version: is for a cluster that the stack makes"),
        ({"lateLogSeconds": 0}, "cluster.lateLogSeconds: is for a cluster that the stack makes"),
        *(
            # This vpc-cni is too old for EFA.
            ({"addonVersions": {name: "v1.12.4-eksbuild.1"}}, "cluster.addonVersions: is for a cluster that")
            for name in ("coredns", "aws-fsx-csi-driver", "vpc-cni")
        ),
        ({"existing": {**GIVEN_CLUSTER, "name": None}}, "cluster.existing.name: is missing"),
        ({"existing": {**GIVEN_CLUSTER, "endpoint": "AB"}}, "cluster.existing.endpoint: 'AB' is invalid"),
        (
            {"existing": {**GIVEN_CLUSTER, "oidcIssuer": "https://oidc.example/id/CD"}},
            "cluster.existing.oidcIssuer: 'https://oidc.example/id/CD' is not the provider's",
        ),
        ({"existing": 3}, "cluster.existing: 3 is a whole number; it must be a mapping"),
    ],
)
def test_existing_cluster_refuses_settings_of_a_new_one(change: dict[str, Any], message: str) -> None:
    lines = mistakes(with_existing_cluster(**change))
    assert any(message in line for line in lines)
    assert len(lines) == 1, "one mistake, one line"


@pytest.mark.parametrize(
    "name", ["Prod_ML-Cluster", "team-ml-production-us-west-2-blue-cluster", "1", "c" * 100]
)
def test_existing_cluster_may_have_any_eks_name(name: str) -> None:
    """Its owner can't change the name, so resources with stricter name limits use the stack's name."""
    found = settings(with_existing_cluster(existing={**GIVEN_CLUSTER, "name": name}))
    assert (found.cluster.name, found.prefix) == (name, "trainyard-test")


def test_name_prefix_is_cluster_name_if_it_fits() -> None:
    assert settings(with_existing_cluster()).prefix == "research"
    assert settings(BASE).prefix == settings(BASE).cluster.name == "trainyard-test"


@pytest.mark.parametrize("name", ["", "-a", "a.b", "c" * 101, "_a"])
def test_invalid_cluster_name_is_reported(name: str) -> None:
    (line,) = mistakes(with_existing_cluster(existing={**GIVEN_CLUSTER, "name": name}))
    assert line.startswith("trainyard:cluster.existing.name: ")
    assert "it must be letters, digits, hyphens and underscores" in line


def test_invalid_name_prefix_from_stack_name_is_reported() -> None:
    config = with_existing_cluster(existing={**GIVEN_CLUSTER, "name": "Prod"})
    with pytest.raises(SettingsError) as caught:
        read("My_Stack", config, NOW)
    (line,) = caught.value.lines
    assert line.startswith(
        "trainyard:cluster.existing.name: 'Prod' can't be the prefix of other names, and neither can"
    )
    config["trainyard:cluster"]["existing"]["name"] = "prod"
    assert read("My_Stack", config, NOW).prefix == "prod"


def test_existing_cluster_needs_an_existing_vpc() -> None:
    config = with_({})
    config["trainyard:cluster"] = {"existing": GIVEN_CLUSTER}
    assert any("network.vpcId: is missing; an existing cluster" in line for line in mistakes(config))


@pytest.mark.parametrize(
    ("cluster", "message"),
    [
        (
            {"publicAccessCidrs": []},
            "cluster.publicAccessCidrs: has no range, so that nobody outside of the VPC",
        ),
        ({"publicAccessCidrs": [], "deployFrom": "internet"}, "cluster.publicAccessCidrs: has no range"),
        ({"deployFrom": "home"}, "cluster.deployFrom: 'home' is not known; it must be one of internet, vpc"),
        (
            {"addonVersions": {"coredn": "v1.1.1-eksbuild.1"}},
            "addonVersions.coredn: the stack creates no such add-on; did you mean coredns?",
        ),
        (
            {"addonVersions": {"metrics-server": "v0.8.0-eksbuild.6"}},
            "addonVersions.metrics-server: the stack creates no such add-on; it must be one of vpc-cni",
        ),
        (
            {"addonVersions": {"aws-fsx-csi-driver": "v1.8.0-eksbuild.1"}},
            "addonVersions.aws-fsx-csi-driver: is given, and the stack has no file system; leave it out",
        ),
        ({"addonVersions": {"coredns": "1.1"}}, "cluster.addonVersions.coredns: '1.1' is invalid"),
        ({"systemNodes": {"count": 1}}, "cluster.karpenterReplicas: 2 need a system node each"),
    ],
)
def test_invalid_cluster_is_reported(cluster: dict[str, Any], message: str) -> None:
    lines = mistakes(with_({"cluster": cluster}))
    assert any(message in line for line in lines)
    assert len(lines) == 1, "one mistake, one line"


def test_private_api_needs_no_public_range() -> None:
    cluster = settings(with_({"cluster": {"publicAccessCidrs": [], "deployFrom": "vpc"}})).cluster
    assert cluster.public_access_cidrs == ()
    assert cluster.deploy_from == "vpc"


def test_changed_region_suggests_no_zone_of_the_old_one() -> None:
    zones = [f"us-west-2{letter}" for letter in "abc"]
    settled = {"network": {"zones": zones}, "storage": {"lustre": {"zone": "eu-central-1b"}}}
    *of_network, of_pool = mistakes({**with_(settled), "aws:region": "eu-central-1"})
    assert [line.partition(":")[2].partition(":")[0] for line in of_network] == [
        f"network.zones[{index}]" for index in range(3)
    ]
    assert of_pool == (
        "trainyard:pools[0].zone: 'us-west-2b' is not in eu-central-1; it must be a zone such as eu-central-1b"
    )


def test_zone_that_is_listed_twice_is_reported_once() -> None:
    (line,) = mistakes(with_({"network": {"zones": ["us-west-2a", "us-west-2a"]}}))
    assert line.startswith("trainyard:network.zones: 'us-west-2a' is listed twice")


def test_pool_is_offered_the_valid_zones_of_the_network() -> None:
    config = with_({"network": {"zones": ["us-west-2a", "us-east-1b"]}})
    assert mistakes(config)[1] == (
        "trainyard:pools[0].zone: 'us-west-2b' has no subnets here; it must be one of us-west-2a"
    )
