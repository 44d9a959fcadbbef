"""Examples that show `make test` nothing new, and jobs that wait for a minute: `make faults` runs them.

tests/integration/local/test_torchrun_training.py trains single-node.yaml, suspend.yaml and the project.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from tests.faults.place import until
from tests.integration.local.conftest import EXAMPLES, Stack
from tests.integration.local.torchrun_person import SPACE, WAIT_SECONDS, logs_of, reaches
from trainyard.operator import names as n

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1200)]


def workers_of(stack: Stack, name: str) -> list[dict[str, Any]]:
    """The specs of a job's worker pods."""
    label = f"{n.LABEL_JOB}={name},{n.LABEL_ATTEMPT}"
    return [each["spec"] for each in stack.get("pods", *SPACE, "-l", label)["items"]]


def example_trains(stack: Stack, name: str, sizes: set[tuple[int, int]]) -> None:
    """Apply an unchanged example, and wait for its success in one of these sizes: nodes and GPUs."""
    applied = stack.kubectl("apply", *SPACE, "-f", str(EXAMPLES / f"{name}.yaml"))
    assert applied.code == 0, applied.output
    ended = reaches(stack, name, n.PHASE_SUCCEEDED)
    assert (ended["nodes"], ended["gpus"]) in sizes
    assert "deprecated" not in logs_of(stack, name)
    assert len(workers_of(stack, name)) == ended["nodes"]


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("single-node", {(1, 4)}),
        ("multi-node", {(2, 2)}),
        ("elastic", {(1, 1), (2, 2)}),  # as many as there is room for
        ("cpu-only", {(2, 0)}),
    ],
)
def test_example_trains(installed: Stack, name: str, sizes: set[tuple[int, int]]) -> None:
    example_trains(installed, name, sizes)


def test_priority_example_trains_with_what_it_overrides(installed: Stack) -> None:
    example_trains(installed, "priority", {(1, 1)})
    (worker,) = workers_of(installed, "priority")
    assert (worker["priorityClassName"], worker["priority"]) == ("urgent", 1000)
    requests = worker["containers"][0]["resources"]["requests"]
    assert requests.items() >= {"cpu": "8", "memory": "16Gi"}.items()


def test_checkpoints_outlive_their_job(installed: Stack) -> None:
    example_trains(installed, "checkpoints", {(1, 1)})
    deleted = installed.kubectl("delete", "torchrunjob", "checkpoints", *SPACE, "--timeout=60s")
    assert deleted.code == 0, deleted.output
    claim = installed.get("pvc", n.claim_name("checkpoints", "checkpoints"), *SPACE)
    assert "ownerReferences" not in claim["metadata"]
    manifest = yaml.safe_load((EXAMPLES / "checkpoints.yaml").read_text())
    manifest["spec"]["command"] = manifest["spec"]["command"].replace("--steps 100", "--steps 120")
    applied = installed.kubectl("apply", *SPACE, "-f", "-", stdin=json.dumps(manifest))
    assert applied.code == 0, applied.output
    reaches(installed, "checkpoints", n.PHASE_SUCCEEDED)
    assert "checkpoint=loaded step=100 " in logs_of(installed, "checkpoints")
    installed.kubectl("delete", "torchrunjob", "checkpoints", *SPACE, "--timeout=60s")
    installed.kubectl("delete", "pvc", n.claim_name("checkpoints", "checkpoints"), *SPACE, "--timeout=60s")


def test_elastic_job_takes_in_a_second_worker(installed: Stack) -> None:
    """In a namespace that may have one pod at first, and then two."""
    space = ("-n", "elastic-team")
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few"}}
    queue = {
        key: value for key, value in installed.get("torchrunqueue", "cpu", *SPACE).items() if key != "status"
    }
    queue["metadata"] = {"name": "cpu"}
    # One that ends is enough for the job, whose other pods Kubernetes removes then, and their logs with them.
    script = (
        "import os, time; n = os.environ['WORLD_SIZE']; print('world', n, flush=True); "
        "time.sleep(900 if n < '2' else 20)"
    )
    spec = {
        "jobQueue": "cpu",
        "numGPUs": 0,
        "elastic": {"minNodes": 1, "maxNodes": 2},
        "command": f'python -c "{script}"',
    }
    made = {"apiVersion": n.API_VERSION, "kind": n.JOB_KIND, "metadata": {"name": "grows"}, "spec": spec}
    space_itself = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": space[1]}}

    def allow(pods: int) -> None:
        manifests = [
            space_itself,
            {**quota, "metadata": {"name": "few", "namespace": space[1]}, "spec": {"hard": {"pods": pods}}},
        ]
        applied = installed.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(manifests))
        assert applied.code == 0, applied.output

    def said() -> str:
        return installed.kubectl("logs", *space, "-l", f"{n.LABEL_JOB}=grows", "--tail=-1").output

    def status() -> dict[str, Any]:
        return dict(installed.get("torchrunjob", "grows", *space).get("status") or {})

    try:
        allow(1)
        applied = installed.kubectl("apply", *space, "-f", "-", stdin=yaml.safe_dump_all([queue, made]))
        assert applied.code == 0, applied.output
        until(lambda: "world 1" in said(), "it trains with one worker", WAIT_SECONDS)
        assert status()["phase"] == n.PHASE_RUNNING
        assert "world 2" not in said()
        allow(2)
        until(lambda: said().count("world 2") == 2, "it trains with two", WAIT_SECONDS)
        until(lambda: status()["phase"] == n.PHASE_SUCCEEDED, "it ends", WAIT_SECONDS)
        assert (status()["attempt"], status()["restarts"]) == (0, 0)
    finally:
        installed.kubectl("delete", "namespace", space[1], "--timeout=120s")
