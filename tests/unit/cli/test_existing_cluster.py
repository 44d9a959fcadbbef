"""The existing cluster of a stack file, created on the local cloud."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.unit.emulator import REGION, Cloud
from tests.unit.infra.changing import GIVEN_CLUSTER, settings
from trainyard.cli.errors import CommandError
from trainyard.cli.existing_resources import has_existing_cluster, with_existing_resources
from trainyard.cli.stack_file import for_local_cloud

STACK: dict[str, Any] = {
    "config": {
        "aws:region": REGION,
        "trainyard:network": {
            "vpcId": "vpc-0123456789abcdef0",
            "privateSubnetIds": {"us-west-2a": "subnet-0a", "us-west-2b": "subnet-0b"},
        },
        "trainyard:cluster": {"existing": GIVEN_CLUSTER},
        "trainyard:pools": [
            {"name": "small", "instanceType": "g5.12xlarge", "zone": "us-west-2b", "maxNodes": 2}
        ],
    }
}


def changed(**cluster: Any) -> dict[str, Any]:
    stack = copy.deepcopy(STACK)
    stack["config"]["trainyard:cluster"]["existing"].update(cluster)
    return stack


def existing_settings(stack: dict[str, Any], said: list[str] | None = None) -> dict[str, Any]:
    lines: list[str] = [] if said is None else said
    config: dict[str, Any] = with_existing_resources(stack, lines.append)["config"]
    return config


def test_the_settings_get_what_describe_cluster_tells(account: Cloud) -> None:
    config = existing_settings(STACK)
    existing = config["trainyard:cluster"]["existing"]
    found = account.client("eks").describe_cluster(name="research")["cluster"]
    assert found["status"] == "ACTIVE"
    assert existing == {
        "name": "research",
        "endpoint": found["endpoint"],
        "certificateAuthority": found["certificateAuthority"]["data"],
        "oidcIssuer": found["identity"]["oidc"]["issuer"],
        "oidcProviderArn": existing["oidcProviderArn"],
        "securityGroupId": found["resourcesVpcConfig"]["clusterSecurityGroupId"],
    }
    network = config["trainyard:network"]
    assert found["resourcesVpcConfig"]["vpcId"] == network["vpcId"]
    assert found["resourcesVpcConfig"]["subnetIds"] == list(network["privateSubnetIds"].values())


def test_the_program_accepts_what_was_created_as_existing_cluster(account: Cloud) -> None:
    existing = settings(existing_settings(STACK)).cluster.existing
    assert existing is not None
    assert existing.endpoint == "https://127.0.0.1:6443"


def test_its_owner_made_all_that_the_program_does_not(account: Cloud) -> None:
    """System nodes in two zones, add-ons, permissions of the deployer, roles for service accounts."""
    existing = existing_settings(STACK)["trainyard:cluster"]["existing"]
    eks, iam = account.client("eks"), account.client("iam")
    assert eks.describe_cluster(name="research")["cluster"]["accessConfig"]["authenticationMode"] == "API"
    machines = account.call("GET", "instances?cluster=research")[0]
    assert sorted(each["zone"] for each in machines) == ["us-west-2a", "us-west-2b"]
    assert [each["joinError"] for each in machines] == [None, None]
    assert {"vpc-cni", "kube-proxy", "coredns"} <= set(eks.list_addons(clusterName="research")["addons"])
    caller = account.client("sts").get_caller_identity()["Arn"]
    assert caller in eks.list_access_entries(clusterName="research")["accessEntries"]
    provider = iam.get_open_id_connect_provider(OpenIDConnectProviderArn=existing["oidcProviderArn"])
    assert f"https://{provider['Url']}" == existing["oidcIssuer"]
    assert provider["ClientIDList"] == ["sts.amazonaws.com"]


def test_a_cluster_for_a_file_system_has_its_driver(account: Cloud) -> None:
    stack = copy.deepcopy(STACK)
    stack["config"]["trainyard:storage"] = {"lustre": {"capacityGiB": 1200}}
    existing_settings(stack)
    assert "aws-fsx-csi-driver" in account.client("eks").list_addons(clusterName="research")["addons"]


def test_the_next_up_finds_it_and_makes_what_an_interrupted_one_had_not(account: Cloud) -> None:
    said: list[str] = []
    first, eks = existing_settings(STACK, said), account.client("eks")
    assert sum("as existing: cluster research" in line for line in said) == 1
    eks.delete_nodegroup(clusterName="research", nodegroupName="system")
    eks.delete_addon(clusterName="research", addonName="coredns")
    assert existing_settings(STACK, said) == first
    assert eks.list_nodegroups(clusterName="research")["nodegroups"] == ["system"]
    assert "coredns" in eks.list_addons(clusterName="research")["addons"]
    assert len(account.supervisor.started) == 1
    assert sum("existing: cluster" in line for line in said) == 1


def test_where_all_pools_are_in_one_zone_the_control_plane_still_has_two(account: Cloud) -> None:
    stack = copy.deepcopy(STACK)
    stack["config"]["trainyard:network"]["privateSubnetIds"] = {"us-west-2b": "subnet-0b"}
    existing_settings(stack)
    found = account.client("eks").describe_cluster(name="research")["cluster"]["resourcesVpcConfig"]
    subnets = account.client("ec2").describe_subnets(SubnetIds=found["subnetIds"])["Subnets"]
    assert len({each["AvailabilityZone"] for each in subnets}) == 2


def test_another_stacks_cluster_is_not_an_existing_one(account: Cloud) -> None:
    account.cluster("research")
    with pytest.raises(CommandError, match=r"existing\.name: 'research' is the cluster of a stack"):
        existing_settings(STACK)


def test_control_plane_start_failure_reports_reason(account: Cloud) -> None:
    account.supervisor.refuse = "etcd: no space left on device"
    with pytest.raises(CommandError, match=r"research is FAILED: .*no space left"):
        existing_settings(STACK)


@pytest.mark.parametrize("name", [None, 3, "no name", ""])
def test_a_wrong_name_is_left_for_the_program_to_refuse(account: Cloud, name: Any) -> None:
    assert existing_settings(changed(name=name))["trainyard:cluster"]["existing"]["name"] == name
    assert account.client("eks").list_clusters()["clusters"] == []


def test_administrators_of_an_existing_cluster_are_its_owners(account: Cloud) -> None:
    document = for_local_cloud({"config": existing_settings(STACK)}, {}, "arn:aws:iam::123456789012:user/me")
    assert "administrators" not in document["config"]["trainyard:cluster"]
    document["config"].pop("trainyard:sources")
    assert settings(document["config"]).cluster.administrators == ()


@pytest.mark.parametrize(
    ("cluster", "exists"),
    [
        ({"existing": GIVEN_CLUSTER}, True),
        ({"version": "1.35"}, False),
        ({"existing": None}, False),
        (None, False),
    ],
)
def test_settings_may_name_an_existing_cluster(cluster: Any, exists: bool) -> None:
    assert has_existing_cluster({"trainyard:cluster": cluster}) is exists
