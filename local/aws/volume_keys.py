"""Add the request for the account's default EBS key to moto, which can only change that key."""

from __future__ import annotations

from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.responses.elastic_block_store import ElasticBlockStore

# The answer of EC2 if the account has no key of its own
# (https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_GetEbsDefaultKmsKeyId.html).
AWS_MANAGED = "alias/aws/ebs"


def install() -> None:
    """Add GetEbsDefaultKmsKeyId to moto."""

    def get_ebs_default_kms_key_id(self: Any) -> ActionResult:
        self.error_on_dryrun()
        return ActionResult({"KmsKeyId": self.ec2_backend.default_kms_key_id or AWS_MANAGED})

    ElasticBlockStore.get_ebs_default_kms_key_id = get_ebs_default_kms_key_id
