"""Bucket policies, evaluated with their conditions.

moto treats a Deny with a condition as unconditional. So the usual "deny everything under `aws:SecureTransport: false`"
would deny all access. A loopback connection counts as secure here.
"""

from __future__ import annotations

from typing import Any

from moto.iam.access_control import PermissionResult
from moto.s3.models import FakeBucket

from local.aws import identity
from local.aws.account import ACCOUNT_ID
from local.aws.policy import Request, evaluate_for


def install() -> None:
    """Evaluate bucket policies by `local.aws.policy`."""

    def get_permission(bucket: Any, action: str, resource: str) -> Any:
        request = Request(action, resource, {"aws:securetransport": ("true",)})
        who = identity.calling.get()
        principals = [f"arn:aws:iam::{ACCOUNT_ID}:root", ACCOUNT_ID]
        if who is not None:
            principals += [who.arn, who.principal_arn]
        decision = evaluate_for((bucket.policy or b"").decode(), "AWS", principals, request)
        if decision.explicit:
            return PermissionResult.DENIED
        return PermissionResult.PERMITTED if decision.allowed else PermissionResult.NEUTRAL

    FakeBucket.get_permission = get_permission
