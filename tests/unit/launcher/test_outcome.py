"""Which ends of a training are restarted and which are not."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from launcher import observe
from launcher.manifests import stamp
from launcher.observe import Pod, Training
from launcher.outcome import JobFailure, gang, job_failure
from tests.unit.launcher.conftest import asked
from tests.unit.launcher.test_capacity import NOW, node
from trainyard.k8s import names

EVERY = ("master-0", "worker-0", "worker-1")


def worker(name: str, phase: str = "Running", uid: str = "", **changes: Any) -> Pod:
    """A worker of run r1 on a node of its own, as the API shows it."""
    meta = {
        "name": f"train-r1-{name}",
        "namespace": "training",
        "uid": uid or name,
        "labels": {"training.kubeflow.org/job-name": "train-r1"},
        **changes.pop("metadata", {}),
    }
    item = {"metadata": meta, "spec": {"nodeName": f"node-{name}"}, "status": {"phase": phase, **changes}}
    return observe.pod(item)


def ended(
    name: str,
    code: int,
    reason: str = "Error",
    at: float = 0.0,
    container: str = "pytorch",
    message: str = "",
) -> Pod:
    terminated = {"exitCode": code, "reason": reason, "finishedAt": stamp(NOW + at), "message": message}
    statuses = [{"name": container, "state": {"terminated": terminated}}]
    return worker(name, "Failed", containerStatuses=statuses)


def job(**changes: Any) -> Training:
    made = Training(uid="t", ours=True, nodes=3, outcome="", message="", created=NOW - 100)
    return dataclasses.replace(made, **changes)


def workers_except(*but: str) -> tuple[Pod, ...]:
    return tuple(worker(name) for name in EVERY if name not in but)


def judged(
    *pods: Pod,
    outcome: str = "Failed",
    message: str = "1 Worker replica(s) failed",
    before: tuple[Pod, ...] = (),
    **run: Any,
) -> JobFailure | None:
    training = job(outcome=outcome, message=message if outcome else "")
    return job_failure(asked(**run), training, pods, gang(before), NOW)


def reason_to_restart(found: JobFailure | None) -> str:
    assert found is not None
    assert found.is_retryable, found
    return found.reason


@pytest.mark.parametrize(
    ("code", "reason", "expected"),
    [
        (1, "Error", "ended with 1"),
        (137, "OOMKilled", "ended with 137 (OOMKilled: out of memory)"),
        (143, "Error", "ended with 143 (SIGTERM)"),
        (137, "Error", "ended with 137 (SIGKILL, often out of memory)"),
        (24, "Error", "ended with 24 (it was asked to stop)"),
        (25, "Error", "ended with 25 (it hung)"),
        (25, "OOMKilled", "ended with 25 (OOMKilled: out of memory)"),
        *((code, "Error", f"ended with {code}") for code in (21, 22, 23, 128)),
    ],
)
def test_job_failure_of_worker_names_node_and_code(code: int, reason: str, expected: str) -> None:
    found = judged(*workers_except("worker-0"), ended("worker-0", code, reason))
    assert reason_to_restart(found) == f"worker train-r1-worker-0 on node-worker-0 {expected}"


@pytest.mark.parametrize(
    ("code", "means"),
    [(2, ""), (20, ""), (126, " (command not executable)"), (127, " (command not found)")],
)
def test_job_failure_final_exit_code_is_not_retryable(code: int, means: str) -> None:
    found = judged(*workers_except("worker-0"), ended("worker-0", code))
    assert found == JobFailure(
        reason=f"worker train-r1-worker-0 on node-worker-0 ended with {code}{means}; a restart does not help",
        is_retryable=False,
    )
    lost = worker("worker-1", "Failed", reason="Evicted")
    found = judged(worker("master-0"), ended("worker-0", code), lost)
    assert found is not None
    assert not found.is_retryable, "the others may have been taken away by a launcher that knew that already"


def test_job_failure_names_first_and_counts_others() -> None:
    found = judged(ended("master-0", 1, at=9), ended("worker-0", 139, at=3), ended("worker-1", 1, at=12))
    assert (
        reason_to_restart(found)
        == "worker train-r1-worker-0 on node-worker-0 ended with 139 (SIGSEGV), and 2 more"
    )


def test_job_failure_consequence_comes_after_cause() -> None:
    peer = "[rank0]: RuntimeError: [gloo/transport/tcp/pair.cc:561] Connection closed by peer [10.0.0.1]:2442"
    raised = "[rank1]: Traceback (most recent call last):\n[rank1]:   File x\n[rank1]: KeyError: 'it'\n"
    summed_up = "error: training ended with exit code 1 (process 0 with 1)\n"
    found = judged(
        ended("master-0", 1, at=3, message=f"{peer}\n{summed_up}"),
        ended("worker-0", 1, at=4, message=f"{raised}{summed_up}"),
        *workers_except("worker-0", "master-0"),
    )
    assert (
        reason_to_restart(found)
        == "worker train-r1-worker-0 on node-worker-0 ended with 1: KeyError: 'it', and 1 more"
    )


def test_job_failure_waits_for_cause() -> None:
    message = "error: process 0 failed. See its log\n"
    running = workers_except("worker-0")
    assert judged(ended("worker-0", 22, at=-1, message=message), *running) is None
    assert "process 0 failed" in reason_to_restart(
        judged(ended("worker-0", 22, at=-6, message=message), *running)
    )
    cause = ended("master-0", 22, at=-1, message="error: data: x is not a directory\n")
    found = judged(ended("worker-0", 22, at=-1, message=message), cause, worker("worker-1"))
    assert reason_to_restart(found).endswith("ended with 22: error: data: x is not a directory, and 1 more")


def test_job_failure_of_init_container_is_named() -> None:
    for code in (2, 25):
        found = judged(*workers_except("worker-0"), ended("worker-0", code, container="init-pytorch"))
        expected = f"container init-pytorch of worker train-r1-worker-0 on node-worker-0 ended with {code}"
        assert reason_to_restart(found) == expected


DISRUPTED = [{"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC"}]


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        (worker("worker-0", "Failed", conditions=DISRUPTED), "was lost: DeletionByPodGC"),
        (worker("worker-0", "Failed", reason="Evicted"), "was lost: Evicted"),
        (worker("worker-0", "Failed", reason="NodeShutdown"), "was lost: NodeShutdown"),
        (worker("worker-0", metadata={"deletionTimestamp": "now"}), "is being deleted"),
        (
            worker("worker-0", metadata={"deletionTimestamp": "now"}, conditions=DISRUPTED),
            "is being deleted: DeletionByPodGC",
        ),
    ],
)
@pytest.mark.parametrize("outcome", ["", "Failed"])
def test_job_failure_disrupted_worker_comes_early(pod: Pod, expected: str, outcome: str) -> None:
    found = judged(*workers_except("worker-0"), pod, outcome=outcome)
    assert reason_to_restart(found) == f"worker train-r1-worker-0 on node-worker-0 {expected}"


def test_job_failure_disruption_comes_first() -> None:
    found = judged(ended("master-0", 1), worker("worker-0", "Failed", reason="Evicted"), ended("worker-1", 1))
    assert reason_to_restart(found).startswith(
        "worker train-r1-worker-0 on node-worker-0 was lost: Evicted; worker"
    )


def test_job_failure_names_lost_node() -> None:
    pods = (ended("master-0", 1), worker("worker-0"), worker("worker-1"))
    alive = [observe.node(node(f"node-{name}")) for name in ("master-0", "worker-1")]
    failed = job(outcome="Failed")
    found = job_failure(asked(), failed, pods, {}, NOW, tuple(alive))
    assert reason_to_restart(found) == (
        "worker train-r1-worker-0 on node-worker-0 was lost: its node is gone;"
        " worker train-r1-master-0 on node-master-0 ended with 1"
    )
    silent = observe.node(node("node-worker-0", status__conditions=[{"type": "Ready", "status": "Unknown"}]))
    found = job_failure(asked(), failed, pods, {}, NOW, (*alive, silent))
    assert reason_to_restart(found).startswith(
        "worker train-r1-worker-0 on node-worker-0 was lost: its node is not Ready;"
    )


def test_job_failure_missing_or_replaced_worker() -> None:
    before = workers_except()
    gone = judged(*workers_except("worker-1"), outcome="", before=before)
    assert reason_to_restart(gone) == "worker train-r1-worker-1 is gone"
    replacement = worker("worker-1", "Pending", uid="another")
    replaced = judged(*workers_except("worker-1"), replacement, outcome="", before=before)
    assert "replaced a pod that is gone" in reason_to_restart(replaced)
    unknown = judged(*workers_except("worker-1"))
    assert reason_to_restart(unknown) == "1 of 3 workers is gone", "a launcher that saw nothing of it before"


def test_job_failure_of_running_job_is_none() -> None:
    assert judged(*workers_except(), outcome="", before=workers_except()) is None
    starting = (worker("master-0"), worker("worker-0", "Pending"))
    assert judged(*starting, outcome="") is None, "the operator has not made all of them yet"
    finished = (worker("master-0"), worker("worker-0", "Succeeded"))
    assert judged(*finished, outcome="", before=(worker("master-0"), finished[1])) is None
    leaving = worker("worker-0", "Succeeded", metadata={"deletionTimestamp": "now"})
    assert judged(worker("master-0"), leaving, worker("worker-1"), outcome="") is None


def test_job_failure_unexplained_is_not_retryable() -> None:
    found = judged(*workers_except(), message="PyTorchJob train-r1 is failed because it is wrong")
    assert found == JobFailure(reason="PyTorchJob train-r1 is failed because it is wrong", is_retryable=False)


OUT_OF_TIME = "Job train-r1 has failed because it was active longer than specified deadline"


def test_job_failure_after_deadline_is_not_retryable() -> None:
    found = judged(message=OUT_OF_TIME, activeDeadlineSeconds=100)
    assert found == JobFailure(reason=OUT_OF_TIME, is_retryable=False)
    leaving = worker("worker-0", metadata={"deletionTimestamp": "now"})
    assert judged(leaving, outcome="", before=workers_except(), activeDeadlineSeconds=100) is None
    assert judged(leaving, outcome="", activeDeadlineSeconds=105) is None, "clocks differ a little"
    assert reason_to_restart(judged(leaving, outcome="", activeDeadlineSeconds=130))


def test_job_failure_elastic_ignores_lost_worker() -> None:
    lost = worker("worker-0", metadata={"deletionTimestamp": "now"})
    assert judged(*workers_except("worker-0"), lost, outcome="", shape=names.SHAPE_ELASTIC) is None
    assert reason_to_restart(judged(*workers_except("worker-0"), lost, shape=names.SHAPE_ELASTIC))
