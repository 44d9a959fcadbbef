"""Archives in S3, by digest (`Bucket`). Each is sent once, and verified by S3.

https://docs.aws.amazon.com/AmazonS3/latest/userguide/checking-object-integrity-upload.html: S3 refuses an object with
another SHA-256 than that of the request, stores the SHA-256, and returns it with `ChecksumMode`.
"""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

from trainyard.operator.names import workspaces_prefix
from trainyard.workspace.archive import Archive, check_digest
from trainyard.workspace.errors import NotThere, WorkspaceError

_URL: Final = re.compile(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/(.*))?")
_CONNECT_SECONDS: Final = 5
_READ_SECONDS: Final = 60
_ATTEMPTS: Final = 5
_REFUSED: Final = frozenset(
    {"403", "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken"}
)
_ABSENT: Final = frozenset({"404", "NoSuchKey", "NotFound"})
_TEMPORARY: Final = frozenset({"SlowDown", "InternalError", "ServiceUnavailable", "500", "503"})
Progress = Callable[[int, int], None]


def parse_url(url: str) -> tuple[str, str]:
    """Return the bucket, and the key or prefix without outer slashes. Raise WorkspaceError."""
    found = _URL.fullmatch(url)
    if not found:
        raise WorkspaceError(f"bucket: {url[:200]!r} must be s3://bucket/prefix")
    return found.group(1), (found.group(2) or "").strip("/")


def archive_url(where: str, namespace: str, digest: str) -> str:
    """Return the URL of a namespace's archive below this bucket and prefix. Raise WorkspaceError."""
    bucket, prefix = parse_url(where)
    below = "/".join(part for part in (f"s3://{bucket}", prefix) if part)
    return f"{workspaces_prefix(below, namespace)}/{check_digest(digest)}.tar.zst"


class Bucket:
    """S3 with the credentials that botocore finds: the user's, or in a pod those of its service account (IRSA).

    All methods raise WorkspaceError if S3 refuses the request, and NotThere if a retry may help.
    """

    def __init__(self, client: Any = None) -> None:
        self._client = client or _client()

    def send(self, archive: Archive, url: str, progress: Progress = lambda _done, _total: None) -> bool:
        """Upload the archive. Return False if S3 has it already."""
        digest = bytes.fromhex(check_digest(archive.digest))
        checksum = {"ChecksumAlgorithm": "SHA256", "ChecksumSHA256": base64.b64encode(digest).decode()}
        if self._has(url, archive.size, checksum["ChecksumSHA256"]):
            return False
        with archive.open() as file:
            body = _ProgressReader(file, archive.size, progress)
            self._call("put_object", url, Body=body, ContentLength=archive.size, **checksum)
        progress(archive.size, archive.size)
        return True

    def read(self, url: str, into: Path, size: int) -> None:
        """Download an object of `size` bytes to a file.

        An object of another size is refused before the download, because it could fill the worker's disk.
        """
        answer = self._call("get_object", url)
        if answer["ContentLength"] != size:
            raise WorkspaceError(
                f"{url}: has {answer['ContentLength']} bytes, and spec.workspace.sizeBytes is {size}; it was "
                "replaced. Run kubectl torchrun sync again."
            )
        with _explained(url), into.open("wb") as file:
            for piece in answer["Body"].iter_chunks(2**18):
                file.write(piece)

    def put(self, url: str, data: bytes) -> None:
        """Write or overwrite an object."""
        self._call("put_object", url, Body=data)

    def get(self, url: str, limit: int) -> bytes:
        """Return the first `limit` bytes of the object at this place."""
        answer = self._call("get_object", url)
        with _explained(url):
            return bytes(answer["Body"].read(limit))

    def names(self, url: str) -> list[str]:
        """Return the names below this prefix, without it."""
        bucket, key = parse_url(url)
        with _explained(url):
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=f"{key}/")
            return [
                item["Key"].removeprefix(f"{key}/") for page in pages for item in page.get("Contents", ())
            ]

    def _has(self, url: str, size: int, checksum: str) -> bool:
        try:
            head = self._call("head_object", url, ChecksumMode="ENABLED")
        except (NotThere, _Refused):
            # Without s3:ListBucket, S3 refuses the request for a missing object, too. The upload finds out.
            return False
        # An object from another tool has no checksum.
        return bool(head["ContentLength"] == size and head.get("ChecksumSHA256") == checksum)

    def _call(self, operation: str, url: str, **parameters: Any) -> Any:
        bucket, key = parse_url(url)
        with _explained(url):
            return getattr(self._client, operation)(Bucket=bucket, Key=key, **parameters)


class _Refused(WorkspaceError):
    """The credentials do not allow the request."""


class _ProgressReader(io.BufferedReader):
    """A file that reports its position. Without TLS, botocore reads it once more before, to sign it."""

    def __init__(self, file: BinaryIO, size: int, progress: Progress) -> None:
        super().__init__(cast("io.RawIOBase", file))
        self._size, self._progress = size, progress

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        self._progress(self.seek(0, io.SEEK_CUR), self._size)
        return data


def _client() -> Any:
    # Not boto3, whose import takes a tenth of an unchanged submit.
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError
    from botocore.session import Session

    config = Config(
        connect_timeout=_CONNECT_SECONDS,
        read_timeout=_READ_SECONDS,
        retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
    )
    try:
        return Session().create_client("s3", config=config)
    except (BotoCoreError, ValueError) as error:
        raise WorkspaceError(f"bucket: no client for S3: {error}") from None


@contextmanager
def _explained(url: str) -> Iterator[None]:
    """Convert errors of S3 and its client to one line."""
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

    try:
        yield
    except ClientError as error:
        problem, bucket = error.response.get("Error", {}), parse_url(url)[0]
        code, message = problem.get("Code", ""), problem.get("Message", "")
        if code == "NoSuchBucket":
            raise WorkspaceError(
                f"bucket: {bucket} does not exist; name an existing one in the queue's storage.workspace.bucket"
            ) from None
        if code in _REFUSED:
            raise _Refused(
                f"bucket: {url}: {error.operation_name} is refused ({code}); the credentials need s3:GetObject, "
                "s3:PutObject and s3:ListBucket there"
            ) from None
        if code in _ABSENT:
            raise NotThere(f"{url} does not exist yet") from None
        kind = NotThere if code in _TEMPORARY else WorkspaceError
        raise kind(f"bucket: {url}: {error.operation_name}: {code}: {message}") from None
    except NoCredentialsError:
        raise WorkspaceError(
            f"bucket: {url}: no AWS credentials were found; log in (aws sso login), or set AWS_PROFILE"
        ) from None
    except BotoCoreError as error:
        raise NotThere(f"bucket: {url}: {error}") from None
