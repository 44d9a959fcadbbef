"""Bucket policies: statements against unencrypted connections don't concern the local cloud.

A policy that denies everything under `aws:SecureTransport: false` is good practice. The emulator is reached over
loopback without TLS, and moto takes a Deny for unconditional whose condition it doesn't know: no object could be
read or written. A loopback connection counts as secure here.
"""

from __future__ import annotations

import json
from typing import Any

from moto.iam.access_control import IAMPolicy, PermissionResult
from moto.s3.models import FakeBucket


def against_plain_connections(statement: dict[str, Any]) -> bool:
    """True for a statement that holds only where the connection is not encrypted."""
    value = statement.get("Condition", {}).get("Bool", {}).get("aws:SecureTransport")
    return str(value).lower() == "false"


def install() -> None:
    """Judge bucket policies without those statements."""

    def get_permission(bucket: Any, action: str, resource: str) -> Any:
        if bucket.policy is None:
            return PermissionResult.NEUTRAL
        document = json.loads(bucket.policy.decode())
        found = document.get("Statement", [])
        statements = found if isinstance(found, list) else [found]
        kept = [statement for statement in statements if not against_plain_connections(statement)]
        return IAMPolicy(json.dumps({**document, "Statement": kept})).is_action_permitted(action, resource)

    FakeBucket.get_permission = get_permission
