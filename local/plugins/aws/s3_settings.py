"""Settings of a bucket that are separate resources. The id is the bucket's name; an update writes the whole setting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from local.plugins.aws.cloud import Cloud, retry_busy
from local.plugins.aws.resource import Handler, Props, serves


class _Setting(Handler):
    """A setting, which is written at creation and update, and deleted with the resource."""

    required: ClassVar[frozenset[str]] = frozenset({"bucket"})
    replaces = frozenset({"bucket"})

    def put(self, cloud: Cloud, inputs: Props) -> None:
        raise NotImplementedError

    def create(self, cloud: Cloud, inputs: Props) -> str:
        # Several settings of one bucket are created at the same time. S3 returns OperationAborted for such a
        # conflict.
        retry_busy(lambda: self.put(cloud, inputs), 60)
        return str(inputs["bucket"])

    def update(self, cloud: Cloud, rid: str, old: Props, new: Props, changed: frozenset[str]) -> None:
        self.put(cloud, new)


@serves
class BucketVersioning(_Setting):
    """The versioning of a bucket. Deletion suspends it: a bucket never returns to unversioned."""

    token = "aws:s3/bucketVersioning:BucketVersioning"
    accepts = frozenset({"bucket", "versioningConfiguration"})
    required = accepts

    def put(self, cloud: Cloud, inputs: Props) -> None:
        status = inputs["versioningConfiguration"]["status"]
        if status != "Disabled":
            cloud.client("s3").put_bucket_versioning(
                Bucket=inputs["bucket"], VersioningConfiguration={"Status": status}
            )

    def read(self, cloud: Cloud, rid: str, inputs: Props) -> Props | None:
        status = cloud.client("s3").get_bucket_versioning(Bucket=rid).get("Status", "Disabled")
        return {"bucket": rid, "versioningConfiguration": {"status": status}}

    def delete(self, cloud: Cloud, rid: str, state: Props) -> None:
        if state["versioningConfiguration"]["status"] == "Enabled":
            self.put(cloud, {"bucket": rid, "versioningConfiguration": {"status": "Suspended"}})


_BLOCKS = {
    "blockPublicAcls": "BlockPublicAcls",
    "blockPublicPolicy": "BlockPublicPolicy",
    "ignorePublicAcls": "IgnorePublicAcls",
    "restrictPublicBuckets": "RestrictPublicBuckets",
}


@serves
class BucketPublicAccessBlock(_Setting):
    """The four switches against public access."""

    token = "aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock"
    accepts = frozenset({"bucket", *_BLOCKS})
    defaults: ClassVar[Props] = dict.fromkeys(_BLOCKS, False)

    def put(self, cloud: Cloud, inputs: Props) -> None:
        cloud.client("s3").put_public_access_block(
            Bucket=inputs["bucket"],
            PublicAccessBlockConfiguration={name: bool(inputs.get(key)) for key, name in _BLOCKS.items()},
        )

    def read(self, cloud: Cloud, rid: str, inputs: Props) -> Props | None:
        found = cloud.client("s3").get_public_access_block(Bucket=rid)["PublicAccessBlockConfiguration"]
        return {"bucket": rid, **{key: bool(found.get(name)) for key, name in _BLOCKS.items()}}

    def delete(self, cloud: Cloud, rid: str, state: Props) -> None:
        cloud.client("s3").delete_public_access_block(Bucket=rid)


@serves
class BucketServerSideEncryptionConfiguration(_Setting):
    """The default encryption of a bucket."""

    token = "aws:s3/bucketServerSideEncryptionConfiguration:BucketServerSideEncryptionConfiguration"
    accepts = frozenset({"bucket", "rules"})
    required = accepts

    def put(self, cloud: Cloud, inputs: Props) -> None:
        rules = []
        for rule in inputs["rules"]:
            chosen = rule.get("applyServerSideEncryptionByDefault") or {}
            default = {"SSEAlgorithm": chosen["sseAlgorithm"]}
            if chosen.get("kmsMasterKeyId"):
                default["KMSMasterKeyID"] = chosen["kmsMasterKeyId"]
            made: Props = {"ApplyServerSideEncryptionByDefault": default}
            if rule.get("bucketKeyEnabled") is not None:
                made["BucketKeyEnabled"] = rule["bucketKeyEnabled"]
            rules.append(made)
        cloud.client("s3").put_bucket_encryption(
            Bucket=inputs["bucket"], ServerSideEncryptionConfiguration={"Rules": rules}
        )

    def read(self, cloud: Cloud, rid: str, inputs: Props) -> Props | None:
        found = cloud.client("s3").get_bucket_encryption(Bucket=rid)["ServerSideEncryptionConfiguration"]
        rules = []
        for rule in found["Rules"]:
            default = rule["ApplyServerSideEncryptionByDefault"]
            made: Props = {"applyServerSideEncryptionByDefault": {"sseAlgorithm": default["SSEAlgorithm"]}}
            if default.get("KMSMasterKeyID"):
                made["applyServerSideEncryptionByDefault"]["kmsMasterKeyId"] = default["KMSMasterKeyID"]
            if rule.get("BucketKeyEnabled") is not None:
                made["bucketKeyEnabled"] = rule["BucketKeyEnabled"]
            rules.append(made)
        return {"bucket": rid, "rules": rules}

    def delete(self, cloud: Cloud, rid: str, state: Props) -> None:
        cloud.client("s3").delete_bucket_encryption(Bucket=rid)


# Names of lifecycle rules that differ in more than an upper first letter.
_LIFECYCLE = {"id": "ID", "noncurrentVersionTransitions": "NoncurrentVersionTransitions"}


def lifecycle_rule(rule: Any) -> Any:
    """Return a rule of the API from one of the SDK."""
    if isinstance(rule, Mapping):
        return {
            _LIFECYCLE.get(k, k[0].upper() + k[1:]): lifecycle_rule(v)
            for k, v in rule.items()
            if v is not None
        }
    if isinstance(rule, list):
        return [lifecycle_rule(item) for item in rule]
    return int(rule) if isinstance(rule, float) and rule.is_integer() else rule


def lifecycle_props(rule: Any) -> Any:
    """Return a rule of the SDK from one of the API."""
    if isinstance(rule, Mapping):
        return {"id" if k == "ID" else k[0].lower() + k[1:]: lifecycle_props(v) for k, v in rule.items()}
    return [lifecycle_props(item) for item in rule] if isinstance(rule, list) else rule


@serves
class BucketLifecycleConfiguration(_Setting):
    """The rules for old objects of a bucket."""

    token = "aws:s3/bucketLifecycleConfiguration:BucketLifecycleConfiguration"
    accepts = frozenset({"bucket", "rules"})
    required = accepts

    def put(self, cloud: Cloud, inputs: Props) -> None:
        rules = [lifecycle_rule(rule) for rule in inputs["rules"]]
        for rule in rules:
            # The API requires a filter. The official provider sends an empty prefix if the program sets none.
            rule.setdefault("Filter", {"Prefix": ""})
            if not rule["Filter"]:
                rule["Filter"] = {"Prefix": ""}
        cloud.client("s3").put_bucket_lifecycle_configuration(
            Bucket=inputs["bucket"], LifecycleConfiguration={"Rules": rules}
        )

    def read(self, cloud: Cloud, rid: str, inputs: Props) -> Props | None:
        found = cloud.client("s3").get_bucket_lifecycle_configuration(Bucket=rid)["Rules"]
        return {"bucket": rid, "rules": [lifecycle_props(rule) for rule in found]}

    def delete(self, cloud: Cloud, rid: str, state: Props) -> None:
        cloud.client("s3").delete_bucket_lifecycle(Bucket=rid)


@serves
class BucketPolicy(_Setting):
    """The bucket's access policy."""

    token = "aws:s3/bucketPolicy:BucketPolicy"
    accepts = frozenset({"bucket", "policy"})
    required = accepts
    documents = frozenset({"policy"})

    def put(self, cloud: Cloud, inputs: Props) -> None:
        cloud.client("s3").put_bucket_policy(Bucket=inputs["bucket"], Policy=inputs["policy"])

    def read(self, cloud: Cloud, rid: str, inputs: Props) -> Props | None:
        return {"bucket": rid, "policy": cloud.client("s3").get_bucket_policy(Bucket=rid)["Policy"]}

    def delete(self, cloud: Cloud, rid: str, state: Props) -> None:
        cloud.client("s3").delete_bucket_policy(Bucket=rid)


@serves
class BucketOwnershipControls(_Setting):
    """The ownership of uploaded objects."""

    token = "aws:s3/bucketOwnershipControls:BucketOwnershipControls"
    accepts = frozenset({"bucket", "rule"})
    required = accepts

    def put(self, cloud: Cloud, inputs: Props) -> None:
        cloud.client("s3").put_bucket_ownership_controls(
            Bucket=inputs["bucket"],
            OwnershipControls={"Rules": [{"ObjectOwnership": inputs["rule"]["objectOwnership"]}]},
        )

    def read(self, cloud: Cloud, rid: str, inputs: Props) -> Props | None:
        found = cloud.client("s3").get_bucket_ownership_controls(Bucket=rid)["OwnershipControls"]["Rules"]
        return {"bucket": rid, "rule": {"objectOwnership": found[0]["ObjectOwnership"]}}

    def delete(self, cloud: Cloud, rid: str, state: Props) -> None:
        cloud.client("s3").delete_bucket_ownership_controls(Bucket=rid)
