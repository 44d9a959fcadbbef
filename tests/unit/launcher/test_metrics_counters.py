"""What each step adds to the counts, without any server."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from launcher import observe, state_machine
from launcher.actions import Memory
from launcher.backends import pytorchjob
from launcher.manifests import stamp
from launcher.metrics import Metrics
from launcher.observe import Observation, Training, WarningEvent
from launcher.progress import Loss, Progress, initial_progress
from launcher.request import Request
from tests.unit.launcher.conftest import asked, fallback, made_for
from tests.unit.launcher.test_capacity import NOW, node, seen
from trainyard.k8s import names


class Refusal(NamedTuple):
    pool: str
    zone: str
    instance_type: str
    code: str


SMALL = Refusal(
    pool="small", zone="us-west-2b", instance_type="g5.12xlarge", code="InsufficientInstanceCapacity"
)


class Counting:
    """A launcher's memory and counts over one observation after another."""

    def __init__(self, request: Request, memory: Memory | None = None) -> None:
        self.request, self.memory, self.metrics = request, memory or Memory(), Metrics(request)

    def see(self, *moments: Observation) -> SimpleNamespace:
        for moment in moments:
            step = state_machine.step(self.request, self.memory, moment)
            self.metrics.count_step(self.memory, step, moment)
            self.memory = step.memory
        return self.counts

    @property
    def counts(self) -> SimpleNamespace:
        """The present values."""
        values: dict[str, Any] = {}
        pools: set[str] = set()
        refused: dict[Refusal, int] = {}
        for family in self.metrics.registry.collect():
            for sample in family.samples:
                labels = dict(sample.labels)
                assert labels.pop("run") == "r1"
                if "code" in labels:
                    refused[Refusal(**labels)] = int(sample.value)
                else:
                    values[sample.name.removeprefix("trainyard_launcher_")] = sample.value
                    pools |= {*labels.values()}
        (pool,) = pools
        return SimpleNamespace(
            pool=pool,
            waiting=values["waiting"],
            ready_nodes=values["ready_nodes"],
            nodes_wanted=values["nodes_wanted"],
            attempts=values["attempts_total"],
            restarts=values["restarts_total"],
            released_nodes=values["nodes_released_total"],
            idle_node_seconds=values["node_seconds_idle_total"],
            refused=refused,
        )


def refusal(uid: str, at: float = NOW, about: str = "small-x", **changes: Any) -> WarningEvent:
    item = {
        "metadata": {"name": uid, "uid": uid},
        "involvedObject": {"kind": "NodeClaim", "name": about},
        "reason": "InsufficientCapacityError",
        "message": "InsufficientInstanceCapacity: none left",
        "lastTimestamp": stamp(at),
        **changes,
    }
    return observe.warning_event(item)


def at(now: float, *warnings: WarningEvent, nodes: int = 0, fresh: bool = True) -> Observation:
    there = seen([node(f"n{index}") for index in range(nodes)])
    return dataclasses.replace(there, now=now, warnings=warnings, fresh=fresh)


def test_a_wait_shows_what_is_there_and_what_is_asked_for() -> None:
    counting = Counting(asked())
    assert (counting.counts.waiting, counting.counts.attempts) == (False, 0), "nothing was seen yet"
    now = counting.see(at(NOW, nodes=1))
    assert (now.pool, now.waiting) == ("small", True)
    assert (now.ready_nodes, now.nodes_wanted, now.attempts) == (1, 4, 1)
    now = counting.see(at(NOW + 1, nodes=2))
    assert (now.waiting, now.ready_nodes) == (True, 2), "it holds for more"


def test_what_is_asked_for_ends_at_the_pools_ceiling() -> None:
    assert Counting(asked()).see(seen([], limit="12")).nodes_wanted == 3


def test_counters_training_ends_wait() -> None:
    counting = Counting(asked(minNodes=2, maxNodes=3))
    now = counting.see(at(NOW, nodes=3))
    assert (now.waiting, now.ready_nodes, now.nodes_wanted) == (False, 3, 3), "it is submitted"
    item = {
        "metadata": {"uid": "t", "labels": {names.LABEL_RUN: "r1", names.LABEL_MANAGED_BY: names.MANAGED_BY}},
        "spec": {"pytorchReplicaSpecs": {"Master": {"replicas": 1}, "Worker": {"replicas": 1}}},
    }
    training = pytorchjob.parse(item, "r1")
    now = counting.see(Observation(now=NOW + 5, fresh=False, training=training))
    assert (now.waiting, now.ready_nodes, now.nodes_wanted, now.attempts) == (False, 2, 2, 1)


def test_counters_pause_requests_no_nodes() -> None:
    counting = Counting(asked(attempts=2))
    counting.see(at(NOW), at(NOW + 200, nodes=1))
    now = counting.see(at(NOW + 300, nodes=1))
    assert counting.memory.progress is not None
    pause_until = counting.memory.progress.pause_until
    assert pause_until is not None, "it pauses"
    assert (now.waiting, now.nodes_wanted, now.ready_nodes, now.attempts) == (True, 0, 1, 1)
    now = counting.see(at(pause_until - 1, nodes=1))
    assert (now.waiting, now.nodes_wanted, now.ready_nodes, now.attempts) == (True, 0, 0, 1)
    now = counting.see(at(pause_until, nodes=1))
    assert (now.waiting, now.nodes_wanted, now.ready_nodes, now.attempts) == (True, 4, 1, 2)
    assert not counting.see(at(pause_until + 300, nodes=1)).waiting, "the run has ended"


def test_idle_machines_add_up_over_attempts() -> None:
    counting = Counting(asked(attempts=2))
    assert counting.see(at(NOW), at(NOW + 200, nodes=1)).idle_node_seconds == 0
    assert counting.see(at(NOW + 300, nodes=1)).idle_node_seconds == pytest.approx(100)
    assert counting.see(at(NOW + 600, nodes=1)).idle_node_seconds == pytest.approx(100), "the pause is over"
    assert counting.see(at(NOW + 610, nodes=1)).idle_node_seconds == pytest.approx(110)


def test_a_failed_end_is_no_wait() -> None:
    now = Counting(asked()).see(at(NOW), at(NOW + 300))
    assert (now.waiting, now.attempts) == (False, 1)


def test_counters_restart_counts_once() -> None:
    counting = Counting(asked(maxRestarts=1), Memory(progress=initial_progress(NOW - 500)))
    going = Training(uid="t", ours=True, nodes=3, outcome="", message="", created=NOW - 100)
    labels = {"training.kubeflow.org/job-name": "train-r1"}
    meta = {"name": "train-r1-worker-0", "namespace": "training", "uid": "w", "labels": labels}
    status = {"phase": "Failed", "reason": "Evicted"}
    evicted = [{"metadata": meta, "spec": {}, "status": status}]
    assert counting.see(seen([], training=going)).restarts == 0
    lost = seen([], evicted, training=going)
    found = counting.see(lost, dataclasses.replace(lost, now=NOW + 2))
    assert (found.restarts, found.waiting, found.ready_nodes) == (1, True, 0)
    again = counting.see(dataclasses.replace(seen([node("a")]), now=NOW + 4))
    assert (again.restarts, again.waiting, again.ready_nodes) == (1, True, 1)
    assert again.idle_node_seconds == 0.0, "the training had them until now"


def test_counters_repeated_refusal_counts_once() -> None:
    counting = Counting(asked())
    one, two = refusal("a"), refusal("b", message="VcpuLimitExceeded: 64")
    vcpus = SMALL._replace(code="VcpuLimitExceeded")
    counting.see(at(NOW, one), at(NOW + 1, one, two), at(NOW + 2, two))
    later = dataclasses.replace(one, at=NOW + 3)
    now = counting.see(at(NOW + 3, later, two), at(NOW + 4, fresh=False), at(NOW + 5, later, two))
    assert now.refused == {SMALL: 1, vcpus: 1}
    assert counting.see(at(NOW + 6, refusal("c", NOW + 6), later)).refused == {SMALL: 2, vcpus: 1}


def test_refusals_of_others_and_from_before_do_not_count() -> None:
    others = (
        refusal("a", about="large-x"),
        refusal("b", NOW - 1),
        refusal("c", involvedObject={"kind": "NodePool", "name": "small-x"}),
        refusal("d", reason="Unconsolidatable", message="not all pods would schedule"),
    )
    assert Counting(asked()).see(at(NOW, *others)).refused == {}


def test_a_refusal_in_the_launchers_first_second_counts() -> None:
    """Events have whole seconds, cut off."""
    assert Counting(asked()).see(at(NOW + 0.9, refusal("a", NOW))).refused == {SMALL: 1}


def test_counters_unknown_code_uses_event_reason() -> None:
    now = Counting(asked()).see(at(NOW, refusal("a", message="no instance type met the requirements")))
    assert [(kind.code, times) for kind, times in now.refused.items()] == [("InsufficientCapacityError", 1)]


def test_refusals_are_of_the_pool_that_is_tried() -> None:
    counting = Counting(asked(fallbacks=[fallback(zone="us-west-2c")]))
    counting.see(at(NOW), at(NOW + 300, refusal("a", NOW + 299)))
    now = counting.see(at(NOW + 301, refusal("a", NOW + 299), refusal("b", NOW + 301, "large-y")))
    assert (now.pool, now.waiting, now.nodes_wanted) == ("large", True, 2)
    other = SMALL._replace(pool="large", zone="us-west-2c", instance_type="p4d.24xlarge")
    assert now.refused == {SMALL: 1, other: 1}


def test_counters_released_node_counts_once() -> None:
    claim = {
        "metadata": {"name": "small-x", "uid": "u", "creationTimestamp": stamp(NOW)},
        "spec": made_for(),
        "status": {"conditions": []},
    }
    counting = Counting(asked(nodeStartSeconds=60))

    def lost(now: float) -> Observation:
        return dataclasses.replace(at(now), claims=(observe.claim(claim),))

    assert counting.see(lost(NOW), lost(NOW + 59)).released_nodes == 0
    assert counting.see(lost(NOW + 60), lost(NOW + 61)).released_nodes == 1


def test_counters_of_next_launcher_start_at_zero() -> None:
    """The other one's counts are in its own series: a sum over the pods of a run has each thing once."""
    inherited = Progress(
        attempt=2,
        candidate=0,
        since=NOW - 900,
        began=NOW - 100,
        released=(Loss(uid="u", message="i-0"),),
        idle_node_seconds=70.0,
    )
    counting = Counting(asked(attempts=3), Memory(progress=inherited))
    now = counting.see(at(NOW, refusal("before", NOW - 50), nodes=1))
    assert (now.attempts, now.released_nodes, now.idle_node_seconds, now.refused) == (0, 0, 0, {})
    now = counting.see(at(NOW + 10, refusal("before", NOW - 50), refusal("own", NOW + 9), nodes=1))
    assert (now.attempts, now.idle_node_seconds, now.refused) == (0, pytest.approx(10), {SMALL: 1})
