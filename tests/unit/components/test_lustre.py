"""The shared file system: which resources, which ports, what holds what."""

from __future__ import annotations

from typing import Any

import pytest

from components.lustre import (
    ExistingFileSystem,
    Lustre,
    LustreArgs,
    LustreVolume,
    LustreVolumeArgs,
    NewFileSystem,
    S3Link,
)
from tests.unit.components.recording import ACCOUNT, Recorded, deploy

KEY = f"arn:aws:kms:us-west-2:{ACCOUNT}:key/data"
SYSTEM = "aws:fsx/lustreFileSystem:LustreFileSystem"
LINK = "aws:fsx/dataRepositoryAssociation:DataRepositoryAssociation"
GRANT = "aws:kms/grant:Grant"
GROUP = "aws:ec2/securityGroup:SecurityGroup"
INGRESS = "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule"
EGRESS = "aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule"
OURS = S3Link(bucket="models-1a2b3c4", prefix="data", path="/data", key_arn=KEY)


def new(**more: Any) -> NewFileSystem:
    return NewFileSystem(
        **{
            "vpc_id": "vpc-1",
            "subnet_id": "subnet-b",
            "client_groups": {"workers": "sg-workers"},
            "key_arn": KEY,
            "deployment": "PERSISTENT_2",
            "capacity_gib": 2400,
            "throughput": 250,
            "compression": "LZ4",
            "backup_days": 7,
            "efa": False,
            "link": None,
            **more,
        }
    )


def recorded(wanted: NewFileSystem | ExistingFileSystem, *, protect: bool = False) -> Recorded:
    args = LustreArgs(file_system=wanted, protect=protect, tags={"trainyard:stack": "test"})

    def program() -> dict[str, Any]:
        made = Lustre("main-lustre", args)
        return {"id": made.file_system_id, "dns": made.dns_name, "mount": made.mount_name}

    return deploy(program)


def openings(found: Recorded, kind: str) -> set[tuple[str, str, Any, Any]]:
    """(group, other group, first port, last port) of every rule of a kind."""
    return {
        (
            r.inputs["securityGroupId"],
            r.inputs["referencedSecurityGroupId"],
            r.inputs.get("fromPort"),
            r.inputs.get("toPort"),
        )
        for r in found.of(kind)
    }


def test_exactly_lustres_ports_are_open_between_itself_and_its_clients_on_both_sides() -> None:
    found = recorded(new())
    pairs = [
        ("sg-workers", "main-lustre-id"),
        ("main-lustre-id", "sg-workers"),
        ("main-lustre-id", "main-lustre-id"),
    ]
    ports = [(988, 988), (1018, 1023)]
    assert openings(found, EGRESS) == {(*pair, *port) for pair in pairs for port in ports}
    assert openings(found, INGRESS) == {(target, source, *port) for source, target in pairs for port in ports}
    assert {r.inputs["ipProtocol"] for r in (*found.of(EGRESS), *found.of(INGRESS))} == {"tcp"}
    assert all(r.inputs["description"] for r in (*found.of(EGRESS), *found.of(INGRESS)))
    group = found.one("aws:ec2/securityGroup:SecurityGroup").inputs
    assert "ingress" not in group
    assert "egress" not in group


def test_with_efa_everything_is_open_between_the_groups_since_efa_knows_no_ports() -> None:
    found = recorded(new(efa=True, capacity_gib=19200))
    rules = [*found.of(EGRESS), *found.of(INGRESS)]
    assert {(r.inputs["ipProtocol"], r.inputs.get("fromPort")) for r in rules} == {("-1", None)}


def test_a_persistent_file_system_is_encrypted_with_our_key_and_backed_up() -> None:
    inputs = recorded(new()).one(SYSTEM).inputs
    assert inputs["kmsKeyId"] == KEY
    assert inputs["perUnitStorageThroughput"] == 250
    assert inputs["automaticBackupRetentionDays"] == 7
    assert inputs["subnetIds"] == "subnet-b"
    assert inputs["securityGroupIds"] == ["main-lustre-id"]
    assert (inputs["storageCapacity"], inputs["dataCompressionType"]) == (2400, "LZ4")
    assert (inputs["storageType"], inputs["fileSystemTypeVersion"]) == ("SSD", "2.15"), "the client's version"


HDD = {"deployment": "PERSISTENT_1", "storage": "HDD", "throughput": 12, "capacity_gib": 6000}
OF_PERSISTENT = ("kmsKeyId", "perUnitStorageThroughput", "automaticBackupRetentionDays")


@pytest.mark.parametrize(
    ("asked", "sent"),
    [
        # FSx refuses these for scratch file systems, and a drive cache for SSDs.
        ({"deployment": "SCRATCH_2", "throughput": 200}, dict.fromkeys(OF_PERSISTENT)),
        ({}, {"driveCacheType": None, "metadataConfiguration": None, "efaEnabled": None}),
        ({**HDD, "drive_cache": "READ"}, {"storageType": "HDD", "driveCacheType": "READ"}),
        ({"efa": True}, {"efaEnabled": True, "metadataConfiguration": {"mode": "AUTOMATIC"}}),
        *(
            (
                {"efa": efa, "metadata_iops": 6000},
                {"metadataConfiguration": {"mode": "USER_PROVISIONED", "iops": 6000}},
            )
            for efa in (False, True)
        ),
    ],
)
def test_file_system_has_only_the_fields_of_its_type(asked: dict[str, Any], sent: dict[str, Any]) -> None:
    inputs = recorded(new(**asked)).one(SYSTEM).inputs
    assert {name: inputs.get(name) for name in sent} == sent


@pytest.mark.parametrize("deployment", ["SCRATCH_2", "PERSISTENT_2"])
def test_a_link_to_our_bucket_imports_and_exports_and_may_use_its_key(deployment: str) -> None:
    found = recorded(new(deployment=deployment, link=OURS))
    link = found.one(LINK).inputs
    assert link["dataRepositoryPath"] == "s3://models-1a2b3c4/data/"
    assert link["fileSystemPath"] == "/data"
    assert link["batchImportMetaDataOnCreate"] is True
    every = {"events": ["NEW", "CHANGED", "DELETED"]}
    assert link["s3"] == {"autoImportPolicy": every, "autoExportPolicy": every}
    grant = found.one(GRANT).inputs
    role = (
        "aws-service-role/s3.data-source.lustre.fsx.amazonaws.com/AWSServiceRoleForFSxS3Access_main-lustre-id"
    )
    assert grant["granteePrincipal"] == f"arn:aws:iam::{ACCOUNT}:role/{role}"
    assert grant["keyId"] == KEY
    assert "importPath" not in found.one(SYSTEM).inputs
    assert found.one(SYSTEM).inputs.get("automaticBackupRetentionDays", 0) == 0


def test_persistent_1_is_linked_by_paths_of_its_own() -> None:
    found = recorded(new(deployment="PERSISTENT_1", throughput=50, link=OURS))
    inputs = found.one(SYSTEM).inputs
    assert inputs["importPath"] == inputs["exportPath"] == "s3://models-1a2b3c4/data/"
    assert inputs["autoImportPolicy"] == "NEW_CHANGED_DELETED"
    assert found.of(LINK) == []


def test_the_order_is_rules_file_system_link_grant() -> None:
    found = recorded(new(link=OURS))
    before = found.needs(SYSTEM, "main-lustre")
    inside = {(INGRESS, f"main-lustre-itself-to-itself-{port}-in") for port in (988, 1018)}
    assert inside <= before
    # Clients' rules are no condition of the service's: nothing waits for them but a mount.
    assert not any("workers" in name for _, name in before)
    assert (SYSTEM, "main-lustre") in found.needs(LINK, "main-lustre")
    assert (LINK, "main-lustre") in found.needs(GRANT, "main-lustre-bucket")


def test_protection_is_that_of_the_data_its_link_and_what_the_link_needs() -> None:
    kept = recorded(new(link=OURS), protect=True).protected
    assert {each for each in kept if each[0] not in (EGRESS, INGRESS)} == {
        (GROUP, "main-lustre"),
        (SYSTEM, "main-lustre"),
        (LINK, "main-lustre"),
        (GRANT, "main-lustre-bucket"),
    }
    assert recorded(new(link=OURS), protect=False).protected == set()


def test_a_file_system_and_its_link_have_half_an_hour_to_come_and_to_go() -> None:
    """The provider's own ten minutes are too few for a link that imports, and for a deletion that exports first."""
    limits = {"create": "30m", "update": "30m", "delete": "30m"}
    found = recorded(new(link=OURS))
    # An increase of the capacity takes hours.
    resized = {**limits, "update": "24h"}
    assert found.timeouts == {(SYSTEM, "main-lustre"): resized, (LINK, "main-lustre"): limits}


@pytest.mark.parametrize("efa", [True, False])
def test_protected_are_the_rules_of_the_file_systems_own_group_and_no_clients(efa: bool) -> None:
    found = recorded(new(efa=efa, link=OURS), protect=True)
    rules = {(r.type, r.name): r.inputs["securityGroupId"] for r in (*found.of(EGRESS), *found.of(INGRESS))}
    own = {rule for rule, group in rules.items() if group == "main-lustre-id"}
    clients = {rule for rule, group in rules.items() if group == "sg-workers"}
    assert own
    assert clients
    assert found.protected & rules.keys() == own
    # What is kept must not need a client's rule, or the rule would be kept, too.
    for kind, name in found.protected:
        assert not found.needs(kind, name) & clients


def test_a_given_buckets_key_is_left_to_its_owner() -> None:
    link = S3Link(bucket="theirs", prefix="", path="/data", key_arn=None)
    found = recorded(new(link=link))
    assert found.of(GRANT) == []
    assert found.one(LINK).inputs["dataRepositoryPath"] == "s3://theirs"


def test_protected_data_keeps_a_last_backup_where_there_can_be_one() -> None:
    assert recorded(new(), protect=True).one(SYSTEM).inputs["skipFinalBackup"] is False
    assert recorded(new(), protect=False).one(SYSTEM).inputs["skipFinalBackup"] is True
    assert recorded(new(link=OURS), protect=True).one(SYSTEM).inputs["skipFinalBackup"] is True


def test_of_a_given_file_system_nothing_is_made() -> None:
    given = ExistingFileSystem(file_system_id="fs-1", dns_name="fs-1.fsx.x", mount_name="abc")
    found = recorded(given)
    assert [r.type for r in found.resources if not r.type.startswith("trainyard:")] == []
    assert found.result == {"id": "fs-1", "dns": "fs-1.fsx.x", "mount": "abc"}


def volume() -> Recorded:
    args = LustreVolumeArgs(
        file_system_id="fs-1",
        dns_name="fs-1.fsx.us-west-2.amazonaws.com",
        mount_name="abc",
        capacity_gib=1200,
        namespace="training",
        mount_path="/fsx",
        after=[],
    )

    def program() -> None:
        made = LustreVolume("lustre", args)
        assert (made.claim_name, made.mount_path) == ("lustre", "/fsx")

    return deploy(program)


def test_claim_keeps_its_request_when_the_file_system_grows() -> None:
    """The API server refuses a larger request of a claim to a static volume."""
    assert volume().ignored_changes == {
        ("kubernetes:core/v1:PersistentVolumeClaim", "lustre"): ["spec.resources"]
    }


def test_the_volume_is_static_shared_and_kept() -> None:
    found = volume()
    spec = found.one("kubernetes:core/v1:PersistentVolume").inputs["spec"]
    assert spec["csi"] == {
        "driver": "fsx.csi.aws.com",
        "volumeHandle": "fs-1",
        "volumeAttributes": {"dnsname": "fs-1.fsx.us-west-2.amazonaws.com", "mountname": "abc"},
    }
    assert spec["mountOptions"] == ["flock", "noatime", "lazystatfs"]
    assert spec["accessModes"] == ["ReadWriteMany"]
    assert spec["persistentVolumeReclaimPolicy"] == "Retain"
    claim = found.one("kubernetes:core/v1:PersistentVolumeClaim").inputs
    volume_name = found.one("kubernetes:core/v1:PersistentVolume").inputs["metadata"]["name"]
    assert claim["spec"]["volumeName"] == volume_name
    assert claim["spec"]["storageClassName"] == spec["storageClassName"] == ""
    reference = spec["claimRef"]
    assert (reference["namespace"], reference["name"]) == ("training", claim["metadata"]["name"])
