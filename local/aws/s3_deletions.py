"""Deletions of S3 objects, in the cases in which moto differs from S3.

- DeleteObjects checks for each object whether the caller may delete it, and its answer names the refused ones. moto
  checks once, for the bucket (https://docs.aws.amazon.com/AmazonS3/latest/API/API_DeleteObjects.html).
- If versioning is suspended, the existing versions stay, and each is deleted only by its id. moto deletes all of them,
  and fails at a delete marker
  (https://docs.aws.amazon.com/AmazonS3/latest/userguide/DeletingObjectsfromVersioningSuspendedBuckets.html).
- A listing of versions continues after the last version of its page, even if that has been deleted. Clients that empty
  a bucket of more than one page do this. moto does not find the place then, and answers that nothing is left
  (https://docs.aws.amazon.com/AmazonS3/latest/API/API_ListObjectVersions.html).
"""

from __future__ import annotations

import re
from typing import Any
from xml.sax.saxutils import escape

import xmltodict
from moto.core.utils import unix_time_millis
from moto.s3.models import FakeDeleteMarker, S3Backend
from moto.s3.responses import S3Response

from local.aws import authorise

# The position of the errors for refused objects in moto's answer about the others.
_END = re.compile(r"</DeleteResult>\s*$")


def install() -> None:
    """Wrap the deletions and the listing of versions."""
    _check_deletions()
    _keep_versions()
    _list_behind_what_is_gone()


def _keep_versions() -> None:
    delete = S3Backend.delete_object

    def delete_object(
        self: Any, bucket_name: str, key_name: str, version_id: str | None = None, bypass: bool = False
    ) -> Any:
        bucket = self.get_bucket(bucket_name)
        if version_id is None or bucket.versioning_status != "Suspended":
            return delete(self, bucket_name, key_name, version_id=version_id, bypass=bypass)
        every = bucket.keys.getlist(key_name, [])
        if rest := [each for each in every if str(each.version_id) != version_id]:
            bucket.keys.setlist(key_name, rest)
        elif every:
            bucket.keys.pop(key_name)
        return True, {"version-id": version_id}

    S3Backend.delete_object = delete_object
    FakeDeleteMarker.dispose = lambda _self: None


def _list_behind_what_is_gone() -> None:
    listing = S3Backend.list_object_versions

    def list_object_versions(
        self: Any,
        bucket_name: str,
        delimiter: str | None = None,
        key_marker: str | None = None,
        max_keys: int | None = 1000,
        prefix: str = "",
        version_id_marker: str | None = None,
    ) -> Any:
        keys = self.get_bucket(bucket_name).keys
        if key_marker and version_id_marker:
            there = keys.getlist(key_marker, [])
            if version_id_marker not in [str(each.version_id) for each in there]:
                # Its position among the versions of its key is unknown, so the existing ones are listed (again).
                key_marker = max((key for key in keys if key < key_marker), default=None)
                version_id_marker = _listed_last(keys.getlist(key_marker)) if key_marker else None
        return listing(self, bucket_name, delimiter, key_marker, max_keys, prefix, version_id_marker)

    S3Backend.list_object_versions = list_object_versions


def _listed_last(versions: list[Any]) -> str:
    """Return the version of a key that moto lists last: the oldest, and the last of those with equal times."""
    return str(sorted(versions, key=lambda each: -unix_time_millis(each.last_modified))[-1].version_id)


def _may_delete(response: Any, bucket_name: str, item: dict[str, Any]) -> bool:
    """Return whether the caller of moto's `response` may delete an object, or a version of it."""
    action = "DeleteObjectVersion" if item.get("VersionId") else "DeleteObject"
    try:
        authorise.check_s3(response, action, bucket_name, item["Key"])
    except authorise.Refused:
        return False
    return True


def _check_deletions() -> None:
    delete = S3Response._bucket_response_delete_keys

    def delete_keys(self: Any, bucket_name: str, authenticated: bool = True) -> Any:
        asked = xmltodict.parse(self.body, strip_whitespace=False)["Delete"]
        objects = asked.get("Object", [])
        objects = objects if isinstance(objects, list) else [objects]
        refused = [each for each in objects if not _may_delete(self, bucket_name, each)]
        if not authenticated or not refused:
            return delete(self, bucket_name, authenticated)
        allowed = [each for each in objects if each not in refused]
        if not allowed:
            return delete(self, bucket_name, False)
        self.body = xmltodict.unparse({"Delete": {**asked, "Object": allowed}})
        status, headers, body = delete(self, bucket_name, True)
        text = body.decode() if isinstance(body, bytes) else body
        errors = "".join(
            f"<Error><Key>{escape(each['Key'])}</Key><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
            for each in refused
        )
        return status, headers, _END.sub(lambda _: f"{errors}</DeleteResult>", text)

    S3Response._bucket_response_delete_keys = delete_keys
