"""The controller has no right that it does not use: one life of jobs and queues needs them all.

That it lacks none is seen in every other test (conftest.py).
"""

from __future__ import annotations

from typing import Any, cast

import pytest

from tests.unit.launcher.api_server import FakeApi, serving
from tests.unit.launcher.conftest import made_for
from tests.unit.operator.api import sync_pod_status
from tests.unit.operator.asked_rights import GIVEN, Needed, needed
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
    install_kai,
    stage,
    thing,
    workers,
)
from tests.unit.operator.test_pool import CLAIMS, pooled, reserve
from trainyard.k8s import names
from trainyard.k8s.objects import Objects
from trainyard.operator import handlers
from trainyard.operator import names as n
from trainyard.operator.cluster_reader import ClusterReader
from trainyard.operator.controller import Controller
from trainyard.operator.kinds import Kinds
from trainyard.operator.lease import LeaseHolder
from trainyard.operator.metrics import Metrics
from trainyard.operator.reconciler import Reconciler

pytestmark = pytest.mark.unit

BATCH, GANG = "batch/v1", f"{n.KAI_GROUP}/{n.KAI_POD_GROUP_VERSION}"
DISK = {"enabled": True, "size": "1Gi", "storageClass": "fsx"}
SENT = {"digest": "sha256:" + "a" * 64, "sizeBytes": 5}
DELETED = "2026-11-22T11:00:00Z"


class Clock:
    """Of the controller's looks, in seconds since the epoch."""

    now = NOW


def looking(api: FakeApi, clock: Clock) -> Reconciler:
    objects = Objects(api.client(), n.FIELD_MANAGER)
    return Reconciler(objects, ClusterReader(objects, "tools@sha256:1"), now=lambda: clock.now)


def edit(api: FakeApi, path: str, **spec: Any) -> None:
    item = api.objects[path]
    api.put(path, {**item, "spec": {**item["spec"], **spec}})


def delete(api: FakeApi, path: str) -> None:
    """As a person: it goes when nobody's finalizer is left on it."""
    item = api.objects[path]
    api.put(path, {**item, "metadata": {**item["metadata"], "deletionTimestamp": DELETED}})


def a_gang_in_a_queue_of_kai(api: FakeApi) -> None:
    """Its names are taken at first, its workers fail, it begins anew, ends, and is removed with its queue."""
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
    looks = looking(api, clock)
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

    def look(times: int = 6) -> None:
        for _ in range(times):
            looks.queue("team", "h100")
            looks.job("team", "vit")

    look()
    api.remove(f"{KAI}/queues/gpu")
    for place in places:
        look()
        api.remove(place)
        look()
        if place == f"{PODS}/vit-sync-0":  # somebody sends the workspace
            api.put(place, {**api.objects[place], "status": sync_pod_status(ready=True)})
    look()
    assert set(places) <= set(api.objects)
    edit(api, SERVICE, clusterIP="10.0.0.1")
    edit(api, QUEUE, parentKaiQueue="org")
    workers(api, "Running")
    edit(api, JOB, workspace={**SENT, "digest": "sha256:" + "b" * 64})
    look()
    first = f"{PODS}/vit-0-0-abcde"
    api.put(first, {**api.objects[first], "status": {**api.objects[first]["status"], "phase": "Succeeded"}})
    look()
    workers(api, "Failed", exit_code=1)
    look()
    for name in api.names(PODS):
        if name.startswith("vit-0-"):
            api.remove(f"{PODS}/{name}")
    look()
    done = {"conditions": [{"type": "Complete", "status": "True"}]}
    requeue_after = ATTEMPT.replace("vit-0", "vit-1")
    api.put(requeue_after, {**api.objects[requeue_after], "status": done})
    look()
    assert api.objects[JOB]["status"]["phase"] == n.PHASE_SUCCEEDED
    clock.now += 10
    look()
    assert JOB not in api.objects
    delete(api, QUEUE)
    look()
    assert QUEUE not in api.objects


def a_job_that_waits_for_machines(api: FakeApi) -> None:
    """They do not come in time, and the one that did is given back. Then its pool buys reserved capacity alone."""
    pooled(api)
    clock = Clock()
    looks = looking(api, clock)
    for _ in range(6):
        looks.job("team", "vit")
    meta = {
        "name": "p5-1",
        "labels": {names.LABEL_NODEPOOL: "p5"},
        "creationTimestamp": "2027-01-15T08:10:00Z",
    }
    api.put(f"{CLAIMS}/p5-1", {"metadata": meta, "spec": made_for("torchrun.vit", "team")})
    clock.now += 1200
    looking(api, clock).job("team", "vit")
    assert api.names(CLAIMS) == []
    reserve(api)
    looking(api, clock).job("team", "vit")


def watched() -> set[Needed]:
    """What kopf lists and watches: all that there is a handler for."""
    controller = Controller(cast(Objects, None), cast(Reconciler, None), Metrics())
    registry: Any = handlers.registry(controller, Kinds(handlers.settings()))
    selectors = registry._watching.get_all_selectors()
    return {Needed(each.group or "", each.any_name, verb) for each in selectors for verb in ("list", "watch")}


@pytest.mark.long
def test_every_right_is_used_and_none_is_lacking(api: FakeApi) -> None:
    used = watched()
    for live in (a_gang_in_a_queue_of_kai, a_job_that_waits_for_machines):
        with serving(FakeApi()) as one:
            live(one)
            used |= {asked for each in one.requests if (asked := needed(*each)) is not None}
    hold = LeaseHolder(Objects(api.client(), n.FIELD_MANAGER), "a")
    hold.keep()
    hold.keep()
    used |= {asked for each in api.requests if (asked := needed(*each)) is not None}
    assert (sorted(GIVEN - used), sorted(used - GIVEN)) == ([], [])
