"""Objects of any kind: their paths, and writes that never touch what somebody else changed meanwhile."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.launcher.api_server import FakeApi, serving
from trainyard.k8s.client import ApiError
from trainyard.k8s.objects import Objects, collection, path_of


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with serving(FakeApi()) as api:
        yield api


@pytest.mark.parametrize(
    ("version", "kind", "root", "plural"),
    [
        ("v1", "Service", "/api/v1", "services"),
        ("v1", "PersistentVolumeClaim", "/api/v1", "persistentvolumeclaims"),
        ("batch/v1", "Job", "/apis/batch/v1", "jobs"),
        ("torchrun.ai/v1alpha1", "TorchrunQueue", "/apis/torchrun.ai/v1alpha1", "torchrunqueues"),
    ],
)
def test_a_list_is_where_the_api_has_it(version: str, kind: str, root: str, plural: str) -> None:
    assert collection(version, kind, "team") == f"{root}/namespaces/team/{plural}"
    assert collection(version, kind, "") == f"{root}/{plural}"


def service(**spec: object) -> dict[str, object]:
    meta = {"name": "a", "namespace": "team"}
    return {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": spec}


def test_what_is_applied_is_there_and_others_fields_stay(api: FakeApi) -> None:
    objects = Objects(api.client(), "manager")
    path = path_of(service())
    objects.apply(service(clusterIP="None"))
    api.objects[path]["metadata"]["labels"] = {"whose": "another's"}
    objects.apply(service(clusterIP="None", publishNotReadyAddresses=True))
    there = objects.get(path)
    assert there is not None
    assert there["spec"] == {"clusterIP": "None", "publishNotReadyAddresses": True}
    assert there["metadata"]["labels"] == {"whose": "another's"}
    managers = [query["fieldManager"] for method, _, query in api.requests if method == "PATCH"]
    assert managers == ["manager", "manager"]


def test_a_status_is_put_on_what_was_read_and_on_nothing_newer(api: FakeApi) -> None:
    objects = Objects(api.client(), "manager")
    read = objects.apply(service(clusterIP="None"))
    assert objects.put_status({**read, "spec": {}, "status": {"phase": "Running"}}) is not None
    there = objects.get(path_of(read))
    assert there is not None
    assert (there["spec"], there["status"]) == ({"clusterIP": "None"}, {"phase": "Running"})
    assert objects.put_status({**read, "status": {"phase": "Failed"}}) is None
    api.remove(path_of(read))
    assert objects.put_status({**there, "status": {"phase": "Failed"}}) is None


def test_put_finalizers_replaces_those_of_any_manager(api: FakeApi) -> None:
    objects = Objects(api.client(), "manager")
    api.put(path_of(service()), service(clusterIP="None"))
    api.objects[path_of(service())]["metadata"]["finalizers"] = ["a/ours", "a/theirs"]
    read = objects.get(path_of(service()))
    assert read is not None
    assert objects.put_finalizers(read, ("a/theirs",)) is True
    now = objects.get(path_of(service()))
    assert now is not None
    assert (now["metadata"]["finalizers"], now["spec"]) == (["a/theirs"], {"clusterIP": "None"})
    assert objects.put_finalizers(read, ("a/ours",)) is False, "it is another one by now"
    api.remove(path_of(service()))
    assert objects.put_finalizers(now, ()) is False, "it is gone"
    api.put(path_of(service()), service())
    api.refused = {("PATCH", path_of(service()))}
    with pytest.raises(ApiError, match="403"):
        objects.put_finalizers(api.objects[path_of(service())], ())


def test_only_what_was_meant_is_deleted_and_made_once(api: FakeApi) -> None:
    objects = Objects(api.client(), "manager")
    assert objects.create(service(), dry_run=True)
    assert objects.get(path_of(service())) is None
    assert objects.create(service())
    assert objects.create(service()) is None
    path = path_of(service())
    uid = api.objects[path]["metadata"]["uid"]
    objects.delete(path, "another")
    assert objects.get(path) is not None
    objects.delete(path, uid, "7", foreground=True)
    objects.delete(path, uid)
    assert objects.get(path) is None
    conditions = {"uid": uid, "resourceVersion": "7"}
    assert {"preconditions": conditions, "propagationPolicy": "Foreground"} in api.deletions


def test_a_refusal_is_raised(api: FakeApi) -> None:
    api.refused = {("PATCH", path_of(service())), ("GET", path_of(service()))}
    objects = Objects(api.client(), "manager")
    with pytest.raises(ApiError, match="403"):
        objects.apply(service())
    with pytest.raises(ApiError, match="403"):
        objects.get(path_of(service()))
