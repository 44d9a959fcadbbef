"""How long a step of the launcher takes as a pool grows."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

import pytest

from launcher import observe, state_machine
from launcher.actions import Memory, ReleaseNode, Start
from launcher.observe import Observation, Pod
from launcher.progress import initial_progress
from launcher.request import Request
from tests.figures import FIGURE
from tests.unit.launcher.conftest import asked
from tests.unit.launcher.test_capacity import NOW, node, placeholder, seen
from tests.unit.launcher.test_node_release import BARE, claim

# An idle core takes a fraction of 50 ms for 256 nodes; the rest is for a busy machine.
LONGEST_MS = 500.0


def large(nodes: int) -> Request:
    request = asked(maxNodes=nodes, minNodes=2, capacityDeadlineSeconds=9000)
    return dataclasses.replace(request, pool=dataclasses.replace(request.pool, max_nodes=nodes))


def cluster(request: Request, nodes: int, *, broken: bool) -> Observation:
    """So many nodes, each with its claim, a placeholder and six pods of DaemonSets."""
    names = [f"n{index}" for index in range(nodes)]
    changes = {"status__allocatable": BARE} if broken else {}
    claims = tuple(observe.claim(claim(f"c-{name}", 1000, name)) for name in names)
    daemons = tuple(daemon(f"{name}-{number}", name) for name in names for number in range(6))
    pods = [placeholder(request, index, name) for index, name in enumerate(names)]
    limit = str(4 * nodes)
    found = seen([node(name, **changes) for name in names], pods, limit, claims=claims)
    return dataclasses.replace(found, pods=(*found.pods, *daemons))


def daemon(name: str, at: str) -> Pod:
    owner = {"kind": "DaemonSet", "name": "d", "uid": "d", "controller": True}
    meta = {"name": name, "namespace": "kube-system", "uid": name, "ownerReferences": [owner]}
    spec = {"nodeName": at, "containers": [{"resources": {"requests": {"cpu": "100m"}}}]}
    return observe.pod({"metadata": meta, "spec": spec, "status": {"phase": "Running"}})


def milliseconds(request: Request, observation: Observation) -> tuple[float, state_machine.Step]:
    """The quickest of three steps in milliseconds of a core, and what it said."""
    memory, took = Memory(progress=initial_progress(NOW - 2000)), []
    for _ in range(3):
        began = time.process_time()
        step = state_machine.step(request, memory, observation)
        took.append(1000 * (time.process_time() - began))
    return min(took), step


@pytest.mark.parametrize("broken", [False, True])
def test_a_step_takes_milliseconds_for_hundreds_of_nodes(
    broken: bool, record_property: Callable[[str, object], None]
) -> None:
    took = {}
    for nodes in (64, 256):
        request = large(nodes)
        took[nodes], step = milliseconds(request, cluster(request, nodes, broken=broken))
        kind = ReleaseNode if broken else Start
        wanted = nodes if broken else 1
        assert sum(isinstance(action, kind) for action in step.actions) == wanted
    figures = ", ".join(f"{nodes} nodes {figure:.1f} ms" for nodes, figure in took.items())
    record_property(FIGURE, f"a step of the launcher, {'all broken' if broken else 'all usable'}: {figures}")
    assert took[256] <= LONGEST_MS
    assert took[256] <= 12 * took[64] + 5, "four times the nodes take about four times as long"
