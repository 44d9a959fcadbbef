"""The controller uses all its permissions.

All other tests check that it has the permissions that it needs (conftest.py).
"""

from __future__ import annotations

import pytest

from tests.unit.launcher.api_server import FakeApi, serving
from tests.unit.launcher.conftest import made_for
from tests.unit.operator.api import sync_pod_status
from tests.unit.operator.conftest import GIVEN, Needed, needed
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
    delete,
    edit,
    install_kai,
    put_kai_queue,
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

GANG = f"{n.KAI_GROUP}/{n.KAI_POD_GROUP_VERSION}"
DISK = {"enabled": True, "size": "1Gi", "storageClass": "fsx"}
SENT = {"digest": "sha256:" + "a" * 64, "sizeBytes": 5}


def gang_in_a_queue_of_kai(api: FakeApi) -> None:
    """A gang whose names are in use at first. Its workers fail, it restarts, succeeds, and is deleted."""
    stage(api)
    install_kai(api)
    shared = {**thing("storage.k8s.io/v1", "StorageClass", "fsx", {}), "provisioner": "fsx.csi.aws.com"}
    api.put("/apis/storage.k8s.io/v1/storageclasses/fsx", shared)
    edit(api, QUEUE, kaiQueue="gpu", scheduling={"scheduler": n.KAI_SCHEDULER})
    edit(
        api, QUEUE, storage={"workspace": DISK}, jobDefaults={"ttlSecondsAfterFinished": 9, "maxRestarts": 1}
    )
    edit(api, JOB, workspace=SENT)
    now = [NOW]
    reconciles = reconciler(Mortal(api), now=lambda: now[0])
    claim = f"/api/v1{TEAM}/persistentvolumeclaims/vit-workspace"
    theirs = {
        SERVICE: thing("v1", "Service", "vit", {}),
        f"{PODS}/vit-sync-0": thing("v1", "Pod", "vit-sync-0", {}),
        claim: thing("v1", "PersistentVolumeClaim", "vit-workspace", {}),
        f"{KAI_GANGS}{TEAM}/podgroups/vit-0": thing(GANG, "PodGroup", "vit-0", {}),
        ATTEMPT: thing("batch/v1", "Job", "vit-0", {}),
    }
    for place, each in theirs.items():
        api.put(place, each)
    for name in ("gpu", "org"):
        put_kai_queue(api, name)

    def reconcile(times: int = 6) -> None:
        for _ in range(times):
            reconciles.reconcile_queue("team", "h100")
            reconciles.reconcile_job("team", "vit")

    reconcile()
    api.remove(f"{KAI}/queues/gpu")
    for place in theirs:
        reconcile()
        api.remove(place)
        reconcile()
        if place == f"{PODS}/vit-sync-0":  # the workspace arrives
            api.put(place, {**api.objects[place], "status": sync_pod_status(ready=True)})
    reconcile()
    assert set(theirs) <= set(api.objects)
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
    second = ATTEMPT.replace("vit-0", "vit-1")
    api.put(second, {**api.objects[second], "status": done})
    reconcile()
    assert api.objects[JOB]["status"]["phase"] == n.PHASE_SUCCEEDED
    now[0] += 10
    reconcile()
    assert JOB not in api.objects
    delete(api, QUEUE)
    reconcile()
    assert QUEUE not in api.objects


def job_that_waits_for_nodes(api: FakeApi) -> None:
    """Nodes that do not start in time. The one that did is deleted. Then the pool uses reserved capacity only."""
    pooled(api)
    for _ in range(6):
        reconciler(Mortal(api)).reconcile_job("team", "vit")
    made = {"labels": {names.LABEL_NODEPOOL: "p5"}, "creationTimestamp": "2027-01-15T08:10:00Z"}
    claim = {"metadata": {"name": "p5-1", **made}, "spec": made_for("torchrun.vit", "team")}
    api.put(f"{CLAIMS}/p5-1", claim)
    reconciler(Mortal(api), now=lambda: NOW + 1200).reconcile_job("team", "vit")
    assert api.names(CLAIMS) == []
    reserve(api)
    reconciler(Mortal(api), now=lambda: NOW + 1200).reconcile_job("team", "vit")


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
