"""Backups of file systems. They exist, and cost money, until someone deletes them.

https://docs.aws.amazon.com/fsx/latest/LustreGuide/using-backups-fsx.html. There are no automatic backups: the local
cloud does not run at a set time of the day.
"""

from __future__ import annotations

from moto.core.utils import utcnow

from local.aws.account import ACCOUNT_ID
from local.aws.ec2_utils import new_id
from local.aws.errors import ApiError
from local.aws.fsx.store import Document, FileSystem, arn, store


def _supported(file_system: FileSystem) -> bool:
    """Return whether a file system supports backups: persistent ones without a data repository do."""
    linked = file_system.associations or file_system.lustre.get("DataRepositoryConfiguration")
    return str(file_system.lustre["DeploymentType"]).startswith("PERSISTENT") and not linked


def create(file_system: FileSystem, tags: list[Document]) -> Document:
    """Answer CreateBackup: available at once."""
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
    """Return the backup that a deletion makes by default, as the answer's LustreResponse; empty for none."""
    if wishes.get("SkipFinalBackup") or not _supported(file_system):
        return {}
    made = create(file_system, wishes.get("FinalBackupTags") or [])
    return {"FinalBackupId": made["BackupId"], "FinalBackupTags": made["Tags"]}


def delete(name: str) -> Document:
    """Answer DeleteBackup.

    Raises:
        BackupNotFound: It does not exist.
    """
    if name not in store.backups:
        raise ApiError("BackupNotFound", f"Backup '{name}' does not exist.")
    return store.backups.pop(name)
