"""Data repository associations: directories of a file system that are linked to S3.

https://docs.aws.amazon.com/fsx/latest/LustreGuide/create-dra-linked-data-repo.html. FSx reads and writes the bucket
with its own role for each file system. The role is created with the first link and deleted with the file system.
"""

from __future__ import annotations

import json

from moto.core.utils import utcnow
from moto.iam.models import iam_backends
from moto.s3.models import s3_backends

from local.aws.account import ACCOUNT_ID, PARTITION
from local.aws.ec2_utils import new_id
from local.aws.fsx import limits
from local.aws.fsx.store import Document, FileSystem, arn, bad_request, store

ROLE_PATH = "/aws-service-role/s3.data-source.lustre.fsx.amazonaws.com/"
ROLE_PREFIX = "AWSServiceRoleForFSxS3Access_"


def create(file_system: FileSystem, params: Document) -> Document:
    """Answer CreateDataRepositoryAssociation.

    Raises:
        ApiError: The errors of `limits.linked`, and BadRequest for an unknown bucket.
    """
    limits.linked(file_system.document)
    require_bucket(params["DataRepositoryPath"])
    name = new_id("dra")
    document: Document = {
        "AssociationId": name,
        "ResourceARN": arn(file_system.region, "association", file_system.id, name),
        "FileSystemId": file_system.id,
        "Lifecycle": "CREATING",
        "FileSystemPath": params.get("FileSystemPath") or "/",
        "DataRepositoryPath": params["DataRepositoryPath"],
        "BatchImportMetaDataOnCreate": bool(params.get("BatchImportMetaDataOnCreate")),
        "ImportedFileChunkSize": params.get("ImportedFileChunkSize") or 1024,
        "S3": params.get("S3") or {},
        "Tags": list(params.get("Tags") or []),
        "CreationTime": utcnow(),
    }
    file_system.associations[name] = document
    _make_role(file_system.id)

    def available() -> None:
        if document["Lifecycle"] == "CREATING":
            document["Lifecycle"] = "AVAILABLE"

    store.later(available)
    return document


def update(document: Document, params: Document) -> Document:
    """Answer UpdateDataRepositoryAssociation: its events."""
    if document["Lifecycle"] != "AVAILABLE":
        raise bad_request(
            f"The data repository association is {document['Lifecycle']}, it must be AVAILABLE."
        )
    if params.get("S3") is not None:
        document["S3"] = params["S3"]
    return document


def delete(file_system: FileSystem, document: Document) -> Document:
    """Answer DeleteDataRepositoryAssociation."""
    document["Lifecycle"] = "DELETING"
    store.later(lambda: file_system.associations.pop(document["AssociationId"], None))
    return document


def require_bucket(uri: str) -> None:
    """Raise BadRequest if the bucket of an s3:// path is not reachable."""
    name = uri.removeprefix("s3://").partition("/")[0]
    if name not in s3_backends[ACCOUNT_ID][PARTITION].buckets:
        raise bad_request(
            f"Amazon FSx is unable to validate access to the S3 bucket {name}. Ensure the IAM role or user you are "
            "using has s3:Get*, s3:List* and s3:PutObject permissions to the S3 bucket prefix."
        )


def _make_role(file_system_id: str) -> None:
    """Create the service-linked role with which FSx reads and writes the bucket."""
    backend, name = iam_backends[ACCOUNT_ID][PARTITION], ROLE_PREFIX + file_system_id
    if any(role.name == name for role in list(backend.roles.values())):
        return
    trust = {
        "Effect": "Allow",
        "Action": "sts:AssumeRole",
        "Principal": {"Service": "s3.data-source.lustre.fsx.amazonaws.com"},
    }
    document = json.dumps({"Version": "2012-10-17", "Statement": [trust]})
    backend.create_role(
        role_name=name,
        assume_role_policy_document=document,
        path=ROLE_PATH,
        permissions_boundary=None,
        description="",
        tags=[],
        max_session_duration="3600",
        linked_service="s3.data-source.lustre.fsx.amazonaws.com",
    )


def forget_role(file_system_id: str) -> None:
    """Delete FSx's own role after the file system is gone (policy FSxDeleteServiceLinkedRoleAccess)."""
    backend, name = iam_backends[ACCOUNT_ID][PARTITION], ROLE_PREFIX + file_system_id
    for key, role in list(backend.roles.items()):
        if role.name == name:
            del backend.roles[key]
