"""The bucket of trained models and checkpoints."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from .documents import checkpoints, iam, torchrun_queue


@dataclass(frozen=True, kw_only=True)
class ModelBucketArgs:
    """The retention of data, and its protection."""

    key_arn: pulumi.Input[str]
    """The key that encrypts the bucket."""
    keep_old_versions_days: int
    """Days until a replaced object is deleted."""
    keep_job_logs_days: int
    """Days until the log of a torchrun job is deleted, after its last line."""
    protect: bool
    """Whether Pulumi protects the bucket from deletion: `destroy` fails."""
    tags: dict[str, str]


class ModelBucket(pulumi.ComponentResource):
    """The bucket of models, checkpoints and logs of torchrun jobs.

    Creates a bucket with versions. It is encrypted with `key_arn`, blocks public access and refuses requests
    without TLS.

    Access control lists are off: the account owns each object. Lifecycle rules delete incomplete uploads after
    seven days, old versions after `keep_old_versions_days` (those of checkpoints after a day), and logs of torchrun
    jobs after `keep_job_logs_days`. Other current objects are never deleted. With `protect`, neither `destroy` nor
    a replacement deletes the bucket or its settings; without it, `destroy` deletes the bucket with its objects.
    """

    bucket_name: pulumi.Output[str]
    """The bucket's name."""
    bucket_arn: pulumi.Output[str]
    """The bucket's ARN."""

    def __init__(self, name: str, args: ModelBucketArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:storage:ModelBucket", name, None, opts)
        # Protect its settings, too: without policy and public access block, the bucket is less restricted.
        protected = pulumi.ResourceOptions(parent=self, protect=args.protect)
        bucket = aws.s3.Bucket(name, force_destroy=not args.protect, tags=args.tags, opts=protected)
        self.bucket_name = bucket.id
        self.bucket_arn = bucket.arn
        aws.s3.BucketVersioning(
            name,
            bucket=bucket.id,
            versioning_configuration={"status": "Enabled"},
            opts=protected,
        )
        aws.s3.BucketServerSideEncryptionConfiguration(
            name,
            bucket=bucket.id,
            rules=[
                {
                    "apply_server_side_encryption_by_default": {
                        "sse_algorithm": "aws:kms",
                        "kms_master_key_id": args.key_arn,
                    },
                    "bucket_key_enabled": True,
                }
            ],
            opts=protected,
        )
        aws.s3.BucketOwnershipControls(
            name,
            bucket=bucket.id,
            rule={"object_ownership": "BucketOwnerEnforced"},
            opts=protected,
        )
        public_access_block = aws.s3.BucketPublicAccessBlock(
            name,
            bucket=bucket.id,
            block_public_acls=True,
            block_public_policy=True,
            ignore_public_acls=True,
            restrict_public_buckets=True,
            opts=protected,
        )
        aws.s3.BucketPolicy(
            name,
            bucket=bucket.id,
            policy=bucket.arn.apply(lambda arn: json.dumps(iam.bucket_tls_only(arn))),
            # Both change the bucket's policy status. S3 returns a conflict for concurrent changes.
            opts=pulumi.ResourceOptions.merge(
                protected, pulumi.ResourceOptions(depends_on=[public_access_block])
            ),
        )
        aws.s3.BucketLifecycleConfiguration(
            name,
            bucket=bucket.id,
            rules=[
                {
                    "id": "old-versions-and-broken-uploads",
                    "status": "Enabled",
                    "filter": {"prefix": ""},
                    "noncurrent_version_expiration": {"noncurrent_days": args.keep_old_versions_days},
                    # Removes the delete marker after the last version is deleted.
                    "expiration": {"expired_object_delete_marker": True},
                    "abort_incomplete_multipart_upload": {"days_after_initiation": 7},
                },
                # A run deletes its older checkpoints all the time, and a bucket with versions would keep them all. If
                # two rules apply to an object, the earlier date has precedence
                # (https://docs.aws.amazon.com/AmazonS3/latest/userguide/lifecycle-conflicts.html).
                {
                    "id": "deleted-checkpoints",
                    "status": "Enabled",
                    "filter": {"prefix": f"{checkpoints.PREFIX}/"},
                    "noncurrent_version_expiration": {"noncurrent_days": 1},
                },
                # Sidecars upload a growing log again and again. The prefix includes the logs of all namespaces, and of
                # queues that were created with kubectl.
                {
                    "id": "logs-of-torchrun-jobs",
                    "status": "Enabled",
                    "filter": {"prefix": f"{torchrun_queue.LOGS_PREFIX}/"},
                    "expiration": {"days": args.keep_job_logs_days},
                    "noncurrent_version_expiration": {"noncurrent_days": 1},
                },
            ],
            opts=protected,
        )
        self.register_outputs({"bucketName": self.bucket_name, "bucketArn": self.bucket_arn})
