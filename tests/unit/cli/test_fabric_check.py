"""The fabric check from the command line: its Job, and when it gives up."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from components.node_check import fabric_cron_spec, fabric_name_of
from local.home import BY_MAKE, STARTED
from tests.unit.components.pools import pool
from trainyard.cli.errors import CommandError
from trainyard.cli.pool_checks import (
    BUSY_SECONDS,
    PATIENCE_SECONDS,
    FabricCheck,
    exit_code,
    fabric_job,
    failed_pod,
    first_pod,
    pending_reason,
)
from trainyard.k8s import kubeconfig
from trainyard.k8s.client import ApiError, ApiUnavailable

P4D = pool(name="p4d", instance_type="p4d.24xlarge", accelerators=8, efa=4)
CRON: dict[str, Any] = {
    "metadata": {"name": fabric_name_of(P4D)},
    "spec": fabric_cron_spec(P4D, "trainer@sha256:0"),
}


def pod(index: str = "0", phase: str = "Pending", refused: str = "", **status: Any) -> dict[str, Any]:
    conditions = [{"type": "PodScheduled", "status": "False", "message": refused}] if refused else []
    return {
        "metadata": {"name": f"p{index}", "labels": {"batch.kubernetes.io/job-completion-index": index}},
        "status": {"phase": phase, "conditions": conditions, **status},
    }


def test_job_has_a_pod_per_node_that_finds_the_first() -> None:
    before = str(CRON)
    job = fabric_job(CRON, "fabric-p4d-1a2b3c", 3)
    spec = job["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 3, 3)
    (container,) = spec["template"]["spec"]["containers"]
    env = {each["name"]: each.get("value") for each in container["env"]}
    assert env["PET_NNODES"] == "3"
    # The hostname of an Indexed Job's pod is <job>-<index>; the Service gives it a domain.
    assert env["PET_MASTER_ADDR"] == "fabric-p4d-1a2b3c-0.fabric-check"
    assert str(CRON) == before


def test_first_pod_is_the_one_with_index_0() -> None:
    assert first_pod([pod("1"), pod("0")]) == pod("0")
    assert first_pod([pod("1")]) is None


def test_exit_code_is_none_until_the_container_has_ended() -> None:
    assert exit_code(pod()) is None
    assert exit_code(pod(containerStatuses=[{"state": {"running": {}}}])) is None
    assert exit_code(pod(containerStatuses=[{"state": {"terminated": {"exitCode": 1}}}])) == 1


@pytest.mark.parametrize(
    ("pods", "waited", "phrase"),
    [
        ([pod("0"), pod("1")], BUSY_SECONDS, ""),
        ([pod("0"), pod("1", refused="1 Insufficient nvidia.com/gpu")], BUSY_SECONDS - 1, ""),
        ([pod("0"), pod("1", refused="1 Insufficient nvidia.com/gpu")], BUSY_SECONDS, "1 of 2 pods have no free node"),
        ([], PATIENCE_SECONDS, "0 of 2 pods run"),
        ([pod("0", "Running"), pod("1", "Running")], PATIENCE_SECONDS, "the 2 pods are not connected"),
    ],
)  # fmt: skip
def test_waiting_ends_when_nodes_are_busy(pods: list[dict[str, Any]], waited: float, phrase: str) -> None:
    found = pending_reason(pods, 2, waited)
    assert phrase in found
    assert bool(found) == bool(phrase)


def test_failed_pod_is_one_beside_the_first() -> None:
    ended = {"containerStatuses": [{"state": {"terminated": {"exitCode": 1}}}]}
    assert failed_pod([pod("0", **ended), pod("1")]) is None
    assert failed_pod([pod("0"), pod("1", **ended)]) == pod("1", **ended)


class Api:
    """A cluster whose check has ended, and whose kubelet gives no log."""

    def request(self, method: str, _path: str, **_arguments: Any) -> dict[str, Any]:
        return CRON if method == "GET" else {"metadata": {"name": "job"}}

    def list_objects(self, _path: str, _query: dict[str, str]) -> list[dict[str, Any]]:
        status: dict[str, Any] = {"containerStatuses": [{"state": {"terminated": {"exitCode": 0}}}]}
        return [pod("0", "Succeeded", **status)]

    def read_text(self, _path: str) -> str:
        raise ApiUnavailable("502")


@pytest.mark.parametrize(
    ("pool_name", "nodes", "of_make", "of_trainyard"),
    [
        ("p4d", 0, "NODES=0 must", "--nodes 0 must"),
        ("p4d", 2, "NODES=2: pool p4d has 1 nodes", "--nodes 2: pool p4d has 1 nodes"),
        ("p5", 1, "POOL=p5: the stack has no check", "--pool p5: the stack has no check"),
    ],
)
def test_refusal_names_the_variable_as_the_user_does(
    pool_name: str, nodes: int, of_make: str, of_trainyard: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing(Api):
        def request(self, method: str, path: str, **arguments: Any) -> dict[str, Any]:
            if path.endswith("p5"):
                raise ApiError("GET", path, 404, "NotFound", path)
            return super().request(method, path, **arguments)

        def list_objects(self, path: str, query: dict[str, str] | None = None) -> list[dict[str, Any]]:
            return [] if path.endswith("cronjobs") else super().list_objects(path, query or {})

    monkeypatch.setattr(kubeconfig, "connect", lambda *_: (Refusing(), ""))
    for by_make, message in ((True, of_make), (False, of_trainyard)):
        monkeypatch.setenv(STARTED, "yes")
        monkeypatch.setenv(BY_MAKE, "1") if by_make else monkeypatch.delenv(BY_MAKE)
        with pytest.raises(CommandError, match=f"^{re.escape(message)}"):
            FabricCheck(Path("kubeconfig"), "training", print).run(pool_name, nodes)


def test_result_without_log_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubeconfig, "connect", lambda *_: (Api(), ""))
    with pytest.raises(
        CommandError, match="pool p4d: the log of pod p0, which has the result, can't be read"
    ):
        FabricCheck(Path("kubeconfig"), "training", print).run("p4d", 1)
