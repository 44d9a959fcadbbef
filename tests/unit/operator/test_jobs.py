"""The life of a TorchrunJob, decision by decision, on a small API server."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.operator.life import Life
from tests.unit.operator.made import CLUSTER, DIGEST
from trainyard.operator import names as n
from trainyard.operator.plan import POLL_SECONDS, SCHEDULER_SECONDS
from trainyard.operator.reconciler import plan_job

pytestmark = pytest.mark.unit
SMALL = {"numGPUs": 8}
SENT = {"digest": DIGEST, "sizeBytes": 3}


def test_job_from_submit_to_success() -> None:
    life = Life()
    life.reconcile()
    assert life.names("Job") == ["vit-0"]
    assert life.names("Service") == ["vit"]
    assert len(life.names("Pod")) == 2
    assert life.status["phase"] == "Provisioning"
    life.run()
    assert life.condition(n.WORKERS_READY) == ("True", "Running")
    shown = {key: life.status[key] for key in ("attempt", "restarts", "nodes", "gpusPerNode", "gpus")}
    assert shown == {"attempt": 0, "restarts": 0, "nodes": 2, "gpusPerNode": 8, "gpus": 16}
    assert life.status["workers"] == {"active": 2, "ready": 2, "succeeded": 0, "failed": 0}
    life.api.run_pods("Succeeded", exit_code=0)
    life.reconcile()
    assert (life.status["phase"], life.status["exitCode"]) == ("Succeeded", 0)
    assert life.condition(n.COMPLETE)[0] == "True"
    assert life.names("Job") == ["vit-0"]  # for its pods' logs
    assert life.reconcile() == 0


def test_job_before_its_status_names_it_has_no_pods() -> None:
    life = Life()
    item = life.api.get(n.JOB_KIND, "vit")
    assert item is not None
    decision = plan_job(item, life.queue, [], CLUSTER, life.api.now)
    assert [each["kind"] for each in decision.creations] == ["Service", "Job"]
    assert decision.creations[-1]["spec"]["suspend"] is True
    assert decision.status is not None
    assert decision.status["phase"] == "Provisioning"
    # A reconcile from old answers makes the Job, which never runs, as the status can't be put.
    life.api.edit(n.JOB_KIND, "vit", suspend=True)
    assert not life.api.apply(item, decision)
    life.api.settle()
    assert life.names("Pod") == []
    life.reconcile()
    assert life.names("Job") == []


def test_suspend_while_running_deletes_workers() -> None:
    keep = {"storage.workspace": {"enabled": True, "size": "1Gi"}}
    life = Life(SMALL, keep).run()
    life.api.edit(n.JOB_KIND, "vit", suspend=True)
    life.reconcile()
    assert life.status["phase"] == "Suspended"
    assert life.condition(n.SUSPENDED) == ("True", "Suspended")
    assert life.names("Job") == life.names("Pod") == []
    assert life.names("PersistentVolumeClaim") == ["vit-workspace"]
    assert life.reconcile() == 0
    life.api.edit(n.JOB_KIND, "vit", suspend=False)
    life.run()
    assert (life.status["attempt"], life.status["restarts"]) == (1, 0)
    assert life.condition(n.SUSPENDED)[0] == "False"


def test_suspend_ignores_how_workers_end() -> None:
    life = Life({"maxRestarts": 0}).run()
    life.api.edit(n.JOB_KIND, "vit", suspend=True)
    life.api.run_pods("Failed", exit_code=24)
    life.reconcile()
    assert (life.status["phase"], life.status["restarts"]) == ("Suspended", 0)


def test_suspend_after_success_keeps_success() -> None:
    life = Life(SMALL).run()
    life.api.edit(n.JOB_KIND, "vit", suspend=True)
    life.api.run_pods("Succeeded", exit_code=0)
    life.reconcile()
    assert life.status["phase"] == "Succeeded"


def test_suspend_from_the_start_creates_nothing() -> None:
    life = Life({"suspend": True})
    life.reconcile()
    assert (life.names("Job"), life.names("Service"), life.status["phase"]) == ([], [], "Suspended")
    life.api.edit(n.JOB_KIND, "vit", suspend=False)
    life.run()
    assert life.status["attempt"] == 0


def test_finished_job_edited_is_never_run_again() -> None:
    life = Life(SMALL).run()
    life.api.run_pods("Succeeded", exit_code=0)
    life.reconcile()
    life.api.delete("Job", "vit-0")
    life.api.settle()
    life.api.edit(n.JOB_KIND, "vit", suspend=False, numNodes=2)
    life.reconcile()
    assert life.names("Job") == []
    assert (life.status["phase"], life.reconcile()) == ("Succeeded", 0)


def test_queue_created_later_starts_and_deleted_keeps() -> None:
    life = Life(queued=False)
    life.reconcile()
    assert (life.status["phase"], life.status["reason"]) == ("Pending", "QueueNotFound")
    assert "TorchrunQueue research is not in namespace team" in life.status["message"]
    assert life.condition(n.QUEUE_FOUND) == ("False", "QueueNotFound")
    assert life.names("Service") == life.names("Job") == []
    life.api.create(life.queue)
    life.run()
    assert life.condition(n.QUEUE_FOUND)[0] == "True"
    life.api.objects.pop((n.QUEUE_KIND, "research"))
    life.reconcile()
    assert life.status["phase"] == "Running"
    life.api.run_pods("Failed", exit_code=1)
    life.reconcile()
    assert (life.status["phase"], life.status["reason"]) == ("Restarting", "QueueNotFound")
    assert life.names("Job") == []


def test_gang_without_kai_waits_for_its_installation() -> None:
    life = Life({}, {"scheduling.scheduler": "kai-scheduler"})
    life.reconcile()
    assert life.requeue_after == SCHEDULER_SECONDS, "the news of its installation may come too early"
    assert (life.status["phase"], life.status["reason"]) == ("Pending", "SchedulerNotInstalled")
    assert life.condition(n.SCHEDULER_NOT_INSTALLED)[0] == "True"
    assert life.api.list("Job", "Pod", "PodGroup") == []
    life.cluster = replace(CLUSTER, kai=True)
    life.run()
    assert life.names("PodGroup") == ["vit-0"]
    assert life.condition(n.SCHEDULER_NOT_INSTALLED)[0] == "False"
    life.api.run_pods("Failed", exit_code=1)
    life.reconcile()
    assert life.names("PodGroup") == ["vit-1"]
    life.api.edit(n.JOB_KIND, "vit", suspend=True)
    life.reconcile()
    assert life.names("PodGroup") == []


def test_missing_claim_delays_the_job() -> None:
    data = {"storage.datasets": {"enabled": True, "existingClaim": "data", "mountPath": "/data"}}
    life = Life({}, data)
    life.reconcile()
    assert (life.status["phase"], life.status["reason"]) == ("Pending", "ClaimNotFound")
    assert "existingClaim data" in life.status["message"]
    assert life.requeue_after == POLL_SECONDS, "nobody reports a claim that has no job's label"
    assert life.names("Job") == []
    life.cluster = replace(CLUSTER, claims={"data": ("ReadWriteMany",)})
    life.run()
    assert life.status["phase"] == "Running"


def test_taken_name_delays_the_job() -> None:
    life = Life()
    theirs = {"kind": "Service", "metadata": {"name": "vit", "namespace": "team"}, "spec": {}}
    life.api.create(theirs)
    life.reconcile()
    assert life.status["reason"] == "NameTaken"
    assert life.requeue_after == POLL_SECONDS


def test_queue_being_deleted_starts_nothing_keeps_running() -> None:
    running, waiting = Life().run(), Life({"suspend": True})
    waiting.reconcile()
    for life in (running, waiting):
        life.api.objects[n.QUEUE_KIND, "research"]["metadata"]["finalizers"] = [n.QUEUE_FINALIZER]
        life.api.delete(n.QUEUE_KIND, "research")
    waiting.api.edit(n.JOB_KIND, "vit", suspend=False)
    waiting.reconcile()
    assert (waiting.status["phase"], waiting.status["reason"]) == ("Pending", "QueueNotFound")
    assert "is being deleted" in waiting.status["message"]
    assert waiting.names("Job") == []
    running.api.run_pods("Failed", exit_code=1)
    running.run()
    assert (running.status["phase"], running.status["restarts"]) == ("Running", 1)


def test_rendezvous_without_endpoint_is_substituted() -> None:
    life = Life({"distributed": {"rdzvBackend": "etcd-v2"}}).run()
    assert life.condition(n.RENDEZVOUS_SUBSTITUTED) == ("True", "NoEndpoint")
    assert Life().run().condition(n.RENDEZVOUS_SUBSTITUTED)[0] == "False"


def test_deadline_counts_from_first_start_over_suspensions() -> None:
    life = Life({"activeDeadlineSeconds": 100})
    life.api.now += 500
    life.run()
    assert life.requeue_after == 100
    life.api.now += 60
    life.api.edit(n.JOB_KIND, "vit", suspend=True)
    life.reconcile()
    assert life.requeue_after == 40
    life.api.now += 40
    life.reconcile()
    assert (life.status["phase"], life.status["reason"]) == ("Failed", "DeadlineExceeded")


def test_deadline_passed_ends_running_workers() -> None:
    life = Life({"activeDeadlineSeconds": 100}).run()
    life.api.now += 100
    life.reconcile()
    assert life.status["reason"] == "DeadlineExceeded"
    assert life.names("Pod") == life.names("Job") == []


def test_ttl_passed_deletes_all_but_retained_claims() -> None:
    keep = {
        "storage.workspace": {"enabled": True, "size": "1Gi"},
        "storage.checkpoints": {"enabled": True, "size": "1Gi"},
    }
    life = Life({**SMALL, "ttlSecondsAfterFinished": 50, "persistCheckpoints": True}, keep).run()
    life.api.run_pods("Succeeded", exit_code=0)
    life.reconcile()
    assert life.requeue_after == 50
    life.api.now += 49
    life.reconcile()
    assert life.requeue_after == 1
    life.api.now += 1
    life.reconcile()
    kinds = {each["kind"] for each in life.api.list()}
    assert kinds == {n.QUEUE_KIND, "PersistentVolumeClaim"}
    assert life.names("PersistentVolumeClaim") == ["vit-checkpoints"]


def test_ttl_unset_keeps_the_job() -> None:
    life = Life(SMALL).run()
    life.api.run_pods("Succeeded", exit_code=0)
    life.api.now += 10**9
    life.reconcile()
    assert life.requeue_after is None
    assert life.status["phase"] == "Succeeded"


def test_resize_starts_an_attempt_without_a_restart() -> None:
    life = Life({"numNodes": 2, "maxRestarts": 0}).run()
    life.api.edit(n.JOB_KIND, "vit", numNodes=4)
    life.reconcile()
    assert life.names("Job") == ["vit-1"]
    shown = (
        life.status["attempt"],
        life.status["restarts"],
        life.status["nodes"],
        life.status["gpusPerNode"],
    )
    assert shown == (1, 0, 4, 4)
    assert "Resized" in life.api.events


def test_resize_to_an_invalid_size_keeps_the_workers() -> None:
    life = Life({"numNodes": 2}).run()
    life.api.edit(n.JOB_KIND, "vit", numNodes=1)
    life.reconcile()
    assert life.names("Job") == ["vit-0"]
    assert life.status["phase"] == "Running"
    assert life.condition(n.ACCEPTED) == ("False", "InvalidSpec")


def test_elastic_job_runs_with_its_minimum() -> None:
    life = Life({"numGPUs": 32, "elastic": {"minNodes": 1, "maxNodes": 4}})
    life.reconcile()
    life.api.run_pods("Running", only=0)
    life.reconcile()
    assert life.status["phase"] == "Running"
    life.api.edit(n.JOB_KIND, "vit", elastic={"minNodes": 1, "maxNodes": 8})
    life.reconcile()
    assert life.names("Job") == ["vit-1"]
    assert life.status["restarts"] == 0


def test_new_workspace_restarts_only_with_restart_on_sync() -> None:
    life = Life({"workspace": SENT}).run()
    assert "vit-sync-0" in life.names("Pod")
    other = {**SENT, "digest": "sha256:" + "b" * 64}
    life.api.edit(n.JOB_KIND, "vit", workspace=other)
    life.reconcile()
    assert (life.status["attempt"], life.status["workspaceDigest"]) == (0, other["digest"])
    life.api.edit(n.JOB_KIND, "vit", workspace={**other, "restartOnSync": True})
    life.reconcile()
    assert (life.status["attempt"], life.status["restarts"]) == (1, 0)
    life.run()
    life.api.run_pods("Succeeded", exit_code=0)
    life.reconcile()
    assert "vit-sync-0" not in life.names("Pod")


def test_sync_while_running_annotates_the_pods() -> None:
    """Whether it comes from a bucket or not, and through a queue that is gone: the job's spec decides."""
    for url in ("", "s3://own/w/workspaces/team/a.tar.zst"):
        sent = {**SENT, "url": url} if url else SENT
        life = Life({"workspace": sent}, {"storage.workspace.bucket": "s3://own/w"}).run()
        assert named(life) == [{"digest": DIGEST, "size": SENT["sizeBytes"], "url": url}] * 2
        life.api.delete(n.QUEUE_KIND, "research")
        new = {**sent, "digest": "sha256:" + "b" * 64, "sizeBytes": 9}
        life.api.edit(n.JOB_KIND, "vit", workspace=new)
        life.reconcile()
        assert named(life) == [{"digest": new["digest"], "size": 9, "url": url}] * 2
        assert (life.status["attempt"], life.status["workspaceDigest"]) == (0, new["digest"])


def named(life: Life) -> list[Any]:
    """Return which archives the pods of the workers name."""
    workers = [
        each["metadata"] for each in life.api.list("Pod") if n.LABEL_ATTEMPT in each["metadata"]["labels"]
    ]
    return [json.loads(each["annotations"][n.ANNOTATION_ARCHIVE]) for each in workers]
