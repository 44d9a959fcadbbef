"""`make preview` of a stack on AWS.

In `make test`, tests/integration/graph and tests/integration/policy preview every stack without the command.
"""

from __future__ import annotations

import pytest

from local.home import Home
from tests.integration.local.conftest import deploy

pytestmark = [pytest.mark.lives, pytest.mark.timeout(600)]


def test_preview_of_an_aws_stack_needs_no_account_and_no_cloud(home: Home) -> None:
    answer = deploy("preview", "--stack", "dev", seconds=120)
    assert answer.code == 0
    for kind in (
        "aws:eks:Cluster",
        "aws:ec2:NatGateway",
        "aws:s3:Bucket",
        "NodePool",
        "docker-build:index:Image",
    ):
        assert kind in answer.output, f"no {kind}"
