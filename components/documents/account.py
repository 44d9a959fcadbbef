"""The AWS account and region of a stack."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Account:
    """An AWS account, and one of its regions."""

    id: str
    region: str

    @property
    def partition(self) -> str:
        """The partition of the region: aws, aws-cn or aws-us-gov."""
        if self.region.startswith("cn-"):
            return "aws-cn"
        return "aws-us-gov" if self.region.startswith("us-gov-") else "aws"

    def managed_policy(self, name: str) -> str:
        """Return the ARN of an AWS managed policy."""
        return f"arn:{self.partition}:iam::aws:policy/{name}"
