"""What a role's sessions used, and were denied, is call_log."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from botocore.exceptions import ClientError

from local.aws.calls import actions_of, calls
from tests.unit.emulator import Cloud

GRANT = {"Effect": "Allow", "Action": ["sqs:ListQueues", "ec2:DescribeVpcs"], "Resource": "*"}


@pytest.fixture
def call_log(tmp_path: Path) -> Iterator[Path]:
    """A file that the calls of this test alone go to."""
    file = tmp_path / "calls.json"
    calls.keep_in(file)
    yield file
    calls.keep_in(None)


def test_used_and_denied_actions_of_a_role_are_kept_in_the_file(cloud: Cloud, call_log: Path) -> None:
    session = cloud.session("reader", GRANT)
    for _ in range(2):
        cloud.client("sqs", session).list_queues()
    with pytest.raises(ClientError):
        cloud.client("ec2", session).describe_subnets()
    read = json.loads(call_log.read_text())
    assert read["reader"]["granted"] == ["ec2:DescribeVpcs", "sqs:ListQueues"]
    assert list(read["reader"]["used"]) == ["sqs:ListQueues"]
    assert read["reader"]["denied"] == {"ec2:DescribeSubnets": 1}
    assert calls.by_role()["reader"]["used"] == {"sqs:ListQueues": 2}


def test_users_are_not_noted(cloud: Cloud, call_log: Path) -> None:
    cloud.client("sqs").list_queues()
    assert json.loads(call_log.read_text()) == {}


def test_granted_actions_are_those_of_statements_that_allow() -> None:
    statement = {"Effect": "Allow", "Action": "s3:GetObject"}
    denied = {"Effect": "Deny", "Action": "s3:*"}
    assert actions_of([{"Statement": statement}, {"Statement": [denied, GRANT]}]) == (
        "ec2:DescribeVpcs",
        "s3:GetObject",
        "sqs:ListQueues",
    )
