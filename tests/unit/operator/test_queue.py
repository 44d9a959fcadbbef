"""The life of a TorchrunQueue, plan by plan, on a small API server: KAI's queue, the dry run, the status."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.operator.api import Crash
from tests.unit.operator.life import KAI, NAMED, Life, QueueLife
from tests.unit.operator.made import CLUSTER, DIGEST, queue
from trainyard.k8s import names
from trainyard.operator import names as n
from trainyard.operator.observe import KaiQueue
from trainyard.operator.plan import POLL_SECONDS
from trainyard.operator.queue import build_queue_context, build_trial_pod, reconcile_queue


def test_kai_queue_follows_the_finalizer_and_the_queue() -> None:
    life = QueueLife(NAMED).begin()
    assert life.kai == ["gpu"]
    order = life.api.written
    assert order.index(f"put finalizers {n.QUEUE_FINALIZER}") < order.index("create Queue gpu")
    assert life.finalizers == [n.QUEUE_FINALIZER]
    assert life.condition(n.KAI_QUEUE_READY) == ("True", "Created")
    assert life.condition(n.READY)[0] == "True"
    assert life.requeue_after is None
    life.api.delete(n.QUEUE_KIND, "research")
    life.api.settle()
    assert (n.QUEUE_KIND, "research") in life.api.objects
    life.reconcile()
    life.reconcile()
    assert life.api.objects == {}


def test_kai_queue_without_a_watch_is_polled() -> None:
    """KAI's kinds may have just come, and the watch of them may not stand yet."""
    item = queue(NAMED)
    item["metadata"] |= {"uid": "u1", "generation": 1, "finalizers": [n.QUEUE_FINALIZER]}
    made = reconcile_queue(build_queue_context(item, [], KAI, 0.0, refusal=""))
    assert ([each["kind"] for each in made.creations], made.requeue_after) == (["Queue"], POLL_SECONDS)
    meta = {**made.creations[0]["metadata"], "uid": "u2", "deletionTimestamp": "x"}
    theirs = {**made.creations[0], "metadata": meta}
    going = reconcile_queue(build_queue_context(item, [theirs], KAI, 0.0, refusal=""))
    assert going.requeue_after == POLL_SECONDS
    item["metadata"]["deletionTimestamp"] = "x"
    theirs["metadata"].pop("deletionTimestamp")
    gone = reconcile_queue(build_queue_context(item, [theirs], KAI, 0.0, refusal=""))
    assert (len(gone.deletions), gone.requeue_after) == (1, POLL_SECONDS)


def test_kai_queue_after_a_crash_is_not_left_behind() -> None:
    for last in range(12):
        life = QueueLife(NAMED)
        life.api.crash_after(last)
        for act in (life.reconcile, life.delete):
            for _ in range(4):
                try:
                    act()
                except Crash:
                    life.api.settle()
        assert life.api.objects == {}


@pytest.mark.parametrize(("changes", "reason"), [(NAMED, "Created"), (None, "NotRequested")])
def test_finalizer_is_set_only_with_a_queue_of_kai(changes: dict[str, Any] | None, reason: str) -> None:
    life = QueueLife(changes)
    before = ["a/theirs"] if changes else [n.QUEUE_FINALIZER, "a/theirs"]
    life.api.objects[n.QUEUE_KIND, "research"]["metadata"]["finalizers"] = before
    life.reconcile()
    assert life.finalizers == ["a/theirs", *([n.QUEUE_FINALIZER] if changes else [])]
    assert life.condition(n.KAI_QUEUE_READY) == ("True", reason)
    life.delete()
    life.reconcile()
    assert (life.kai, life.finalizers) == ([], ["a/theirs"])


def test_queue_without_kai_reports_it() -> None:
    life = QueueLife(NAMED)
    life.cluster = CLUSTER
    life.reconcile()
    assert life.condition(n.KAI_QUEUE_READY) == ("False", "SchedulerNotInstalled")
    assert life.condition(n.READY) == ("False", "SchedulerNotInstalled")
    life.cluster = KAI
    life.reconcile()
    assert life.condition(n.READY)[0] == "True"
    # And one that was uninstalled keeps no queue from being deleted.
    life.cluster = CLUSTER
    life.delete()
    assert (n.QUEUE_KIND, "research") not in life.api.objects


def test_kai_queue_of_others_is_used_and_kept() -> None:
    life = QueueLife(NAMED)
    theirs = {"apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "metadata": {"name": "gpu"}, "spec": {}}
    life.api.create(theirs)
    life.reconcile()
    assert life.condition(n.KAI_QUEUE_READY) == ("True", "Found")
    assert life.finalizers == []
    assert life.api.objects["Queue", "gpu"]["spec"] == {}
    life.delete()
    assert life.kai == ["gpu"]


def test_kai_queue_renamed_moves_and_parent_is_patched() -> None:
    life = QueueLife(NAMED).begin()
    life.api.edit(n.QUEUE_KIND, "research", parentKaiQueue="org")
    life.api.objects["Queue", "gpu"]["spec"]["resources"]["gpu"]["quota"] = 8
    life.reconcile()
    assert life.api.objects["Queue", "gpu"]["spec"]["parentQueue"] == "org"
    assert life.api.objects["Queue", "gpu"]["spec"]["resources"]["gpu"]["quota"] == 8
    life.edit(kaiQueue="other")
    assert life.kai == ["other"]
    life.edit(kaiQueue=None)
    assert (life.kai, life.finalizers) == ([], [])


def test_missing_parent_is_reported_and_polled() -> None:
    life = QueueLife({**NAMED, "parentKaiQueue": "other"}).begin()
    assert life.api.objects["Queue", "gpu"]["spec"]["parentQueue"] == "other"
    assert life.condition(n.KAI_QUEUE_READY) == ("False", "ParentQueueNotFound")
    assert life.condition(n.READY) == ("False", "ParentQueueNotFound")
    assert life.requeue_after == POLL_SECONDS
    assert life.message().startswith("queue gpu of KAI Scheduler is below other, which does not exist")
    # One further up is as needed.
    life.cluster = replace(KAI, kai_queues={"other": KaiQueue(parent="top")})
    life.reconcile()
    assert life.condition(n.READY) == ("False", "ParentQueueNotFound")
    life.cluster = replace(KAI, kai_queues={"other": KaiQueue(parent="top"), "top": KaiQueue()})
    life.reconcile()
    assert (life.condition(n.READY), life.requeue_after) == (("True", "Ready"), None)


def below(kind: str, name: str) -> dict[str, Any]:
    """Return a gang or a queue in the queue gpu of KAI."""
    spec = {"queue": "gpu"} if kind == "PodGroup" else {"parentQueue": "gpu"}
    return {"kind": kind, "metadata": {"name": name}, "spec": spec}


@pytest.mark.parametrize(
    ("others", "left"),
    [
        ([below("PodGroup", "vit-0")], "PodGroup vit-0."),
        ([below("Queue", each) for each in "dabc"], "Queue a, Queue b, Queue c and 1 more."),
    ],
)
def test_kai_queue_with_gangs_or_queues_stays(others: list[dict[str, Any]], left: str) -> None:
    life = QueueLife(NAMED).begin()
    life.others = [*others, below("Queue", "gpu")]
    life.edit(kaiQueue="other")
    assert (life.kai, life.requeue_after) == (["gpu", "other"], POLL_SECONDS)
    assert life.condition(n.READY) == ("True", "Ready")
    life.delete()
    assert life.kai == ["gpu", "other"], "one goes with the last"
    assert life.condition(n.READY) == ("False", "Deleting")
    assert f"queue gpu of KAI Scheduler is in use: {left}" in life.message()
    life.others = life.others[-1:]
    life.reconcile()
    assert life.api.objects == {}


def test_kai_queues_of_one_owner_are_deleted_bottom_up() -> None:
    life = QueueLife(NAMED).begin()
    life.api.edit(n.QUEUE_KIND, "research", kaiQueue="low", parentKaiQueue="gpu")
    for _ in range(2):
        life.others = life.api.list("Queue")
        life.reconcile()
    assert life.kai == ["gpu", "low"]
    life.delete()
    life.others = life.api.list("Queue")
    life.reconcile()
    assert life.api.objects == {}
    deleted = [each for each in life.api.written if each.startswith("delete")]
    assert deleted == ["delete Queue low", "delete Queue gpu"]


def test_invalid_spec_deletes_nothing() -> None:
    life = QueueLife(NAMED).begin()
    life.edit(image=5)
    assert life.kai == ["gpu"]
    assert life.condition(n.POD_TEMPLATE_VALID) == ("False", "InvalidSpec")
    assert life.condition(n.READY)[0] == "False"


def test_queue_status_counts_jobs_and_is_written_once() -> None:
    life = QueueLife()
    life.phases = ["Running", "Provisioning", "Pending", "", "Restarting", "Suspended", "Succeeded", "Failed"]
    life.reconcile()
    item = life.api.get(n.QUEUE_KIND, "research")
    assert item is not None
    assert item["status"]["jobs"] == {"active": 2, "pending": 3}
    decision = reconcile_queue(
        build_queue_context(item, [], KAI, life.api.now + 60, refusal="", phases=life.phases)
    )
    assert decision == type(decision)()
    assert life.api.events == ["Ready"]


FULL = 'pods "template-trial" is forbidden: exceeded quota: few, requested: pods=1, used: pods=2, limited: pods=2'


@pytest.mark.parametrize(
    ("tried", "shown"),
    [
        ("", ("True", "Valid")),
        ("spec.containers[0].x: unknown", ("False", "Refused")),
        (FULL, ("True", "Valid")),
        (FULL.replace("exceeded", "failed"), ("False", "Refused")),
        (None, ("Unknown", "NotChecked")),
    ],
)
def test_dry_run_sets_the_condition_of_the_template(tried: str | None, shown: tuple[str, str]) -> None:
    life = QueueLife(tried=tried).begin()
    assert life.condition(n.POD_TEMPLATE_VALID) == shown
    assert life.condition(n.READY)[0] == shown[0]
    assert life.requeue_after == (None if shown[0] == "True" else POLL_SECONDS)


def test_trial_pod_is_that_of_a_job_with_a_workspace() -> None:
    own = {
        "hostIPC": True,
        "initContainers": [{"name": "prepare", "image": "busybox"}],
        "volumes": [{"name": "mine", "emptyDir": {}}],
    }
    item = queue({"podTemplate.spec": own, "podTemplate.metadata": {"labels": {"mine": "too"}}})
    pod = build_trial_pod(build_queue_context(item, [], CLUSTER, 0.0))
    assert pod is not None
    assert (pod["kind"], pod["metadata"]["namespace"], pod["spec"]["hostIPC"]) == ("Pod", "team", True)
    assert pod["spec"]["containers"][0]["image"] == "example.com/pytorch:2.9"
    # A pod outside of a Job has no index.
    assert "job-completion-index" not in str(pod)
    # The template's own come first: in spec.initContainers[0] the API server's answer means what its author means.
    inits, volumes = pod["spec"]["initContainers"], pod["spec"]["volumes"]
    assert [each["name"] for each in inits] == ["prepare", "workspace", "workspace-sync"]
    assert [each["name"] for each in volumes] == ["mine", "workspace", n.ARCHIVE_VOLUME]
    assert (inits[1]["image"], inits[2]["restartPolicy"]) == (CLUSTER.tools_image, "Always")
    labels = pod["metadata"]["labels"]
    assert labels["batch.kubernetes.io/job-name"] == labels["job-name"] == "template-trial-0"
    assert labels["batch.kubernetes.io/controller-uid"] == labels["controller-uid"]
    assert (labels["mine"], labels[n.LABEL_JOB]) == ("too", "template-trial")
    assert build_trial_pod(build_queue_context(queue({"image": None}), [], CLUSTER, 0.0)) is None


BESIDE = [{"name": "torchrun"}, {"name": "logs"}]
OF_A_JOB = {"labels": {"batch.kubernetes.io/job-name": "x"}}


@pytest.mark.parametrize(
    ("template", "error"),
    [
        ({"spec": {"initContainers": [{"name": "workspace"}]}}, 'spec.initContainers[0].name is "workspace"'),
        ({"spec": {"containers": BESIDE}}, 'spec.containers[1].name is "logs"'),
        ({"spec": {"schedulerName": "a"}}, 'spec.schedulerName is "a"; it must be {}.scheduling.scheduler'),
        ({"spec": {"priorityClassName": "high"}}, 'spec.priorityClassName is "high"; it must be {}.sched'),
        ({"spec": {"priority": 7}}, "spec.priority is 7; it must be {}.scheduling.priorityClassName"),
        ({"metadata": OF_A_JOB}, "metadata.labels.batch.kubernetes.io/job-name: Kubernetes sets this label"),
        *(
            ({"metadata": {kind: {key: "x"}}}, f"metadata.{kind}.{key}: reserved")
            for kind, key in (("labels", n.LABEL_JOB), ("annotations", names.DO_NOT_DISRUPT))
        ),
    ],
)
def test_reserved_field_is_reported_with_its_path(template: dict[str, Any], error: str) -> None:
    life = QueueLife({**NAMED, "podTemplate": template}).begin()
    assert life.condition(n.POD_TEMPLATE_VALID) == life.condition(n.READY) == ("False", "InvalidSpec")
    assert life.message(n.POD_TEMPLATE_VALID).startswith(f"spec.podTemplate.{error.format('spec')}")
    # The error does not stop the queue of KAI or jobs.
    assert life.kai == ["gpu"]
    Life(None, {"podTemplate": template}).run()
    # The template of a job is refused for the same error, but not for those of its queue.
    own = {"overrides": {"podTemplate": template}}
    job = Life({**own, "workspace": {"digest": DIGEST, "sizeBytes": 3}})
    job.reconcile()
    assert (job.status["phase"], job.status["reason"]) == ("Failed", "InvalidSpec")
    assert job.status["message"].startswith(f"spec.overrides.podTemplate.{error.format('spec.overrides')}")
    Life({"overrides": {"podTemplate": {"spec": {"hostIPC": True}}}}, {"podTemplate": template}).run()
    if '"workspace"' in error:
        Life(own).run()


def test_started_job_keeps_its_limits_with_a_refused_template(monkeypatch: pytest.MonkeyPatch) -> None:
    own = {"overrides": {"podTemplate": {"spec": {"schedulerName": "another"}}}}
    limits = {"jobDefaults": {"activeDeadlineSeconds": 1000, "maxRestarts": 1}}
    with monkeypatch.context() as before:
        before.setattr("trainyard.operator.api.resolve.check_pod_template", lambda *_, **__: [])
        life = Life(own, limits).run()
    life.fail(only=0)
    life.run()
    assert life.shown("phase", "restarts") == ("Running", 1)
    life.wait(1000)
    assert life.state == ("Failed", "DeadlineExceeded")


def test_template_may_have_sidecars_and_other_labels() -> None:
    spec = {
        "containers": [{"name": "torchrun", "env": []}],
        "initContainers": [{"name": "logs", "image": "logs", "restartPolicy": "Always"}],
        "schedulerName": None,
        "priorityClassName": "",
    }
    labels = {n.LABEL_MANAGED_BY: "helm", "nottrainyard.dev/role": "warm"}
    template = {"spec": spec, "metadata": {"labels": labels}}
    scheduling = {"scheduler": "other", "priorityClassName": "high"}
    life = QueueLife({"podTemplate": template, "scheduling": scheduling}).begin()
    assert life.condition(n.READY) == ("True", "Ready")
