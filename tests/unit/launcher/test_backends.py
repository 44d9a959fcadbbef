"""The jobs of both backends: their sizes, how they are read, and which of their ends are restarted."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from launcher import backends, observe
from launcher.backends import pytorchjob, trainjob
from launcher.backends.backend import Backend
from launcher.manifests import Owner, stamp
from launcher.observe import Pod
from launcher.outcome import JobFailure, gang, job_failure, workers
from launcher.request import Request
from tests.unit.launcher.conftest import asked
from tests.unit.launcher.test_capacity import NOW
from trainyard.k8s import names

BACKENDS = ("pytorchjob", "trainjob")
OWNER = Owner(name="launch-r1", uid="u")


@pytest.fixture(params=BACKENDS)
def request_(request: pytest.FixtureRequest) -> Request:
    """A run of each backend."""
    return asked(backend=request.param, maxRestarts=3)


@pytest.fixture
def backend(request_: Request) -> Backend:
    """The backend of the run."""
    return backends.of(request_)


def templates(request: Request, nodes: int) -> list[dict[str, Any]]:
    """The pod template of each of the job's workers."""
    if request.backend == "pytorchjob":
        replicas = pytorchjob.build(request, nodes, "")["spec"]["pytorchReplicaSpecs"].values()
        return [replica["template"] for replica in replicas for _ in range(replica["replicas"])]
    (job,) = trainjob.runtime(request, nodes, 0, OWNER)["spec"]["template"]["spec"]["replicatedJobs"]
    spec = job["template"]["spec"]
    assert spec["completions"] == spec["parallelism"]
    return [copy.deepcopy(spec["template"]) for _ in range(spec["completions"])]


def pod(request: Request, index: int, phase: str = "Running", code: int = 0, **changes: Any) -> Pod:
    """A worker of the run, which ended with this exit code if it is not 0."""
    meta = {
        "name": f"train-r1-{index}",
        "namespace": "training",
        "uid": f"u-{index}",
        "labels": {names.LABEL_JOB_NAME: "train-r1"},
        **changes.pop("metadata", {}),
    }
    status: dict[str, Any] = {"phase": phase, **changes}
    if code:
        ended = {"exitCode": code, "reason": "Error", "finishedAt": stamp(NOW)}
        container = backends.of(request).container
        status["containerStatuses"] = [{"name": container, "state": {"terminated": ended}}]
    return observe.pod({"metadata": meta, "spec": {"nodeName": f"node-{index}"}, "status": status})


def failure(
    request: Request, *pods: Pod, condition: str = "", message: str = "", nodes: int = 3
) -> JobFailure | None:
    """What the launcher makes of these workers of a job with this condition."""
    backend = backends.of(request)
    item = backend.build(request, nodes, "", 0)
    item["metadata"] |= {"uid": "t", "creationTimestamp": stamp(NOW - 100)}
    if condition:
        item["status"] = {"conditions": [{"type": condition, "status": "True", "message": message}]}
    seen = observe.Observation(now=NOW, fresh=True, pods=pods)
    mine = workers(request, seen)
    training = backend.settle(backend.parse(item, "r1"), mine)
    return job_failure(request, training, mine, gang(mine), NOW)


@pytest.mark.parametrize("nodes", [1, 3, 4])
def test_built_job_has_exactly_the_nodes(request_: Request, backend: Backend, nodes: int) -> None:
    job = backend.build(request_, nodes, "why", 2)
    read = backend.parse(job, "r1")
    assert (read.nodes, read.restart, read.ours, read.outcome, read.suspended) == (nodes, 2, True, "", False)
    assert len(templates(request_, nodes)) == nodes
    assert "ownerReferences" not in job["metadata"], "it continues without the launcher's Job"
    assert backend.parse(job, "r2").ours is False


def test_workers_of_both_backends_differ_in_names_only() -> None:
    static, other = (templates(asked(backend=each), 2)[0] for each in BACKENDS)
    assert other["metadata"]["labels"].pop(names.LABEL_JOB_NAME) == "train-r1"
    assert other["spec"].pop("restartPolicy") == "Never"
    static["spec"]["containers"][0]["name"] = other["spec"]["containers"][0]["name"] = "x"
    assert other == static


def test_trainjob_keeps_survivors_and_failed_pods() -> None:
    (job,) = trainjob.runtime(asked(), 2, 0, OWNER)["spec"]["template"]["spec"]["replicatedJobs"]
    spec = job["template"]["spec"]
    assert (spec["backoffLimitPerIndex"], spec["completionMode"]) == (0, "Indexed")
    assert "backoffLimit" not in spec
    assert "podFailurePolicy" not in spec


def test_runtime_is_deleted_with_the_launchers_job() -> None:
    runtime = trainjob.runtime(asked(), 2, 0, OWNER)
    job = trainjob.build(asked(), 2, "")
    (owner,) = runtime["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("Job", "u")
    reference = job["spec"]["runtimeRef"]
    assert (reference["kind"], reference["name"]) == (runtime["kind"], runtime["metadata"]["name"])


@pytest.mark.parametrize(
    ("code", "is_retryable", "said"),
    [(1, True, "ended with 1"), (137, True, "SIGKILL"), (2, False, "a restart does not help")],
)
def test_failed_worker_ends_the_job(request_: Request, code: int, is_retryable: bool, said: str) -> None:
    # The training operator says so at once; a TrainJob does when its other workers have ended.
    condition = "Failed" if request_.backend == "pytorchjob" else ""
    found = failure(
        request_, pod(request_, 0), pod(request_, 1, "Failed", code), pod(request_, 2), condition=condition
    )
    assert found is not None
    assert found.is_retryable is is_retryable
    assert said in found.reason
    assert "node-1" in found.reason


def test_running_workers_are_no_failure(request_: Request) -> None:
    assert failure(request_, *(pod(request_, index) for index in range(3))) is None


def test_lost_node_is_a_retryable_failure(request_: Request) -> None:
    lost = pod(
        request_,
        1,
        metadata={"deletionTimestamp": stamp(NOW)},
        conditions=[{"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}],
    )
    found = failure(request_, pod(request_, 0), lost, pod(request_, 2))
    assert found is not None
    assert found.is_retryable
    assert "DeletionByTaintManager" in found.reason


def test_job_past_its_deadline_is_not_restarted(request_: Request, backend: Backend) -> None:
    found = failure(request_, condition="Failed", message=f"{backend.deadline_message} ...")
    assert found is not None
    assert not found.is_retryable


def test_pods_of_a_suspended_trainjob_are_no_failure() -> None:
    request = asked(backend="trainjob")
    ending = pod(request, 0, "Failed", 143, metadata={"deletionTimestamp": stamp(NOW)})
    training = trainjob.parse(trainjob.build(request, 1, "") | {"status": {}}, "r1")
    assert trainjob.settle(training, (ending,)).outcome == ""


@pytest.mark.parametrize(
    ("condition", "outcome"), [("Complete", "Succeeded"), ("Failed", "Failed"), ("Suspended", "")]
)
def test_condition_of_a_trainjob_is_its_outcome(condition: str, outcome: str) -> None:
    item = trainjob.build(asked(backend="trainjob"), 2, "")
    item["spec"]["suspend"] = condition == "Suspended"
    item["status"] = {"conditions": [{"type": condition, "status": "True"}]}
    read = trainjob.parse(item, "r1")
    assert (read.outcome, read.suspended) == (outcome, condition == "Suspended")


@pytest.mark.parametrize(("seconds", "outcome"), [(-5, ""), (0, "Failed"), (5, "Failed")])
def test_condition_of_the_last_jobset_is_ignored(seconds: int, outcome: str) -> None:
    item = trainjob.build(asked(backend="trainjob"), 2, "")
    item["metadata"]["creationTimestamp"] = stamp(NOW)
    condition = {"type": "Failed", "status": "True", "lastTransitionTime": stamp(NOW + seconds)}
    item["status"] = {"conditions": [condition]}
    assert trainjob.parse(item, "r1").outcome == outcome


def test_request_without_backend_is_a_pytorchjob() -> None:
    assert backends.of(asked()) is pytorchjob.BACKEND
