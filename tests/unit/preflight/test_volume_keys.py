"""Keys of nodes' disks: the one that is given, the account's default one, and those of snapshots."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.emulator import REGION, Cloud
from tests.unit.preflight.accounts import NOW, account, checks, only, pool, wanted
from trainyard.preflight.run import examine
from trainyard.preflight.volume_keys import VolumeKey, check_snapshot_keys, check_volume_key

pytestmark = pytest.mark.unit

KEY = "trainyard:cluster.volumeKey"
OF = checks("key of nodes' disks", "keys of snapshots")
OWN = {"Effect": "Allow", "Principal": {"AWS": "arn:aws:iam::123456789012:root"}, "Action": "kms:*"}
# As the policy of the AWS managed key for EBS has it.
THROUGH_EC2 = {
    "Effect": "Allow",
    "Principal": {"AWS": "*"},
    "Action": ["kms:Encrypt", "kms:Decrypt", "kms:ReEncrypt*", "kms:GenerateDataKey*", "kms:CreateGrant"],
    "Condition": {"StringEquals": {"kms:ViaService": f"ec2.{REGION}.amazonaws.com"}},
}


def told(cloud: Cloud, **changes: Any) -> list[str]:
    return [str(problem) for problem in examine(account(cloud), wanted(**changes), NOW, OF).problems]


def made(cloud: Cloud, *statements: dict[str, Any]) -> str:
    policy = {"Version": "2012-10-17", "Statement": [{"Resource": "*", **each} for each in statements]}
    answer = cloud.client("kms").create_key(Policy=json.dumps(policy))
    return str(answer["KeyMetadata"]["Arn"])


def default(cloud: Cloud, key: str) -> None:
    cloud.client("ec2").modify_ebs_default_kms_key_id(KmsKeyId=key)


def test_aws_managed_default_key_is_right(cloud: Cloud) -> None:
    assert told(cloud) == []


def test_customer_managed_default_key_must_be_given_or_open(cloud: Cloud) -> None:
    key = made(cloud, OWN)
    default(cloud, key)
    only(told(cloud), KEY, key, "fail at launch")
    default(cloud, made(cloud, OWN, THROUGH_EC2))
    assert told(cloud) == []


def test_disabled_default_key_is_refused(cloud: Cloud) -> None:
    key = made(cloud, OWN, THROUGH_EC2)
    default(cloud, key)
    cloud.client("kms").disable_key(KeyId=key.rpartition("/")[2])
    only(told(cloud), KEY, "is Disabled")


def test_given_key_must_exist_with_the_role_of_the_grant(cloud: Cloud) -> None:
    key = made(cloud, OWN)
    only(told(cloud, volume_key=key), KEY, "AWSServiceRoleForAutoScaling", "create-service-linked-role")
    cloud.client("iam").create_service_linked_role(AWSServiceName="autoscaling.amazonaws.com")
    assert told(cloud, volume_key=key) == []
    absent = f"arn:aws:kms:{REGION}:123456789012:key/00000000-0000-0000-0000-000000000000"
    only(told(cloud, volume_key=absent), KEY, "does not exist")


@pytest.mark.parametrize(
    ("state", "spec", "says"),
    [
        ("Enabled", "SYMMETRIC_DEFAULT", ""),
        ("PendingDeletion", "SYMMETRIC_DEFAULT", "is PendingDeletion"),
        ("Enabled", "RSA_2048", "RSA_2048"),
    ],
)
def test_given_key_must_be_enabled_and_symmetric(state: str, spec: str, says: str) -> None:
    key = VolumeKey(arn="a", managed="CUSTOMER", state=state, spec=spec, open=False)
    found = check_volume_key(wanted(volume_key="a"), key)
    assert (says in found[0].message) if says else found == []


@pytest.mark.parametrize(
    ("is_open", "given", "is_right"), [(True, None, True), (False, "k", True), (False, None, False)]
)
def test_key_of_a_snapshot_must_be_usable(is_open: bool, given: str | None, is_right: bool) -> None:
    mine = wanted(volume_key=given, pools=(pool(snapshot_id="snap-1"),))
    key = VolumeKey(arn="k", managed="CUSTOMER", state="Enabled", spec="SYMMETRIC_DEFAULT", open=is_open)
    found = check_snapshot_keys(mine, {"snap-1": key})
    assert (found == []) is is_right
    if found:
        assert found[0].key == "trainyard:pools[0].dataSnapshotId"
