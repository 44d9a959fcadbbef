"""What a pool may cost at most where more is asked for at once, on the stack of the main job's story."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from tests.faults.place import Place, until
from tests.integration.local.conftest import Stack

pytestmark = [pytest.mark.local, pytest.mark.timeout(1200)]

CROWD = "app=crowd"
PODS = "/api/v1/namespaces/default/pods"
# So many pods more than the pool may have machines.
MORE = 2
# Karpenter looks at pods that are pending every ten seconds.
LOOK_SECONDS = 15.0


def crowd(place: Place, count: int) -> dict[str, Any]:
    """So many pods that need a machine each, as one list, so that Karpenter orders for all of them together."""
    size = place.request()["pool"]
    key, _, value = CROWD.partition("=")
    container = {
        "name": "main",
        "image": "registry.k8s.io/pause:3.10",
        "resources": {"limits": {size["resource"]: str(size["perNode"])}},
    }
    pods = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"crowd-{number}", "namespace": "default", "labels": {key: value}},
            "spec": {
                "terminationGracePeriodSeconds": 1,
                "tolerations": [{"operator": "Exists"}],
                "nodeSelector": {"karpenter.sh/nodepool": place.pool},
                "containers": [container],
            },
        }
        for number in range(count)
    ]
    return {"apiVersion": "v1", "kind": "List", "items": pods}


def test_pods_together_get_no_node_above_the_ceiling(pool_of_two: Stack) -> None:
    """Under a limit of four nodes six were bought like this: those that are ordered and not there did not count."""
    stack = pool_of_two
    place = Place(stack.home, stack.outputs)
    ceiling = stack.settings()["config"]["trainyard:pools"][0]["maxNodes"]
    ordered = {claim["metadata"]["name"] for claim in place.claims()}
    assert len(ordered) < ceiling, "no node is left to order"

    def running() -> int:
        ordered.update(claim["metadata"]["name"] for claim in place.claims())
        return sum(pod["status"].get("phase") == "Running" for pod in place.items(PODS, CROWD))

    try:
        made = stack.kubectl("create", "-f", "-", stdin=json.dumps(crowd(place, ceiling + MORE)))
        assert made.code == 0, made.output
        until(lambda: running() >= ceiling, f"pods run on {ceiling} machines")
        end = time.monotonic() + LOOK_SECONDS
        while time.monotonic() < end:
            running()
            time.sleep(0.5)
        assert (running(), len(ordered)) == (ceiling, ceiling)
    finally:
        for pod in place.items(PODS, CROWD):
            place.delete(f"{PODS}/{pod['metadata']['name']}")
        until(lambda: not place.items(PODS, CROWD), "the pods are gone")
