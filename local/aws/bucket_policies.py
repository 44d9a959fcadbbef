"""Bucket policies: statements about unencrypted connections have no effect on the local cloud.

It is good practice to deny everything under `aws:SecureTransport: false`. But clients reach the emulator over loopback
without TLS, and moto treats a Deny with an unknown condition as unconditional: no object could be read or written. A
loopback connection counts as secure here.
"""

from __future__ import annotations

import json
from typing import Any

from moto.iam.access_control import IAMPolicy, PermissionResult
from moto.s3.models import FakeBucket


def requires_tls(statement: dict[str, Any]) -> bool:
    """Return whether a statement applies only to unencrypted connections."""
    value = statement.get("Condition", {}).get("Bool", {}).get("aws:SecureTransport")
    return str(value).lower() == "false"


def install() -> None:
    """Evaluate bucket policies without those statements."""

    def get_permission(bucket: Any, action: str, resource: str) -> Any:
        if bucket.policy is None:
            return PermissionResult.NEUTRAL
        document = json.loads(bucket.policy.decode())
        found = document.get("Statement", [])
        statements = found if isinstance(found, list) else [found]
        kept = [statement for statement in statements if not requires_tls(statement)]
        return IAMPolicy(json.dumps({**document, "Statement": kept})).is_action_permitted(action, resource)

    FakeBucket.get_permission = get_permission
