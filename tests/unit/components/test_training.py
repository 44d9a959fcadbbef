"""The namespace in which training runs."""

from __future__ import annotations

from typing import Any

import pytest

from components.training import TrainingSpace, TrainingSpaceArgs
from tests.unit.components.recording import deploy

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("asked", "standard"),
    [({}, "restricted"), ({"mpi": True}, "baseline"), ({"lustre": True}, "baseline")],
)
def test_pods_keep_to_the_strictest_standard_that_the_stack_can_have(
    asked: dict[str, Any], standard: str
) -> None:
    args = TrainingSpaceArgs(trainer_role_arn="arn:aws:iam::123456789012:role/t", after=[], **asked)
    namespace = deploy(lambda: TrainingSpace("training", args)).one("kubernetes:core/v1:Namespace")
    labels = namespace.inputs["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == standard
    assert labels["pod-security.kubernetes.io/warn"] == "restricted"
