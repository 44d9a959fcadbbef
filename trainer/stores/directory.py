"""A directory as a store. Files get their names when they are complete and on the disk."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trainer.stores.protocol import BYTES, NO_NOTES, PIECE_BYTES, from_os_error


@dataclass(frozen=True)
class Directory:
    """A local or shared directory, created when it does not exist."""

    path: Path

    def uri(self, path: str) -> str:
        return str(self.path / path)

    def local(self, path: str) -> Path | None:
        return self.path / path

    def list(self, prefix: str = "") -> dict[str, int]:
        root = self.path / prefix.rpartition("/")[0]
        found: dict[str, int] = {}
        try:
            for place, _, names in os.walk(root, onerror=_unless_missing):
                for name in names:
                    file = Path(place, name)
                    path = file.relative_to(self.path).as_posix()
                    if path.startswith(prefix):
                        with suppress(FileNotFoundError):  # removed meanwhile
                            found[path] = file.stat().st_size
        except OSError as error:
            raise from_os_error("list", str(root), error) from error
        return found

    def read(self, path: str) -> bytes:
        try:
            return (self.path / path).read_bytes()
        except OSError as error:
            raise from_os_error("read", self.uri(path), error) from error

    def fetch(self, path: str, file: Path) -> None:
        try:
            with (self.path / path).open("rb") as source, file.open("wb") as target:
                while piece := source.read(PIECE_BYTES):
                    target.write(piece)
        except OSError as error:
            raise from_os_error("read", self.uri(path), error) from error

    def send(self, file: Path, path: str, kind: str = BYTES, notes: Mapping[str, str] = NO_NOTES) -> None:  # noqa: ARG002
        with file.open("rb") as source:
            self._write(path, iter(lambda: source.read(PIECE_BYTES), b""), replace=True)

    def put(self, path: str, body: bytes, kind: str = BYTES, notes: Mapping[str, str] = NO_NOTES) -> None:  # noqa: ARG002
        self._write(path, [body], replace=True)

    def put_if_absent(self, path: str, body: bytes) -> bool:
        return self._write(path, [body], replace=False)

    def probe(self, path: str) -> None:
        """Write and remove a temporary file in the nearest existing directory.

        `os.access` does not detect a full disk, and returns True for root on read-only places.
        """
        target = self.path / path
        try:
            place = target.parent
            while not place.exists() and place != place.parent:
                place = place.parent
            handle, name = tempfile.mkstemp(dir=place, prefix=f".{target.name}.", suffix=".part")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(b"\0")
                    file.flush()
                    os.fsync(file.fileno())
            finally:
                Path(name).unlink(missing_ok=True)
        except OSError as error:
            raise from_os_error("save", str(target), error) from error

    def delete(self, paths: Iterable[str]) -> None:
        places = set()
        for path in paths:
            file = self.path / path
            try:
                file.unlink(missing_ok=True)
            except OSError as error:
                raise from_os_error("delete", str(file), error) from error
            places.add(file.parent)
        for place in places - {self.path}:
            with suppress(OSError):  # not empty, or already removed
                place.rmdir()

    def _write(self, path: str, pieces: Iterable[bytes], *, replace: bool) -> bool:
        """Write a temporary file, and rename it when it is on the disk."""
        target = self.path / path
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
            part = Path(name)
            try:
                with os.fdopen(handle, "wb") as file:
                    for piece in pieces:
                        file.write(piece)
                    file.flush()
                    os.fsync(file.fileno())
                if replace:
                    part.replace(target)
                else:
                    # A link, because O_EXCL would show the name before its content.
                    os.link(part, target)
            except FileExistsError:
                return False
            finally:
                part.unlink(missing_ok=True)
            sync_directory(target.parent)
        except OSError as error:
            raise from_os_error("save", str(target), error) from error
        return True


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable, which fsync of a file does not (man 2 fsync). Raise OSError."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):  # not written yet, or already removed
        raise error
