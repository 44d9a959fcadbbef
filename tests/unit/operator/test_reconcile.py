"""Reconciles through a real client and a small API server: reads, writes and conflicts."""

from __future__ import annotations

import contextlib
import copy
import json
from typing import Any

import pytest

from tests.unit.launcher.api_server import FakeApi
from tests.unit.operator.staged import (
    ATTEMPT,
    JOB,
    KAI,
    KAI_GANGS,
    NOW,
    PODS,
    QUEUE,
    SERVICE,
    TEAM,
    Killed,
    Mortal,
    delete,
    edit,
    finish,
    index_of,
    install_kai,
    phase,
    put_kai_queue,
    reconciler,
    settle,
    settle_queue,
    stage,
    thing,
    workers,
)
from trainyard.k8s.client import ApiError
from trainyard.operator import names as n
from trainyard.operator import progress
from trainyard.operator.context import Condition, merge_conditions
from trainyard.operator.plan import ReconcilePlan, apply_plan, deletion
from trainyard.operator.reconciler import Reconciler


def reason(api: FakeApi) -> str:
    return str(api.objects[JOB]["status"]["reason"])


def test_reconcile_creates_runs_and_finishes_a_job_once(api: FakeApi) -> None:
    stage(api)
    settle(Mortal(api))
    assert phase(api) == n.PHASE_PROVISIONING
    assert api.objects[ATTEMPT]["spec"]["suspend"] is False
    assert api.objects[ATTEMPT]["spec"]["completions"] == 2
    assert SERVICE in api.objects
    settle(idle := Mortal(api))
    assert idle.writes == 0
    workers(api, "Running")
    settle(Mortal(api))
    assert phase(api) == n.PHASE_RUNNING
    finish(api)
    settle(Mortal(api))
    assert phase(api) == n.PHASE_SUCCEEDED
    api.remove(ATTEMPT)
    settle(idle := Mortal(api))
    assert (ATTEMPT in api.objects, idle.writes, phase(api)) == (False, 0, n.PHASE_SUCCEEDED)


def test_reconcile_resumes_created_jobs_after_the_status(api: FakeApi) -> None:
    """One reconcile takes a job to its workers. A crash before the status must leave a suspended Job."""
    stage(api)
    reconciler(Mortal(api)).reconcile_job("team", "vit")
    writes = [(method, path) for method, path, *_ in api.requests if method != "GET"]
    steps = [("POST", ATTEMPT.rpartition("/")[0]), ("PUT", f"{JOB}/status"), ("PATCH", ATTEMPT)]
    assert [each for each in writes if each in steps] == steps
    assert api.objects[ATTEMPT]["spec"]["suspend"] is False


# --- the index


def test_first_reconcile_of_a_job_on_one_node_sends_7_requests(api: FakeApi) -> None:
    """The time until the first pod depends on them, because each one waits for the one before."""
    stage(api)
    edit(api, JOB, numGPUs=8)
    controller = reconciler(Mortal(api), index=index_of(api))
    controller.reconcile_queue("team", "h100")  # reads the cluster, too
    api.requests.clear()
    controller.reconcile_job("team", "vit")
    jobs, core = ATTEMPT.rpartition("/")[0], f"/api/v1{TEAM}"
    assert [(method, path) for method, path, _ in api.requests] == [
        ("GET", JOB),
        ("GET", QUEUE),
        ("POST", f"{core}/services"),
        ("POST", jobs),
        ("PUT", f"{JOB}/status"),
        ("PATCH", ATTEMPT),
        ("POST", f"{core}/events"),
    ]


@pytest.mark.parametrize(
    ("spec", "of_queue", "reported"),
    [
        ({"suspend": True}, {}, n.PHASE_SUSPENDED),
        ({"jobQueue": "later"}, {}, n.PHASE_PENDING),
        ({}, {"nodeResources": {"gpus": "many"}}, n.PHASE_PENDING),
    ],
)
def test_reconcile_job_at_rest_reads_only_the_job(
    api: FakeApi, spec: dict[str, Any], of_queue: dict[str, Any], reported: str
) -> None:
    stage(api)
    edit(api, JOB, **spec)
    edit(api, QUEUE, **of_queue)
    controller = reconciler(Mortal(api), index=index_of(api))
    controller.reconcile_queue("team", "h100")  # reads the cluster, too
    api.requests.clear()
    for _ in range(2):
        controller.reconcile_job("team", "vit")
    assert phase(api) == reported
    reads = [path for method, path, _ in api.requests if method == "GET"]
    # The first status that users see is not that of an older queue.
    assert reads == [JOB, QUEUE.replace("h100", spec.get("jobQueue", "h100")), JOB]


# After one write is before the next one.
@pytest.mark.parametrize(("kill", "after"), [(1, False), *((kill, True) for kill in range(1, 8))])
def test_reconcile_with_a_late_watch_makes_each_object_once(api: FakeApi, kill: int, after: bool) -> None:
    """The watches have seen none of the job's objects, and an older queue."""
    stage(api)
    late = index_of(api)
    edit(api, QUEUE, image="team/pytorch:2")
    with contextlib.suppress(Killed):
        settle(Mortal(api, kill, after=after), late)
    settle(Mortal(api), late)
    assert sum(method == "POST" and path.endswith("/jobs") for method, path, _ in api.requests) == 1
    assert phase(api) == n.PHASE_PROVISIONING
    spec = api.objects[ATTEMPT]["spec"]
    assert spec["template"]["spec"]["containers"][0]["image"] == "team/pytorch:2"
    assert spec["suspend"] is False


@pytest.mark.parametrize(("state", "restarts"), [("Running", 0), ("Failed", 1)])
def test_reconcile_with_a_late_watch_counts_restarts_once(api: FakeApi, state: str, restarts: int) -> None:
    stage(api)
    late = index_of(api)
    settle(Mortal(api), late)
    workers(api, state, exit_code=1 if state == "Failed" else None)
    for _ in range(2):
        settle(Mortal(api), late)
    assert api.objects[JOB]["status"]["restarts"] == restarts


def test_reconcile_finished_job_with_known_objects_deletes_them(api: FakeApi) -> None:
    stage(api)
    settle(Mortal(api))
    finished = {"phase": n.PHASE_FAILED, "reason": "x", "attempt": 1, "restarts": 1, "observedGeneration": 1}
    api.put(JOB, {**api.objects[JOB], "status": finished})
    settle(Mortal(api), index_of(api))
    assert ATTEMPT not in api.objects


# --- changes between two reads


@pytest.mark.parametrize("gone", [(JOB, SERVICE, ATTEMPT), (JOB, SERVICE)], ids=["all", "service"])
def test_reconcile_of_a_job_deleted_meanwhile_creates_nothing(api: FakeApi, gone: tuple[str, ...]) -> None:
    """Kubernetes removes its objects one by one, and a reconcile must not take them for missing."""
    stage(api)
    settle(Mortal(api))

    class Late(Mortal):
        """The job and its objects go while these are listed."""

        def list(self, *arguments: Any) -> list[dict[str, Any]]:
            for path in gone:
                if path in api.objects:
                    api.remove(path)
            return super().list(*arguments)

    api.requests.clear()
    settle(Late(api))
    assert not any(method == "POST" for method, *_ in api.requests)
    assert not any(path in api.objects for path in gone)


def test_writer_of_annotations_delays_no_status(api: FakeApi) -> None:
    stage(api)
    written = 0

    def annotate(method: str, path: str) -> None:
        nonlocal written
        if (method, path) == ("PUT", f"{JOB}/status") and written < 3:
            written += 1
            item = api.objects[JOB]
            api.put(JOB, {**item, "metadata": {**item["metadata"], "annotations": {"count": str(written)}}})

    api.on_request = annotate
    reconciler(Mortal(api)).reconcile_job("team", "vit")
    assert (written, phase(api)) == (3, n.PHASE_PROVISIONING)
    assert api.objects[JOB]["metadata"]["annotations"] == {"count": "3"}


def test_reconcile_overtaken_by_another_writes_no_status(api: FakeApi) -> None:
    """It has seen no Job because the other one had not created it yet."""
    stage(api)
    settle(Mortal(api))
    workers(api, "Running")
    settle(Mortal(api))

    class Overtaken(Mortal):
        def list(self, *arguments: Any) -> list[dict[str, Any]]:
            item = api.objects[JOB]
            api.put(JOB, {**item, "status": {**item["status"], "message": "all workers are ready"}})
            return []

    reconciler(Overtaken(api)).reconcile_job("team", "vit")
    assert phase(api) == n.PHASE_RUNNING
    assert api.objects[JOB]["status"]["restarts"] == 0


def test_workers_removed_by_a_succeeded_job_are_not_lost(api: FakeApi) -> None:
    """It succeeds with the first of an elastic gang, between the list of Jobs and that of pods."""
    stage(api)
    api.objects[JOB]["spec"]["elastic"] = {"minNodes": 1, "maxNodes": 2}
    settle(Mortal(api))
    workers(api, "Running")
    settle(Mortal(api))

    class Meanwhile(Mortal):
        def list(self, version: str, kind: str, *arguments: Any) -> list[dict[str, Any]]:
            if kind == "Pod":
                done = {"conditions": [{"type": "SuccessCriteriaMet", "status": "True"}]}
                api.put(ATTEMPT, {**api.objects[ATTEMPT], "status": done})
                for name in api.names(PODS):
                    pod = api.objects[f"{PODS}/{name}"]
                    pod["metadata"]["deletionTimestamp"] = "2026-11-22T11:00:00Z"
            return super().list(version, kind, *arguments)

    reconciler(Meanwhile(api)).reconcile_job("team", "vit")
    assert (phase(api), api.objects[JOB]["status"]["restarts"]) == (n.PHASE_RUNNING, 0)


def test_foreign_object_with_a_needed_name_is_reported(api: FakeApi) -> None:
    stage(api)
    api.put(SERVICE, thing("v1", "Service", "vit", {"clusterIP": "10.0.0.1"}))
    controller = reconciler(Mortal(api))
    for _ in range(6):
        controller.reconcile_job("team", "vit")
    assert api.objects[SERVICE]["spec"] == {"clusterIP": "10.0.0.1"}
    assert reason(api) == n.REASON_NAME_TAKEN
    assert ATTEMPT not in api.objects
    api.remove(SERVICE)
    for _ in range(8):
        controller.reconcile_job("team", "vit")
    assert phase(api) == n.PHASE_PROVISIONING
    assert api.objects[SERVICE]["spec"]["clusterIP"] == "None"


def test_job_that_changed_since_it_was_read_is_reconciled_again(api: FakeApi) -> None:
    stage(api)

    def suspend(method: str, path: str) -> None:
        if (method, path) == ("PUT", f"{JOB}/status") and not api.objects[JOB]["spec"].get("suspend"):
            item = api.objects[JOB]
            api.put(JOB, {**item, "spec": {**item["spec"], "suspend": True}})

    api.on_request = suspend
    settle(Mortal(api))
    assert phase(api) == n.PHASE_SUSPENDED
    assert ATTEMPT not in api.objects


# --- rejected requests


@pytest.mark.parametrize(
    "path", [QUEUE, "/apis/storage.k8s.io/v1/storageclasses", f"/apis/batch/v1{TEAM}/jobs"]
)
def test_missing_permission_is_reported_until_it_is_given(api: FakeApi, path: str) -> None:
    stage(api)
    api.refused = {("GET", path)}
    objects = Mortal(api)
    controller = reconciler(objects)
    for _ in range(2):
        with pytest.raises(ApiError, match="403"):
            controller.reconcile_job("team", "vit")
    status = api.objects[JOB]["status"]
    assert (status["phase"], status["reason"]) == (n.PHASE_PENDING, n.REASON_REFUSED)
    assert f"GET {path}" in status["message"]
    assert status["observedGeneration"] == 1
    (condition,) = status["conditions"]
    assert (condition["type"], condition["status"]) == (n.ACCEPTED, "False")
    (event,) = (api.objects[f"/api/v1{TEAM}/events/{name}"] for name in api.names(f"/api/v1{TEAM}/events"))
    assert (event["type"], event["reason"], event["message"]) == ("Warning", "Refused", status["message"])
    api.refused = set()
    settle(objects)
    assert phase(api) == n.PHASE_PROVISIONING


# --- hostile objects


def run(api: FakeApi, **annotations: str) -> None:
    """Run the job. Its workers have these annotations."""
    stage(api)
    settle(Mortal(api))
    workers(api, "Running")
    for path in [each for each in api.objects if each.startswith(f"{PODS}/vit-0-")]:
        item = api.objects[path]
        item["metadata"]["annotations"] |= annotations
        item["metadata"]["labels"][n.LABEL_INDEX] = "0"
        item["metadata"]["creationTimestamp"] = "2027-01-15T08:00:00Z"
        item["status"]["podIP"] = "127.0.0.1"
    settle(Mortal(api))
    assert phase(api) == n.PHASE_RUNNING


@pytest.mark.parametrize("edit", [{"suspend": True}, {"activeDeadlineSeconds": 1}])
def test_worker_stops_no_reconcile_whatever_it_says(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch, edit: dict[str, Any]
) -> None:
    """The parser of its answer may raise. test_progress.py has its annotations."""
    answers = []

    def parser(text: str) -> None:
        answers.append(text)
        raise KeyError("malformed")

    monkeypatch.setattr(progress, "_fetch", lambda *_: "answer")
    monkeypatch.setattr(progress, "parse_metrics", parser)
    run(api, **{n.ANNOTATION_SCRAPE: "true"})
    api.objects[JOB]["spec"] |= edit
    reconciler(Mortal(api), now=lambda: NOW + 60, ask=progress.read_progress).reconcile_job("team", "vit")
    assert phase(api) == (n.PHASE_SUSPENDED if "suspend" in edit else n.PHASE_FAILED)
    assert answers


@pytest.mark.parametrize("of", ["queue", "other queue", "other job"])
def test_object_of_any_depth_stops_no_reconcile(api: FakeApi, of: str) -> None:
    """Its own queue, whose template no pod can have; one of another job, which is in the same lists."""
    run(api)
    below: dict[str, Any] = {}
    for _ in range(9900):  # the API server takes 10,000 levels of JSON
        below = {"a": below}
    deep = {"podTemplate": {"spec": below}}
    if of == "queue":
        api.objects[QUEUE]["spec"] |= deep
    else:
        path, more = (JOB, {"overrides": deep}) if of == "other job" else (QUEUE, deep)
        other = json.loads(json.dumps(api.objects[path]))
        other["metadata"] |= {"name": "deep", "uid": "deep"}
        other["spec"] |= more
        api.objects[f"{path.rpartition('/')[0]}/deep"] = other
    api.objects[JOB]["spec"]["activeDeadlineSeconds"] = 1
    controller = reconciler(Mortal(api), now=lambda: NOW + 60)
    controller.reconcile_job("team", "vit")
    controller.reconcile_queue("team", api.objects[QUEUE]["metadata"]["name"])
    assert phase(api) == n.PHASE_FAILED


# --- writes of a plan whose object has changed, and the order of conditions

OTHER = "example.com/theirs"
CLAIM = "/apis/karpenter.sh/v1/nodeclaims/p5-1"


@pytest.mark.parametrize("started", [False, True])
def test_node_claim_of_a_job_that_has_started_is_kept(api: FakeApi, started: bool) -> None:
    stage(api)
    api.put(CLAIM, {"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": {"name": "p5-1"}})
    read = copy.deepcopy(api.objects[JOB])
    plan = ReconcilePlan(deletions=(deletion(api.objects[CLAIM]),))
    if started:
        api.put(JOB, {**read, "status": {"phase": "Provisioning"}})
    assert apply_plan(plan, read, Mortal(api)) == (JOB if started else "")
    assert (CLAIM in api.objects) is started


@pytest.mark.parametrize("newer", [False, True])
def test_finalizers_of_another_writer_are_kept(api: FakeApi, newer: bool) -> None:
    stage(api)
    read = copy.deepcopy(api.objects[QUEUE])
    if newer:
        api.put(QUEUE, {**read, "metadata": {**read["metadata"], "finalizers": [OTHER]}})
    plan = ReconcilePlan(finalizers=(n.QUEUE_FINALIZER,), status={})
    assert apply_plan(plan, read, Mortal(api)) == QUEUE, "it is reconciled again"
    assert api.objects[QUEUE]["metadata"]["finalizers"] == [OTHER if newer else n.QUEUE_FINALIZER]


def so(*types: str) -> list[Condition]:
    return [Condition(type=each, status=True, reason="Reported", message=each) for each in types]


def types(found: list[dict[str, Any]]) -> list[str]:
    return [each["type"] for each in found]


@pytest.mark.parametrize("every", [n.JOB_CONDITIONS, n.QUEUE_CONDITIONS])
def test_conditions_are_in_the_order_of_their_kind(every: tuple[str, ...]) -> None:
    reported = merge_conditions(None, so(*reversed(every)), 1, NOW)
    assert types(reported) == list(every)
    one_by_one: list[dict[str, Any]] = []
    for each in every[1::2] + every[0::2]:
        one_by_one = merge_conditions(one_by_one, so(each), 1, NOW)
    assert one_by_one == reported


def test_conditions_of_other_writers_come_last() -> None:
    """The reference page does not name them."""
    others = [{"type": "Zoned", "status": "True"}, {"type": "Audited", "status": "True"}]
    reported = merge_conditions(others, so(n.FAILED, n.ACCEPTED), 1, NOW)
    assert types(reported) == [n.ACCEPTED, n.FAILED, "Zoned", "Audited"]


def test_conditions_in_another_order_are_no_change() -> None:
    """Otherwise an upgrade would write all jobs at rest again."""
    before = list(reversed(merge_conditions(None, so(*n.JOB_CONDITIONS), 1, NOW)))
    assert merge_conditions(before, so(n.ACCEPTED), 1, NOW + 60) == before
    other = merge_conditions(before, [Condition(type=n.ACCEPTED, status=False, reason="No")], 1, NOW + 60)
    assert types(other) == list(n.JOB_CONDITIONS)


# --- queues, and jobs in queues of KAI Scheduler


def test_queue_is_ready_after_a_dry_run(api: FakeApi) -> None:
    stage(api)
    assert settle_queue(api)[n.READY][0] == "True"
    assert api.names(PODS) == []
    assert api.objects[QUEUE]["status"]["jobs"] == {"active": 0, "pending": 1}
    assert not [path for _, path, _ in api.requests if path.endswith("/torchrunjobs")], "its index has them"
    api.refused = {("POST", PODS)}
    reported = settle_queue(api)
    assert (reported[n.READY][0], reported[n.POD_TEMPLATE_VALID][0]) == ("False", "False")
    assert "Forbidden" in reported[n.POD_TEMPLATE_VALID][1]


def test_kai_half_installed_is_none(api: FakeApi) -> None:
    stage(api)
    api.objects[QUEUE]["spec"]["scheduling"] = {"scheduler": n.KAI_SCHEDULER}
    install_kai(api, whole=False)
    settle_of_all(api)
    assert api.objects[JOB]["status"]["reason"] == n.REASON_SCHEDULER_NOT_INSTALLED
    install_kai(api)
    settle_of_all(api)
    assert phase(api) == n.PHASE_PROVISIONING


def lasting(api: FakeApi) -> Reconciler:
    """Return a controller whose clock stands still: it never reads again because what it has read is old."""
    return reconciler(Mortal(api), lambda: NOW)


def test_gang_starts_after_the_queue_of_its_override(api: FakeApi) -> None:
    stage(api)
    install_kai(api)
    api.objects[QUEUE]["spec"] |= {"scheduling": {"scheduler": n.KAI_SCHEDULER}, "kaiQueue": "gpu"}
    api.objects[JOB]["spec"]["overrides"] = {"kaiQueue": "urgent"}
    controller = lasting(api)
    controller.reconcile_queue("team", "h100")
    few = {"resources": {"gpu": {"limit": 8}}}
    for name, spec, reported in (
        ("other", {}, n.REASON_KAI_QUEUE_NOT_FOUND),
        ("urgent", few, n.REASON_KAI_QUEUE_LIMIT),
        ("urgent", {}, n.REASON_STARTING),
    ):
        put_kai_queue(api, name, **spec)
        for _ in range(5):
            controller.reconcile_job("team", "vit")
        assert api.objects[JOB]["status"]["reason"] == reported
        assert (ATTEMPT in api.objects) == (reported == n.REASON_STARTING)
    assert api.objects[f"{KAI_GANGS}{TEAM}/podgroups/vit-0"]["spec"]["queue"] == "urgent"


def settle_of_all(api: FakeApi) -> None:
    controller = reconciler(Mortal(api))
    for _ in range(6):
        controller.reconcile_job("team", "vit")


def test_kai_queue_is_deleted_after_all_its_gangs(api: FakeApi) -> None:
    stage(api)
    install_kai(api)
    api.objects[QUEUE]["spec"] |= {"scheduling": {"scheduler": n.KAI_SCHEDULER}, "kaiQueue": "gpu"}
    settle_queue(api)
    settle_of_all(api)
    assert f"{KAI}/queues/gpu" in api.objects
    delete(api, QUEUE)
    gang = api.objects[f"{KAI_GANGS}{TEAM}/podgroups/vit-0"]
    api.remove(f"{KAI_GANGS}{TEAM}/podgroups/vit-0")
    elsewhere = f"{KAI_GANGS}/namespaces/other/podgroups/bert-0"
    # Not of a job of ours, and so without its label.
    api.put(elsewhere, {**gang, "metadata": {"name": "bert-0", "namespace": "other"}})
    reported = settle_queue(api)[n.READY]
    assert reported[0] == "False"
    assert "queue gpu of KAI Scheduler is in use: PodGroup other/bert-0." in reported[1]
    assert f"{KAI}/queues/gpu" in api.objects
    api.remove(elsewhere)
    put_kai_queue(api, "below", parentQueue="gpu")
    assert "gpu of KAI Scheduler is in use: Queue team/below." in settle_queue(api)[n.READY][1]
    assert f"{KAI}/queues/gpu" in api.objects
    api.remove(f"{KAI}/queues/below")
    settle_queue(api)
    assert f"{KAI}/queues/gpu" not in api.objects
    assert QUEUE not in api.objects


def test_missing_permission_is_reported_by_the_queue(api: FakeApi) -> None:
    stage(api)
    api.refused = {("GET", "/apis/storage.k8s.io/v1/storageclasses")}
    with pytest.raises(ApiError, match="403"):
        reconciler(Mortal(api)).reconcile_queue("team", "h100")
    (condition,) = api.objects[QUEUE]["status"]["conditions"]
    assert (condition["type"], condition["reason"]) == (n.READY, n.REASON_REFUSED)


def test_new_parent_is_seen_at_the_next_reconcile(api: FakeApi) -> None:
    stage(api)
    install_kai(api)
    api.objects[QUEUE]["spec"] |= {"kaiQueue": "gpu", "parentKaiQueue": "org"}
    controller = lasting(api)

    def ready() -> str:
        for _ in range(5):
            controller.reconcile_queue("team", "h100")
        conditions = api.objects[QUEUE]["status"]["conditions"]
        return str(next(each["reason"] for each in conditions if each["type"] == n.KAI_QUEUE_READY))

    assert ready() == n.REASON_PARENT_QUEUE_NOT_FOUND
    put_kai_queue(api, "org")
    assert ready() == "Created"
