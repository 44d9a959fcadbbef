from __future__ import annotations

from typing import Any

import pytest

from local.deploy.follow import describe_node, job_result, node_state

pytestmark = pytest.mark.unit


def node(labels: dict[str, str], ready: str = "True", **metadata: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "ip-10-0-1-2", "labels": labels, **metadata},
        "status": {
            "conditions": [{"type": "Ready", "status": ready}],
            "allocatable": {"nvidia.com/gpu": "4", "vpc.amazonaws.com/efa": "0"},
        },
    }


def test_a_node_is_ready_only_when_karpenter_has_initialised_it() -> None:
    assert node_state(node({"karpenter.sh/initialized": "true"})) == "ready"
    assert node_state(node({})) == "joined"
    assert node_state(node({"karpenter.sh/initialized": "true"}, ready="Unknown")) == "joined"


def test_a_node_that_is_being_deleted_is_leaving() -> None:
    leaving = node({"karpenter.sh/initialized": "true"}, deletionTimestamp="2026-01-01T00:00:00Z")
    assert node_state(leaving) == "leaving"


def test_a_node_is_described_by_type_zone_and_what_it_really_offers() -> None:
    labels = {
        "node.kubernetes.io/instance-type": "g5.12xlarge",
        "topology.kubernetes.io/zone": "us-west-2b",
    }
    assert describe_node(node(labels)) == "ip-10-0-1-2 g5.12xlarge us-west-2b 4 nvidia.com/gpu"


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ([], None),
        ([{"type": "Complete", "status": "False"}], None),
        ([{"type": "FailureTarget", "status": "True", "reason": "PodFailurePolicy"}], None),
        ([{"type": "Complete", "status": "True"}], (True, "")),
        (
            [{"type": "Failed", "status": "True", "reason": "PodFailurePolicy", "message": "exit code 10"}],
            (False, "PodFailurePolicy: exit code 10"),
        ),
    ],
)
def test_a_job_has_ended_when_a_condition_says_so(conditions: list[dict[str, str]], expected: Any) -> None:
    assert job_result({"status": {"conditions": conditions}}) == expected
