"""Backups of file systems: create, describe and delete. They outlive their file system, and cost money."""

from __future__ import annotations

import secrets
from typing import Any

from moto.core.responses import ActionResult
from moto.core.utils import utcnow
from moto.fsx.models import fsx_backends

from local.aws.account import ACCOUNT_ID
from local.aws.fsx.responses import FsxResponse
from local.aws.fsx.store import Document, FsxError, store


def backups(region: str) -> dict[str, Document]:
    """The backups of a region by id."""
    backend = fsx_backends[ACCOUNT_ID][region]
    if not hasattr(backend, "trainyard_backups"):
        backend.trainyard_backups = {}
    found: dict[str, Document] = backend.trainyard_backups
    return found


def create_backup(self: Any) -> ActionResult:
    """CreateBackup: there at once."""
    file_system = store.file_system(self.region, self._get_param("FileSystemId"))
    name = f"backup-{secrets.token_hex(9)[:17]}"
    document = {
        "BackupId": name,
        "Lifecycle": "AVAILABLE",
        "Type": "USER_INITIATED",
        "ProgressPercent": 100,
        "CreationTime": utcnow(),
        "ResourceARN": f"arn:aws:fsx:{self.region}:{ACCOUNT_ID}:backup/{name}",
        "Tags": list(self._get_param("Tags") or []),
        "FileSystem": dict(file_system.document),
    }
    backups(self.region)[name] = document
    return ActionResult({"Backup": document})


def describe_backups(self: Any) -> ActionResult:
    """DescribeBackups, by id."""
    asked, known = self._get_param("BackupIds"), backups(self.region)
    for name in asked or []:
        _known(known, name)
    return ActionResult(
        {"Backups": [document for name, document in known.items() if not asked or name in asked]}
    )


def delete_backup(self: Any) -> ActionResult:
    """DeleteBackup: gone at once."""
    name, known = self._get_param("BackupId"), backups(self.region)
    _known(known, name)
    del known[name]
    return ActionResult({"BackupId": name, "Lifecycle": "DELETED"})


def _known(known: dict[str, Document], name: str) -> None:
    if name not in known:
        raise FsxError("BackupNotFound", f"Backup '{name}' does not exist.")


def install() -> None:
    """Add the actions to the emulator's FSx."""
    for action in (create_backup, describe_backups, delete_backup):
        setattr(FsxResponse, action.__name__, action)
