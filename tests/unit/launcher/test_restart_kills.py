"""A run that loses its training, with the launcher killed at every single point of it: each time the same end."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import pytest

from tests.unit.launcher.conftest import asked
from tests.unit.launcher.trace import Trace
from tests.unit.launcher.world import EPOCH, Machine, World
from trainyard.k8s import names

BACKENDS = PYTORCHJOB, TRAINJOB = ("pytorchjob", "trainjob")
# `make check` kills the launcher at each eighth point, `make test` at all of them.
STRIDE = 8
# How long a training runs before it is struck.
STRUCK_SECONDS = 10.0
SUSPENDED_SECONDS = 50.0


@dataclass
class Struck(Trace):
    """Four machines from the start; training jobs that get these `blows` in turn.

    A blow is the loss of a machine, which the operator says ("failed") or not ("silent", "replaced"), the exit code
    of a worker, or "suspended", for fifty seconds. `idle` is how many placeholders there were meanwhile.
    """

    blows: tuple[str | int, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        world, self.mishaps = self.world, 0.0
        world.trouble, world.machines = 0.0, {}
        world.pools["small"] = dataclasses.replace(
            world.pools["small"], limit=4, refusing_until=0.0, slow_gpus=0.0
        )
        for name in "abcd":
            world.machines[name] = Machine(name, "small", EPOCH, EPOCH, EPOCH, 4, initialized=True)
        self.left = list(self.blows)
        self.since = self.paused = 0.0
        self.idle = 0

    def tick(self) -> None:
        super().tick()
        world = self.world
        if world.suspended:
            self.idle = max(self.idle, len([pod for pod in world.pods if pod.startswith("hold-")]))
            self.paused = self.paused or world.now
            if world.now - self.paused >= SUSPENDED_SECONDS:
                world.resume("small")
            return
        going = world.training is not None and not world.training["status"] and world.broken_at is None
        self.since = (self.since or world.now) if going else 0.0
        if not self.left or not going or world.now - self.since < STRUCK_SECONDS:
            return
        blow = self.left.pop(0)
        if blow == "suspended":
            world.suspend()
        elif isinstance(blow, int):
            world.fail_one(blow)
        else:
            world.fate.choice = lambda _kinds: blow  # type: ignore[assignment, method-assign]
            world.lose(world.machines[sorted(pod["spec"]["nodeName"] for pod in world.workers())[0]])


def struck(*blows: str | int, dies_at: int | None = None, **changes: object) -> Struck:
    """A run of 2 to 4 nodes with two restarts, to its end."""
    request = asked(**{"maxRestarts": 2, "holdSeconds": 10, **changes})
    trace = Struck(request, 7, blows=blows, dies_at=dies_at)
    trace.run()
    return trace


def kills(*blows: Any) -> list[Any]:
    """Each blow with each first point; `make check` has another first point for each blow."""
    return [
        pytest.param(blow, first, marks=() if first == 1 + index else pytest.mark.long)
        for index, blow in enumerate(blows)
        for first in range(1, STRIDE + 1)
    ]


@pytest.mark.parametrize(
    ("blow", "backend", "first"),
    [
        pytest.param(each.values[0], backend, each.values[1], marks=each.marks)
        for backend, blows in ((PYTORCHJOB, ("failed", "silent", "replaced", 1)), (TRAINJOB, ("silent", 1)))
        for each in kills(*blows)
    ],
)
def test_launcher_killed_anywhere_in_a_restart_ends_alike(blow: str | int, backend: str, first: int) -> None:
    undisturbed = struck(blow, backend=backend)
    assert (undisturbed.code, undisturbed.submits, undisturbed.world.wrongs) == (names.EXIT_SUCCEEDED, 2, [])
    assert undisturbed.points > 50
    for point in range(first, undisturbed.points + 1, STRIDE):
        trace = struck(blow, dies_at=point, backend=backend)
        assert trace.kills == 1
        history = (point, trace.said)
        assert trace.world.wrongs == [], history
        assert (trace.code, trace.submits) == (names.EXIT_SUCCEEDED, 2), history
        assert trace.progress is not None
        assert (trace.progress.restarts, trace.progress.retiring) == (1, ""), history


@pytest.mark.parametrize(("blows", "first"), kills((1, "failed", 137)))
def test_restart_budget_with_launcher_killed_is_kept(blows: tuple[str | int, ...], first: int) -> None:
    undisturbed = struck(*blows)
    assert (undisturbed.code, undisturbed.submits) == (names.EXIT_TRAINING_FAILED, 3)
    for point in range(first, undisturbed.points + 1, STRIDE):
        trace = struck(*blows, dies_at=point)
        assert (trace.code, trace.submits, trace.world.wrongs) == (names.EXIT_TRAINING_FAILED, 3, []), point
        assert "ended with 137 (SIGKILL, often out of memory); " in trace.said[-1], point
        assert "; after restart 2 of 2, the last one because " in trace.said[-1], point


@pytest.mark.parametrize("backend", BACKENDS)
def test_trace_of_a_resumed_run_holds_nothing(backend: str) -> None:
    trace = struck("suspended", holdSeconds=200, backend=backend)
    assert (trace.code, trace.sizes, trace.idle) == (names.EXIT_SUCCEEDED, [4, 4], 0)


@pytest.mark.parametrize(("blow", "first"), kills("suspended"))
def test_suspended_run_holds_nothing_and_resumes(blow: str, first: int) -> None:
    undisturbed = struck(blow, holdSeconds=200)
    assert (undisturbed.code, undisturbed.sizes, undisturbed.idle) == (names.EXIT_SUCCEEDED, [4, 4], 0)
    said = undisturbed.said
    assert [sum(f"state={state} " in line for line in said) > 0 for state in ("suspended", "restarting")] == [
        True,
        True,
    ]
    for point in range(first, undisturbed.points + 1, 2 * STRIDE):
        trace = struck(blow, dies_at=point, holdSeconds=200)
        assert (trace.code, trace.submits, trace.world.wrongs) == (names.EXIT_SUCCEEDED, 2, []), point
        assert trace.progress is not None
        assert (trace.progress.restarts, trace.progress.total_restarts) == (0, 1), point


@pytest.mark.parametrize("backend", BACKENDS)
def test_wrong_settings_end_the_run_at_once(backend: str) -> None:
    trace = struck(2, backend=backend)
    assert (trace.code, trace.submits, trace.world.wrongs) == (names.EXIT_TRAINING_FAILED, 1, [])
    assert "ended with 2; a restart does not help" in trace.said[-1]


def test_restart_reports_reason_and_nodes() -> None:
    trace = struck("failed", 1, holdSeconds=200)
    states = [line.split()[1] for line in trace.said]
    kept = [state for state, before in zip(states, [None, *states], strict=False) if state != before]
    assert kept.count("state=restarting") == 2
    assert kept[-2:] == ["state=following", "state=succeeded"]
    submitting = [line for line in trace.said if "state=submitting" in line]
    assert ["restart 1 of 2: " in line for line in submitting] == [False, True, False]
    assert "restart 2 of 2: all 4 nodes are ready" in submitting[2]
    assert trace.events.count("Restarting") == 2
    assert "trained on 4 nodes (restart 2 of 2)" in trace.said[-1]


@pytest.mark.parametrize("backend", BACKENDS)
def test_restart_after_lost_node_uses_nodes_that_exist(backend: str) -> None:
    before = World(asked(), 7)
    replaced = struck("failed", holdSeconds=200, backend=backend)
    assert replaced.sizes == [4, 4]
    assert replaced.world.bought == before.bought + 1
    shrunk = Struck(asked(maxRestarts=2, holdSeconds=10, backend=backend), 7, blows=("failed",))
    shrunk.world.pools["small"].refusing_until = EPOCH + 10_000
    shrunk.run()
    assert (shrunk.code, shrunk.sizes, shrunk.world.wrongs) == (names.EXIT_SUCCEEDED, [4, 3], [])
