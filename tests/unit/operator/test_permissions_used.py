"""The controller uses all its permissions.

All other tests check that it has the permissions that it needs (conftest.py).
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.launcher.api_server import FakeApi, serving
from tests.unit.launcher.conftest import made_for
from tests.unit.operator.api import sync_pod_status
from tests.unit.operator.permissions import GIVEN, Needed, needed
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
    Mortal,
    install_kai,
    reconciler,
    stage,
    thing,
    workers,
)
from tests.unit.operator.test_cluster_reader import CLAIMS, pooled, reserve
from trainyard.k8s import names
from trainyard.k8s.objects import Objects
from trainyard.operator import names as n
from trainyard.operator.__main__ import LeaseHolder
from trainyard.operator.index import RESOURCES

pytestmark = pytest.mark.unit

BATCH, GANG = "batch/v1", f"{n.KAI_GROUP}/{n.KAI_POD_GROUP_VERSION}"
DISK = {"enabled": True, "size": "1Gi", "storageClass": "fsx"}
SENT = {"digest": "sha256:" + "a" * 64, "sizeBytes": 5}
DELETED = "2026-11-22T11:00:00Z"


class Clock:
    """The time of the reconciles, in seconds since the epoch."""

    now = NOW


def edit(api: FakeApi, path: str, **spec: Any) -> None:
    item = api.objects[path]
    api.put(path, {**item, "spec": {**item["spec"], **spec}})


def delete(api: FakeApi, path: str) -> None:
    """Delete the object as a user. It stays as long as it has finalizers."""
    item = api.objects[path]
    api.put(path, {**item, "metadata": {**item["metadata"], "deletionTimestamp": DELETED}})


def gang_in_a_queue_of_kai(api: FakeApi) -> None:
    """A gang whose names are in use at first. Its workers fail, it restarts, succeeds, and is deleted."""
    stage(api)
    install_kai(api)
    shared = {**thing("storage.k8s.io/v1", "StorageClass", "fsx", {}), "provisioner": "fsx.csi.aws.com"}
    api.put("/apis/storage.k8s.io/v1/storageclasses/fsx", shared)
    edit(
        api,
        QUEUE,
        kaiQueue="gpu",
        scheduling={"scheduler": n.KAI_SCHEDULER},
        storage={"workspace": DISK},
        jobDefaults={"ttlSecondsAfterFinished": 9, "maxRestarts": 1},
    )
    edit(api, JOB, workspace=SENT)
    clock = Clock()
    reconciles = reconciler(Mortal(api), now=lambda: clock.now)
    theirs = (
        thing("v1", "Service", "vit", {}),
        thing("v1", "Pod", "vit-sync-0", {}),
        thing("v1", "PersistentVolumeClaim", "vit-workspace", {}),
        thing(GANG, "PodGroup", "vit-0", {}),
        thing(BATCH, "Job", "vit-0", {}),
    )
    places = (SERVICE, f"{PODS}/vit-sync-0", f"/api/v1{TEAM}/persistentvolumeclaims/vit-workspace")
    places += (f"{KAI_GANGS}{TEAM}/podgroups/vit-0", ATTEMPT)
    for place, each in zip(places, theirs, strict=True):
        api.put(place, each)
    for name in ("gpu", "org"):
        above = {
            "apiVersion": f"{n.KAI_GROUP}/{n.KAI_QUEUE_VERSION}",
            "kind": "Queue",
            "metadata": {"name": name},
        }
        api.put(f"{KAI}/queues/{name}", above)

    def reconcile(times: int = 6) -> None:
        for _ in range(times):
            reconciles.reconcile_queue("team", "h100")
            reconciles.reconcile_job("team", "vit")

    reconcile()
    api.remove(f"{KAI}/queues/gpu")
    for place in places:
        reconcile()
        api.remove(place)
        reconcile()
        if place == f"{PODS}/vit-sync-0":  # the workspace arrives
            api.put(place, {**api.objects[place], "status": sync_pod_status(ready=True)})
    reconcile()
    assert set(places) <= set(api.objects)
    edit(api, QUEUE, parentKaiQueue="org")
    workers(api, "Running")
    edit(api, JOB, workspace={**SENT, "digest": "sha256:" + "b" * 64})
    reconcile()
    first = f"{PODS}/vit-0-0-abcde"
    api.put(first, {**api.objects[first], "status": {**api.objects[first]["status"], "phase": "Succeeded"}})
    reconcile()
    workers(api, "Failed", exit_code=1)
    reconcile()
    for name in api.names(PODS):
        if name.startswith("vit-0-"):
            api.remove(f"{PODS}/{name}")
    reconcile()
    done = {"conditions": [{"type": "Complete", "status": "True"}]}
    requeue_after = ATTEMPT.replace("vit-0", "vit-1")
    api.put(requeue_after, {**api.objects[requeue_after], "status": done})
    reconcile()
    assert api.objects[JOB]["status"]["phase"] == n.PHASE_SUCCEEDED
    clock.now += 10
    reconcile()
    assert JOB not in api.objects
    delete(api, QUEUE)
    reconcile()
    assert QUEUE not in api.objects


def job_that_waits_for_nodes(api: FakeApi) -> None:
    """Nodes that do not start in time. The one that did is deleted. Then the pool uses reserved capacity only."""
    pooled(api)
    clock = Clock()
    reconciles = reconciler(Mortal(api), now=lambda: clock.now)
    for _ in range(6):
        reconciles.reconcile_job("team", "vit")
    meta = {
        "name": "p5-1",
        "labels": {names.LABEL_NODEPOOL: "p5"},
        "creationTimestamp": "2027-01-15T08:10:00Z",
    }
    api.put(f"{CLAIMS}/p5-1", {"metadata": meta, "spec": made_for("torchrun.vit", "team")})
    clock.now += 1200
    reconciler(Mortal(api), now=lambda: clock.now).reconcile_job("team", "vit")
    assert api.names(CLAIMS) == []
    reserve(api)
    reconciler(Mortal(api), now=lambda: clock.now).reconcile_job("team", "vit")


def watch_permissions() -> set[Needed]:
    """Return the permissions to list and watch."""
    found = (needed("GET", path, {}) for path, _ in RESOURCES.values())
    return {each._replace(verb=verb) for each in found if each is not None for verb in ("list", "watch")}


@pytest.mark.long
def test_all_permissions_of_the_controller_are_used(api: FakeApi) -> None:
    used = watch_permissions()
    for live in (gang_in_a_queue_of_kai, job_that_waits_for_nodes):
        with serving(FakeApi()) as one:
            live(one)
            used |= {asked for each in one.requests if (asked := needed(*each)) is not None}
    hold = LeaseHolder(Objects(api.client(), n.FIELD_MANAGER), "a")
    hold.keep()
    hold.keep()
    used |= {asked for each in api.requests if (asked := needed(*each)) is not None}
    assert (sorted(GIVEN - used), sorted(used - GIVEN)) == ([], [])
