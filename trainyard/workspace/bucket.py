"""Archives in S3, by their digest: sent once, found right by S3 itself before they are there.

https://docs.aws.amazon.com/AmazonS3/latest/userguide/checking-object-integrity-upload.html: S3 refuses an object whose
SHA-256 is another one than the request says, keeps it, and tells it to who asks with `ChecksumMode`.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

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
Told = Callable[[int, int], None]


def parse_url(url: str) -> tuple[str, str]:
    """Bucket and key or prefix, without slashes around it. Raises WorkspaceError."""
    found = _URL.fullmatch(url)
    if not found:
        raise WorkspaceError(f"bucket: {url[:200]!r} should be s3://bucket/prefix")
    return found.group(1), (found.group(2) or "").strip("/")


def archive_url(where: str, namespace: str, digest: str) -> str:
    """Return where a namespace's archive of this digest lies below this bucket and prefix. Raises WorkspaceError."""
    bucket, prefix = parse_url(where)
    below = "/".join(part for part in (f"s3://{bucket}", prefix) if part)
    return f"{workspaces_prefix(below, namespace)}/{check_digest(digest)}.tar.zst"


class Bucket:
    """S3 with the credentials that botocore finds: a person's, or in a pod those of its service account (IRSA)."""

    def __init__(self, client: Any = None) -> None:
        self._client = client or _client()

    def send(self, archive: Archive, url: str, told: Told = lambda _done, _total: None) -> bool:
        """Puts the archive here; False if it is here already, undamaged. Raises WorkspaceError and NotThere."""
        bucket, key = parse_url(url)
        checksum = base64.b64encode(bytes.fromhex(check_digest(archive.digest))).decode()
        if self._has(bucket, key, archive.size, checksum):
            return False
        with archive.open() as file, self._sending(_Told(file, archive.size, told)) as body, _explained(url):
            self._client.put_object(
                Bucket=bucket,
                Key=key,
                Body=body,
                ContentLength=archive.size,
                ChecksumAlgorithm="SHA256",
                ChecksumSHA256=checksum,
            )
        told(archive.size, archive.size)
        return True

    def read(self, url: str, into: Path, size: int) -> None:
        """Download an object of `size` bytes to a file.

        An object of another size is refused before the download, because it could fill the worker's disk.

        Raises:
            NotThere: The object does not exist yet.
            WorkspaceError: S3 refuses the request, or the object has another size.
        """
        bucket, key = parse_url(url)
        with _explained(url):
            answer = self._client.get_object(Bucket=bucket, Key=key)
            if answer["ContentLength"] != size:
                raise WorkspaceError(
                    f"{url}: has {answer['ContentLength']} bytes, and spec.workspace.sizeBytes is {size}; it was "
                    "replaced. Run kubectl torchrun sync again."
                )
            with into.open("wb") as file:
                for piece in answer["Body"].iter_chunks(2**18):
                    file.write(piece)

    def put(self, url: str, data: bytes) -> None:
        """Write or overwrite an object. Raises WorkspaceError and NotThere."""
        bucket, key = parse_url(url)
        with _explained(url):
            self._client.put_object(Bucket=bucket, Key=key, Body=data)

    def get(self, url: str, limit: int) -> bytes:
        """Return the first `limit` bytes of the object at this place. Raises WorkspaceError and NotThere."""
        bucket, key = parse_url(url)
        with _explained(url):
            return bytes(self._client.get_object(Bucket=bucket, Key=key)["Body"].read(limit))

    def names(self, url: str) -> list[str]:
        """Return the names below this prefix, without it. Raises WorkspaceError and NotThere."""
        bucket, key = parse_url(url)
        with _explained(url):
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=f"{key}/")
            return [
                each["Key"].removeprefix(f"{key}/") for page in pages for each in page.get("Contents", ())
            ]

    @contextmanager
    def _sending(self, body: _Told) -> Iterator[_Told]:
        """Lets it tell only while it is sent: without TLS it is read once before each try, to be signed."""
        events, words = self._client.meta.events, (("before-sign", False), ("before-send", True))

        def turn(tells: bool) -> Callable[..., None]:
            def turned(**_: Any) -> None:
                body.tells = tells

            return turned

        handlers = [(f"{word}.s3.PutObject", turn(tells)) for word, tells in words]
        for name, handler in handlers:
            events.register(name, handler)
        try:
            yield body
        finally:
            for name, handler in handlers:
                events.unregister(name, handler)

    def _has(self, bucket: str, key: str, size: int, checksum: str) -> bool:
        try:
            with _explained(f"s3://{bucket}/{key}"):
                head = self._client.head_object(Bucket=bucket, Key=key, ChecksumMode="ENABLED")
        except NotThere:
            return False
        except _Refused:
            # Who may not list the bucket is told so of an object that is not there, too; the put says what holds.
            return False
        # One that was put by other means and has no such checksum is not believed.
        return bool(head["ContentLength"] == size and head.get("ChecksumSHA256") == checksum)


class _Refused(WorkspaceError):
    """The credentials don't allow it."""


class _Told:
    """A file that tells how far it was read, while it `tells`."""

    def __init__(self, file: IO[bytes], size: int, told: Told) -> None:
        self._file, self._size, self._told = file, size, told
        self.tells = False

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        if self.tells:
            self._told(self._file.tell(), self._size)
        return data

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()


def _client() -> Any:
    # boto3 is a layer above it that would take a tenth of an unchanged submit to import.
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
    """What S3 and its client say, as one line."""
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

    try:
        yield
    except ClientError as error:
        code = str(error.response.get("Error", {}).get("Code", ""))
        message = str(error.response.get("Error", {}).get("Message", ""))
        bucket = parse_url(url)[0]
        if code == "NoSuchBucket":
            raise WorkspaceError(
                f"bucket: {bucket} does not exist; name one that does in the queue's storage.workspace.bucket"
            ) from None
        if code in _REFUSED:
            raise _Refused(
                f"bucket: {url}: {error.operation_name} is refused ({code}); the credentials need s3:GetObject, "
                "s3:PutObject and s3:ListBucket there"
            ) from None
        if code in _ABSENT:
            raise NotThere(f"{url} is not there yet") from None
        if code in ("SlowDown", "InternalError", "ServiceUnavailable", "500", "503"):
            raise NotThere(f"bucket: {url}: {code}: {message}") from None
        raise WorkspaceError(f"bucket: {url}: {error.operation_name}: {code}: {message}") from None
    except NoCredentialsError:
        raise WorkspaceError(
            f"bucket: {url}: no AWS credentials are found; log in (aws sso login), or set AWS_PROFILE"
        ) from None
    except BotoCoreError as error:
        raise NotThere(f"bucket: {url}: {error}") from None
