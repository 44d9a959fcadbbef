"""Seeded lives of a job with random events: the same promises hold whatever happens, and wherever the controller stops.

`World` runs plans on a small API server, `Pooled` on one with a Karpenter pool. Before any write the controller may be
killed, and a reconcile may be given what was true some time ago.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from launcher.observe import Observation
from tests.unit.operator.api import Api, Crash, copied
from tests.unit.operator.made import CLUSTER, DIGEST, job, queue
from tests.unit.operator.pool import POOL, PoolApi
from trainyard.operator import names as n
from trainyard.operator.attempt import BACKOFF_MAX_SECONDS
from trainyard.operator.context import build_context
from trainyard.operator.nodes import DEADLINE_SECONDS, pool_to_count
from trainyard.operator.plan import ReconcilePlan
from trainyard.operator.reconciler import plan_job

BUDGETS = [0, 1, 3]
KAI = replace(CLUSTER, kai=True)
VOLUMES = {
    "storage.workspace": {"enabled": True, "size": "1Gi"},
    "storage.checkpoints": {"enabled": True, "size": "1Gi", "retain": True, "storageClass": "fsx"},
}
QUEUES: list[dict[str, Any]] = [{}, VOLUMES, {**VOLUMES, "scheduling.scheduler": "kai-scheduler"}]
SENT = {"workspace": {"digest": DIGEST, "sizeBytes": 3}}
JOBS: list[dict[str, Any]] = [
    {"numGPUs": 8},
    {"numGPUs": 16, "numNodes": 2},
    {"numGPUs": 32, "elastic": {"minNodes": 2, "maxNodes": 4}},
    {"numGPUs": 32, "elastic": {"minNodes": 1, "maxNodes": 4}},
    {"numGPUs": 16, **SENT},
    {"numGPUs": 16, "activeDeadlineSeconds": 400},
]


def attempt_of(item: dict[str, Any]) -> str:
    return str(item["metadata"]["labels"][n.LABEL_ATTEMPT])


class World:
    """A job, its queue, and what happens to them. Every promise is checked at every step."""

    happenings: Sequence[str] = (
        "workers_run", "workers_end_well", "a_worker_ends_well", *["a_worker_fails"] * 2, "a_node_is_lost",
        "nodes_are_removed", "a_machine_comes", "the_job_controller_takes_its_time", "the_job_controller_works",
        "suspend", "resume", "queue_goes", "queue_comes", "queue_gets_another_image", "resize", "sync",
        "a_child_is_deleted", "time_passes", "time_to_live_is_given", *["it_looks"] * 10, *["it_is_killed"] * 3,
        *["it_sees_what_was"] * 3,
    )  # fmt: skip

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)  # noqa: S311
        self.api = Api()
        self.api.machines = self.chance.choice([None, None, 1, 2])
        self.queue = queue(self.chance.choice(QUEUES))
        if self.chance.random() < 0.7:
            self.api.create(self.queue)
        self.most_restarts = self.chance.choice(BUDGETS)
        self.api.create(job({**self.chance.choice(JOBS), "maxRestarts": self.most_restarts}))
        self.old: deque[tuple[Any, ...]] = deque(maxlen=30)
        self.final = ""
        self.ran_at_the_end = 0
        self.claims: set[str] = set()
        self.failures = 0
        self.deleted: set[str] = set()  # Jobs that another client deleted
        self.trained_by = ""  # the attempt that has succeeded

    def seen(self) -> tuple[Any, ...] | None:
        item = self.api.get(n.JOB_KIND, "vit")
        children = [each for each in self.api.list() if each["kind"] not in (n.JOB_KIND, n.QUEUE_KIND)]
        return item and (item, self.api.get(n.QUEUE_KIND, "research"), children, self.api.now)

    def reconcile(self, old: tuple[Any, ...] | None = None) -> ReconcilePlan | None:
        """Apply one plan of the present objects, or of old ones, up to a crash."""
        seen = old or self.seen()
        if seen is None:
            return None
        self.old.append(seen)
        item, its_queue, children, now = seen
        plan = plan_job(build_context(item, its_queue, children, KAI, now))
        assert plan == plan_job(build_context(item, its_queue, children, KAI, now))
        with suppress(Crash):
            self.api.apply(item, plan)
        self.check(old=old is not None)
        self.api.settle()
        self.check()
        return plan

    def quiet(self) -> None:
        """No more harm: looks until nothing is left to do."""
        for _ in range(40):
            decision = self.reconcile()
            if decision is None or replace(decision, requeue_after=None, events=()) == ReconcilePlan():
                return
        raise AssertionError(f"no end: {decision}")

    def pods(self) -> list[dict[str, Any]]:
        """Return the pods of workers."""
        return [each for each in self.api.of_kind("Pod") if n.LABEL_ATTEMPT in each["metadata"]["labels"]]

    def succeeded_attempt(self) -> str:
        """Return the attempt of which enough Jobs have succeeded, none of which another client deleted.

        No worker failed, and none of its other Jobs runs.
        """
        well: dict[str, list[dict[str, Any]]] = {}
        success = {"type": "SuccessCriteriaMet", "status": "True"}
        for each in self.api.of_kind("Job"):
            if success in each.get("status", {}).get("conditions", []):
                well.setdefault(attempt_of(each), []).append(each["metadata"])
        reported = {job["uid"] for jobs in well.values() for job in jobs}
        unended = {
            attempt_of(each)
            for each in self.pods()
            if each.get("status", {}).get("phase") in ("Failed", "Running")
            and "deletionTimestamp" not in each["metadata"]
            and each["metadata"]["ownerReferences"][0]["uid"] not in reported
        }
        for attempt, jobs in well.items():
            parts, size = (jobs[0]["annotations"][key] for key in (n.ANNOTATION_PARTS, n.ANNOTATION_SIZE))
            enough = min(int(parts), int(size.split(":")[0])) if ":" in size else int(parts)
            deleted = self.deleted & {each["name"] for each in jobs}
            if attempt not in unended and len(jobs) >= enough and not deleted:
                return attempt
        return ""

    def check(self, *, old: bool = False) -> None:
        """Check what always holds. A plan of old objects may end what has succeeded since."""
        api, pods = self.api, self.pods()
        live = {attempt_of(each) for each in pods}
        assert len(live) <= 1, f"workers of attempts {live} at once"
        images = {each["spec"]["containers"][0]["image"] for each in pods}
        assert len(images) <= 1, f"workers of attempt {live} with {images}"
        names = [name for _, name in api.ran]
        # A Job that another client deleted may come again by an old plan, under the same number, while its end
        # was not noticed (docs/decisions/0022).
        twice = {name for name in names if names.count(name) > 1}
        assert twice <= self.deleted, f"a Job ran twice: {names}"
        for (kind, name), each in api.objects.items():
            kept = kind == "PersistentVolumeClaim" and name.endswith("checkpoints")
            is_root = kind in (n.JOB_KIND, n.QUEUE_KIND)
            assert is_root or kept or each["metadata"].get("ownerReferences"), name
        claims = {name for kind, name in api.objects if kind == "PersistentVolumeClaim"}
        assert {each for each in self.claims if each.endswith("checkpoints")} <= claims
        self.claims |= claims
        item = api.objects.get((n.JOB_KIND, "vit"))
        status = item.get("status", {}) if item is not None else {}
        assert status.get("restarts", 0) <= min(self.most_restarts, self.failures)
        over = status.get("phase") in n.FINAL_PHASES
        if not self.trained_by and not over:
            self.trained_by = self.succeeded_attempt()
        if self.trained_by and item is not None:
            # An old plan may resume a Job of the same attempt, which the next plan deletes.
            last = n.attempt_name("vit", int(self.trained_by))
            later = names[names.index(last) :]
            assert all(name == last or name.startswith(f"{last}-") for name in later), "success ran again"
            if old and over and not self.final:
                self.trained_by = ""
            else:
                assert status["phase"] == "Succeeded" or not over, "what had succeeded has not"
        if self.final:
            assert item is None or status["phase"] == self.final
            assert len(api.ran) == self.ran_at_the_end, "an attempt after the end"
        elif over:
            self.final, self.ran_at_the_end = status["phase"], len(api.ran)

    # --- what happens

    def happen(self) -> None:
        getattr(self, self.chance.choice(self.happenings))()
        self.api.settle()
        self.check()

    def _edit(self, **spec: Any) -> None:
        if (n.JOB_KIND, "vit") in self.api.objects:
            self.api.edit(n.JOB_KIND, "vit", **spec)

    def workers_run(self) -> None:
        if self.api.run_pods("Running"):
            self.trained_by = ""  # the controller waits for a running worker, unless it noticed the success

    def all_end_well(self) -> None:
        self.api.run_pods("Succeeded", exit_code=0)

    def workers_end_well(self) -> None:
        if self.chance.random() < 0.2:
            self.all_end_well()

    def a_worker_ends_well(self) -> None:
        self.api.run_pods("Succeeded", exit_code=0, only=self.chance.randrange(8))

    def a_worker_fails(self) -> None:
        if self.api.run_pods("Failed", exit_code=1, only=self.chance.randrange(8)):
            self.failures += 1
            self.trained_by = ""  # it ends the attempt, unless the controller noticed the success

    def a_node_is_lost(self) -> None:
        if pods := self.pods():
            meta = self.chance.choice(pods)["metadata"]
            meta["stuck"] = True
            self.api.delete("Pod", meta["name"])
            self.failures += 1

    def nodes_are_removed(self) -> None:
        for each in self.api.objects.values():
            each["metadata"].pop("stuck", None)

    def a_machine_comes(self) -> None:
        self.api.bring(None if self.api.machines is None else self.api.machines + 1)

    def the_job_controller_takes_its_time(self) -> None:
        self.api.prompt = False

    def the_job_controller_works(self) -> None:
        self.api.prompt = True

    def suspend(self) -> None:
        self._edit(suspend=True)

    def resume(self) -> None:
        self._edit(suspend=False)

    def queue_goes(self) -> None:
        self.api.objects.pop((n.QUEUE_KIND, "research"), None)

    def queue_comes(self) -> None:
        self.api.create(self.queue)

    def queue_gets_another_image(self) -> None:
        if (n.QUEUE_KIND, "research") in self.api.objects:
            self.api.edit(n.QUEUE_KIND, "research", image=self.chance.choice(["a/b:1", "a/b:2"]))

    def resize(self) -> None:
        item = self.api.get(n.JOB_KIND, "vit")
        if item is not None and "elastic" in item["spec"]:
            self._edit(elastic={"minNodes": self.chance.choice([1, 2]), "maxNodes": 4})
        else:
            self._edit(numNodes=self.chance.choice([1, 2, 4]))

    def fit(self) -> None:
        """A size that the queue has room for."""
        item = self.api.get(n.JOB_KIND, "vit")
        if item is not None and "elastic" not in item["spec"]:
            self._edit(numNodes=2)

    def sync(self) -> None:
        digest = "sha256:" + self.chance.choice("abcdef") * 64
        self._edit(workspace={"digest": digest, "sizeBytes": 3, "restartOnSync": self.chance.random() < 0.5})

    def a_child_is_deleted(self) -> None:
        children = self.api.list("Job", "Service", "PodGroup", "Pod")
        if mine := [each for each in children if n.LABEL_JOB in each["metadata"]["labels"]]:
            chosen = self.chance.choice(mine)
            self.failures += chosen["kind"] in ("Job", "Pod")
            if chosen["kind"] == "Job":
                self.deleted.add(chosen["metadata"]["name"])
                self.trained_by = ""
            self.api.delete(chosen["kind"], chosen["metadata"]["name"])

    def time_passes(self) -> None:
        self.api.now += self.chance.choice([1, 30, 200])

    def time_to_live_is_given(self) -> None:
        if self.chance.random() < 0.2:
            self._edit(ttlSecondsAfterFinished=10)

    def it_looks(self) -> None:
        self.reconcile()

    def it_is_killed(self) -> None:
        self.api.crash_after(self.chance.randrange(9))
        self.reconcile()
        self.api.crash_at = None

    def it_sees_what_was(self) -> None:
        if self.old:
            self.reconcile(self.chance.choice(self.old))


@pytest.mark.long
@pytest.mark.parametrize("part", range(4))
def test_whatever_happens(part: int) -> None:
    ends = set()
    for seed in range(part * 20, part * 20 + 20):
        world = World(seed)
        try:
            for _ in range(60):
                world.happen()
            # Then nothing stands in its way any more, and it ends.
            world.nodes_are_removed()
            world.api.bring(None)
            world.the_job_controller_works()
            world.queue_comes()
            world.fit()
            world.resume()
            world.api.settle()
            world.quiet()
            for _ in range(4):
                world.api.now += BACKOFF_MAX_SECONDS  # after one that failed
                world.quiet()
                world.workers_run()
                world.quiet()
                world.api.run_pods("Succeeded", exit_code=0)
                world.quiet()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        assert world.final, f"seed {seed}: {world.api.get(n.JOB_KIND, 'vit')}"
        ends.add(world.final)
    assert ends == set(n.FINAL_PHASES)


STEPS = (
    "it_looks", "workers_run", "a_worker_fails", "workers_run", "suspend", "resume", "workers_run", "all_end_well",
)  # fmt: skip


def live(world: World, steps: Sequence[str]) -> dict[str, Any]:
    """Let this happen, each after all reconciles. Return the end."""
    for step in steps:
        getattr(world, step)()
        world.quiet()
    status: dict[str, Any] = world.api.objects[n.JOB_KIND, "vit"]["status"]
    left = sorted(f"{kind} {name}" for kind, name in world.api.objects if kind != "Pod")
    shown = {key: status.get(key) for key in ("phase", "attempt", "restarts", "nodes", "exitCode")}
    return {**shown, "left": left, "ran": [name for _, name in world.api.ran]}


@pytest.mark.long
def test_controller_killed_before_any_write_ends_the_same() -> None:
    """A life with a kill begins with the step of that write, and ends as the undisturbed one."""
    world = World(3)
    world.api, world.queue = Api(), queue({**VOLUMES, "scheduling.scheduler": "kai-scheduler"})
    world.api.create(world.queue)
    world.api.create(job({"numGPUs": 16, **SENT}))
    before: list[World] = []
    for step in STEPS:
        before.append(copied(world))
        expected = live(world, [step])
    assert (expected["phase"], expected["attempt"], expected["restarts"]) == ("Succeeded", 2, 1)
    writes = world.api.written
    assert len(writes) > 25
    for index, saved in enumerate(before):
        later = before[index + 1].api.written if index + 1 < len(before) else writes
        for kill_at in range(len(saved.api.written), len(later)):
            killed = copied(saved)
            killed.api.crash_at = kill_at
            assert live(killed, STEPS[index:]) == expected, (kill_at, writes[kill_at])
            assert killed.api.crash_at is None


# --- with a pool

POOL_QUEUES: list[dict[str, Any]] = [{**each, "scheduling.pool": POOL} for each in QUEUES]
# The minimum and the maximum of nodes, and the spec.
POOL_JOBS: list[tuple[int, int, dict[str, Any]]] = [
    (1, 1, {"numGPUs": 8}),
    (2, 2, {"numGPUs": 16}),
    (4, 4, {"numGPUs": 32}),
    (2, 4, {"numGPUs": 32, "elastic": {"minNodes": 2, "maxNodes": 4}}),
    (1, 3, {"numGPUs": 24, "elastic": {"minNodes": 1, "maxNodes": 3}, **SENT}),
]
STARTED = (n.PHASE_PROVISIONING, n.PHASE_RUNNING)


class Pooled(World):
    """A job in a queue with a pool: nodes come and go.

    At every start the nodes are those that the job's placeholders hold and that can take a worker: of a fixed size
    all of them, else at least as many as it needs. More placeholders than nodes are never there.

    Attributes:
        starts: The started attempts: the number of nodes of each, and of those with a placeholder.
    """

    happenings = (
        "workers_run", "workers_end_well", "a_worker_fails", "a_node_is_lost", "nodes_are_removed", "suspend",
        *["resume"] * 3, "queue_goes", *["queue_comes"] * 3, "a_child_is_deleted", "time_passes",
        "a_machine_is_lost", "a_machine_is_cordoned", "a_machine_flaps", "machines_have_their_devices",
        "somebody_else_comes", "somebody_else_goes", "more_can_be_bought", "the_pool_changes",
        "the_deadline_comes", *["the_cluster_works"] * 16, *["it_looks"] * 16, *["it_is_killed"] * 3,
        *["it_sees_what_was"] * 2,
    )  # fmt: skip

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.api: PoolApi = PoolApi(limit=self.chance.choice([3, 4, 6]))
        self.api.left = self.chance.choice([1, 3, 99])
        self.queue = queue(self.chance.choice(POOL_QUEUES))
        self.api.create(self.queue)
        self.least, self.most, spec = self.chance.choice(POOL_JOBS)
        self.most_restarts = max(BUDGETS)  # so that many attempts begin
        self.api.create(job({**spec, "maxRestarts": self.most_restarts}))
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
        with suppress(Crash):
            self.api.apply(item, decision)
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


@pytest.mark.long
@pytest.mark.parametrize("part", range(4))
def test_pool_with_random_faults_ends_every_job(part: int) -> None:
    starts: list[tuple[int, int]] = []
    for seed in range(part * 10, part * 10 + 10):
        world = Pooled(seed)
        try:
            live_with_faults(world)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        starts += world.starts
    assert len(starts) > 15
    assert len({nodes for nodes, _ in starts}) > 2


def live_with_faults(world: Pooled) -> None:
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
        assert all(each["spec"]["nodeName"] for each in world.api.workers()), "some of a gang have no node"
        world.workers_run()
        world.quiet()
        world.api.run_pods("Succeeded", exit_code=0)
    world.quiet()
    assert world.final, world.api.get(n.JOB_KIND, "vit")
    assert world.api.placeholders() == []
