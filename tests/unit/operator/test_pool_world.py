"""Random faults of a job in a queue with a pool: nodes come and go, and the controller is killed at any write.

At every start the nodes are those that the job's placeholders hold and that can take a worker: of a fixed size all of
them, else at least as many as it needs. More placeholders than nodes are never there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from launcher.observe import Observation
from tests.unit.operator import test_world
from tests.unit.operator.api import Crash
from tests.unit.operator.made import DIGEST, job, queue
from tests.unit.operator.pool import POOL, PoolApi
from tests.unit.operator.test_world import BUDGETS, KAI, World, check_kills
from trainyard.operator import names as n
from trainyard.operator.context import build_context
from trainyard.operator.nodes import DEADLINE_SECONDS, pool_to_count
from trainyard.operator.plan import ReconcilePlan
from trainyard.operator.reconciler import plan_job

pytestmark = pytest.mark.unit

QUEUES: list[dict[str, Any]] = [{**each, "scheduling.pool": POOL} for each in test_world.QUEUES]
JOBS: list[tuple[int, int, dict[str, Any]]] = [
    (1, 1, {"numGPUs": 8}),
    (2, 2, {"numGPUs": 16}),
    (4, 4, {"numGPUs": 32}),
    (2, 4, {"numGPUs": 32, "elastic": {"minNodes": 2, "maxNodes": 4}}),
    (
        1,
        3,
        {
            "numGPUs": 24,
            "elastic": {"minNodes": 1, "maxNodes": 3},
            "workspace": {"digest": DIGEST, "sizeBytes": 3},
        },
    ),
]
STARTED = (n.PHASE_PROVISIONING, n.PHASE_RUNNING)


class Pooled(World):
    """`starts` has the started attempts: the number of nodes of each, and of those with a placeholder."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.api: PoolApi = PoolApi(limit=self.chance.choice([3, 4, 6]))
        self.api.left = self.chance.choice([1, 3, 99])
        self.queue = queue(self.chance.choice(QUEUES))
        self.api.create(self.queue)
        self.least, self.most, spec = self.chance.choice(JOBS)
        self.most_restarts = max(BUDGETS)  # so that many attempts begin
        made = job({**spec, "maxRestarts": self.most_restarts})
        made["metadata"]["namespace"] = "team"
        self.api.create(made)
        self.uid = self.api.objects[n.JOB_KIND, "vit"]["metadata"]["uid"]
        self.starts: list[tuple[int, int]] = []
        self.lagging: Observation | None = None

    def seen(self) -> tuple[Any, ...] | None:
        given = super().seen()
        if given is None:
            return None
        fresh = self.api.observation()
        lagging, self.lagging = self.lagging or fresh, fresh
        return *given, lagging, fresh, self.api.nodes_of_placeholders()

    def reconcile(self, seen: tuple[Any, ...] | None = None) -> ReconcilePlan | None:
        given = seen or self.seen()
        if given is None:
            return None
        self.old.append(given)
        item, its_queue, children, now, lagging, fresh, held = given
        ctx = build_context(item, its_queue, children, KAI, now)
        pool = bool(pool_to_count(ctx))
        # What is shared may be a second old.
        older = Observation(**{**vars(lagging), "fresh": False, "now": now})
        decision = plan_job(replace(ctx, pool=older if pool else None))
        if decision.recount:
            assert decision == ReconcilePlan(recount=True)
            decision = plan_job(replace(ctx, pool=fresh))
        assert not decision.recount
        began = len(self.api.log)
        try:
            self.api.apply(item, decision)
        except Crash:
            pass
        finally:
            if "put" in self.api.log[began:]:
                self._started(item.get("status", {}), decision.status or {}, held)
                self.failures += "has no node after" in (decision.status or {}).get("message", "")
            self.api.settle()
            self.check()
        return decision

    def _started(self, before: dict[str, Any], after: dict[str, Any], held: int) -> None:
        if after.get("phase") not in STARTED or before.get("phase") in STARTED:
            return
        nodes = after["nodes"]
        self.starts.append((nodes, held))
        assert self.least <= nodes <= self.most
        assert nodes == min(held, self.most), f"{nodes} nodes, and {held} are held"

    def check(self) -> None:
        super().check()
        assert len(self.api.placeholders()) <= self.most
        assert self.api.limit is None or len(self.api.claims) <= self.api.limit

    # --- what happens

    def the_cluster_works(self) -> None:
        self.api.turn()

    def a_machine_flaps(self) -> None:
        if self.api.nodes:
            self.api.ready(self.chance.choice(sorted(self.api.nodes)), self.chance.random() < 0.6)

    def a_machine_is_lost(self) -> None:
        if self.api.nodes:
            self.lose(self.chance.choice(sorted(self.api.nodes)))

    def lose(self, name: str) -> None:
        self.failures += any(n.LABEL_ATTEMPT in each["metadata"]["labels"] for each in self.api.pods_on(name))
        self.api.lose(name)

    def a_machine_is_cordoned(self) -> None:
        for node in self.api.nodes.values():
            node["spec"]["unschedulable"] = self.chance.random() < 0.1

    def machines_have_their_devices(self) -> None:
        for node in self.api.nodes.values():
            node["status"]["allocatable"]["nvidia.com/gpu"] = self.chance.choice(["8"] * 9 + ["7"])

    def somebody_else_comes(self) -> None:
        if self.api.nodes and self.chance.random() < 0.3:
            self.api.occupy(self.chance.choice(sorted(self.api.nodes)))

    def somebody_else_goes(self) -> None:
        self.api.others.clear()

    def more_can_be_bought(self) -> None:
        self.api.left = self.chance.choice([0, 1, 9])

    def the_pool_changes(self) -> None:
        self.api.limit = self.chance.choice([max(1, len(self.api.claims)), 6, None])
        self.api.exists = self.chance.random() < 0.9

    def the_deadline_comes(self) -> None:
        self.api.now += self.chance.choice([59, 61, DEADLINE_SECONDS])

    def succeeded_jobs(self) -> None:
        """End all faults of the pool."""
        self.api.exists, self.api.limit, self.api.left = True, 8, 99
        self.api.others.clear()
        for name in list(self.api.nodes):
            self.lose(name)

    def a_child_is_deleted(self) -> None:
        names = self.api.placeholders()
        if names and self.chance.random() < 0.5:
            self.api.delete("Pod", self.chance.choice(names))
        else:
            super().a_child_is_deleted()


HAPPENINGS = [
    "workers_run", "workers_end_well", "a_worker_fails", "a_node_is_lost", "nodes_are_removed", "suspend",
    *["resume"] * 3, "queue_goes", *["queue_comes"] * 3, "a_child_is_deleted", "time_passes", "a_machine_is_lost",
    "a_machine_is_cordoned",
    "a_machine_flaps", "machines_have_their_devices", "somebody_else_comes", "somebody_else_goes",
    "more_can_be_bought", "the_pool_changes", "the_deadline_comes", *["the_cluster_works"] * 16, *["it_looks"] * 16,
    *["it_is_killed"] * 3, *["it_sees_what_was"] * 2,
]  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("part", range(4))
def test_pool_with_random_faults_ends_every_job(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_world, "HAPPENINGS", HAPPENINGS)
    starts: list[tuple[int, int]] = []
    for seed in range(part * 20, part * 20 + 20):
        world = Pooled(seed)
        try:
            live(world)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        starts += world.starts
    assert len(starts) > 30
    assert {nodes for nodes, _ in starts} == {1, 2, 3, 4}


def live(world: Pooled) -> None:
    """Cause faults, then none. The job ends, its workers start together, and no objects remain."""
    for _ in range(120):
        world.happen()
    world.nodes_are_removed()
    world.queue_comes()
    world.resume()
    world.succeeded_jobs()
    for _ in range(6):
        world.quiet()
        world.api.now += 300
        for _ in range(4):
            world.api.turn()
            world.quiet()
        if world.final:
            break
        assert all(each["spec"]["nodeName"] for each in world.api.workers()), (
            "a gang of which some have no node"
        )
        world.workers_run()
        world.quiet()
        world.api.run_pods("Succeeded", exit_code=0)
    world.quiet()
    assert world.final, world.api.get(n.JOB_KIND, "vit")
    assert world.api.placeholders() == []


class Story(Pooled):
    """The same events for each write before which the controller is killed once."""

    def __init__(self) -> None:
        super().__init__(3)
        self.api = PoolApi(limit=8)
        self.api.left = 3
        self.queue = queue(QUEUES[0])
        self.api.create(self.queue)
        self.least, self.most = 2, 4
        spec = {
            "numGPUs": 32,
            "elastic": {"minNodes": 2, "maxNodes": 4},
            "workspace": {"digest": DIGEST, "sizeBytes": 3},
        }
        made = job(spec)
        made["metadata"]["namespace"] = "team"
        self.api.create(made)
        self.lagging = None

    def turns(self) -> None:
        for _ in range(4):
            self.quiet()
            self.api.turn()
        self.quiet()

    def lose_one(self) -> None:
        self.workers_run()
        self.quiet()
        self.lose(sorted(self.api.nodes)[0])
        self.api.left = 1
        self.turns()

    def suspend(self) -> None:
        self.workers_run()
        super().suspend()
        self.turns()

    def lose_two(self) -> None:
        self.resume()
        self.api.left = 0
        self.lose(sorted(self.api.nodes)[0])
        self.lose(sorted(self.api.nodes)[0])
        self.turns()

    def pass_the_deadline(self) -> None:
        self.api.now += DEADLINE_SECONDS
        self.turns()
        assert self.api.placeholders() == []

    def find_capacity(self) -> None:
        self.api.left, self.api.now = 9, self.api.now + 300
        self.turns()

    def succeed(self) -> None:
        self.workers_run()
        self.quiet()
        self.api.run_pods("Succeeded", exit_code=0)
        self.quiet()

    def end(self) -> dict[str, Any]:
        status: dict[str, Any] = self.api.objects[n.JOB_KIND, "vit"]["status"]
        left = sorted(f"{kind} {name}" for kind, name in self.api.objects if kind != "Pod")
        shown = {key: status[key] for key in ("phase", "attempt", "restarts", "nodes", "exitCode")}
        ran = [name for _, name in self.api.ran]
        return {**shown, "left": left, "ran": ran, "bought": self.api.bought, "starts": self.starts}


STEPS = ("turns", "lose_one", "suspend", "lose_two", "pass_the_deadline", "find_capacity", "succeed")


@pytest.mark.long
def test_controller_killed_before_any_write_ends_the_same() -> None:
    story = check_kills(Story(), STEPS, Story.end)
    end = Story.end(story)
    assert end["phase"] == "Succeeded"
    assert [nodes for nodes, _ in end["starts"]] == [3, 3, 4]
    assert (end["attempt"], end["restarts"]) == (2, 1)
    assert {"delete Pod vit-hold-3", "create Pod vit-hold-0"} <= set(story.api.written)
