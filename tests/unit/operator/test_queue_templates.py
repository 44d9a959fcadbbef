"""The pod template of a TorchrunQueue, and the dry run of a pod of it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.operator.life import Life as JobLife
from tests.unit.operator.made import CLUSTER, DIGEST, queue
from tests.unit.operator.queue_life import NAMED, Life
from trainyard.k8s import names
from trainyard.operator import names as n
from trainyard.operator.queue import build_trial_pod

pytestmark = pytest.mark.unit
FULL = 'pods "template-trial" is forbidden: exceeded quota: few, requested: pods=1, used: pods=2, limited: pods=2'


@pytest.mark.parametrize(
    ("tried", "shown"),
    [
        ("", ("True", "Valid")),
        ("spec.containers[0].x: unknown", ("False", "Refused")),
        (FULL, ("True", "Valid")),
        (FULL.replace("exceeded", "failed"), ("False", "Refused")),
        (None, ("Unknown", "NotTried")),
    ],
)
def test_dry_run_sets_the_condition_of_the_template(tried: str | None, shown: tuple[str, str]) -> None:
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
    # A pod outside of a Job has no index.
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


RESERVED_LABELS = (
    n.LABEL_ATTEMPT, n.LABEL_JOB_UID, n.LABEL_NODE, n.LABEL_KAI_QUEUE, n.LABEL_JOB,
    names.LABEL_ROLE, "sub.trainyard.dev/x",
)  # fmt: skip
RESERVED_ANNOTATIONS = (names.DO_NOT_DISRUPT, n.ANNOTATION_POD_GROUP)


@pytest.mark.parametrize(
    ("template", "error"),
    [
        (
            {"spec": {"initContainers": [{"name": "a"}, {"name": "workspace"}]}},
            'spec.initContainers[1].name is "workspace", the name of a container',
        ),
        (
            {"spec": {"containers": [{"name": "torchrun"}, {"name": "logs"}]}},
            'spec.containers[1].name is "logs": a container beside torchrun continues',
        ),
        (
            {"spec": {"schedulerName": "kai-scheduler"}},
            'spec.schedulerName is "kai-scheduler"; it must be {}.scheduling.scheduler',
        ),
        (
            {"spec": {"priorityClassName": "high"}},
            'spec.priorityClassName is "high"; it must be {}.scheduling.priorityClassName',
        ),
        ({"spec": {"priority": 7}}, "spec.priority is 7; it must be {}.scheduling.priorityClassName"),
        (
            {"metadata": {"labels": {"batch.kubernetes.io/job-name": "x"}}},
            "metadata.labels.batch.kubernetes.io/job-name: Kubernetes sets this label",
        ),
        *(
            ({"metadata": {kind: {key: "x"}}}, f"metadata.{kind}.{key}: reserved")
            for kind, keys in (("labels", RESERVED_LABELS), ("annotations", RESERVED_ANNOTATIONS))
            for key in keys
        ),
    ],
)
def test_reserved_field_is_reported_with_its_path(template: dict[str, Any], error: str) -> None:
    life = Life({**NAMED, "podTemplate": template})
    life.reconcile()
    assert life.condition(n.POD_TEMPLATE_VALID) == life.condition(n.READY) == ("False", "InvalidSpec")
    conditions = life.api.objects[n.QUEUE_KIND, "research"]["status"]["conditions"]
    message = next(each["message"] for each in conditions if each["type"] == n.POD_TEMPLATE_VALID)
    assert message.startswith(f"spec.podTemplate.{error.format('spec')}")
    # The error does not stop the queue of KAI or jobs.
    assert life.kai == ["gpu"]
    JobLife(None, {"podTemplate": template}).run()
    # The template of a job is refused for the same error, but not for those of its queue.
    own = {"overrides": {"podTemplate": template}}
    job = JobLife({**own, "workspace": {"digest": DIGEST, "sizeBytes": 3}})
    job.reconcile()
    assert (job.status["phase"], job.status["reason"]) == ("Failed", "InvalidSpec")
    assert job.status["message"].startswith(f"spec.overrides.podTemplate.{error.format('spec.overrides')}")
    JobLife({"overrides": {"podTemplate": {"spec": {"hostIPC": True}}}}, {"podTemplate": template}).run()
    if '"workspace"' in error:
        JobLife(own).run()


def test_started_job_keeps_its_limits_with_a_refused_template(
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


def test_template_may_have_sidecars_and_the_worker() -> None:
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


def test_other_labels_are_allowed() -> None:
    labels = {
        n.LABEL_MANAGED_BY: "helm",
        "app.kubernetes.io/name": "training",
        "nottrainyard.dev/role": "warm",
    }
    life = Life({"podTemplate": {"metadata": {"labels": labels}}})
    life.reconcile()
    assert life.condition(n.READY) == ("True", "Ready")
