"""`pulumi destroy --exclude-protected` keeps protected resources and their dependencies."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tests.shipped import config_of
from tests.unit.components.recording import Recorded
from tests.unit.infra.test_stack import settings_of
from tests.unit.infra.whole import in_a_small_checkout, shipped, whole

RULES = ("aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule",
         "aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule")  # fmt: skip
BUCKET = "aws:s3/bucket:Bucket"
BUCKET_SETTINGS = 6


def remaining(found: Recorded) -> tuple[Counter[str], set[str]]:
    """Return the count of each type that a destroy leaves, and the protected types."""
    left = set(found.protected)
    for kind, name in found.protected:
        left |= found.needs(kind, name)
    made = Counter(kind for kind, _ in left if kind.startswith(("aws:", "docker", "kubernetes", "eks")))
    return made, {kind for kind, _ in found.protected}


def storage_of(**lustre: Any) -> dict[str, Any]:
    shipped: dict[str, Any] = config_of("p4d")
    storage: dict[str, Any] = shipped["trainyard:storage"]
    return {**storage, "lustre": {**storage["lustre"], **lustre}}


def test_destroy_leaves_data_keys_and_file_system_network() -> None:
    link = {"bucket": "models", "prefix": "data", "path": "/data"}
    changes = {"trainyard:protectData": True, "trainyard:storage": storage_of(backupDays=0, s3=link)}
    with in_a_small_checkout():
        found, protected = remaining(whole(settings_of("p4d", **changes)))
    settings = {kind: n for kind, n in found.items() if kind.startswith("aws:s3/") and kind != BUCKET}
    rules = sum(found.pop(kind) for kind in RULES)
    assert sum(settings.values()) == BUCKET_SETTINGS
    assert {kind: n for kind, n in found.items() if kind not in settings} == {
        BUCKET: 1,
        "aws:kms/key:Key": 2,
        "aws:kms/alias:Alias": 2,
        "aws:ecr/repository:Repository": 2,
        "aws:ecr/lifecyclePolicy:LifecyclePolicy": 2,
        "docker-build:index:Image": 2,
        "aws:fsx/lustreFileSystem:LustreFileSystem": 1,
        "aws:fsx/dataRepositoryAssociation:DataRepositoryAssociation": 1,
        "aws:kms/grant:Grant": 1,
        "aws:ec2/securityGroup:SecurityGroup": 2,  # its own and the workers', whom its rules name
        "aws:ec2/subnet:Subnet": 1,
        "aws:ec2/vpc:Vpc": 1,
    }
    assert set(found) - protected - {*RULES} == {"aws:ec2/subnet:Subnet", "aws:ec2/vpc:Vpc"}
    assert rules == 8, (
        "of the file system's group: in and out, two port ranges, with itself and with the workers"
    )


def test_destroy_of_unprotected_stack_leaves_nothing() -> None:
    """The shipped stack file sets protectData to false."""
    assert remaining(shipped("p4d")) == ({}, set())
