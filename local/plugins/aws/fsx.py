"""FSx for Lustre: file systems and their links to S3 (API reference: Amazon FSx).

In-place changes and replacements are those of the Terraform provider's `aws_fsx_lustre_file_system` and
`aws_fsx_data_repository_association`, which the official Pulumi provider bridges.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from local.plugins.aws.cloud import Cloud, absent, is_gone, wait_until
from local.plugins.aws.resource import Handler, Props, serves, tag_changes, tag_list, tag_map

# The official provider has the same limit for each of its three calls.
WAIT_SECONDS = 1800.0
VERSIONS = ("2.10", "2.12", "2.15")


def api_form(value: Any) -> Any:
    """Return a nested input of the SDK (`autoImportPolicy`) in the form of the API (`AutoImportPolicy`)."""
    if isinstance(value, Mapping):
        return {key[0].upper() + key[1:]: api_form(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [api_form(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def sdk_form(value: Any) -> Any:
    """Return a nested value of the API in the form of the SDK."""
    if isinstance(value, Mapping):
        return {key[0].lower() + key[1:]: sdk_form(item) for key, item in value.items()}
    return [sdk_form(item) for item in value] if isinstance(value, list) else value


def chosen(inputs: Props, names: Mapping[str, str]) -> Props:
    """Return the inputs that are set, under their names in the API."""
    return {api: api_form(inputs[name]) for name, api in names.items() if inputs.get(name) is not None}


def tags_of(inputs: Props) -> Props:
    """Return the tags of a request. FSx accepts no empty list."""
    return {"Tags": tag_list(inputs["tags"])} if inputs.get("tags") else {}


def retag(cloud: Cloud, arn: str, old: Props, new: Props) -> None:
    """Apply a change of tags."""
    gone, put = tag_changes(old, new)
    if gone:
        cloud.client("fsx").untag_resource(ResourceARN=arn, TagKeys=gone)
    if put:
        cloud.client("fsx").tag_resource(ResourceARN=arn, Tags=tag_list(put))


# Inputs of the request itself, and those of its LustreConfiguration.
_PLAIN = {
    "fileSystemTypeVersion": "FileSystemTypeVersion",
    "kmsKeyId": "KmsKeyId",
    "securityGroupIds": "SecurityGroupIds",
    "storageCapacity": "StorageCapacity",
    "storageType": "StorageType",
}
_LUSTRE = {
    name: name[0].upper() + name[1:]
    for name in (
        "autoImportPolicy",
        "automaticBackupRetentionDays",
        "copyTagsToBackups",
        "dailyAutomaticBackupStartTime",
        "dataCompressionType",
        "deploymentType",
        "driveCacheType",
        "efaEnabled",
        "exportPath",
        "importPath",
        "importedFileChunkSize",
        "logConfiguration",
        "metadataConfiguration",
        "perUnitStorageThroughput",
        "rootSquashConfiguration",
        "weeklyMaintenanceStartTime",
    )
}
_REPOSITORY = ("autoImportPolicy", "exportPath", "importPath", "importedFileChunkSize")


@serves
class LustreFileSystem(Handler):
    """A file system. Its id is FSx's. Creation waits for AVAILABLE, deletion until FSx has it no longer."""

    token = "aws:fsx/lustreFileSystem:LustreFileSystem"
    accepts = frozenset({*_PLAIN, *_LUSTRE, "finalBackupTags", "skipFinalBackup", "subnetIds", "tags"})
    required = frozenset({"subnetIds"})
    replaces = frozenset(
        {
            "copyTagsToBackups",
            "deploymentType",
            "driveCacheType",
            "efaEnabled",
            "exportPath",
            "importPath",
            "importedFileChunkSize",
            "kmsKeyId",
            "securityGroupIds",
            "storageType",
            "subnetIds",
        }
    )
    unordered = frozenset({"securityGroupIds"})
    write_only = frozenset({"finalBackupTags", "skipFinalBackup"})
    defaults: ClassVar[Props] = {
        "dataCompressionType": "NONE",
        "deploymentType": "SCRATCH_1",
        "skipFinalBackup": True,
        "storageType": "SSD",
    }
    tagged = True

    def cannot_change(self, old: Props, new: Props) -> frozenset[str]:
        """Return the inputs that need a replacement.

        A file system can only grow, its version can only rise, and one with EFA keeps its throughput.
        """
        found = set()
        before, after = old.get("storageCapacity"), new.get("storageCapacity")
        rigid = new.get("deploymentType") == "SCRATCH_1"
        if (
            isinstance(before, int | float)
            and isinstance(after, int | float)
            and (after < before or (rigid and after != before))
        ):
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

    def create(self, cloud: Cloud, inputs: Props) -> str:
        answer = cloud.client("fsx").create_file_system(
            FileSystemType="LUSTRE",
            SubnetIds=[inputs["subnetIds"]],
            LustreConfiguration=chosen(inputs, _LUSTRE),
            **chosen(inputs, _PLAIN),
            **tags_of(inputs),
        )
        return str(answer["FileSystem"]["FileSystemId"])

    def _live(self, cloud: Cloud, rid: str) -> Any:
        return cloud.client("fsx").describe_file_systems(FileSystemIds=[rid])["FileSystems"][0]

    def _settle(self, cloud: Cloud, rid: str) -> None:
        def ready() -> bool:
            live = self._live(cloud, rid)
            if live["Lifecycle"] in ("FAILED", "MISCONFIGURED", "MISCONFIGURED_UNAVAILABLE"):
                why = (live.get("FailureDetails") or {}).get("Message", "no details")
                raise RuntimeError(f"file system {rid} is {live['Lifecycle']}: {why}")
            actions = live.get("AdministrativeActions") or []
            failed = [a for a in actions if a["Status"] == "FAILED"]
            if failed:
                why = (failed[0].get("FailureDetails") or {}).get("Message", "no details")
                raise RuntimeError(
                    f"file system {rid}: {failed[0]['AdministrativeActionType']} failed: {why}"
                )
            # A file system is usable while it grows or optimises.
            done = all(a["Status"] in ("COMPLETED", "UPDATED_OPTIMIZING", "OPTIMIZING") for a in actions)
            return live["Lifecycle"] == "AVAILABLE" and done

        wait_until(f"file system {rid} AVAILABLE", ready, WAIT_SECONDS)

    def finish(self, cloud: Cloud, rid: str, inputs: Props) -> None:
        self._settle(cloud, rid)

    def read(self, cloud: Cloud, rid: str, inputs: Props) -> Props | None:
        found = self._live(cloud, rid)
        if found["Lifecycle"] == "DELETING":
            return None
        lustre = found["LustreConfiguration"]
        live: Props = {
            "arn": found["ResourceARN"],
            "dnsName": found["DNSName"],
            "mountName": lustre["MountName"],
            "networkInterfaceIds": found.get("NetworkInterfaceIds", []),
            "ownerId": found["OwnerId"],
            "subnetIds": found["SubnetIds"][0],
            "vpcId": found["VpcId"],
            "tags": tag_map(found.get("Tags")),
        }
        for name, api in _PLAIN.items():
            if found.get(api) is not None:
                live[name] = found[api]
        for name, api in _LUSTRE.items():
            source = lustre.get("DataRepositoryConfiguration") or {} if name in _REPOSITORY else lustre
            if source.get(api) is not None:
                live[name] = sdk_form(source[api])
        # FSx returns only the network interfaces. These have the groups.
        live["securityGroupIds"] = self._groups(cloud, found.get("NetworkInterfaceIds", []))
        return live

    def _groups(self, cloud: Cloud, interfaces: list[str]) -> list[str]:
        if not interfaces:
            return []
        found = cloud.client("ec2").describe_network_interfaces(NetworkInterfaceIds=interfaces[:1])
        return [group["GroupId"] for group in found["NetworkInterfaces"][0]["Groups"]]

    def update(self, cloud: Cloud, rid: str, old: Props, new: Props, changed: frozenset[str]) -> None:
        plain = chosen(new, {k: v for k, v in _PLAIN.items() if k in changed})
        lustre = chosen(new, {k: v for k, v in _LUSTRE.items() if k in changed})
        if lustre:
            plain["LustreConfiguration"] = lustre
        if plain:
            cloud.client("fsx").update_file_system(FileSystemId=rid, **plain)
            self._settle(cloud, rid)
        if "tags" in changed:
            retag(cloud, self._live(cloud, rid)["ResourceARN"], old, new)

    def delete(self, cloud: Cloud, rid: str, state: Props) -> None:
        # A file system can't be deleted during its creation.
        wait_until(
            f"file system {rid} created",
            lambda: self._live(cloud, rid)["Lifecycle"] != "CREATING",
            WAIT_SECONDS,
        )
        arguments: Props = {}
        if not str(state.get("deploymentType")).startswith("SCRATCH"):
            arguments["LustreConfiguration"] = {"SkipFinalBackup": bool(state.get("skipFinalBackup", True))}
            if state.get("finalBackupTags"):
                arguments["LustreConfiguration"]["FinalBackupTags"] = tag_list(state["finalBackupTags"])
        cloud.client("fsx").delete_file_system(FileSystemId=rid, **arguments)

        def deleted() -> bool:
            try:
                live = self._live(cloud, rid)
            except Exception as error:
                if is_gone(error):
                    return True
                raise
            if live["Lifecycle"] == "FAILED":
                raise RuntimeError(f"file system {rid} could not be deleted")
            return False

        wait_until(f"file system {rid} deleted", deleted, WAIT_SECONDS)


@serves
class DataRepositoryAssociation(Handler):
    """A directory of a file system that is linked to S3. Its id is FSx's."""

    token = "aws:fsx/dataRepositoryAssociation:DataRepositoryAssociation"
    accepts = frozenset(
        {
            "batchImportMetaDataOnCreate",
            "dataRepositoryPath",
            "deleteDataInFilesystem",
            "fileSystemId",
            "fileSystemPath",
            "importedFileChunkSize",
            "s3",
            "tags",
        }
    )
    required = frozenset({"dataRepositoryPath", "fileSystemId", "fileSystemPath"})
    replaces = frozenset(
        {"batchImportMetaDataOnCreate", "dataRepositoryPath", "fileSystemId", "fileSystemPath"}
    )
    unordered = frozenset({"events"})
    write_only = frozenset({"deleteDataInFilesystem"})
    defaults: ClassVar[Props] = {"batchImportMetaDataOnCreate": False, "deleteDataInFilesystem": False}
    exclusive = True
    tagged = True

    def create(self, cloud: Cloud, inputs: Props) -> str:
        names = ("batchImportMetaDataOnCreate", "dataRepositoryPath", "fileSystemId", "fileSystemPath")
        arguments = chosen(inputs, {n: n[0].upper() + n[1:] for n in (*names, "importedFileChunkSize", "s3")})
        answer = cloud.client("fsx").create_data_repository_association(**arguments, **tags_of(inputs))
        return str(answer["Association"]["AssociationId"])

    def _live(self, cloud: Cloud, rid: str) -> Any:
        answer = cloud.client("fsx").describe_data_repository_associations(AssociationIds=[rid])
        return answer["Associations"][0]

    def _settle(self, cloud: Cloud, rid: str) -> None:
        def ready() -> bool:
            live = self._live(cloud, rid)
            if live["Lifecycle"] in ("FAILED", "MISCONFIGURED"):
                why = (live.get("FailureDetails") or {}).get("Message", "no details")
                raise RuntimeError(f"data repository association {rid} is {live['Lifecycle']}: {why}")
            return bool(live["Lifecycle"] == "AVAILABLE")

        wait_until(f"data repository association {rid} AVAILABLE", ready, WAIT_SECONDS)

    def finish(self, cloud: Cloud, rid: str, inputs: Props) -> None:
        self._settle(cloud, rid)

    def read(self, cloud: Cloud, rid: str, inputs: Props) -> Props | None:
        found = self._live(cloud, rid)
        if found["Lifecycle"] == "DELETING":
            return None
        return {
            "arn": found["ResourceARN"],
            "associationId": rid,
            "batchImportMetaDataOnCreate": bool(found.get("BatchImportMetaDataOnCreate")),
            "dataRepositoryPath": found["DataRepositoryPath"],
            "fileSystemId": found["FileSystemId"],
            "fileSystemPath": found["FileSystemPath"],
            "importedFileChunkSize": found.get("ImportedFileChunkSize"),
            "s3": sdk_form(found.get("S3") or {}),
            "tags": tag_map(found.get("Tags")),
        }

    def update(self, cloud: Cloud, rid: str, old: Props, new: Props, changed: frozenset[str]) -> None:
        fresh = chosen(new, {n: v for n, v in _CHANGEABLE.items() if n in changed})
        if fresh:
            cloud.client("fsx").update_data_repository_association(AssociationId=rid, **fresh)
            self._settle(cloud, rid)
        if "tags" in changed:
            retag(cloud, self._live(cloud, rid)["ResourceARN"], old, new)

    def delete(self, cloud: Cloud, rid: str, state: Props) -> None:
        cloud.client("fsx").delete_data_repository_association(
            AssociationId=rid, DeleteDataInFileSystem=bool(state.get("deleteDataInFilesystem"))
        )

        wait_until(
            f"data repository association {rid} deleted",
            lambda: absent(lambda: self._live(cloud, rid)),
            WAIT_SECONDS,
        )


_CHANGEABLE = {"importedFileChunkSize": "ImportedFileChunkSize", "s3": "S3"}
