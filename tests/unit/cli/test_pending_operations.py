"""What a killed engine was creating is found again and goes into the state once."""

from __future__ import annotations

from typing import Any

import boto3
import pytest

from tests.unit.emulator import SESSION, Cloud
from trainyard.cli.pending_operations import identities, with_adopted

pytestmark = pytest.mark.unit

KIND = "aws:ecr/repository:Repository"
URN = f"urn:pulumi:local::trainyard::{KIND}::launcher"


def state() -> dict[str, object]:
    resource = {
        "urn": URN,
        "type": "aws:ecr/repository:Repository",
        "inputs": {"name": "trainyard-local/launcher"},
    }
    return {
        "resources": [{"urn": "stack"}],
        "pending_operations": [{"type": "creating", "resource": resource}],
    }


def test_a_named_resource_is_known_by_its_name() -> None:
    assert dict(identities(state(), "123456789012", "us-west-2")) == {URN: "trainyard-local/launcher"}


def test_a_resource_that_the_state_names_already_is_left_alone() -> None:
    known = {**state(), "resources": [{"urn": "other", "type": KIND, "id": "trainyard-local/launcher"}]}
    assert dict(identities(known, "123456789012", "us-west-2")) == {}


def test_the_adopted_resource_comes_last_and_is_pending_no_more() -> None:
    edited = with_adopted({"version": 3, "deployment": state()}, {URN: "trainyard-local/launcher"})[
        "deployment"
    ]
    assert edited["pending_operations"] == []
    assert [each["urn"] for each in edited["resources"]] == ["stack", URN]
    assert edited["resources"][-1]["id"] == "trainyard-local/launcher"


def test_an_id_of_several_inputs_is_put_together_when_all_are_known() -> None:
    resource = {"urn": URN, "type": "aws:eks/accessEntry:AccessEntry", "inputs": {"clusterName": "mine"}}
    deployment = {"resources": [], "pending_operations": [{"type": "creating", "resource": resource}]}
    assert dict(identities(deployment, "123456789012", "us-west-2")) == {}
    resource["inputs"] = {"clusterName": "mine", "principalArn": "arn:aws:iam::1:role/r"}
    assert dict(identities(deployment, "123456789012", "us-west-2")) == {URN: "mine:arn:aws:iam::1:role/r"}


def _made(ec2: Any, kind: str, tags: list[dict[str, str]]) -> str:
    """Make one resource of the kind with the tags; returns its id."""

    def tagged(name: str) -> list[dict[str, Any]]:
        return [{"ResourceType": name, "Tags": tags}]

    if kind == "aws:ec2/eip:Eip":
        return str(ec2.allocate_address(TagSpecifications=tagged("elastic-ip"))["AllocationId"])
    if kind == "aws:ec2/launchTemplate:LaunchTemplate":
        answer = ec2.create_launch_template(
            LaunchTemplateName="t", LaunchTemplateData={}, TagSpecifications=tagged("launch-template")
        )
        return str(answer["LaunchTemplate"]["LaunchTemplateId"])
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16", TagSpecifications=tagged("vpc"))["Vpc"]["VpcId"]
    if kind == "aws:ec2/vpc:Vpc":
        return str(vpc)
    if kind == "aws:ec2/vpcEndpoint:VpcEndpoint":
        answer = ec2.create_vpc_endpoint(
            VpcId=vpc, ServiceName="com.amazonaws.us-west-2.s3", TagSpecifications=tagged("vpc-endpoint")
        )
        return str(answer["VpcEndpoint"]["VpcEndpointId"])
    if kind == "aws:ec2/flowLog:FlowLog":
        answer = ec2.create_flow_logs(
            ResourceType="VPC",
            ResourceIds=[vpc],
            TrafficType="ALL",
            LogDestinationType="s3",
            LogDestination="arn:aws:s3:::logs",
            TagSpecifications=tagged("vpc-flow-log"),
        )
        return str(answer["FlowLogIds"][0])
    if "securityGroup" in kind:
        group = ec2.create_security_group(GroupName="g", Description="g", VpcId=vpc)["GroupId"]
        answer = ec2.authorize_security_group_ingress(
            GroupId=group,
            IpPermissions=[{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group}]}],
            TagSpecifications=tagged("security-group-rule"),
        )
        return str(answer["SecurityGroupRules"][0]["SecurityGroupRuleId"])
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.0.0.0/24", TagSpecifications=tagged("subnet"))
    subnet_id = str(subnet["Subnet"]["SubnetId"])
    if kind == "aws:ec2/subnet:Subnet":
        return subnet_id
    answer = ec2.create_nat_gateway(SubnetId=subnet_id, TagSpecifications=tagged("natgateway"))
    return str(answer["NatGateway"]["NatGatewayId"])


@pytest.mark.parametrize(
    "kind",
    [
        "aws:ec2/eip:Eip",
        "aws:ec2/flowLog:FlowLog",
        "aws:ec2/launchTemplate:LaunchTemplate",
        "aws:ec2/natGateway:NatGateway",
        "aws:ec2/subnet:Subnet",
        "aws:ec2/vpc:Vpc",
        "aws:ec2/vpcEndpoint:VpcEndpoint",
    ],
)
def test_what_ec2_gave_an_id_is_found_by_all_of_its_tags(
    kind: str, deployer: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The default session keeps the credentials that it found first, which may be another test's.
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", SESSION)
    tags = {"Name": "one", "trainyard:stack": "local"}
    deployer.client("s3").create_bucket(
        Bucket="logs", CreateBucketConfiguration={"LocationConstraint": "us-west-2"}
    )
    ec2 = deployer.client("ec2")
    made = _made(ec2, kind, [{"Key": key, "Value": value} for key, value in tags.items()])
    pending = {"urn": "u", "type": kind, "inputs": {"tags": tags}}
    deployment = {"resources": [], "pending_operations": [{"type": "creating", "resource": pending}]}
    assert dict(identities(deployment, "123456789012", "us-west-2")) == {"u": made}
    pending["inputs"] = {"tags": {**tags, "Name": "another"}}
    assert dict(identities(deployment, "123456789012", "us-west-2")) == {}
