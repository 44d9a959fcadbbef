from __future__ import annotations

from collections.abc import Iterator

import boto3
import pytest
from moto import mock_aws

from local.deploy.sweep import sweep

pytestmark = pytest.mark.unit

REGION = "us-west-2"


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("AWS_ENDPOINT_URL", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    with mock_aws():
        yield


def launch(cluster: str) -> str:
    ec2 = boto3.client("ec2", region_name=REGION)
    tags = [{"ResourceType": "instance", "Tags": [{"Key": "eks:eks-cluster-name", "Value": cluster}]}]
    image = ec2.describe_images()["Images"][0]["ImageId"]
    answer = ec2.run_instances(ImageId=image, MinCount=1, MaxCount=1, TagSpecifications=tags)
    return str(answer["Instances"][0]["InstanceId"])


def state(instance: str) -> str:
    ec2 = boto3.client("ec2", region_name=REGION)
    answer = ec2.describe_instances(InstanceIds=[instance])
    return str(answer["Reservations"][0]["Instances"][0]["State"]["Name"])


def test_only_what_carries_exactly_this_clusters_tag_is_removed(account: None) -> None:
    ours, similar = launch("train"), launch("train-two")
    lines: list[str] = []
    assert sweep(REGION, "train", lines.append) == 1
    assert state(ours) == "terminated"
    assert state(similar) == "running"
    assert ours in lines[0]


def test_an_instance_profile_goes_with_its_role_taken_out_first(account: None) -> None:
    iam = boto3.client("iam", region_name=REGION)
    iam.create_role(RoleName="node", AssumeRolePolicyDocument="{}")
    iam.create_instance_profile(
        InstanceProfileName="p", Tags=[{"Key": "eks:eks-cluster-name", "Value": "train"}]
    )
    iam.add_role_to_instance_profile(InstanceProfileName="p", RoleName="node")
    assert sweep(REGION, "train", print) == 1
    assert iam.list_instance_profiles()["InstanceProfiles"] == []


def test_a_clean_account_needs_no_sweep(account: None) -> None:
    assert sweep(REGION, "train", print) == 0
