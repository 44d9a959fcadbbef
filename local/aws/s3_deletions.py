"""S3's DeleteObjects asks for each object whether it may be deleted, and names in its answer those that may not.

https://docs.aws.amazon.com/AmazonS3/latest/API/API_DeleteObjects.html. moto asks once, for the bucket.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from xml.sax.saxutils import escape

import xmltodict
from moto.s3.responses import S3Response

# Of one request: an answer says nothing of what is not asked for.
_END = re.compile(r"</DeleteResult>\s*$")


def install(may_delete: Callable[[Any, str, str], bool]) -> None:
    """`may_delete(response, bucket, key)` says whether the caller of moto's `response` may delete an object."""
    delete = S3Response._bucket_response_delete_keys

    def delete_keys(self: Any, bucket_name: str, authenticated: bool = True) -> Any:
        asked = xmltodict.parse(self.body, strip_whitespace=False)["Delete"]
        objects = asked.get("Object", [])
        objects = objects if isinstance(objects, list) else [objects]
        refused = [each for each in objects if not may_delete(self, bucket_name, each["Key"])]
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
