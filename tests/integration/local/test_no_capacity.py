"""A run for which EC2 has no node, on the stack of the main job's story."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

from tests.faults.place import Place
from tests.integration.local.conftest import Stack

pytestmark = [pytest.mark.local, pytest.mark.timeout(1200)]

DEADLINE_SECONDS = 20


def test_run_below_its_minimum_at_the_deadline_fails(stack: Stack) -> None:
    """The stack's manifest goes to `kubectl create -f -` as it stands; nothing is submitted, and nothing is left."""

    def change(config: dict[str, Any]) -> None:
        config["trainyard:pools"][0].update(warmNodes=0, purchase="on-demand")
        config["trainyard:training"].update(minNodes=2, maxNodes=2, capacityDeadlineSeconds=DEADLINE_SECONDS)

    stack.update(change)
    place = Place(stack.home, stack.outputs)
    place.without_machines()
    before = {job["metadata"]["name"] for job in stack.get("pytorchjobs", "-n", "training")["items"]}
    stack.faults([{"code": "InsufficientInstanceCapacity", "instanceType": "g5.*"}])
    try:
        manifest = stack.engine.outputs()["launcherManifest"]
        started = time.monotonic()
        created = stack.kubectl("create", "-f", "-", stdin=manifest)
        name = re.search(r"job.batch/(\S+) created", created.output)[1]
        wait = stack.kubectl(
            "wait", f"job/{name}", "-n", "training", "--for=condition=Failed", "--timeout=200s"
        )
        assert wait.code == 0
        assert time.monotonic() - started < DEADLINE_SECONDS + 30
        log = stack.kubectl("logs", "-n", "training", f"job/{name}").output
        last = [line for line in log.splitlines() if "state=failed" in line][-1]
        assert "InsufficientInstanceCapacity" in last or "insufficient capacity" in last.lower()
        jobs = {job["metadata"]["name"] for job in stack.get("pytorchjobs", "-n", "training")["items"]}
        assert jobs == before
        assert stack.get("nodeclaims")["items"] == []
    finally:
        stack.faults([])
        # It would remember the refusal for three minutes, in which the next test got no node.
        place.fresh_karpenter()
