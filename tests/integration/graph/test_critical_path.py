"""How long `up` takes when all runs at once that may, against what the services themselves force."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.figures import FIGURE
from tests.integration.graph.model import Graph, edited, find, graph_of
from tests.integration.graph.schedule import forced, make_span, unneeded
from tests.integration.graph.services import CLUSTER, FILE_SYSTEM
from tests.previews import every, preview, sample, stack_file
from trainyard.stack_files import read

# A preview is a minute where many run beside it.
pytestmark = [pytest.mark.local, pytest.mark.timeout(300)]

ALLOWED = 1.05
STACKS = sample(every())


def graph(stack: str) -> Graph:
    return graph_of(preview(stack))


def with_file_system() -> list[str]:
    """Stack files that have a file system made."""
    found = []
    for stack in STACKS:
        storage = read(stack_file(stack))["config"].get("trainyard:storage") or {}
        if "existing" not in storage.get("lustre", {"existing": None}):
            found.append(stack)
    return found


def test_there_are_stack_files_with_a_file_system() -> None:
    assert len(with_file_system()) >= 2


@pytest.mark.parametrize("stack", STACKS)
def test_up_takes_no_longer_than_the_services_force(
    stack: str, record_property: Callable[[str, object], None]
) -> None:
    program, least = make_span(graph(stack)), forced(graph(stack))
    record_property(FIGURE, f"critical path of {stack}: services {least}")
    record_property(FIGURE, f"critical path of {stack}: program {program}")
    assert program.length <= ALLOWED * least.length


@pytest.mark.parametrize("stack", STACKS)
def test_file_systems_images_roles_and_charts_are_waited_for_only_where_they_are_needed(stack: str) -> None:
    assert unneeded(graph(stack)) == []


@pytest.mark.parametrize("stack", with_file_system())
def test_a_control_plane_that_waits_for_a_file_system_would_be_seen(stack: str) -> None:
    made = graph(stack)
    (late,) = find(made, FILE_SYSTEM)
    (control_plane,) = find(made, CLUSTER)
    wrong = edited(made, control_plane.urn, [late.urn])
    assert make_span(wrong).length > ALLOWED * forced(wrong).length
    assert (late.label, control_plane.label) in unneeded(wrong)
