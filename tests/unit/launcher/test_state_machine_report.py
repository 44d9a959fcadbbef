"""How long the workers of a run took to start, as the launcher tells it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from launcher import observe, state_machine
from launcher.actions import Memory
from launcher.backends import pytorchjob
from launcher.manifests import stamp
from launcher.observe import Claim, Observation, Pod, Training
from launcher.progress import initial_progress
from launcher.request import Request
from tests.unit.launcher.test_capacity import NOW, node, seen


def worker(on: str, *, placed: float, started: float | None) -> Pod:
    """A worker of run r1, its moments in seconds after NOW; one that has not started waits for its image."""
    state: dict[str, Any] = {"waiting": {"reason": "ContainerCreating"}}
    if started is not None:
        state = {"running": {"startedAt": stamp(NOW + started)}}
    return observe.pod(
        {
            **_item(f"train-r1-{on}"),
            "spec": {"nodeName": on},
            "status": {
                "phase": "Pending" if started is None else "Running",
                "conditions": [
                    {"type": "PodScheduled", "status": "True", "lastTransitionTime": stamp(NOW + placed)}
                ],
                "containerStatuses": [{"state": state}],
            },
        }
    )


def _item(name: str) -> dict[str, Any]:
    labels = {"training.kubeflow.org/job-name": "train-r1"}
    return {"metadata": {"name": name, "namespace": "training", "labels": labels}}


def claim(node: str, created: float) -> Claim:
    return Claim(
        name=f"c-{node}", node=node, launched=True, initialized=True, deleting=False, created=created
    )


def test_machines_that_were_there_before_do_not_count() -> None:
    claims = [claim("a", NOW), claim("b", NOW - 1), claim("c", NOW - 2), claim("", NOW + 99)]
    ordered = state_machine.orders(claims, NOW)
    assert ordered == {"a": NOW, "b": NOW - 1}, "a creation is noted in whole seconds"
    workers = [worker("a", placed=100, started=130), worker("c", placed=100, started=190)]
    assert state_machine.slowest_start(workers, ordered) == (
        "the slowest started 90 s after it was scheduled, 130 s after its NodeClaim was created"
    )
    assert state_machine.slowest_start(workers, {}) == "the slowest started 90 s after it was scheduled"


def test_slowest_start_before_all_started_is_empty() -> None:
    one = worker("a", placed=0, started=9)
    assert state_machine.slowest_start([], {}) == ""
    assert state_machine.slowest_start([one, worker("b", placed=0, started=None)], {}) == ""


def test_started_at_is_first_container() -> None:
    ended = {"state": {"terminated": {"startedAt": stamp(NOW + 5)}}}
    item = {
        "metadata": {"name": "p"},
        "status": {
            "initContainerStatuses": [ended],
            "containerStatuses": [{"state": {"running": {"startedAt": stamp(NOW + 9)}}}],
        },
    }
    assert observe.pod(item).started_at == NOW + 5
    assert observe.pod({"metadata": {"name": "p"}}).started_at == 0.0


def test_the_launcher_says_so_once_every_worker_runs(request_: Request) -> None:
    """The lists of machines are only read while it waits for them."""
    waiting = seen([node("a"), node("b")], claims=(claim("a", NOW - 60), claim("b", NOW - 50)))
    memory = state_machine.step(request_, Memory(progress=initial_progress(NOW - 60)), waiting).memory
    training = Training(uid="t", ours=True, nodes=2, outcome="", message="")
    both = (worker("a", placed=0, started=20), worker("b", placed=0, started=30))
    now = Observation(now=NOW + 40, fresh=True, training=training, pods=both)
    assert state_machine.step(request_, memory, now).report.reason == (
        "2 of 2 workers running; the slowest started 30 s after it was scheduled, 80 s after its NodeClaim was created"
    )
    one = dataclasses.replace(now, pods=both[:1])
    assert state_machine.step(request_, memory, one).report.reason == "1 of 2 workers running"


def test_follow_names_stuck_worker(request_: Request) -> None:
    """An image that is not there would be waited for without a word until the deadline."""
    training = Training(uid="t", ours=True, nodes=2, outcome="", message="", created=NOW)
    status = {
        "phase": "Pending",
        "containerStatuses": [
            {"image": "example.com/train:1", "state": {"waiting": {"reason": "ImagePullBackOff"}}}
        ],
    }
    item = _item("train-r1-b")
    item["metadata"]["creationTimestamp"] = stamp(NOW)
    stuck = observe.pod({**item, "status": status})
    pods = (worker("a", placed=0, started=3), stuck)
    for age, suffix in (
        (14, ""),
        (15, "; train-r1-b can't get image example.com/train:1: kubectl describe pod says why"),
    ):
        now = Observation(now=NOW + age, fresh=True, training=training, pods=pods)
        reason = state_machine.step(request_, Memory(), now).report.reason
        assert reason == f"1 of 2 workers running{suffix}"


@pytest.mark.parametrize(
    ("age", "workers", "reason"),
    [
        (59, (), "0 of 2 workers running"),
        (
            60,
            (),
            "submitted, but the training operator has not created its pods for 60 s. See"
            " kubectl get events -n training, and the pods of the training operator",
        ),
        (60, (worker("a", placed=0, started=None),), "0 of 2 workers running"),
    ],
)
def test_follow_without_pods_names_operator(
    request_: Request, age: float, workers: tuple[Pod, ...], reason: str
) -> None:
    created = {"uid": "t", "creationTimestamp": stamp(NOW)}
    job = {"metadata": created, "spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": 2}}}}
    training = dataclasses.replace(pytorchjob.parse(job, "r1"), ours=True)
    now = Observation(now=NOW + age, fresh=False, training=training, pods=workers)
    step = state_machine.step(request_, Memory(), now)
    assert (step.report.reason, step.report.state, step.actions) == (reason, "following", ())
