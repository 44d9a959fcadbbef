"""Workers that have ended in pods that go on, as a webhook put a container beside theirs."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.manifests import stamp
from tests.unit.operator.life import Life
from trainyard.operator.diagnostics import SIDECAR_GRACE_SECONDS

pytestmark = pytest.mark.unit
RUNS = {"running": {}}


def ended_beside(others: dict[str, Any], workers: int = 1) -> Life:
    """The first workers of a job that runs end well, and these containers of their pods are in these states."""
    life = Life().run()
    for name in life.names("Pod")[:workers]:
        state = {"terminated": {"exitCode": 0, "finishedAt": stamp(life.api.now), "message": ""}}
        beside = [{"name": name, "state": state} for name, state in others.items()]
        pod = life.api.objects["Pod", name]
        pod["status"] = {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "False"}],
            "containerStatuses": [*beside[:1], {"name": "torchrun", "state": state}, *beside[1:]],
        }
    life.reconcile()
    assert life.status["message"] == f"{2 - workers} of 2 workers are ready"
    assert life.requeue_after is not None
    assert 0 < life.requeue_after <= SIDECAR_GRACE_SECONDS
    return life


def later(life: Life) -> str:
    life.api.now += SIDECAR_GRACE_SECONDS
    life.reconcile()
    assert life.reconcile() == 0
    return str(life.status["message"]).replace(life.names("Pod")[0], "FIRST")


def test_a_container_that_goes_on_is_named_with_the_workers_end() -> None:
    life = ended_beside({"istio-proxy": RUNS})
    assert later(life) == (
        "1 of 2 workers are ready, FIRST does not end: its container torchrun ended with exit code 0, and its "
        "container istio-proxy still runs. Make it one of initContainers with restartPolicy: Always, so that it "
        "ends with the worker"
    )
    assert life.status["phase"] == "Running"
    life.api.run_pods("Succeeded", exit_code=0)
    life.reconcile()
    assert life.status["phase"] == "Succeeded"


def test_so_are_several_of_several_workers() -> None:
    reported = later(
        ended_beside({"istio-proxy": RUNS, "gone": {"terminated": {}}, "vault": {"waiting": {}}}, 2)
    )
    assert (
        "ended with exit code 0, and its containers istio-proxy and vault still run, and so do those of 1 more"
        in reported
    )


def test_one_that_ends_with_the_worker_is_nothing_to_tell() -> None:
    """The pod is over in a moment."""
    life = Life().run()
    pod = life.api.objects["Pod", life.names("Pod")[0]]
    ended = {"terminated": {"exitCode": 0, "finishedAt": stamp(life.api.now)}}
    pod["status"]["containerStatuses"] = [{"name": each, "state": ended} for each in ("torchrun", "logs")]
    life.api.now += SIDECAR_GRACE_SECONDS
    life.reconcile()
    assert life.status["message"] == "2 of 2 workers are ready"


def test_containers_beside_a_worker_that_runs_are_nothing_to_tell() -> None:
    life = Life().run()
    pod = life.api.objects["Pod", life.names("Pod")[0]]
    pod["status"]["containerStatuses"] = [
        {"name": "torchrun", "state": RUNS},
        {"name": "logs", "state": RUNS},
    ]
    life.api.now += SIDECAR_GRACE_SECONDS
    life.reconcile()
    assert life.status["message"] == "2 of 2 workers are ready"
