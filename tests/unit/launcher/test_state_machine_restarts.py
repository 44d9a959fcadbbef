"""A restarted run: what is written, held, deleted and submitted, in which order; a suspended job."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from launcher import observe, state_machine
from launcher import progress as progresses
from launcher.actions import CreatePlaceholder, End, Memory, Recount, Remove, Retire, Start, Step
from launcher.observe import Observation
from launcher.progress import Progress, initial_progress
from launcher.request import Request
from tests.unit.launcher.conftest import asked, fallback, made_for
from tests.unit.launcher.test_capacity import NOW, node, placeholder, seen
from tests.unit.launcher.test_outcome import job
from tests.unit.launcher.test_state_machine_attempts import of
from trainyard.k8s import names

Object = dict[str, Any]
RETRYING = asked(maxRestarts=3)
STARTED = dataclasses.replace(initial_progress(NOW - 500), training_uid="t", idle_node_seconds=40.0)


def worker(index: int, phase: str = "Running", **meta: Any) -> Object:
    labels = {"trainyard.dev/run": "r1", "training.kubeflow.org/job-name": "train-r1"}
    name = f"train-r1-worker-{index}"
    return {
        "metadata": {"name": name, "namespace": "training", "uid": f"w{index}", "labels": labels, **meta},
        "spec": {
            "nodeName": f"n{index}",
            "containers": [{"resources": {"requests": {"nvidia.com/gpu": "4"}}}],
        },
        "status": {"phase": phase},
    }


def evicted(index: int) -> Object:
    pod = worker(index, "Failed")
    pod["status"]["reason"] = "Evicted"
    return pod


# One of three workers is lost.
LOSS = [worker(0), worker(1), evicted(2)]


def lost(request: Request, **changes: Any) -> Step:
    """The step that sees the loss of one of three workers."""
    memory = Memory(progress=dataclasses.replace(STARTED, **changes))
    return state_machine.step(request, memory, seen([], LOSS, training=job()))


def later(request: Request, memory: Memory, seconds: float, observation: Observation) -> Step:
    return state_machine.step(request, memory, dataclasses.replace(observation, now=NOW + seconds))


def test_loss_deletes_job_and_holds_node() -> None:
    step = lost(RETRYING)
    assert step.actions == (Retire(uid="t"), CreatePlaceholder(index=0, wait="1-0-1")), (
        "one of its three nodes is free"
    )
    progress = of(step)
    assert (progress.restarts, progress.total_restarts, progress.retiring) == (1, 1, "t")
    assert (progress.trained, progress.began) == (100.0, NOW)
    assert (step.report.state, step.report.nodes) == (names.STATE_RESTARTING, 2)
    assert step.report.reason == "restart 1 of 3: worker train-r1-worker-2 on n2 was lost: Evicted"


def test_loss_on_cached_lists_recounts() -> None:
    observation = seen([], LOSS, training=job(), fresh=False)
    step = state_machine.step(RETRYING, Memory(progress=STARTED), observation)
    assert step.actions == (Recount(),)
    assert of(step).restarts == 0


def test_retire_never_holds_more_nodes_than_job() -> None:
    memory = lost(RETRYING).memory
    deleting = job(deleting=True)
    first = placeholder_again(RETRYING, 0, "n2")
    step = later(RETRYING, memory, 5, seen([], [worker(0), worker(1), first], training=deleting))
    assert step.actions == (), "it is asked for once, and two workers still hold theirs"
    step = later(RETRYING, memory, 9, seen([], [worker(0, "Failed"), first], training=deleting))
    assert step.actions == (
        CreatePlaceholder(index=1, wait="1-0-1"),
        CreatePlaceholder(index=2, wait="1-0-1"),
    )


def placeholder_again(request: Request, index: int, at: str = "") -> Object:
    item = placeholder(request, index, at)
    item["metadata"]["labels"][names.LABEL_ATTEMPT] = "1-0-1"
    return item


def test_restart_waits_for_old_job_and_pods() -> None:
    memory = lost(RETRYING).memory
    nodes = [node(name) for name in "abcd"]
    late = seen(nodes, [worker(0, "Failed"), worker(1, deletionTimestamp="now")])
    step = later(RETRYING, memory, 10, late)
    remove, *holds = step.actions
    assert remove == Remove(name="train-r1-worker-0", uid="w0"), "nobody owns it any more"
    assert holds == [CreatePlaceholder(index=0, wait="1-0-1"), CreatePlaceholder(index=1, wait="1-0-1")], (
        "two of three nodes are free"
    )
    cached = seen(nodes, [], fresh=False)
    look = later(RETRYING, memory, 12, cached)
    assert (look.actions, of(look).retiring) == ((Recount(),), "t")
    step = later(RETRYING, memory, 12, seen(nodes, []))
    assert step.actions == (Start(nodes=4, reason="restart 1 of 3: all 4 nodes are ready"),)
    assert (of(step).retiring, of(step).began, of(step).label) == ("", NOW + 12, "1-0-1")


def test_restart_continues_with_fewer_nodes() -> None:
    memory = lost(RETRYING).memory
    step = later(RETRYING, memory, 12, seen([node("a"), node("b")], []))
    assert step.report.state == names.STATE_HOLDING
    assert [action for action in step.actions if isinstance(action, CreatePlaceholder)] == [
        CreatePlaceholder(index=index, wait="1-0-1") for index in range(4)
    ]
    step = later(RETRYING, step.memory, 42, seen([node("a"), node("b")], []))
    (start,) = step.actions
    assert isinstance(start, Start)
    assert (start.nodes, start.reason[:17]) == (2, "restart 1 of 3: 2")


def test_restart_below_minimum_tries_next_pool() -> None:
    request = asked(maxRestarts=3, fallbacks=[fallback()])
    step = later(request, lost(request).memory, 12, seen([node("a")], []))
    step = later(request, step.memory, 312, seen([node("a")], []))
    assert (of(step).candidate, of(step).label) == (1, "1-1-1")
    step = later(request, step.memory, 313, seen([], []))
    step = later(request, step.memory, 433, seen([], []))
    end = step.actions[-1]
    assert isinstance(end, End)
    assert end.code == names.EXIT_BELOW_MINIMUM
    assert end.reason.startswith(
        "restart 1 of 3, because worker train-r1-worker-2 on n2 was lost: Evicted: pool small: 1 of at least 2"
    )


def test_retire_stuck_pods_end_with_advice() -> None:
    stuck = worker(1, deletionTimestamp="now")
    hold = placeholder_again(RETRYING, 0, "n2")
    observation = seen([], [stuck, hold], training=job(deleting=True))
    memory = lost(RETRYING).memory
    assert later(RETRYING, memory, 599, observation).report.state == names.STATE_RESTARTING
    step = later(RETRYING, memory, 600, observation)
    remove, end = step.actions
    assert remove == Remove(name="hold-r1-0", uid="uid-0")
    assert isinstance(end, End)
    assert end.code == names.EXIT_TRAINING_FAILED
    assert "(train-r1-worker-1 on n1); delete the node that does not answer" in end.reason


@pytest.mark.parametrize(("budget", "before"), [(0, 0), (2, 2)])
def test_without_a_restart_left_a_loss_is_the_end(budget: int, before: int) -> None:
    step = lost(asked(maxRestarts=budget), restarts=before, total_restarts=before, why="it fell")
    end = step.actions[-1]
    assert isinstance(end, End)
    assert end.code == names.EXIT_TRAINING_FAILED
    assert [action.name for action in step.actions if isinstance(action, Remove)] == [
        "train-r1-worker-0",
        "train-r1-worker-1",
    ]
    more = "; after restart 2 of 2, the last one because it fell" if budget else ""
    assert end.reason == f"worker train-r1-worker-2 on n2 was lost: Evicted{more}"


def test_restart_count_without_lease_is_read_from_job() -> None:
    request = asked(maxRestarts=2)
    step = state_machine.step(request, Memory(), seen([], LOSS, training=job(restart=2)))
    assert isinstance(step.actions[-1], End)
    step = state_machine.step(request, Memory(), seen([], LOSS, training=job(restart=1)))
    assert of(step).restarts == 2


def test_the_time_to_train_is_for_all_restarts_together() -> None:
    request = asked(maxRestarts=3, activeDeadlineSeconds=1000)
    progress = of(lost(request))
    assert progress.remaining_request(request).active_deadline_seconds == 900
    again = dataclasses.replace(progress, retiring="", trained=995.0)
    memory = Memory(progress=again)
    step = state_machine.step(request, memory, seen([], LOSS, training=job(uid="t2", created=NOW - 1)))
    assert step.report.state == names.STATE_FOLLOWING, (
        "its five seconds are over, so that the operator ends it"
    )
    assert step.actions == ()


def test_overdue_after_training_starts_again() -> None:
    request = asked(maxRestarts=3, nodeStartSeconds=60)
    bare = node("a", status__allocatable={"cpu": "47", "memory": "180Gi"})
    made = {"name": "c", "uid": "c", "creationTimestamp": "2027-01-15T07:55:00Z"}
    claim = observe.claim({"metadata": made, "spec": made_for(), "status": {"nodeName": "a"}})
    memory = lost(request).memory
    observation = seen([bare], [], claims=(claim,))
    step = later(request, memory, 10, observation)
    assert not any("ReleaseNode" in type(action).__name__ for action in step.actions)
    step = later(request, step.memory, 71, observation)
    assert any("ReleaseNode" in type(action).__name__ for action in step.actions)


def test_a_job_that_somebody_deletes_is_not_a_loss() -> None:
    pods = [worker(0, deletionTimestamp="now")]
    memory = Memory(progress=STARTED, gang={"train-r1-worker-1": "w1"})
    step = state_machine.step(RETRYING, memory, seen([], pods, training=job(deleting=True)))
    assert (step.actions, step.report.reason) == ((), "PyTorchJob train-r1 is being deleted")
    step = state_machine.step(RETRYING, step.memory, seen([], []))
    assert step.actions == (End(code=names.EXIT_TRAINING_FAILED, reason="PyTorchJob train-r1 was deleted"),)


def stored(progress: Progress) -> Memory:
    """What the next launcher knows."""
    return Memory(progress=progresses.loads(progresses.dumps(progress), 1))


@pytest.mark.parametrize("suspended", [False, True])
def test_next_launcher_job_deleted_meanwhile_ends(suspended: bool) -> None:
    step = state_machine.step(RETRYING, Memory(), seen([], [], training=job(suspended=suspended)))
    step = state_machine.step(RETRYING, stored(of(step)), seen([], []))
    assert step.actions == (End(code=names.EXIT_TRAINING_FAILED, reason="PyTorchJob train-r1 was deleted"),)


def test_next_launcher_job_deleted_by_launcher_restarts() -> None:
    step = lost(RETRYING)
    for _ in range(2):  # the job and its pods are gone; another launcher waits for nodes
        step = state_machine.step(RETRYING, stored(of(step)), seen([], []))
        assert step.report.state == names.STATE_WAITING
    step = state_machine.step(RETRYING, stored(of(step)), seen([], [], training=job(uid="t2")))
    assert (step.report.state, of(step).training_uid) == (names.STATE_FOLLOWING, "t2")


def test_progress_survives_in_the_lease() -> None:
    progress = dataclasses.replace(of(lost(RETRYING)), suspended=True)
    assert stored(progress).progress == progress


def test_progress_of_earlier_version_is_read() -> None:
    text = progresses.dumps(STARTED).replace(',"training_uid":"t"', "")
    assert progresses.loads(text, 1) == dataclasses.replace(STARTED, training_uid="")


# -- suspended


def test_suspended_job_holds_nothing() -> None:
    memory = Memory(progress=STARTED, gang={"train-r1-worker-1": "w1"})
    leaving = [worker(0, deletionTimestamp="now"), placeholder(RETRYING, 0)]
    observation = seen([], leaving, training=job(suspended=True))
    step = state_machine.step(RETRYING, memory, observation)
    assert step.actions == (Remove(name="hold-r1-0", uid="uid-0"),)
    assert (step.report.state, step.report.nodes) == (names.STATE_SUSPENDED, 0)
    assert (of(step).suspended, of(step).trained, of(step).restarts) == (True, 100.0, 0)
    much_later = later(RETRYING, step.memory, 9000, seen([], [], training=job(suspended=True)))
    assert (much_later.actions, of(much_later).trained) == ((), 100.0)


def test_resumed_job_restarts_without_cost() -> None:
    request = asked(maxRestarts=1, activeDeadlineSeconds=1000)
    suspended = dataclasses.replace(STARTED, suspended=True, trained=100.0)
    memory = Memory(progress=suspended)
    resumed = seen([], [worker(0, "Pending")], training=job())
    assert state_machine.step(request, memory, dataclasses.replace(resumed, fresh=False)).actions == (
        Recount(),
    )
    step = later(request, memory, 9000, resumed)
    assert step.actions[0] == Retire(uid="t")
    progress = of(step)
    assert (progress.restarts, progress.total_restarts, progress.trained) == (0, 1, 100.0)
    assert step.report.reason == "resumed 1x: it was resumed"
    step = later(request, step.memory, 9010, seen([node("a"), node("b"), node("c")], []))
    step = later(request, step.memory, 9040, seen([node("a"), node("b"), node("c")], []))
    (start,) = step.actions
    assert isinstance(start, Start)
    assert start.nodes == 3
