"""A request that is right, and a cluster made of plain objects."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest

from launcher.manifests import mark
from launcher.request import Request, parse_request
from tests.unit.launcher.api_server import FakeApi, serving

PAUSE = "registry.k8s.io/pause@sha256:" + "0" * 64
TRAINER = "111122223333.dkr.ecr.us-west-2.amazonaws.com/trainer@sha256:" + "1" * 64

DOCUMENT: dict[str, Any] = {
    "runId": "r1",
    "namespace": "training",
    "pool": {
        "name": "small",
        "instanceType": "g5.12xlarge",
        "zone": "us-west-2b",
        "resource": "nvidia.com/gpu",
        "perNode": 4,
        "maxNodes": 4,
        "efaPerNode": 0,
        "nodeSelector": {"karpenter.sh/nodepool": "small"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
    },
    "minNodes": 2,
    "maxNodes": 4,
    "capacityDeadlineSeconds": 300,
    "holdSeconds": 30,
    "nodeStartSeconds": 900,
    "attempts": 1,
    "retrySeconds": 240,
    "maxRestarts": 0,
    "shape": "static",
    "activeDeadlineSeconds": None,
    "placeholder": {"image": PAUSE, "priorityClassName": "trainyard-placeholder"},
    "worker": {
        "image": TRAINER,
        "serviceAccountName": "trainer",
        "priorityClassName": "trainyard-worker",
        "processesPerNode": 4,
        "cpu": "40",
        "memory": "144Gi",
        "sharedMemory": "8Gi",
        "env": {"TRAINYARD_DEVICE": "cuda"},
        "args": ["--epochs", "3"],
        "command": None,
    },
    "fallbacks": [],
}


def made_for(run: str = "r1", namespace: str = "training") -> dict[str, Any]:
    """The `spec` of a NodeClaim that Karpenter made for placeholders of this run."""
    return {"requirements": [{"key": mark(namespace, run), "operator": "DoesNotExist"}]}


def fallback(**pool: Any) -> dict[str, Any]:
    """Another candidate: pool `large` of two machines with eight GPUs, waited for 120 s."""
    large = {
        "name": "large",
        "instanceType": "p4d.24xlarge",
        "perNode": 8,
        "maxNodes": 4,
        "nodeSelector": {"karpenter.sh/nodepool": "large"},
    }
    worker = {"processesPerNode": 8, "cpu": "80", "memory": "900Gi"}
    return {
        "pool": {**copy.deepcopy(DOCUMENT["pool"]), **large, **pool},
        "worker": {**copy.deepcopy(DOCUMENT["worker"]), **worker},
        "capacityDeadlineSeconds": 120,
    }


def asked(**changes: Any) -> Request:
    """The request of `DOCUMENT` with these top-level values changed."""
    return parse_request({"TRAINYARD_REQUEST": json.dumps({**copy.deepcopy(DOCUMENT), **changes})})


def prepare(api: FakeApi, gpus: int = 1024) -> FakeApi:
    """Add the launcher's Job, pool small with this limit, and the priority classes."""
    api.put("/apis/batch/v1/namespaces/training/jobs/launch-r1", {"metadata": {"name": "launch-r1"}})
    pool = {"metadata": {"name": "small"}, "spec": {"limits": {"nvidia.com/gpu": str(gpus)}}}
    api.put("/apis/karpenter.sh/v1/nodepools/small", pool)
    for name in ("trainyard-worker", "trainyard-placeholder"):
        api.put(f"/apis/scheduling.k8s.io/v1/priorityclasses/{name}", {"metadata": {"name": name}})
    return api


@pytest.fixture
def api() -> Iterator[FakeApi]:
    """An API server with the launcher's Job, pool small with a limit of four machines, and the priority classes."""
    with serving(prepare(FakeApi(), gpus=16)) as served:
        yield served


@pytest.fixture
def document() -> dict[str, Any]:
    """The JSON of TRAINYARD_REQUEST."""
    return copy.deepcopy(DOCUMENT)


@pytest.fixture
def request_(document: dict[str, Any]) -> Request:
    """A run r1 on 2 to 4 nodes of pool small, with 300 s to wait and 30 s to hold."""
    return parse_request({"TRAINYARD_REQUEST": json.dumps(document)})
