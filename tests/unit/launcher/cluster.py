"""A cluster on the fake API server: what the launcher needs of one, and objects in the sizes that they have."""

from __future__ import annotations

import dataclasses
from typing import Any

from launcher.request import Request
from tests.unit.launcher.api_server import FakeApi
from tests.unit.launcher.conftest import made_for
from tests.unit.launcher.conftest import prepare as prepare
from tests.unit.launcher.test_capacity import node
from trainyard.k8s import names

Object = dict[str, Any]

PODS = "/api/v1/namespaces/training/pods"
JOBS = "/apis/kubeflow.org/v1/namespaces/training/pytorchjobs"
NODES = "/api/v1/nodes"
CLAIMS = "/apis/karpenter.sh/v1/nodeclaims"
POOLS = "/apis/karpenter.sh/v1/nodepools"
WARNINGS = "/api/v1/namespaces/default/events"
# Of no machine (RFC 5737), so that nothing is served there.
NO_ADDRESS = "192.0.2.1"
CREATED = "2026-11-01T12:00:00Z"


def pool_named(request: Request, name: str) -> Request:
    """The same run on another pool."""
    selector = {"karpenter.sh/nodepool": name}
    return dataclasses.replace(
        request, pool=dataclasses.replace(request.pool, name=name, node_selector=selector)
    )


def put_node(api: FakeApi, name: str, pool: str = "small", **changes: Any) -> Object:
    item = node(name, **changes)
    item["metadata"]["labels"]["karpenter.sh/nodepool"] = pool
    return api.put(f"{NODES}/{name}", item)


def put_claim(api: FakeApi, name: str, on: str, pool: str = "small", created: str = CREATED) -> Object:
    labels = {"karpenter.sh/nodepool": pool}
    meta = {"name": name, "labels": labels, "creationTimestamp": created}
    return api.put(f"{CLAIMS}/{name}", {"metadata": meta, "spec": made_for(), "status": {"nodeName": on}})


def put_pod(api: FakeApi, name: str, on: str, namespace: str = "default", **labels: str) -> Object:
    item = {
        "metadata": {"name": name, "namespace": namespace, "labels": labels, "annotations": {"note": "x"}},
        "spec": {"nodeName": on, "containers": [{"resources": {"requests": {"cpu": "1"}}}]},
        "status": {"phase": "Running"},
    }
    return api.put(f"/api/v1/namespaces/{namespace}/pods/{name}", item)


def put_warning(api: FakeApi, name: str, about: str) -> Object:
    item = {
        "metadata": {"name": name, "namespace": "default"},
        "type": "Warning",
        "involvedObject": {"kind": "NodeClaim", "name": about},
        "reason": "InsufficientCapacityError",
        "lastTimestamp": CREATED,
    }
    return api.put(f"{WARNINGS}/{name}", item)


def put_training(api: FakeApi, **status: Any) -> Object:
    labels = {"trainyard.dev/run": "r1", "app.kubernetes.io/managed-by": "trainyard-launcher"}
    meta = {"name": "train-r1", "namespace": "training", "labels": labels}
    return api.put(f"{JOBS}/train-r1", {"metadata": meta, "spec": {}, "status": status})


def grow(api: FakeApi, nodes: int, pods: int) -> None:
    """A cluster of this size. Its objects are as large as those of a cluster in use: 5 KB a pod, 12 KB a node."""
    images = [{"names": [f"registry.example.com/team/image-{i}@sha256:{i:064}"]} for i in range(50)]
    owned = [{"f:metadata": {f"f:field-{i}": {"f:inner": {}} for i in range(70)}}]
    variables = [{"name": f"VARIABLE_{i}", "value": "x" * 40} for i in range(40)]
    for index in range(nodes):
        item = node(f"ip-10-0-{index // 256}-{index % 256}.ec2.internal")
        item["metadata"]["managedFields"] = owned
        item["status"]["images"] = images
        api.put(f"{NODES}/{item['metadata']['name']}", item)
        put_claim(api, f"small-{index}", item["metadata"]["name"])
    names = [key.rpartition("/")[2] for key in api.objects if key.startswith(f"{NODES}/")]
    for index in range(pods):
        item = put_pod(api, f"pod-{index}", names[index % len(names)], app="daemon")
        item["metadata"]["managedFields"] = owned
        item["spec"]["containers"][0]["env"] = variables


def stored_progress(item: Object) -> str:
    """Return the text of the progress in a Lease; "" if there is none."""
    return str((item["metadata"].get("annotations") or {}).get(names.ANNOTATION_ATTEMPT) or "")
