"""What is said of stacks that start no run by themselves."""

from __future__ import annotations

import pytest

from trainyard.cli.errors import CommandError
from trainyard.cli.runs import no_run, start_run


def test_a_stack_without_a_run_says_how_to_start_one() -> None:
    assert "make submit STACK=dev" in no_run("dev", "aws", {"launcherManifest": "{}"})


@pytest.mark.parametrize("outputs", [{}, {"launcherManifest": None}])
def test_a_stack_of_pools_alone_says_so(outputs: dict[str, None]) -> None:
    assert no_run("p5", "aws", outputs) == "it has pools and no run: its settings have no trainyard:training"
    with pytest.raises(
        CommandError, match="the stack has pools and no run: its settings have no trainyard:training"
    ):
        start_run(outputs, 1, 2, {})
