"""A directory as a store: files get their names when they are whole and on the disk."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trainer.stores.protocol import BYTES, NO_NOTES, PIECE_BYTES, of_system


@dataclass(frozen=True)
class Directory:
    """A directory of this machine or of a shared file system, made when it is not there."""

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
            raise of_system("list", str(root), error) from error
        return found

    def read(self, path: str) -> bytes:
        try:
            return (self.path / path).read_bytes()
        except OSError as error:
            raise of_system("read", self.uri(path), error) from error

    def fetch(self, path: str, file: Path) -> None:
        try:
            with (self.path / path).open("rb") as source, file.open("wb") as target:
                while piece := source.read(PIECE_BYTES):
                    target.write(piece)
        except OSError as error:
            raise of_system("read", self.uri(path), error) from error

    def send(self, file: Path, path: str, kind: str = BYTES, notes: Mapping[str, str] = NO_NOTES) -> None:  # noqa: ARG002
        with file.open("rb") as source:
            self._write(path, iter(lambda: source.read(PIECE_BYTES), b""), replace=True)

    def put(self, path: str, body: bytes, kind: str = BYTES, notes: Mapping[str, str] = NO_NOTES) -> None:  # noqa: ARG002
        self._write(path, [body], replace=True)

    def put_if_absent(self, path: str, body: bytes) -> bool:
        return self._write(path, [body], replace=False)

    def probe(self, path: str) -> None:
        """A file of another name, written and removed: in the nearest directory that is there.

        `os.access` would say yes for a full disk, and to root for much that takes nothing.
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
            raise of_system("save", str(target), error) from error

    def delete(self, paths: Iterable[str]) -> None:
        places = set()
        for path in paths:
            file = self.path / path
            try:
                file.unlink(missing_ok=True)
            except OSError as error:
                raise of_system("delete", str(file), error) from error
            places.add(file.parent)
        for place in places - {self.path}:
            with suppress(OSError):  # not empty, or another did it
                place.rmdir()

    def _write(self, path: str, pieces: Iterable[bytes], *, replace: bool) -> bool:
        """Into a file of another name, then, when that is on the disk, under its own."""
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
                    # A link, for O_EXCL alone would show others a name whose content is not there yet.
                    os.link(part, target)
            except FileExistsError:
                return False
            finally:
                part.unlink(missing_ok=True)
            sync_directory(target.parent)
        except OSError as error:
            raise of_system("save", str(target), error) from error
        return True


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable: a file's fsync does not (man 2 fsync). Raises OSError."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):  # nothing was written yet, or it was removed meanwhile
        raise error
