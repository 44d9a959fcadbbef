"""Stores for models and checkpoints: a directory or an S3 bucket. Needs no torch.

A file only gets its name when it is complete and durable, so that a reader never sees a part of it. The entry point is
`destination`.
"""

from __future__ import annotations

import errno
import io
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import IO, Any, TypeVar
from urllib.parse import unquote, urlsplit

from trainer import contract

T = TypeVar("T")
BYTES = "application/octet-stream"
NO_NOTES: Mapping[str, str] = {}
PIECE_BYTES = 2**20

# docs.aws.amazon.com/AmazonS3/latest/userguide/bucketnamingrules.html
BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
CONNECT_SECONDS, READ_SECONDS, ATTEMPTS = 10, 60, 5
# boto3 retries ATTEMPTS times, but not if the body of a response is cut off or stalls.
BODY_ATTEMPTS = 2
# A larger file is sent in parts, each with its own checksum, and this number of them at a time.
PART_BYTES, PARTS_AT_ONCE = 64 * 2**20, 4
# docs.aws.amazon.com/AmazonS3/latest/userguide/qfacts.html: keys of one DeleteObjects
MAX_KEYS = 1_000
# docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html; errors of HEAD only have a status
MISSING = frozenset({"NoSuchKey", "NoSuchUpload", "404"})
NO_BUCKET = "NoSuchBucket"
# A file in place of a directory or the other way round, a link to itself, a name that is too long.
WRONG_PLACE = frozenset({errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ELOOP, errno.ENAMETOOLONG})
# The key exists, or another request writes it: docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes.html
EXISTS = frozenset({"PreconditionFailed", "412", "ConditionalRequestConflict"})


class StoreError(Exception):
    """A failure of a store, with a one-line message. `code` is for a run that can't continue without the store."""

    code = contract.Exit.SAVE


class MissingError(StoreError):
    """A file or directory does not exist."""


class PlaceError(StoreError):
    """The place itself is wrong, such as a bucket that does not exist. A restart does not help."""

    code = contract.Exit.CONFIGURATION


def destination(uri: str) -> Store:
    """Return the store of a URI: s3://bucket/prefix, file:///path or a path. Raise ValueError if it is invalid."""
    if found := re.search(r"[?#]", uri):  # urlsplit would cut off what follows, the run id included
        raise ValueError(f"{uri!r} has a {found[0]!r}; a place must have neither a query nor a fragment")
    scheme, host, path, _, _ = urlsplit(uri)
    if scheme == "s3":
        if not BUCKET.fullmatch(host):
            raise ValueError(f"{uri!r} has no valid bucket; it must be s3://bucket/prefix")
        return Bucket(host, path.strip("/"))
    if scheme == "file":
        if host not in ("", "localhost") or not path.startswith("/"):
            raise ValueError(f"{uri!r} is not a local file; it must be file:///path")
        return Directory(Path(unquote(path)))
    if scheme or not uri:
        raise ValueError(f"{uri!r} must be s3://bucket/prefix, file:///path or a path")
    return Directory(Path(uri))


@contextmanager
def os_errors(verb: str, place: object) -> Iterator[None]:
    """Convert an OSError of the body to a StoreError."""
    try:
        yield
    except OSError as error:
        kind = MissingError if error.errno == errno.ENOENT else StoreError
        kind = PlaceError if error.errno in WRONG_PLACE else kind
        raise kind(f"cannot {verb} {place}: {error.strerror or error}") from error


@dataclass(frozen=True)
class Directory:
    """A local or shared directory, created when it does not exist.

    Paths are relative, with slashes. Each method raises StoreError on a failure. The directory itself may be a link,
    but `list` and `delete` refuse linked directories in it: files outside of the store are not part of it.
    """

    path: Path

    def uri(self, path: str) -> str:
        """Return the full URI of a path, for messages."""
        return str(self.path / path)

    def local(self, path: str) -> Path | None:
        """Return the local file of a path; None in a bucket."""
        return self.path / path

    def list(self, prefix: str = "") -> dict[str, int]:
        """Return all paths with this prefix, and their sizes in bytes. A failed listing is never empty."""
        root = self.path / prefix.rpartition("/")[0]
        found: dict[str, int] = {}
        self._refuse_links("list", root)
        with os_errors("list", root):
            for place, directories, names in os.walk(root, onerror=_unless_missing):
                for name in (*directories, *names):
                    file = Path(place, name)
                    path = file.relative_to(self.path).as_posix()
                    if not path.startswith(prefix):
                        continue
                    if name in directories:
                        self._refuse_links("list", file)
                        continue
                    try:
                        found[path] = file.stat().st_size
                    except OSError as error:
                        self._refuse_links("list", file)
                        _unless_missing(error)  # removed meanwhile
        return found

    def read(self, path: str) -> bytes:
        with os_errors("read", self.uri(path)):
            return (self.path / path).read_bytes()

    def fetch(self, path: str, file: Path) -> None:
        """Copy the content to a new local file."""
        with os_errors("read", self.uri(path)):
            shutil.copyfile(self.path / path, file)

    def send(self, file: Path, path: str, kind: str = BYTES, notes: Mapping[str, str] = NO_NOTES) -> None:  # noqa: ARG002
        """Copy a local file of any size to the store, and replace what is there.

        `kind` is a media type, `notes` are ASCII strings of at most 2 KB together. S3 stores both as object metadata.
        """
        with file.open("rb") as source:
            self._write(path, source, replace=True)

    def put(self, path: str, body: bytes, kind: str = BYTES, notes: Mapping[str, str] = NO_NOTES) -> None:  # noqa: ARG002
        """Write a small file, and replace what is there."""
        self._write(path, io.BytesIO(body), replace=True)

    def put_if_absent(self, path: str, body: bytes) -> bool:
        """Write a file if it does not exist, atomically: only one of several concurrent calls returns True."""
        return self._write(path, io.BytesIO(body), replace=False)

    def probe(self, path: str) -> None:
        """Check that the path can be written: write and remove a file in the nearest existing directory.

        `os.access` does not detect a full disk, and returns True for root on read-only places.
        """
        target = self.path / path
        with os_errors("save", target):
            place = target.parent
            while not place.exists() and place != place.parent:
                place = place.parent
            with _part(place, target.name, io.BytesIO(b"\0")):
                pass

    def delete(self, paths: Iterable[str]) -> None:
        """Delete files. A missing file is not an error."""
        places = set()
        for path in paths:
            file = self.path / path
            self._refuse_links("delete", file.parent)
            with os_errors("delete", file):
                file.unlink(missing_ok=True)
            places.add(file.parent)
        for place in places - {self.path}:
            with suppress(OSError):  # not empty, or already removed
                place.rmdir()

    def _refuse_links(self, verb: str, place: Path) -> None:
        """Raise PlaceError if `place`, or a directory of the store above it, is a link."""
        for each in (place, *place.parents):
            if each == self.path:
                return
            if each.is_symlink():
                raise PlaceError(
                    f"cannot {verb} {each}: it is a link; it must be a directory. Replace it with a copy of its target"
                )

    def _write(self, path: str, source: IO[bytes], *, replace: bool) -> bool:
        """Write a temporary file, and rename it when it is on the disk."""
        target = self.path / path
        with os_errors("save", target):
            target.parent.mkdir(parents=True, exist_ok=True)
            with _part(target.parent, target.name, source) as part:
                if replace:
                    part.replace(target)
                else:
                    try:
                        os.link(part, target)  # O_EXCL would show the name before its content
                    except FileExistsError:
                        return False
            sync_directory(target.parent)
        return True


@contextmanager
def _part(place: Path, name: str, source: IO[bytes]) -> Iterator[Path]:
    """Write a temporary file that is on the disk, and remove it at the end. Raise OSError."""
    handle, made = tempfile.mkstemp(dir=place, prefix=f".{name}.", suffix=".part")
    part = Path(made)
    try:
        with os.fdopen(handle, "wb") as file:
            shutil.copyfileobj(source, file, PIECE_BYTES)
            file.flush()
            os.fsync(file.fileno())
        yield part
    finally:
        part.unlink(missing_ok=True)


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


@dataclass(frozen=True)
class Bucket:
    """s3://name/prefix, with the methods of `Directory`.

    Objects appear completely, and S3 checks the SHA-256 of each upload.
    Credentials, region and endpoint come from the environment, as boto3 reads it.
    """

    name: str
    prefix: str

    def uri(self, path: str) -> str:
        return "s3://" + "/".join(part for part in (self.name, self.prefix, path) if part)

    def local(self, path: str) -> Path | None:  # noqa: ARG002
        return None

    def list(self, prefix: str = "") -> dict[str, int]:
        begin = len(self._place("")["Key"])
        with self._errors("list", prefix):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self.name, Prefix=self._place(prefix)["Key"]
            )
            return {item["Key"][begin:]: item["Size"] for page in pages for item in page.get("Contents", [])}

    def read(self, path: str) -> bytes:
        return self._get(path, lambda body: bytes(body.read()))

    def fetch(self, path: str, file: Path) -> None:
        def copy(body: Any) -> None:
            with file.open("wb") as target:
                for piece in body.iter_chunks(PIECE_BYTES):
                    target.write(piece)

        self._get(path, copy)

    def send(self, file: Path, path: str, kind: str = BYTES, notes: Mapping[str, str] = NO_NOTES) -> None:
        from s3transfer.manager import TransferConfig, TransferManager

        config = TransferConfig(
            multipart_threshold=PART_BYTES + 1,
            multipart_chunksize=PART_BYTES,
            max_request_concurrency=PARTS_AT_ONCE,
        )
        # A failed upload is aborted: otherwise its invisible parts stay, and cost money.
        with self._errors("save", path), TransferManager(self._client, config) as manager:
            described = {"ContentType": kind, "Metadata": dict(notes), "ChecksumAlgorithm": "SHA256"}
            manager.upload(str(file), self.name, self._place(path)["Key"], described).result()

    def put(self, path: str, body: bytes, kind: str = BYTES, notes: Mapping[str, str] = NO_NOTES) -> None:
        with self._errors("save", path):
            self._put(path, body, ContentType=kind, Metadata=dict(notes))

    def put_if_absent(self, path: str, body: bytes) -> bool:
        from botocore.exceptions import ClientError

        with self._errors("save", path):
            try:
                self._put(path, body, IfNoneMatch="*")
            except ClientError as error:
                if _code(error) in EXISTS:
                    return False
                raise
        return True

    def probe(self, path: str) -> None:
        """Start a multipart upload for this path, and abort it, which creates no object.

        It needs the permissions to write (s3:PutObject, and the KMS key of the bucket) and s3:AbortMultipartUpload, as
        does a failed upload (docs.aws.amazon.com/AmazonS3/latest/userguide/mpuoverview.html, "permissions"). A HEAD
        proves no write permission. Deleting a small object would need s3:DeleteObject, which saving a model does not.
        """
        from botocore.exceptions import ClientError

        with self._errors("save", path):
            created = self._client.create_multipart_upload(**self._place(path), ChecksumAlgorithm="SHA256")
            try:
                self._client.abort_multipart_upload(**self._place(path), UploadId=created["UploadId"])
            except ClientError as error:
                if _code(error) != "NoSuchUpload":  # it is aborted, and the response was lost
                    raise

    def delete(self, paths: Iterable[str]) -> None:
        keys = [self._place(path)["Key"] for path in paths]
        for begin in range(0, len(keys), MAX_KEYS):
            some = [{"Key": key} for key in keys[begin : begin + MAX_KEYS]]
            with self._errors("delete", ""):
                reply = self._client.delete_objects(Bucket=self.name, Delete={"Objects": some, "Quiet": True})
            for each in reply.get("Errors", []):
                raise StoreError(f"cannot delete s3://{self.name}/{each['Key']}: {each['Code']}")

    def __getstate__(self) -> dict[str, str]:
        return {"name": self.name, "prefix": self.prefix}  # another process creates its own client

    @cached_property
    def _client(self) -> Any:
        import boto3
        from botocore.config import Config

        settings = Config(
            connect_timeout=CONNECT_SECONDS,
            read_timeout=READ_SECONDS,
            retries={"mode": "standard", "total_max_attempts": ATTEMPTS},
        )
        region = os.environ.get(contract.REGION) or os.environ.get("AWS_DEFAULT_REGION")
        try:
            # A new session: threads must not share boto3's default session while it creates a client.
            return boto3.session.Session().client("s3", region_name=region, config=settings)
        except ValueError as error:  # an invalid endpoint URL; botocore has no own error for it
            raise PlaceError(
                f"cannot reach {self.uri('')}: {_line(error)}. Set AWS_ENDPOINT_URL to a URL, or unset it"
            ) from error

    def _place(self, path: str) -> dict[str, str]:
        return {"Bucket": self.name, "Key": f"{self.prefix}/{path}" if self.prefix else path}

    def _put(self, path: str, body: bytes, **more: object) -> None:
        self._client.put_object(**self._place(path), Body=body, ChecksumAlgorithm="SHA256", **more)

    def _get(self, path: str, consume: Callable[[Any], T]) -> T:
        """Return what `consume` makes of an object's body. Retry a body that was cut off or stalled."""
        from botocore.exceptions import IncompleteReadError, ReadTimeoutError, ResponseStreamingError

        with self._errors("read", path):
            for left in reversed(range(BODY_ATTEMPTS)):
                body = self._client.get_object(**self._place(path))["Body"]
                try:
                    return consume(body)
                except (IncompleteReadError, ReadTimeoutError, ResponseStreamingError):
                    if not left:
                        raise
        raise AssertionError("the last attempt returned or raised")

    @contextmanager
    def _errors(self, verb: str, path: str) -> Iterator[None]:
        from botocore.exceptions import BotoCoreError, ClientError

        with os_errors(verb, self.uri(path)):  # of the local file
            try:
                yield
            except (BotoCoreError, ClientError) as error:
                code = _code(error) if isinstance(error, ClientError) else ""
                kind = PlaceError if code == NO_BUCKET else MissingError if code in MISSING else StoreError
                raise kind(f"cannot {verb} {self.uri(path)}: {_line(error)}") from error


def _code(error: Any) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())


Store = Directory | Bucket


class HashedFile(io.BufferedWriter):
    """A new local file for `torch.save`, which is hashed (SHA-256) while it is written.

    `hashlib` releases the interpreter's lock except for tiny pieces. `error` is the first error of a write, because
    torch.save raises an error of an unexpected position instead, which does not name the cause.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(io.FileIO(path, "w"))
        self.hash = sha256()
        self.error: OSError | None = None

    def write(self, piece: Any) -> int:
        try:
            size = super().write(piece)
        except OSError as error:
            self.error = self.error or error
            raise
        self.hash.update(piece)
        return size
