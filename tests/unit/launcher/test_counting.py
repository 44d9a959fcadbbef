"""What lies close to the line between a node that counts and one that does not."""

from __future__ import annotations

import pytest

from launcher import state_machine
from launcher.actions import Memory, Recount, Start
from launcher.capacity import count
from launcher.progress import initial_progress
from launcher.request import Request
from tests.unit.launcher.test_capacity import NOW, held, node, pod, seen

pytestmark = pytest.mark.unit

ALL = {"nvidia.com/gpu": "4"}


@pytest.mark.parametrize(
    ("key", "effect"), [("example.com/starting", "NoSchedule"), ("nvidia.com/gpu", "NoExecute")]
)
def test_a_toleration_is_for_its_own_key_and_effect(request_: Request, key: str, effect: str) -> None:
    tainted = node("a", spec__taints=[{"key": key, "effect": effect}])
    counted = count(request_, seen([tainted, node("b")]))
    assert (counted.usable, counted.unusable) == (("b",), {"a": f"taint {key}"})


@pytest.mark.parametrize(("phase", "usable"), [("Succeeded", True), ("Failed", True), ("Running", False)])
def test_a_pod_that_is_over_occupies_nothing(request_: Request, phase: str, usable: bool) -> None:
    theirs = pod("theirs", "a", **ALL)
    theirs["status"]["phase"] = phase
    assert bool(count(request_, seen([node("a")], [theirs])).usable) is usable


@pytest.mark.parametrize(
    ("field", "value"), [("namespace", "default"), ("labels", {"trainyard.dev/role": "placeholder"})]
)
def test_count_placeholder_of_other_run_occupies_node(request_: Request, field: str, value: object) -> None:
    theirs = held(request_, 0, "a")
    assert count(request_, seen([node("a")], [theirs])).usable == ("a",)
    theirs["metadata"][field] = value
    assert count(request_, seen([node("a")], [theirs])).usable == ()


def test_submit_without_surplus_needs_fresh_lists(request_: Request) -> None:
    nodes = [node(name) for name in "abcd"]
    pods = [held(request_, index, name) for index, name in enumerate("abcd")]
    memory = Memory(progress=initial_progress(NOW))
    assert state_machine.step(request_, memory, seen(nodes, pods, fresh=False)).actions == (Recount(),)
    assert [type(one) for one in state_machine.step(request_, memory, seen(nodes, pods)).actions] == [Start]
