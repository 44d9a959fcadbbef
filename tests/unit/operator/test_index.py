"""Which jobs and queues an event concerns."""

from __future__ import annotations

from typing import Any

import pytest

from trainyard.operator import names as n
from trainyard.operator.index import (
    AT_REST_PER_SECOND,
    COUNT_SECONDS,
    FINISHED_PER_SECOND,
    ObjectIndex,
)
from trainyard.operator.observe import OVER

pytestmark = pytest.mark.unit

QUEUE = (n.QUEUE_KIND, "team", "h100")


def job(
    name: str = "vit", phase: str = "", *, queue: object = "h100", reason: str = "", **meta: Any
) -> dict[str, Any]:
    status = {"phase": phase, "reason": reason, "observedGeneration": 1} if phase else {}
    named = {"name": name, "namespace": "team", "generation": 1, **meta}
    return {"kind": n.JOB_KIND, "metadata": named, "spec": {"jobQueue": queue}, "status": status}


def queue(generation: int = 1, **meta: Any) -> dict[str, Any]:
    named = {"name": "h100", "namespace": "team", "generation": generation, **meta}
    return {"kind": n.QUEUE_KIND, "metadata": named, "spec": {}}


def known() -> ObjectIndex:
    return ObjectIndex(draw=lambda: 0.5)


def jobs_of(asked: Any) -> set[str]:
    return {key.name for key, _ in asked if key.kind == n.JOB_KIND}


def test_a_job_is_looked_at_and_its_queue_counts_it_when_its_phase_is_another() -> None:
    it = known()
    assert it.job(job()) == [((n.JOB_KIND, "team", "vit"), 0.0), (QUEUE, COUNT_SECONDS)]
    assert it.job(job()) == [((n.JOB_KIND, "team", "vit"), 0.0)]
    assert (QUEUE, COUNT_SECONDS) in it.job(job(phase=n.PHASE_RUNNING))
    assert it.phases() == {n.PHASE_RUNNING: 1}
    assert (QUEUE, COUNT_SECONDS) in it.job(job(phase=n.PHASE_RUNNING), gone=True)
    assert it.phases() == {}


@pytest.mark.parametrize("named", [None, 7, "", ["h100"]])
def test_a_job_without_a_name_of_a_queue_is_looked_at_all_the_same(named: object) -> None:
    assert [key.name for key, _ in known().job(job(queue=named))] == ["vit"]


@pytest.mark.parametrize(
    ("item", "after"),
    [
        (job(phase=n.PHASE_SUCCEEDED), 1 / AT_REST_PER_SECOND / 2),
        (job(phase=n.PHASE_FAILED), 1 / AT_REST_PER_SECOND / 2),
        (job(phase=n.PHASE_SUSPENDED, reason=n.REASON_SUSPENDED), 1 / AT_REST_PER_SECOND / 2),
        (job(phase=n.PHASE_PENDING, reason=n.REASON_QUEUE_NOT_FOUND), 1 / AT_REST_PER_SECOND / 2),
        (job(phase=n.PHASE_PENDING, reason=n.REASON_STARTING), 0.0),
        (job(phase=n.PHASE_SUSPENDED, reason=n.REASON_SUSPENDED, generation=2), 0.0),
        (job(phase=n.PHASE_RUNNING), 0.0),
        (job(phase=n.PHASE_SUCCEEDED, generation=2), 0.0),
        (job(phase=n.PHASE_SUCCEEDED, deletionTimestamp="2026-11-23T00:00:00Z"), 0.0),
    ],
)
def test_in_a_list_what_is_over_comes_later(item: dict[str, Any], after: float) -> None:
    assert dict(known().job(item, first=True))[(n.JOB_KIND, "team", "vit")] == after  # type: ignore[index]
    assert dict(known().job(item))[(n.JOB_KIND, "team", "vit")] == 0.0  # type: ignore[index]


def test_jobs_hear_of_their_queue_when_it_comes_changes_and_goes_but_not_of_its_status() -> None:
    it = known()
    it.job(job("waits"))
    it.job(job("over", n.PHASE_SUCCEEDED))
    it.job(job("other", queue="a100"))
    assert jobs_of(it.queue(queue())) == {"waits"}
    assert jobs_of(it.queue(queue())) == set()
    assert jobs_of(it.queue(queue(2))) == {"waits"}
    assert jobs_of(it.queue(queue(2, deletionTimestamp="2026-11-23T00:00:00Z"))) == {"waits"}
    assert jobs_of(it.queue(queue(2), gone=True)) == {"waits"}


def test_jobs_that_are_over_hear_of_another_time_to_live_a_few_at_a_time() -> None:
    def lives(seconds: int | None, generation: int) -> dict[str, Any]:
        defaults = {} if seconds is None else {"jobDefaults": {"ttlSecondsAfterFinished": seconds}}
        return {**queue(generation), "spec": defaults}

    def over(asked: Any) -> list[float]:
        return [after for key, after in asked if key.name.startswith("over")]

    it = known()
    it.queue(lives(None, 1))
    it.job(job("runs", n.PHASE_RUNNING))
    for number in range(1000):
        it.job(job(f"over-{number}", n.PHASE_SUCCEEDED))
    asked = it.queue(lives(60, 2))
    assert ((n.JOB_KIND, "team", "runs"), 0.0) in asked
    assert sorted(over(asked)) == [number / FINISHED_PER_SECOND for number in range(1000)]
    assert over(it.queue(lives(60, 3))) == [], "something else was edited"
    assert len(over(it.queue(lives(60, 3), gone=True))) == 1000
    assert len(over(it.queue(lives(60, 1)))) == 1000
    assert len(over(it.queue(lives(None, 2)))) == 1000


def test_a_child_is_its_jobs() -> None:
    pod = {"metadata": {"name": "vit-0-0-abcde", "namespace": "team", "labels": {n.LABEL_JOB: "vit"}}}
    assert known().child(pod) == [((n.JOB_KIND, "team", "vit"), 0.0)]
    assert known().child({"metadata": {"name": "x", "namespace": "team"}}) == []


def test_of_what_a_new_controller_finds_only_a_pod_that_runs_asks_for_a_look_at_once() -> None:
    """Its job may be over, and its clean-up have been another controller's."""

    def asked(kind: str, phase: str) -> bool:
        meta = {"name": "vit-0-0-abcde", "namespace": "team", "labels": {n.LABEL_JOB: "vit"}}
        found = known().child({"kind": kind, "metadata": meta, "status": {"phase": phase}}, first=True)
        assert found in ([], [((n.JOB_KIND, "team", "vit"), 0.0)])
        return bool(found)

    assert [asked("Pod", phase) for phase in ("Pending", "Running")] == [True, True]
    assert not any(asked("Pod", phase) for phase in OVER)
    assert not asked("PersistentVolumeClaim", "Bound")


def test_a_queue_of_kai_is_its_torchrun_queues() -> None:
    labels = {n.LABEL_QUEUE_NAMESPACE: "team", n.LABEL_QUEUE_NAME: "h100"}
    assert known().kai_queue({"metadata": {"name": "q", "labels": labels}}) == [(QUEUE, 0.0)]
    assert known().kai_queue({"metadata": {"name": "default-queue"}}) == []


def test_the_end_of_a_gang_concerns_the_queues_that_name_its_queue() -> None:
    it = known()
    it.queue({**queue(), "spec": {"kaiQueue": "gpu"}})
    gang = {
        "metadata": {"name": "vit-0", "namespace": "team", "labels": {n.LABEL_JOB: "vit"}},
        "spec": {"queue": "gpu"},
    }
    assert it.gang(gang, gone=False) == [((n.JOB_KIND, "team", "vit"), 0.0)]
    assert it.gang(gang, gone=True) == [((n.JOB_KIND, "team", "vit"), 0.0), (QUEUE, 0.0)]
    other = {**gang, "spec": {"queue": "other"}}
    assert it.gang(other, gone=True) == [((n.JOB_KIND, "team", "vit"), 0.0)]


def test_the_end_of_a_queue_of_kai_concerns_those_that_name_the_one_above_it() -> None:
    it = known()
    it.queue({**queue(), "spec": {"kaiQueue": "gpu"}})
    below = {"metadata": {"name": "below"}, "spec": {"parentQueue": "gpu"}}
    assert it.kai_queue(below) == []
    assert it.kai_queue(below, gone=True) == [(QUEUE, 0.0)]
    assert it.kai_queue({"metadata": {"name": "top"}}, gone=True) == []


def test_a_queue_of_kai_concerns_all_that_name_it_but_its_status_nobody() -> None:
    def kai(generation: int = 1, **meta: Any) -> dict[str, Any]:
        return {"metadata": {"name": "gpu", "uid": "1", "generation": generation, **meta}}

    it = known()
    it.queue({**queue(), "spec": {"kaiQueue": "gpu"}})
    it.job(job("waits"))
    it.job(job("over", n.PHASE_SUCCEEDED))
    all_of_it = {QUEUE, (n.JOB_KIND, "team", "waits")}
    assert {key for key, _ in it.kai_queue(kai())} == all_of_it
    assert it.kai_queue(kai(resourceVersion="2")) == []
    assert {key for key, _ in it.kai_queue(kai(2))} == all_of_it
    assert {key for key, _ in it.kai_queue(kai(2), gone=True)} == all_of_it
    assert {key for key, _ in it.kai_queue(kai(2))} == all_of_it, "another of its name"
    # The end of one may be heard after the beginning of the next.
    assert {key for key, _ in it.kai_queue(kai(2, uid="0"), gone=True)} == all_of_it
    assert it.kai_queue(kai(2)) == []
    assert {key for key, _ in it.kai_queue(kai(2), gone=True)} == all_of_it
    it.queue(queue(2))
    assert it.kai_queue(kai(3)) == []


def test_the_parent_of_a_queue_of_kai_concerns_those_below_it() -> None:
    parent = {"metadata": {"name": "org"}}
    it = known()
    it.queue({**queue(), "spec": {"parentKaiQueue": "org"}})
    assert it.kai_queue(parent) == [], "it is below nothing without a kaiQueue"
    it.queue({**queue(2), "spec": {"kaiQueue": "gpu", "parentKaiQueue": "org"}})
    assert QUEUE in {key for key, _ in it.kai_queue(parent, gone=True)}
    it.remove({QUEUE})
    assert it.kai_queue(parent) == []


def test_what_is_not_in_a_list_any_more_is_forgotten() -> None:
    it = known()
    it.queue(queue())
    it.job(job("gone"))
    it.job(job("there"))
    gone = {key for key in it.all_keys() if key.name in ("gone", "h100")}
    assert {key.name for key, _ in it.remove(gone)} == {"gone", "h100"}
    assert {key.name for key in it.all_keys()} == {"there"}
    assert it.phases() == {"": 1}
    assert jobs_of(it.queue(queue())) == {"there"}


@pytest.mark.parametrize("spec", [None, "x", 5, [], {"jobDefaults": "x", "kaiQueue": 5}])
def test_things_of_nonsense_are_looked_at_all_the_same(spec: object) -> None:
    everything = known()
    assert (QUEUE, 0.0) in everything.queue({**queue(), "spec": spec})
    assert (QUEUE, 0.0) in everything.queue({**queue(2), "spec": spec}, gone=True)
    assert everything.job({**job(), "spec": spec})
    meta = {"name": "gangs", "uid": "u", "generation": 1}
    for gone in (False, True):
        everything.kai_queue({"kind": "Queue", "metadata": meta, "spec": spec}, gone=gone)
        everything.gang({"kind": "PodGroup", "metadata": meta, "spec": spec}, gone=gone)


def test_phases_of_a_queue_follow_its_jobs() -> None:
    it = known()
    it.job(job("a", n.PHASE_RUNNING))
    it.job(job("b"))
    it.job(job("c", n.PHASE_RUNNING, queue="a100"))
    assert sorted(it.phases_of("team", "h100")) == ["", n.PHASE_RUNNING]
    it.job(job("a", n.PHASE_SUCCEEDED))
    it.job(job("b"), gone=True)
    assert it.phases_of("team", "h100") == [n.PHASE_SUCCEEDED]
    assert it.phases_of("other", "h100") == []


def test_jobs_at_rest_are_reconciled_at_a_rate_after_a_start() -> None:
    it = ObjectIndex(draw=lambda: 1.0)
    delays = [it.job(job(f"vit-{each}", n.PHASE_SUCCEEDED), first=True)[0][1] for each in range(1000)]
    assert max(delays) == 1000 / AT_REST_PER_SECOND


@pytest.mark.parametrize(
    ("synced", "phase", "enqueued"),
    [(False, "", 0), (True, "", 1), (True, n.PHASE_SUCCEEDED, 1), (True, n.PHASE_RUNNING, 0)],
)
def test_child_that_appears_late_enqueues_an_idle_job(synced: bool, phase: str, enqueued: int) -> None:
    """Its reconcile may have read that the job has no objects."""
    it = known()
    it.job(job(phase=phase))
    if synced:
        it.mark_synced("Service")
    meta = {"name": "vit", "namespace": "team", "labels": {n.LABEL_JOB: "vit"}}
    assert len(it.child({"kind": "Service", "metadata": meta}, first=True)) == enqueued


def test_has_children_until_the_last_one_is_gone() -> None:
    it = known()
    labels = {n.LABEL_JOB: "vit"}
    items = [
        {"kind": kind, "metadata": {"name": "vit", "namespace": "team", "labels": labels}, "spec": {}}
        for kind in ("Job", "PodGroup")
    ]
    for each in items:
        it.change(None, each)
        it.change(each, each)
    for each in items:
        assert it.has_children("team", "vit")
        it.change(each, None)
    assert not it.has_children("team", "vit")


def test_jobs_with_workspace_are_those_of_the_digest_and_namespace() -> None:
    it = known()
    sent = {**job("sent"), "spec": {"workspace": {"digest": "a"}}}
    it.job(sent)
    it.job({**job("other"), "spec": {"workspace": {"digest": "b"}}})
    it.job({**job("none"), "spec": {"workspace": {"digest": 7}}})
    assert it.jobs_with_workspace("team", "a") == [sent]
    assert it.jobs_with_workspace("b", "a") == []
    it.job({**sent, "spec": {"workspace": {"digest": "b"}}})
    assert it.jobs_with_workspace("team", "a") == []
    it.job(sent, gone=True)
    assert [each["metadata"]["name"] for each in it.jobs_with_workspace("team", "b")] == ["other"]
