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


def new_index() -> ObjectIndex:
    return ObjectIndex(draw=lambda: 0.5)


def jobs_of(asked: Any) -> set[str]:
    return {key.name for key, _ in asked if key.kind == n.JOB_KIND}


def test_job_event_enqueues_it_and_its_queue_on_a_new_phase() -> None:
    it = new_index()
    assert it.job(job()) == [((n.JOB_KIND, "team", "vit"), 0.0), (QUEUE, COUNT_SECONDS)]
    assert it.job(job()) == [((n.JOB_KIND, "team", "vit"), 0.0)]
    assert (QUEUE, COUNT_SECONDS) in it.job(job(phase=n.PHASE_RUNNING))
    assert it.phases() == {n.PHASE_RUNNING: 1}
    assert (QUEUE, COUNT_SECONDS) in it.job(job(phase=n.PHASE_RUNNING), gone=True)
    assert it.phases() == {}


@pytest.mark.parametrize("named", [None, 7, "", ["h100"]])
def test_job_event_without_a_queue_enqueues_the_job(named: object) -> None:
    assert [key.name for key, _ in new_index().job(job(queue=named))] == ["vit"]


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
def test_listed_job_at_rest_is_delayed(item: dict[str, Any], after: float) -> None:
    assert dict(new_index().job(item, first=True))[(n.JOB_KIND, "team", "vit")] == after  # type: ignore[index]
    assert dict(new_index().job(item))[(n.JOB_KIND, "team", "vit")] == 0.0  # type: ignore[index]


def test_queue_event_enqueues_its_jobs_except_for_status() -> None:
    it = new_index()
    it.job(job("waits"))
    it.job(job("over", n.PHASE_SUCCEEDED))
    it.job(job("other", queue="a100"))
    assert jobs_of(it.queue(queue())) == {"waits"}
    assert jobs_of(it.queue(queue())) == set()
    assert jobs_of(it.queue(queue(2))) == {"waits"}
    assert jobs_of(it.queue(queue(2, deletionTimestamp="2026-11-23T00:00:00Z"))) == {"waits"}
    assert jobs_of(it.queue(queue(2), gone=True)) == {"waits"}


def test_new_time_to_live_enqueues_finished_jobs_slowly() -> None:
    def lives(seconds: int | None, generation: int) -> dict[str, Any]:
        defaults = {} if seconds is None else {"jobDefaults": {"ttlSecondsAfterFinished": seconds}}
        return {**queue(generation), "spec": defaults}

    def over(asked: Any) -> list[float]:
        return [after for key, after in asked if key.name.startswith("over")]

    it = new_index()
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


def test_child_event_enqueues_its_job() -> None:
    pod = {"metadata": {"name": "vit-0-0-abcde", "namespace": "team", "labels": {n.LABEL_JOB: "vit"}}}
    assert new_index().child(pod) == [((n.JOB_KIND, "team", "vit"), 0.0)]
    assert new_index().child({"metadata": {"name": "x", "namespace": "team"}}) == []


def test_listed_child_enqueues_only_for_a_running_pod() -> None:
    """Its job may be over, and its clean-up have been another controller's."""

    def asked(kind: str, phase: str) -> bool:
        meta = {"name": "vit-0-0-abcde", "namespace": "team", "labels": {n.LABEL_JOB: "vit"}}
        found = new_index().child({"kind": kind, "metadata": meta, "status": {"phase": phase}}, first=True)
        assert found in ([], [((n.JOB_KIND, "team", "vit"), 0.0)])
        return bool(found)

    assert [asked("Pod", phase) for phase in ("Pending", "Running")] == [True, True]
    assert not any(asked("Pod", phase) for phase in OVER)
    assert not asked("PersistentVolumeClaim", "Bound")


def test_kai_queue_event_enqueues_its_owner() -> None:
    labels = {n.LABEL_QUEUE_NAMESPACE: "team", n.LABEL_QUEUE_NAME: "h100"}
    assert new_index().kai_queue({"metadata": {"name": "q", "labels": labels}}) == [(QUEUE, 0.0)]
    assert new_index().kai_queue({"metadata": {"name": "default-queue"}}) == []


def test_gang_deletion_enqueues_queues_that_name_its_queue() -> None:
    it = new_index()
    it.queue({**queue(), "spec": {"kaiQueue": "gpu"}})
    gang = {
        "metadata": {"name": "vit-0", "namespace": "team", "labels": {n.LABEL_JOB: "vit"}},
        "spec": {"queue": "gpu"},
    }
    assert it.gang(gang, gone=False) == [((n.JOB_KIND, "team", "vit"), 0.0)]
    assert it.gang(gang, gone=True) == [((n.JOB_KIND, "team", "vit"), 0.0), (QUEUE, 0.0)]
    other = {**gang, "spec": {"queue": "other"}}
    assert it.gang(other, gone=True) == [((n.JOB_KIND, "team", "vit"), 0.0)]


def test_kai_queue_deletion_enqueues_queues_of_its_parent() -> None:
    it = new_index()
    it.queue({**queue(), "spec": {"kaiQueue": "gpu"}})
    below = {"metadata": {"name": "below"}, "spec": {"parentQueue": "gpu"}}
    assert it.kai_queue(below) == []
    assert it.kai_queue(below, gone=True) == [(QUEUE, 0.0)]
    assert it.kai_queue({"metadata": {"name": "top"}}, gone=True) == []


def test_kai_queue_event_enqueues_all_that_name_it() -> None:
    def kai(generation: int = 1, **meta: Any) -> dict[str, Any]:
        return {"metadata": {"name": "gpu", "uid": "1", "generation": generation, **meta}}

    it = new_index()
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


def test_kai_parent_event_enqueues_the_queues_below() -> None:
    parent = {"metadata": {"name": "org"}}
    it = new_index()
    it.queue({**queue(), "spec": {"parentKaiQueue": "org"}})
    assert it.kai_queue(parent) == [], "it is below nothing without a kaiQueue"
    it.queue({**queue(2), "spec": {"kaiQueue": "gpu", "parentKaiQueue": "org"}})
    assert QUEUE in {key for key, _ in it.kai_queue(parent, gone=True)}
    it.remove({QUEUE})
    assert it.kai_queue(parent) == []


def test_remove_forgets_what_a_list_lacks() -> None:
    it = new_index()
    it.queue(queue())
    it.job(job("gone"))
    it.job(job("there"))
    gone = {key for key in it.all_keys() if key.name in ("gone", "h100")}
    assert {key.name for key, _ in it.remove(gone)} == {"gone", "h100"}
    assert {key.name for key in it.all_keys()} == {"there"}
    assert it.phases() == {"": 1}
    assert jobs_of(it.queue(queue())) == {"there"}


@pytest.mark.parametrize("spec", [None, "x", 5, [], {"jobDefaults": "x", "kaiQueue": 5}])
def test_events_of_wrong_types_enqueue_their_object(spec: object) -> None:
    everything = new_index()
    assert (QUEUE, 0.0) in everything.queue({**queue(), "spec": spec})
    assert (QUEUE, 0.0) in everything.queue({**queue(2), "spec": spec}, gone=True)
    assert everything.job({**job(), "spec": spec})
    meta = {"name": "gangs", "uid": "u", "generation": 1}
    for gone in (False, True):
        everything.kai_queue({"kind": "Queue", "metadata": meta, "spec": spec}, gone=gone)
        everything.gang({"kind": "PodGroup", "metadata": meta, "spec": spec}, gone=gone)


def test_phases_of_a_queue_follow_its_jobs() -> None:
    it = new_index()
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
    it = new_index()
    it.job(job(phase=phase))
    if synced:
        it.mark_synced("Service")
    meta = {"name": "vit", "namespace": "team", "labels": {n.LABEL_JOB: "vit"}}
    assert len(it.child({"kind": "Service", "metadata": meta}, first=True)) == enqueued


def test_has_children_until_the_last_one_is_gone() -> None:
    it = new_index()
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
    it = new_index()
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
