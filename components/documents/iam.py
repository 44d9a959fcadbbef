"""IAM policy documents that need no knowledge of one component. Pure: texts in, mappings out.

Arguments that come from other resources are resolved by the caller before these functions run.
"""

from __future__ import annotations

from typing import Any

JsonObject = dict[str, Any]

VERSION = "2012-10-17"


def document(*statements: JsonObject) -> JsonObject:
    """A policy document of the given statements."""
    return {"Version": VERSION, "Statement": list(statements)}


def account_of(arn: str) -> str:
    """The account id in an ARN (arn:partition:service:region:account:resource)."""
    return arn.split(":")[4]


def partition_of(arn: str) -> str:
    """The partition in an ARN: aws, aws-cn or aws-us-gov."""
    return arn.split(":")[1]


def service_trust(service: str) -> JsonObject:
    """Trust of an AWS service, such as ec2.amazonaws.com."""
    return document(
        {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"Service": service}},
    )


def service_account_trust(
    *, provider_arn: str, issuer: str, namespace: str, service_account: str
) -> JsonObject:
    """Trust of exactly one Kubernetes service account (IAM roles for service accounts).

    Both the subject and the audience are compared for equality
    (https://docs.aws.amazon.com/eks/latest/userguide/associate-service-account-role.html). `issuer` may have its
    https:// in front.
    """
    host = issuer.removeprefix("https://")
    return document(
        {
            "Sid": "AllowOneServiceAccount",
            "Effect": "Allow",
            "Action": "sts:AssumeRoleWithWebIdentity",
            "Principal": {"Federated": provider_arn},
            "Condition": {
                "StringEquals": {
                    f"{host}:sub": f"system:serviceaccount:{namespace}:{service_account}",
                    f"{host}:aud": "sts.amazonaws.com",
                }
            },
        }
    )


def key_policy(*, account: str, partition: str) -> JsonObject:
    """Policy of a KMS key: the account's IAM policies decide, as with a key that has no policy of its own."""
    return document(
        {
            "Sid": "LetTheAccountsPoliciesDecide",
            "Effect": "Allow",
            "Principal": {"AWS": f"arn:{partition}:iam::{account}:root"},
            "Action": "kms:*",
            "Resource": "*",
        }
    )


def bucket_tls_only(bucket_arn: str) -> JsonObject:
    """Bucket policy that refuses every request without TLS."""
    return document(
        {
            "Sid": "DenyRequestsWithoutTls",
            "Effect": "Deny",
            "Principal": "*",
            "Action": "s3:*",
            "Resource": [bucket_arn, f"{bucket_arn}/*"],
            "Condition": {"Bool": {"aws:SecureTransport": "false"}},
        }
    )


def model_writer(*, bucket_arn: str, prefix: str, key_arn: str, checkpoints: str | None) -> JsonObject:
    """What the trainer may do: read and write objects under one prefix, and nothing that deletes.

    With `checkpoints`, the prefix of these, it may also read, write and delete there: of a run's checkpoints the newest
    stay.
    """
    below = [prefix] if checkpoints is None else [prefix, checkpoints]
    return document(
        {
            "Sid": "ReadAndWriteModels",
            "Effect": "Allow",
            "Action": ["s3:AbortMultipartUpload", "s3:GetObject", "s3:PutObject"],
            "Resource": f"{bucket_arn}/{prefix}/*",
        },
        *([] if checkpoints is None else [_checkpoint_keeper(f"{bucket_arn}/{checkpoints}/*")]),
        {
            "Sid": "ListModels" if checkpoints is None else "ListModelsAndCheckpoints",
            "Effect": "Allow",
            "Action": "s3:ListBucket",
            "Resource": bucket_arn,
            "Condition": {
                "StringLike": {"s3:prefix": [each for name in below for each in (name, f"{name}/*")]}
            },
        },
        {
            "Sid": "UseTheBucketsKey",
            "Effect": "Allow",
            "Action": ["kms:Decrypt", "kms:GenerateDataKey"],
            "Resource": key_arn,
        },
    )


def _checkpoint_keeper(objects: str) -> JsonObject:
    """Versions that are deleted without their id stay for as long as the bucket keeps them."""
    return {
        "Sid": "KeepCheckpoints",
        "Effect": "Allow",
        "Action": ["s3:AbortMultipartUpload", "s3:DeleteObject", "s3:GetObject", "s3:PutObject"],
        "Resource": objects,
    }


def torchrun_worker(*, bucket_arns: list[str], workspaces: str, logs: str, key_arn: str | None) -> JsonObject:
    """Return the policy of the workers of one namespace: read workspaces, write and read logs.

    They can't write workspaces. They may list both prefixes, because S3 otherwise returns 403 instead of 404 for an
    object that does not exist yet.
    (https://docs.aws.amazon.com/AmazonS3/latest/API/API_GetObject.html, "Permissions"), and workers look for what may

    Args:
        bucket_arns: The buckets of the namespace's queues.
        workspaces: The prefix of the namespace's workspaces.
        logs: The prefix of the logs of its jobs.
        key_arn: The KMS key of a bucket of the stack, None without one.
    """
    return document(
        _objects("ReadWorkspaces", ["s3:GetObject"], bucket_arns, workspaces),
        _objects("ReadAndWriteLogs", ["s3:GetObject", "s3:PutObject"], bucket_arns, logs),
        _listing(bucket_arns, workspaces, logs),
        *_key(key_arn),
    )


def torchrun_submitter(
    *, bucket_arns: list[str], workspaces: str, logs: str, key_arn: str | None
) -> JsonObject:
    """Return the policy of users who send workspaces of one namespace and read logs; see `torchrun_worker`."""
    return document(
        _objects("ReadAndWriteWorkspaces", ["s3:GetObject", "s3:PutObject"], bucket_arns, workspaces),
        _objects("ReadLogs", ["s3:GetObject"], bucket_arns, logs),
        _listing(bucket_arns, workspaces, logs),
        *_key(key_arn),
    )


def _objects(sid: str, actions: list[str], bucket_arns: list[str], place: str) -> JsonObject:
    resources = [f"{arn}/{place}/*" for arn in bucket_arns]
    return {"Sid": sid, "Effect": "Allow", "Action": actions, "Resource": resources}


def _listing(bucket_arns: list[str], *places: str) -> JsonObject:
    return {
        "Sid": "ListThem",
        "Effect": "Allow",
        "Action": "s3:ListBucket",
        "Resource": list(bucket_arns),
        "Condition": {"StringLike": {"s3:prefix": [f"{place}/*" for place in places]}},
    }


def _key(arn: str | None) -> list[JsonObject]:
    if arn is None:
        return []
    actions = ["kms:Decrypt", "kms:GenerateDataKey"]
    return [{"Sid": "UseTheBucketsKey", "Effect": "Allow", "Action": actions, "Resource": arn}]


def bucket_access(*, bucket_arn: str, prefix: str | None, key_arn: str | None, write: bool) -> JsonObject:
    """Access to a bucket, or to one prefix of it: reading, with `write` writing too, and nothing that deletes.

    `key_arn` is the key that encrypts the bucket; None where that is the bucket owner's business.
    """
    objects = f"{bucket_arn}/*" if prefix is None else f"{bucket_arn}/{prefix}/*"
    listed: JsonObject = {
        "Sid": "ListObjects",
        "Effect": "Allow",
        "Action": "s3:ListBucket",
        "Resource": bucket_arn,
    }
    if prefix is not None:
        listed["Condition"] = {"StringLike": {"s3:prefix": [prefix, f"{prefix}/*"]}}
    statements: list[JsonObject] = [
        {
            "Sid": "ReadAndWriteObjects" if write else "ReadObjects",
            "Effect": "Allow",
            "Action": ["s3:AbortMultipartUpload", "s3:GetObject", "s3:PutObject"]
            if write
            else "s3:GetObject",
            "Resource": objects,
        },
        listed,
    ]
    if key_arn is not None:
        statements.append(
            {
                "Sid": "UseTheBucketsKey",
                "Effect": "Allow",
                "Action": ["kms:Decrypt", "kms:GenerateDataKey"] if write else "kms:Decrypt",
                "Resource": key_arn,
            }
        )
    return document(*statements)
