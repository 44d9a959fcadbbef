"""Backups of file systems: they outlive them, and cost money until somebody deletes them.

https://docs.aws.amazon.com/fsx/latest/LustreGuide/using-backups-fsx.html. Automatic ones are not made here: their time
of the day does not come.
"""

from __future__ import annotations

from moto.core.utils import utcnow

from local.aws.account import ACCOUNT_ID
from local.aws.fsx.store import Document, FileSystem, FsxError, arn, bad_request, new_id, store


def supported(file_system: FileSystem) -> bool:
    """Whether a file system can be backed up: persistent ones without a data repository."""
    linked = file_system.associations or file_system.lustre.get("DataRepositoryConfiguration")
    return str(file_system.lustre["DeploymentType"]).startswith("PERSISTENT") and not linked


def create(file_system: FileSystem, tags: list[Document]) -> Document:
    """CreateBackup: available at once. Raises BadRequest where there can be none."""
    if not supported(file_system):
        raise bad_request("Backups are for persistent file systems that are not linked to a data repository.")
    name = new_id("backup")
    document: Document = {
        "BackupId": name,
        "Lifecycle": "AVAILABLE",
        "Type": "USER_INITIATED",
        "ProgressPercent": 100,
        "CreationTime": utcnow(),
        "KmsKeyId": file_system.document["KmsKeyId"],
        "ResourceARN": arn(file_system.region, "backup", name),
        "ResourceType": "FILE_SYSTEM",
        "OwnerId": ACCOUNT_ID,
        "Tags": list(tags),
        "FileSystem": dict(file_system.document),
    }
    store.backups[name] = document
    return document


def final(file_system: FileSystem, wishes: Document) -> Document:
    """The backup that a deletion makes unless it is told not to, as the answer's LustreResponse; empty for none."""
    if wishes.get("SkipFinalBackup") or not supported(file_system):
        return {}
    made = create(file_system, wishes.get("FinalBackupTags") or [])
    return {"FinalBackupId": made["BackupId"], "FinalBackupTags": made["Tags"]}


def find(region: str, name: str) -> Document:
    """A backup. Raises BackupNotFound."""
    found = store.backups.get(name)
    if found is None or f":{region}:" not in found["ResourceARN"]:
        raise FsxError("BackupNotFound", f"Backup '{name}' does not exist.")
    return found


def delete(region: str, name: str) -> Document:
    """DeleteBackup."""
    find(region, name)
    return store.backups.pop(name)
