"""The emulator lets plain loopback connections through a bucket policy that wants encrypted ones, and no others."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from moto.iam.access_control import PermissionResult
from moto.s3.models import FakeBucket

from local.aws import bucket_policies

pytestmark = pytest.mark.unit

PLAIN = {
    "Effect": "Deny",
    "Principal": "*",
    "Action": "s3:*",
    "Resource": "*",
    "Condition": {"Bool": {"aws:SecureTransport": "false"}},
}
OTHER = {"Effect": "Deny", "Principal": "*", "Action": "s3:PutObject", "Resource": "*"}


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeBucket, "get_permission", FakeBucket.get_permission)
    bucket_policies.install()


def judged(*statements: dict[str, Any]) -> Any:
    bucket = SimpleNamespace(
        policy=json.dumps({"Version": "2012-10-17", "Statement": list(statements)}).encode()
    )
    return FakeBucket.get_permission(bucket, "s3:PutObject", "arn:aws:s3:::b/k")


def test_a_deny_of_plain_connections_does_not_concern_loopback() -> None:
    assert judged(PLAIN) == PermissionResult.NEUTRAL


def test_other_denials_stay() -> None:
    assert judged(PLAIN, OTHER) == PermissionResult.DENIED
    assert (
        judged({**PLAIN, "Condition": {"Bool": {"aws:SecureTransport": "true"}}}) == PermissionResult.DENIED
    )
