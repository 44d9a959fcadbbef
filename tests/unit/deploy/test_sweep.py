from __future__ import annotations

import boto3
import pytest

from local.deploy.sweep import sweep
from tests.unit.emulator import REGION, SESSION, Cloud

pytestmark = pytest.mark.unit


@pytest.fixture
def account(deployer: Cloud, monkeypatch: pytest.MonkeyPatch) -> Cloud:
    # The default session keeps the credentials that it found first, which may be another test's.
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", SESSION)
    return deployer


def launch(account: Cloud, cluster: str) -> str:
    tags = [{"ResourceType": "instance", "Tags": [{"Key": "eks:eks-cluster-name", "Value": cluster}]}]
    answer = account.client("ec2").run_instances(
        ImageId="ami-1", InstanceType="t3.micro", MinCount=1, MaxCount=1, TagSpecifications=tags
    )
    return str(answer["Instances"][0]["InstanceId"])


def state(account: Cloud, instance: str) -> str:
    answer = account.client("ec2").describe_instances(InstanceIds=[instance])
    return str(answer["Reservations"][0]["Instances"][0]["State"]["Name"])


def test_only_what_carries_exactly_this_clusters_tag_is_removed(account: Cloud) -> None:
    ours, similar = launch(account, "train"), launch(account, "train-two")
    lines: list[str] = []
    assert sweep(REGION, "train", lines.append) == 1
    assert state(account, ours) == "terminated"
    assert state(account, similar) == "running"
    assert ours in lines[0]


def test_an_instance_profile_goes_with_its_role_taken_out_first(account: Cloud) -> None:
    iam = account.client("iam")
    iam.create_role(RoleName="node", AssumeRolePolicyDocument="{}")
    iam.create_instance_profile(
        InstanceProfileName="p", Tags=[{"Key": "eks:eks-cluster-name", "Value": "train"}]
    )
    iam.add_role_to_instance_profile(InstanceProfileName="p", RoleName="node")
    assert sweep(REGION, "train", print) == 1
    assert iam.list_instance_profiles()["InstanceProfiles"] == []


def test_a_clean_account_needs_no_sweep(account: Cloud) -> None:
    assert sweep(REGION, "train", print) == 0
