"""S3 buckets and their objects (the resources that pulumi-aws 7 calls Bucket and BucketObject)."""

from __future__ import annotations

import base64
from typing import Any, ClassVar

from local.plugins.aws.cloud import Cloud, dns_suffix_of, error_code
from local.plugins.aws.resource import Handler, Props, random_name, serves, tag_list, tag_map


@serves
class Bucket(Handler):
    """A bucket. Its id is its name. Its settings are separate resources (`s3_settings.py`)."""

    token = "aws:s3/bucket:Bucket"
    accepts = frozenset({"bucket", "bucketPrefix", "forceDestroy", "objectLockEnabled", "tags"})
    replaces = frozenset({"bucket", "bucketPrefix", "objectLockEnabled"})
    write_only = frozenset({"forceDestroy", "bucketPrefix"})
    defaults: ClassVar[Props] = {"forceDestroy": False}
    auto_name = "bucket"
    auto_name_limit = 63
    auto_name_lower = True
    tagged = True

    def create(self, cloud: Cloud, inputs: Props) -> str:
        name = str(inputs.get("bucket") or random_name(str(inputs["bucketPrefix"]).rstrip("-"), 63))
        arguments: Props = {"Bucket": name}
        if cloud.region != "us-east-1":
            # The API refuses us-east-1 as a constraint, and requires one in all other regions.
            arguments["CreateBucketConfiguration"] = {"LocationConstraint": cloud.region}
        if inputs.get("objectLockEnabled"):
            arguments["ObjectLockEnabledForBucket"] = True
        cloud.client("s3").create_bucket(**arguments)
        return name

    def finish(self, cloud: Cloud, rid: str, inputs: Props) -> None:
        if inputs.get("tags"):
            self._tag(cloud, rid, inputs)

    def _tag(self, cloud: Cloud, rid: str, inputs: Props) -> None:
        if inputs.get("tags"):
            cloud.client("s3").put_bucket_tagging(Bucket=rid, Tagging={"TagSet": tag_list(inputs["tags"])})
        else:
            cloud.client("s3").delete_bucket_tagging(Bucket=rid)

    def read(self, cloud: Cloud, rid: str, inputs: Props) -> Props | None:
        s3 = cloud.client("s3")
        s3.head_bucket(Bucket=rid)
        try:
            tags = tag_map(s3.get_bucket_tagging(Bucket=rid)["TagSet"])
        except Exception as error:
            if error_code(error) != "NoSuchTagSet":
                raise
            tags = {}
        suffix = dns_suffix_of(cloud.region)
        return {
            "arn": f"arn:{cloud.partition}:s3:::{rid}",
            "bucket": rid,
            "bucketDomainName": f"{rid}.s3.{suffix}",
            "bucketRegionalDomainName": f"{rid}.s3.{cloud.region}.{suffix}",
            "bucketRegion": cloud.region,
            "tags": tags,
        }

    def update(self, cloud: Cloud, rid: str, old: Props, new: Props, changed: frozenset[str]) -> None:
        if "tags" in changed:
            self._tag(cloud, rid, new)

    def delete(self, cloud: Cloud, rid: str, state: Props) -> None:
        if state.get("forceDestroy"):
            empty(cloud, rid)
        cloud.client("s3").delete_bucket(Bucket=rid)


def empty(cloud: Cloud, bucket: str) -> None:
    """Delete every object, version and delete marker, a page (1000) at a time, and abort unfinished uploads."""
    s3 = cloud.client("s3")
    for page in s3.get_paginator("list_object_versions").paginate(Bucket=bucket):
        found = [*page.get("Versions", []), *page.get("DeleteMarkers", [])]
        if found:
            objects = [{"Key": item["Key"], "VersionId": item["VersionId"]} for item in found]
            answer = s3.delete_objects(Bucket=bucket, Delete={"Objects": objects, "Quiet": True})
            if answer.get("Errors"):
                first = answer["Errors"][0]
                raise RuntimeError(f"object {first['Key']} of bucket {bucket}: {first['Message']}")
    for upload in s3.list_multipart_uploads(Bucket=bucket).get("Uploads", []):
        s3.abort_multipart_upload(Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"])


class _Object(Handler):
    """An object with its content. Its id is `<bucket>/<key>`. A new content is uploaded in place."""

    accepts: ClassVar[frozenset[str]] = frozenset(
        {
            "bucket",
            "key",
            "content",
            "contentBase64",
            "contentType",
            "contentEncoding",
            "cacheControl",
            "forceDestroy",
            "metadata",
            "serverSideEncryption",
            "source",
            "sourceHash",
            "storageClass",
            "tags",
        }
    )
    required = frozenset({"bucket"})
    replaces = frozenset({"bucket", "key"})
    write_only = frozenset({"content", "contentBase64", "source", "sourceHash", "forceDestroy"})
    auto_name = "key"
    auto_name_limit = 1024
    tagged = True

    def _put(self, cloud: Cloud, inputs: Props) -> None:
        if inputs.get("source") is not None:
            body = asset_bytes(inputs["source"])
        elif inputs.get("contentBase64") is not None:
            body = base64.b64decode(inputs["contentBase64"])
        else:
            body = str(inputs.get("content", "")).encode()
        fields = {
            "ContentType": inputs.get("contentType"),
            "ContentEncoding": inputs.get("contentEncoding"),
            "CacheControl": inputs.get("cacheControl"),
            "Metadata": inputs.get("metadata"),
            "ServerSideEncryption": inputs.get("serverSideEncryption"),
            "StorageClass": inputs.get("storageClass"),
        }
        given = {key: value for key, value in fields.items() if value}
        s3 = cloud.client("s3")
        s3.put_object(Bucket=inputs["bucket"], Key=inputs["key"], Body=body, **given)
        s3.put_object_tagging(
            Bucket=inputs["bucket"], Key=inputs["key"], Tagging={"TagSet": tag_list(inputs.get("tags"))}
        )

    def create(self, cloud: Cloud, inputs: Props) -> str:
        self._put(cloud, inputs)
        return f"{inputs['bucket']}/{inputs['key']}"

    def read(self, cloud: Cloud, rid: str, inputs: Props) -> Props | None:
        bucket, _, key = rid.partition("/")
        s3 = cloud.client("s3")
        head = s3.head_object(Bucket=bucket, Key=key)
        return {
            "arn": f"arn:{cloud.partition}:s3:::{rid}",
            "bucket": bucket,
            "key": key,
            "etag": str(head["ETag"]).strip('"'),
            "contentType": head.get("ContentType", ""),
            "versionId": head.get("VersionId", ""),
            "metadata": head.get("Metadata", {}),
            "storageClass": head.get("StorageClass", "STANDARD"),
            "tags": tag_map(s3.get_object_tagging(Bucket=bucket, Key=key)["TagSet"]),
        }

    def update(self, cloud: Cloud, rid: str, old: Props, new: Props, changed: frozenset[str]) -> None:
        self._put(cloud, new)

    def delete(self, cloud: Cloud, rid: str, state: Props) -> None:
        bucket, _, key = rid.partition("/")
        cloud.client("s3").delete_object(Bucket=bucket, Key=key)


def asset_bytes(asset: Any) -> bytes:
    """Return the bytes of a Pulumi asset in wire form: with a text, or with a local path."""
    if isinstance(asset, dict) and asset.get("text"):
        return str(asset["text"]).encode()
    if isinstance(asset, dict) and asset.get("path"):
        with open(asset["path"], "rb") as stream:
            return stream.read()
    kind = type(asset).__name__
    raise ValueError(f"source: a file asset or a string asset is expected, got {kind}")


@serves
class BucketObject(_Object):
    """An object of a bucket."""

    token = "aws:s3/bucketObject:BucketObject"


@serves
class BucketObjectv2(_Object):
    """The same resource under the name of pulumi-aws 6."""

    token = "aws:s3/bucketObjectv2:BucketObjectv2"
