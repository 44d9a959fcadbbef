"""The life of a TorchrunQueue, decision by decision, on a small API server."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.operator.api import Crash
from tests.unit.operator.made import CLUSTER, queue
from tests.unit.operator.queue_life import KAI, NAMED, Life
from trainyard.operator import names as n
from trainyard.operator.observe import KaiQueue
from trainyard.operator.plan import POLL_SECONDS
from trainyard.operator.queue import reconcile_queue

pytestmark = pytest.mark.unit


def test_kais_queue_is_made_behind_a_finalizer_and_goes_with_its_own() -> None:
    life = Life(NAMED)
    life.reconcile()
    assert life.kai == ["gpu"]
    order = life.api.written
    assert order.index(f"put finalizers {n.QUEUE_FINALIZER}") < order.index("create Queue gpu")
    assert life.finalizers == [n.QUEUE_FINALIZER]
    assert life.condition(n.KAI_QUEUE_READY) == ("True", "Made")
    assert life.condition(n.READY)[0] == "True"
    assert life.requeue_after is None
    life.api.delete(n.QUEUE_KIND, "research")
    life.api.settle()
    assert (n.QUEUE_KIND, "research") in life.api.objects
    life.reconcile()
    life.reconcile()
    assert life.api.objects == {}


def test_what_becomes_of_kais_queue_is_looked_for_where_nothing_is_heard_of_it() -> None:
    """KAI's kinds may have just come, and the watch of them may not stand yet."""
    item = queue(NAMED)
    item["metadata"] |= {"namespace": "team", "uid": "u1", "generation": 1, "finalizers": [n.QUEUE_FINALIZER]}
    made = reconcile_queue(item, [], "", [], KAI, 0.0)
    assert ([each["kind"] for each in made.creations], made.requeue_after) == (["Queue"], POLL_SECONDS)
    theirs = {
        **made.creations[0],
        "metadata": {**made.creations[0]["metadata"], "uid": "u2", "deletionTimestamp": "x"},
    }
    assert reconcile_queue(item, [theirs], "", [], KAI, 0.0).requeue_after == POLL_SECONDS
    item["metadata"]["deletionTimestamp"] = "x"
    theirs["metadata"].pop("deletionTimestamp")
    gone = reconcile_queue(item, [theirs], "", [], KAI, 0.0)
    assert (len(gone.deletions), gone.requeue_after) == (1, POLL_SECONDS)


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
                    life.reconcile()
                except Crash:
                    life.api.settle()
        assert life.api.objects == {}


@pytest.mark.parametrize("changes", [NAMED, None], ids=["with a queue of KAI", "without"])
def test_a_finalizer_that_came_with_the_queue_is_taken_away_and_anothers_stays(
    changes: dict[str, Any] | None,
) -> None:
    life = Life(changes)
    life.api.objects[n.QUEUE_KIND, "research"]["metadata"]["finalizers"] = [n.QUEUE_FINALIZER, "a/theirs"]
    life.reconcile()
    assert (n.QUEUE_FINALIZER in life.finalizers) is (changes is not None)
    life.api.delete(n.QUEUE_KIND, "research")
    for _ in range(2):
        life.reconcile()
    assert (life.kai, life.finalizers) == ([], ["a/theirs"])


def test_anothers_finalizer_stays_beside_its_own() -> None:
    life = Life(NAMED)
    life.api.objects[n.QUEUE_KIND, "research"]["metadata"]["finalizers"] = ["a/theirs"]
    life.reconcile()
    assert life.finalizers == ["a/theirs", n.QUEUE_FINALIZER]


def test_without_a_kai_queue_there_is_no_finalizer() -> None:
    life = Life()
    life.reconcile()
    assert (life.kai, life.finalizers) == ([], [])
    assert life.condition(n.KAI_QUEUE_READY) == ("True", "NotAsked")
    life.api.delete(n.QUEUE_KIND, "research")
    life.api.settle()
    assert life.api.objects == {}


def test_kai_that_is_not_installed_is_reported() -> None:
    life = Life(NAMED)
    life.cluster = CLUSTER
    life.reconcile()
    assert life.condition(n.KAI_QUEUE_READY) == ("False", "SchedulerNotInstalled")
    assert life.condition(n.READY) == ("False", "SchedulerNotInstalled")
    life.cluster = KAI
    life.reconcile()
    assert life.condition(n.READY)[0] == "True"
    # And one that was uninstalled keeps no queue from being deleted.
    life.cluster = CLUSTER
    life.api.delete(n.QUEUE_KIND, "research")
    life.reconcile()
    assert (n.QUEUE_KIND, "research") not in life.api.objects


def test_a_queue_of_kai_that_is_somebody_elses_is_used_and_never_removed() -> None:
    life = Life(NAMED)
    theirs = {"apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "metadata": {"name": "gpu"}, "spec": {}}
    life.api.create(theirs)
    life.reconcile()
    assert life.condition(n.KAI_QUEUE_READY) == ("True", "Found")
    assert life.finalizers == []
    assert life.api.objects["Queue", "gpu"]["spec"] == {}
    life.api.delete(n.QUEUE_KIND, "research")
    life.reconcile()
    assert life.kai == ["gpu"]


def test_another_name_moves_it_and_another_parent_changes_it() -> None:
    life = Life(NAMED)
    life.reconcile()
    life.api.edit(n.QUEUE_KIND, "research", parentKaiQueue="org")
    life.api.objects["Queue", "gpu"]["spec"]["resources"]["gpu"]["quota"] = 8
    life.reconcile()
    assert life.api.objects["Queue", "gpu"]["spec"]["parentQueue"] == "org"
    assert life.api.objects["Queue", "gpu"]["spec"]["resources"]["gpu"]["quota"] == 8
    life.api.edit(n.QUEUE_KIND, "research", kaiQueue="other")
    life.reconcile()
    assert life.kai == ["other"]
    life.api.edit(n.QUEUE_KIND, "research", kaiQueue=None)
    life.reconcile()
    assert (life.kai, life.finalizers) == ([], [])


def test_a_parent_that_is_not_there_is_reported_and_looked_for_again() -> None:
    life = Life({**NAMED, "parentKaiQueue": "other"})
    life.reconcile()
    assert life.api.objects["Queue", "gpu"]["spec"]["parentQueue"] == "other"
    assert life.condition(n.KAI_QUEUE_READY) == ("False", "ParentQueueNotFound")
    assert life.condition(n.READY) == ("False", "ParentQueueNotFound")
    assert life.requeue_after == POLL_SECONDS
    conditions = life.api.objects[n.QUEUE_KIND, "research"]["status"]["conditions"]
    message = next(each["message"] for each in conditions if each["type"] == n.READY)
    assert message.startswith("gpu is below other, and KAI Scheduler has no queue of that name")
    # One further up is as needed.
    life.cluster = replace(KAI, kai_queues={"other": KaiQueue(parent="top")})
    life.reconcile()
    assert life.condition(n.READY) == ("False", "ParentQueueNotFound")
    life.cluster = replace(KAI, kai_queues={"other": KaiQueue(parent="top"), "top": KaiQueue()})
    life.reconcile()
    assert (life.condition(n.READY), life.requeue_after) == (("True", "Ready"), None)


def test_a_queue_of_kai_stays_for_the_gangs_in_it() -> None:
    life = Life(NAMED)
    life.reconcile()
    gang = {"kind": "PodGroup", "metadata": {"name": "vit-0", "namespace": "team"}, "spec": {"queue": "gpu"}}
    life.others = [gang]
    life.api.edit(n.QUEUE_KIND, "research", kaiQueue="other")
    life.reconcile()
    assert (life.kai, life.requeue_after) == (["gpu", "other"], POLL_SECONDS)
    assert life.condition(n.READY) == ("True", "Ready")
    life.api.delete(n.QUEUE_KIND, "research")
    life.reconcile()
    assert life.kai == ["gpu", "other"], "one goes with the last"
    assert life.condition(n.READY) == ("False", "Deleting")
    life.others = []
    life.reconcile()
    assert life.kai == []
    assert (n.QUEUE_KIND, "research") not in life.api.objects


def test_a_queue_of_kai_stays_for_the_queues_below_it_whoevers_they_are() -> None:
    life = Life(NAMED)
    life.reconcile()
    below = [
        {"kind": "Queue", "metadata": {"name": f"team-{each}"}, "spec": {"parentQueue": "gpu"}}
        for each in "dabc"
    ]
    life.others = [*below, {"kind": "Queue", "metadata": {"name": "gpu"}, "spec": {"parentQueue": "gpu"}}]
    life.api.edit(n.QUEUE_KIND, "research", kaiQueue="other")
    life.reconcile()
    assert (life.kai, life.requeue_after) == (["gpu", "other"], POLL_SECONDS)
    life.api.delete(n.QUEUE_KIND, "research")
    life.reconcile()
    assert life.kai == ["gpu", "other"]
    conditions = life.api.objects[n.QUEUE_KIND, "research"]["status"]["conditions"]
    message = next(each["message"] for each in conditions if each["type"] == n.READY)
    left = "Queue team-a, Queue team-b, Queue team-c and 1 more"
    assert message == f"is deleted when nothing is left in KAI's queue gpu: {left}"
    life.others = life.others[4:]
    life.reconcile()
    assert life.api.objects == {}


def test_of_its_own_queues_of_kai_the_lower_one_goes_first() -> None:
    life = Life(NAMED)
    life.reconcile()
    life.api.edit(n.QUEUE_KIND, "research", kaiQueue="low", parentKaiQueue="gpu")
    for _ in range(2):
        life.others = life.api.list("Queue")
        life.reconcile()
    assert life.kai == ["gpu", "low"]
    life.api.delete(n.QUEUE_KIND, "research")
    life.reconcile()
    life.others = life.api.list("Queue")
    life.reconcile()
    assert life.api.objects == {}
    assert [each for each in life.api.written if each.startswith("delete")] == [
        "delete Queue low",
        "delete Queue gpu",
    ]


def test_what_the_api_server_refuses_is_tried_again() -> None:
    life = Life(tried="no PriorityClass with name train was found")
    life.reconcile()
    assert life.requeue_after == POLL_SECONDS
    life.tried = ""
    life.reconcile()
    assert (life.condition(n.READY)[0], life.requeue_after) == ("True", None)


def test_a_spec_that_cannot_be_read_removes_nothing() -> None:
    life = Life(NAMED)
    life.reconcile()
    life.api.edit(n.QUEUE_KIND, "research", image=5)
    life.reconcile()
    assert life.kai == ["gpu"]
    assert life.condition(n.POD_TEMPLATE_VALID) == ("False", "InvalidSpec")
    assert life.condition(n.READY)[0] == "False"


def test_jobs_are_counted_and_nothing_is_written_twice() -> None:
    life = Life()
    life.phases = ["Running", "Provisioning", "Pending", "", "Restarting", "Suspended", "Succeeded", "Failed"]
    life.reconcile()
    item = life.api.get(n.QUEUE_KIND, "research")
    assert item is not None
    assert item["status"]["jobs"] == {"active": 2, "pending": 3}
    decision = reconcile_queue(item, [], "", life.phases, KAI, life.api.now + 60)
    assert decision == type(decision)()
    assert life.api.events == ["Ready"]
