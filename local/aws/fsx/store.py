"""The state of FSx: file systems and data repository associations, as the documents that the API returns."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from local.aws import serial
from local.aws.account import ACCOUNT_ID
from local.aws.errors import ApiError

Document = dict[str, Any]


def bad_request(message: str) -> ApiError:
    """Return a BadRequest."""
    return ApiError("BadRequest", message)


@dataclass
class FileSystem:
    """A file system and its associations by id. `group_ids` are those of its network interfaces."""

    document: Document
    region: str
    group_ids: list[str] = field(default_factory=list)
    associations: dict[str, Document] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """Its id, fs- and 17 hexadecimal digits."""
        return str(self.document["FileSystemId"])

    @property
    def lustre(self) -> Document:
        """The part of the document that only Lustre has."""
        found: Document = self.document["LustreConfiguration"]
        return found


class Store:
    """All file systems and backups of the account by id. A creation, link or deletion takes `delay_seconds`."""

    def __init__(self) -> None:
        self.file_systems: dict[str, FileSystem] = {}
        self.backups: dict[str, Document] = {}
        self.delay_seconds = 1.0
        self.directory: Path | None = None  # where the nodes keep the files

    def file_system(self, region: str, name: str) -> FileSystem:
        """Return a file system.

        Raises:
            FileSystemNotFound: It does not exist.
        """
        found = self.file_systems.get(name)
        if found is None or found.region != region:
            raise ApiError("FileSystemNotFound", f"File system '{name}' does not exist.")
        return found

    def association(self, region: str, name: str) -> tuple[FileSystem, Document]:
        """Return an association and its file system.

        Raises:
            DataRepositoryAssociationNotFound: It does not exist.
        """
        for file_system in self.file_systems.values():
            if file_system.region == region and name in file_system.associations:
                return file_system, file_system.associations[name]
        raise ApiError(
            "DataRepositoryAssociationNotFound", f"The data repository association '{name}' does not exist."
        )

    def tagged(self, region: str, arn: str) -> Document:
        """Return the document of the resource with this ARN.

        Raises:
            ResourceNotFound: It does not exist.
        """
        for file_system in self.file_systems.values():
            for document in (file_system.document, *file_system.associations.values()):
                if file_system.region == region and document["ResourceARN"] == arn:
                    return document
        for backup in self.backups.values():
            if backup["ResourceARN"] == arn and f":{region}:" in arn:
                return backup
        raise ApiError("ResourceNotFound", f"The resource {arn} does not exist.")

    def begin(self, directory: Path) -> None:
        """Take the directory of the files. Files of an earlier account there are deleted."""
        self.directory = directory
        shutil.rmtree(directory, ignore_errors=True)

    def remove(self, name: str) -> None:
        """Remove a file system and its files."""
        self.file_systems.pop(name, None)
        if self.directory is not None:
            shutil.rmtree(self.directory / name, ignore_errors=True)

    def later(self, change: Callable[[], object]) -> None:
        """Make a change after the delay, or at once if there is none."""
        if self.delay_seconds:
            serial.later(self.delay_seconds, change)
        else:
            change()


def arn(region: str, kind: str, *parts: str) -> str:
    """Return the ARN of an FSx resource, such as file-system/<id> or association/<file system>/<id>."""
    return f"arn:aws:fsx:{region}:{ACCOUNT_ID}:{kind}/{'/'.join(parts)}"


store = Store()
