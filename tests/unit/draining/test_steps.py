"""The steps of the drain, with a fake cluster and account."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from components.draining.cluster_api import DrainError
from components.draining.kinds import (
    GANGS,
    HOLDERS,
    INGRESSES,
    JOBS,
    MPI_JOBS,
    NODE_CLAIMS,
    NODE_CLASSES,
    NODE_POOLS,
    NODES,
    PODS,
    PYTORCH_JOBS,
    QUEUES,
    SERVICES,
    TRAIN_JOBS,
    VOLUME_CLAIMS,
    VOLUMES,
    Kind,
)
from components.draining.steps import Clock, run


class World:
    """A cluster's objects by kind, the account's instances, and a log of the calls.

    A deleted object disappears if `finishes` returns true for its kind. A node claim takes its instance with it.
    """

    def __init__(self, objects: dict[Kind, list[str]], instances: list[str]) -> None:
        self.objects = {kind: list(names) for kind, names in objects.items()}
        self.alive = list(instances)
        self.log: list[str] = []
        self.finishes: Callable[[Kind], bool] = lambda _: True
        self.terminates = True
        self.is_controller_running = True
        self.blocking_pods: list[str] = []
        # Per round, the objects that mount the claims and block their deletion.
        self.users: list[list[str]] = []
        self.leftovers: list[str] = []
        # The pods of each node, which are still there after the node is deleted.
        self.pods_of: dict[str, list[str]] = {}

    def names(self, kind: Kind) -> list[str]:
        return list(self.objects.get(kind, []))

    def delete(self, kind: Kind, name: str) -> None:
        self.log.append(f"delete {kind.plural}/{name}")
        blocked = (kind == NODE_CLAIMS and self.blocking_pods) or (kind == VOLUME_CLAIMS and self.users)
        if self.finishes(kind) and not blocked and name in self.objects.get(kind, []):
            self._remove(kind, name)

    def _remove(self, kind: Kind, name: str) -> None:
        self.objects[kind].remove(name)
        if kind == NODE_CLAIMS and self.alive:
            self.alive.pop()
        if kind == NODE_CLAIMS and self.objects.get(NODES):
            self.objects[NODES].pop()
        if kind == VOLUME_CLAIMS and self.finishes(VOLUMES):
            self.objects[VOLUMES] = []

    def remove_finalizers(self, kind: Kind, name: str) -> None:
        self.log.append(f"release {kind.plural}/{name}")
        if name in self.objects.get(kind, []):
            self.objects[kind].remove(name)

    def controller_runs(self) -> bool:
        return self.is_controller_running

    def delete_blocking_pods(self) -> list[str]:
        pods, self.blocking_pods = self.blocking_pods, []
        if pods:  # Karpenter now finishes the claims that were deleted
            for name in self.names(NODE_CLAIMS):
                self._remove(NODE_CLAIMS, name)
        return pods

    def forget_pods_of(self, nodes: frozenset[str]) -> list[str]:
        self.log.append(f"forget pods of {','.join(sorted(nodes))}")
        return [pod for node in sorted(nodes) for pod in self.pods_of.get(node, [])]

    def claims_of_volumes(self) -> list[str]:
        return self.names(VOLUME_CLAIMS)

    def end_users_of_claims(self, claims: list[str]) -> list[str]:
        self.log += [f"end users of {name}" for name in claims if self.users]
        return self.users.pop(0) if self.users else []

    def instances(self) -> list[str]:
        return list(self.alive)

    def terminate(self, instances: list[str]) -> None:
        self.log.append(f"terminate {','.join(instances)}")
        if self.terminates:
            self.alive = [i for i in self.alive if i not in instances]

    def remove_leftovers_of_instances(self) -> list[str]:
        self.log.append("remains")
        return self.leftovers


class Time(Clock):
    """A clock that moves only in `sleep`."""

    def __init__(self) -> None:
        self.seconds = 0.0
        super().__init__(now=lambda: self.seconds, sleep=self.advance)

    def advance(self, seconds: float) -> None:
        self.seconds += seconds


def busy() -> World:
    return World(
        {
            JOBS: ["launch-r1"],
            PYTORCH_JOBS: ["train-r1"],
            MPI_JOBS: ["mpi-r2"],
            TRAIN_JOBS: ["train-r3"],
            GANGS: ["team/a"],
            QUEUES: ["training/research"],
            HOLDERS: ["warm-small"],
            PODS: ["hold-r1-0"],
            SERVICES: ["web/front"],
            INGRESSES: ["web/front"],
            NODE_POOLS: ["small"],
            NODE_CLAIMS: ["small-a", "small-b"],
            NODE_CLASSES: ["small"],
            NODES: ["n1", "n2"],
            VOLUMES: ["pv-1"],
            VOLUME_CLAIMS: ["training/data"],
        },
        ["i-1", "i-2"],
    )


def drain(world: World, timeout: float = 600) -> list[str]:
    lines: list[str] = []
    run(world, world, timeout=timeout, report=lines.append, clock=Time())
    return lines


def second_of(lines: list[str], text: str) -> float:
    """Return the second at which the only line with this text was printed."""
    (line,) = [line for line in lines if text in line]
    return float(line.split(" s:")[0])


def test_drain_deletes_jobs_then_nodes_then_volumes() -> None:
    world = busy()
    lines = drain(world)
    assert [entry.split("/")[0] for entry in world.log] == [
        "delete jobs",
        "delete pytorchjobs",
        "delete mpijobs",
        "delete trainjobs",
        "delete torchrunjobs",
        "delete torchrunqueues",
        "delete deployments",
        "delete pods",
        "delete services",
        "delete ingresses",
        "delete nodepools",
        "delete nodeclaims",
        "delete nodeclaims",
        "forget pods of n1,n2",
        "delete persistentvolumeclaims",
        "delete ec2nodeclasses",
        "remains",
    ]
    assert world.alive == []
    assert lines[-1].endswith("no node is left")


def test_drain_removes_pods_of_deleted_nodes_only() -> None:
    world = World({NODE_CLAIMS: ["small-a"], NODES: ["own", "gone"]}, ["i-1"])
    world.pods_of = {"gone": ["plugins/efa-1"], "own": ["plugins/efa-2"]}
    lines = drain(world)
    assert [entry for entry in world.log if entry.startswith("forget")] == ["forget pods of gone"]
    assert any(line.endswith("removed pods of deleted nodes: plugins/efa-1") for line in lines)


def test_drain_without_deleted_nodes_removes_no_pods() -> None:
    world = World({NODES: ["own"]}, [])
    drain(world)
    assert not [entry for entry in world.log if entry.startswith("forget")]


def test_drain_of_an_empty_cluster_is_immediate() -> None:
    world = World({}, [])
    assert drain(world) == ["0 s: no node is left"]
    assert world.log == ["remains"]


def test_drain_after_a_failed_drain_finishes() -> None:
    world = busy()
    world.finishes = lambda kind: kind != PYTORCH_JOBS
    with pytest.raises(DrainError):
        drain(world)
    world.finishes = lambda _: True
    drain(world)
    assert not any(names for kind, names in world.objects.items() if kind not in (NODES,))


def test_drain_deletes_pods_that_block_karpenter() -> None:
    world = busy()
    world.blocking_pods = ["web/pinned"]
    lines = drain(world)
    assert any("deleting pods that block nodes: web/pinned" in line for line in lines)
    assert not [entry for entry in world.log if entry.startswith("terminate")], (
        "Karpenter ends the instances itself"
    )


def test_drain_terminates_instances_if_karpenter_does_not_finish() -> None:
    world = busy()
    world.finishes = lambda kind: kind not in (NODE_CLAIMS, NODES, NODE_CLASSES)
    lines = drain(world)
    assert "terminate i-1,i-2" in world.log
    released = [entry for entry in world.log if entry.startswith("release")]
    assert world.log.index("terminate i-1,i-2") < world.log.index(released[0]), "released too early"
    assert world.names(NODE_CLAIMS) == world.names(NODE_CLASSES) == []
    assert second_of(lines, "Karpenter does not finish") == 300


def test_drain_does_not_wait_for_a_stopped_controller() -> None:
    world = busy()
    world.is_controller_running = False
    world.finishes = lambda kind: kind not in (NODE_CLAIMS, NODES, NODE_CLASSES, NODE_POOLS)
    lines = drain(world)
    assert second_of(lines, "Karpenter is not running") < 60
    assert world.names(NODE_CLASSES) == world.names(NODE_POOLS) == []
    assert world.alive == []


def test_drain_releases_what_karpenter_leaves_after_two_minutes() -> None:
    world = busy()
    world.finishes = lambda kind: kind not in (NODE_CLASSES, NODE_POOLS)
    world.leftovers = ["instance profile small"]
    lines = drain(world)
    assert {"release ec2nodeclasses/small", "release nodepools/small"} <= set(world.log)
    assert second_of(lines, "releasing 1 nodepools") - second_of(lines, "deleting NodeClaims") < 240
    assert world.log[-1] == "remains", "instance profiles are removed after the node classes"
    assert any("removed instance profile small" in line for line in lines)


@pytest.mark.parametrize(
    ("kind", "released"),
    [(GANGS, "release torchrunjobs/team/a"), (QUEUES, "release torchrunqueues/training/research")],
)
def test_drain_releases_torchrun_objects_after_two_minutes(kind: Kind, released: str) -> None:
    world = busy()
    world.finishes = lambda each: each != kind
    lines = drain(world)
    assert 120 <= second_of(lines, f"releasing 1 {kind.plural}") <= 122
    assert world.log.index(released) < world.log.index("delete nodepools/small")
    assert world.names(GANGS) == world.names(QUEUES) == world.alive == []


@pytest.mark.parametrize("has_cluster", [True, False])
def test_drain_terminates_instances_without_claim_or_cluster(has_cluster: bool) -> None:
    world = World({}, ["i-9"])
    lines: list[str] = []
    run(world if has_cluster else None, world, timeout=60, report=lines.append, clock=Time())
    assert world.log == ["terminate i-9", "remains"]
    assert (lines[0] == "0 s: the cluster does not exist; looking for its instances") is not has_cluster


def test_drain_releases_nothing_while_an_instance_runs() -> None:
    world = busy()
    world.finishes = lambda kind: kind not in (NODE_CLAIMS, NODE_CLASSES)
    world.terminates = False
    with pytest.raises(DrainError, match=r"2 instances left: i-1, i-2; terminate them"):
        drain(world)
    assert not [entry for entry in world.log if entry.startswith("release")]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (PYTORCH_JOBS, r"pytorchjobs do not end: train-r1 \(namespace training\)"),
        (SERVICES, r"services do not end: web/front"),
    ],
)
def test_drain_names_a_blocking_object_and_keeps_the_nodes(kind: Kind, message: str) -> None:
    world = busy()
    world.finishes = lambda each: each != kind
    with pytest.raises(DrainError, match=message):
        drain(world)
    assert "delete nodepools/small" not in world.log


def test_drain_deletes_users_of_a_volume_before_its_claim() -> None:
    """The pods may run on system nodes, which the drain keeps, and an operator may create them again."""
    world = busy()
    world.users = [["deployments web/front", "pods web/shell"], [], ["statefulsets web/base"]]
    lines = drain(world)
    messages = [line.partition(": ")[2] for line in lines if "volume" in line]
    assert messages == [
        "deleting what mounts volumes: deployments web/front, pods web/shell",
        "deleting volume claims: training/data",
        "deleting what mounts volumes: statefulsets web/base",
    ]
    assert world.names(VOLUMES) == []
    first = world.log.index("end users of training/data")
    assert first < world.log.index("delete persistentvolumeclaims/training/data")
    assert first > world.log.index("delete nodeclaims/small-b"), (
        "the pods of the nodes are deleted with the nodes"
    )


def test_drain_reports_a_mounted_claim_after_three_minutes() -> None:
    world = busy()
    world.users = [["pods web/shell"], *[[]] * 1000]
    lines = drain(world)
    start = second_of(lines, "deleting what mounts volumes: pods web/shell")
    assert second_of(lines, "volumes are left; delete them in the account: pv-1") - start == 180
    assert any("waiting for 1 volume: pv-1" in line for line in lines)
    assert world.log.count("delete persistentvolumeclaims/training/data") == 90, (
        "a claim that is created again is deleted, too"
    )


def test_drain_reports_a_volume_without_a_driver_and_continues() -> None:
    world = busy()
    world.finishes = lambda each: each != VOLUMES
    lines = drain(world)
    assert any("volumes are left; delete them in the account: pv-1" in line for line in lines)
    assert world.names(NODE_CLASSES) == []


def test_drain_reports_the_remaining_objects_while_it_waits() -> None:
    world = busy()
    world.finishes = lambda kind: kind != PODS
    lines: list[str] = []
    with pytest.raises(DrainError, match="pods do not end"):
        run(world, world, timeout=40, report=lines.append, clock=Time())
    waits = [line for line in lines if "waiting for 1 pods" in line]
    assert len(waits) == 2, "one line every fifteen seconds"
    assert waits[-1] == "32 s: waiting for 1 pods: hold-r1-0"
