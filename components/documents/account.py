"""The AWS account and region of a stack."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# The partition of the regions that begin so (botocore 1.44.5, botocore/data/partitions.json); all others are in `aws`.
_PARTITIONS: Final = {
    "cn-": "aws-cn",
    "us-gov-": "aws-us-gov",
    "eusc-": "aws-eusc",
    "us-iso-": "aws-iso",
    "us-isob-": "aws-iso-b",
    "eu-isoe-": "aws-iso-e",
    "us-isof-": "aws-iso-f",
}


@dataclass(frozen=True, kw_only=True)
class Account:
    """An AWS account, and one of its regions."""

    id: str
    region: str

    @property
    def partition(self) -> str:
        """The partition of the region, such as aws or aws-cn."""
        return next((each for start, each in _PARTITIONS.items() if self.region.startswith(start)), "aws")

    def managed_policy(self, name: str) -> str:
        """Return the ARN of an AWS managed policy."""
        return f"arn:{self.partition}:iam::aws:policy/{name}"
