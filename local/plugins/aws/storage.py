"""S3 buckets and their settings, which are resources of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from local.plugins.aws.cloud import Cloud, dns_suffix_of, error_code
from local.plugins.aws.resource import Props, Resource, plain_tags, shape_at, tag_list, to_api
from local.plugins.sdk import split_names

# ------------------------------------------------------------------------------------------------- buckets


def _place(cloud: Cloud, _inputs: Props) -> Props:
    # The API refuses us-east-1 as a constraint, and requires one in all other regions.
    if cloud.region == "us-east-1":
        return {}
    return {"CreateBucketConfiguration": {"LocationConstraint": cloud.region}}


def _live_bucket(cloud: Cloud, rid: str, _inputs: Props, _found: Any) -> Props:
    try:
        tags = plain_tags(cloud.client("s3").get_bucket_tagging(Bucket=rid)["TagSet"])
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


def _empty(cloud: Cloud, bucket: str, state: Props) -> None:
    """Delete every object, version and delete marker, a page (1000) at a time, and abort unfinished uploads."""
    if not state.get("forceDestroy"):
        return
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


class _Bucket(Resource):
    """A bucket. Its id is its name. Tags are written as a whole."""

    def finish(self, cloud: Cloud, rid: str, inputs: Props) -> None:
        if inputs.get("tags"):
            self.retag(cloud, rid, {}, inputs)

    def retag(self, cloud: Cloud, rid: str, old: Props, new: Props) -> None:
        if new.get("tags"):
            cloud.client("s3").put_bucket_tagging(Bucket=rid, Tagging={"TagSet": tag_list(new["tags"])})
        else:
            cloud.client("s3").delete_bucket_tagging(Bucket=rid)


# ------------------------------------------------------------------------------------------------- settings


@dataclass(frozen=True, kw_only=True)
class _Setting(Resource):
    """A setting of a bucket. Its id is the bucket's name; an update writes the whole setting."""

    service: str = "s3"
    id: str = "{bucket}"
    key: str = "Bucket"
    put: bool = True
    live: Callable[[Cloud, str, Props, Any], Props] = lambda _cloud, rid, _inputs, _found: {"bucket": rid}


class _Versioning(_Setting):
    """The versioning of a bucket. Deletion suspends it: a bucket never returns to unversioned."""

    def create(self, cloud: Cloud, inputs: Props) -> str:
        unversioned = inputs["versioningConfiguration"]["status"] == "Disabled"
        return str(inputs["bucket"]) if unversioned else super().create(cloud, inputs)

    def read(self, cloud: Cloud, rid: str, inputs: Props) -> Props | None:
        status = cloud.client("s3").get_bucket_versioning(Bucket=rid).get("Status", "Disabled")
        return {"bucket": rid, "versioningConfiguration": {"status": status}}

    def update(self, cloud: Cloud, rid: str, old: Props, new: Props, changed: frozenset[str]) -> None:
        self.create(cloud, new)

    def delete(self, cloud: Cloud, rid: str, state: Props) -> None:
        if state["versioningConfiguration"]["status"] == "Enabled":
            self.create(cloud, {"bucket": rid, "versioningConfiguration": {"status": "Suspended"}})


_BLOCKS = split_names("blockPublicAcls blockPublicPolicy ignorePublicAcls restrictPublicBuckets")


def _filtered(cloud: Cloud, inputs: Props) -> Props:
    """Return the rules with a filter.

    The API requires one. The official provider sends an empty prefix if the program sets none.
    """
    shape = cloud.input_shape("s3", "put_bucket_lifecycle_configuration")
    rules = to_api(shape_at(shape, "LifecycleConfiguration.Rules"), inputs["rules"])
    return {
        "LifecycleConfiguration": {
            "Rules": [{**rule, "Filter": rule.get("Filter") or {"Prefix": ""}} for rule in rules]
        }
    }


ROWS = (
    _Bucket(
        "aws:s3/bucket:Bucket",
        service="s3",
        accepts=split_names("bucket forceDestroy tags"),
        write_only=split_names("forceDestroy"),
        defaults={"forceDestroy": False},
        auto_name="bucket",
        auto_name_limit=63,
        auto_name_lower=True,
        create_op="create_bucket",
        more=_place,
        id="{bucket}",
        key="Bucket",
        read_op="head_bucket",
        live=_live_bucket,
        before_delete=_empty,
        delete_op="delete_bucket",
    ),
    _Versioning(
        "aws:s3/bucketVersioning:BucketVersioning",
        accepts=split_names("bucket versioningConfiguration"),
        create_op="put_bucket_versioning",
    ),
    _Setting(
        "aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock",
        accepts=split_names("bucket") | _BLOCKS,
        defaults=dict.fromkeys(_BLOCKS, False),
        create_op="put_public_access_block",
        read_op="get_public_access_block",
        within="PublicAccessBlockConfiguration",
        delete_op="delete_public_access_block",
    ),
    _Setting(
        "aws:s3/bucketServerSideEncryptionConfiguration:BucketServerSideEncryptionConfiguration",
        accepts=split_names("bucket rules"),
        create_op="put_bucket_encryption",
        read_op="get_bucket_encryption",
        within="ServerSideEncryptionConfiguration",
        delete_op="delete_bucket_encryption",
    ),
    _Setting(
        "aws:s3/bucketLifecycleConfiguration:BucketLifecycleConfiguration",
        accepts=split_names("bucket rules"),
        create_op="put_bucket_lifecycle_configuration",
        more=_filtered,
        read_op="get_bucket_lifecycle_configuration",
        within="LifecycleConfiguration",
        delete_op="delete_bucket_lifecycle",
    ),
    _Setting(
        "aws:s3/bucketPolicy:BucketPolicy",
        accepts=split_names("bucket policy"),
        documents=split_names("policy"),
        create_op="put_bucket_policy",
        read_op="get_bucket_policy",
        delete_op="delete_bucket_policy",
    ),
    _Setting(
        "aws:s3/bucketOwnershipControls:BucketOwnershipControls",
        accepts=split_names("bucket rule"),
        create_op="put_bucket_ownership_controls",
        read_op="get_bucket_ownership_controls",
        names={"rule": "OwnershipControls.Rules"},
        delete_op="delete_bucket_ownership_controls",
    ),
)
