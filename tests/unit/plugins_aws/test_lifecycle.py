"""Each resource against the emulator: made, read back without drift, changed, drifted and deleted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import EndpointConnectionError

from local.plugins.aws.cloud import Cloud
from local.plugins.aws.provider import AwsProvider
from local.plugins.aws.resource import Resource
from local.plugins.provider import DeleteRequest, InitFailed, ProviderError
from tests.unit.emulator import Cloud as Emulator
from tests.unit.plugins_aws.stack import TRUST, Stack, policy


@pytest.fixture
def local_cloud(deployer: Emulator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The emulator is the local cloud of the environment, as for a plugin that the engine starts."""
    record = tmp_path / "cloud.json"
    known = {"awsEndpoint": deployer.endpoint, "region": "us-west-2"}
    keys = {"accessKeyId": deployer.key, "secretAccessKey": deployer.secret}
    record.write_text(json.dumps(known | keys))
    monkeypatch.setenv("TRAINYARD_LOCAL_CLOUD", str(record))


CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("aws:ec2/vpc:Vpc", {"cidrBlock": "10.0.0.0/16"}, {"enableDnsHostnames": True}),
    (
        "aws:iam/role:Role",
        {"assumeRolePolicy": TRUST},
        {"description": "new", "assumeRolePolicy": TRUST.replace("ec2", "eks")},
    ),
    ("aws:iam/policy:Policy", {"policy": policy("s3:GetObject")}, {"policy": policy("s3:PutObject")}),
    (
        "aws:iam/openIdConnectProvider:OpenIdConnectProvider",
        {"url": "https://i.example/id/1", "clientIdLists": ["a"], "thumbprintLists": ["a" * 40]},
        {"thumbprintLists": ["b" * 40]},
    ),
    ("aws:sqs/queue:Queue", {"messageRetentionSeconds": 300}, {"messageRetentionSeconds": 400}),
    (
        "aws:cloudwatch/eventRule:EventRule",
        {"eventPattern": '{"source":["aws.ec2"]}'},
        {"eventPattern": '{"source":["aws.health"]}'},
    ),
    ("aws:cloudwatch/logGroup:LogGroup", {"name": "/a/b", "retentionInDays": 7}, {"retentionInDays": 14}),
    (
        "aws:ecr/repository:Repository",
        {"imageTagMutability": "IMMUTABLE", "forceDelete": True},
        {"imageScanningConfiguration": {"scanOnPush": True}},
    ),
    ("aws:kms/key:Key", {"description": "a", "enableKeyRotation": True}, {"description": "b"}),
    ("aws:s3/bucket:Bucket", {"forceDestroy": True}, {"forceDestroy": False}),
    (
        "aws:ec2/launchTemplate:LaunchTemplate",
        {
            "instanceType": "m5.large",
            "metadataOptions": {"httpTokens": "required"},
        },
        {"instanceType": "m5.xlarge"},
    ),
    ("aws:ec2/placementGroup:PlacementGroup", {"name": "near", "strategy": "cluster"}, {}),
]


@pytest.mark.parametrize(("token", "inputs", "change"), CASES, ids=[case[0].split(":")[-1] for case in CASES])
def test_a_resource_is_made_changed_and_deleted_without_drift(
    stack: Stack, token: str, inputs: dict[str, Any], change: dict[str, Any]
) -> None:
    rid, old, outputs = stack.make(token, tags={"a": "b"}, **inputs)
    assert outputs["tagsAll"] == {"a": "b"}
    assert stack.drift(token, rid, old, outputs) == {}
    new, after = stack.update(token, rid, old, **change, tags={"c": "d"})
    assert after["tags"] == {"c": "d"}
    stack.delete(token, rid, new, after)


def test_placement_group_is_known_by_its_name(stack: Stack) -> None:
    token = "aws:ec2/placementGroup:PlacementGroup"
    rid, inputs, outputs = stack.make(token, name="near", strategy="cluster")
    assert (rid, outputs["placementGroupId"][:3]) == ("near", "pg-")
    assert outputs["arn"].endswith(":placement-group/near")
    stack.cloud.client("ec2").delete_placement_group(GroupName="near")
    assert stack.drift(token, rid, inputs, outputs) is None
    stack.cloud.client("ec2").create_placement_group(GroupName="theirs", Strategy="cluster")
    found = stack.imported(token, "theirs") or {}
    assert (found["name"], found["strategy"]) == ("theirs", "cluster")


SETTINGS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    (
        "Versioning",
        {"versioningConfiguration": {"status": "Enabled"}},
        {"versioningConfiguration": {"status": "Suspended"}},
    ),
    (
        "PublicAccessBlock",
        {"blockPublicAcls": True, "restrictPublicBuckets": True},
        {"blockPublicAcls": False},
    ),
    (
        "ServerSideEncryptionConfiguration",
        {
            "rules": [
                {
                    "applyServerSideEncryptionByDefault": {"sseAlgorithm": "aws:kms", "kmsMasterKeyId": "k"},
                    "bucketKeyEnabled": True,
                }
            ]
        },
        {"rules": [{"applyServerSideEncryptionByDefault": {"sseAlgorithm": "AES256"}}]},
    ),
    (
        "LifecycleConfiguration",
        {"rules": [{"id": "a", "status": "Enabled", "filter": {"prefix": "x/"}, "expiration": {"days": 30}}]},
        {
            "rules": [
                {"id": "a", "status": "Enabled", "abortIncompleteMultipartUpload": {"daysAfterInitiation": 7}}
            ]
        },
    ),
    ("Policy", {"policy": policy("s3:GetObject")}, {"policy": policy("s3:PutObject")}),
    (
        "OwnershipControls",
        {"rule": {"objectOwnership": "BucketOwnerEnforced"}},
        {"rule": {"objectOwnership": "BucketOwnerPreferred"}},
    ),
]


@pytest.mark.parametrize(("name", "inputs", "change"), SETTINGS, ids=[case[0] for case in SETTINGS])
def test_a_setting_of_a_bucket_is_made_changed_and_deleted_without_drift(
    stack: Stack, name: str, inputs: dict[str, Any], change: dict[str, Any]
) -> None:
    bucket, *_ = stack.make("aws:s3/bucket:Bucket", bucket="b-1")
    token = f"aws:s3/bucket{name}:Bucket{name}"
    rid, old, outputs = stack.make(token, bucket=bucket, **inputs)
    assert (rid, outputs["bucket"]) == (bucket, bucket)
    assert stack.drift(token, rid, old, outputs) == {}
    new, after = stack.update(token, rid, old, **change)
    if name != "Versioning":  # it never returns to unversioned
        stack.delete(token, rid, new, after)
    else:
        stack.provider.delete(DeleteRequest(**stack.who(token), id=rid, inputs=new, outputs=after))


def test_a_change_from_outside_shows_as_drift(stack: Stack) -> None:
    token = "aws:sqs/queue:Queue"
    rid, inputs, outputs = stack.make(token, messageRetentionSeconds=300, tags={"a": "b"})
    sqs = stack.cloud.client("sqs")
    sqs.set_queue_attributes(QueueUrl=rid, Attributes={"MessageRetentionPeriod": "999"})
    sqs.tag_queue(QueueUrl=rid, Tags={"foreign": "1"})
    tags = {"a": "b", "foreign": "1"}
    assert stack.drift(token, rid, inputs, outputs) == {
        "messageRetentionSeconds": 999,
        "tags": tags,
        "tagsAll": tags,
    }


def test_new_security_group_has_no_rules(stack: Stack) -> None:
    vpc, *_ = stack.make("aws:ec2/vpc:Vpc", cidrBlock="10.1.0.0/16")
    token = "aws:ec2/securityGroup:SecurityGroup"
    rid, inputs, outputs = stack.make(token, vpcId=vpc)
    live = stack.cloud.client("ec2").describe_security_groups(GroupIds=[rid])["SecurityGroups"][0]
    # AWS opens every new group to the outside; the official provider takes that back.
    assert live["IpPermissionsEgress"] == []
    stack.delete(token, rid, inputs, outputs)


@pytest.mark.parametrize("direction", ["Ingress", "Egress"])
def test_a_rule_between_groups_is_read_back_and_revoked(stack: Stack, direction: str) -> None:
    vpc, *_ = stack.make("aws:ec2/vpc:Vpc", cidrBlock="10.2.0.0/16")
    group, *_ = stack.make("aws:ec2/securityGroup:SecurityGroup", vpcId=vpc)
    token = f"aws:vpc/securityGroup{direction}Rule:SecurityGroup{direction}Rule"
    rid, inputs, outputs = stack.make(
        token, securityGroupId=group, ipProtocol="-1", referencedSecurityGroupId=group, description="t"
    )
    assert stack.drift(token, rid, inputs, outputs) == {}
    stack.delete(token, rid, inputs, outputs)


def test_bucket_with_objects_is_deleted_only_with_force(stack: Stack) -> None:
    token = "aws:s3/bucket:Bucket"
    rid, inputs, outputs = stack.make(token, forceDestroy=True)
    versioning = {"bucket": rid, "versioningConfiguration": {"status": "Enabled"}}
    stack.make("aws:s3/bucketVersioning:BucketVersioning", **versioning)
    for content in ("one", "two"):
        stack.cloud.client("s3").put_object(Bucket=rid, Key="a", Body=content)
    kept = DeleteRequest(
        **stack.who(token), id=rid, inputs={**inputs, "forceDestroy": False}, outputs=outputs
    )
    with pytest.raises(Exception, match="BucketNotEmpty"):
        stack.provider.delete(kept)
    stack.delete(token, rid, inputs, outputs)


def test_a_failure_after_the_creation_keeps_the_resource_in_the_state(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("no retention today")

    monkeypatch.setattr(Resource, "finish", fail)
    with pytest.raises(InitFailed, match="no retention today") as caught:
        stack.make("aws:cloudwatch/logGroup:LogGroup", name="/half/made")
    assert caught.value.resource_id == "/half/made"
    assert caught.value.outputs["arn"].endswith("/half/made")


def test_a_cluster_that_failed_is_taken_away_so_that_the_next_up_makes_another(
    stack: Stack, deployer: Emulator
) -> None:
    token, role = "aws:eks/cluster:Cluster", deployer.role("failing", None)
    network = {"subnetIds": deployer.network()["subnets"]}
    deployer.supervisor.refuse = "etcd: no space left on device"
    with pytest.raises(ProviderError, match="no space left on device") as refused:
        stack.make(token, name="failing", roleArn=role, vpcConfig=network)
    assert not isinstance(refused.value, InitFailed)
    deployer.supervisor.refuse = None
    assert stack.make(token, name="failing", roleArn=role, vpcConfig=network)[0] == "failing"


def test_an_error_of_the_api_is_one_line_with_operation_code_and_text(stack: Stack) -> None:
    with pytest.raises(
        Exception, match=r"^thing: create: CreateSubnet: InvalidVpcID\.NotFound: .*vpc-0"
    ) as caught:
        stack.make("aws:ec2/subnet:Subnet", vpcId="vpc-0", cidrBlock="10.0.0.0/24")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "limits",
    [{"allowedAccountIds": ["111111111111"]}, {"forbiddenAccountIds": ["123456789012", "111111111111"]}],
)
def test_an_account_that_is_not_allowed_is_refused_when_the_provider_is_configured(
    stack: Stack, limits: dict[str, list[str]], local_cloud: None
) -> None:
    settings = {key: json.dumps(value) for key, value in limits.items()}
    with pytest.raises(ProviderError) as refused:
        AwsProvider().configure({"region": "us-west-2", **settings})
    assert str(refused.value) == "AWS account ID not allowed: 123456789012"


def test_an_account_that_is_allowed_is_taken(stack: Stack, local_cloud: None) -> None:
    provider = AwsProvider()
    provider.configure({"region": "us-west-2", "allowedAccountIds": json.dumps(["123456789012"])})
    assert provider.cloud().account == "123456789012"


def test_an_account_that_can_not_be_asked_is_one_line(
    stack: Stack, local_cloud: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(_cloud: Cloud) -> str:
        raise EndpointConnectionError(endpoint_url="http://127.0.0.1:1")

    monkeypatch.setattr(Cloud, "account", property(unreachable))
    with pytest.raises(ProviderError, match=r"^aws: configure: Could not connect to .*127\.0\.0\.1:1"):
        AwsProvider().configure({"region": "us-west-2", "allowedAccountIds": json.dumps(["123456789012"])})
