"""Nodes that never become usable: which are released, when, and the reports."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from launcher import capacity, node_release, observe, state_machine
from launcher.actions import CreatePlaceholder, End, Memory, Recount, ReleaseNode, Remove, Start, Step
from launcher.manifests import stamp
from launcher.observe import Observation, Training
from launcher.progress import Progress, initial_progress
from launcher.request import Request
from tests.unit.launcher.conftest import asked, fallback, made_for
from tests.unit.launcher.test_capacity import NOW, node, placeholder, pod, seen, warm
from trainyard.k8s import names

Object = dict[str, Any]
BARE = {"cpu": "47810m", "memory": "180Gi", "nvidia.com/gpu": "0"}


@pytest.fixture
def patient() -> Request:
    """A run that waits longer than a machine has time to come."""
    return asked(capacityDeadlineSeconds=3600)


def claim(name: str, age: float, at: str = "a", **meta: Any) -> Object:
    return {
        "metadata": {
            "name": name,
            "uid": f"uid-{name}",
            "creationTimestamp": stamp(NOW - age, "milliseconds"),
            **meta,
        },
        "spec": made_for(),
        "status": {"nodeName": at, "providerID": f"aws:///us-west-2b/i-0{name}"},
    }


def cluster(
    claims: list[Object], nodes: list[Object], pods: list[Object] | None = None, **changes: Any
) -> Observation:
    read = tuple(observe.claim(item) for item in claims)
    return seen(nodes, pods, claims=read, **changes)


def waited(request: Request, observation: Observation, began: float = 2000, **memory: Any) -> Step:
    return state_machine.step(request, Memory(progress=initial_progress(NOW - began), **memory), observation)


def released(step: Step) -> list[str]:
    return [action.claim for action in step.actions if isinstance(action, ReleaseNode)]


def test_node_without_its_gpus_is_released_and_replaced(patient: Request) -> None:
    bare = node("a", status__allocatable=BARE)
    holding = [
        placeholder(patient, 0, "a"),
        placeholder(patient, 1),
        placeholder(patient, 2),
        placeholder(patient, 3),
    ]
    step = waited(patient, cluster([claim("x7k2p", 900)], [bare], holding))
    expected = "i-0x7k2p / NodeClaim x7k2p: 0 of 4 nvidia.com/gpu after 900 s"
    assert step.actions == (
        ReleaseNode(claim="x7k2p", uid="uid-x7k2p", reason=expected),
        Remove(name="hold-r1-0", uid="uid-0"),
    )
    assert step.memory.progress is not None
    assert [loss.message for loss in step.memory.progress.released] == [expected]
    # Once the pod is gone, another takes its place, and Karpenter buys for it.
    after = state_machine.step(patient, step.memory, cluster([], [], holding[1:]))
    assert after.actions == (CreatePlaceholder(index=0, wait="1-0"),)
    assert after.report.reason.endswith(f"; 1 node released: {expected}")


@pytest.mark.parametrize(("age", "back"), [(899.5, []), (900, ["c"])])
def test_overdue_node_has_node_start_seconds(patient: Request, age: float, back: list[str]) -> None:
    bare = node("a", status__allocatable=BARE)
    assert released(waited(patient, cluster([claim("c", age)], [bare]))) == back


@pytest.mark.parametrize(
    ("nodes", "problem"),
    [
        ([], "not registered"),
        ([node("a", metadata__labels={"karpenter.sh/nodepool": "small"})], "not initialized"),
        ([node("a", status__allocatable={**BARE, "nvidia.com/gpu": "3"})], "3 of 4 nvidia.com/gpu"),
    ],
)
def test_overdue_reason_names_what_is_missing(patient: Request, nodes: list[Object], problem: str) -> None:
    step = waited(patient, cluster([claim("c", 1000)], nodes))
    (action,) = (action for action in step.actions if isinstance(action, ReleaseNode))
    assert action.reason == f"i-0c / NodeClaim c: {problem} after 900 s"


def test_overdue_node_without_efa_is_released(patient: Request) -> None:
    request = dataclasses.replace(patient, pool=dataclasses.replace(patient.pool, efa_per_node=4))
    for there, back in (("3", ["c"]), ("4", [])):
        one = node("a", status__allocatable={**BARE, "nvidia.com/gpu": "4", "vpc.amazonaws.com/efa": there})
        assert released(waited(request, cluster([claim("c", 1000)], [one]))) == back


@pytest.mark.parametrize(
    "nodes",
    [
        [node("a")],
        [node("a", spec__unschedulable=True)],
        [node("a", status__conditions=[])],
    ],
)
def test_overdue_complete_node_stays(patient: Request, nodes: list[Object]) -> None:
    """Cordoned, or not Ready for a while: that is somebody else's to heal."""
    assert released(waited(patient, cluster([claim("c", 1000)], nodes))) == []


def test_overdue_older_or_deleted_node_stays(patient: Request) -> None:
    bare = node("a", status__allocatable=BARE)
    assert released(waited(patient, cluster([claim("c", 2001)], [bare]))) == []
    going = claim("c", 1000, deletionTimestamp=stamp(NOW))
    assert released(waited(patient, cluster([going], [bare]))) == []


def owned(kind: str) -> Object:
    item = pod("theirs", "a")
    item["metadata"]["ownerReferences"] = [{"kind": kind, "name": "x", "uid": "x", "controller": True}]
    return item


def finished() -> Object:
    item = pod("done", "a")
    item["status"]["phase"] = "Succeeded"
    return item


@pytest.mark.parametrize(
    ("other", "back"),
    [
        (pod("theirs", "a"), []),
        (owned("ReplicaSet"), []),
        (placeholder(asked(runId="r2"), 0, "a"), []),
        (owned("DaemonSet"), ["c"]),
        (owned("Node"), ["c"]),
        (warm("a"), ["c"]),
        (finished(), ["c"]),
        (pod("elsewhere", "b"), ["c"]),
    ],
)
def test_overdue_node_with_foreign_pod_stays(patient: Request, other: Object, back: list[str]) -> None:
    bare = node("a", status__allocatable=BARE)
    assert released(waited(patient, cluster([claim("c", 1000)], [bare], [other]))) == back


def test_overdue_device_plugin_restart_keeps_node(patient: Request) -> None:
    """Only a machine that has been without its devices for all of the time goes."""
    whole, bare = node("a"), node("a", status__allocatable=BARE)
    step = waited(patient, cluster([claim("c", 1000)], [whole]))
    again = state_machine.step(patient, step.memory, cluster([claim("c", 1000)], [bare]))
    assert released(again) == []
    later = dataclasses.replace(cluster([claim("c", 1000)], [bare]), now=NOW + 900)
    assert released(state_machine.step(patient, again.memory, later)) == ["c"]


def test_overdue_on_cached_lists_recounts(patient: Request) -> None:
    bare = node("a", status__allocatable=BARE)
    cached = waited(patient, cluster([claim("c", 1000)], [bare], fresh=False))
    assert cached.actions == (Recount(),)
    assert cached.memory.progress is not None
    assert cached.memory.progress.released == ()


def test_overdue_after_crash_counts_once(patient: Request) -> None:
    observation = cluster([claim("c", 1000), claim("d", 950, "")], [node("a", status__allocatable=BARE)])
    first = waited(patient, observation)
    second = state_machine.step(patient, Memory(progress=first.memory.progress), observation)
    assert released(second) == ["c", "d"]
    progress = second.memory.progress
    assert isinstance(progress, Progress)
    assert node_release.describe(progress.released) == (
        "2 nodes released, the last: i-0d / NodeClaim d: not registered after 900 s"
    )


def starting(name: str, at: str = "", age: float = 60) -> Object:
    return claim(name, age, at)


def cut_short(request: Request, observation: Observation) -> Step:
    """The step at a deadline that is long over."""
    return waited(request, observation, began=4000)


def other_pod(**changes: Any) -> Object:
    """A pod of another run that waits for a machine of pool small."""
    item = placeholder(asked(runId="r2"), 0)
    for path, value in changes.items():
        section, key = path.split("__")
        item[section][key] = value
    return item


UNINITIALIZED = {"karpenter.sh/nodepool": "small"}


def test_unneeded_at_deadline_are_deleted_before_end(
    patient: Request,
) -> None:
    bare = node("b", metadata__labels=UNINITIALIZED, status__allocatable=BARE)
    claims = [starting("new"), starting("registered", "b"), starting("whole", "a")]
    observation = cluster(claims, [node("a"), bare], [placeholder(patient, 0, "a"), placeholder(patient, 1)])
    step = cut_short(patient, observation)
    expected = "i-0new / NodeClaim new: not registered, and no longer needed"
    assert step.actions == (
        Remove(name="hold-r1-0", uid="uid-0"),
        Remove(name="hold-r1-1", uid="uid-1"),
        ReleaseNode(claim="new", uid="uid-new", reason=expected, late=False),
        ReleaseNode(
            claim="registered",
            uid="uid-registered",
            reason="i-0registered / NodeClaim registered: not initialized, and no longer needed",
            late=False,
        ),
        Recount(),
    )
    # They did not take too long, so that nothing is lost.
    assert step.memory.progress is not None
    assert step.memory.progress.released == ()
    going = [{**one, "metadata": {**one["metadata"], "deletionTimestamp": stamp(NOW)}} for one in claims[:2]]
    (end,) = state_machine.step(patient, step.memory, cluster([*going, claims[2]], [node("a"), bare])).actions
    assert isinstance(end, End)


def test_unneeded_are_deleted_before_next_pool() -> None:
    request = asked(fallbacks=[fallback()])
    step = cut_short(request, cluster([starting("new")], []))
    assert released(step) == ["new"]
    assert step.memory.candidate_index == 0
    assert state_machine.step(request, step.memory, cluster([], [])).memory.candidate_index == 1


def test_unneeded_at_submit_are_deleted(patient: Request) -> None:
    observation = cluster(
        [starting("late"), starting("a-1", "a"), starting("b-1", "b")],
        [node("a"), node("b")],
        [placeholder(patient, 0, "a"), placeholder(patient, 1, "b"), placeholder(patient, 2)],
    )
    memory = {"quorum_since": NOW - patient.hold_seconds}
    step = waited(patient, observation, **memory)
    assert (released(step), step.actions[-1]) == (["late"], Recount())
    assert step.actions[0] == Remove(name="hold-r1-2", uid="uid-2")
    holding = waited(patient, observation, quorum_since=NOW - patient.hold_seconds + 1)
    assert released(holding) == []


def test_count_node_of_deleted_nodeclaim_is_unusable(patient: Request) -> None:
    going = starting("b-1", "b")
    going["metadata"]["deletionTimestamp"] = stamp(NOW)
    observation = cluster([starting("a-1", "a"), going], [node("a"), node("b")])
    counted = capacity.count(patient, observation)
    assert (counted.usable, counted.unusable) == (("a",), {"b": "being deleted"})


@pytest.mark.parametrize(
    ("other", "back"),
    [
        (other_pod(), []),
        (other_pod(spec__nodeSelector={}), []),
        ({**warm(""), "spec": other_pod()["spec"], "status": {"phase": "Pending"}}, []),
        (other_pod(spec__nodeSelector={"karpenter.sh/nodepool": "large"}), ["new"]),
        (other_pod(metadata__deletionTimestamp=stamp(NOW)), ["new"]),
        (other_pod(status__phase="Failed"), ["new"]),
        (other_pod(spec__nodeName="elsewhere"), ["new"]),
        (other_pod(spec__containers=[{"resources": {"requests": {"cpu": "1"}}}]), []),
        (other_pod(metadata__ownerReferences=[{"kind": "DaemonSet", "controller": True}]), ["new"]),
    ],
)
def test_unneeded_with_foreign_pending_pod_stay(patient: Request, other: Object, back: list[str]) -> None:
    assert released(cut_short(patient, cluster([starting("new")], [], [other]))) == back


@pytest.mark.parametrize(
    ("tolerations", "back"),
    [
        ([], ["new"]),
        ([{"key": "team", "value": "b"}], ["new"]),
        ([{"key": "team", "operator": "Exists", "effect": "NoExecute"}], ["new"]),
        ([{"key": "team", "value": "a"}], []),
        ([{"operator": "Exists"}], []),
    ],
)
def test_unneeded_foreign_pod_must_tolerate_taints(
    patient: Request, tolerations: list[Object], back: list[str]
) -> None:
    taints = [
        {"key": "team", "value": "a", "effect": "NoSchedule"},
        {"key": "wish", "effect": "PreferNoSchedule"},
    ]
    pool = observe.node_pool({"spec": {"template": {"spec": {"taints": taints}}}})
    other = other_pod(spec__tolerations=tolerations)
    assert released(cut_short(patient, cluster([starting("new")], [], [other], pool=pool))) == back


@pytest.mark.parametrize(
    "spec",
    [
        {},
        made_for("r2"),
        made_for(namespace="other"),
        {"requirements": [*made_for()["requirements"], *made_for("r2")["requirements"]]},
        {"requirements": [{**made_for()["requirements"][0], "operator": "Exists"}]},
    ],
)
def test_release_nodeclaim_of_other_run_stays(patient: Request, spec: Object) -> None:
    """Neither when it takes too long nor when the wait is over."""
    theirs = {**claim("theirs", 1000, ""), "spec": spec}
    assert released(waited(patient, cluster([theirs], []))) == []
    assert released(cut_short(patient, cluster([theirs], []))) == []


def test_submit_because_of_event_releases_nothing(patient: Request) -> None:
    """A refusal that anybody may have written, while a NodeClaim has a problem."""
    stuck = claim("stuck", 60, "")
    stuck["status"]["conditions"] = [{"type": "Launched", "status": "Unknown", "reason": "Unauthorized"}]
    warning = observe.WarningEvent(
        kind="NodeClaim", name="small-x", reason="InsufficientCapacityError", message="", at=NOW
    )
    one_way = {"requirements": [{"key": names.LABEL_CAPACITY_TYPE, "operator": "In", "values": ["spot"]}]}
    pool = observe.node_pool({"spec": {"template": {"spec": one_way}}})
    observation = cluster([stuck], [node("a"), node("b")], warnings=(warning,), pool=pool)
    step = waited(patient, observation, began=100)
    assert [type(each) for each in step.actions] == [Start]


@pytest.mark.parametrize(
    ("claims", "others"),
    [
        ([claim("before", 4001, "")], []),
        ([claim("going", 60, "", deletionTimestamp=stamp(NOW))], []),
        ([claim("used", 60, "b")], [pod("theirs", "b")]),
    ],
)
def test_unneeded_old_deleted_or_used_stay(
    patient: Request, claims: list[Object], others: list[Object]
) -> None:
    bare = node("b", metadata__labels=UNINITIALIZED, status__allocatable=BARE)
    assert released(cut_short(patient, cluster(claims, [bare], others))) == []


def test_signal_releases_nodes_without_training(patient: Request) -> None:
    observation, memory = cluster([starting("new")], []), Memory(progress=initial_progress(NOW - 100))
    back, end = state_machine.stop(patient, memory, observation)
    assert isinstance(back, ReleaseNode)
    assert isinstance(end, End)
    training = Training(uid="t", ours=True, nodes=2, outcome="", message="")
    going = dataclasses.replace(observation, training=training)
    assert [type(action) for action in state_machine.stop(patient, memory, going)] == [End]


def test_final_failure_releases_unneeded_nodes(patient: Request) -> None:
    failed = Training(uid="t", ours=True, nodes=2, outcome="Failed", message="it did")
    observation = cluster([starting("new")], [], training=failed)
    assert released(waited(patient, observation)) == ["new"]
