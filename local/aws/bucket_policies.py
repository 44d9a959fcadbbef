"""Bucket policies, evaluated with their conditions.

moto treats a Deny with a condition as unconditional. So the usual "deny everything under `aws:SecureTransport: false`"
would deny all access. A loopback connection counts as secure here. moto asks before it knows the caller, so statements
that name principals other than "*" have no effect.
"""

from __future__ import annotations

from typing import Any

from moto.iam.access_control import PermissionResult
from moto.s3.models import FakeBucket

from local.aws.policy import Request, evaluate_for


def install() -> None:
    """Evaluate bucket policies by `local.aws.policy`."""

    def get_permission(bucket: Any, action: str, resource: str) -> Any:
        request = Request(action, resource, {"aws:securetransport": ("true",)})
        decision = evaluate_for((bucket.policy or b"").decode(), "AWS", [], request)
        if decision.explicit:
            return PermissionResult.DENIED
        return PermissionResult.PERMITTED if decision.allowed else PermissionResult.NEUTRAL

    FakeBucket.get_permission = get_permission
