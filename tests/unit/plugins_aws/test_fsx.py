"""File systems, their links to S3 and grants of keys, against the emulator."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from local.plugins.aws.cloud import Cloud
from local.plugins.aws.resource import Resource
from local.plugins.provider import InitFailed
from tests.unit.emulator import Cloud as Emulator
from tests.unit.plugins_aws.stack import Stack, Values

if TYPE_CHECKING:
    from local.aws.fsx.store import Store

SYSTEM = "aws:fsx/lustreFileSystem:LustreFileSystem"
LINK = "aws:fsx/dataRepositoryAssociation:DataRepositoryAssociation"
GRANT = "aws:kms/grant:Grant"


class Lustre(Stack):
    """The provider on an empty account with a subnet and a group that Lustre takes."""

    def __init__(self, emulator: Emulator) -> None:
        super().__init__()
        self.cloud._clients = {name: emulator.client(name) for name in ("ec2", "fsx", "kms", "s3", "iam")}
        network = emulator.network()
        ec2 = emulator.client("ec2")
        group = ec2.create_security_group(GroupName="l", Description="l", VpcId=network["vpc"])["GroupId"]
        pairs = [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group}]}]
        ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=pairs)
        ec2.authorize_security_group_egress(GroupId=group, IpPermissions=pairs)
        self.scratch = {
            "subnetIds": network["subnets"][0],
            "securityGroupIds": [group],
            "storageCapacity": 1200,
            "deploymentType": "SCRATCH_2",
            "fileSystemTypeVersion": "2.15",
        }

    def system(self, **more: Any) -> tuple[str, Values, Values]:
        return self.make(SYSTEM, **{**self.scratch, "tags": {"a": "b"}, **more})


@pytest.fixture
def store() -> Store:
    from local.aws.fsx.store import store  # it imports moto

    return store


@pytest.fixture
def stack(deployer: Emulator) -> Lustre:
    return Lustre(deployer)


def test_a_file_system_is_made_changed_and_deleted_without_drift(stack: Lustre) -> None:
    rid, old, outputs = stack.system(
        deploymentType="PERSISTENT_2", perUnitStorageThroughput=250, dataCompressionType="LZ4"
    )
    assert outputs["dnsName"].startswith(rid)
    assert len(outputs["mountName"]) == 8
    assert stack.drift(SYSTEM, rid, old, outputs) == {}
    more = {"storageCapacity": 4800, "perUnitStorageThroughput": 500, "automaticBackupRetentionDays": 3}
    new, outputs = stack.update(SYSTEM, rid, old, **more, tags={"c": "d"})
    assert (outputs["storageCapacity"], outputs["tags"]) == (4800, {"c": "d"})
    stack.delete(SYSTEM, rid, new, outputs)


def test_a_create_ends_when_the_file_system_is_available_and_a_delete_when_it_is_gone(
    stack: Lustre, store: Store
) -> None:
    store.delay_seconds = 0.3
    began = time.monotonic()
    rid, inputs, outputs = stack.system()
    assert time.monotonic() - began >= 0.3
    live = stack.cloud.client("fsx").describe_file_systems(FileSystemIds=[rid])["FileSystems"][0]
    assert live["Lifecycle"] == "AVAILABLE"
    stack.delete(SYSTEM, rid, inputs, outputs)
    assert store.file_systems == {}


def test_one_that_was_deleted_by_somebody_is_gone_from_the_state(stack: Lustre) -> None:
    rid, inputs, outputs = stack.system()
    stack.cloud.client("fsx").delete_file_system(FileSystemId=rid)
    assert stack.drift(SYSTEM, rid, inputs, outputs) is None


def test_one_that_failed_stays_in_the_state_with_its_reason(
    stack: Lustre, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Resource.describe

    def fail(self: Resource, cloud: Cloud, rid: str) -> Any:
        return {**real(self, cloud, rid), "Lifecycle": "FAILED", "FailureDetails": {"Message": "no room"}}

    monkeypatch.setattr(Resource, "describe", fail)
    with pytest.raises(InitFailed) as error:
        stack.system()
    assert error.value.resource_id in store.file_systems
    assert "FAILED: no room" in str(error.value.reasons)


@pytest.mark.parametrize(
    ("before", "change", "replaces"),
    [
        ({}, {"storageCapacity": 2400}, []),
        ({"storageCapacity": 4800}, {"storageCapacity": 2400}, ["storageCapacity"]),
        ({}, {"dataCompressionType": "LZ4"}, []),
        ({}, {"subnetIds": "subnet-1"}, ["subnetIds"]),
        ({}, {"fileSystemTypeVersion": "2.12"}, ["fileSystemTypeVersion"]),
    ],
)
def test_what_the_service_cannot_change_is_a_replacement(
    stack: Lustre, before: dict[str, Any], change: dict[str, Any], replaces: list[str]
) -> None:
    assert stack.replaced(SYSTEM, stack.checked(SYSTEM, {**stack.scratch, **before}), **change) == replaces


def test_a_file_system_that_is_being_made_is_deleted_afterwards(stack: Lustre, store: Store) -> None:
    store.delay_seconds = 0.3
    rid = stack.provider.handler(SYSTEM).create(stack.cloud, stack.checked(SYSTEM, stack.scratch))
    stack.delete(SYSTEM, rid, stack.scratch)
    assert store.file_systems == {}


def test_a_link_is_made_changed_and_deleted_without_drift(stack: Lustre, store: Store) -> None:
    system = stack.system()
    stack.cloud.client("s3").create_bucket(
        Bucket="models", CreateBucketConfiguration={"LocationConstraint": "us-west-2"}
    )
    s3 = {"autoImportPolicy": {"events": ["NEW", "DELETED"]}, "autoExportPolicy": {"events": ["NEW"]}}
    store.delay_seconds = 0.2
    rid, old, outputs = stack.make(
        LINK,
        fileSystemId=system[0],
        fileSystemPath="/models",
        dataRepositoryPath="s3://models/data/",
        batchImportMetaDataOnCreate=True,
        s3=s3,
    )
    assert stack.drift(LINK, rid, old, outputs) == {}
    # The order of events means nothing.
    assert stack.replaced(LINK, old, s3={**s3, "autoImportPolicy": {"events": ["DELETED", "NEW"]}}) == []
    new, outputs = stack.update(LINK, rid, old, s3={"autoImportPolicy": {"events": ["NEW"]}}, tags={"a": "b"})
    assert stack.replaced(LINK, new, fileSystemPath="/other") == ["fileSystemPath"]
    stack.delete(LINK, rid, new, outputs)
    assert store.file_systems[system[0]].associations == {}


def test_a_grant_is_made_and_revoked_without_drift(stack: Lustre) -> None:
    key = stack.cloud.client("kms").create_key()["KeyMetadata"]
    role = "arn:aws:iam::123456789012:role/aws-service-role/x/y"
    rid, inputs, outputs = stack.make(
        GRANT, keyId=key["Arn"], granteePrincipal=role, operations=["Encrypt", "Decrypt"]
    )
    assert rid.startswith(f"{key['KeyId']}:")
    assert stack.drift(GRANT, rid, inputs, outputs) == {}
    assert stack.replaced(GRANT, inputs, operations=["Decrypt"]) == ["operations"]
    assert stack.replaced(GRANT, inputs, operations=["Decrypt", "Encrypt"]) == []
    stack.delete(GRANT, rid, inputs, outputs)


def test_two_file_systems_are_made_at_once(stack: Lustre, store: Store) -> None:
    store.delay_seconds = 0.2
    threads = [threading.Thread(target=stack.system) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(store.file_systems) == 2


def test_first_generation_is_created_and_read_with_its_link(stack: Lustre) -> None:
    """storage.lustre with `s3` and the deployment type PERSISTENT_1 sets these inputs."""
    stack.cloud.client("s3").create_bucket(
        Bucket="data", CreateBucketConfiguration={"LocationConstraint": "us-west-2"}
    )
    uri = "s3://data/models/"
    link = {"importPath": uri, "exportPath": uri, "autoImportPolicy": "NEW_CHANGED_DELETED"}
    first = {
        "deploymentType": "PERSISTENT_1",
        "perUnitStorageThroughput": 50,
        "automaticBackupRetentionDays": 0,
    }
    _, _, live = stack.system(**first, **link)
    assert {name: live[name] for name in link} == link
