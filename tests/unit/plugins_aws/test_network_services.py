"""Interface endpoints, flow logs, encrypted log groups and leftover interfaces against the emulator."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from components.documents import iam
from components.documents.account import Account
from components.documents.iam import document, key_policy, service_trust
from components.documents.tags import CNI_CLUSTER as CLUSTER_TAG
from local.aws.faults import LEFT_INTERFACE, Plan
from local.plugins.provider import CheckRequest
from tests.unit.emulator import Cloud as Emulator
from tests.unit.plugins_aws.stack import Stack

ACCOUNT, REGION = "123456789012", "us-west-2"
HERE = Account(id=ACCOUNT, region=REGION)
ELSEWHERE = Account(id=ACCOUNT, region="eu-west-1")
ENDPOINT = "aws:ec2/vpcEndpoint:VpcEndpoint"
FLOW_LOG = "aws:ec2/flowLog:FlowLog"
LOG_GROUP = "aws:cloudwatch/logGroup:LogGroup"
KEY = "aws:kms/key:Key"
ROLE = "aws:iam/role:Role"
PROFILE = "aws:iam/instanceProfile:InstanceProfile"
NAME = iam.flow_logs_group("mine")


# ------------------------------------------------------------------------------------------------- endpoints


@pytest.fixture
def place(stack: Stack) -> dict[str, Any]:
    """A VPC with DNS names, two subnets in two zones and one more in the first, and two groups."""
    vpc, *_ = stack.make(
        "aws:ec2/vpc:Vpc", cidrBlock="10.0.0.0/16", enableDnsHostnames=True, enableDnsSupport=True
    )
    subnets = [
        stack.make(
            "aws:ec2/subnet:Subnet",
            vpcId=vpc,
            cidrBlock=f"10.0.{number}.0/24",
            availabilityZone=f"us-west-2{zone}",
        )[0]
        for number, zone in enumerate("aba")
    ]
    groups = [stack.make("aws:ec2/securityGroup:SecurityGroup", vpcId=vpc, name=n)[0] for n in "xy"]
    return {"vpc": vpc, "a": subnets[0], "b": subnets[1], "a2": subnets[2], "x": groups[0], "y": groups[1]}


def interface(place: dict[str, Any], *subnets: str, **more: Any) -> dict[str, Any]:
    return {
        "vpcId": place["vpc"],
        "serviceName": "com.amazonaws.us-west-2.sqs",
        "vpcEndpointType": "Interface",
        "privateDnsEnabled": True,
        "subnetIds": [place[each] for each in subnets],
        "securityGroupIds": [place["x"]],
        "tags": {"Name": "sqs"},
        **more,
    }


def interfaces(stack: Stack, vpc: str) -> list[dict[str, Any]]:
    answer = stack.cloud.client("ec2").describe_network_interfaces(
        Filters=[{"Name": "vpc-id", "Values": [vpc]}]
    )
    found: list[dict[str, Any]] = answer["NetworkInterfaces"]
    return found


def test_an_interface_endpoint_has_an_interface_in_each_subnet_and_in_its_groups(
    stack: Stack, place: dict[str, Any]
) -> None:
    rid, inputs, outputs = stack.make(ENDPOINT, **interface(place, "a", "b"))
    assert stack.drift(ENDPOINT, rid, inputs, outputs) == {}
    found = interfaces(stack, place["vpc"])
    assert {i["SubnetId"] for i in found} == {place["a"], place["b"]}
    assert {g["GroupId"] for i in found for g in i["Groups"]} == {place["x"]}
    assert sorted(outputs["networkInterfaceIds"]) == sorted(i["NetworkInterfaceId"] for i in found)
    assert {i["Status"] for i in found} == {"in-use"}
    again = stack.imported(ENDPOINT, rid)
    assert again is not None
    assert again["securityGroupIds"] == [place["x"]]
    assert again["privateDnsEnabled"] is True
    # Nothing that it lies in can go before it.
    ec2 = stack.cloud.client("ec2")
    for refused in (
        lambda: ec2.delete_subnet(SubnetId=place["a"]),
        lambda: ec2.delete_security_group(GroupId=place["x"]),
        lambda: ec2.delete_vpc(VpcId=place["vpc"]),
    ):
        with pytest.raises(Exception, match="DependencyViolation"):
            refused()
    stack.delete(ENDPOINT, rid, inputs)
    assert stack.imported(ENDPOINT, rid) is None
    assert interfaces(stack, place["vpc"]) == []
    ec2.delete_subnet(SubnetId=place["a"])
    ec2.delete_security_group(GroupId=place["x"])


def test_subnets_groups_and_private_names_of_an_endpoint_change_in_place(
    stack: Stack, place: dict[str, Any]
) -> None:
    rid, old, _ = stack.make(ENDPOINT, **interface(place, "a", "b"))
    new, _ = stack.update(ENDPOINT, rid, old, subnetIds=[place["b"]], tags={"Name": "other"})
    assert [i["SubnetId"] for i in interfaces(stack, place["vpc"])] == [place["b"]]
    new, _ = stack.update(ENDPOINT, rid, new, subnetIds=[place["b"], place["a"]])
    new, _ = stack.update(ENDPOINT, rid, new, securityGroupIds=[place["y"]])
    found = interfaces(stack, place["vpc"])
    assert {(i["SubnetId"], i["Groups"][0]["GroupId"]) for i in found} == {
        (place["a"], place["y"]),
        (place["b"], place["y"]),
    }
    new, _ = stack.update(ENDPOINT, rid, new, privateDnsEnabled=False)
    assert (stack.imported(ENDPOINT, rid) or {})["privateDnsEnabled"] is False
    stack.delete(ENDPOINT, rid, new)


def test_an_endpoint_of_another_service_is_a_new_one(stack: Stack, place: dict[str, Any]) -> None:
    old = stack.checked(ENDPOINT, interface(place, "a"))
    changed = stack.replaced(ENDPOINT, old, serviceName="com.amazonaws.us-west-2.ssm")
    assert changed == ["serviceName"]


def test_what_aws_refuses_of_endpoints_is_refused(stack: Stack, place: dict[str, Any]) -> None:
    with pytest.raises(Exception, match=r"DuplicateSubnetsInSameZone.*availability zone of subnet-"):
        stack.make(ENDPOINT, **interface(place, "a", "a2"))
    with pytest.raises(Exception, match=r"InvalidGroup\.NotFound.*sg-none"):
        stack.make(ENDPOINT, **interface(place, "a", securityGroupIds=["sg-none"]))
    stack.make(ENDPOINT, **interface(place, "a"))
    with pytest.raises(Exception, match="already a conflicting DNS domain"):
        stack.make(ENDPOINT, **interface(place, "b"))
    plain, *_ = stack.make("aws:ec2/vpc:Vpc", cidrBlock="10.1.0.0/16")
    subnet, *_ = stack.make("aws:ec2/subnet:Subnet", vpcId=plain, cidrBlock="10.1.0.0/24")
    with pytest.raises(Exception, match="requires both enableDnsSupport and enableDnsHostnames"):
        stack.make(ENDPOINT, **interface(place, vpcId=plain, subnetIds=[subnet], securityGroupIds=[]))
    assert len(interfaces(stack, place["vpc"])) == 1, "what was refused left nothing"


def test_inputs_of_the_other_type_of_endpoint_are_refused_before_anything_is_made(stack: Stack) -> None:
    inputs = {"vpcId": "vpc-1", "serviceName": "com.amazonaws.us-west-2.s3", "subnetIds": ["subnet-1"]}
    found = stack.provider.check(
        CheckRequest(**stack.who(ENDPOINT), inputs=inputs, old_inputs=None, seed=b"s")
    )
    assert [failure.path for failure in found.failures] == ["subnetIds"]
    assert "for endpoints of type Interface; this one is of type Gateway" in found.failures[0].reason


def test_a_gateway_endpoint_moves_between_tables(stack: Stack, place: dict[str, Any]) -> None:
    one, *_ = stack.make("aws:ec2/routeTable:RouteTable", vpcId=place["vpc"])
    two, *_ = stack.make("aws:ec2/routeTable:RouteTable", vpcId=place["vpc"])
    rid, inputs, outputs = stack.make(
        ENDPOINT, vpcId=place["vpc"], serviceName="com.amazonaws.us-west-2.s3", routeTableIds=[one]
    )
    assert outputs["privateDnsEnabled"] is False
    assert interfaces(stack, place["vpc"]) == []
    inputs, _ = stack.update(ENDPOINT, rid, inputs, routeTableIds=[two])
    stack.delete(ENDPOINT, rid, inputs)


# ------------------------------------------------------------------------------------------------- logs


def logs_key(stack: Stack, *groups: str) -> str:
    """ARN of a key as a stack makes it for these groups."""
    policy = iam.logs_key_policy(HERE, groups)
    return str(stack.make(KEY, policy=json.dumps(policy), deletionWindowInDays=7)[2]["arn"])


def test_a_log_group_takes_a_key_that_cloudwatch_may_use_for_it(stack: Stack) -> None:
    key = logs_key(stack, NAME)
    rid, inputs, outputs = stack.make(LOG_GROUP, name=NAME, kmsKeyId=key, retentionInDays=365)
    assert stack.drift(LOG_GROUP, rid, inputs, outputs) == {}
    assert (stack.imported(LOG_GROUP, rid) or {})["kmsKeyId"] == key
    other = logs_key(stack, NAME, "/another")
    inputs, _ = stack.update(LOG_GROUP, rid, inputs, kmsKeyId=other, retentionInDays=400)
    stack.cloud.client("logs").disassociate_kms_key(logGroupName=rid)
    assert stack.drift(LOG_GROUP, rid, inputs, inputs) == {"kmsKeyId": ""}
    stack.delete(LOG_GROUP, rid, inputs)
    assert stack.imported(LOG_GROUP, rid) is None


@pytest.mark.parametrize(
    "policy",
    [
        key_policy(HERE),
        iam.logs_key_policy(HERE, ("/other",)),
        iam.logs_key_policy(ELSEWHERE, (NAME,)),
    ],
    ids=["the account alone", "another group", "another region"],
)
def test_a_key_that_cloudwatch_may_not_use_for_a_group_is_refused(stack: Stack, policy: Any) -> None:
    key = stack.make(KEY, policy=json.dumps(policy))[2]["arn"]
    refusal = r"AccessDeniedException.*The specified KMS key does not exist or is not allowed.*flow-logs'"
    with pytest.raises(Exception, match=refusal):
        stack.make(LOG_GROUP, name=NAME, kmsKeyId=key)
    assert stack.imported(LOG_GROUP, NAME) is None
    rid, *_ = stack.make(LOG_GROUP, name=NAME)
    with pytest.raises(Exception, match=refusal):
        stack.cloud.client("logs").associate_kms_key(logGroupName=rid, kmsKeyId=key)


def flow_logs_parts(
    stack: Stack, trust: Any = None, rights: Callable[[str], Any] | None = None
) -> dict[str, Any]:
    """Log group and role as a stack makes them; the inputs of the flow log of a new VPC."""
    vpc, *_ = stack.make("aws:ec2/vpc:Vpc", cidrBlock="10.0.0.0/16")
    group = stack.make(LOG_GROUP, name=NAME, kmsKeyId=logs_key(stack, NAME))[2]["arn"]
    trust = trust or iam.flow_logs_trust(HERE)
    role, _, outputs = stack.make(ROLE, name="flow-logs", assumeRolePolicy=json.dumps(trust))
    writer = (rights or (lambda arn: iam.flow_logs_writer(log_group_arn=arn)))(group)
    stack.make("aws:iam/rolePolicy:RolePolicy", role=role, policy=json.dumps(writer))
    return {
        "vpcId": vpc,
        "trafficType": "ALL",
        "logDestination": group,
        "iamRoleArn": outputs["arn"],
        "maxAggregationInterval": 60,
        "tags": {"Name": "flow-logs"},
    }


def status(stack: Stack, rid: str) -> tuple[str, str | None]:
    answer = stack.cloud.client("ec2").describe_flow_logs(FlowLogIds=[rid])["FlowLogs"][0]
    return answer["DeliverLogsStatus"], answer.get("DeliverLogsErrorMessage")


def test_a_flow_log_is_delivered_with_the_role_and_the_group_of_a_stack(stack: Stack) -> None:
    given = flow_logs_parts(stack)
    rid, inputs, outputs = stack.make(FLOW_LOG, **given)
    assert stack.drift(FLOW_LOG, rid, inputs, outputs) == {}
    assert status(stack, rid) == ("SUCCESS", None)
    again = stack.imported(FLOW_LOG, rid)
    assert again is not None
    assert (again["vpcId"], again["logDestination"]) == (given["vpcId"], given["logDestination"])
    inputs, _ = stack.update(FLOW_LOG, rid, inputs, tags={"Name": "other"})
    with pytest.raises(Exception, match="FlowLogAlreadyExists"):
        stack.make(FLOW_LOG, **given)
    stack.delete(FLOW_LOG, rid, inputs)
    assert stack.imported(FLOW_LOG, rid) is None


def test_all_of_a_flow_log_but_its_tags_needs_a_new_one(stack: Stack) -> None:
    old = stack.checked(FLOW_LOG, {"vpcId": "vpc-1", "trafficType": "ALL", "logDestination": "arn:a"})
    for change in ({"trafficType": "REJECT"}, {"maxAggregationInterval": 60}, {"logDestination": "arn:b"}):
        assert stack.replaced(FLOW_LOG, old, **change) == list(change)


@pytest.mark.parametrize(
    "trust",
    [
        service_trust("ec2.amazonaws.com"),
        iam.flow_logs_trust(Account(id="999999999999", region=REGION)),
        iam.flow_logs_trust(ELSEWHERE),
    ],
    ids=["another service", "another account", "another region"],
)
def test_a_role_that_flow_logs_cannot_take_is_refused(stack: Stack, trust: Any) -> None:
    with pytest.raises(Exception, match=r"InvalidParameter: Unable to assume given IAM role: 'arn:aws:iam::"):
        stack.make(FLOW_LOG, **flow_logs_parts(stack, trust))


@pytest.mark.parametrize(
    "rights",
    [
        lambda arn: iam.flow_logs_writer(log_group_arn=arn + "-other"),
        lambda arn: document(iam.flow_logs_writer(log_group_arn=arn)["Statement"][0]),
    ],
    ids=["another group", "cannot find the group"],
)
def test_a_role_without_the_rights_shows_as_a_failed_delivery(
    stack: Stack, rights: Callable[[str], Any]
) -> None:
    rid, *_ = stack.make(FLOW_LOG, **flow_logs_parts(stack, None, rights))
    assert status(stack, rid) == ("FAILED", "Access error")


# ------------------------------------------------------------------------------------------------- identity


def test_an_instance_profile_gets_another_role_and_goes_with_it(stack: Stack) -> None:
    trust = json.dumps(service_trust("ec2.amazonaws.com"))
    one, *_ = stack.make(ROLE, name="one", assumeRolePolicy=trust)
    two, *_ = stack.make(ROLE, name="two", assumeRolePolicy=trust)
    rid, inputs, outputs = stack.make(PROFILE, role=one, tags={"a": "b"})
    assert stack.drift(PROFILE, rid, inputs, outputs) == {}
    inputs, _ = stack.update(PROFILE, rid, inputs, role=two, tags={"c": "d"})
    assert (stack.imported(PROFILE, rid) or {})["role"] == two
    stack.delete(PROFILE, rid, inputs)
    assert stack.imported(PROFILE, rid) is None


# ------------------------------------------------------------------------------------------------- leftovers


def machine(cloud: Emulator, cluster: str) -> dict[str, Any]:
    """A machine of a cluster in a network of its own."""
    network, ec2 = cloud.network(), cloud.client("ec2")
    tags = [{"Key": "eks:eks-cluster-name", "Value": cluster}]
    (made,) = ec2.run_instances(
        ImageId="ami-1",
        InstanceType="m5.large",
        MinCount=1,
        MaxCount=1,
        SubnetId=network["subnets"][0],
        TagSpecifications=[{"ResourceType": "instance", "Tags": tags}],
    )["Instances"]
    return {**network, "id": made["InstanceId"]}


def left(cloud: Emulator, cluster: str) -> list[dict[str, Any]]:
    filters = [
        {"Name": "status", "Values": ["available"]},
        {"Name": f"tag:{CLUSTER_TAG}", "Values": [cluster]},
    ]
    answer = cloud.client("ec2").describe_network_interfaces(Filters=filters)
    found: list[dict[str, Any]] = answer["NetworkInterfaces"]
    return found


def test_an_interface_that_vpc_cni_left_holds_its_subnet_until_it_is_swept(deployer: Emulator) -> None:
    ours, theirs = machine(deployer, "mine"), machine(deployer, "other")
    rule = {"code": "NetworkInterfaceLeft", "instanceType": "m5.*", "times": 2}
    deployer.call("PUT", "faults", {"faults": [rule]})
    ec2 = deployer.client("ec2")
    ec2.terminate_instances(InstanceIds=[ours["id"], theirs["id"]])
    (found,) = left(deployer, "mine")
    assert found["SubnetId"] == ours["subnets"][0]
    assert found["Description"] == f"aws-K8S-{ours['id']}"
    with pytest.raises(Exception, match="DependencyViolation"):
        ec2.delete_subnet(SubnetId=ours["subnets"][0])
    ec2.delete_network_interface(NetworkInterfaceId=found["NetworkInterfaceId"])
    assert left(deployer, "mine") == []
    assert len(left(deployer, "other")) == 1, "another cluster's stays"
    ec2.delete_subnet(SubnetId=ours["subnets"][0])


def test_without_a_plan_nothing_is_left_and_interfaces_in_use_are_not_found(deployer: Emulator) -> None:
    ours, ec2 = machine(deployer, "mine"), deployer.client("ec2")
    (used,) = ec2.describe_network_interfaces(
        Filters=[{"Name": "subnet-id", "Values": [ours["subnets"][0]]}]
    )["NetworkInterfaces"]
    with pytest.raises(Exception, match=r"InvalidParameterValue.*is currently in use"):
        ec2.delete_network_interface(NetworkInterfaceId=used["NetworkInterfaceId"])
    assert left(deployer, "mine") == []
    ec2.terminate_instances(InstanceIds=[ours["id"]])
    assert left(deployer, "mine") == []
    ec2.delete_subnet(SubnetId=ours["subnets"][0])


def test_the_rule_for_leftovers_keeps_no_machine_from_starting() -> None:
    plan = Plan()
    plan.replace({"faults": [{"code": LEFT_INTERFACE}]})
    assert plan.launch_room("m5.large", "us-west-2a", "on-demand", 1, lambda _: 0) == (1, None)
    assert plan.left_interface("m5.large", "us-west-2a", "on-demand") is not None
