"""EC2 interrupts a Spot instance of a run: its worker gets the notice in time, and the run continues from there."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from tests.faults.place import until
from tests.integration.local.conftest import Stack
from tests.integration.local.test_restarts import SPACE, begin, forget, manifest, poll

pytestmark = [pytest.mark.local, pytest.mark.timeout(1200)]

# EC2 gives two minutes; some seconds of them pass until Karpenter knows.
NOTICE_SECONDS = 120.0
# Far longer than the test.
EPOCHS = "5000"


@dataclass
class Trained:
    """A run on two Spot nodes that has saved its first checkpoint. The output of its workers goes into these files."""

    run_id: str
    master: Path
    worker: Path


@pytest.fixture
def run(pool_of_two: Stack) -> Iterator[Trained]:
    stack = pool_of_two
    # The second node may have to be bought.
    run_id = begin(stack, manifest(stack, epochs=EPOCHS, holdSeconds=40))
    pods = [f"train-{run_id}-{name}" for name in ("master-0", "worker-0")]

    def said(pod: str) -> str:
        return stack.logs(pod)

    try:
        poll(lambda: "checkpoint=saved" in said(pods[0]), "the first checkpoint")
        with ExitStack() as open_files:
            followed = [open_files.enter_context(stack.following(pod, *SPACE)) for pod in pods]
            yield Trained(run_id, *followed)
    finally:
        forget(stack, run_id)
        stack.kubectl(
            "wait", *SPACE, "pods", "--for=delete", "-l", f"trainyard.dev/run={run_id}", "--timeout=120s"
        )


def take_back(stack: Stack, pod: str) -> str:
    """Announce the interruption of this pod's instance. Return the instance's id."""
    node = stack.get("pod", pod, *SPACE)["spec"]["nodeName"]
    instance = str(stack.get("node", node)["spec"]["providerID"].rpartition("/")[2])
    url = f"{stack.cloud['awsEndpoint']}/_trainyard/interruptions"
    body = json.dumps({"instanceId": instance}).encode()
    with urlopen(Request(url, body, stack.emulator_headers, method="POST"), timeout=10) as answer:  # noqa: S310  (our own)
        assert answer.status == 200
    return instance


def is_running(stack: Stack, instance: str) -> bool:
    found = stack.aws("ec2").describe_instances(InstanceIds=[instance])["Reservations"][0]["Instances"][0]
    return bool(found["State"]["Name"] == "running")


def test_spot_notice_stops_the_run_with_a_checkpoint_in_time(stack: Stack, run: Trained) -> None:
    pool = stack.get("nodepool", "small")["spec"]["template"]["spec"]
    assert {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot"]} in pool["requirements"]
    instance = take_back(stack, f"train-{run.run_id}-worker-0")
    notified = time.monotonic()
    until(lambda: "result=stopped" in run.master.read_text(), "the training stops", NOTICE_SECONDS)
    stopped = re.search(r"^result=stopped reason=(.+) steps=(\d+) ", run.master.read_text(), re.M)
    assert stopped, run.master.read_text()
    assert is_running(stack, instance), "the machine was gone before its worker had stopped"
    until(lambda: not is_running(stack, instance), "the machine is given back", NOTICE_SECONDS)
    assert time.monotonic() - notified < NOTICE_SECONDS, "EC2 ended the machine, and not Karpenter"

    def restart_log() -> str:
        output = stack.logs(f"train-{run.run_id}-master-0")
        return output if "restart=1" in output else ""

    poll(lambda: "checkpoint=loaded" in restart_log(), "the run goes on")
    loaded = re.search(r"^checkpoint=loaded step=(\d+) ", restart_log(), re.M)
    assert loaded, restart_log()
    assert int(loaded[1]) == int(stopped[2]), "steps that were trained before the stop are done again"
