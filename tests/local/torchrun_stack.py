"""What tests of torchrun jobs ask of the second stack."""

from __future__ import annotations

from typing import Any

from launcher.core.torchrun import names as n
from tests.local.conftest import EXAMPLES, Stack
from tests.local.torchrun_person import SPACE, logs_of, reaches


def workers_of(stack: Stack, name: str) -> list[dict[str, Any]]:
    """The specs of a job's worker pods."""
    label = f"{n.LABEL_JOB}={name},{n.LABEL_ATTEMPT}"
    return [each["spec"] for each in stack.get("pods", *SPACE, "-l", label)["items"]]


def example_trains(stack: Stack, name: str, sizes: set[tuple[int, int]]) -> None:
    """Apply an example as it is, and wait for its success in one of these sizes: nodes and GPUs."""
    applied = stack.kubectl("apply", *SPACE, "-f", str(EXAMPLES / f"{name}.yaml"))
    assert applied.code == 0, applied.output
    ended = reaches(stack, name, n.PHASE_SUCCEEDED)
    assert (ended["nodes"], ended["gpus"]) in sizes
    assert "deprecated" not in logs_of(stack, name)
    assert len(workers_of(stack, name)) == ended["nodes"]
