"""How `make bench-launcher` counts idle machines, and that its two baselines do what they are described to do."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from launcher.request import Request
from tests.benchmarks import baselines, tallies
from tests.benchmarks.baselines import elastic, polling
from tests.benchmarks.scores import whole
from tests.benchmarks.tallies import TalliedTrace, TalliedWorld
from tests.unit.launcher.conftest import asked, fallback
from tests.unit.launcher.trace import LONGEST, Trace, several
from tests.unit.launcher.world import EPOCH, TICK, TRAINING_SECONDS, Machine


class Calm(TalliedWorld):
    """Nodes arrive at `arrivals`, in seconds after the start: ready at once, complete `whole` seconds later.

    The one at index `lost` goes at that moment. Nothing else happens by itself.
    """

    arrivals: tuple[float, ...] = ()
    whole: float = 0.0
    lost: tuple[int, float] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.trouble, self.machines = 0.0, {}
        self.pools["small"].limit = 0  # Karpenter buys nothing beside these
        self.arrived: set[str] = set()
        self.lost_already = False

    def advance(self, seconds: float) -> None:
        for index, at in enumerate(self.arrivals):
            name = f"m{index}"
            if self.elapsed() + seconds >= at and name not in self.arrived:
                self.arrived.add(name)
                ready = EPOCH + at
                self.machines[name] = Machine(name, "small", ready, ready, ready + self.whole, 4)
        super().advance(seconds)
        if self.lost is not None and not self.lost_already and self.elapsed() >= self.lost[1]:
            self.lost_already = True
            self.lose(self.machines[f"m{self.lost[0]}"])


@pytest.fixture
def calm(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The baselines on such a world."""

    def made(*arrivals: float, **changes: Any) -> None:
        kind = type("Chosen", (Calm,), {"arrivals": arrivals, **changes})
        monkeypatch.setattr(baselines, "TalliedWorld", kind)

    return made


def machine(world: TalliedWorld, name: str, **changes: Any) -> None:
    found = Machine(name, "small", EPOCH, EPOCH, EPOCH, 4, initialized=True)
    world.machines[name] = dataclasses.replace(found, **changes)


@pytest.fixture
def world(request_: Request) -> TalliedWorld:
    """An empty one, of a run that wants four machines."""
    found = TalliedWorld(request_, 1)
    found.machines.clear()
    found.trouble = 0.0
    return found


@pytest.fixture
def request_() -> Request:
    return asked()


def test_a_usable_machine_without_a_training_idles_and_a_booting_one_that_is_wanted_does_not(
    world: TalliedWorld,
) -> None:
    machine(world, "usable")
    machine(world, "booting", initialized=False)
    assert world.idling() == 1
    world.advance(TICK)
    assert world.idle == TICK


def test_machines_beyond_those_that_are_wanted_idle_also_while_they_boot(world: TalliedWorld) -> None:
    machine(world, "usable")
    for index in range(3):
        machine(world, f"booting-{index}", initialized=False)
    assert world.idling() == 1
    world.wanted = 2
    assert world.idling() == 3
    world.wanted = 0
    assert world.idling() == 4


def test_a_machine_that_trains_or_serves_others_does_not_idle(world: TalliedWorld) -> None:
    machine(world, "trains")
    machine(world, "others", foreign=True)
    world.wanted = 0
    world.training = {"metadata": {"creationTimestamp": "2027-01-15T08:00:00Z"}, "status": {}}
    world.pods["w-0"] = {"spec": {"nodeName": "trains"}, "metadata": {}, "status": {"phase": "Running"}}
    assert world.idling() == 0
    world.training["status"] = {"conditions": [{"type": "Succeeded", "status": "True"}]}
    assert world.idling() == 1


def test_a_machine_with_nothing_but_finished_pods_is_an_empty_one(world: TalliedWorld) -> None:
    machine(world, "a")
    world.pods["w-0"] = {"spec": {"nodeName": "a"}, "metadata": {}, "status": {"phase": "Running"}}
    assert len(world.on("a")) == 1
    world.pods["w-0"]["status"]["phase"] = "Succeeded"
    assert world.on("a") == []


def test_after_the_end_empty_machines_go_and_cost_until_then(world: TalliedWorld) -> None:
    machine(world, "a")
    machine(world, "b", initialized=False, gpus_at=EPOCH + 20.0)
    world.run_out()
    assert world.machines == {}
    # An empty machine goes 30 s after it was seen to be one; b is whole after 20 s.
    assert world.idle == (TICK + 30.0) + (20.0 + 30.0)


def test_the_traces_are_those_of_the_unit_tests() -> None:
    request = asked(fallbacks=[fallback()])
    for seed in range(0, 60, 14):
        trace = several(request, seed)
        tallied = TalliedTrace(trace.request, seed, crashes=trace.crashes)
        trace.run()
        found = tallied.outcome()
        assert (tallied.code, tallied.kills, tallied.submits) == (trace.code, trace.kills, trace.submits)
        assert len(found.starts) == trace.submits
        assert trace.world.wrongs == tallied.world.wrongs == []


def test_a_wrong_count_of_the_launcher_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """One node more than there is, in what is submitted."""
    real = Trace.create_training

    def one_more(self: Trace, request: Request, manifest: dict[str, Any]) -> bool:
        for replica in manifest["spec"]["pytorchReplicaSpecs"].values():
            replica["replicas"] += 1
        return real(self, request, manifest)

    started = [trio.ours for trio in map(whole, range(3)) if trio.ours.starts]
    monkeypatch.setattr(Trace, "create_training", one_more)
    spoilt = [trio.ours for trio in map(whole, range(3)) if trio.ours.starts]
    assert started
    assert spoilt
    assert not any(start.wrong for found in started for start in found.starts)
    assert all(start.wrong for found in spoilt for start in found.starts)


def test_polling_starts_at_min_ready_nodes_and_leaves_the_later_ones_idle(calm: Any) -> None:
    calm(12.0, 14.0, 31.0)
    found = polling(asked(), 1)
    (start,) = found.starts
    assert (start.nodes, start.usable, start.wrong) == (2, 2, False)
    assert (found.trained, found.restarts) == (True, 0)
    assert found.idle > 0


def test_polling_counts_a_ready_node_without_its_devices(calm: Any) -> None:
    calm(12.0, 14.0, whole=60.0)
    found = polling(asked(), 1)
    (start,) = found.starts
    assert (start.nodes, start.usable, start.wrong) == (2, 0, True)
    assert 40.0 <= found.gathered <= 60.0
    assert found.trained


def test_polling_starts_below_min_at_the_deadline_and_not_before(calm: Any) -> None:
    calm(12.0)
    found = polling(asked(), 1)
    (start,) = found.starts
    assert (start.nodes, start.below, start.wrong) == (1, True, True)
    # The machine idles from its arrival to the deadline, then until the pods have changed, and after the training.
    assert 300.0 - 15.0 <= found.idle <= 300.0 + 60.0


def test_polling_gives_up_with_nothing_and_with_workers_that_never_all_run(calm: Any) -> None:
    calm()
    nothing = polling(asked(), 1)
    assert (nothing.starts, nothing.trained, nothing.idle) == ((), False, 0.0)
    calm(12.0, 14.0, whole=10_000.0)
    never = polling(asked(), 1)
    assert (never.gathered, never.trained) == (math.inf, False)


def test_an_elastic_job_begins_with_min_after_the_last_call_and_restarts_for_who_comes_later(
    calm: Any,
) -> None:
    calm(10.0, 10.0, 60.0)
    found = elastic(asked(), 1)
    assert [start.nodes for start in found.starts] == [2, 3]
    assert (found.restarts, found.by_arrival, found.trained) == (1, 1, True)
    assert not any(start.wrong for start in found.starts)


def test_an_elastic_job_takes_who_comes_within_the_last_call_without_a_restart(calm: Any) -> None:
    calm(10.0, 10.0, 20.0, 25.0)
    found = elastic(asked(), 1)
    assert [start.nodes for start in found.starts] == [4]
    assert found.restarts == 0
    # Each idles from its arrival until all four are there, and when the training is over until it is gone.
    waited, gone = 15.0 + 15.0 + 5.0, 5.0 + 30.0
    assert found.idle <= waited + 4 * (gone + TICK)


@pytest.mark.parametrize(("third", "restarts"), [(72.0, 1), (86.0, 0)])
def test_an_elastic_job_trains_as_long_as_others_do(calm: Any, third: float, restarts: int) -> None:
    calm(10.0, 10.0, third)  # two of them begin after 40 s
    found = elastic(asked(), 1)
    assert (found.restarts, found.trained) == (restarts, True)


def test_an_elastic_job_restarts_when_a_machine_is_lost_and_keeps_its_progress(calm: Any) -> None:
    calm(10.0, 10.0, 10.0, lost=(2, 60.0))
    found = elastic(asked(), 1)
    assert [start.nodes for start in found.starts] == [3, 2]
    assert (found.restarts, found.by_arrival, found.trained) == (1, 0, True)


def test_an_elastic_job_that_never_has_min_holds_its_machines_until_it_is_cut_off(calm: Any) -> None:
    calm(10.0)
    found = elastic(asked(), 1)
    assert (found.starts, found.trained, found.reached) == ((), False, False)
    assert found.idle >= LONGEST - 20.0


def test_the_tail_is_as_long_as_that_of_the_unit_tests_traces(request_: Request) -> None:
    trace = TalliedTrace(request_, 0)
    trace.code, trace.lease_ = 0, {"spec": {"holderIdentity": None}}
    before = trace.world.now
    trace._judge_end()
    assert trace.world.now - before == tallies.TAIL_TICKS * TICK
    assert TRAINING_SECONDS < tallies.TAIL_TICKS * TICK
