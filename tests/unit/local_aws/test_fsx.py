"""FSx for Lustre in the emulator: what it takes and refuses, and how long things of it hold others."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.unit.emulator import Cloud

TCP = {"IpProtocol": "tcp"}
PORTS = [{**TCP, "FromPort": 988, "ToPort": 988}, {**TCP, "FromPort": 1018, "ToPort": 1023}]


def refused(call: Any, code: str, text: str = "") -> None:
    with pytest.raises(ClientError) as error:
        call()
    answer = error.value.response["Error"]
    assert (answer["Code"], text in answer["Message"]) == (code, True), answer


class Site:
    """A VPC with a group for servers and one for clients, both open to each other on Lustre's ports."""

    def __init__(self, cloud: Cloud) -> None:
        self.cloud, self.fsx, self.ec2 = cloud, cloud.client("fsx"), cloud.client("ec2")
        network = cloud.network()
        self.vpc, self.subnet = network["vpc"], network["subnets"][0]
        self.servers, self.clients = self.group("servers"), self.group("clients")
        for source, target in (
            (self.servers, self.servers),
            (self.clients, self.servers),
            (self.servers, self.clients),
        ):
            self.open(source, target)

    def group(self, name: str) -> str:
        made = self.ec2.create_security_group(GroupName=name, Description=name, VpcId=self.vpc)["GroupId"]
        every = [{"IpProtocol": "-1", "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}]
        self.ec2.revoke_security_group_egress(GroupId=made, IpPermissions=every)
        return str(made)

    def open(self, source: str, target: str) -> None:
        def rules(other: str) -> list[dict[str, Any]]:
            return [{**ports, "UserIdGroupPairs": [{"GroupId": other}]} for ports in PORTS]

        self.ec2.authorize_security_group_egress(GroupId=source, IpPermissions=rules(target))
        self.ec2.authorize_security_group_ingress(GroupId=target, IpPermissions=rules(source))

    def create(
        self, lustre: dict[str, Any] | None = None, capacity: int = 1200, **more: Any
    ) -> dict[str, Any]:
        given = {
            "FileSystemType": "LUSTRE",
            "StorageCapacity": capacity,
            "SubnetIds": [self.subnet],
            "SecurityGroupIds": [self.servers],
            "FileSystemTypeVersion": "2.15",
            "LustreConfiguration": {"DeploymentType": "SCRATCH_2"} if lustre is None else lustre,
            **more,
        }
        made: dict[str, Any] = self.fsx.create_file_system(**given)["FileSystem"]
        return made

    def bucket(self, name: str = "models") -> str:
        location = {"LocationConstraint": "us-west-2"}
        self.cloud.client("s3").create_bucket(Bucket=name, CreateBucketConfiguration=location)
        return f"s3://{name}/data/"


@pytest.fixture
def site(cloud: Cloud) -> Site:
    return Site(cloud)


@pytest.fixture
def pending_work(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """What the service does only after a while."""
    changes: list[Callable[[], None]] = []
    monkeypatch.setattr("local.aws.fsx.store.store.later", changes.append)
    return changes


def passed(pending_work: list[Callable[[], None]]) -> None:
    """The while is over."""
    while pending_work:
        pending_work.pop(0)()


PERSISTENT = {"DeploymentType": "PERSISTENT_2", "PerUnitStorageThroughput": 250}
FIRST = {"DeploymentType": "PERSISTENT_1", "PerUnitStorageThroughput": 50}


@pytest.mark.parametrize(
    ("lustre", "code", "text"),
    [
        ({"DeploymentType": "PERSISTENT_2"}, "BadRequest", "required"),
        (
            {"DeploymentType": "SCRATCH_1"},
            "BadRequest",
            "SCRATCH_2, PERSISTENT_1, PERSISTENT_2, got 'SCRATCH_1'",
        ),
        ({}, "BadRequest", "got None"),
        ({**PERSISTENT, "PerUnitStorageThroughput": 200}, "InvalidPerUnitStorageThroughput", "125, 250, 500"),
        ({**PERSISTENT, "ImportPath": "s3://models"}, "BadRequest", "ImportPath is not supported"),
        ({"DeploymentType": "SCRATCH_2", "AutomaticBackupRetentionDays": 1}, "BadRequest", "not supported"),
        ({**PERSISTENT, "EfaEnabled": True}, "BadRequest", "MetadataConfiguration"),
        ({**FIRST, "ImportPath": "s3://absent"}, "BadRequest", "unable to validate access"),
        (
            {**PERSISTENT, "MetadataConfiguration": {"Mode": "AUTOMATIC", "Iops": 1500}},
            "BadRequest",
            "USER_PROVISIONED",
        ),
    ],
)
def test_combinations_that_do_not_exist_are_refused(
    site: Site, lustre: dict[str, Any], code: str, text: str
) -> None:
    refused(lambda: site.create(lustre), code, text)


SLOW = {"DeploymentType": "PERSISTENT_1", "PerUnitStorageThroughput": 40, "DriveCacheType": "READ"}


def test_hdds_grow_in_steps_of_their_own_and_keep_their_throughput(site: Site) -> None:
    made = site.create(SLOW, capacity=1800, StorageType="HDD")
    assert (made["StorageType"], made["LustreConfiguration"]["DriveCacheType"]) == ("HDD", "READ")
    name = made["FileSystemId"]
    site.fsx.update_file_system(FileSystemId=name, StorageCapacity=3600)
    for change in ({"StorageCapacity": 4800}, {"LustreConfiguration": {"PerUnitStorageThroughput": 12}}):
        with pytest.raises(ClientError, match=r"multiple of 1800|cannot be changed"):
            site.fsx.update_file_system(FileSystemId=name, **change)


def test_a_scratch_file_system_takes_no_key_of_ours(site: Site) -> None:
    refused(
        lambda: site.create(KmsKeyId="arn:aws:kms:us-west-2:123456789012:key/k"), "BadRequest", "KmsKeyId"
    )


def test_a_group_whose_members_do_not_reach_each_other_is_refused(site: Site) -> None:
    lonely = site.group("lonely")
    refused(lambda: site.create(SecurityGroupIds=[lonely]), "InvalidNetworkSettings", "port 988")
    refused(lambda: site.create(SecurityGroupIds=["sg-01234567"]), "InvalidNetworkSettings", "sg-01234567")


def test_its_group_and_subnet_stay_until_the_file_system_is_gone(
    site: Site, pending_work: list[Callable[[], None]]
) -> None:
    name = site.create()["FileSystemId"]
    lonely = site.group("lonely")
    site.open(lonely, lonely)
    second = site.create(SecurityGroupIds=[lonely])["FileSystemId"]
    passed(pending_work)
    site.fsx.delete_file_system(FileSystemId=second)
    live = site.fsx.describe_file_systems(FileSystemIds=[second])["FileSystems"][0]
    assert live["Lifecycle"] == "DELETING"
    refused(lambda: site.ec2.delete_security_group(GroupId=lonely), "DependencyViolation")
    passed(pending_work)
    refused(lambda: site.fsx.describe_file_systems(FileSystemIds=[second]), "FileSystemNotFound")
    site.ec2.delete_security_group(GroupId=lonely)
    refused(lambda: site.ec2.delete_subnet(SubnetId=site.subnet), "DependencyViolation")
    site.fsx.delete_file_system(FileSystemId=name)
    passed(pending_work)
    site.ec2.delete_subnet(SubnetId=site.subnet)


def test_it_is_creating_before_it_is_available(site: Site, pending_work: list[Callable[[], None]]) -> None:
    name = site.create()["FileSystemId"]

    def live() -> str:
        return str(site.fsx.describe_file_systems(FileSystemIds=[name])["FileSystems"][0]["Lifecycle"])

    assert live() == "CREATING"
    refused(lambda: site.fsx.delete_file_system(FileSystemId=name), "BadRequest", "CREATING")
    refused(
        lambda: site.fsx.create_data_repository_association(
            FileSystemId=name, FileSystemPath="/a", DataRepositoryPath=site.bucket()
        ),
        "BadRequest",
        "CREATING",
    )
    passed(pending_work)
    assert live() == "AVAILABLE"


def test_it_grows_in_steps(site: Site) -> None:
    name = site.create(PERSISTENT, capacity=2400)["FileSystemId"]

    def update(**change: Any) -> Any:
        return site.fsx.update_file_system(FileSystemId=name, **change)["FileSystem"]

    refused(lambda: update(StorageCapacity=3600), "BadRequest", "multiple of 2400")
    assert update(StorageCapacity=4800)["StorageCapacity"] == 4800
    changed = update(LustreConfiguration={"PerUnitStorageThroughput": 500, "DataCompressionType": "LZ4"})
    assert changed["LustreConfiguration"]["PerUnitStorageThroughput"] == 500
    assert changed["LustreConfiguration"]["DataCompressionType"] == "LZ4"


def test_a_link_needs_its_bucket_and_has_a_role(site: Site) -> None:
    name = site.create()["FileSystemId"]

    def link(uri: str) -> Any:
        return site.fsx.create_data_repository_association(
            FileSystemId=name, FileSystemPath="/models", DataRepositoryPath=uri
        )["Association"]

    refused(lambda: link("s3://absent/x"), "BadRequest", "unable to validate access")
    made = link(site.bucket())
    assert made["Lifecycle"] == "AVAILABLE"
    role = f"AWSServiceRoleForFSxS3Access_{name}"
    assert site.cloud.client("iam").get_role(RoleName=role)["Role"]["Path"].startswith("/aws-service-role/")
    site.fsx.delete_data_repository_association(AssociationId=made["AssociationId"])
    refused(
        lambda: site.fsx.describe_data_repository_associations(AssociationIds=[made["AssociationId"]]),
        "DataRepositoryAssociationNotFound",
    )
    site.fsx.delete_file_system(FileSystemId=name)
    refused(lambda: site.cloud.client("iam").get_role(RoleName=role), "NoSuchEntity")


def test_backups_and_links_exclude_each_other(site: Site) -> None:
    name = site.create({**PERSISTENT, "AutomaticBackupRetentionDays": 7})["FileSystemId"]
    refused(
        lambda: site.fsx.create_data_repository_association(
            FileSystemId=name, FileSystemPath="/a", DataRepositoryPath=site.bucket()
        ),
        "BadRequest",
        "Backups",
    )


def test_a_last_backup_is_made_where_there_can_be_one_and_outlives_its_file_system(site: Site) -> None:
    def deleted(lustre: dict[str, Any], **wishes: Any) -> str | None:
        name = site.create(lustre)["FileSystemId"]
        answer = site.fsx.delete_file_system(FileSystemId=name, LustreConfiguration=wishes)
        found: str | None = answer.get("LustreResponse", {}).get("FinalBackupId")
        return found

    assert deleted({"DeploymentType": "SCRATCH_2"}) is None
    assert deleted(PERSISTENT, SkipFinalBackup=True) is None
    assert site.fsx.describe_backups()["Backups"] == []
    made = deleted(PERSISTENT, FinalBackupTags=[{"Key": "a", "Value": "b"}])
    [backup] = site.fsx.describe_backups()["Backups"]
    assert (backup["BackupId"], backup["Tags"]) == (made, [{"Key": "a", "Value": "b"}])
    system = backup["FileSystem"]["FileSystemId"]
    refused(lambda: site.fsx.describe_file_systems(FileSystemIds=[system]), "FileSystemNotFound")
    site.fsx.delete_backup(BackupId=made)
    refused(lambda: site.fsx.delete_backup(BackupId=made), "BackupNotFound")


def test_its_files_go_with_it_and_those_of_an_earlier_account_before(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from local.aws.fsx.store import store  # it imports moto

    monkeypatch.setattr(store, "directory", None)
    (tmp_path / "fsx" / "fs-0").mkdir(parents=True)
    store.begin(tmp_path / "fsx")
    assert not (tmp_path / "fsx").exists()
    names = [site.create()["FileSystemId"] for _ in range(2)]
    for name in names:
        (tmp_path / "fsx" / name).mkdir(parents=True)
    site.fsx.delete_file_system(FileSystemId=names[0])
    assert [path.name for path in (tmp_path / "fsx").iterdir()] == names[1:]


def test_tags_come_and_go(site: Site) -> None:
    made = site.create(Tags=[{"Key": "a", "Value": "1"}])
    arn = made["ResourceARN"]
    site.fsx.tag_resource(ResourceARN=arn, Tags=[{"Key": "b", "Value": "2"}, {"Key": "a", "Value": "3"}])
    site.fsx.untag_resource(ResourceARN=arn, TagKeys=["b"])
    (found,) = site.fsx.describe_file_systems(FileSystemIds=[made["FileSystemId"]])["FileSystems"]
    assert found["Tags"] == [{"Key": "a", "Value": "3"}]


def test_a_machine_mounts_only_through_open_ports(site: Site) -> None:
    from local.aws.fsx import mounts  # it imports moto.ec2, which takes a second

    made = site.create()
    where = (made["FileSystemId"], made["DNSName"], made["LustreConfiguration"]["MountName"])

    def machine(group: str) -> str:
        answer = site.ec2.run_instances(
            ImageId="ami-12345678", MinCount=1, MaxCount=1, SubnetId=site.subnet, SecurityGroupIds=[group]
        )
        return str(answer["Instances"][0]["InstanceId"])

    inside, outside = machine(site.clients), machine(site.group("others"))
    assert mounts.refusal(*where, inside) is None
    assert "TCP 988" in str(mounts.refusal(*where, outside))
    assert "is at" in str(mounts.refusal(where[0], where[1], "other", inside))
    query = f"mount?fileSystem={where[0]}&dnsName={where[1]}&mountName={where[2]}&instance={outside}"
    assert "lets TCP 988" in site.cloud.call("GET", query)[0]["refusal"]
    rule = {**PORTS[1], "UserIdGroupPairs": [{"GroupId": site.servers}]}
    site.ec2.revoke_security_group_ingress(GroupId=site.clients, IpPermissions=[rule])
    assert "TCP 1018-1023 in from file system" in str(mounts.refusal(*where, inside))
    site.fsx.delete_file_system(FileSystemId=where[0])
    assert mounts.refusal(*where, inside) == f"file system {where[0]} does not exist"


def test_the_driver_touches_only_volumes_with_its_clusters_tags(cloud: Cloud) -> None:
    from components.documents import iam
    from components.documents.account import Account

    policy = iam.volumes(Account(id="123456789012", region="us-west-2"), "main")
    ec2 = cloud.client("ec2", cloud.session("csi", *policy["Statement"]))

    def create(client: Any, **tags: str) -> Any:
        listed = [{"Key": key, "Value": value} for key, value in tags.items()]
        specification = {"ResourceType": "volume", "Tags": listed}
        return client.create_volume(AvailabilityZone="us-west-2a", Size=1, TagSpecifications=[specification])

    ours = {iam.DRIVER_TAG: "true", iam.CLUSTER_TAG: "main"}
    made = create(ec2, **ours)["VolumeId"]
    foreign = create(cloud.client("ec2"), **{**ours, iam.CLUSTER_TAG: "other"})["VolumeId"]
    refused(lambda: create(ec2, **{iam.DRIVER_TAG: "true"}), "UnauthorizedOperation", "ec2:CreateVolume")
    refused(lambda: ec2.delete_volume(VolumeId=foreign), "UnauthorizedOperation", "ec2:DeleteVolume")
    refused(
        lambda: ec2.create_tags(Resources=[foreign], Tags=[{"Key": iam.CLUSTER_TAG, "Value": "main"}]),
        "UnauthorizedOperation",
        "ec2:CreateTags",
    )
    ec2.delete_volume(VolumeId=made)
    assert json.dumps(policy).count("*") == json.dumps(policy).count("/*") + 1  # only what knows no resources
