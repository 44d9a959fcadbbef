"""An S3 bucket with a prefix as a store. Objects appear completely, and S3 checks the SHA-256 of each upload."""

from __future__ import annotations

import base64
import hashlib
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

from trainer import contract
from trainer.stores.protocol import BYTES, NO_NOTES, PIECE_BYTES, StoreError, Why, from_os_error

T = TypeVar("T")
CONNECT_SECONDS, READ_SECONDS, ATTEMPTS = 10, 60, 5
# boto3 retries ATTEMPTS times, but not if the body of a response is cut off. A call that already took this long is not
# repeated, because an S3 that does not respond would block a save for ATTEMPTS times as long.
TRIES, LATEST_TRY_SECONDS = 2, 120.0
CONFLICTS, CONFLICT_SECONDS = 4, 0.5
# A larger file is sent in parts, each with its own checksum, so many at a time.
PART_BYTES, PARTS_AT_ONCE = 64 * 2**20, 4
# docs.aws.amazon.com/AmazonS3/latest/userguide/qfacts.html: parts of one upload, keys of one DeleteObjects
MOST_PARTS, MOST_KEYS = 10_000, 1_000

# docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html; errors of HEAD only have a status
MISSING = frozenset({"NoSuchBucket", "NoSuchKey", "NoSuchUpload", "404"})
REFUSED = frozenset(
    {
        "AccessDenied",
        "AllAccessDisabled",
        "ExpiredToken",
        "InvalidAccessKeyId",
        "InvalidToken",
        "SignatureDoesNotMatch",
        "TokenRefreshRequired",
        "401",
        "403",
    }
)
# The key exists: docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes.html
EXISTS = frozenset({"PreconditionFailed", "412"})
# Another request for the key was in progress; the same page says to retry.
CONFLICT = "ConditionalRequestConflict"


@dataclass(frozen=True)
class Bucket:
    """s3://name/prefix. Credentials, region and endpoint come from the environment, as boto3 reads it."""

    name: str
    prefix: str

    def uri(self, path: str) -> str:
        return "s3://" + "/".join(part for part in (self.name, self.prefix, path) if part)

    def local(self, path: str) -> Path | None:  # noqa: ARG002
        return None

    def list(self, prefix: str = "") -> dict[str, int]:
        begin = len(self._key(""))

        def pages() -> dict[str, int]:
            paginator = self._client.get_paginator("list_objects_v2")
            return {
                item["Key"][begin:]: item["Size"]
                for page in paginator.paginate(Bucket=self.name, Prefix=self._key(prefix))
                for item in page.get("Contents", [])
            }

        return self._do("list", prefix, pages)

    def read(self, path: str) -> bytes:
        return bytes(self._do("read", path, lambda: self._get(path).read()))

    def fetch(self, path: str, file: Path) -> None:
        def copy() -> None:
            with file.open("wb") as target:
                for piece in self._get(path).iter_chunks(PIECE_BYTES):
                    target.write(piece)

        self._do("read", path, copy)

    def send(self, file: Path, path: str, kind: str = BYTES, notes: Mapping[str, str] = NO_NOTES) -> None:
        def copy() -> None:
            size = file.stat().st_size
            if size <= PART_BYTES:
                self._put(path, file.read_bytes(), **_beside(kind, notes))
            else:
                self._send_parts(file, size, path, _beside(kind, notes))

        self._do("save", path, copy)

    def put(self, path: str, body: bytes, kind: str = BYTES, notes: Mapping[str, str] = NO_NOTES) -> None:
        self._do("save", path, lambda: self._put(path, body, **_beside(kind, notes)))

    def put_if_absent(self, path: str, body: bytes) -> bool:
        from botocore.exceptions import ClientError

        def attempt() -> bool:
            for left in reversed(range(CONFLICTS)):
                try:
                    self._put(path, body, IfNoneMatch="*")
                except ClientError as error:
                    if _code(error) in EXISTS:
                        return False
                    if _code(error) != CONFLICT or not left:
                        raise
                    time.sleep(CONFLICT_SECONDS)
                else:
                    break
            return True

        return self._do("save", path, attempt)

    def probe(self, path: str) -> None:
        """Start a multipart upload for this path, and abort it, which creates no object.

        It needs the permissions to write (s3:PutObject, and the KMS key of the bucket) and s3:AbortMultipartUpload, as
        does a failed upload (docs.aws.amazon.com/AmazonS3/latest/userguide/mpuoverview.html, "permissions"). A HEAD
        proves no write permission. Deleting a small object would need s3:DeleteObject, which saving a model does not.
        """
        from botocore.exceptions import ClientError

        def attempt() -> None:
            place = {"Bucket": self.name, "Key": self._key(path)}
            created = self._client.create_multipart_upload(**place, ChecksumAlgorithm="SHA256")
            try:
                self._client.abort_multipart_upload(**place, UploadId=created["UploadId"])
            except ClientError as error:
                if _code(error) != "NoSuchUpload":  # it is aborted, and the response was lost
                    raise

        self._do("save", path, attempt)

    def delete(self, paths: Iterable[str]) -> None:
        keys = [self._key(path) for path in paths]
        for begin in range(0, len(keys), MOST_KEYS):
            some = [{"Key": key} for key in keys[begin : begin + MOST_KEYS]]
            request = {"Objects": some, "Quiet": True}
            for each in self._do("delete", "", partial(self._delete, request)).get("Errors", []):
                message = f"cannot delete s3://{self.name}/{each['Key']}: {each['Code']}"
                raise StoreError(message, _why(each["Code"]))

    def __getstate__(self) -> tuple[str, str]:
        return self.name, self.prefix  # without the client: another process creates its own

    def __setstate__(self, state: tuple[str, str]) -> None:
        for name, value in zip(("name", "prefix"), state, strict=True):
            object.__setattr__(self, name, value)

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
            raise StoreError(
                f"cannot reach {self.uri('')}: {_line(error)}. Set AWS_ENDPOINT_URL to a URL, or unset it",
                "failed",
            ) from error

    def _key(self, path: str) -> str:
        return f"{self.prefix}/{path}" if self.prefix else path

    def _get(self, path: str) -> Any:
        return self._client.get_object(Bucket=self.name, Key=self._key(path))["Body"]

    def _put(self, path: str, body: bytes, **more: object) -> None:
        self._client.put_object(
            Bucket=self.name, Key=self._key(path), Body=body, ChecksumSHA256=_checksum(body), **more
        )

    def _delete(self, request: dict[str, object]) -> Any:
        return self._client.delete_objects(Bucket=self.name, Delete=request)

    def _send_parts(self, file: Path, size: int, path: str, beside: Mapping[str, object]) -> None:
        place = {"Bucket": self.name, "Key": self._key(path)}
        # Object metadata can only be set at the start.
        created = self._client.create_multipart_upload(**place, **beside, ChecksumAlgorithm="SHA256")
        upload = {**place, "UploadId": created["UploadId"]}
        step = max(PART_BYTES, math.ceil(size / MOST_PARTS))

        def part(number: int) -> dict[str, object]:
            with file.open("rb") as source:
                source.seek((number - 1) * step)
                body = source.read(step)
            checksum = _checksum(body)
            reply = self._client.upload_part(**upload, PartNumber=number, Body=body, ChecksumSHA256=checksum)
            return {"PartNumber": number, "ETag": reply["ETag"], "ChecksumSHA256": checksum}

        try:
            with ThreadPoolExecutor(PARTS_AT_ONCE) as pool:
                parts = [pool.submit(part, number) for number in range(1, math.ceil(size / step) + 1)]
                try:
                    done = [each.result() for each in parts]
                except BaseException:
                    pool.shutdown(cancel_futures=True)
                    raise
            self._client.complete_multipart_upload(**upload, MultipartUpload={"Parts": done})
        except BaseException:
            # Otherwise the invisible parts stay, and cost money. If this fails too, a lifecycle rule removes them.
            with suppress(Exception):
                self._client.abort_multipart_upload(**upload)
            raise

    def _do(self, verb: str, path: str, work: Callable[[], T]) -> T:
        """Do `work` and convert errors. Retry a response that was cut off; boto3 has retried the other errors."""
        from botocore.exceptions import (
            BotoCoreError,
            ClientError,
            IncompleteReadError,
            NoCredentialsError,
            ReadTimeoutError,
            ResponseStreamingError,
        )

        latest = time.monotonic() + LATEST_TRY_SECONDS
        for attempt in range(1, TRIES + 1):
            try:
                return work()
            except (IncompleteReadError, ReadTimeoutError, ResponseStreamingError) as error:
                if attempt == TRIES or time.monotonic() >= latest:
                    raise StoreError(f"cannot {verb} {self.uri(path)}: {_line(error)}", "failed") from error
            except ClientError as error:
                raise StoreError(
                    f"cannot {verb} {self.uri(path)}: {_line(error)}", _why(_code(error))
                ) from error
            except NoCredentialsError as error:
                raise StoreError(f"cannot {verb} {self.uri(path)}: {_line(error)}", "refused") from error
            except BotoCoreError as error:
                raise StoreError(f"cannot {verb} {self.uri(path)}: {_line(error)}", "failed") from error
            except OSError as error:  # of the local file
                raise from_os_error(verb, self.uri(path), error) from error
        raise AssertionError("the last attempt returned or raised")


def _beside(kind: str, notes: Mapping[str, str]) -> dict[str, object]:
    return {"ContentType": kind, "Metadata": dict(notes)}


def _code(error: Any) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _why(code: str) -> Why:
    return "missing" if code in MISSING else "refused" if code in REFUSED else "failed"


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())


def _checksum(body: bytes) -> str:
    return base64.b64encode(hashlib.sha256(body).digest()).decode()
