"""The pod template of a TorchrunQueue, as the API server judges a pod of it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.operator.life import Life as JobLife
from tests.unit.operator.made import CLUSTER, DIGEST, queue
from tests.unit.operator.queue_life import NAMED, Life
from trainyard.k8s import names
from trainyard.operator import names as n
from trainyard.operator.queue import DryRun, build_trial_pod

pytestmark = pytest.mark.unit
FULL = 'pods "template-trial" is forbidden: exceeded quota: few, requested: pods=1, used: pods=2, limited: pods=2'


@pytest.mark.parametrize(
    ("tried", "shown"),
    [
        (DryRun(), ("True", "Valid")),
        (DryRun(refusal="spec.containers[0].x: unknown"), ("False", "Refused")),
        (DryRun(refusal=FULL), ("True", "Valid")),
        (DryRun(refusal=FULL.replace("exceeded", "failed")), ("False", "Refused")),
        (None, ("Unknown", "NotTried")),
    ],
)
def test_the_pod_template_is_judged_by_the_api_server(tried: DryRun | None, shown: tuple[str, str]) -> None:
    life = Life(tried=tried)
    life.reconcile()
    assert life.condition(n.POD_TEMPLATE_VALID) == shown
    assert life.condition(n.READY)[0] == shown[0]


def test_the_trial_is_a_worker_of_the_queue() -> None:
    item = queue(
        {"podTemplate.spec": {"hostIPC": True}, "storage.datasets": {"enabled": True, "size": "1Gi"}}
    )
    item["metadata"]["namespace"] = "team"
    pod = build_trial_pod(item, CLUSTER)
    assert pod is not None
    assert (pod["kind"], pod["metadata"]["namespace"], pod["spec"]["hostIPC"]) == ("Pod", "team", True)
    assert pod["spec"]["containers"][0]["image"] == "example.com/pytorch:2.9"
    # A pod outside of a Job has no index that it could be told.
    assert "job-completion-index" not in str(pod)
    assert build_trial_pod(queue({"image": None}), CLUSTER) is None


def test_the_trial_is_as_the_pod_of_a_job_with_a_workspace() -> None:
    own = {
        "initContainers": [{"name": "prepare", "image": "busybox"}],
        "volumes": [{"name": "mine", "emptyDir": {}}],
    }
    pod = build_trial_pod(
        queue({"podTemplate.spec": own, "podTemplate.metadata": {"labels": {"mine": "too"}}}), CLUSTER
    )
    assert pod is not None
    # The template's own come first: in spec.initContainers[0] the API server's answer means what its author means.
    inits, volumes = pod["spec"]["initContainers"], pod["spec"]["volumes"]
    assert [each["name"] for each in inits] == ["prepare", "workspace", "workspace-sync"]
    assert [each["name"] for each in volumes] == ["mine", "workspace", n.ARCHIVE_VOLUME]
    assert (inits[1]["image"], inits[2]["restartPolicy"]) == (CLUSTER.tools_image, "Always")
    labels = pod["metadata"]["labels"]
    assert labels["batch.kubernetes.io/job-name"] == labels["job-name"] == "template-trial-0"
    assert labels["batch.kubernetes.io/controller-uid"] == labels["controller-uid"]
    assert (labels["mine"], labels[n.LABEL_JOB]) == ("too", "template-trial")


@pytest.mark.parametrize(
    ("template", "told"),
    [
        (
            {"spec": {"initContainers": [{"name": "a"}, {"name": "workspace"}]}},
            'spec.podTemplate.spec.initContainers[1].name is "workspace", the name of a container',
        ),
        (
            {"spec": {"containers": [{"name": "torchrun"}, {"name": "logs"}]}},
            'spec.podTemplate.spec.containers[1].name is "logs": a container beside torchrun continues',
        ),
        (
            {"spec": {"schedulerName": "kai-scheduler"}},
            'spec.podTemplate.spec.schedulerName is "kai-scheduler"; it must be spec.scheduling.scheduler',
        ),
        (
            {"spec": {"priorityClassName": "high"}},
            'spec.podTemplate.spec.priorityClassName is "high"; it must be spec.scheduling.priorityClassName',
        ),
        (
            {"spec": {"priority": 7}},
            "spec.podTemplate.spec.priority is 7; it must be spec.scheduling.priorityClassName",
        ),
        (
            {"metadata": {"labels": {"batch.kubernetes.io/job-name": "x"}}},
            "spec.podTemplate.metadata.labels.batch.kubernetes.io/job-name: Kubernetes sets this label",
        ),
        (
            {"metadata": {"labels": {n.LABEL_ATTEMPT: "7"}}},
            "spec.podTemplate.metadata.labels.torchrun.ai/attempt: reserved",
        ),
        (
            {"metadata": {"labels": {n.LABEL_JOB_UID: "7"}}},
            "spec.podTemplate.metadata.labels.torchrun.ai/job-uid: reserved",
        ),
        (
            {"metadata": {"labels": {n.LABEL_NODE: "7"}}},
            "spec.podTemplate.metadata.labels.torchrun.ai/node: reserved",
        ),
        *(
            ({"metadata": {kind: {key: "x"}}}, f"spec.podTemplate.metadata.{kind}.{key}: reserved")
            for kind, key in (
                ("labels", names.LABEL_ROLE),
                ("labels", "sub.trainyard.dev/x"),
                ("labels", n.LABEL_KAI_QUEUE),
                ("labels", n.LABEL_JOB),
                ("annotations", names.DO_NOT_DISRUPT),
                ("annotations", n.ANNOTATION_POD_GROUP),
            )
        ),
    ],
)
def test_what_jobs_have_from_elsewhere_is_told_by_its_field(template: dict[str, Any], told: str) -> None:
    life = Life({**NAMED, "podTemplate": template})
    life.reconcile()
    assert life.condition(n.POD_TEMPLATE_VALID) == life.condition(n.READY) == ("False", "InvalidSpec")
    conditions = life.api.objects[n.QUEUE_KIND, "research"]["status"]["conditions"]
    message = next(each["message"] for each in conditions if each["type"] == n.POD_TEMPLATE_VALID)
    assert message.startswith(told)
    # It is told, and takes nothing away: neither the queue of KAI nor jobs that run so.
    assert life.kai == ["gpu"]
    JobLife(None, {"podTemplate": template}).run()
    # A job's own is refused by the same line, and only the job's own.
    own = {"overrides": {"podTemplate": template}}
    job = JobLife({**own, "workspace": {"digest": DIGEST, "sizeBytes": 3}})
    job.reconcile()
    assert (job.status["phase"], job.status["reason"]) == ("Failed", "InvalidSpec")
    where = told.replace("spec.podTemplate", "spec.overrides.podTemplate")
    assert job.status["message"].startswith(where.replace("spec.scheduling", "spec.overrides.scheduling"))
    JobLife({"overrides": {"podTemplate": {"spec": {"hostIPC": True}}}}, {"podTemplate": template}).run()
    if '"workspace"' in told:
        JobLife(own).run()


def test_a_job_that_has_begun_keeps_its_deadline_and_its_restarts_whatever_is_refused_by_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = {"overrides": {"podTemplate": {"spec": {"schedulerName": "another"}}}}
    limits = {"jobDefaults": {"activeDeadlineSeconds": 1000, "maxRestarts": 1}}
    with monkeypatch.context() as before:
        before.setattr("trainyard.operator.api.resolve.check_pod_template", lambda *_, **__: [])
        life = JobLife(own, limits).run()
    life.api.run_pods("Failed", exit_code=1, only=0)
    for _ in range(3):
        life.reconcile()
        life.api.now += 20
    life.run()
    assert (life.status["phase"], life.status["restarts"]) == ("Running", 1)
    life.api.now += 1000
    life.reconcile()
    assert (life.status["phase"], life.status["reason"]) == ("Failed", "DeadlineExceeded")


def test_a_native_sidecar_and_the_workers_own_container_are_the_templates() -> None:
    spec = {
        "containers": [{"name": "torchrun", "env": []}],
        "initContainers": [{"name": "logs", "image": "logs", "restartPolicy": "Always"}],
        "schedulerName": None,
        "priorityClassName": "",
    }
    life = Life(
        {"podTemplate": {"spec": spec}, "scheduling": {"scheduler": "other", "priorityClassName": "high"}}
    )
    life.reconcile()
    assert life.condition(n.READY) == ("True", "Ready")


def test_labels_that_say_who_manages_pods_are_anybodys() -> None:
    labels = {
        n.LABEL_MANAGED_BY: "helm",
        "app.kubernetes.io/name": "training",
        "nottrainyard.dev/role": "warm",
    }
    life = Life({"podTemplate": {"metadata": {"labels": labels}}})
    life.reconcile()
    assert life.condition(n.READY) == ("True", "Ready")
