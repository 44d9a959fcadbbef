"""`submit` to a queue that can't make the job's sync pod: said at once, and the job waits as for a missing queue."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.unit.kubectl.conftest import Clock
from tests.unit.kubectl.plugin_api import JOBS, QUEUES, SUBMIT, Run, TorchrunApi, sent
from trainyard.kubectl import follow, upload
from trainyard.kubectl.cluster import Cluster
from trainyard.kubectl.output import UNAVAILABLE
from trainyard.operator import names as n

pytestmark = pytest.mark.unit
WAITING = "waiting for pod one-sync-0, which receives the workspace"


@pytest.fixture(autouse=True)
def _no_wait(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as a pod is waited for, no reason was seen."""
    monkeypatch.setattr(upload, "WAIT_SECONDS", 5.0)
    monkeypatch.setattr(follow, "_POLL_SECONDS", 0.01)
    monkeypatch.setattr(upload, "_NAME_SECONDS", 0.2)


@pytest.fixture
def says(api: TorchrunApi, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Gives job `one` this status when it is looked at for the third time."""
    real, looks = Cluster.job, []

    def call(**status: Any) -> None:
        def job(self: Cluster, name: str) -> dict[str, Any]:
            looks.append(name)
            if len(looks) == 3:
                generation = api.objects[f"{JOBS}/one"]["metadata"].get("generation")
                news = {"phase": n.PHASE_PENDING, "observedGeneration": generation, **status}
                api.objects[f"{JOBS}/one"]["status"] = news
            return real(self, name)

        monkeypatch.setattr(Cluster, "job", job)

    return call


@pytest.mark.parametrize(
    ("reason", "until"),
    [
        (n.REASON_QUEUE_INVALID, "the queue is valid"),
        (n.REASON_SCHEDULER_NOT_INSTALLED, "it is installed"),
        (n.REASON_CLAIM_NOT_FOUND, "the claim exists"),
        (n.REASON_STORAGE_CLASS_NOT_FOUND, "the class exists"),
        (n.REASON_KAI_QUEUE_NOT_FOUND, "KAI's queue exists"),
        (n.REASON_KAI_QUEUE_LIMIT, "the limit is higher"),
        (n.REASON_REFUSED, "the API server accepts it"),
        (n.REASON_NAME_TAKEN, "the name is free"),
    ],
)
def test_what_somebody_else_heals_keeps_the_job(
    api: TorchrunApi, run: Run, says: Any, reason: str, until: str
) -> None:
    api.queue("q")
    says(reason=reason, message="its own words")
    result, out, err = run(*SUBMIT, "x")
    assert (result, out) == (0, "torchrunjob.torchrun.ai/one created\n")
    waits, reported = err.splitlines()
    assert waits == WAITING
    assert re.fullmatch(
        rf"job one: waits: {reason}: its own words; send the workspace when {until}: "
        r"kubectl torchrun sync --kubeconfig (\S+) one; "
        r"if it should not wait: kubectl torchrun cancel --kubeconfig \1 one",
        reported,
    )
    assert sent(api, "DELETE") == []


def test_so_does_a_queue_that_goes_meanwhile(api: TorchrunApi, run: Run, says: Any) -> None:
    api.queue("q")
    absent = {"type": n.QUEUE_FOUND, "status": "False", "reason": n.REASON_QUEUE_NOT_FOUND}
    says(reason=n.REASON_QUEUE_NOT_FOUND, conditions=[absent])

    def gone(method: str, path: str) -> None:
        if (method, path) == ("GET", f"{JOBS}/one"):
            api.objects.pop(f"{QUEUES}/q", None)

    api.on_request = gone
    result, _, err = run(*SUBMIT, "x")
    assert result == 0
    assert (
        "job one: waits: queue q: is not in namespace team, which has none; send the workspace when the"
        in err
    )
    assert f"{JOBS}/one" in api.objects


def test_a_job_that_waits_is_followed(api: TorchrunApi, run: Run, says: Any) -> None:
    api.queue("q")
    says(reason=n.REASON_STORAGE_CLASS_NOT_FOUND, message="class fast is not there")

    def ends(method: str, path: str) -> None:
        if (method, path) == ("GET", f"{JOBS}/one") and sent(api, "GET").count(path) > 4:
            api.objects[f"{JOBS}/one"]["status"] = {"phase": "Failed", "exitCode": 3}

    api.on_request = ends
    result, _, err = run(*SUBMIT, "--follow", "x")
    assert result == 3
    assert "job one: waits: StorageClassNotFound: class fast is not there; send the workspace when" in err


@pytest.mark.parametrize(
    ("phase", "why", "reported"),
    [
        (n.PHASE_FAILED, "it has failed already", "job one: Failed: one node alone"),
        (n.PHASE_PENDING, "it is refused", "job one: InvalidSpec: one node alone"),
    ],
)
def test_a_job_that_is_refused_is_not_left(
    api: TorchrunApi, run: Run, says: Any, phase: str, why: str, reported: str
) -> None:
    api.queue("q")
    says(phase=phase, reason=n.REASON_INVALID_SPEC, message="one node alone")
    result, out, err = run(*SUBMIT, "x")
    assert (result, out) == (64, "")
    assert err.splitlines() == [WAITING, f"job one is deleted again: {why}", f"kubectl torchrun: {reported}"]
    assert f"{JOBS}/one" not in api.objects


def test_a_name_that_an_earlier_job_has_just_left_is_waited_for(
    api: TorchrunApi, run: Run, says: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload, "_NAME_SECONDS", 60.0)
    monkeypatch.setattr(upload, "WAIT_SECONDS", 5.0)
    api.queue("q")
    says(reason=n.REASON_NAME_TAKEN, message="its own words")
    result, _, err = run(*SUBMIT, "x")
    assert result == UNAVAILABLE
    assert "waits:" not in err
    assert sent(api, "DELETE"), "its pod has not come in time"
