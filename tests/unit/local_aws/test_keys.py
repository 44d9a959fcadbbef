"""KMS keys that are disabled or pending deletion: in KMS, and in the services that use them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.unit.emulator import Cloud
from tests.unit.local_aws.test_fsx import Site

DELETED, DISABLED = "KMSInvalidStateException", "DisabledException"


def code(call: Callable[[], Any]) -> str:
    """Return the code of the call's error; an empty string if it succeeds."""
    try:
        call()
    except ClientError as error:
        return str(error.response["Error"]["Code"])
    return ""


@pytest.fixture
def key(cloud: Cloud) -> str:
    return str(cloud.client("kms").create_key()["KeyMetadata"]["Arn"])


@pytest.fixture(params=[DISABLED, DELETED])
def state(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def spoil(cloud: Cloud, key: str, state: str) -> None:
    kms, name = cloud.client("kms"), key.rpartition("/")[2]
    if state == DISABLED:
        kms.disable_key(KeyId=name)
    else:
        kms.schedule_key_deletion(KeyId=name, PendingWindowInDays=7)


def test_key_in_a_wrong_state_is_not_used_by_kms(cloud: Cloud, key: str, state: str) -> None:
    kms = cloud.client("kms")
    spoil(cloud, key, state)
    grantee = "arn:aws:iam::123456789012:role/nodes"
    grant = partial(kms.create_grant, KeyId=key, GranteePrincipal=grantee, Operations=["Decrypt"])
    assert code(grant) == state


def test_key_in_a_wrong_state_is_not_used_by_s3(cloud: Cloud, key: str, state: str) -> None:
    s3 = cloud.client("s3")
    s3.create_bucket(Bucket="models", CreateBucketConfiguration={"LocationConstraint": "us-west-2"})
    named = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": key}
    s3.put_object(Bucket="models", Key="named", Body=b"x", **named)
    rule = {"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": key}}
    s3.put_bucket_encryption(Bucket="models", ServerSideEncryptionConfiguration={"Rules": [rule]})
    s3.put_object(Bucket="models", Key="default", Body=b"x")
    spoil(cloud, key, state)
    for use in (
        lambda: s3.put_object(Bucket="models", Key="other", Body=b"x"),
        lambda: s3.create_multipart_upload(Bucket="models", Key="other"),
        lambda: s3.get_object(Bucket="models", Key="named"),
        lambda: s3.get_object(Bucket="models", Key="default"),
    ):
        assert code(use) == f"KMS.{state}"
    s3.head_object(Bucket="models", Key="default")
    s3.put_object(Bucket="models", Key="other", Body=b"x", ServerSideEncryption="AES256")
    s3.get_object(Bucket="models", Key="other")


def create_cluster(cloud: Cloud, key: str) -> Any:
    return cloud.client("eks").create_cluster(
        name="main",
        roleArn=cloud.role("cluster", None),
        resourcesVpcConfig={"subnetIds": cloud.network()["subnets"]},
        encryptionConfig=[{"resources": ["secrets"], "provider": {"keyArn": key}}],
    )


def create_file_system(cloud: Cloud, key: str) -> Any:
    lustre = {"DeploymentType": "PERSISTENT_2", "PerUnitStorageThroughput": 125}
    return Site(cloud).create(lustre, KmsKeyId=key)


def create_repository(cloud: Cloud, key: str) -> Any:
    encryption = {"encryptionType": "KMS", "kmsKey": key}
    return cloud.client("ecr").create_repository(repositoryName="models", encryptionConfiguration=encryption)


@pytest.mark.parametrize("state", [DISABLED, DELETED, "absent", ""])
@pytest.mark.parametrize(
    ("create", "error"),
    [
        (create_cluster, "InvalidParameterException"),
        (create_file_system, "BadRequest"),
        (create_repository, "KmsException"),
    ],
)
def test_resource_needs_a_usable_key(
    cloud: Cloud, key: str, create: Callable[[Cloud, str], Any], error: str, state: str
) -> None:
    if state == "absent":
        key = f"{key[:-4]}0000"
    elif state:
        spoil(cloud, key, state)
    assert code(lambda: create(cloud, key)) == (error if state else "")
