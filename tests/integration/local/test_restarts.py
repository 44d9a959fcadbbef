"""A machine that is lost under a training, on the stack of the main job's story: the run goes on by itself."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from launcher.submit import read_manifest, with_range
from tests.faults.place import Place
from tests.integration.local.conftest import Stack
from tests.integration.local.test_main_job import conditions, gone_within, model

pytestmark = [pytest.mark.local, pytest.mark.timeout(1200)]

SPACE = ("-n", "training")
# A pod of a machine that is gone is forgotten a minute later.
WAIT_SECONDS = 600
# 20 seconds on two cores: long enough to be struck after its first steps.
EPOCHS = "40"


def manifest(stack: Stack, *, epochs: str = EPOCHS, **change: Any) -> dict[str, Any]:
    """The stack's manifest for a run on one or two nodes with at most two restarts. Its request is changed."""
    job = with_range(read_manifest(stack.outputs["launcherManifest"]), 1, 2)
    (container,) = job["spec"]["template"]["spec"]["containers"]
    for entry in container["env"]:
        if entry["name"] == "TRAINYARD_REQUEST":
            request = json.loads(entry["value"])
            request["worker"]["args"] = ["--epochs", epochs, "--checkpoint-every", "20"]
            entry["value"] = json.dumps({**request, "maxRestarts": 2, **change})
    return job


def poll(holds: Callable[[], object], what: str) -> None:
    """Wait for something to hold; look once a second."""

    def report() -> list[str]:
        return [] if holds() else [what]

    assert gone_within(WAIT_SECONDS, report) == []


def begin(stack: Stack, job: dict[str, Any]) -> str:
    """Start a run; its name."""
    created = stack.kubectl("create", "-f", "-", stdin=json.dumps(job))
    found = re.search(r"job\.batch/launch-(\S+) created", created.output)
    assert found, created.output
    return found[1]


def forget(stack: Stack, run_id: str) -> None:
    """End a run with all that is left of it; nothing is left to do where it went well."""
    stack.kubectl("delete", "job", f"launch-{run_id}", *SPACE, "--wait=false")
    stack.kubectl("delete", "pytorchjob", f"train-{run_id}", *SPACE, "--ignore-not-found")


@pytest.fixture
def run_id(stack: Stack) -> Iterator[str]:
    """A run that trains on two machines; whatever is left of it ends with the test."""
    run = begin(stack, manifest(stack))
    try:
        poll(
            lambda: "checkpoint=saved" in stack.logs(f"train-{run}-master-0"),
            "the first checkpoint",
        )
        yield run
    finally:
        forget(stack, run)


def lose_machine(stack: Stack, pod: str) -> str:
    """EC2 takes the machine of this pod, without a notice; the name of its node."""
    node = str(stack.get("pod", pod, *SPACE)["spec"]["nodeName"])
    instance = stack.get("node", node)["spec"]["providerID"].rpartition("/")[2]
    stack.aws("ec2").terminate_instances(InstanceIds=[instance])
    return node


def went_on_from_the_newest_checkpoint(stack: Stack, run_id: str, output: str) -> None:
    """The second attempt resumes, and the newest two checkpoints of the run stay."""
    uri = f"s3://{stack.outputs['modelBucket']}/checkpoints/{run_id}"
    loaded = re.search(rf"^checkpoint=loaded step=(\d+) position=\d+ place={uri}/step-\d+$", output, re.M)
    assert loaded, output
    ended = re.search(r"^result=succeeded .* steps=(\d+) ", output, re.M)
    assert ended, output
    assert 20 <= int(loaded[1]) < int(ended[1])
    first = re.search(r"^step=(\d+) ", output, re.M)
    assert first
    assert int(first[1]) == int(loaded[1]) // 20 * 20 + 20, "the steps before the checkpoint were done again"
    listed = stack.aws("s3").list_objects_v2(
        Bucket=stack.outputs["modelBucket"], Prefix=f"checkpoints/{run_id}/step-"
    )
    steps = sorted({int(each["Key"].split("/")[2].removeprefix("step-")) for each in listed["Contents"]})
    assert len(steps) == 2, steps
    assert steps[-1] == int(ended[1])


def metrics(stack: Stack, pod: str) -> str:
    """What Prometheus would read of this pod, at the port that the pod names."""
    found = stack.get("pod", pod, *SPACE)
    (port,) = (each for each in found["spec"]["containers"][0]["ports"] if each["name"] == "metrics")
    url = f"http://{found['status']['podIP']}:{port['containerPort']}/metrics"
    program = f"import urllib.request as r; print(r.urlopen({url!r}, timeout=10).read().decode())"
    return stack.kubectl("exec", *SPACE, pod, "--", "python", "-c", program).output


def test_lost_node_restarts_the_run_on_the_nodes_that_remain(stack: Stack, run_id: str) -> None:
    job = stack.get("pytorchjob", f"train-{run_id}", *SPACE)
    assert job["metadata"]["annotations"]["trainyard.dev/nodes"] == "2"
    assert job["metadata"]["annotations"]["trainyard.dev/restart"] == "0"
    read = metrics(stack, f"train-{run_id}-master-0")
    assert f'trainyard_trainer_processes{{run="{run_id}"}} 2.0' in read, read
    assert f'trainyard_trainer_checkpoints_total{{outcome="saved",run="{run_id}"}}' in read, read
    node = str(stack.get("pod", f"train-{run_id}-worker-0", *SPACE)["spec"]["nodeName"])

    def over() -> bool:
        launcher = stack.get("job", f"launch-{run_id}", *SPACE)
        return bool({"Complete", "Failed"} & conditions(launcher))

    # No other node can be had, so that the new decision is another one than the first.
    with Place(stack.home, stack.outputs).settings_of_pool(machines=1, idle="60s"):
        assert lose_machine(stack, f"train-{run_id}-worker-0") == node
        poll(over, "the run's end")
    log = stack.kubectl("logs", *SPACE, f"job/launch-{run_id}").output
    assert "Complete" in conditions(stack.get("job", f"launch-{run_id}", *SPACE)), log
    restarts = [line for line in log.splitlines() if "state=restarting" in line]
    assert restarts, log
    assert all("restart 1 of 2: " in line for line in restarts), restarts
    assert f"worker train-{run_id}-worker-0" in restarts[0], "the reason does not name the lost worker"
    submitted = [line for line in log.splitlines() if "state=submitting" in line]
    assert ["nodes=2/2" in submitted[0], "nodes=1/2" in submitted[-1]] == [True, True], submitted
    last = [line for line in log.splitlines() if line.startswith("launcher state=")][-1]
    assert "state=succeeded" in last
    assert "trained on 1 node (restart 1 of 2)" in last

    again = stack.get("pytorchjob", f"train-{run_id}", *SPACE)
    assert again["metadata"]["uid"] != job["metadata"]["uid"]
    noted = again["metadata"]["annotations"]
    assert (noted["trainyard.dev/nodes"], noted["trainyard.dev/restart"]) == ("1", "1")
    assert noted["trainyard.dev/reason"].startswith("restart 1 of 2: ")
    pods = stack.get("pods", *SPACE, "-l", f"trainyard.dev/run={run_id}")["items"]
    of_training = [pod for pod in pods if pod["metadata"]["labels"]["trainyard.dev/role"] == "worker"]
    assert [pod["metadata"]["name"] for pod in of_training] == [f"train-{run_id}-master-0"]
    assert of_training[0]["spec"]["nodeName"] != node
    output = stack.logs(f"train-{run_id}-master-0")
    assert re.search(r"^rank=0 world_size=1 nodes=1 .* restart=1$", output, re.M), output
    assert model(stack, run_id), "no model was saved"
    went_on_from_the_newest_checkpoint(stack, run_id, output)

    events = stack.get("events", *SPACE)["items"]
    about = [each for each in events if each["involvedObject"]["name"] == f"launch-{run_id}"]
    assert [each["reason"] for each in about].count("Restarting") == 1

    def placeholders() -> list[str]:
        held = stack.get("pods", *SPACE, "-l", "trainyard.dev/role=placeholder")["items"]
        return [pod["metadata"]["name"] for pod in held]

    assert gone_within(30, placeholders) == []
