"""File systems, their links to S3 and grants of keys, against the emulator."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from local.plugins.aws.cloud import Cloud
from local.plugins.aws.provider import AwsProvider
from local.plugins.aws.resource import Resource
from local.plugins.provider import (
    CheckRequest,
    CreateRequest,
    DeleteRequest,
    DiffRequest,
    InitFailed,
    ReadRequest,
    UpdateRequest,
)
from tests.unit.emulator import Cloud as Emulator

if TYPE_CHECKING:
    from local.aws.fsx.store import Store

pytestmark = pytest.mark.unit

SYSTEM = "aws:fsx/lustreFileSystem:LustreFileSystem"
LINK = "aws:fsx/dataRepositoryAssociation:DataRepositoryAssociation"
GRANT = "aws:kms/grant:Grant"
Made = tuple[str, dict[str, Any], dict[str, Any]]


class Stack:
    """The provider on an empty account with a subnet and a group that Lustre takes."""

    def __init__(self, emulator: Emulator) -> None:
        self.provider = AwsProvider()
        self.provider.configure({"region": "us-west-2"})
        self.cloud = self.provider._made = Cloud("us-west-2")
        self.cloud._clients = {name: emulator.client(name) for name in ("ec2", "fsx", "kms", "s3", "iam")}
        network = emulator.network()
        self.subnet = network["subnets"][0]
        ec2 = emulator.client("ec2")
        self.group = ec2.create_security_group(GroupName="l", Description="l", VpcId=network["vpc"])[
            "GroupId"
        ]
        pairs = [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": self.group}]}]
        ec2.authorize_security_group_ingress(GroupId=self.group, IpPermissions=pairs)
        ec2.authorize_security_group_egress(GroupId=self.group, IpPermissions=pairs)

    def who(self, token: str) -> dict[str, str]:
        return {"urn": f"urn:pulumi:dev::p::{token}::thing", "type": token, "name": "thing"}

    def checked(self, token: str, inputs: dict[str, Any], old: Any = None) -> dict[str, Any]:
        result = self.provider.check(
            CheckRequest(**self.who(token), inputs=inputs, old_inputs=old, seed=b"s")
        )
        assert result.failures == []
        return result.inputs

    def make(self, token: str, **inputs: Any) -> Made:
        checked = self.checked(token, inputs)
        rid, outputs = self.provider.create(CreateRequest(**self.who(token), inputs=checked, preview=False))
        return rid, checked, outputs

    def system(self, **more: Any) -> Made:
        return self.make(
            SYSTEM,
            **{
                "subnetIds": self.subnet,
                "securityGroupIds": [self.group],
                "storageCapacity": 1200,
                "deploymentType": "SCRATCH_2",
                "fileSystemTypeVersion": "2.15",
                "tags": {"a": "b"},
                **more,
            },
        )

    def drift(self, token: str, made: Made) -> dict[str, Any] | None:
        rid, inputs, outputs = made
        found = self.provider.read(ReadRequest(**self.who(token), id=rid, inputs=inputs, outputs=outputs))
        return None if found is None else {k: v for k, v in found.inputs.items() if inputs.get(k) != v}

    def update(self, token: str, made: Made, **change: Any) -> Made:
        rid, old, outputs = made
        own = {k: v for k, v in old.items() if not k.startswith("__") and k != "tagsAll"}
        new = self.checked(token, {**own, **change}, old)
        request = UpdateRequest(
            **self.who(token), id=rid, old_inputs=old, old_outputs=outputs, inputs=new, preview=False
        )
        return rid, new, self.provider.update(request)

    def replaced(self, token: str, made: Made, **change: Any) -> list[str]:
        rid, old, outputs = made
        new = {**old, **change}
        request = DiffRequest(**self.who(token), id=rid, old_inputs=old, old_outputs=outputs, inputs=new)
        return self.provider.diff(request).replaces

    def delete(self, token: str, made: Made) -> None:
        rid, inputs, outputs = made
        self.provider.delete(DeleteRequest(**self.who(token), id=rid, inputs=inputs, outputs=outputs))


@pytest.fixture
def store() -> Store:
    from local.aws.fsx.store import store  # it imports moto

    return store


@pytest.fixture
def stack(deployer: Emulator) -> Stack:
    return Stack(deployer)


def test_a_file_system_is_made_changed_and_deleted_without_drift(stack: Stack) -> None:
    made = stack.system(
        deploymentType="PERSISTENT_2", perUnitStorageThroughput=250, dataCompressionType="LZ4"
    )
    assert made[2]["dnsName"].startswith(made[0])
    assert len(made[2]["mountName"]) == 8
    assert stack.drift(SYSTEM, made) == {}
    after = stack.update(
        SYSTEM,
        made,
        storageCapacity=4800,
        perUnitStorageThroughput=500,
        automaticBackupRetentionDays=3,
        tags={"c": "d"},
    )
    assert (after[2]["storageCapacity"], after[2]["tags"]) == (4800, {"c": "d"})
    assert stack.drift(SYSTEM, after) == {}
    stack.delete(SYSTEM, after)
    assert stack.drift(SYSTEM, after) is None
    stack.delete(SYSTEM, after)  # what is gone already is done


def test_a_create_ends_when_the_file_system_is_available_and_a_delete_when_it_is_gone(
    stack: Stack, store: Store
) -> None:
    store.delay_seconds = 0.3
    began = time.monotonic()
    made = stack.system()
    assert time.monotonic() - began >= 0.3
    live = stack.cloud.client("fsx").describe_file_systems(FileSystemIds=[made[0]])["FileSystems"][0]
    assert live["Lifecycle"] == "AVAILABLE"
    stack.delete(SYSTEM, made)
    assert store.file_systems == {}


def test_one_that_was_deleted_by_somebody_is_gone_from_the_state(stack: Stack) -> None:
    made = stack.system()
    stack.cloud.client("fsx").delete_file_system(FileSystemId=made[0])
    assert stack.drift(SYSTEM, made) is None


def test_one_that_failed_stays_in_the_state_with_its_reason(
    stack: Stack, store: Store, monkeypatch: pytest.MonkeyPatch
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
    stack: Stack, before: dict[str, Any], change: dict[str, Any], replaces: list[str]
) -> None:
    assert stack.replaced(SYSTEM, stack.system(**before), **change) == replaces


def test_a_file_system_that_is_being_made_is_deleted_afterwards(stack: Stack, store: Store) -> None:
    store.delay_seconds = 0.3
    rid = stack.provider.handler(SYSTEM).create(stack.cloud, stack.checked(SYSTEM, _scratch(stack)))
    stack.delete(SYSTEM, (rid, _scratch(stack), {}))
    assert store.file_systems == {}


def _scratch(stack: Stack) -> dict[str, Any]:
    return {
        "subnetIds": stack.subnet,
        "securityGroupIds": [stack.group],
        "storageCapacity": 1200,
        "deploymentType": "SCRATCH_2",
    }


def test_a_link_is_made_changed_and_deleted_without_drift(stack: Stack, store: Store) -> None:
    system = stack.system()
    stack.cloud.client("s3").create_bucket(
        Bucket="models", CreateBucketConfiguration={"LocationConstraint": "us-west-2"}
    )
    s3 = {"autoImportPolicy": {"events": ["NEW", "DELETED"]}, "autoExportPolicy": {"events": ["NEW"]}}
    store.delay_seconds = 0.2
    made = stack.make(
        LINK,
        fileSystemId=system[0],
        fileSystemPath="/models",
        dataRepositoryPath="s3://models/data/",
        batchImportMetaDataOnCreate=True,
        s3=s3,
    )
    assert stack.drift(LINK, made) == {}
    # The order of events means nothing.
    assert stack.replaced(LINK, made, s3={**s3, "autoImportPolicy": {"events": ["DELETED", "NEW"]}}) == []
    after = stack.update(LINK, made, s3={"autoImportPolicy": {"events": ["NEW"]}}, tags={"a": "b"})
    assert stack.drift(LINK, after) == {}
    assert stack.replaced(LINK, after, fileSystemPath="/other") == ["fileSystemPath"]
    stack.delete(LINK, after)
    assert stack.drift(LINK, after) is None
    assert store.file_systems[system[0]].associations == {}


def test_a_grant_is_made_and_revoked_without_drift(stack: Stack) -> None:
    key = stack.cloud.client("kms").create_key()["KeyMetadata"]
    role = "arn:aws:iam::123456789012:role/aws-service-role/x/y"
    made = stack.make(GRANT, keyId=key["Arn"], granteePrincipal=role, operations=["Encrypt", "Decrypt"])
    assert made[0].startswith(f"{key['KeyId']}:")
    assert stack.drift(GRANT, made) == {}
    assert stack.replaced(GRANT, made, operations=["Decrypt"]) == ["operations"]
    assert stack.replaced(GRANT, made, operations=["Decrypt", "Encrypt"]) == []
    stack.delete(GRANT, made)
    assert stack.drift(GRANT, made) is None


def test_two_file_systems_are_made_at_once(stack: Stack, store: Store) -> None:
    store.delay_seconds = 0.2
    threads = [threading.Thread(target=stack.system) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(store.file_systems) == 2
