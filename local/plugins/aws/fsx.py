"""FSx for Lustre: file systems and their links to S3 (API reference: Amazon FSx).

In-place changes and replacements are those of the Terraform provider's `aws_fsx_lustre_file_system` and
`aws_fsx_data_repository_association`, which the official Pulumi provider bridges.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from local.plugins.aws.cloud import Cloud, wait_until
from local.plugins.aws.resource import Props, Resource, search
from local.plugins.sdk import split_names

VERSIONS = ("2.10", "2.12", "2.15")


@dataclass(frozen=True, kw_only=True)
class _Row(Resource):
    service: str = "fsx"
    tag_op: str = "tag_resource"
    tag_by: str = "arn"
    status: str = "Lifecycle"
    ready: str = "AVAILABLE"
    failed: frozenset[str] = split_names("FAILED MISCONFIGURED MISCONFIGURED_UNAVAILABLE")
    reason: str = "FailureDetails.Message"
    gone: frozenset[str] = split_names("DELETING")
    # The official provider has the same limit for each of its three calls.
    seconds: float = 1800.0


def _shrinks(old: Props, new: Props) -> frozenset[str]:
    """Return the inputs that need a replacement.

    A file system can only grow, its version can only rise, and one with EFA keeps its throughput.
    """
    found = set()
    before, after = old.get("storageCapacity"), new.get("storageCapacity")
    if isinstance(before, int | float) and isinstance(after, int | float) and after < before:
        found.add("storageCapacity")
    if new.get("efaEnabled"):
        found.add("perUnitStorageThroughput")
    versions = old.get("fileSystemTypeVersion"), new.get("fileSystemTypeVersion")
    if all(v in VERSIONS for v in versions) and VERSIONS.index(str(versions[1])) < VERSIONS.index(
        str(versions[0])
    ):
        found.add("fileSystemTypeVersion")
    iops = [(props.get("metadataConfiguration") or {}).get("iops") or 0 for props in (old, new)]
    if 0 < iops[1] < iops[0]:
        found.add("metadataConfiguration")
    return frozenset(found)


class _FileSystem(_Row):
    """A file system. A change is over when its administrative actions are."""

    def settle(self, cloud: Cloud, rid: str) -> None:
        super().settle(cloud, rid)

        def is_done() -> bool:
            actions = (self.describe(cloud, rid) or {}).get("AdministrativeActions") or []
            for action in actions:
                if action["Status"] == "FAILED":
                    why = search(self.reason, action) or "no details"
                    raise RuntimeError(
                        f"{self.kind} {rid}: {action['AdministrativeActionType']} failed: {why}"
                    )
            # A file system is usable while it grows or optimises.
            return all(a["Status"] in ("COMPLETED", "UPDATED_OPTIMIZING", "OPTIMIZING") for a in actions)

        wait_until(f"changes of {self.kind} {rid}", is_done, self.seconds)

    def delete(self, cloud: Cloud, rid: str, state: Props) -> None:
        # A file system can't be deleted during its creation.
        wait_until(
            f"{self.kind} {rid} created",
            lambda: self.describe(cloud, rid)["Lifecycle"] != "CREATING",
            self.seconds,
        )
        arguments: Props = {}
        if not str(state.get("deploymentType")).startswith("SCRATCH"):
            arguments["LustreConfiguration"] = {"SkipFinalBackup": bool(state.get("skipFinalBackup", True))}
        cloud.client("fsx").delete_file_system(FileSystemId=rid, **arguments)
        self.wait_gone(cloud, rid)


def _live_file_system(cloud: Cloud, _rid: str, _inputs: Props, found: Any) -> Props:
    """Return the security groups, too. FSx returns only the network interfaces, which have them."""
    repository = found["LustreConfiguration"].get("DataRepositoryConfiguration") or {}
    groups: list[str] = []
    for interface in found.get("NetworkInterfaceIds", [])[:1]:
        answer = cloud.client("ec2").describe_network_interfaces(NetworkInterfaceIds=[interface])
        groups = [group["GroupId"] for group in answer["NetworkInterfaces"][0]["Groups"]]
    return {
        "securityGroupIds": groups,
        "subnetIds": found["SubnetIds"][0],
        **{name: repository.get(name[0].upper() + name[1:]) for name in _REPOSITORY},
    }


_REPOSITORY = ("autoImportPolicy", "exportPath", "importPath")


ROWS = (
    _FileSystem(
        "aws:fsx/lustreFileSystem:LustreFileSystem",
        kind="file system",
        accepts=split_names(
            "autoImportPolicy automaticBackupRetentionDays copyTagsToBackups dailyAutomaticBackupStartTime "
            "dataCompressionType deploymentType driveCacheType efaEnabled exportPath fileSystemTypeVersion "
            "importPath kmsKeyId logConfiguration metadataConfiguration perUnitStorageThroughput "
            "rootSquashConfiguration securityGroupIds skipFinalBackup storageCapacity storageType subnetIds tags "
            "weeklyMaintenanceStartTime"
        ),
        unordered=split_names("securityGroupIds"),
        write_only=split_names("skipFinalBackup"),
        defaults={
            "dataCompressionType": "NONE",
            "skipFinalBackup": True,
            "storageType": "SSD",
        },
        cannot_change=_shrinks,
        create_op="create_file_system",
        more=lambda _cloud, _inputs: {"FileSystemType": "LUSTRE"},
        id="FileSystem.FileSystemId",
        key="FileSystemId",
        read_op="describe_file_systems",
        found="FileSystems[0]",
        updates=(
            (
                "update_file_system",
                split_names(
                    "automaticBackupRetentionDays dailyAutomaticBackupStartTime dataCompressionType "
                    "fileSystemTypeVersion logConfiguration metadataConfiguration "
                    "perUnitStorageThroughput rootSquashConfiguration storageCapacity weeklyMaintenanceStartTime"
                ),
            ),
        ),
        names={"arn": "ResourceARN"},
        within="LustreConfiguration",
        live=_live_file_system,
    ),
    _Row(
        "aws:fsx/dataRepositoryAssociation:DataRepositoryAssociation",
        kind="data repository association",
        accepts=split_names(
            "batchImportMetaDataOnCreate dataRepositoryPath deleteDataInFilesystem fileSystemId fileSystemPath s3 tags"
        ),
        unordered=split_names("events"),
        write_only=split_names("deleteDataInFilesystem"),
        defaults={"batchImportMetaDataOnCreate": False, "deleteDataInFilesystem": False},
        exclusive=True,
        create_op="create_data_repository_association",
        id="Association.AssociationId",
        key="AssociationId",
        read_op="describe_data_repository_associations",
        found="Associations[0]",
        updates=(("update_data_repository_association", split_names("s3")),),
        names={"arn": "ResourceARN"},
        delete_op="delete_data_repository_association",
        delete_with=split_names("deleteDataInFilesystem"),
    ),
)
