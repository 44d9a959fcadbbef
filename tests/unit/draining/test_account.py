"""What is taken out of the account, and what with other tags stays. On the emulator."""

from __future__ import annotations

from typing import Any

import pytest

from components.draining import account_api
from components.draining.account_api import Account
from tests.unit.emulator import Cloud

pytestmark = pytest.mark.unit

MINE = {"eks:eks-cluster-name": "main"}
THEIRS = {"eks:eks-cluster-name": "main-2"}


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
    answer = ec2.create_network_interface(
        SubnetId=subnet, TagSpecifications=specification("network-interface", values)
    )
    return str(answer["NetworkInterface"]["NetworkInterfaceId"])


def profile(cloud: Cloud, name: str, values: dict[str, str]) -> None:
    iam = cloud.client("iam")
    iam.create_instance_profile(InstanceProfileName=name, Tags=tags(values))
    cloud.role(f"{name}-role", None)
    iam.add_role_to_instance_profile(InstanceProfileName=name, RoleName=f"{name}-role")


def launch(cloud: Cloud, values: dict[str, str]) -> str:
    answer = cloud.client("ec2").run_instances(
        ImageId="ami-12c6146b",
        MinCount=1,
        MaxCount=1,
        TagSpecifications=specification("instance", values),
    )
    return str(answer["Instances"][0]["InstanceId"])


def test_remains_of_machines_go_by_exact_tags(cloud: Cloud) -> None:
    ec2, iam = cloud.client("ec2"), cloud.client("iam")
    subnet = cloud.network()["subnets"][0]
    mine = [
        interface(cloud, subnet, MINE),
        interface(cloud, subnet, {"cluster.k8s.amazonaws.com/name": "main"}),
    ]
    theirs = interface(cloud, subnet, {"cluster.k8s.amazonaws.com/name": "main-2"})
    for name, values in (("one", MINE), ("two", THEIRS)):
        profile(cloud, name, values)
        ec2.create_launch_template(
            LaunchTemplateName=name,
            LaunchTemplateData={},
            TagSpecifications=specification("launch-template", values),
        )
    removed = Account(Session(cloud), "main").remove_leftovers_of_instances()
    assert {line for line in removed if "interface" in line} == {f"network interface {each}" for each in mine}
    assert len(removed) == 4
    left = {each["NetworkInterfaceId"] for each in ec2.describe_network_interfaces()["NetworkInterfaces"]}
    assert left == {theirs}
    assert [each["LaunchTemplateName"] for each in ec2.describe_launch_templates()["LaunchTemplates"]] == [
        "two"
    ]
    assert [each["InstanceProfileName"] for each in iam.list_instance_profiles()["InstanceProfiles"]] == [
        "two"
    ]
    assert Account(Session(cloud), "main").remove_leftovers_of_instances() == []


def test_in_a_given_cluster_what_belongs_to_pools_of_others_stays(cloud: Cloud) -> None:
    ec2, iam = cloud.client("ec2"), cloud.client("iam")
    subnet = cloud.network()["subnets"][0]
    made: dict[str, list[str]] = {}
    for pool in ("small", "theirs"):
        of_pool = {**MINE, "karpenter.sh/nodepool": pool}
        ended, running = (launch(cloud, of_pool) for _ in range(2))
        ec2.terminate_instances(InstanceIds=[ended])
        of_plugin = {
            "cluster.k8s.amazonaws.com/name": "main",
            "node.k8s.amazonaws.com/instance_id": ended,
        }
        made[pool] = [running, interface(cloud, subnet, of_pool), interface(cloud, subnet, of_plugin)]
        profile(cloud, pool, {**MINE, "karpenter.k8s.aws/ec2nodeclass": pool})
        ec2.create_launch_template(
            LaunchTemplateName=pool,
            LaunchTemplateData={},
            TagSpecifications=specification("launch-template", of_pool),
        )
    account = Account(Session(cloud), "main", frozenset({"small"}))
    assert account.instances() == made["small"][:1]
    removed = account.remove_leftovers_of_instances()
    assert {line for line in removed if "interface" in line} == {
        f"network interface {each}" for each in made["small"][1:]
    }
    assert len(removed) == 4
    left = {each["NetworkInterfaceId"] for each in ec2.describe_network_interfaces()["NetworkInterfaces"]}
    assert left >= set(made["theirs"][1:])
    assert [each["LaunchTemplateName"] for each in ec2.describe_launch_templates()["LaunchTemplates"]] == [
        "theirs"
    ]
    assert [each["InstanceProfileName"] for each in iam.list_instance_profiles()["InstanceProfiles"]] == [
        "theirs"
    ]


def test_more_machines_than_one_filter_takes_are_asked_for_in_parts(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(account_api, "MOST_VALUES", 2)
    subnet = cloud.network()["subnets"][0]
    cni = "cluster.k8s.amazonaws.com/name"
    machines = [launch(cloud, {**MINE, "karpenter.sh/nodepool": "small"}) for _ in range(3)]
    for each in machines:
        interface(cloud, subnet, {cni: "main", "node.k8s.amazonaws.com/instance_id": each})
    assert len(Account(Session(cloud), "main", frozenset({"small"})).remove_interfaces()) == 3


GROUP = "/aws/eks/main/cluster"


def groups(cloud: Cloud) -> list[str]:
    return [each["logGroupName"] for each in cloud.client("logs").describe_log_groups()["logGroups"]]


def test_of_log_groups_the_one_that_eks_made_anew_goes(cloud: Cloud) -> None:
    others = ["/aws/eks/main/cluster-two", "/aws/eks/main-two/cluster", "/mine"]
    for name in (GROUP, *others):
        cloud.client("logs").create_log_group(logGroupName=name)
    account = Account(Session(cloud), "main")
    assert account.remove_late_logs() == [f"log group {GROUP}"]
    assert groups(cloud) == sorted(others)
    assert account.remove_late_logs() == []


def test_a_log_group_with_a_tag_is_somebodys(cloud: Cloud) -> None:
    cloud.client("logs").create_log_group(logGroupName=GROUP, tags={"trainyard:stack": "main"})
    assert Account(Session(cloud), "main").remove_late_logs() == []
    assert groups(cloud) == [GROUP]


def test_an_interface_in_use_is_left(cloud: Cloud) -> None:
    ec2 = cloud.client("ec2")
    used = interface(cloud, cloud.network()["subnets"][0], MINE)
    instance = ec2.run_instances(ImageId="ami-12c6146b", MinCount=1, MaxCount=1)["Instances"][0]["InstanceId"]
    ec2.attach_network_interface(NetworkInterfaceId=used, InstanceId=instance, DeviceIndex=1)
    assert Account(Session(cloud), "main").remove_interfaces() == []


def test_only_karpenters_machines_of_this_cluster_are_counted(cloud: Cloud) -> None:
    pool = {"karpenter.sh/nodepool": "small"}
    mine = launch(cloud, {**MINE, **pool})
    for values in (MINE, {**THEIRS, **pool}):
        launch(cloud, values)
    account = Account(Session(cloud), "main")
    assert account.instances() == [mine]
    account.terminate([mine])
    assert account.instances() == []


def test_the_group_of_a_cluster_and_guarddutys_endpoint_no_longer_hold_the_network(cloud: Cloud) -> None:
    ec2, network = cloud.client("ec2"), cloud.network()
    vpc = network["vpc"]

    def group(name: str, values: dict[str, str]) -> str:
        answer = ec2.create_security_group(
            GroupName=name,
            Description=name,
            VpcId=vpc,
            TagSpecifications=specification("security-group", values),
        )
        return str(answer["GroupId"])

    # The tags that only AWS may set in a real account: the emulator takes them from anybody.
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
    account = Account(Session(cloud), "main")
    assert len(account.remaining(vpc)) == 3
    account.remove_cluster_group()
    account.remove_guardduty(vpc)
    account.remove_guardduty(vpc)  # the group goes once the endpoint's interface is gone
    assert account.remaining(vpc) == []
    left = ec2.describe_security_groups(Filters=[{"Name": "vpc-id", "Values": [vpc]}])["SecurityGroups"]
    assert {each["GroupId"] for each in left if each["GroupName"] != "default"} == {other}
