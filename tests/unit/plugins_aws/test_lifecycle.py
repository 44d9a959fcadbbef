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
from local.plugins.provider import (
    CheckRequest,
    CreateRequest,
    DeleteRequest,
    InitFailed,
    ProviderError,
    ReadRequest,
    UpdateRequest,
)
from tests.unit.emulator import Cloud as Emulator

pytestmark = pytest.mark.unit

TRUST = json.dumps(
    {
        "Version": "2012-10-17",
        "Statement": [
            {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"Service": "ec2.amazonaws.com"}}
        ],
    }
)


def policy(action: str) -> str:
    return json.dumps(
        {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": action, "Resource": "*"}]}
    )


class Stack:
    """A few resources of one provider."""

    def __init__(self) -> None:
        self.provider = AwsProvider()
        self.provider.configure({"region": "us-west-2"})
        self.cloud = Cloud("us-west-2")
        self.provider._made = self.cloud

    def who(self, token: str) -> dict[str, str]:
        return {"urn": f"urn:pulumi:dev::p::{token}::thing", "type": token, "name": "thing"}

    def checked(self, token: str, inputs: dict[str, Any], old: Any = None) -> dict[str, Any]:
        result = self.provider.check(
            CheckRequest(**self.who(token), inputs=inputs, old_inputs=old, seed=b"s")
        )
        assert result.failures == []
        return result.inputs

    def make(self, token: str, **inputs: Any) -> tuple[str, dict[str, Any], dict[str, Any]]:
        checked = self.checked(token, inputs)
        rid, outputs = self.provider.create(CreateRequest(**self.who(token), inputs=checked, preview=False))
        return rid, checked, outputs

    def drift(
        self, token: str, rid: str, inputs: dict[str, Any], outputs: dict[str, Any]
    ) -> dict[str, Any] | None:
        found = self.provider.read(ReadRequest(**self.who(token), id=rid, inputs=inputs, outputs=outputs))
        if found is None:
            return None
        return {k: v for k, v in found.inputs.items() if inputs.get(k) != v}


@pytest.fixture(scope="module")
def made() -> Stack:
    """One for all tests: clients are slow to make."""
    return Stack()


@pytest.fixture
def stack(deployer: Emulator, made: Stack) -> Stack:
    """The provider on an empty account of the emulator."""
    return made


@pytest.fixture
def local_cloud(deployer: Emulator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The emulator is the local cloud of the environment, as for a plugin that the engine starts."""
    record = tmp_path / "cloud.json"
    known = {"awsEndpoint": deployer.endpoint, "region": "us-west-2"}
    keys = {"accessKeyId": deployer.key, "secretAccessKey": deployer.secret}
    record.write_text(json.dumps(known | keys))
    monkeypatch.setenv("TRAINYARD_LOCAL_CLOUD", str(record))


ADMIN, READER = (f"arn:aws:iam::aws:policy/{name}" for name in ("AdministratorAccess", "ReadOnlyAccess"))
CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("aws:ec2/vpc:Vpc", {"cidrBlock": "10.0.0.0/16"}, {"enableDnsHostnames": True}),
    (
        "aws:iam/role:Role",
        {"assumeRolePolicy": TRUST, "inlinePolicies": [{"name": "i", "policy": policy("s3:GetObject")}]},
        {
            "description": "new",
            "assumeRolePolicy": TRUST.replace("ec2", "eks"),
            "inlinePolicies": [{"name": "i", "policy": policy("s3:PutObject")}],
        },
    ),
    (
        "aws:iam/role:Role",
        {
            "assumeRolePolicy": TRUST,
            "managedPolicyArns": [ADMIN],
            "maxSessionDuration": 7200,
            "permissionsBoundary": ADMIN,
        },
        {"description": "new", "managedPolicyArns": [READER], "permissionsBoundary": READER},
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
]


@pytest.mark.parametrize(("token", "inputs", "change"), CASES, ids=[case[0].split(":")[-1] for case in CASES])
def test_a_resource_is_made_changed_and_deleted_without_drift(
    stack: Stack, token: str, inputs: dict[str, Any], change: dict[str, Any]
) -> None:
    rid, old, outputs = stack.make(token, tags={"a": "b"}, **inputs)
    assert outputs["tagsAll"] == {"a": "b"}
    assert stack.drift(token, rid, old, outputs) == {}
    new = stack.checked(token, {**inputs, **change, "tags": {"c": "d"}}, old)
    request = UpdateRequest(
        **stack.who(token), id=rid, old_inputs=old, old_outputs=outputs, inputs=new, preview=False
    )
    after = stack.provider.update(request)
    assert after["tags"] == {"c": "d"}
    assert stack.drift(token, rid, new, after) == {}
    stack.provider.delete(DeleteRequest(**stack.who(token), id=rid, inputs=new, outputs=after))
    assert stack.drift(token, rid, new, after) is None
    # Deleting what is gone is no error.
    stack.provider.delete(DeleteRequest(**stack.who(token), id=rid, inputs=new, outputs=after))


def test_an_object_of_a_bucket_has_the_content_and_the_tags_of_the_program(stack: Stack) -> None:
    bucket, *_ = stack.make("aws:s3/bucket:Bucket", bucket="b-1")
    token = "aws:s3/bucketObject:BucketObject"
    rid, old, outputs = stack.make(token, bucket=bucket, key="a/b", content="one", tags={"x": "y"})
    assert (rid, outputs["key"], outputs["tags"]) == ("b-1/a/b", "a/b", {"x": "y"})
    assert stack.drift(token, rid, old, outputs) == {}
    base = {"bucket": bucket, "key": "a/b", "contentType": "text/plain"}
    for change, content in (({"content": "two"}, b"two"), ({"contentBase64": "dHdv"}, b"two")):
        new = stack.checked(token, {**base, **change, "tags": {"x": "z"}}, old)
        request = UpdateRequest(
            **stack.who(token), id=rid, old_inputs=old, old_outputs=outputs, inputs=new, preview=False
        )
        outputs = stack.provider.update(request)
        old = new
        assert stack.drift(token, rid, new, outputs) == {}
        assert stack.cloud.client("s3").get_object(Bucket=bucket, Key="a/b")["Body"].read() == content
    stack.provider.delete(DeleteRequest(**stack.who(token), id=rid, inputs=old, outputs=outputs))
    assert stack.drift(token, rid, old, outputs) is None


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
    new = stack.checked(token, {"bucket": bucket, **inputs, **change}, old)
    request = UpdateRequest(
        **stack.who(token), id=rid, old_inputs=old, old_outputs=outputs, inputs=new, preview=False
    )
    after = stack.provider.update(request)
    assert stack.drift(token, rid, new, after) == {}
    stack.provider.delete(DeleteRequest(**stack.who(token), id=rid, inputs=new, outputs=after))
    if name != "Versioning":  # it never returns to unversioned
        assert stack.drift(token, rid, new, after) is None


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


def test_a_new_security_group_has_no_rules_and_revokes_all_on_deletion(stack: Stack) -> None:
    vpc, *_ = stack.make("aws:ec2/vpc:Vpc", cidrBlock="10.1.0.0/16")
    token = "aws:ec2/securityGroup:SecurityGroup"
    rid, inputs, outputs = stack.make(token, vpcId=vpc, revokeRulesOnDelete=True)
    ec2 = stack.cloud.client("ec2")
    live = ec2.describe_security_groups(GroupIds=[rid])["SecurityGroups"][0]
    # AWS opens every new group to the outside; the official provider takes that back.
    assert live["IpPermissionsEgress"] == []
    # A rule of another group would hold this one.
    other, *_ = stack.make(token, vpcId=vpc, name="two")
    pairs = [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": other}]}]
    ec2.authorize_security_group_ingress(GroupId=rid, IpPermissions=pairs)
    assert stack.drift(token, rid, inputs, outputs) == {}
    stack.provider.delete(DeleteRequest(**stack.who(token), id=rid, inputs=inputs, outputs=outputs))
    assert stack.drift(token, rid, inputs, outputs) is None


@pytest.mark.parametrize("direction", ["Ingress", "Egress"])
def test_a_rule_between_groups_is_read_back_and_revoked(stack: Stack, direction: str) -> None:
    vpc, *_ = stack.make("aws:ec2/vpc:Vpc", cidrBlock="10.2.0.0/16")
    group, *_ = stack.make("aws:ec2/securityGroup:SecurityGroup", vpcId=vpc)
    token = f"aws:vpc/securityGroup{direction}Rule:SecurityGroup{direction}Rule"
    rid, inputs, outputs = stack.make(
        token, securityGroupId=group, ipProtocol="-1", referencedSecurityGroupId=group, description="t"
    )
    assert stack.drift(token, rid, inputs, outputs) == {}
    stack.provider.delete(DeleteRequest(**stack.who(token), id=rid, inputs=inputs, outputs=outputs))
    assert stack.drift(token, rid, inputs, outputs) is None


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
    stack.provider.delete(DeleteRequest(**stack.who(token), id=rid, inputs=inputs, outputs=outputs))
    assert stack.drift(token, rid, inputs, outputs) is None


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
