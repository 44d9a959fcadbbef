"""Instances end at launch where the key of their disks can't be used, as on EC2."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from local.aws import volume_keys
from tests.unit.emulator import Cloud
from tests.unit.local_aws.test_fleets import Launcher, queue_of_rule

ROLE = "arn:aws:iam::123456789012:role/karpenter"
OPERATIONS = ["CreateGrant", "Decrypt", "DescribeKey", "GenerateDataKeyWithoutPlaintext", "ReEncryptFrom"]
USE = ["kms:CreateGrant", "kms:Decrypt", "kms:DescribeKey", "kms:GenerateDataKey*", "kms:ReEncrypt*"]
WRONG_STATE, NOT_ALLOWED = "Client.InvalidKMSKey.InvalidState", "Client.InternalError"


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(volume_keys, "END_SECONDS", 0.05)


class Disks:
    """A key, and launches of a role whose disks have it."""

    def __init__(self, cloud: Cloud) -> None:
        self.cloud, self.launcher = cloud, Launcher(cloud)
        self.kms, self.templates = cloud.client("kms"), 0
        metadata = self.kms.create_key()["KeyMetadata"]
        self.key, self.arn = metadata["KeyId"], metadata["Arn"]
        rights: list[dict[str, Any]] = [
            {"Effect": "Allow", "Action": ["ec2:*", "iam:PassRole"], "Resource": "*"}
        ]
        self.role_arn = cloud.role("karpenter", {"Statement": rights})
        self.by_role = dict(
            cloud.client("sts").assume_role(RoleArn=self.role_arn, RoleSessionName="karpenter")["Credentials"]
        )

    def policy(self, principal: Any, **condition: Any) -> None:
        statement = {"Effect": "Allow", "Principal": principal, "Action": USE, "Resource": "*", **condition}
        document = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
        self.kms.put_key_policy(KeyId=self.key, PolicyName="default", Policy=document)

    def iam(self, resource: str) -> None:
        statement = {"Effect": "Allow", "Action": USE, "Resource": resource}
        document = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
        self.cloud.client("iam").put_role_policy(
            RoleName="karpenter", PolicyName="key", PolicyDocument=document
        )

    def launch(self, *, by_user: bool = False, capacity: str = "on-demand", **disk: Any) -> dict[str, Any]:
        """The instance after it runs or has ended."""
        ebs = {"VolumeSize": 20, "Encrypted": True, **disk}
        disks = [{"DeviceName": "/dev/xvda", "Ebs": ebs}]
        self.templates += 1
        template = self.launcher.make_template(f"disks-{self.templates}", BlockDeviceMappings=disks)
        ec2 = self.launcher.ec2
        if not by_user:
            self.launcher.ec2 = self.cloud.client("ec2", self.by_role)
        fleet = self.launcher.fleet(zones="a", template=template, capacity=capacity)
        self.launcher.ec2 = ec2
        number = fleet["Instances"][0]["InstanceIds"][0]
        return self.settled(number)

    def settled(self, number: str) -> dict[str, Any]:
        for _ in range(500):
            found = self.launcher.instance(number)
            # moto writes the state first, and a user's reason.
            if state(found) == RUNS or state(found)[1] in (WRONG_STATE, NOT_ALLOWED):
                return found
            time.sleep(0.02)
        raise AssertionError("the instance is pending for ever")


@pytest.fixture
def disks(cloud: Cloud) -> Disks:
    return Disks(cloud)


def state(instance: dict[str, Any]) -> tuple[str, str]:
    return instance["State"]["Name"], (instance.get("StateReason") or {}).get("Code", "")


RUNS, ENDS = ("running", ""), "terminated"


def disable(disks: Disks) -> None:
    disks.kms.disable_key(KeyId=disks.key)


def delete(disks: Disks) -> None:
    disks.kms.schedule_key_deletion(KeyId=disks.key, PendingWindowInDays=7)


@pytest.mark.parametrize("spoil", [disable, delete])
@pytest.mark.parametrize("named", [True, False])
def test_key_in_a_wrong_state_ends_the_instance(
    disks: Disks, spoil: Callable[[Disks], None], named: bool
) -> None:
    """The key of the template and the account's default key, for each launcher."""
    disks.launcher.ec2.modify_ebs_default_kms_key_id(KmsKeyId=disks.key)
    key = {"KmsKeyId": disks.arn} if named else {}
    assert state(disks.launch(by_user=True, **key)) == RUNS
    spoil(disks)
    ended = disks.launch(by_user=True, **key)
    assert state(ended) == (ENDS, WRONG_STATE)
    assert "incorrect state" in ended["StateReason"]["Message"]
    assert state(disks.launch(by_user=True, Encrypted=False)) == RUNS


def test_key_that_does_not_exist_ends_the_instance(disks: Disks) -> None:
    absent = disks.arn.replace(disks.key, "0" * 36)
    assert state(disks.launch(by_user=True, KmsKeyId=absent)) == (ENDS, WRONG_STATE)


VIA_EC2 = {
    "StringEquals": {"kms:ViaService": "ec2.us-west-2.amazonaws.com", "kms:CallerAccount": "123456789012"}
}
ROOT = {"AWS": "arn:aws:iam::123456789012:root"}


@pytest.mark.parametrize(
    ("allow", "result"),
    [
        (lambda disks: None, (ENDS, NOT_ALLOWED)),
        (lambda disks: disks.iam(disks.arn), RUNS),
        (lambda disks: disks.iam("arn:aws:kms:us-west-2:123456789012:key/other"), (ENDS, NOT_ALLOWED)),
        (lambda disks: disks.policy({"AWS": ROLE}), RUNS),
        (lambda disks: disks.policy({"AWS": "*"}, Condition=VIA_EC2), RUNS),
        (lambda disks: disks.policy({"AWS": ROLE + "-other"}), (ENDS, NOT_ALLOWED)),
        # Without the account in the key's policy no policy of IAM counts.
        (lambda disks: (disks.iam("*"), disks.policy({"AWS": ROLE + "-other"})), (ENDS, NOT_ALLOWED)),
        (
            lambda disks: disks.kms.create_grant(
                KeyId=disks.key, GranteePrincipal=ROLE, Operations=OPERATIONS
            ),
            RUNS,
        ),
        (
            lambda disks: disks.kms.create_grant(
                KeyId=disks.key, GranteePrincipal=ROLE, Operations=["DescribeKey"]
            ),
            (ENDS, NOT_ALLOWED),
        ),
    ],
)
def test_launcher_needs_the_right_to_use_the_key(
    disks: Disks, allow: Callable[[Disks], Any], result: tuple[str, str]
) -> None:
    allow(disks)
    assert state(disks.launch(KmsKeyId=disks.arn)) == result


def test_spot_instance_needs_the_right_of_its_service_role(disks: Disks) -> None:
    disks.policy({"AWS": ROLE})
    assert state(disks.launch(KmsKeyId=disks.arn, capacity="spot")) == (ENDS, NOT_ALLOWED)
    spot = volume_keys.SPOT
    disks.kms.create_grant(KeyId=disks.key, GranteePrincipal=spot, Operations=OPERATIONS)
    assert state(disks.launch(KmsKeyId=disks.arn, capacity="spot")) == RUNS


def test_aws_managed_key_is_everybodys_and_stays_the_default(disks: Disks) -> None:
    ec2 = disks.launcher.ec2
    ec2.create_volume(AvailabilityZone="us-west-2a", Size=1, Encrypted=True)
    assert ec2.get_ebs_default_kms_key_id()["KmsKeyId"] == "alias/aws/ebs"
    assert state(disks.launch()) == RUNS
    assert state(disks.launch(KmsKeyId="alias/aws/ebs")) == RUNS


def test_instance_that_ends_at_launch_joins_no_cluster(disks: Disks) -> None:
    """No node comes of it, and Karpenter's queue hears that it ended."""
    receive = queue_of_rule(disks.cloud)
    disable(disks)
    ended = disks.launch(KmsKeyId=disks.arn)
    assert state(ended) == (ENDS, WRONG_STATE)
    assert disks.cloud.call("GET", "instances?cluster=main")[0] == []
    said = [json.loads(each["Body"])["detail"] for each in receive()]
    assert {"instance-id": ended["InstanceId"], "state": "terminated"} in said


def test_node_group_fails_where_auto_scaling_may_not_use_the_key(disks: Disks) -> None:
    cluster = disks.cloud.cluster()
    disks.policy({"AWS": ROLE})
    ebs = {"VolumeSize": 20, "Encrypted": True, "KmsKeyId": disks.arn}
    template = disks.launcher.make_template(
        "s", BlockDeviceMappings=[{"DeviceName": "/dev/xvda", "Ebs": ebs}]
    )
    eks = disks.cloud.client("eks")

    def group(name: str) -> Any:
        return eks.create_nodegroup(
            clusterName="main",
            nodegroupName=name,
            subnets=cluster["subnets"],
            nodeRole=disks.launcher.role,
            launchTemplate={"id": template},
            scalingConfig={"minSize": 1, "maxSize": 1, "desiredSize": 1},
            instanceTypes=["t3.medium"],
        )["nodegroup"]

    failed = group("a")
    assert failed["status"] == "CREATE_FAILED"
    assert "Client.InternalError" in failed["health"]["issues"][0]["message"]
    role = volume_keys.AUTO_SCALING
    disks.kms.create_grant(KeyId=disks.key, GranteePrincipal=role, Operations=OPERATIONS)
    assert group("b")["status"] == "ACTIVE"
