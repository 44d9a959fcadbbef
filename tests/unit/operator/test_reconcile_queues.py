"""Queues, and jobs in queues of KAI Scheduler, through a real client and a small API server."""

from __future__ import annotations

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
    TEAM,
    Mortal,
    install_kai,
    phase,
    reconciler,
    settle_queue,
    stage,
    thing,
)
from trainyard.k8s.client import ApiError
from trainyard.operator import names as n
from trainyard.operator.reconciler import Reconciler


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


def put_queue(api: FakeApi, name: str) -> None:
    meta = {"name": name}
    version = f"{n.KAI_GROUP}/{n.KAI_QUEUE_VERSION}"
    api.put(f"{KAI}/queues/{name}", {"apiVersion": version, "kind": "Queue", "metadata": meta, "spec": {}})


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
    for name, reported in (("other", n.REASON_KAI_QUEUE_NOT_FOUND), ("urgent", n.REASON_STARTING)):
        put_queue(api, name)
        for _ in range(5):
            controller.reconcile_job("team", "vit")
        assert api.objects[JOB]["status"]["reason"] == reported
        assert (ATTEMPT in api.objects) == (name == "urgent")
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
    item = api.objects[QUEUE]
    api.put(QUEUE, {**item, "metadata": {**item["metadata"], "deletionTimestamp": "2026-11-22T11:00:00Z"}})
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
    below = thing(f"{n.KAI_GROUP}/{n.KAI_QUEUE_VERSION}", "Queue", "below", {"parentQueue": "gpu"})
    api.put(f"{KAI}/queues/below", below)
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
    put_queue(api, "org")
    assert ready() == "Created"
