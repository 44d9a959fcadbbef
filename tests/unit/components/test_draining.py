"""The drain, on a cluster that a test plays."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from components.shared.draining import (
    JOBS,
    NODE_CLAIMS,
    NODE_CLASSES,
    NODE_POOLS,
    NODES,
    PODS,
    TRAININGS,
    Api,
    Clock,
    DrainError,
    Kind,
    run,
    selector,
)

pytestmark = pytest.mark.unit


class Cluster(Api):
    """Objects by kind, instances, and a log of what was asked. What is deleted goes when `finishes` says so."""

    def __init__(self, objects: dict[Kind, list[str]], instances: list[str]) -> None:
        self.objects = {kind: list(names) for kind, names in objects.items()}
        self.instances = list(instances)
        self.log: list[str] = []
        self.finishes: Callable[[Kind], bool] = lambda _: True
        self.terminates = True

    def names(self, kind: Kind) -> list[str]:
        return list(self.objects.get(kind, []))

    def delete(self, kind: Kind, name: str) -> None:
        self.log.append(f"delete {kind.plural}/{name}")
        if self.finishes(kind) and name in self.objects.get(kind, []):
            self.objects[kind].remove(name)
            if kind == NODE_CLAIMS and self.instances:
                self.instances.pop()

    def remove_finalizers(self, kind: Kind, name: str) -> None:
        self.log.append(f"release {kind.plural}/{name}")
        if name in self.objects.get(kind, []):
            self.objects[kind].remove(name)

    def machines(self) -> list[str]:
        return list(self.instances)

    def terminate(self, instances: list[str]) -> None:
        self.log.append(f"terminate {','.join(instances)}")
        if self.terminates:
            self.instances = [i for i in self.instances if i not in instances]


class Time(Clock):
    """A clock that moves only when somebody sleeps."""

    def __init__(self) -> None:
        self.seconds = 0.0
        super().__init__(now=lambda: self.seconds, sleep=self.pass_by)

    def pass_by(self, seconds: float) -> None:
        self.seconds += seconds


def busy() -> Cluster:
    return Cluster(
        {
            JOBS: ["launch-r1"],
            TRAININGS: ["train-r1"],
            PODS: ["hold-r1-0"],
            NODE_POOLS: ["small"],
            NODE_CLAIMS: ["small-a", "small-b"],
            NODE_CLASSES: ["small"],
            NODES: ["n1", "n2"],
        },
        ["i-1", "i-2"],
    )


def drain(cluster: Cluster, timeout: float = 100) -> list[str]:
    lines: list[str] = []
    run(cluster, timeout=timeout, say=lines.append, clock=Time())
    return lines


def test_work_ends_before_machines_go() -> None:
    cluster = busy()
    lines = drain(cluster)
    order = [entry.split("/")[0] for entry in cluster.log]
    assert order == [
        "delete jobs",
        "delete pytorchjobs",
        "delete pods",
        "delete nodepools",
        "delete nodeclaims",
        "delete nodeclaims",
        "delete ec2nodeclasses",
    ]
    assert cluster.instances == []
    assert lines[-1] == "no machine is left"


def test_an_empty_cluster_is_drained_at_once() -> None:
    cluster = Cluster({}, [])
    assert drain(cluster) == ["no machine is left"]
    assert cluster.log == []


def test_machines_are_terminated_by_tag_when_karpenter_does_not_finish() -> None:
    cluster = busy()
    cluster.finishes = lambda kind: kind not in (NODE_CLAIMS, NODES, NODE_CLASSES)
    lines = drain(cluster)
    assert "terminate i-1,i-2" in cluster.log
    released = [entry for entry in cluster.log if entry.startswith("release")]
    assert cluster.log.index("terminate i-1,i-2") < cluster.log.index(released[0]), "released too early"
    assert cluster.names(NODE_CLAIMS) == cluster.names(NODE_CLASSES) == []
    assert any(line.startswith("Karpenter does not finish") for line in lines)


def test_instances_without_a_claim_are_terminated_too() -> None:
    cluster = Cluster({}, ["i-9"])
    drain(cluster)
    assert cluster.log == ["terminate i-9"]


def test_nothing_is_released_while_a_machine_runs() -> None:
    cluster = busy()
    cluster.finishes = lambda kind: kind not in (NODE_CLAIMS, NODE_CLASSES)
    cluster.terminates = False
    with pytest.raises(DrainError, match=r"2 machines are left: i-1, i-2; terminate them"):
        drain(cluster)
    assert not [entry for entry in cluster.log if entry.startswith("release")]


def test_a_training_that_does_not_end_is_named() -> None:
    cluster = busy()
    cluster.finishes = lambda kind: kind != TRAININGS
    with pytest.raises(DrainError, match=r"PyTorchJobs do not end: train-r1 in namespace training"):
        drain(cluster)
    assert "delete nodepools/small" not in cluster.log


def test_a_long_wait_reports_what_is_left() -> None:
    cluster = busy()
    cluster.finishes = lambda kind: kind != PODS
    lines: list[str] = []
    with pytest.raises(DrainError, match="pods do not end"):
        run(cluster, timeout=40, say=lines.append, clock=Time())
    waits = [line for line in lines if line.startswith("waiting for 1 pods")]
    assert len(waits) == 2, "one line in fifteen seconds"
    assert waits[-1].endswith("hold-r1-0")


def test_only_the_trainings_own_jobs_and_pods_are_touched() -> None:
    assert selector(JOBS) == "trainyard.dev/role=launcher"
    assert selector(PODS) == "trainyard.dev/role"
    assert selector(NODES) == "karpenter.sh/nodepool"
    assert selector(TRAININGS) is None
