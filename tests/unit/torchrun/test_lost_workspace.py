"""A sync pod that ends, and what is told of the workers that wait for what was in it."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.core.held import PATIENCE_SECONDS
from launcher.core.manifests import stamp
from launcher.core.torchrun import names as n
from tests.unit.torchrun.api import SCHEDULED, Crash
from tests.unit.torchrun.life import Life
from tests.unit.torchrun.made import DIGEST
from tests.unit.torchrun.pooled import Pooled

pytestmark = pytest.mark.unit
SENT = {"workspace": {"digest": DIGEST, "sizeBytes": 3}}
SYNC = ("Pod", "vit-sync-0")
EVICTED = {"phase": "Failed", "reason": "Evicted"}
FETCHING = {"name": n.FETCH_CONTAINER, "state": {"running": {}}}


def uid(life: Life) -> Any:
    return life.api.objects[SYNC]["metadata"]["uid"]


def workers_wait(life: Life) -> str:
    """The attempt's workers are in their init container, and have been for some time; the first one's name."""
    names = [each for each in life.names("Pod") if each != SYNC[1]]
    for name in names:
        pod = life.api.objects["Pod", name]
        pod["status"] = {"phase": "Pending", "initContainerStatuses": [FETCHING]}
        pod["metadata"]["creationTimestamp"] = stamp(life.api.now)
    life.look()
    if SYNC in life.api.objects:
        life.api.objects[SYNC].setdefault("status", {"conditions": [SCHEDULED]})
    assert life.again is not None
    assert 0 < life.again <= PATIENCE_SECONDS
    life.api.now += life.again
    life.look()
    return names[0]


@pytest.mark.parametrize("phase", ["Failed", "Succeeded"])
def test_a_sync_pod_that_has_ended_is_made_anew(phase: str) -> None:
    life = Life(SENT).run()
    before = uid(life)
    life.api.now += PATIENCE_SECONDS
    life.api.objects[SYNC]["status"] = {**EVICTED, "phase": phase}
    life.look()
    assert uid(life) != before
    assert (life.status["phase"], life.status["restarts"]) == ("Running", 0)


def test_a_suspended_job_keeps_what_was_sent_to_its_sync_pod() -> None:
    life = Life(SENT).run()
    before = uid(life)
    life.api.edit(n.JOB_KIND, "vit", suspend=True)
    life.look()
    assert (life.status["phase"], life.names("Job"), life.names("Pod")) == ("Suspended", [], [SYNC[1]])
    life.api.edit(n.JOB_KIND, "vit", suspend=False)
    life.run()
    assert uid(life) == before


def test_one_that_fails_at_once_is_not_made_anew_without_a_pause() -> None:
    life = Life(SENT).run()
    before = uid(life)
    life.api.objects[SYNC]["status"] = EVICTED
    life.look()
    assert uid(life) == before
    assert life.again is not None
    life.api.now += life.again
    life.look()
    assert uid(life) != before


def test_one_that_ended_between_two_attempts_is_made_anew_for_the_next() -> None:
    life = Life(SENT).run()
    before = uid(life)
    life.api.now += PATIENCE_SECONDS
    life.api.objects[SYNC]["status"] = EVICTED
    life.api.run_pods("Failed", exit_code=1, only=0)
    life.look()
    assert uid(life) != before
    assert life.names("Job") == ["vit-1"]


def test_one_that_ended_while_the_job_waits_for_nodes_is_made_anew() -> None:
    life = Pooled(SENT)
    life.look()
    before = uid(life)
    life.later(PATIENCE_SECONDS)
    life.api.objects[SYNC]["status"] = EVICTED
    life.look()
    assert life.told == ("Pending", n.REASON_WAITING_FOR_NODES)
    assert uid(life) != before


def test_a_crash_at_every_write_leaves_one_sync_pod_that_lives() -> None:
    for last in range(4):
        life = Life(SENT).run()
        life.api.now += PATIENCE_SECONDS
        life.api.objects[SYNC]["status"] = EVICTED
        life.api.crash_after(last)
        for _ in range(2):
            try:
                life.look()
            except Crash:
                life.api.settle()
        assert life.api.objects[SYNC].get("status") is None
        assert life.status["phase"] == "Running"


def test_workers_that_wait_for_a_workspace_that_was_lost_say_so() -> None:
    life = Life(SENT).run()
    life.api.now += 60
    life.api.delete(*SYNC)
    life.api.settle()
    life.api.run_pods("Failed", exit_code=1, only=0)
    life.look()
    first = workers_wait(life)
    assert life.status["message"] == (
        f"0 of 2 workers are ready, {first} waits for the workspace, which was lost with an earlier pod vit-sync-0: "
        "kubectl torchrun sync vit sends it again"
    )
    life.run()
    assert life.status["message"] == "2 of 2 workers are ready"


def test_so_they_do_while_it_is_on_its_way_out() -> None:
    life = Life(SENT).run()
    life.api.run_pods("Failed", exit_code=1, only=0)
    life.look()
    life.api.objects[SYNC]["metadata"] |= {"deletionTimestamp": stamp(life.api.now), "stuck": True}
    workers_wait(life)
    assert "lost with an earlier pod vit-sync-0" in life.status["message"]


def test_workers_that_wait_for_a_workspace_that_was_never_sent_say_so() -> None:
    life = Life(SENT)
    life.look()
    first = workers_wait(life)
    assert life.status["message"] == (
        f"0 of 2 workers are ready, {first} waits for the workspace: kubectl torchrun sync vit sends it to pod "
        "vit-sync-0"
    )


NO_IMAGE = {
    "phase": "Pending",
    "containerStatuses": [
        {"name": "sync", "image": "own/tools:1", "state": {"waiting": {"reason": "ImagePullBackOff"}}}
    ],
}


def test_a_sync_pod_that_does_not_start_is_told_and_nobody_is_asked_to_send_to_it() -> None:
    life = Life(SENT)
    life.look()
    life.api.objects[SYNC]["status"] = NO_IMAGE
    first = workers_wait(life)
    assert life.status["message"] == (
        f"0 of 2 workers are ready, {first} waits for the workspace: pod vit-sync-0, which takes it, can't get image "
        "own/tools:1: kubectl describe pod says why"
    )
    life.api.objects[SYNC]["status"] = {"phase": "Running"}
    life.look()
    assert life.status["message"].endswith(": kubectl torchrun sync vit sends it to pod vit-sync-0")


def test_so_is_one_that_came_after_the_workspace_was_lost() -> None:
    life = Life(SENT).run()
    life.api.now += 60
    life.api.run_pods("Failed", exit_code=1, only=0)
    life.look()
    workers_wait(life)
    life.api.delete(*SYNC)
    life.api.settle()
    life.look()
    life.api.objects[SYNC]["status"] = NO_IMAGE
    life.look()
    # Of a pod that is new nothing is told yet.
    assert life.status["message"].endswith(
        "an earlier pod vit-sync-0: kubectl torchrun sync vit sends it again"
    )
    assert life.again is not None
    assert 0 < life.again <= PATIENCE_SECONDS
    life.api.now += life.again
    life.look()
    assert life.status["message"].endswith(
        "waits for the workspace, which was lost with an earlier pod vit-sync-0: the new one can't get image "
        "own/tools:1: kubectl describe pod says why"
    )


def test_a_workspace_in_a_bucket_is_not_sent_to_a_pod() -> None:
    life = Life({"workspace": {**SENT["workspace"], "url": "s3://own/w/a"}})
    life.look()
    for name in life.names("Pod"):
        life.api.objects["Pod", name]["status"] = {"phase": "Pending", "initContainerStatuses": [FETCHING]}
    life.api.now += 60
    life.look()
    assert life.status["message"] == "0 of 2 workers are ready"
