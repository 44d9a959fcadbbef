"""The drain removes only resources with the tags of its cluster from the account. Uses the emulator."""

from __future__ import annotations

from typing import Any

import pytest

from components.draining import account_api
from components.draining.account_api import AccountClient
from tests.unit.emulator import Cloud

OWN_TAGS = {"eks:eks-cluster-name": "main"}
FOREIGN_TAGS = {"eks:eks-cluster-name": "main-2"}


class Session:
    """A boto3 session with the emulator's clients."""

    region_name = "us-west-2"

    def __init__(self, cloud: Cloud) -> None:
        self.client = cloud.client


def tags(values: dict[str, str]) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in values.items()]


def specification(kind: str, values: dict[str, str]) -> list[dict[str, Any]]:
    return [{"ResourceType": kind, "Tags": tags(values)}]


def interface(cloud: Cloud, subnet: str, values: dict[str, str]) -> str:
    ec2 = cloud.client("ec2")
    response = ec2.create_network_interface(
        SubnetId=subnet, TagSpecifications=specification("network-interface", values)
    )
    return str(response["NetworkInterface"]["NetworkInterfaceId"])


def profile(cloud: Cloud, name: str, values: dict[str, str]) -> None:
    iam = cloud.client("iam")
    iam.create_instance_profile(InstanceProfileName=name, Tags=tags(values))
    cloud.role(f"{name}-role", None)
    iam.add_role_to_instance_profile(InstanceProfileName=name, RoleName=f"{name}-role")


def launch(cloud: Cloud, values: dict[str, str]) -> str:
    response = cloud.client("ec2").run_instances(
        ImageId="ami-12c6146b",
        MinCount=1,
        MaxCount=1,
        TagSpecifications=specification("instance", values),
    )
    return str(response["Instances"][0]["InstanceId"])


def template(cloud: Cloud, name: str, values: dict[str, str]) -> None:
    cloud.client("ec2").create_launch_template(
        LaunchTemplateName=name,
        LaunchTemplateData={},
        TagSpecifications=specification("launch-template", values),
    )


def interfaces(cloud: Cloud) -> set[str]:
    found = cloud.client("ec2").describe_network_interfaces()["NetworkInterfaces"]
    return {each["NetworkInterfaceId"] for each in found}


def templates_and_profiles(cloud: Cloud) -> list[str]:
    templates = cloud.client("ec2").describe_launch_templates()["LaunchTemplates"]
    profiles = cloud.client("iam").list_instance_profiles()["InstanceProfiles"]
    return [
        *(each["LaunchTemplateName"] for each in templates),
        *(each["InstanceProfileName"] for each in profiles),
    ]


def test_instance_leftovers_match_by_exact_tags(cloud: Cloud) -> None:
    subnet = cloud.network()["subnets"][0]
    own = [
        interface(cloud, subnet, OWN_TAGS),
        interface(cloud, subnet, {"cluster.k8s.amazonaws.com/name": "main"}),
    ]
    foreign = interface(cloud, subnet, {"cluster.k8s.amazonaws.com/name": "main-2"})
    for name, values in (("one", OWN_TAGS), ("two", FOREIGN_TAGS)):
        profile(cloud, name, values)
        template(cloud, name, values)
    removed = AccountClient(Session(cloud), "main").remove_leftovers_of_instances()
    assert {line for line in removed if "interface" in line} == {f"network interface {each}" for each in own}
    assert len(removed) == 4
    assert interfaces(cloud) == {foreign}
    assert templates_and_profiles(cloud) == ["two", "two"]
    assert AccountClient(Session(cloud), "main").remove_leftovers_of_instances() == []


def test_existing_cluster_keeps_resources_of_foreign_pools(cloud: Cloud) -> None:
    subnet = cloud.network()["subnets"][0]
    created: dict[str, list[str]] = {}
    for pool in ("small", "foreign"):
        pool_tags = {**OWN_TAGS, "karpenter.sh/nodepool": pool}
        terminated, running = (launch(cloud, pool_tags) for _ in range(2))
        cloud.client("ec2").terminate_instances(InstanceIds=[terminated])
        cni_tags = {
            "cluster.k8s.amazonaws.com/name": "main",
            "node.k8s.amazonaws.com/instance_id": terminated,
        }
        created[pool] = [running, interface(cloud, subnet, pool_tags), interface(cloud, subnet, cni_tags)]
        profile(cloud, pool, {**OWN_TAGS, "karpenter.k8s.aws/ec2nodeclass": pool})
        template(cloud, pool, pool_tags)
    account = AccountClient(Session(cloud), "main", frozenset({"small"}))
    assert account.instances() == created["small"][:1]
    removed = account.remove_leftovers_of_instances()
    assert {line for line in removed if "interface" in line} == {
        f"network interface {each}" for each in created["small"][1:]
    }
    assert len(removed) == 4
    assert interfaces(cloud) >= set(created["foreign"][1:])
    assert templates_and_profiles(cloud) == ["foreign", "foreign"]


def test_instances_above_filter_limit_are_queried_in_batches(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(account_api, "MAXIMUM_VALUES", 2)
    subnet = cloud.network()["subnets"][0]
    cni = "cluster.k8s.amazonaws.com/name"
    instances = [launch(cloud, {**OWN_TAGS, "karpenter.sh/nodepool": "small"}) for _ in range(3)]
    for each in instances:
        interface(cloud, subnet, {cni: "main", "node.k8s.amazonaws.com/instance_id": each})
    assert len(AccountClient(Session(cloud), "main", frozenset({"small"})).remove_interfaces()) == 3


LOG_GROUP = "/aws/eks/main/cluster"


def log_groups(cloud: Cloud) -> list[str]:
    return [each["logGroupName"] for each in cloud.client("logs").describe_log_groups()["logGroups"]]


def test_late_logs_removes_only_the_control_plane_log_group(cloud: Cloud) -> None:
    other_groups = ["/aws/eks/main/cluster-two", "/aws/eks/main-two/cluster", "/mine"]
    for name in (LOG_GROUP, *other_groups):
        cloud.client("logs").create_log_group(logGroupName=name)
    account = AccountClient(Session(cloud), "main")
    assert account.remove_late_logs() == [f"log group {LOG_GROUP}"]
    assert log_groups(cloud) == sorted(other_groups)
    assert account.remove_late_logs() == []


def test_late_logs_keeps_a_tagged_log_group(cloud: Cloud) -> None:
    cloud.client("logs").create_log_group(logGroupName=LOG_GROUP, tags={"trainyard:stack": "main"})
    assert AccountClient(Session(cloud), "main").remove_late_logs() == []
    assert log_groups(cloud) == [LOG_GROUP]


def test_interface_in_use_is_kept(cloud: Cloud) -> None:
    ec2 = cloud.client("ec2")
    attached = interface(cloud, cloud.network()["subnets"][0], OWN_TAGS)
    instance = ec2.run_instances(ImageId="ami-12c6146b", MinCount=1, MaxCount=1)["Instances"][0]["InstanceId"]
    ec2.attach_network_interface(NetworkInterfaceId=attached, InstanceId=instance, DeviceIndex=1)
    assert AccountClient(Session(cloud), "main").remove_interfaces() == []


def test_instances_returns_karpenter_nodes_of_this_cluster(cloud: Cloud) -> None:
    pool = {"karpenter.sh/nodepool": "small"}
    own = launch(cloud, {**OWN_TAGS, **pool})
    for values in (OWN_TAGS, {**FOREIGN_TAGS, **pool}):
        launch(cloud, values)
    account = AccountClient(Session(cloud), "main")
    assert account.instances() == [own]
    account.terminate([own])
    assert account.instances() == []


def test_cluster_group_and_guardduty_endpoint_are_removed(cloud: Cloud) -> None:
    ec2, network = cloud.client("ec2"), cloud.network()
    vpc = network["vpc"]

    def group(name: str, values: dict[str, str]) -> str:
        response = ec2.create_security_group(
            GroupName=name,
            Description=name,
            VpcId=vpc,
            TagSpecifications=specification("security-group", values),
        )
        return str(response["GroupId"])

    # In a real account only AWS may set these tags. The emulator accepts them from any caller.
    group("eks-cluster-sg-main-1", {"aws:eks:cluster-name": "main"})
    other = group("eks-cluster-sg-main-2-1", {"aws:eks:cluster-name": "main-2"})
    group("GuardDutyManagedSecurityGroup", {"GuardDutyManaged": "true"})
    ec2.create_vpc_endpoint(
        VpcId=vpc,
        ServiceName="com.amazonaws.us-west-2.guardduty-data",
        PrivateDnsEnabled=False,
        VpcEndpointType="Interface",
        SubnetIds=network["subnets"],
        TagSpecifications=specification("vpc-endpoint", {"GuardDutyManaged": "true"}),
    )
    account = AccountClient(Session(cloud), "main")
    assert len(account.remaining(vpc)) == 3
    account.remove_cluster_group()
    account.remove_guardduty(vpc)
    # The security group can be deleted once the endpoint's interface is deleted.
    account.remove_guardduty(vpc)
    assert account.remaining(vpc) == []
    left = ec2.describe_security_groups(Filters=[{"Name": "vpc-id", "Values": [vpc]}])["SecurityGroups"]
    assert {each["GroupId"] for each in left if each["GroupName"] != "default"} == {other}
