"""Storage classes that others make: what was known of them is never too old for the claims that are made."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.launcher.api_server import FakeApi, serving
from tests.unit.operator.test_pool_reader import buy, pooled
from tests.unit.operator.test_reconcile import ATTEMPT, NOW, QUEUE, TEAM, Mortal, stage, thing
from trainyard.operator.cluster_reader import PODS_SECONDS, ClusterReader
from trainyard.operator.reconciler import Reconciler

pytestmark = pytest.mark.unit
CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
CLAIMS = f"/api/v1{TEAM}/persistentvolumeclaims"
JOBS = ATTEMPT.removesuffix("/vit-0")
DEFAULT = "storageclass.kubernetes.io/is-default-class"


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with serving(FakeApi()) as api:
        stage(api)
        api.objects[QUEUE]["spec"]["storage"] = {"workspace": {"enabled": True, "size": "1Gi"}}
        yield api


def reconciler(api: FakeApi) -> Reconciler:
    """Its clock stands still: it never reads the facts again because they are old. It has just read them."""
    objects = Mortal(api)
    looks = Reconciler(objects, ClusterReader(objects, "tools@sha256:1", clock=lambda: NOW), now=lambda: NOW)
    looks.reconcile_queue("team", "h100")
    return looks


def put_class(api: FakeApi, name: str, *, default: bool = False) -> None:
    made = {**thing("storage.k8s.io/v1", "StorageClass", name, {}), "provisioner": "fsx.csi.aws.com"}
    made["metadata"]["annotations"] = {DEFAULT: "true"} if default else {}
    api.put(f"{CLASSES}/{name}", made)


def begin(looks: Reconciler) -> None:
    for _ in range(5):
        looks.reconcile_job("team", "vit")


def reads(api: FakeApi) -> int:
    """How often the classes were read."""
    return sum(path == CLASSES for _, path, _ in api.requests)


@pytest.mark.parametrize("named", [True, False])
def test_new_storage_class_decides_on_the_claims(api: FakeApi, *, named: bool) -> None:
    if named:
        api.objects[QUEUE]["spec"]["storage"]["workspace"]["storageClass"] = "shared"
    looks = reconciler(api)
    put_class(api, "shared", default=not named)
    begin(looks)
    assert api.names(CLAIMS) == ["vit-workspace"]
    assert api.objects[f"{CLAIMS}/vit-workspace"]["spec"]["accessModes"] == ["ReadWriteMany"]
    assert api.names(JOBS) == ["vit-0"]


def test_new_storage_class_is_read_with_a_pool(api: FakeApi) -> None:
    pooled(api)
    api.objects[QUEUE]["spec"]["storage"] = {"workspace": {"enabled": True, "size": "1Gi"}}
    objects = Mortal(api)
    clock = [NOW]
    looks = Reconciler(
        objects, ClusterReader(objects, "tools@sha256:1", clock=lambda: clock[0]), now=lambda: NOW
    )
    begin(looks)
    buy(api)
    put_class(api, "shared", default=True)
    clock[0] += PODS_SECONDS + 1  # the pool is read again, the cluster not yet
    begin(looks)
    assert api.names(JOBS) == ["vit-0"]
    assert api.names(CLAIMS) == ["vit-workspace"]


def test_missing_storage_class_is_read_when_claims_are_created(
    api: FakeApi,
) -> None:
    looks = reconciler(api)
    begin(looks)
    assert api.names(CLAIMS) == ["vit-workspace", "vit-workspace-1"]
    assert reads(api) > 1
    asked = reads(api)
    begin(looks)
    assert reads(api) == asked
    # One that comes later changes nothing of what there is.
    put_class(api, "shared", default=True)
    begin(looks)
    assert api.names(CLAIMS) == ["vit-workspace", "vit-workspace-1"]
