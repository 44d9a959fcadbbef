"""The emulator lets plain loopback connections through a bucket policy that wants encrypted ones, and no others."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

PLAIN = {
    "Effect": "Deny",
    "Principal": "*",
    "Action": "s3:*",
    "Resource": "*",
    "Condition": {"Bool": {"aws:SecureTransport": "false"}},
}
OTHER = {"Effect": "Deny", "Principal": "*", "Action": "s3:PutObject", "Resource": "*"}


@pytest.fixture
def permission(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    from moto.s3.models import FakeBucket  # moto takes long to import

    from local.aws import bucket_policies

    monkeypatch.setattr(FakeBucket, "get_permission", FakeBucket.get_permission)
    bucket_policies.install()

    def of(*statements: dict[str, Any]) -> str:
        document = {"Version": "2012-10-17", "Statement": list(statements)}
        bucket = SimpleNamespace(policy=json.dumps(document).encode())
        return str(FakeBucket.get_permission(bucket, "s3:PutObject", "arn:aws:s3:::b/k").name)

    return of


def test_deny_of_plain_connections_on_loopback_is_ignored(permission: Callable[..., str]) -> None:
    assert permission(PLAIN) == "NEUTRAL"


def test_deny_of_anything_else_holds(permission: Callable[..., str]) -> None:
    assert permission(PLAIN, OTHER) == "DENIED"
    secure = {**PLAIN, "Condition": {"Bool": {"aws:SecureTransport": "true"}}}
    assert permission(secure) == "DENIED"
