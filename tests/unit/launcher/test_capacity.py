"""Which nodes count, and what is decided on their number."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

from launcher import manifests, observe, state_machine
from launcher.actions import MAX_AT_ONCE, CreatePlaceholder, End, Memory, Recount, Remove, Start, batches
from launcher.capacity import GiveUp, Submit, Wait, count, decide, preflight
from launcher.manifests import Owner
from launcher.observe import NodePool, Observation, Training
from launcher.progress import initial_progress
from launcher.request import Request
from tests.unit.launcher.conftest import asked
from trainyard.k8s import names

Object = dict[str, Any]
NOW = 1_800_000_000.0
OWNER = Owner(name="launch-r1", uid="o")


def node(name: str, **changes: Any) -> Object:
    labels = {"karpenter.sh/nodepool": "small", "karpenter.sh/initialized": "true"}
    item: Object = {
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]},
        "status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "allocatable": {"cpu": "47810m", "memory": "180Gi", "nvidia.com/gpu": "4"},
        },
    }
    for path, value in changes.items():
        target = item
        *parents, last = path.split("__")
        for parent in parents:
            target = target[parent]
        target[last] = value
    return item


def pod(name: str, at: str, **asked: str) -> Object:
    return {
        "metadata": {"name": name, "namespace": "default", "uid": name},
        "spec": {"nodeName": at, "containers": [{"resources": {"requests": asked}}]},
        "status": {"phase": "Running"},
    }


def placeholder(request: Request, index: int, at: str = "", **status: str) -> Object:
    item = manifests.placeholder(request, index, OWNER, "1-0")
    item["metadata"]["uid"] = f"uid-{index}"
    item["spec"]["nodeName"] = at
    item["status"] = status
    return item


def seen(
    nodes: list[Object], pods: list[Object] | None = None, limit: str = "16", **changes: Any
) -> Observation:
    pool = {"spec": {"limits": {"nvidia.com/gpu": limit}}}
    observation = Observation(
        now=NOW,
        fresh=True,
        nodes=tuple(observe.node(item) for item in nodes),
        pods=tuple(observe.pod(item) for item in pods or []),
        pool=observe.node_pool(pool),
    )
    return dataclasses.replace(observation, **changes)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"status__conditions": [{"type": "Ready", "status": "Unknown"}]}, "not Ready"),
        ({"status__conditions": []}, "not Ready"),
        ({"spec__unschedulable": True}, "cordoned"),
        ({"metadata__deletionTimestamp": "2026-01-01T00:00:00Z"}, "being deleted"),
        (
            {"spec__taints": [{"key": "example.com/starting", "effect": "NoExecute"}]},
            "taint example.com/starting",
        ),
        (
            {"spec__taints": [{"key": "example.com/starting", "effect": "NoSchedule"}]},
            "taint example.com/starting",
        ),
        # The pool's toleration is of NoSchedule.
        ({"spec__taints": [{"key": "nvidia.com/gpu", "effect": "NoExecute"}]}, "taint nvidia.com/gpu"),
        ({"metadata__labels": {"karpenter.sh/nodepool": "small"}}, "not initialized"),
        (
            {"status__allocatable": {"cpu": "47", "memory": "180Gi"}},
            "0 of 4 nvidia.com/gpu",
        ),
        (
            {"status__allocatable": {"cpu": "47", "memory": "180Gi", "nvidia.com/gpu": "3"}},
            "3 of 4 nvidia.com/gpu",
        ),
        ({"status__allocatable": {"cpu": "8", "memory": "180Gi", "nvidia.com/gpu": "4"}}, "8 of 40 cpu"),
    ],
)
def test_count_unusable_node_is_left_out(request_: Request, changes: Object, problem: str) -> None:
    counted = count(request_, seen([node("good"), node("bad", **changes)]))
    assert (counted.usable, dict(counted.unusable)) == (("good",), {"bad": problem})


def test_a_node_of_another_pool_is_not_counted(request_: Request) -> None:
    other = node("other", metadata__labels={"karpenter.sh/nodepool": "x", "karpenter.sh/initialized": "true"})
    assert count(request_, seen([other])).usable == ()


def test_a_tolerated_taint_and_a_mere_wish_do_not_matter(request_: Request) -> None:
    taints = [
        {"key": "nvidia.com/gpu", "effect": "NoSchedule"},
        {"key": "wish", "effect": "PreferNoSchedule"},
    ]
    assert count(request_, seen([node("a", spec__taints=taints)])).usable == ("a",)


def warm(at: str, **asked: str) -> Object:
    item = pod(f"warm-{at}", at, **asked)
    item["metadata"] |= {"namespace": "training", "labels": {"trainyard.dev/role": "warm"}}
    item["spec"]["priorityClassName"] = names.WARM_PRIORITY_CLASS
    return item


def changed(item: Object, section: str, **values: Any) -> Object:
    return {**item, section: {**item[section], **values}}


ASKED = asked()
GPU, GPUS = {"nvidia.com/gpu": "1"}, {"nvidia.com/gpu": "4"}
COPIED = {names.LABEL_RUN: "r1", names.LABEL_ROLE: names.ROLE_PLACEHOLDER}


@pytest.mark.parametrize(
    ("occupant", "is_free"),
    [
        (pod("daemon", "a", cpu="2"), True),
        (pod("other", "a", **GPU), False),
        (changed(pod("ended", "a", **GPUS), "status", phase="Succeeded"), True),
        (changed(pod("ended", "a", **GPUS), "status", phase="Failed"), True),
        # A worker preempts warm pods and the placeholders of its run, however much they request.
        (warm("a", cpu="47", **GPUS), True),
        (placeholder(ASKED, 0, "a"), True),
        (placeholder(asked(runId="r2"), 0, "a"), False),
        (changed(placeholder(ASKED, 0, "a"), "metadata", namespace="default"), False),
        (changed(placeholder(ASKED, 0, "a"), "metadata", labels={names.LABEL_ROLE: "placeholder"}), False),
        # Anybody may write labels.
        (changed(pod("theirs", "a", **GPUS), "metadata", namespace="training", labels=COPIED), False),
        (changed(warm("a", **GPUS), "spec", priorityClassName=""), False),
    ],
)
def test_count_only_foreign_pods_occupy_nodes(request_: Request, occupant: Object, is_free: bool) -> None:
    counted = count(request_, seen([node("a"), node("b")], [occupant]))
    assert counted.usable == (("a", "b") if is_free else ("b",))
    assert counted.foreign == (not is_free)


def test_requests_match_the_scheduler() -> None:
    spec = {
        "initContainers": [
            {"restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}}},
            {"resources": {"requests": {"cpu": "5"}}},
        ],
        "containers": [{"resources": {"requests": {"cpu": "2"}}}, {"resources": {"limits": {"cpu": "500m"}}}],
    }
    assert observe.effective_requests(spec)["cpu"] == 6


def test_a_ceiling_below_the_minimum_is_hopeless_at_once(request_: Request) -> None:
    three = dataclasses.replace(request_, min_nodes=3)
    few = seen([], limit="8")
    problem = "3 nodes are needed, but NodePool small has at most 2 nodes (its limit is 8 nvidia.com/gpu)"
    assert problem in preflight(three, few, NOW)
    answer = decide(three, few, count(three, few), began=NOW, quorum_since=None)
    assert isinstance(answer, GiveUp)
    assert (answer.code, problem in answer.reason) == (names.EXIT_IMPOSSIBLE, True)
    assert preflight(request_, few, NOW) == ""
    assert "there is no NodePool small" in preflight(request_, seen([], pool=None), NOW)


def choice(request: Request, observation: Observation, waited: float, quorum: float | None = None) -> Any:
    since = None if quorum is None else NOW - quorum
    counted = count(request, observation)
    return decide(request, observation, counted, began=NOW - waited, quorum_since=since)


def test_the_hold_window_lies_between_minimum_and_maximum(request_: Request) -> None:
    two, four = seen([node("a"), node("b")]), seen([node(name) for name in "abcde"])
    assert choice(request_, four, 0).nodes == 4
    assert choice(request_, two, 10) == Wait(quorum_since=NOW)
    assert choice(request_, two, 40, quorum=29) == Wait(quorum_since=NOW - 29)
    assert choice(request_, two, 40, quorum=30).nodes == 2
    assert choice(request_, two, 300, quorum=1).nodes == 2
    assert choice(request_, seen([node("a")]), 40, quorum=30) == Wait(quorum_since=None)
    assert isinstance(choice(request_, seen([node("a")]), 299), Wait)
    assert choice(request_, seen([node("a")]), 300).code == names.EXIT_BELOW_MINIMUM


def test_nothing_is_held_for_nodes_that_can_not_come(request_: Request) -> None:
    at_limit = choice(request_, seen([node("a"), node("b")], limit="8"), 1)
    assert isinstance(at_limit, Submit)
    assert at_limit.nodes == 2
    assert "no more can come" in at_limit.reason
    busy = [pod("other", name, **{"nvidia.com/gpu": "4"}) for name in "cd"]
    assert choice(request_, seen([node(name) for name in "abcd"], busy), 1).nodes == 2


def test_hold_nodes_stays_within_pool_limit(request_: Request) -> None:
    step = state_machine.step(request_, Memory(), seen([], limit="8"))
    assert [action.index for action in step.actions if isinstance(action, CreatePlaceholder)] == [0, 1]


def test_submit_needs_fresh_lists_and_no_surplus(request_: Request) -> None:
    nodes = [node(name) for name in "abc"]
    pods = [
        placeholder(request_, 0, "a"),
        placeholder(request_, 1, "c"),
        placeholder(request_, 2),
        placeholder(request_, 3, "gone"),
    ]
    memory = Memory(progress=initial_progress(NOW - 60), quorum_since=NOW - 31)
    cached = state_machine.step(request_, memory, seen(nodes, pods, fresh=False))
    # What is too much goes first, so that the fresh lists need not be read twice.
    assert cached.actions == (
        Remove(name="hold-r1-2", uid="uid-2"),
        Remove(name="hold-r1-3", uid="uid-3"),
        Recount(),
    )
    fresh = state_machine.step(request_, memory, seen(nodes, pods))
    assert fresh.actions == (
        Remove(name="hold-r1-2", uid="uid-2"),
        Remove(name="hold-r1-3", uid="uid-3"),
        Recount(),
    )
    whole = seen(nodes, pods[:2])
    lagging = state_machine.step(request_, memory, dataclasses.replace(whole, fresh=False))
    assert lagging.actions == (Recount(),)
    assert [type(action) for action in state_machine.step(request_, memory, whole).actions] == [Start]
    lost = state_machine.step(request_, memory, seen(nodes[:1], pods[:1]))
    assert [action.index for action in lost.actions if isinstance(action, CreatePlaceholder)] == [1, 2, 3]


@pytest.mark.parametrize(
    ("began", "observation"),
    [(300, seen([node("a")])), (0, seen([], pool=None)), (0, seen([], limit="4"))],
)
def test_wait_is_given_up_on_fresh_lists_only(
    request_: Request, began: float, observation: Observation
) -> None:
    memory = Memory(progress=initial_progress(NOW - began))
    cached = dataclasses.replace(observation, fresh=False)
    assert state_machine.step(request_, memory, cached).actions == (Recount(),)
    assert [type(one) for one in state_machine.step(request_, memory, observation).actions] == [End]


def test_an_ended_placeholder_is_replaced(request_: Request) -> None:
    pods = [placeholder(request_, index) for index in range(3)] + [placeholder(request_, 3, phase="Failed")]
    assert state_machine.step(request_, Memory(), seen([], pods)).actions == (
        Remove(name="hold-r1-3", uid="uid-3"),
    )


def training(**changes: Any) -> Training:
    job = Training(uid="t", ours=True, nodes=2, outcome="", message="")
    return dataclasses.replace(job, **changes)


def worker(index: int, at: str, phase: str) -> Object:
    item = pod(f"train-r1-worker-{index}", at)
    item["metadata"] |= {"namespace": "training", "labels": {"training.kubeflow.org/job-name": "train-r1"}}
    item["status"]["phase"] = phase
    return item


@pytest.mark.parametrize(
    ("phases", "reason"),
    [
        (("Succeeded", "Running"), "1 of 2 workers running, 1 finished"),
        (("Succeeded", "Succeeded"), "2 of 2 workers finished"),
        (("Failed", "Succeeded"), "0 of 2 workers running, 1 finished"),
    ],
)
def test_finished_workers_are_reported(request_: Request, phases: tuple[str, str], reason: str) -> None:
    workers = [worker(index, "ab"[index], phase) for index, phase in enumerate(phases)]
    assert (
        state_machine.step(request_, Memory(), seen([], workers, training=training())).report.reason == reason
    )


def test_placeholders_stay_until_every_worker_has_its_node(request_: Request) -> None:
    some = [placeholder(request_, 1, "b"), worker(0, "a", "Running"), worker(1, "", "Pending")]
    step = state_machine.step(request_, Memory(), seen([], some, training=training()))
    assert (step.report.reason, step.actions) == ("1 of 2 workers running", ())
    every = [placeholder(request_, 1, "b"), worker(0, "a", "Running"), worker(1, "b", "Pending")]
    step = state_machine.step(request_, Memory(), seen([], every, training=training()))
    assert step.actions == (Remove(name="hold-r1-1", uid="uid-1"),)


def test_follow_failed_job_deletes_running_pods_only(request_: Request) -> None:
    pods = [worker(0, "a", "Failed"), worker(1, "b", "Running")]
    step = state_machine.step(
        request_, Memory(), seen([], pods, training=training(outcome="Failed", message="bad"))
    )
    assert step.actions == (
        Remove(name="train-r1-worker-1", uid="train-r1-worker-1"),
        End(code=names.EXIT_TRAINING_FAILED, reason="bad"),
    )


@pytest.mark.parametrize(
    ("job", "code", "reason"),
    [
        (training(outcome="Succeeded"), names.EXIT_SUCCEEDED, "trained on 2 nodes"),
        (training(ours=False), names.EXIT_IMPOSSIBLE, "PyTorchJob train-r1: exists .* Use another run id"),
        (
            training(uid="u2"),
            names.EXIT_TRAINING_FAILED,
            r"PyTorchJob train-r1: another job .*\(uid u2\)\. Do not create jobs",
        ),
        (None, names.EXIT_TRAINING_FAILED, "PyTorchJob train-r1 was deleted"),
    ],
)
def test_follow_end_of_job_ends_run(request_: Request, job: Training | None, code: int, reason: str) -> None:
    memory = Memory(progress=dataclasses.replace(initial_progress(NOW), training_uid="t"))
    step = state_machine.step(request_, memory, seen([], [placeholder(request_, 0)], training=job))
    assert [type(action) for action in step.actions] == [Remove, End]
    end = step.actions[-1]
    assert isinstance(end, End)
    assert end.code == code
    assert re.match(reason, end.reason)


def test_batches_group_only_pods() -> None:
    holds = tuple(CreatePlaceholder(index=index, wait="1-0") for index in range(MAX_AT_ONCE + 1))
    removes = (Remove(name="a", uid="a"), Remove(name="b", uid="b"))
    found = list(batches((*removes, Recount(), *holds, Recount(), Recount())))
    assert found == [
        removes,
        (Recount(),),
        holds[:MAX_AT_ONCE],
        holds[MAX_AT_ONCE:],
        (Recount(),),
        (Recount(),),
    ]


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("node.kubernetes.io/instance-type", "g5.24xlarge", "g5.24xlarge and not g5.12xlarge"),
        ("topology.kubernetes.io/zone", "us-west-2a", "us-west-2a and not us-west-2b"),
    ],
)
def test_preflight_other_type_or_zone_gives_up(
    request_: Request, key: str, value: str, expected: str
) -> None:
    def pool(*values: str, operator: str = "In") -> NodePool:
        requirements = [{"key": key, "operator": operator, "values": list(values)}]
        return observe.node_pool({"spec": {"template": {"spec": {"requirements": requirements}}}})

    refused = preflight(request_, seen([], pool=pool(value)), NOW)
    assert f"NodePool small has {key} {expected}" in refused
    right = {"g5.12xlarge", "us-west-2b"}
    assert preflight(request_, seen([], pool=pool(value, *right)), NOW) == ""
    assert preflight(request_, seen([], pool=pool(value, operator="NotIn")), NOW) == ""


@pytest.mark.parametrize(
    ("reason", "age", "problem"),
    [
        ("NodeClassNotFound", 10, "NodePool small is not ready: no class; check its EC2NodeClass"),
        ("NodeClassTerminating", 10, "NodePool small is not ready: no class; check its EC2NodeClass"),
        ("NodeClassNotFound", 9, ""),
        ("SubnetsNotFound", 1000, ""),
    ],
)
def test_preflight_missing_node_class_gives_up(
    request_: Request, reason: str, age: float, problem: str
) -> None:
    condition = {"type": "NodeClassReady", "status": "False", "reason": reason, "message": "no class"}
    since = {"lastTransitionTime": manifests.stamp(NOW - age)}
    ready = {"type": "Ready", "status": "False", "message": "NodeClassReady=False"}
    pool = observe.node_pool({"status": {"conditions": [{**condition, **since}, ready]}})
    assert preflight(request_, seen([], pool=pool), NOW) == problem
