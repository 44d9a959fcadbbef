"""A job that waits for its workspace holds no node; a sync pod that ends is created again, and is reported."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.manifests import stamp
from launcher.observe import PATIENCE_SECONDS
from tests.unit.operator.api import sync_pod_status
from tests.unit.operator.life import Life, Pooled
from tests.unit.operator.made import CLUSTER, DIGEST, job
from trainyard.operator import names as n
from trainyard.operator.context import build_context
from trainyard.operator.diagnostics import nearby_sync_pods

SENT = {"workspace": {"digest": DIGEST, "sizeBytes": 3}}
SYNC = ("Pod", "vit-sync-0")
EVICTED = {"phase": "Failed", "reason": "Evicted"}
FETCHING = {"name": n.FETCH_CONTAINER, "state": {"running": {"startedAt": stamp(1_000_000.0)}}}


def uid(life: Life) -> Any:
    return life.api.objects[SYNC]["metadata"]["uid"]


def lose_sync_pod(life: Life) -> None:
    """Its node is gone, and nobody sends anything to the next one."""
    life.api.sends = False
    life.api.delete(*SYNC)
    life.api.settle()


def pass_time(life: Life) -> None:
    assert life.requeue_after is not None
    assert 0 < life.requeue_after <= PATIENCE_SECONDS
    life.wait(life.requeue_after)


@pytest.mark.parametrize("phase", ["Failed", "Succeeded"])
@pytest.mark.parametrize("fails", [False, True])
def test_sync_pod_that_ended_is_created_again(phase: str, fails: bool) -> None:
    """While the workers run, and between two attempts."""
    life = Life(SENT).run()
    before = uid(life)
    life.api.now += PATIENCE_SECONDS
    life.api.objects[SYNC]["status"] = {**EVICTED, "phase": phase}
    life.fail(only=0) if fails else life.reconcile()
    assert uid(life) != before
    assert (life.names("Job"), life.status["restarts"]) == ([f"vit-{int(fails)}"], int(fails))


def test_sync_pod_that_ends_at_once_is_created_after_a_pause() -> None:
    life = Life(SENT).run()
    before = uid(life)
    life.api.objects[SYNC]["status"] = EVICTED
    life.reconcile()
    assert uid(life) == before
    pass_time(life)
    assert uid(life) != before


def test_sync_pod_that_ended_in_a_wait_for_nodes_is_created() -> None:
    life = Pooled(SENT).begin()
    before = uid(life)
    life.api.objects[SYNC]["status"] = EVICTED
    life.wait(PATIENCE_SECONDS)
    assert life.state == ("Pending", n.REASON_WAITING_FOR_NODES)
    assert uid(life) != before


def test_suspended_job_keeps_its_sync_pod() -> None:
    life = Life(SENT).run()
    before = uid(life)
    life.edit(suspend=True)
    assert (life.status["phase"], life.names("Job"), life.names("Pod")) == ("Suspended", [], [SYNC[1]])
    life.api.edit(n.JOB_KIND, "vit", suspend=False)
    life.run()
    assert uid(life) == before


def test_job_without_its_workspace_holds_no_node() -> None:
    for life in (Life(SENT), Pooled(SENT)):
        life.api.sends = False
        life.reconcile()
        assert life.state == ("Pending", n.REASON_WAITING_FOR_WORKSPACE)
        assert "kubectl torchrun sync vit" in life.message
        assert (life.names("Pod"), life.names("Service"), life.names("Job")) == ([SYNC[1]], ["vit"], [])
        life.api.objects[SYNC]["status"] = sync_pod_status(ready=True)
        life.reconcile()
        assert life.status["reason"] in (n.REASON_WAITING_FOR_NODES, n.REASON_STARTING)


def test_impossible_job_says_so_before_its_workspace_is_there() -> None:
    life = Pooled(SENT, limit=1)
    life.api.sends = False
    life.reconcile()
    assert life.state == ("Pending", n.REASON_CAPACITY_IMPOSSIBLE)


@pytest.mark.parametrize("key", ["state", "lastState"])
def test_abandoned_upload_ends_the_job_and_leaves_nothing(key: str) -> None:
    life = Pooled(SENT)
    life.api.sends = False
    life.reconcile()
    ended = {"terminated": {"exitCode": n.SYNC_ABANDONED_EXIT}}
    life.api.objects[SYNC]["status"] = sync_pod_status(ready=False, **{key: ended})
    life.reconcile()
    assert life.state == ("Failed", n.REASON_WORKSPACE_NOT_SENT)
    assert "within 600 s" in life.message
    assert (life.names("Pod"), life.names("Job")) == ([], [])


def test_restart_after_a_lost_workspace_waits_without_nodes() -> None:
    life = Life(SENT).run()
    lose_sync_pod(life)
    life.fail(only=0)
    assert life.state == ("Restarting", n.REASON_WAITING_FOR_WORKSPACE)
    assert "kubectl torchrun sync vit" in life.message
    assert (life.names("Pod"), life.names("Job")) == ([SYNC[1]], [])
    # Only a pod of a job that has never started gives up.
    assert "--give-up-seconds" not in life.api.objects[SYNC]["spec"]["containers"][0]["command"]
    life.api.objects[SYNC]["status"] = sync_pod_status(ready=True)
    life.run()
    assert life.status["restarts"] == 1


def test_workers_that_find_no_workspace_cost_no_restart() -> None:
    life = Life(SENT).begin()
    lose_sync_pod(life)
    life.reconcile()
    failed = {"name": n.FETCH_CONTAINER, "state": {"terminated": {"exitCode": 1}}}
    for name in [each for each in life.names("Pod") if each != SYNC[1]]:
        life.api.objects["Pod", name]["status"] = {"phase": "Failed", "initContainerStatuses": [failed]}
    life.reconcile()
    assert life.shown("phase", "restarts") == ("Restarting", 0)
    assert life.status["reason"] == n.REASON_WAITING_FOR_WORKSPACE
    assert "workspaceDigest" not in life.status
    assert n.REASON_WORKSPACE_LOST in life.api.events
    assert (life.names("Pod"), life.names("Job")) == ([SYNC[1]], [])


def test_workspace_on_claims_needs_no_sync_pod_to_restart() -> None:
    life = Life(SENT, {"storage.workspace": {"enabled": True, "size": "1Gi"}}).run()
    lose_sync_pod(life)
    life.fail(only=0)
    assert life.names("Job") == ["vit-1", "vit-1-n1"]


def test_other_jobs_with_the_same_workspace_are_named() -> None:
    def of(name: str, phase: str, **workspace: Any) -> dict[str, Any]:
        item = job({"workspace": {**SENT["workspace"], **workspace}})
        item["metadata"]["name"] = name
        return {**item, "status": {"phase": phase}}

    mine = of("vit", "Pending")
    others = [
        of("over", "Failed"),
        of("another", "Running", digest="sha256:" + "b" * 64),
        of("stored", "Running", url="s3://bbb/k"),
        of("a", "Pending"),
        of("b", "Running"),
    ]
    assert nearby_sync_pods(build_context(mine, None, [], CLUSTER, 0.0), [mine, *others]) == (
        "http://b-sync-0.b.team.svc:8080",
        "http://a-sync-0.a.team.svc:8080",
    )


def test_workers_that_wait_for_a_lost_sync_pod_say_so() -> None:
    life = Life(SENT).run()
    life.fail(only=0)
    lose_sync_pod(life)
    names = [each for each in life.names("Pod") if each != SYNC[1]]
    for name in names:
        life.api.objects["Pod", name]["status"] = {"phase": "Pending", "initContainerStatuses": [FETCHING]}
    life.reconcile()
    life.api.objects[SYNC]["status"] = NO_IMAGE
    pass_time(life)
    assert f"{names[0]} waits for the workspace, which was lost with an earlier pod" in life.message
    assert "can't get image own/tools:1" in life.message


def test_worker_that_fetches_an_existing_workspace_is_not_reported() -> None:
    life = Life(SENT).run()
    for name in [each for each in life.names("Pod") if each != SYNC[1]]:
        life.api.objects["Pod", name]["status"] = {"phase": "Pending", "initContainerStatuses": [FETCHING]}
    life.wait(PATIENCE_SECONDS + 1)
    assert life.status["phase"] == "Running"
    assert "waits for the workspace" not in life.message


NO_IMAGE = {
    "phase": "Pending",
    "containerStatuses": [
        {"name": "sync", "image": "own/tools:1", "state": {"waiting": {"reason": "ImagePullBackOff"}}}
    ],
}


def test_sync_pod_that_does_not_start_is_reported() -> None:
    life = Life(SENT)
    life.api.sends = False
    life.reconcile()
    life.api.objects[SYNC]["status"] = NO_IMAGE
    life.reconcile()
    pass_time(life)
    assert life.status["reason"] == n.REASON_WAITING_FOR_WORKSPACE
    assert "vit-sync-0, which receives the workspace, can't get image own/tools:1" in life.message
