"""Which jobs and queues an event concerns."""

from __future__ import annotations

from typing import Any

import pytest

from trainyard.operator import names as n
from trainyard.operator.index import (
    AT_REST_PER_SECOND,
    COUNT_SECONDS,
    Key,
    ObjectIndex,
    converter,
)
from trainyard.operator.observe import OVER

VIT = Key(n.JOB_KIND, "team", "vit")
QUEUE = Key(n.QUEUE_KIND, "team", "h100")
DELETED = "2026-11-23T00:00:00Z"
ONE_AT_REST = 1 / AT_REST_PER_SECOND / 2


def job(
    name: str = "vit", phase: str = "", *, queue: object = "h100", reason: str = "", **meta: Any
) -> dict[str, Any]:
    status = {"phase": phase, "reason": reason, "observedGeneration": 1} if phase else {}
    named = {"name": name, "namespace": "team", "generation": 1, **meta}
    return {"kind": n.JOB_KIND, "metadata": named, "spec": {"jobQueue": queue}, "status": status}


def queue(generation: int = 1, spec: object = None, **meta: Any) -> dict[str, Any]:
    named = {"name": "h100", "namespace": "team", "generation": generation, **meta}
    return {"kind": n.QUEUE_KIND, "metadata": named, "spec": {} if spec is None else spec}


def child(kind: str = "Pod", phase: str = "Running", **spec: Any) -> dict[str, Any]:
    meta = {"name": "vit-0", "namespace": "team", "labels": {n.LABEL_JOB: "vit"}}
    return {"kind": kind, "metadata": meta, "spec": spec, "status": {"phase": phase}}


def index_of(*items: dict[str, Any]) -> ObjectIndex:
    index = ObjectIndex(draw=lambda: 0.5)
    for each in items:
        index.change(None, each)
    return index


def jobs_of(requests: Any) -> set[str]:
    return {key.name for key, _ in requests if key.kind == n.JOB_KIND}


def test_job_event_enqueues_its_queue_on_a_new_phase() -> None:
    index, running = index_of(), job(phase=n.PHASE_RUNNING)
    assert index.change(None, job()) == [(VIT, 0.0), (QUEUE, COUNT_SECONDS)]
    assert index.change(job(), job()) == [(VIT, 0.0)]
    assert index.change(job(), running) == [(VIT, 0.0), (QUEUE, COUNT_SECONDS)]
    assert index.phases() == {n.PHASE_RUNNING: 1}
    assert index.change(running, None) == [(VIT, 0.0), (QUEUE, COUNT_SECONDS)]
    assert index.phases() == {}


@pytest.mark.parametrize(
    ("item", "after"),
    [
        (job(phase=n.PHASE_SUCCEEDED), ONE_AT_REST),
        (job(phase=n.PHASE_FAILED), ONE_AT_REST),
        (job(phase=n.PHASE_SUSPENDED, reason=n.REASON_SUSPENDED), ONE_AT_REST),
        (job(phase=n.PHASE_PENDING, reason=n.REASON_QUEUE_NOT_FOUND), ONE_AT_REST),
        (job(phase=n.PHASE_PENDING, reason=n.REASON_STARTING), 0.0),
        (job(phase=n.PHASE_SUSPENDED, reason=n.REASON_SUSPENDED, generation=2), 0.0),
        (job(phase=n.PHASE_RUNNING), 0.0),
        (job(phase=n.PHASE_SUCCEEDED, generation=2), 0.0),
        (job(phase=n.PHASE_SUCCEEDED, deletionTimestamp=DELETED), 0.0),
    ],
)
def test_listed_job_at_rest_is_delayed(item: dict[str, Any], after: float) -> None:
    index = index_of()
    assert index.change(None, item)[0] == (VIT, after)
    assert index.change(item, item) == [(VIT, 0.0)]
    assert index.resync() == [(VIT, after)]


def test_jobs_at_rest_are_enqueued_at_a_rate() -> None:
    index = ObjectIndex(draw=lambda: 1.0)
    delays = [index.change(None, job(f"vit-{each}", n.PHASE_SUCCEEDED))[0][1] for each in range(1000)]
    assert max(delays) == 1000 / AT_REST_PER_SECOND


def test_queue_event_enqueues_its_jobs_except_for_status() -> None:
    index = index_of(job("waits"), job("over", n.PHASE_SUCCEEDED), job("other", queue="a100"))
    assert jobs_of(index.change(None, queue())) == {"waits"}
    assert index.change(queue(), queue()) == [(QUEUE, 0.0)]
    assert jobs_of(index.change(queue(), queue(2))) == {"waits"}
    assert jobs_of(index.change(queue(2), queue(2, deletionTimestamp=DELETED))) == {"waits"}
    assert jobs_of(index.change(queue(2), None)) == {"waits"}
    assert jobs_of(index.resync()) == {"waits", "over", "other"}


def test_new_time_to_live_enqueues_finished_jobs_slowly() -> None:
    def ttl(seconds: int | None, generation: int) -> dict[str, Any]:
        return queue(generation, {"jobDefaults": {"ttlSecondsAfterFinished": seconds}})

    index = index_of(job("over", n.PHASE_FAILED))
    slow = [(VIT._replace(name="over"), ONE_AT_REST)]
    assert index.change(None, ttl(None, 1))[1:] == []
    assert index.change(ttl(None, 1), ttl(60, 2))[1:] == slow
    assert index.change(ttl(60, 2), ttl(60, 3))[1:] == [], "something else was changed"
    for change in ((ttl(60, 3), None), (None, ttl(60, 1)), (ttl(60, 1), ttl(None, 2))):
        assert index.change(*change)[1:] == slow


@pytest.mark.parametrize(
    ("kind", "phase", "synced", "job_phase", "enqueued"),
    [
        ("Pod", "Pending", False, "", True),
        ("Pod", "Running", False, "", True),  # its job may be finished
        *(("Pod", phase, False, "", False) for phase in OVER),
        ("PersistentVolumeClaim", "Bound", False, "", False),
        # A reconcile of an idle job may have read that it has no objects.
        ("Service", "", True, "", True),
        ("Service", "", True, n.PHASE_SUCCEEDED, True),
        ("Service", "", True, n.PHASE_RUNNING, False),
    ],
)
def test_new_child_enqueues_its_job_if_unexpected(
    kind: str, phase: str, *, synced: bool, job_phase: str, enqueued: bool
) -> None:
    index = index_of(job(phase=job_phase))
    if synced:
        index.mark_synced(kind)
    assert index.change(None, child(kind, phase)) == ([(VIT, 0.0)] if enqueued else [])
    assert index.change(child(kind, phase), child(kind, phase)) == [(VIT, 0.0)]
    assert index.change(None, {**child(kind, phase), "metadata": {"name": "x", "namespace": "team"}}) == []


def test_has_children_until_the_last_one_is_gone() -> None:
    items = [child("Job"), child("PodGroup")]
    index = index_of(*items, *items)
    for each in items:
        assert index.has_children("team", "vit")
        index.change(each, None)
    assert not index.has_children("team", "vit")


def test_gang_deletion_enqueues_queues_that_name_its_queue() -> None:
    index = index_of(queue(spec={"kaiQueue": "gpu"}))
    for name, requests in (("gpu", [(VIT, 0.0), (QUEUE, 0.0)]), ("other", [(VIT, 0.0)])):
        gang = child("PodGroup", queue=name)
        assert index.change(gang, gang) == [(VIT, 0.0)]
        assert index.change(gang, None) == requests


def test_kai_queue_event_enqueues_queues_and_jobs_that_wait() -> None:
    """A queue may be owned by a TorchrunQueue, or be the parent of its queue, or have been one of both."""
    waits = job("waits", n.PHASE_PENDING, reason=n.REASON_KAI_QUEUE_LIMIT)
    index = index_of(queue(), waits, job("runs", n.PHASE_RUNNING), job("over", n.PHASE_SUCCEEDED))
    kai = {"kind": "Queue", "metadata": {"name": "gpu"}}
    for change in ((None, kai), (kai, kai), (kai, None)):
        assert {key for key, _ in index.change(*change)} == {QUEUE, VIT._replace(name="waits")}


def test_converted_kai_queue_differs_only_with_its_spec() -> None:
    item = {"metadata": {"name": "gpu", "generation": 1, "resourceVersion": "1"}, "spec": {}}
    kept = converter("Queue")(item)
    status = {"metadata": {**item["metadata"], "resourceVersion": "2"}, "status": {"allocated": 1}}
    assert converter("Queue")({**item, **status}) == kept
    assert converter("Queue")({**item, "metadata": {**item["metadata"], "generation": 2}}) != kept


@pytest.mark.parametrize("spec", ["x", 5, [], {"jobDefaults": "x", "kaiQueue": 5, "jobQueue": ["h100"]}])
def test_events_of_wrong_types_enqueue_their_object(spec: object) -> None:
    index = index_of()
    assert (QUEUE, 0.0) in index.change(None, queue(spec=spec))
    assert (QUEUE, 0.0) in index.change(queue(spec=spec), None)
    assert index.change(None, {**job(), "spec": spec}) == [(VIT, 0.0)]
    gang = {**child("PodGroup"), "spec": spec}
    assert (VIT, 0.0) in index.change(gang, None)
    assert index.jobs_with_workspace("team", "a") == []


def test_phases_of_a_queue_follow_its_jobs() -> None:
    index = index_of(job("a", n.PHASE_RUNNING), job("b"), job("c", n.PHASE_RUNNING, queue="a100"))
    assert sorted(index.phases_of("team", "h100")) == ["", n.PHASE_RUNNING]
    index.change(job("a", n.PHASE_RUNNING), job("a", n.PHASE_SUCCEEDED))
    index.change(job("b"), None)
    assert index.phases_of("team", "h100") == [n.PHASE_SUCCEEDED]
    assert index.phases_of("other", "h100") == []


def test_jobs_with_workspace_are_those_of_the_digest() -> None:
    sent, other, none = (
        {**job(name), "spec": {"workspace": {"digest": digest}}}
        for name, digest in (("sent", "a"), ("other", "b"), ("none", 7))
    )
    index = index_of(sent, other, none)
    assert index.jobs_with_workspace("team", "a") == [sent]
    assert index.jobs_with_workspace("b", "a") == []
    index.change(sent, None)
    assert index.jobs_with_workspace("team", "a") == []
