"""How long `up` takes when all runs at once that may, against what the services themselves force."""

from __future__ import annotations

import pytest

from tests.graph.model import Graph, edited, find, graph_of
from tests.graph.previews import preview, shipped
from tests.graph.schedule import forced, make_span, unneeded
from tests.graph.services import CLUSTER, FILE_SYSTEM

# A preview is a minute where many run beside it.
pytestmark = [pytest.mark.local, pytest.mark.timeout(300)]

ALLOWED = 1.05


def graph(stack: str) -> Graph:
    return graph_of(preview(stack))


@pytest.mark.parametrize("stack", shipped())
def test_up_takes_no_longer_than_the_services_force(stack: str) -> None:
    program, least = make_span(graph(stack)), forced(graph(stack))
    print(f"{stack}: program {program}\n{stack}: services {least}")
    assert program.length <= ALLOWED * least.length


@pytest.mark.parametrize("stack", shipped())
def test_file_systems_images_roles_and_charts_are_waited_for_only_where_they_are_needed(stack: str) -> None:
    assert unneeded(graph(stack)) == []


@pytest.mark.parametrize("stack", shipped())
def test_a_control_plane_that_waits_for_a_file_system_would_be_seen(stack: str) -> None:
    made = graph(stack)
    wrong = edited(made, find(made, CLUSTER)[0].urn, [node.urn for node in find(made, FILE_SYSTEM)])
    if find(made, FILE_SYSTEM):
        assert make_span(wrong).length > ALLOWED * forced(wrong).length
        assert ("LustreFileSystem", "Cluster") in [(a.split()[0], b.split()[0]) for a, b in unneeded(wrong)]
    else:
        assert wrong == made
