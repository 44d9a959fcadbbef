"""The lifecycle of a file system and its network interfaces: CREATING, AVAILABLE, DELETING, gone.

https://docs.aws.amazon.com/fsx/latest/APIReference/API_FileSystem.html
"""

from __future__ import annotations

import secrets
import string
from typing import Any

from moto.core.exceptions import ServiceException
from moto.core.utils import utcnow
from moto.ec2.models import ec2_backends

from local.aws import interfaces, keys
from local.aws.account import ACCOUNT_ID
from local.aws.ec2_utils import new_id
from local.aws.errors import ApiError
from local.aws.fsx import backups, limits, links, mounts
from local.aws.fsx.store import Document, FileSystem, arn, bad_request, store

# A metadata server and the first object storage server. Larger file systems have more, which nothing here uses.
INTERFACES = 2
_MOUNT_NAME = string.ascii_lowercase + string.digits
# Members of a request's LustreConfiguration that the answer has in its DataRepositoryConfiguration.
_REPOSITORY = ("ImportPath", "ExportPath", "ImportedFileChunkSize", "AutoImportPolicy")


def create(region: str, params: Document) -> FileSystem:
    """Answer CreateFileSystem.

    Raises:
        ApiError: The errors of `limits.created`, and InvalidNetworkSettings.
    """
    limits.created(params)
    given = params["LustreConfiguration"]
    if given.get("ImportPath"):
        links.require_bucket(given["ImportPath"])
    error = keys.use_error(region, params.get("KmsKeyId"))
    if error is not None:
        raise bad_request(error.message)
    backend = ec2_backends[ACCOUNT_ID][region]
    subnet = _subnet(backend, params["SubnetIds"][0])
    groups = _groups(backend, subnet, params.get("SecurityGroupIds") or [])
    mounts.require_open(backend, subnet, groups)
    name = new_id("fs")
    deployment = given["DeploymentType"]
    default_version = "2.12" if deployment == "PERSISTENT_2" else "2.10"
    document: Document = {
        "OwnerId": ACCOUNT_ID,
        "CreationTime": utcnow(),
        "FileSystemId": name,
        "FileSystemType": "LUSTRE",
        "FileSystemTypeVersion": params.get("FileSystemTypeVersion") or default_version,
        "Lifecycle": "CREATING",
        "StorageCapacity": params["StorageCapacity"],
        "StorageType": params.get("StorageType") or "SSD",
        "VpcId": subnet.vpc_id,
        "SubnetIds": [subnet.id],
        "NetworkInterfaceIds": [
            interfaces.add(backend, subnet, groups, f"Created by Amazon FSx for {name}").id
            for _ in range(INTERFACES)
        ],
        "DNSName": f"{name}.fsx.{region}.amazonaws.com",
        "ResourceARN": arn(region, "file-system", name),
        "Tags": list(params.get("Tags") or []),
        "LustreConfiguration": _lustre(deployment, given),
    }
    if deployment.startswith("PERSISTENT"):
        document["KmsKeyId"] = params.get("KmsKeyId") or f"arn:aws:kms:{region}:{ACCOUNT_ID}:alias/aws/fsx"
    file_system = FileSystem(document, region, groups)
    store.file_systems[name] = file_system

    store.later(lambda: document.update(Lifecycle="AVAILABLE"))
    return file_system


def _lustre(deployment: str, given: Document) -> Document:
    shown: Document = {
        "MountName": "".join(secrets.choice(_MOUNT_NAME) for _ in range(8)),
        "WeeklyMaintenanceStartTime": "7:05:00",
        "DataCompressionType": "NONE",
        "CopyTagsToBackups": False,
        "LogConfiguration": {"Level": "DISABLED"},
        **{key: value for key, value in given.items() if key not in _REPOSITORY},
    }
    if deployment != "SCRATCH_2":
        shown.setdefault("AutomaticBackupRetentionDays", 0)
    if deployment == "PERSISTENT_2":
        shown.setdefault("EfaEnabled", False)
    if given.get("MetadataConfiguration"):
        shown["MetadataConfiguration"] = {"Iops": 1500, **given["MetadataConfiguration"]}
    if given.get("ImportPath"):
        shown["DataRepositoryConfiguration"] = {
            "Lifecycle": "AVAILABLE",
            "ImportedFileChunkSize": 1024,
            "AutoImportPolicy": "NONE",
            **{key: given[key] for key in _REPOSITORY if key in given},
        }
    return shown


def update(file_system: FileSystem, params: Document) -> FileSystem:
    """Answer UpdateFileSystem: in effect at once, with one finished administrative action."""
    document, lustre = file_system.document, dict(params.get("LustreConfiguration") or {})
    if document["Lifecycle"] != "AVAILABLE":
        raise bad_request(f"The file system is {document['Lifecycle']}, it must be AVAILABLE.")
    limits.updated(document, params)
    metadata = lustre.pop("MetadataConfiguration", None)
    if metadata:
        file_system.lustre.setdefault("MetadataConfiguration", {}).update(metadata)
    file_system.lustre.update({key: value for key, value in lustre.items() if value is not None})
    for key in ("StorageCapacity", "FileSystemTypeVersion"):
        if params.get(key) is not None:
            document[key] = params[key]
    document["AdministrativeActions"] = [
        {
            "AdministrativeActionType": "FILE_SYSTEM_UPDATE",
            "RequestTime": utcnow(),
            "Status": "COMPLETED",
            "ProgressPercent": 100,
        }
    ]
    return file_system


def delete(file_system: FileSystem, wishes: Document) -> Document:
    """Answer DeleteFileSystem. Its links go with it, and its network interfaces when it is gone.

    Args:
        wishes: The request's LustreConfiguration.

    Returns:
        The answer's LustreResponse.
    """
    document = file_system.document
    if document["Lifecycle"] == "CREATING":
        raise bad_request("The file system is CREATING, it cannot be deleted yet.")
    if document["Lifecycle"] == "DELETING":
        return {}
    answer = backups.final(file_system, wishes)
    document["Lifecycle"] = "DELETING"
    for association in file_system.associations.values():
        association["Lifecycle"] = "DELETING"

    def gone() -> None:
        interfaces.remove(ec2_backends[ACCOUNT_ID][file_system.region], document["NetworkInterfaceIds"])
        links.forget_role(file_system.id)
        store.remove(file_system.id)

    store.later(gone)
    return answer


def _subnet(backend: Any, name: str) -> Any:
    try:
        return backend.get_subnet(name)
    except ServiceException:
        raise ApiError("InvalidNetworkSettings", f"The subnet '{name}' does not exist.") from None


def _groups(backend: Any, subnet: Any, given: list[str]) -> list[str]:
    if not given:
        return [backend.get_default_security_group(subnet.vpc_id).id]
    for name in given:
        group = backend.get_security_group_from_id(name)
        if group is None or group.vpc_id != subnet.vpc_id:
            raise ApiError(
                "InvalidNetworkSettings", f"The security group '{name}' is not one of VPC {subnet.vpc_id}."
            )
    return list(given)
