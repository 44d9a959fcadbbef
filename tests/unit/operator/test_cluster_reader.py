"""New storage classes: claims are never created from an older read of the cluster."""

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
WORKSPACE = {"workspace": {"enabled": True, "size": "1Gi"}}


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with serving(FakeApi()) as api:
        stage(api)
        api.objects[QUEUE]["spec"]["storage"] = {"workspace": dict(WORKSPACE["workspace"])}
        yield api


class Operator:
    """A reconciler that has read the cluster. Its clock stands still, so that no read is too old."""

    def __init__(self, api: FakeApi) -> None:
        self.clock = NOW
        objects = Mortal(api)
        reader = ClusterReader(objects, "tools@sha256:1", clock=lambda: self.clock)
        self.reconciler = Reconciler(objects, reader, now=lambda: NOW)
        self.reconciler.reconcile_queue("team", "h100")

    def reconcile(self) -> None:
        for _ in range(5):
            self.reconciler.reconcile_job("team", "vit")


def put_class(api: FakeApi, *, default: bool = False) -> None:
    made = {**thing("storage.k8s.io/v1", "StorageClass", "shared", {}), "provisioner": "fsx.csi.aws.com"}
    made["metadata"]["annotations"] = {DEFAULT: "true"} if default else {}
    api.put(f"{CLASSES}/shared", made)


@pytest.mark.parametrize("named", [True, False])
def test_new_storage_class_decides_on_the_claims(api: FakeApi, *, named: bool) -> None:
    if named:
        api.objects[QUEUE]["spec"]["storage"]["workspace"]["storageClass"] = "shared"
    operator = Operator(api)
    put_class(api, default=not named)
    operator.reconcile()
    assert (api.names(CLAIMS), api.names(JOBS)) == (["vit-workspace"], ["vit-0"])
    assert api.objects[f"{CLAIMS}/vit-workspace"]["spec"]["accessModes"] == ["ReadWriteMany"]


def test_new_storage_class_is_read_with_a_pool(api: FakeApi) -> None:
    pooled(api)
    api.objects[QUEUE]["spec"]["storage"] = WORKSPACE
    operator = Operator(api)
    operator.reconcile()
    buy(api)
    put_class(api, default=True)
    operator.clock += PODS_SECONDS + 1  # the pool is read again, the cluster not yet
    operator.reconcile()
    assert (api.names(CLAIMS), api.names(JOBS)) == (["vit-workspace"], ["vit-0"])


def test_missing_storage_class_is_read_until_claims_exist(api: FakeApi) -> None:
    def reads() -> int:
        return sum(path == CLASSES for _, path, _ in api.requests)

    operator = Operator(api)
    operator.reconcile()
    before = reads()
    assert before > 1
    for _ in range(2):  # a later class does not change existing claims
        assert api.names(CLAIMS) == ["vit-workspace", "vit-workspace-1"]
        operator.reconcile()
        assert reads() == before
        put_class(api, default=True)
