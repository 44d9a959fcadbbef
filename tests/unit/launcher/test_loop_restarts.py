"""Whole runs over HTTP that lose their training job: the requests, their order, and the reports."""

from __future__ import annotations

from typing import Any

from launcher.progress import loads
from tests.unit.launcher import cluster
from tests.unit.launcher.api_server import FakeApi
from tests.unit.launcher.cluster import stored_progress
from tests.unit.launcher.conftest import asked
from tests.unit.launcher.test_gateway import states
from tests.unit.launcher.test_lease import LEASE
from tests.unit.launcher.test_loop import EVENTS, hurried
from trainyard.k8s import names

JOB = f"{cluster.JOBS}/train-r1"
BEGAN = 1_800_000_000.0


def put_worker(api: FakeApi, index: int, phase: str, **status: Any) -> None:
    labels = {"trainyard.dev/run": "r1", "training.kubeflow.org/job-name": "train-r1"}
    meta = {"name": f"train-r1-worker-{index}", "namespace": "training", "labels": labels}
    spec = {"nodeName": "abcd"[index], "containers": [{"resources": {"requests": {"nvidia.com/gpu": "4"}}}]}
    item = {"metadata": meta, "spec": spec, "status": {"phase": phase, **status}}
    api.put(f"{cluster.PODS}/train-r1-worker-{index}", item)


def put_outcome(api: FakeApi, outcome: str) -> None:
    status = {"conditions": [{"type": outcome, "status": "True", "message": "a message"}]}
    api.put(JOB, {**api.objects[JOB], "status": status})


def lose(api: FakeApi) -> None:
    """One worker's node is gone and the others fail; no garbage collector of pods runs here."""
    api.remove(f"{cluster.NODES}/a")
    put_worker(api, 0, "Running")
    for index in (1, 2, 3):
        put_worker(api, index, "Running")
    put_outcome(api, "Failed")


def restarts(api: FakeApi) -> str:
    labels = api.objects[JOB]["metadata"]["annotations"]
    return str(labels[names.ANNOTATION_RESTART])


def test_run_lost_worker_deletes_job_and_resubmits(api: FakeApi) -> None:
    for name in "abcd":
        cluster.put_node(api, name)
    asked_for: list[tuple[str, str]] = []
    noted: list[int] = []

    def on_request(method: str, path: str) -> None:
        if method in ("POST", "DELETE") and "/events" not in path:
            asked_for.append((method, path))
        if (method, path) == ("DELETE", JOB):
            noted.append(loads(stored_progress(api.objects[LEASE]), 1).restarts)

    api.on_request = on_request

    def go(now: float) -> None:
        if JOB not in api.objects or api.objects[JOB].get("status"):
            return
        if restarts(api) == "0" and now > BEGAN + 20:
            lose(api)
        elif restarts(api) == "1":
            put_outcome(api, "Succeeded")

    runner, said = hurried(api, asked(maxRestarts=1), go)
    assert runner.run() == names.EXIT_SUCCEEDED
    assert states(said) == ["submitting", "following", "restarting", "holding", "succeeded"]
    reason = "restart 1 of 1: worker train-r1-worker-0 on a was lost: its node is gone"
    assert any("state=restarting" in line and reason in line for line in said)
    assert said[-1].split("reason=")[1].startswith('"trained on 3 nodes (restart 1 of 1); ')
    job = [method for method, path in asked_for if path in (JOB, cluster.JOBS)]
    assert job == ["POST", "DELETE", "POST"]
    assert noted == [1], "the restart is counted before anything is deleted"
    between = [(method, path) for method, path in asked_for][asked_for.index(("DELETE", JOB)) :]
    gone = {path.rpartition("/")[2] for method, path in between if (method, path) != ("DELETE", JOB)}
    assert {f"train-r1-worker-{index}" for index in range(4)} <= gone
    events = [event["reason"] for path, event in api.objects.items() if path.startswith(EVENTS)]
    assert events.count("Restarting") == 1
    submitting = [
        event["message"]
        for path, event in api.objects.items()
        if path.startswith(EVENTS) and event["reason"] == "Submitting"
    ]
    assert any(
        "restart 1 of 1: 3 nodes are ready, and no more came within 30 s" in message for message in submitting
    )
    worker = api.objects[JOB]["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    values = {each["name"]: each["value"] for each in worker["env"]}
    assert (values["TRAINYARD_RESTART"], values["PET_RDZV_ID"]) == ("1", "r1-1")
    assert api.objects[JOB]["metadata"]["annotations"][names.ANNOTATION_REASON].startswith("restart 1 of 1: ")
