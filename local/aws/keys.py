"""The states of KMS keys. A key that is disabled or pending deletion encrypts and decrypts nothing; moto only shows it.

https://docs.aws.amazon.com/kms/latest/developerguide/key-state.html. The services that use a key answer with errors of
their own: EKS and FSx in their packages, ECR and S3 here, EBS in `local.aws.volume_keys`, CloudWatch Logs in
`local.aws.log_groups`.
"""

from __future__ import annotations

from typing import Any

from moto.ecr.models import ECRBackend
from moto.kms.models import KmsBackend, kms_backends
from moto.s3.exceptions import S3ClientError

from local.aws.account import ACCOUNT_ID
from local.aws.errors import ApiError

# Methods and permissions of the calls of S3 that encrypt or decrypt an object.
OBJECT_CALLS = {
    ("GET", "GetObject"),
    ("GET", "GetObjectVersion"),
    ("PUT", "PutObject"),
    ("POST", "PutObject"),
}


def find(region: str, name: str) -> Any | None:
    """Return the key with this id, alias or ARN."""
    short = name.split(":", 5)[-1]
    for key in list(kms_backends[ACCOUNT_ID][region].keys.values()):
        if short.removeprefix("key/") == key.id or short in key.aliases:
            return key
    return None


def use_error(region: str, name: str | None) -> ApiError | None:
    """Return the error of KMS when a service uses a key for a resource; None if it can use it.

    AWS managed keys exist, and keys of other accounts can't be looked up here.
    """
    if not name or "alias/aws/" in name or (name.startswith("arn:") and f":{ACCOUNT_ID}:" not in name):
        return None
    key = find(region, name)
    if key is None:
        return ApiError("NotFoundException", f"Key '{name}' does not exist")
    if key.key_state == "PendingDeletion":
        return ApiError("KMSInvalidStateException", f"{key.arn} is pending deletion.")
    if key.key_state != "Enabled":
        return ApiError("DisabledException", f"{key.arn} is disabled.")
    return None


def install() -> None:
    """Check the keys of grants and of ECR's repositories. `local.aws.authorise` checks those of S3's objects."""
    create_grant, create_repository = KmsBackend.create_grant, ECRBackend.create_repository

    def checked_grant(self: Any, key_id: str, *args: Any, **kwargs: Any) -> Any:
        error = use_error(self.region_name, key_id)
        if error is not None:
            raise error
        return create_grant(self, key_id, *args, **kwargs)

    def checked_repository(self: Any, **kwargs: Any) -> Any:
        error = use_error(self.region_name, (kwargs.get("encryption_config") or {}).get("kmsKey"))
        if error is not None:
            raise ApiError("KmsException", error.message)
        return create_repository(self, **kwargs)

    KmsBackend.create_grant = checked_grant
    ECRBackend.create_repository = checked_repository


def check_object(response: Any, bucket_name: str | None, key_name: str | None) -> None:
    """Check the key of an object that a request of S3 writes or reads.

    https://docs.aws.amazon.com/AmazonS3/latest/userguide/UsingKMSEncryption.html

    Args:
        response: moto's, with the request.
        bucket_name: The request's bucket.
        key_name: The request's object.

    Raises:
        S3ClientError: Its KMS key can't be used. S3 puts "KMS." before the code of KMS.
    """
    bucket = response.backend.buckets.get(bucket_name) if key_name else None
    action = response.data.get("Action")
    if bucket is None or (response.method, action) not in OBJECT_CALLS:
        return
    if response.method == "GET":
        version = response.querystring.get("versionId", [None])[0]
        found = response.backend.get_object(bucket_name, key_name, version_id=version)
        algorithm, name = (found.encryption, found.kms_key_id) if found else (None, None)
    else:
        rule = (bucket.encryption or {}).get("Rule", {}).get("ApplyServerSideEncryptionByDefault", {})
        header = "x-amz-server-side-encryption"
        algorithm = response.headers.get(header) or rule.get("SSEAlgorithm")
        name = response.headers.get(f"{header}-aws-kms-key-id") or rule.get("KMSMasterKeyID")
    error = use_error(bucket.region_name, name) if algorithm == "aws:kms" else None
    if error is not None:
        raise S3ClientError(f"KMS.{error.code}", error.message)
