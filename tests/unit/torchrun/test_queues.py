"""The life of a TorchrunQueue, decision by decision, on a small API server."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from launcher.core.torchrun import names as n
from launcher.core.torchrun.decision import UNHEARD_SECONDS
from launcher.core.torchrun.kai import KaiQueue
from launcher.core.torchrun.queues import Trial, decide, trial
from tests.unit.torchrun.api import Api, Crash
from tests.unit.torchrun.life import Life as JobLife
from tests.unit.torchrun.made import CLUSTER, queue

pytestmark = pytest.mark.unit
TREE = {each: KaiQueue() for each in (n.KAI_PARENT_QUEUE, "org")}
KAI = replace(CLUSTER, kai=True, kai_queues=TREE)
NAMED = {"kaiQueue": "gpu"}
FULL = 'pods "template-trial" is forbidden: exceeded quota: few, requested: pods=1, used: pods=2, limited: pods=2'


class Life:
    """One queue, and the controller that looks at it."""

    def __init__(self, changes: dict[str, Any] | None = None, tried: Trial | None = Trial()) -> None:  # noqa: B008
        self.api, self.cluster, self.tried = Api(), KAI, tried
        self.phases: list[str] = []
        self.others: list[dict[str, Any]] = []
        self.again: float | None = None
        made = queue(changes)
        made["metadata"]["namespace"] = "team"
        self.api.create(made)

    def look(self) -> None:
        for _ in range(10):
            item = self.api.get(n.QUEUE_KIND, "research")
            if item is None:
                return
            decision = decide(
                item, self.api.list("Queue"), self.tried, self.phases, self.cluster, self.api.now, self.others
            )
            self.again = decision.again
            self.api.carry_out(item, decision)
            self.api.settle()
            if replace(decision, again=None, events=()) == type(decision)():
                return
        raise AssertionError(f"no end: {decision}")

    def condition(self, kind: str) -> tuple[str, str]:
        item = self.api.objects[n.QUEUE_KIND, "research"]
        one = next(each for each in item["status"]["conditions"] if each["type"] == kind)
        return one["status"], one["reason"]

    @property
    def kai(self) -> list[str]:
        return sorted(each["metadata"]["name"] for each in self.api.list("Queue"))

    @property
    def finalizers(self) -> list[str]:
        found: list[str] = self.api.objects[n.QUEUE_KIND, "research"]["metadata"].get("finalizers", [])
        return found


def test_kais_queue_is_made_behind_a_finalizer_and_goes_with_its_own() -> None:
    life = Life(NAMED)
    life.look()
    assert life.kai == ["gpu"]
    order = life.api.written
    assert order.index(f"put finalizers {n.QUEUE_FINALIZER}") < order.index("create Queue gpu")
    assert life.finalizers == [n.QUEUE_FINALIZER]
    assert life.condition(n.KAI_QUEUE_READY) == ("True", "Made")
    assert life.condition(n.READY)[0] == "True"
    assert life.again is None
    life.api.delete(n.QUEUE_KIND, "research")
    life.api.settle()
    assert (n.QUEUE_KIND, "research") in life.api.objects
    life.look()
    life.look()
    assert life.api.objects == {}


def test_what_becomes_of_kais_queue_is_looked_for_where_nothing_is_heard_of_it() -> None:
    """KAI's kinds may have just come, and the watch of them may not stand yet."""
    item = queue(NAMED)
    item["metadata"] |= {"namespace": "team", "uid": "u1", "generation": 1, "finalizers": [n.QUEUE_FINALIZER]}
    made = decide(item, [], Trial(), [], KAI, 0.0)
    assert ([each["kind"] for each in made.makes], made.again) == (["Queue"], UNHEARD_SECONDS)
    theirs = {
        **made.makes[0],
        "metadata": {**made.makes[0]["metadata"], "uid": "u2", "deletionTimestamp": "x"},
    }
    assert decide(item, [theirs], Trial(), [], KAI, 0.0).again == UNHEARD_SECONDS
    item["metadata"]["deletionTimestamp"] = "x"
    theirs["metadata"].pop("deletionTimestamp")
    gone = decide(item, [theirs], Trial(), [], KAI, 0.0)
    assert (len(gone.removals), gone.again) == (1, UNHEARD_SECONDS)


def test_a_crash_at_every_write_leaves_no_kai_queue_behind() -> None:
    for last in range(12):
        life = Life(NAMED)
        life.api.crash_after(last)
        for action in ("make", "delete"):
            if action == "delete":
                life.api.delete(n.QUEUE_KIND, "research")
                life.api.settle()
            for _ in range(4):
                try:
                    life.look()
                except Crash:
                    life.api.settle()
        assert life.api.objects == {}


@pytest.mark.parametrize("changes", [NAMED, None], ids=["with a queue of KAI", "without"])
def test_a_finalizer_that_came_with_the_queue_is_taken_away_and_anothers_stays(
    changes: dict[str, Any] | None,
) -> None:
    life = Life(changes)
    life.api.objects[n.QUEUE_KIND, "research"]["metadata"]["finalizers"] = [n.QUEUE_FINALIZER, "a/theirs"]
    life.look()
    assert (n.QUEUE_FINALIZER in life.finalizers) is (changes is not None)
    life.api.delete(n.QUEUE_KIND, "research")
    for _ in range(2):
        life.look()
    assert (life.kai, life.finalizers) == ([], ["a/theirs"])


def test_anothers_finalizer_stays_beside_its_own() -> None:
    life = Life(NAMED)
    life.api.objects[n.QUEUE_KIND, "research"]["metadata"]["finalizers"] = ["a/theirs"]
    life.look()
    assert life.finalizers == ["a/theirs", n.QUEUE_FINALIZER]


def test_without_a_kai_queue_there_is_no_finalizer() -> None:
    life = Life()
    life.look()
    assert (life.kai, life.finalizers) == ([], [])
    assert life.condition(n.KAI_QUEUE_READY) == ("True", "NotAsked")
    life.api.delete(n.QUEUE_KIND, "research")
    life.api.settle()
    assert life.api.objects == {}


def test_kai_that_is_not_installed_is_told() -> None:
    life = Life(NAMED)
    life.cluster = CLUSTER
    life.look()
    assert life.condition(n.KAI_QUEUE_READY) == ("False", "SchedulerNotInstalled")
    assert life.condition(n.READY) == ("False", "SchedulerNotInstalled")
    life.cluster = KAI
    life.look()
    assert life.condition(n.READY)[0] == "True"
    # And one that was uninstalled keeps no queue from being deleted.
    life.cluster = CLUSTER
    life.api.delete(n.QUEUE_KIND, "research")
    life.look()
    assert (n.QUEUE_KIND, "research") not in life.api.objects


def test_a_queue_of_kai_that_is_somebody_elses_is_used_and_never_removed() -> None:
    life = Life(NAMED)
    theirs = {"apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "metadata": {"name": "gpu"}, "spec": {}}
    life.api.create(theirs)
    life.look()
    assert life.condition(n.KAI_QUEUE_READY) == ("True", "Found")
    assert life.finalizers == []
    assert life.api.objects["Queue", "gpu"]["spec"] == {}
    life.api.delete(n.QUEUE_KIND, "research")
    life.look()
    assert life.kai == ["gpu"]


def test_another_name_moves_it_and_another_parent_changes_it() -> None:
    life = Life(NAMED)
    life.look()
    life.api.edit(n.QUEUE_KIND, "research", parentKaiQueue="org")
    life.api.objects["Queue", "gpu"]["spec"]["resources"]["gpu"]["quota"] = 8
    life.look()
    assert life.api.objects["Queue", "gpu"]["spec"]["parentQueue"] == "org"
    assert life.api.objects["Queue", "gpu"]["spec"]["resources"]["gpu"]["quota"] == 8
    life.api.edit(n.QUEUE_KIND, "research", kaiQueue="other")
    life.look()
    assert life.kai == ["other"]
    life.api.edit(n.QUEUE_KIND, "research", kaiQueue=None)
    life.look()
    assert (life.kai, life.finalizers) == ([], [])


def test_a_parent_that_is_not_there_is_told_and_looked_for_again() -> None:
    life = Life({**NAMED, "parentKaiQueue": "other"})
    life.look()
    assert life.api.objects["Queue", "gpu"]["spec"]["parentQueue"] == "other"
    assert life.condition(n.KAI_QUEUE_READY) == ("False", "ParentQueueNotFound")
    assert life.condition(n.READY) == ("False", "ParentQueueNotFound")
    assert life.again == UNHEARD_SECONDS
    conditions = life.api.objects[n.QUEUE_KIND, "research"]["status"]["conditions"]
    message = next(each["message"] for each in conditions if each["type"] == n.READY)
    assert message.startswith("gpu is below other, and KAI Scheduler has no queue of that name")
    # One further up is as needed.
    life.cluster = replace(KAI, kai_queues={"other": KaiQueue(parent="top")})
    life.look()
    assert life.condition(n.READY) == ("False", "ParentQueueNotFound")
    life.cluster = replace(KAI, kai_queues={"other": KaiQueue(parent="top"), "top": KaiQueue()})
    life.look()
    assert (life.condition(n.READY), life.again) == (("True", "Ready"), None)


def test_a_queue_of_kai_stays_for_the_gangs_in_it() -> None:
    life = Life(NAMED)
    life.look()
    gang = {"kind": "PodGroup", "metadata": {"name": "vit-0", "namespace": "team"}, "spec": {"queue": "gpu"}}
    life.others = [gang]
    life.api.edit(n.QUEUE_KIND, "research", kaiQueue="other")
    life.look()
    assert (life.kai, life.again) == (["gpu", "other"], UNHEARD_SECONDS)
    assert life.condition(n.READY) == ("True", "Ready")
    life.api.delete(n.QUEUE_KIND, "research")
    life.look()
    assert life.kai == ["gpu", "other"], "one goes with the last"
    assert life.condition(n.READY) == ("False", "Deleting")
    life.others = []
    life.look()
    assert life.kai == []
    assert (n.QUEUE_KIND, "research") not in life.api.objects


def test_a_queue_of_kai_stays_for_the_queues_below_it_whoevers_they_are() -> None:
    life = Life(NAMED)
    life.look()
    below = [
        {"kind": "Queue", "metadata": {"name": f"team-{each}"}, "spec": {"parentQueue": "gpu"}}
        for each in "dabc"
    ]
    life.others = [*below, {"kind": "Queue", "metadata": {"name": "gpu"}, "spec": {"parentQueue": "gpu"}}]
    life.api.edit(n.QUEUE_KIND, "research", kaiQueue="other")
    life.look()
    assert (life.kai, life.again) == (["gpu", "other"], UNHEARD_SECONDS)
    life.api.delete(n.QUEUE_KIND, "research")
    life.look()
    assert life.kai == ["gpu", "other"]
    conditions = life.api.objects[n.QUEUE_KIND, "research"]["status"]["conditions"]
    message = next(each["message"] for each in conditions if each["type"] == n.READY)
    left = "Queue team-a, Queue team-b, Queue team-c and 1 more"
    assert message == f"is deleted when nothing is left in KAI's queue gpu: {left}"
    life.others = life.others[4:]
    life.look()
    assert life.api.objects == {}


def test_of_its_own_queues_of_kai_the_lower_one_goes_first() -> None:
    life = Life(NAMED)
    life.look()
    life.api.edit(n.QUEUE_KIND, "research", kaiQueue="low", parentKaiQueue="gpu")
    for _ in range(2):
        life.others = life.api.list("Queue")
        life.look()
    assert life.kai == ["gpu", "low"]
    life.api.delete(n.QUEUE_KIND, "research")
    life.look()
    life.others = life.api.list("Queue")
    life.look()
    assert life.api.objects == {}
    assert [each for each in life.api.written if each.startswith("delete")] == [
        "delete Queue low",
        "delete Queue gpu",
    ]


def test_what_the_api_server_refuses_is_tried_again() -> None:
    life = Life(tried=Trial(refusal="no PriorityClass with name train was found"))
    life.look()
    assert life.again == UNHEARD_SECONDS
    life.tried = Trial()
    life.look()
    assert (life.condition(n.READY)[0], life.again) == ("True", None)


def test_a_spec_that_cannot_be_read_removes_nothing() -> None:
    life = Life(NAMED)
    life.look()
    life.api.edit(n.QUEUE_KIND, "research", image=5)
    life.look()
    assert life.kai == ["gpu"]
    assert life.condition(n.POD_TEMPLATE_VALID) == ("False", "InvalidSpec")
    assert life.condition(n.READY)[0] == "False"


@pytest.mark.parametrize(
    ("tried", "shown"),
    [
        (Trial(), ("True", "Valid")),
        (Trial(refusal="spec.containers[0].x: unknown"), ("False", "Refused")),
        (Trial(refusal=FULL), ("True", "Valid")),
        (Trial(refusal=FULL.replace("exceeded", "failed")), ("False", "Refused")),
        (None, ("Unknown", "NotTried")),
    ],
)
def test_the_pod_template_is_judged_by_the_api_server(tried: Trial | None, shown: tuple[str, str]) -> None:
    life = Life(tried=tried)
    life.look()
    assert life.condition(n.POD_TEMPLATE_VALID) == shown
    assert life.condition(n.READY)[0] == shown[0]


def test_the_trial_is_a_worker_of_the_queue() -> None:
    item = queue(
        {"podTemplate.spec": {"hostIPC": True}, "storage.datasets": {"enabled": True, "size": "1Gi"}}
    )
    item["metadata"]["namespace"] = "team"
    pod = trial(item, CLUSTER)
    assert pod is not None
    assert (pod["kind"], pod["metadata"]["namespace"], pod["spec"]["hostIPC"]) == ("Pod", "team", True)
    assert pod["spec"]["containers"][0]["image"] == "example.com/pytorch:2.9"
    # A pod outside of a Job has no index that it could be told.
    assert "job-completion-index" not in str(pod)
    assert trial(queue({"image": None}), CLUSTER) is None


def test_the_trial_is_as_the_pod_of_a_job_with_a_workspace() -> None:
    own = {
        "initContainers": [{"name": "prepare", "image": "busybox"}],
        "volumes": [{"name": "mine", "emptyDir": {}}],
    }
    pod = trial(
        queue({"podTemplate.spec": own, "podTemplate.metadata": {"labels": {"mine": "too"}}}), CLUSTER
    )
    assert pod is not None
    # The template's own come first: in spec.initContainers[0] the API server's answer means what its author means.
    inits, volumes = pod["spec"]["initContainers"], pod["spec"]["volumes"]
    assert [each["name"] for each in inits] == ["prepare", "workspace", "workspace-sync"]
    assert [each["name"] for each in volumes] == ["mine", "workspace"]
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
            'spec.podTemplate.spec.initContainers[1].name is "workspace", as a container',
        ),
        (
            {"spec": {"containers": [{"name": "torchrun"}, {"name": "logs"}]}},
            'spec.podTemplate.spec.containers[1].name is "logs", and a container beside the worker\'s, torchrun, goes',
        ),
        (
            {"spec": {"schedulerName": "kai-scheduler"}},
            'spec.podTemplate.spec.schedulerName is "kai-scheduler"; right would be spec.scheduling.scheduler',
        ),
        (
            {"spec": {"priorityClassName": "high"}},
            'spec.podTemplate.spec.priorityClassName is "high"; right would be spec.scheduling.priorityClassName',
        ),
        (
            {"spec": {"priority": 7}},
            "spec.podTemplate.spec.priority is 7; right would be spec.scheduling.priorityClassName",
        ),
        (
            {"metadata": {"labels": {"batch.kubernetes.io/job-name": "x"}}},
            "spec.podTemplate.metadata.labels.batch.kubernetes.io/job-name is Kubernetes' own",
        ),
        (
            {"metadata": {"labels": {n.LABEL_ATTEMPT: "7"}}},
            "spec.podTemplate.metadata.labels.torchrun.ai/attempt is the controller's own",
        ),
        (
            {"metadata": {"labels": {n.LABEL_JOB_UID: "7"}}},
            "spec.podTemplate.metadata.labels.torchrun.ai/job-uid is the controller's own",
        ),
        (
            {"metadata": {"labels": {n.LABEL_NODE: "7"}}},
            "spec.podTemplate.metadata.labels.torchrun.ai/node is the controller's own",
        ),
    ],
)
def test_what_jobs_have_from_elsewhere_is_told_by_its_field(template: dict[str, Any], told: str) -> None:
    life = Life({**NAMED, "podTemplate": template})
    life.look()
    assert life.condition(n.POD_TEMPLATE_VALID) == life.condition(n.READY) == ("False", "InvalidSpec")
    conditions = life.api.objects[n.QUEUE_KIND, "research"]["status"]["conditions"]
    message = next(each["message"] for each in conditions if each["type"] == n.POD_TEMPLATE_VALID)
    assert message.startswith(told)
    # It is told, and takes nothing away: neither the queue of KAI nor jobs that run so.
    assert life.kai == ["gpu"]
    JobLife(None, {"podTemplate": template}).run()


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
    life.look()
    assert life.condition(n.READY) == ("True", "Ready")


def test_labels_that_say_who_manages_pods_are_anybodys() -> None:
    labels = {n.LABEL_MANAGED_BY: "helm", "app.kubernetes.io/name": "training", n.LABEL_KAI_QUEUE: "gpu"}
    life = Life({"podTemplate": {"metadata": {"labels": labels}}})
    life.look()
    assert life.condition(n.READY) == ("True", "Ready")


def test_jobs_are_counted_and_nothing_is_written_twice() -> None:
    life = Life()
    life.phases = ["Running", "Provisioning", "Pending", "", "Restarting", "Suspended", "Succeeded", "Failed"]
    life.look()
    item = life.api.get(n.QUEUE_KIND, "research")
    assert item is not None
    assert item["status"]["jobs"] == {"active": 2, "pending": 3}
    decision = decide(item, [], Trial(), life.phases, KAI, life.api.now + 60)
    assert decision == type(decision)()
    assert life.api.events == ["Ready"]
