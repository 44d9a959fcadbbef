"""Snapshots and keys, an existing file system, existing buckets."""

from __future__ import annotations

import json
from typing import Any

import pytest

from infra.settings import Settings
from tests.unit.emulator import REGION, SESSION, Cloud
from tests.unit.preflight.accounts import (
    ACCOUNT,
    OTHER,
    TAGS,
    VPC,
    ZONE,
    Answers,
    ExistingVpc,
    account,
    checks,
    expect,
    findings,
    only,
    stack,
)
from trainyard.preflight.findings import SKIPPED

SNAPSHOT = "trainyard:pools[0].dataSnapshotId"
KEY = "trainyard:cluster.volumeKey"
LUSTRE = "trainyard:storage.lustre.existing"


def make_snapshot(cloud: Cloud, *, encrypted: bool = True) -> str:
    ec2 = cloud.client("ec2")
    volume = ec2.create_volume(AvailabilityZone=ZONE, Size=100, Encrypted=encrypted)["VolumeId"]
    return str(ec2.create_snapshot(VolumeId=volume)["SnapshotId"])


def test_snapshot_must_exist_encrypted_and_fit_its_volume(cloud: Cloud) -> None:
    def check(identity: str, **pool: Any) -> list[str]:
        return findings(account(cloud), stack({"dataSnapshotId": identity, **pool}), "snapshots")

    snapshot = make_snapshot(cloud)
    assert check(snapshot) == check(snapshot, dataVolumeGiB=100) == []
    line = only(check(snapshot, dataVolumeGiB=99), "trainyard:pools[0].dataVolumeGiB")
    assert line.endswith(f"99 GiB is smaller than '{snapshot}'. It must be at least 100")
    only(check("snap-0123456789abcdef0"), SNAPSHOT, f"'snap-0123456789abcdef0' does not exist in {REGION}")
    only(check(make_snapshot(cloud, encrypted=False)), SNAPSHOT, "is not encrypted")
    assert findings(account(cloud), stack(), "snapshots") == []


def test_snapshot_must_be_completed() -> None:
    found = [{"State": "pending", "VolumeSize": 1, "Encrypted": True}]
    settings = stack({"dataSnapshotId": "snap-0123456789abcdef0"})
    only(findings(Answers(describe_snapshots=found), settings, "snapshots"), SNAPSHOT, "is pending")


OWN = {"Effect": "Allow", "Principal": {"AWS": f"arn:aws:iam::{ACCOUNT}:root"}, "Action": "kms:*"}
# Like the policy of the AWS managed key for EBS.
THROUGH_EC2 = {
    "Effect": "Allow",
    "Principal": {"AWS": "*"},
    "Action": ["kms:Encrypt", "kms:Decrypt", "kms:ReEncrypt*", "kms:GenerateDataKey*", "kms:CreateGrant"],
    "Condition": {"StringEquals": {"kms:ViaService": f"ec2.{REGION}.amazonaws.com"}},
}


def volume_key(cloud: Cloud, **cluster: Any) -> list[str]:
    return findings(account(cloud), stack(cluster=cluster), "volume key")


def make_key(cloud: Cloud, *statements: dict[str, Any]) -> str:
    policy = {"Version": "2012-10-17", "Statement": [{"Resource": "*", **each} for each in statements]}
    return str(cloud.client("kms").create_key(Policy=json.dumps(policy))["KeyMetadata"]["Arn"])


def test_default_key_must_be_open_to_karpenter(cloud: Cloud) -> None:
    ec2, key = cloud.client("ec2"), make_key(cloud, OWN)
    assert volume_key(cloud) == [], "the AWS managed key"
    ec2.modify_ebs_default_kms_key_id(KmsKeyId=key)
    only(volume_key(cloud), KEY, key, "fail at launch")
    key = make_key(cloud, OWN, THROUGH_EC2)
    ec2.modify_ebs_default_kms_key_id(KmsKeyId=key)
    assert volume_key(cloud) == []
    cloud.client("kms").disable_key(KeyId=key.rpartition("/")[2])
    only(volume_key(cloud), KEY, "is Disabled")


def test_own_key_must_exist_with_the_role_of_its_grant(cloud: Cloud) -> None:
    key = make_key(cloud, OWN)
    only(volume_key(cloud, volumeKey=key), KEY, "AWSServiceRoleForAutoScaling", "create-service-linked-role")
    cloud.client("iam").create_service_linked_role(AWSServiceName="autoscaling.amazonaws.com")
    assert volume_key(cloud, volumeKey=key) == []
    absent = f"arn:aws:kms:{REGION}:{ACCOUNT}:key/00000000-0000-0000-0000-000000000000"
    only(volume_key(cloud, volumeKey=absent), KEY, "does not exist")


K = f"arn:aws:kms:{REGION}:{ACCOUNT}:key/00000000-0000-0000-0000-000000000000"
ROLES = [{"Path": "/aws-service-role/autoscaling.amazonaws.com/"}]


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({}, ""),
        ({"KeyState": "PendingDeletion"}, "is PendingDeletion. It must be Enabled"),
        ({"KeySpec": "RSA_2048"}, "RSA_2048. It must be SYMMETRIC_DEFAULT"),
    ],
)
def test_own_key_must_be_enabled_and_symmetric(changes: dict[str, str], part: str) -> None:
    aws = Answers(describe_key={"KeyMetadata": {"Arn": K, **changes}}, list_roles=ROLES)
    lines = findings(aws, stack(cluster={"volumeKey": K}), "volume key")
    expect(lines, KEY, part)


@pytest.mark.parametrize(
    ("manager", "policy", "cluster", "is_right"),
    [
        ("AWS", {}, {}, True),
        ("CUSTOMER", {"Statement": THROUGH_EC2}, {}, True),
        ("CUSTOMER", {"Statement": [OWN]}, {"volumeKey": K}, True),
        ("CUSTOMER", {"Statement": [OWN]}, {}, False),
    ],
)
def test_key_of_a_snapshot_must_be_open_to_karpenter(
    manager: str, policy: dict[str, Any], cluster: dict[str, str], is_right: bool
) -> None:
    aws = Answers(
        describe_snapshots=[{"KmsKeyId": K}],
        describe_key={"KeyMetadata": {"Arn": K, "KeyManager": manager}},
        get_key_policy={"Policy": json.dumps(policy)},
    )
    settings = stack({"dataSnapshotId": "snap-0123456789abcdef0"}, cluster=cluster)
    lines = findings(aws, settings, "snapshot keys")
    assert [line.startswith(f"{SNAPSHOT}: ") and K in line for line in lines] == [] if is_right else [True]


SYSTEM: dict[str, Any] = {
    "FileSystemId": "fs-0123456789abcdef0",
    "FileSystemType": "LUSTRE",
    "Lifecycle": "AVAILABLE",
    "VpcId": VPC["vpcId"],
    "SubnetIds": ["subnet-1"],
    "DNSName": "fs-0123456789abcdef0.fsx.us-west-2.amazonaws.com",
    "LustreConfiguration": {"MountName": "abcdefgh"},
    "FileSystemTypeVersion": "2.15",
    "NetworkInterfaceIds": ["eni-1"],
}
ASKED = {"fileSystemId": SYSTEM["FileSystemId"], "dnsName": SYSTEM["DNSName"], "mountName": "abcdefgh"}


def rule(first: int, last: int, group: str = "", block: str = "") -> dict[str, Any]:
    sources = {"UserIdGroupPairs": [{"GroupId": group}]} if group else {"IpRanges": [{"CidrIp": block}]}
    return {"IpProtocol": "tcp", "FromPort": first, "ToPort": last, **sources}


def file_system(found: dict[str, Any] | None, kind: str = "missing", **network: Any) -> list[str]:
    """Return the findings about a file system that is open to everybody, if it has an interface."""
    groups = [{"GroupId": "sg-f", "IpPermissions": [rule(988, 1023, block="0.0.0.0/0")]}]
    subnet = {"SubnetId": VPC["privateSubnetIds"][ZONE], "AvailabilityZone": ZONE, "CidrBlock": "10.1.0.0/24"}  # type: ignore[index]
    aws = Answers(
        describe_file_systems=[found] if found else [],
        describe_subnets=[subnet],
        describe_network_interfaces=[{"Groups": [{"GroupId": "sg-f"}]}],
        describe_security_groups=groups,
    )
    settings = stack(network={**VPC, **network}, storage={"lustre": {"existing": ASKED}})
    return findings(aws, settings, "existing file system", kind=kind)


@pytest.mark.parametrize(
    ("changes", "key", "part"),
    [
        ({}, "", ""),
        ({"FileSystemTypeVersion": "2.12"}, "", ""),
        ({"FileSystemType": "OPENZFS"}, "fileSystemId", "type OPENZFS. It must be LUSTRE"),
        ({"Lifecycle": "CREATING"}, "fileSystemId", "is CREATING. It must be AVAILABLE"),
        ({"VpcId": "vpc-2"}, "fileSystemId", f"is in vpc-2. It must be in {VPC['vpcId']}"),
        ({"DNSName": "fs-1.example"}, "dnsName", "It must be 'fs-1.example'"),
        (
            {"LustreConfiguration": {"MountName": "fsx"}},
            "mountName",
            "'abcdefgh' is invalid. It must be 'fsx'",
        ),
        ({"FileSystemTypeVersion": "2.10"}, "fileSystemId", "--file-system-type-version 2.15"),
    ],
)
def test_file_system_must_be_as_in_the_stack_file(changes: dict[str, Any], key: str, part: str) -> None:
    lines = file_system({**SYSTEM, **changes})
    expect(lines, f"{LUSTRE}.{key}", part)


def test_missing_file_system_is_named(cloud: Cloud) -> None:
    settings = stack(network=VPC, storage={"lustre": {"existing": ASKED}})
    only(
        findings(account(cloud), settings, "existing file system"), f"{LUSTRE}.fileSystemId", "does not exist"
    )


def test_ports_without_an_interface_are_not_asked() -> None:
    lines = file_system({**SYSTEM, "NetworkInterfaceIds": []}, kind=SKIPPED)
    only(lines, f"{LUSTRE}.fileSystemId", "do not show whether TCP ports")


def test_emulators_file_system_is_open_to_the_workers(cloud: Cloud, existing: ExistingVpc) -> None:
    ec2, own = existing.ec2, existing.make_group("lustre")
    made = cloud.client("fsx").create_file_system(
        FileSystemType="LUSTRE",
        FileSystemTypeVersion="2.15",
        StorageCapacity=1200,
        SubnetIds=[existing.private[ZONE]],
        SecurityGroupIds=[own],
        LustreConfiguration={"DeploymentType": "SCRATCH_2"},
    )["FileSystem"]
    values = {
        "fileSystemId": made["FileSystemId"],
        "dnsName": made["DNSName"],
        "mountName": made["LustreConfiguration"]["MountName"],
    }

    def check(*pools: dict[str, Any], group: str | None = existing.group) -> list[str]:
        network = {"workerSecurityGroupId": group}
        of = checks("existing file system")
        lines = existing.findings(*pools, of=of, network=network, storage={"lustre": {"existing": values}})
        return [line for line in lines if "is CREATING" not in line]

    def allow(*rules: dict[str, Any]) -> None:
        ec2.authorize_security_group_ingress(GroupId=own, IpPermissions=list(rules))

    only(check(), f"{LUSTRE}.fileSystemId", "988 and 1018-1023", "the workers' group or their subnets")
    ports = [rule(988, 988, existing.group), rule(1018, 1023, existing.group)]
    allow(*ports)
    assert check() == []
    only(check({"zone": OTHER}), f"{LUSTRE}.fileSystemId", f"It must be in {OTHER}")
    # The stack creates the group: it may exist from an earlier deployment, or else the subnets' ranges count.
    only(check(group=None), f"{LUSTRE}.fileSystemId", "because the stack creates their group")
    created = existing.make_group("created")
    existing.tag(created, **TAGS, **{"karpenter.sh/discovery": "train"})
    allow(rule(988, 988, created), rule(1018, 1023, created))
    assert check(group=None) == []
    ec2.revoke_security_group_ingress(GroupId=own, IpPermissions=[rule(988, 988, created)])
    assert len(check(group=None)) == 1
    allow(rule(988, 1023, block="10.1.0.0/24"))
    assert check(group=None) == []


def bucket_stack(name: str) -> Settings:
    return stack(storage={"lustre": {"zone": ZONE, "s3": {"bucket": name}}})


def test_bucket_must_exist_in_the_region(cloud: Cloud) -> None:
    key = "trainyard:storage.lustre.s3.bucket"
    cloud.client("s3").create_bucket(
        Bucket="data-here", CreateBucketConfiguration={"LocationConstraint": REGION}
    )
    there = SESSION.client(
        "s3",
        region_name="eu-west-1",
        endpoint_url=cloud.endpoint,
        aws_access_key_id=cloud.key,
        aws_secret_access_key=cloud.secret,
    )
    there.create_bucket(Bucket="data-there", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})

    def check(name: str) -> list[str]:
        return findings(account(cloud), bucket_stack(name), "existing buckets")

    assert check("data-here") == []
    only(check("data-there"), key, f"is in eu-west-1. It must be in {REGION}")
    only(check("data-nowhere"), key, "'data-nowhere' does not exist")


def test_buckets_of_service_accounts_and_queues_are_checked() -> None:
    accounts = [{"name": "reader", "namespace": "training", "bucket": "their-data", "access": "read"}]
    workspaces = ({"bucket": "models"}, {"bucket": "their-data"})
    queues = [
        {"name": f"q{index}", "pool": "small", "storage": {"workspace": workspace}}
        for index, workspace in enumerate(workspaces)
    ]
    lines = findings(Answers(), stack(serviceAccounts=accounts, queues=queues), "existing buckets")
    assert [line.split(":")[1].split(": ")[0] for line in lines] == [
        "serviceAccounts[0].bucket",
        "queues[1].storage.workspace.bucket",
    ], "models is the stack's own bucket"
