"""An S3 bucket, or a part of one, as a store: objects appear whole, S3 compares the SHA-256 of what arrived."""

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
from trainer.stores.protocol import BYTES, NO_NOTES, PIECE_BYTES, StoreError, Why, of_system

T = TypeVar("T")
CONNECT_SECONDS, READ_SECONDS, ATTEMPTS = 10, 60, 5
# boto3 asks ATTEMPTS times by itself, but never for a body that breaks off; a call that took this long already is not
# begun again, or a silent S3 would hold a save for ATTEMPTS times as long.
TRIES, LATEST_TRY_SECONDS = 2, 120.0
CONFLICTS, CONFLICT_SECONDS = 4, 0.5
# Above this a file is sent in parts, each with its own checksum, this many at a time.
PART_BYTES, PARTS_AT_ONCE = 64 * 2**20, 4
# docs.aws.amazon.com/AmazonS3/latest/userguide/qfacts.html: parts of one upload, keys of one DeleteObjects
MOST_PARTS, MOST_KEYS = 10_000, 1_000

# docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html; a HEAD's errors have their status alone
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
# Another request for the key was under way; S3 says that one should try again (same page).
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
        """Begin an upload in parts under this name, and give it up: no object comes of it.

        It needs what writing needs (s3:PutObject, and the bucket's key in KMS), and s3:AbortMultipartUpload, as does an
        upload that fails (docs.aws.amazon.com/AmazonS3/latest/userguide/mpuoverview.html, "permissions"). A HEAD proves
        nothing of writing; to remove a small object takes s3:DeleteObject, which who only writes models has not.
        """

        from botocore.exceptions import ClientError

        def attempt() -> None:
            place = {"Bucket": self.name, "Key": self._key(path)}
            begun = self._client.create_multipart_upload(**place, ChecksumAlgorithm="SHA256")
            try:
                self._client.abort_multipart_upload(**place, UploadId=begun["UploadId"])
            except ClientError as error:
                if _code(error) != "NoSuchUpload":  # it was done, and the answer was lost
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
        return self.name, self.prefix  # without the client: another process makes its own

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
            # A session of its own: boto3's shared one must not be used by several threads while it makes a client.
            return boto3.session.Session().client("s3", region_name=region, config=settings)
        except ValueError as error:  # of an endpoint that is no URL; botocore has no error of its own for it
            raise StoreError(
                f"cannot reach {self.uri('')}: {_line(error)}; expected a URL in AWS_ENDPOINT_URL, or none",
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
        # What is kept beside an object is told at the beginning, or never.
        begun = self._client.create_multipart_upload(**place, **beside, ChecksumAlgorithm="SHA256")
        upload = {**place, "UploadId": begun["UploadId"]}
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
            # Else the parts are kept, unseen and paid for. Where even this fails, a lifecycle rule has to do it.
            with suppress(Exception):
                self._client.abort_multipart_upload(**upload)
            raise

    def _do(self, verb: str, path: str, work: Callable[[], T]) -> T:
        """Do it; a body that breaks off is read once more, everything else boto3 has tried again already."""
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
            except OSError as error:  # of the file on this machine
                raise of_system(verb, self.uri(path), error) from error
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
