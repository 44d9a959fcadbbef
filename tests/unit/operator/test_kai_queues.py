"""Queues of KAI Scheduler that others make: what was known of them is never too old to be asked again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.unit.launcher.api_server import FakeApi, serving
from tests.unit.operator.staged import JOB, KAI, NOW, QUEUE, Mortal, install_kai, stage
from trainyard.operator import names as n
from trainyard.operator.cluster_reader import ClusterReader
from trainyard.operator.reconciler import Reconciler

pytestmark = pytest.mark.unit


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with serving(FakeApi()) as api:
        stage(api)
        install_kai(api)
        yield api


def reconciler(api: FakeApi) -> Reconciler:
    """Its clock stands still: it never reads the facts again because they are old."""
    objects = Mortal(api)
    return Reconciler(objects, ClusterReader(objects, "tools@sha256:1", clock=lambda: NOW), now=lambda: NOW)


def put_queue(api: FakeApi, name: str, spec: dict[str, Any]) -> None:
    version = f"{n.KAI_GROUP}/{n.KAI_QUEUE_VERSION}"
    api.put(
        f"{KAI}/queues/{name}",
        {"apiVersion": version, "kind": "Queue", "metadata": {"name": name}, "spec": spec},
    )


def test_a_parent_that_was_made_a_moment_ago_is_seen_at_the_next_look(api: FakeApi) -> None:
    api.objects[QUEUE]["spec"] |= {"kaiQueue": "gpu", "parentKaiQueue": "org"}
    looks = reconciler(api)

    def ready() -> str:
        for _ in range(5):
            looks.queue("team", "h100")
        conditions = api.objects[QUEUE]["status"]["conditions"]
        return str(next(each["reason"] for each in conditions if each["type"] == n.KAI_QUEUE_READY))

    assert ready() == n.REASON_PARENT_QUEUE_NOT_FOUND
    put_queue(api, "org", {})
    assert ready() == "Made"


def test_a_job_that_waits_for_its_queue_begins_at_the_look_after_it_was_made(api: FakeApi) -> None:
    """Its status says so already, and what was known of the cluster is not old."""
    api.objects[QUEUE]["spec"] |= {"scheduling": {"scheduler": n.KAI_SCHEDULER}, "kaiQueue": "gpu"}
    looks = reconciler(api)
    for _ in range(2):
        looks.job("team", "vit")
    assert api.objects[JOB]["status"]["reason"] == n.REASON_KAI_QUEUE_NOT_FOUND
    put_queue(api, "gpu", {})
    for _ in range(5):
        looks.job("team", "vit")
    assert api.objects[JOB]["status"]["phase"] == n.PHASE_PROVISIONING


def test_a_limit_is_reported_as_it_is_now(api: FakeApi) -> None:
    api.objects[QUEUE]["spec"] |= {"scheduling": {"scheduler": n.KAI_SCHEDULER}, "kaiQueue": "gpu"}
    put_queue(api, "gpu", {"resources": {"gpu": {"limit": 16}}})
    looks = reconciler(api)
    looks.queue("team", "h100")  # what it knows is of now
    put_queue(api, "gpu", {"resources": {"gpu": {"limit": 8}}})
    api.objects[JOB]["spec"]["numGPUs"] = 32
    looks.job("team", "vit")
    assert api.objects[JOB]["status"]["reason"] == n.REASON_KAI_QUEUE_LIMIT
    assert "queue gpu may have 8 GPUs (" in api.objects[JOB]["status"]["message"]
