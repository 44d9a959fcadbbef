"""A job with enough succeeded workers succeeds, whatever happens before its Job is complete."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.operator.life import Life
from tests.unit.operator.made import attempt_spec
from trainyard.operator import names as n
from trainyard.operator.children import build_jobs

pytestmark = pytest.mark.unit

OF_EACH_NODE = {"storage.workspace": {"enabled": True, "size": "1Gi"}}
# What would end an attempt that runs.
ENDS: dict[str, dict[str, Any]] = {
    "suspended": {"suspend": True},
    "resized": {"elastic": {"minNodes": 2, "maxNodes": 4}},
    "synced": {"workspace": {"digest": "sha256:" + "b" * 64, "sizeBytes": 3, "restartOnSync": True}},
    "late": {"activeDeadlineSeconds": 50},
}


def ending(least: int = 1, of_queue: dict[str, Any] | None = None, *, stuck: bool = True) -> Life:
    """Return an elastic job that has succeeded, with other workers on nodes that do not answer."""
    life = Life({"numGPUs": 32, "elastic": {"minNodes": least, "maxNodes": 4}}, of_queue).run()
    for each in life.api.workers():
        each["metadata"]["stuck"] = stuck
    for _ in range(least):
        life.api.run_pods("Succeeded", exit_code=0, only=0)
    return life


def free(life: Life) -> None:
    for each in life.api.objects.values():
        each["metadata"].pop("stuck", None)
    life.api.settle()


def test_success_is_reported_when_no_worker_is_left() -> None:
    life = ending()
    life.reconcile()
    assert life.status["phase"] == "Running"
    free(life)
    life.reconcile()
    assert life.shown("phase", "attempt") == ("Succeeded", 0)
    assert life.status["workers"] == {"active": 0, "ready": 0, "succeeded": 1, "failed": 0}


@pytest.mark.parametrize("how", ENDS)
def test_succeeded_attempt_is_not_ended_by_an_edit(how: str) -> None:
    life = ending()
    life.api.edit(n.JOB_KIND, "vit", **ENDS[how])
    life.wait(60)
    free(life)
    life.reconcile()
    life.edit(suspend=False)
    assert life.shown("phase", "attempt") == ("Succeeded", 0)
    assert life.names("Job") == ["vit-0"]
    assert len(life.api.ran) == 1


@pytest.mark.parametrize("of_queue", [{}, OF_EACH_NODE])
def test_success_needs_no_report_of_the_job_controller(of_queue: dict[str, Any]) -> None:
    life = Life({"numGPUs": 16}, of_queue).run()
    for each in life.api.workers():
        each["status"] = {"phase": "Succeeded"}
        life.api.touch(each)
    life.api.edit(n.JOB_KIND, "vit", suspend=True)
    plan = life.plan(life.api.list("Job", "Pod"))
    assert plan.status is not None
    assert plan.status["phase"] == "Succeeded"
    life.api.apply(life.job, plan)
    life.reconcile()
    assert len(life.names("Job")) == len(life.api.ran)  # kept for their pods' logs


def test_success_of_a_suspended_worker_does_not_count() -> None:
    life = Life({"numGPUs": 8}).run()
    worker = life.api.workers()[0]
    worker["metadata"]["stuck"] = True
    life.edit(suspend=True)
    worker["status"] = {"phase": "Succeeded"}
    life.reconcile()
    assert life.status["phase"] == "Suspended"
    free(life)
    life.reconcile()
    assert life.condition(n.SUSPENDED)[0] == "True"


def test_succeeded_job_that_is_deleted_has_succeeded() -> None:
    life = ending()
    life.api.delete("Job", "vit-0", foreground=True)
    life.reconcile()
    assert life.status["phase"] == "Succeeded"


def test_job_that_succeeds_before_its_deletion_is_kept() -> None:
    """It succeeds between the read and the deletion of its Job."""
    life = Life({"numGPUs": 8}).run()
    life.api.edit(n.JOB_KIND, "vit", suspend=True)
    life.api.crash_after(1)  # the status is put, and the Job is there still
    with pytest.raises(Exception, match="delete Job vit-0"):
        life.reconcile()
    item, before = life.job, life.plan(life.api.list("Job", "Pod"))
    assert [each.name for each in before.deletions] == ["vit-0"]
    life.api.run_pods("Succeeded", exit_code=0)
    life.api.apply(item, before)
    life.settle()
    assert life.status["phase"] == "Succeeded"


@pytest.mark.parametrize("least", [1, 2, 4])
def test_elastic_job_per_node_succeeds_with_its_minimum(least: int) -> None:
    life = Life({"numGPUs": 32, "elastic": {"minNodes": least, "maxNodes": 4}}, OF_EACH_NODE)
    life.api.machines = least
    life.run()
    assert len(life.names("Job")) == 4
    for each in range(least):
        assert (life.status["phase"], life.status["workers"]["succeeded"]) == ("Running", each)
        life.succeed(only=0)
    assert life.shown("phase", "attempt") == ("Succeeded", 0)
    # Those that never had a node are gone, and begin nothing when one comes.
    assert len(life.names("Job")) == least
    life.api.bring(None)
    assert not life.api.run_pods("Running")


def test_elastic_job_per_node_waits_for_running_workers() -> None:
    """One of them may write the last checkpoint."""
    life = Life({"numGPUs": 16, "elastic": {"minNodes": 1, "maxNodes": 2}}, OF_EACH_NODE).run()
    life.succeed(only=1)
    assert life.status["phase"] == "Running"
    assert len(life.api.workers()) == 1
    life.succeed()
    assert life.shown("phase", "attempt") == ("Succeeded", 0)
    assert life.status["workers"]["succeeded"] == 2


@pytest.mark.parametrize("seen", ["alive", "over", "gone"])
def test_success_of_a_deleted_worker_does_not_count(seen: str) -> None:
    """Some scripts save and exit with 0 when they are deleted. The Job controller counts that as a success."""
    life = Life({"numGPUs": 8}).run()
    (worker,) = life.api.workers()
    worker["metadata"] |= {"stuck": True, "deletionGracePeriodSeconds": 30}
    worker["metadata"]["deletionTimestamp"] = worker["metadata"]["creationTimestamp"]
    life.api.prompt = False
    if seen != "over":
        life.api.crash_after(1)  # the loss is reported, and the Job is there still
        with pytest.raises(Exception, match="delete Job vit-0"):
            life.reconcile()
    worker["status"] = {"phase": "Succeeded"}
    reported = [{"type": kind, "status": "True"} for kind in ("SuccessCriteriaMet", "Complete")]
    life.api.objects["Job", "vit-0"]["status"]["conditions"] = reported
    if seen == "gone":
        del life.api.objects["Pod", worker["metadata"]["name"]]
    life.reconcile()
    free(life)
    life.reconcile()
    assert life.shown("phase", "attempt", "restarts") == ("Provisioning", 1, 1)


def test_elastic_job_per_node_resumes_no_job_after_success() -> None:
    """The controller is killed between two resumes, and the first worker succeeds meanwhile."""
    life = Life({"numGPUs": 32, "elastic": {"minNodes": 1, "maxNodes": 4}}, OF_EACH_NODE)
    life.api.prompt = False
    wait = next(index for index, each in enumerate(_writes()) if each.startswith("apply Job"))
    life.api.crash_after(wait + 1)
    with pytest.raises(Exception, match="apply Job vit-0-n1"):
        life.reconcile()
    life.api.settle()
    life.succeed()
    life.api.prompt = True
    life.settle()
    assert life.status["phase"] == "Succeeded"
    assert [name for _, name in life.api.ran] == ["vit-0"]


def _writes() -> list[str]:
    life = Life({"numGPUs": 32, "elastic": {"minNodes": 1, "maxNodes": 4}}, OF_EACH_NODE).begin()
    return life.api.written


def test_success_policy_is_set_on_a_job_for_all_nodes_only() -> None:
    elastic = {"numGPUs": 32, "elastic": {"minNodes": 2, "maxNodes": 4}}
    (one,) = build_jobs(attempt_spec(elastic))
    assert one["spec"]["successPolicy"] == {"rules": [{"succeededCount": 2}]}
    assert not any(
        "successPolicy" in each["spec"] for each in build_jobs(attempt_spec(elastic, OF_EACH_NODE))
    )


@pytest.mark.parametrize("of_queue", [OF_EACH_NODE, {}])
def test_failed_worker_ends_an_attempt_with_enough_successes(of_queue: dict[str, Any]) -> None:
    life = Life({"numGPUs": 24, "elastic": {"minNodes": 2, "maxNodes": 3}}, of_queue).run()
    for name, phase in zip(life.names("Pod"), ("Failed", "Succeeded", "Succeeded"), strict=True):
        life.api.objects["Pod", name]["status"]["phase"] = phase
    life.reconcile()
    assert life.shown("attempt", "restarts") == (1, 1)
