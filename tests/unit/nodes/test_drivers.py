"""CSI drivers as a cluster's objects show them: CSINodes, startup taints, and what the add-ons bring along."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

from local.nodes.api import ApiError
from local.nodes.csi import ACCOUNTS, CSI_DRIVERS, CSI_NODES, NODES, Drivers
from tests.unit.nodes.event_loop import in_event_loop

FSX_TAINT = {"key": "fsx.csi.aws.com/agent-not-ready", "effect": "NoExecute"}
GPU_TAINT = {"key": "nvidia.com/gpu", "effect": "NoSchedule"}


class FakeApi:
    """Keeps objects by path. `busy` paths answer a patch with a conflict."""

    def __init__(self) -> None:
        self.objects: dict[str, Any] = {}
        self.busy: set[str] = set()
        self.calls: list[str] = []

    async def create(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        name = f"{path}/{body['metadata']['name']}"
        self.calls.append(f"create {name}")
        if name in self.objects:
            raise ApiError("", "", 409, "AlreadyExists", name)
        self.objects[name] = copy.deepcopy(body)
        return body

    async def patch(self, path: str, body: dict[str, Any], _kind: str = "") -> dict[str, Any]:
        self.calls.append(f"patch {path}")
        if path in self.busy:
            raise ApiError("", "", 409, "Conflict", path)
        for key, part in body.items():
            self.objects.setdefault(path, {}).setdefault(key, {}).update(copy.deepcopy(part))
        return self.objects[path]

    async def delete(self, path: str) -> dict[str, Any]:
        self.calls.append(f"delete {path}")
        if self.objects.pop(path, None) is None:
            raise ApiError("", "", 404, "NotFound", path)
        return {}


def node(name: str, *taints: dict[str, str]) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": "7"},
        "spec": {"taints": list(taints)},
    }


def drivers(api: FakeApi, addons: dict[str, str], *nodes: dict[str, Any]) -> Drivers:
    instances = {n["metadata"]["name"]: {"instanceId": "i-1", "addons": addons} for n in nodes}
    found = Drivers(api, instances)  # type: ignore[arg-type]
    for each in nodes:
        found.nodes.objects["", each["metadata"]["name"]] = each
    return found


def test_drivers_without_addon_keep_the_startup_taint() -> None:
    api = FakeApi()
    asyncio.run(drivers(api, {}, node("a", FSX_TAINT)).settle())
    assert not any(call.startswith("patch") for call in api.calls)
    assert api.objects[f"{CSI_NODES}/a"]["spec"]["drivers"] == []


def test_drivers_with_addon_remove_only_its_taint() -> None:
    api = FakeApi()
    asyncio.run(drivers(api, {"aws-fsx-csi-driver": ""}, node("a", GPU_TAINT, FSX_TAINT)).settle())
    patched = api.objects[f"{NODES}/a"]
    assert patched["spec"]["taints"] == [GPU_TAINT]
    # A taint that another client adds at the same time stays, because the change names the version that was read.
    assert patched["metadata"]["resourceVersion"] == "7"


def test_drivers_conflict_is_retried_by_the_next_reconcile() -> None:
    api = FakeApi()
    api.busy.add(f"{NODES}/a")
    asyncio.run(drivers(api, {"aws-fsx-csi-driver": ""}, node("a", FSX_TAINT)).settle())


@in_event_loop
async def test_drivers_follow_the_addons_on_every_node() -> None:
    api = FakeApi()
    addons = {"aws-ebs-csi-driver": "arn:role", "vpc-cni": ""}
    found = drivers(api, addons, node("a"), node("b"))
    await found.settle()
    [entry] = api.objects[f"{CSI_NODES}/b"]["spec"]["drivers"]
    assert (entry["name"], entry["nodeID"]) == ("ebs.csi.aws.com", "i-1")
    assert entry["allocatable"]["count"] == 26
    account = api.objects[f"{ACCOUNTS}/ebs-csi-controller-sa"]
    assert account["metadata"]["annotations"] == {"eks.amazonaws.com/role-arn": "arn:role"}
    assert api.objects[f"{CSI_DRIVERS}/ebs.csi.aws.com"]["spec"]["attachRequired"] is True
    api.calls.clear()
    await found.settle()
    assert api.calls == []
    addons.clear()
    await found.settle()
    assert api.objects[f"{CSI_NODES}/b"]["spec"]["drivers"] == []
    assert f"{ACCOUNTS}/ebs-csi-controller-sa" not in api.objects


@in_event_loop
async def test_drivers_recreated_node_gets_its_own_csi_node() -> None:
    api = FakeApi()
    found = drivers(api, {"aws-fsx-csi-driver": ""}, node("a"))
    await found.settle()
    again = node("a")
    again["metadata"]["uid"] = "uid-2"
    found.nodes.objects["", "a"] = again
    await found.settle()
    [owner] = api.objects[f"{CSI_NODES}/a"]["metadata"]["ownerReferences"]
    assert owner["uid"] == "uid-2"
