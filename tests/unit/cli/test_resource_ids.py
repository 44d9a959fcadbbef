"""The id of everything that a killed engine had made is found from what its state says of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from local.plugins.aws.handlers import HANDLERS
from tests.unit.emulator import Cloud
from tests.unit.plugins_aws.stack import TRUST, Stack, policy
from trainyard.cli.resource_ids import BY_INPUT, COMPOSED, EC2_LISTED, Finder

# Types that are made once more without harm, and why.
HARMLESS = {
    "aws:ec2/defaultSecurityGroup:DefaultSecurityGroup": "it exists with its VPC; creating sets its rules",
    "aws:s3/bucketLifecycleConfiguration:BucketLifecycleConfiguration": "a put of the bucket, gone with it",
    "aws:s3/bucketOwnershipControls:BucketOwnershipControls": "a put of the bucket, gone with it",
    "aws:s3/bucketPolicy:BucketPolicy": "a put of the bucket, gone with it",
    "aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock": "a put of the bucket, gone with it",
    "aws:s3/bucketServerSideEncryptionConfiguration:BucketServerSideEncryptionConfiguration": (
        "a put of the bucket, gone with it"
    ),
    "aws:s3/bucketVersioning:BucketVersioning": "a put of the bucket, gone with it",
    "docker-build:index:Image": "the tag is the digest of what it is built from: the same image is pushed again",
}
TAGS = {"trainyard:stack": "local", "Name": "one"}
GROUP = "aws:ec2/securityGroup:SecurityGroup"


@pytest.fixture(scope="module")
def made() -> Stack:
    """One for all tests: clients are slow to make."""
    return Stack()


@pytest.fixture
def stack(account: Cloud, made: Stack) -> Stack:
    """The provider on an empty account, which the finder's clients lead to as well."""
    return made


@pytest.fixture
def finder() -> Finder:
    return Finder("123456789012", "us-west-2", lambda namespace, name: (namespace, name) == ("n", "done"))


def test_every_type_of_the_plugin_is_found_again_or_harmless(finder: Finder) -> None:
    """A new type has to be thought of: what happens when the engine is killed while it makes one?"""
    assert set(HANDLERS) - finder.types - set(HARMLESS) == set()
    assert finder.types & set(HARMLESS) == set()
    assert len(finder.types) >= sum(map(len, (BY_INPUT, COMPOSED, EC2_LISTED))), "a type in two tables"


class Maker:
    """Makes resources as the engine does, and remembers the inputs that the engine would have noted."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack

    def __call__(self, token: str, **inputs: Any) -> str:
        rid, self.inputs, self.outputs = self.stack.make(token, **inputs)
        self.token = token
        return rid

    def reads(self, rid: str) -> bool:
        """Whether a refresh of an adopted resource finds it by this id."""
        return self.stack.drift(self.token, rid, self.inputs, self.inputs) is not None


def _role(make: Maker) -> str:
    return make("aws:iam/role:Role", assumeRolePolicy=TRUST, name="r")


def _vpc(make: Maker) -> str:
    return make("aws:ec2/vpc:Vpc", cidrBlock="10.0.0.0/16", tags={})


def _queue(make: Maker) -> str:
    return make("aws:sqs/queue:Queue", name="q", tags=TAGS)


def _rule(make: Maker) -> str:
    return make("aws:cloudwatch/eventRule:EventRule", name="e", eventPattern='{"source":["aws.ec2"]}')


def _table(make: Maker) -> str:
    return make("aws:ec2/routeTable:RouteTable", vpcId=_vpc(make), tags={})


def _route(make: Maker) -> str:
    vpc = _vpc(make)
    gateway = make("aws:ec2/internetGateway:InternetGateway", vpcId=vpc)
    table = make("aws:ec2/routeTable:RouteTable", vpcId=vpc)
    return make(
        "aws:ec2/route:Route", routeTableId=table, destinationCidrBlock="0.0.0.0/0", gatewayId=gateway
    )


def _association(make: Maker) -> str:
    vpc = _vpc(make)
    subnet = make("aws:ec2/subnet:Subnet", vpcId=vpc, cidrBlock="10.0.1.0/24")
    other = make("aws:ec2/subnet:Subnet", vpcId=vpc, cidrBlock="10.0.2.0/24")
    table = make("aws:ec2/routeTable:RouteTable", vpcId=vpc)
    token = "aws:ec2/routeTableAssociation:RouteTableAssociation"
    make(token, routeTableId=table, subnetId=other)
    return make(token, routeTableId=table, subnetId=subnet)


def _ingress(make: Maker) -> str:
    group = make(GROUP, vpcId=_vpc(make))
    token = "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule"
    make(token, securityGroupId=group, ipProtocol="tcp", fromPort=988, toPort=988, cidrIpv4="10.0.0.0/8")
    return make(token, securityGroupId=group, ipProtocol="-1", referencedSecurityGroupId=group, tags=TAGS)


def _egress(make: Maker) -> str:
    group = make(GROUP, vpcId=_vpc(make))
    token = "aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule"
    make(token, securityGroupId=group, ipProtocol="-1", cidrIpv4="10.0.0.0/8", tags=TAGS)
    return make(
        token, securityGroupId=group, ipProtocol="tcp", fromPort=443, toPort=443, cidrIpv4="10.0.0.0/8"
    )


def _key(make: Maker) -> str:
    make("aws:kms/key:Key", description="another", tags={**TAGS, "Name": "two"})
    return make("aws:kms/key:Key", description="mine", tags=TAGS)


def _grant(make: Maker) -> str:
    key = make("aws:kms/key:Key", description="mine")
    role = "arn:aws:iam::123456789012:role/r"
    return make("aws:kms/grant:Grant", keyId=key, granteePrincipal=role, operations=["Decrypt"])


def _file_system(make: Maker) -> str:
    vpc = _vpc(make)
    subnet = make("aws:ec2/subnet:Subnet", vpcId=vpc, cidrBlock="10.0.1.0/24")
    group = make(GROUP, vpcId=vpc)
    for direction in ("Ingress", "Egress"):
        token = f"aws:vpc/securityGroup{direction}Rule:SecurityGroup{direction}Rule"
        make(token, securityGroupId=group, ipProtocol="-1", referencedSecurityGroupId=group)
    return make(
        "aws:fsx/lustreFileSystem:LustreFileSystem",
        subnetIds=subnet, securityGroupIds=[group], storageCapacity=1200, deploymentType="PERSISTENT_2",
        perUnitStorageThroughput=125, tags=TAGS,
    )  # fmt: skip


def _data_association(make: Maker) -> str:
    bucket = make("aws:s3/bucket:Bucket", bucket="data-1")
    return make(
        "aws:fsx/dataRepositoryAssociation:DataRepositoryAssociation",
        fileSystemId=_file_system(make), fileSystemPath="/data", dataRepositoryPath=f"s3://{bucket}/data",
    )  # fmt: skip


MAKERS = {
    "aws:cloudwatch/eventRule:EventRule": _rule,
    "aws:cloudwatch/eventTarget:EventTarget": lambda make: make(
        "aws:cloudwatch/eventTarget:EventTarget",
        rule=_rule(make), targetId="t", arn="arn:aws:sqs:us-west-2:123456789012:q",
    ),
    "aws:cloudwatch/logGroup:LogGroup": lambda make: make("aws:cloudwatch/logGroup:LogGroup", name="/a"),
    "aws:ec2/placementGroup:PlacementGroup": lambda make: make(
        "aws:ec2/placementGroup:PlacementGroup", name="p", strategy="cluster"
    ),
    "aws:ec2/route:Route": _route,
    "aws:ec2/routeTableAssociation:RouteTableAssociation": _association,
    "aws:ecr/repository:Repository": lambda make: make("aws:ecr/repository:Repository", name="a/b"),
    "aws:fsx/dataRepositoryAssociation:DataRepositoryAssociation": _data_association,
    "aws:fsx/lustreFileSystem:LustreFileSystem": _file_system,
    "aws:iam/openIdConnectProvider:OpenIdConnectProvider": lambda make: make(
        "aws:iam/openIdConnectProvider:OpenIdConnectProvider",
        url="https://i.example/id/1", clientIdLists=["a"], thumbprintLists=["a" * 40],
    ),
    "aws:iam/policy:Policy": lambda make: make(
        "aws:iam/policy:Policy", name="p", policy=policy("s3:GetObject")
    ),
    "aws:iam/role:Role": _role,
    "aws:iam/rolePolicy:RolePolicy": lambda make: make(
        "aws:iam/rolePolicy:RolePolicy", role=_role(make), name="i", policy=policy("s3:GetObject")
    ),
    "aws:iam/rolePolicyAttachment:RolePolicyAttachment": lambda make: make(
        "aws:iam/rolePolicyAttachment:RolePolicyAttachment",
        role=_role(make), policyArn="arn:aws:iam::aws:policy/AmazonEKSWorkerNodePolicy",
    ),
    "aws:kms/grant:Grant": _grant,
    "aws:kms/key:Key": _key,
    "aws:s3/bucket:Bucket": lambda make: make("aws:s3/bucket:Bucket", bucket="b-1"),
    "aws:sqs/queue:Queue": _queue,
    "aws:sqs/queuePolicy:QueuePolicy": lambda make: make(
        "aws:sqs/queuePolicy:QueuePolicy", queueUrl=_queue(make), policy=policy("sqs:SendMessage")
    ),
    "aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule": _egress,
    "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule": _ingress,
}  # fmt: skip


@pytest.mark.parametrize("token", sorted(MAKERS), ids=lambda token: token.split(":")[-1])
def test_the_id_leads_a_refresh_to_what_was_made(token: str, stack: Stack, finder: Finder) -> None:
    make = Maker(stack)
    rid = MAKERS[token](make)
    noted = json.loads(json.dumps(make.inputs))  # the state is JSON
    (found,) = finder.candidates(token, noted)
    assert make.reads(found)
    if token != "aws:ec2/route:Route":
        assert found == rid


@pytest.mark.parametrize("token", sorted(MAKERS), ids=lambda token: token.split(":")[-1])
def test_what_was_never_made_has_no_id_or_one_that_a_refresh_drops(
    token: str, stack: Stack, finder: Finder
) -> None:
    make = Maker(stack)
    rid = MAKERS[token](make)
    stack.provider.handler(token).delete(stack.cloud, rid, {**make.outputs, **make.inputs})
    assert not any(make.reads(found) for found in finder.candidates(token, make.inputs))


def _gateway(make: Maker) -> str:
    subnet = make("aws:ec2/subnet:Subnet", vpcId=_vpc(make), cidrBlock="10.0.1.0/24")
    address = make("aws:ec2/eip:Eip", domain="vpc")
    return make("aws:ec2/natGateway:NatGateway", subnetId=subnet, allocationId=address, tags=TAGS)


def _endpoint(make: Maker) -> str:
    service = "com.amazonaws.us-west-2.s3"
    return make("aws:ec2/vpcEndpoint:VpcEndpoint", vpcId=_vpc(make), serviceName=service, tags=TAGS)


def _internet_gateway(make: Maker) -> str:
    return make("aws:ec2/internetGateway:InternetGateway", vpcId=_vpc(make), tags=TAGS)


def _subnet(make: Maker) -> str:
    return make("aws:ec2/subnet:Subnet", vpcId=_vpc(make), cidrBlock="10.0.1.0/24", tags=TAGS)


def _group(make: Maker) -> str:
    return make(GROUP, vpcId=_vpc(make), tags=TAGS)


def _tagged_table(make: Maker) -> str:
    return make("aws:ec2/routeTable:RouteTable", vpcId=_vpc(make), tags=TAGS)


def _address(make: Maker) -> str:
    return make("aws:ec2/eip:Eip", domain="vpc", tags=TAGS)


def _network(make: Maker) -> str:
    return make("aws:ec2/vpc:Vpc", cidrBlock="10.0.0.0/16", tags=TAGS)


def _template(make: Maker) -> str:
    return make("aws:ec2/launchTemplate:LaunchTemplate", name="t", instanceType="m5.large", tags=TAGS)


def _flow_log(make: Maker) -> str:
    vpc = _vpc(make)
    bucket = make("aws:s3/bucket:Bucket", bucket=f"logs-of-{vpc}")
    place = {"logDestinationType": "s3", "logDestination": f"arn:aws:s3:::{bucket}"}
    return make("aws:ec2/flowLog:FlowLog", vpcId=vpc, trafficType="ALL", tags=TAGS, **place)


@pytest.mark.parametrize(
    "maker",
    [
        _gateway,
        _endpoint,
        _internet_gateway,
        _subnet,
        _group,
        _tagged_table,
        _address,
        _network,
        _template,
        _flow_log,
    ],
)
def test_candidates_of_a_deleted_resource_are_not_returned(
    maker: Callable[[Maker], str], stack: Stack, finder: Finder
) -> None:
    """AWS still shows some resources for a while after they were deleted."""
    make = Maker(stack)
    for _ in range(2):
        rid = maker(make)
        assert finder.candidates(make.token, make.inputs) == [rid]
        assert finder.candidates(make.token, {**make.inputs, "tags": {**TAGS, "Name": "two"}}) == []
        stack.provider.handler(make.token).delete(stack.cloud, rid, {**make.outputs, **make.inputs})
    assert finder.candidates(make.token, make.inputs) == []


@pytest.mark.parametrize(
    ("token", "inputs", "identity"),
    [
        ("aws:eks/nodeGroup:NodeGroup", {"clusterName": "c", "nodeGroupName": "n"}, "c:n"),
        ("aws:eks/addon:Addon", {"clusterName": "c", "addonName": "coredns"}, "c:coredns"),
        ("aws:eks/accessEntry:AccessEntry", {"clusterName": "c", "principalArn": "arn:r"}, "c:arn:r"),
        (
            "aws:eks/accessPolicyAssociation:AccessPolicyAssociation",
            {"clusterName": "c", "principalArn": "arn:r", "policyArn": "arn:p"},
            "c#arn:r#arn:p",
        ),
        ("kubernetes:core/v1:ServiceAccount", {"metadata": {"namespace": "n", "name": "a"}}, "n/a"),
        ("kubernetes:core/v1:Namespace", {"metadata": {"name": "n"}}, "n"),
    ],
)
def test_an_id_is_put_together_as_the_official_provider_does(
    token: str, inputs: Mapping[str, Any], identity: str, finder: Finder
) -> None:
    assert finder.candidates(token, inputs) == [identity]
    assert finder.candidates(token, {}) == []


def test_a_release_is_taken_over_only_when_helm_finished_it(finder: Finder) -> None:
    token = "kubernetes:helm.sh/v3:Release"
    assert finder.candidates(token, {"namespace": "n", "name": "done"}) == ["n/done"]
    assert finder.candidates(token, {"namespace": "n", "name": "started"}) == []
