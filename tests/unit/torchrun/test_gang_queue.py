"""Gangs that KAI Scheduler would never start: no pods are made for them, and the job says why."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from launcher.core.torchrun import kai
from launcher.core.torchrun import names as n
from launcher.core.torchrun.decision import UNHEARD_SECONDS
from launcher.core.torchrun.kai import KaiQueue
from launcher.core.torchrun.storage import Cluster
from tests.unit.torchrun.life import Life
from tests.unit.torchrun.made import CLUSTER
from tests.unit.torchrun.pooled import Pooled

pytestmark = pytest.mark.unit
BY_KAI = {"scheduling.scheduler": n.KAI_SCHEDULER}
IN_TEAM = {**BY_KAI, "kaiQueue": "team"}


def cluster(**queues: KaiQueue) -> Cluster:
    return replace(CLUSTER, kai=True, kai_queues=queues)


def test_a_job_above_its_queues_limit_waits_without_pods_until_that_is_raised() -> None:
    life = Life({}, IN_TEAM, cluster=cluster(team=KaiQueue(most_gpus=15)))
    life.look()
    assert (life.status["phase"], life.status["reason"]) == ("Pending", "KaiQueueLimit")
    assert life.status["message"] == (
        "the job asks for 16 GPUs, and KAI Scheduler's queue team may have 15 (spec.resources.gpu.limit); the job "
        "begins when it may have more, or the job asks for fewer"
    )
    assert (life.names("Job"), life.names("PodGroup"), life.again) == ([], [], UNHEARD_SECONDS)
    life.cluster = cluster(team=KaiQueue(most_gpus=16))
    life.run()


def test_no_machines_are_held_for_it() -> None:
    life = Pooled({"numGPUs": 16}, IN_TEAM, cluster=cluster(team=KaiQueue(most_gpus=0)))
    life.turn(2)
    assert life.told == ("Pending", "KaiQueueLimit")
    assert (life.names("Pod"), life.api.claims) == ([], {})


def test_the_limit_of_a_queue_above_counts_and_the_tightest_is_named() -> None:
    tree = {"team": KaiQueue(parent="org", most_gpus=32), "org": KaiQueue(parent="top", most_gpus=8)}
    life = Life({}, IN_TEAM, cluster=cluster(**tree, top=KaiQueue()))
    life.look()
    assert "KAI Scheduler's queue org may have 8 (" in life.status["message"]


def test_an_elastic_job_asks_for_what_it_begins_with() -> None:
    elastic = {"elastic": {"minNodes": 1, "maxNodes": 2}}
    life = Life(elastic, IN_TEAM, cluster=cluster(team=KaiQueue(most_gpus=8)))
    life.run()
    life = Life(elastic, IN_TEAM, cluster=cluster(team=KaiQueue(most_gpus=7)))
    life.look()
    assert life.status["message"].startswith(
        "the job asks for at least 8 GPUs, and KAI Scheduler's queue team"
    )


def test_without_a_name_it_is_kais_default_queue() -> None:
    life = Life({}, BY_KAI, cluster=cluster(**{n.KAI_DEFAULT_QUEUE: KaiQueue(most_gpus=1)}))
    life.look()
    assert life.status["reason"] == "KaiQueueLimit"


def test_jobs_that_kai_does_not_schedule_have_no_limit() -> None:
    Life({}, {"kaiQueue": "team"}, cluster=cluster(team=KaiQueue(most_gpus=1))).run()


def test_what_runs_is_not_ended_by_a_limit_that_came_later() -> None:
    life = Life({}, IN_TEAM, cluster=cluster(team=KaiQueue())).run()
    life.cluster = cluster(team=KaiQueue(most_gpus=1))
    life.look()
    assert life.status["phase"] == "Running"


def test_a_queue_below_one_that_is_not_there_starts_nothing() -> None:
    life = Life({}, IN_TEAM, cluster=cluster(team=KaiQueue(parent="org")))
    life.look()
    assert (life.status["phase"], life.status["reason"]) == ("Pending", "KaiQueueNotFound")
    assert life.status["message"] == (
        "KAI Scheduler has no queue org, which is above team; the job begins when it is there"
    )
    life.cluster = cluster(team=KaiQueue(parent="org"), org=KaiQueue())
    life.run()


@pytest.mark.parametrize(
    ("spec", "most"),
    [
        ({"resources": {"gpu": {"limit": 4}}}, 4),
        ({"resources": {"gpu": {"limit": 0.5}}}, 0.5),
        ({"resources": {"gpu": {"limit": 0}}}, 0),
        ({"resources": {"gpu": {"limit": -1}}}, None),
        ({"resources": {"gpu": {"quota": 4}}}, None),
        ({"resources": {"cpu": {"limit": 4}}}, None),
        ({"resources": {"gpu": {"limit": True}}}, None),
        ({"resources": None}, None),
        (None, None),
    ],
)
def test_only_a_limit_that_is_said_is_one(spec: Any, most: float | None) -> None:
    assert kai.read({"spec": spec}) == KaiQueue(most_gpus=most)


def test_queues_in_a_circle_come_to_an_end() -> None:
    circle = {"a": KaiQueue(parent="b", most_gpus=3), "b": KaiQueue(parent="a", most_gpus=2)}
    assert (kai.missing(circle, "a"), kai.tightest(circle, "a")) == ("", ("b", 2))
