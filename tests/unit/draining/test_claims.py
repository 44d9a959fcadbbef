"""The drain finds the owners of pods that mount a volume claim, and deletes them."""

from __future__ import annotations

from typing import Any

import pytest

from components.draining.cluster_api import Cluster
from components.draining.kinds import (
    NODES,
    OWNERS,
    PYTORCH_JOBS,
    QUEUES,
    TRAIN_JOBS,
    Kind,
    Scope,
    claims_of,
    top_owner,
)
from trainyard.k8s.client import ApiError

APPS, BATCH = "/apis/apps/v1", "/apis/batch/v1"


def owner(version: str, kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "name": name, "controller": True, **more}


def item(name: str, *owners: dict[str, Any], namespace: str = "web", **metadata: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": namespace, "ownerReferences": list(owners), **metadata},
        "spec": {},
    }


def pod(name: str, claim: str, *owners: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    pod_ = item(name, *owners, **metadata)
    pod_["spec"] = {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]}
    return pod_


def test_claims_of_includes_ephemeral_volumes() -> None:
    pod_ = item("base-0")
    pod_["spec"]["volumes"] = [
        {"name": "config", "configMap": {"name": "c"}},
        {"name": "data", "persistentVolumeClaim": {"claimName": "data-base-0"}},
        {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {}}},
    ]
    assert claims_of(pod_) == {"web/data-base-0", "web/base-0-scratch"}
    assert claims_of(item("bare")) == frozenset()


@pytest.mark.parametrize(
    ("owners", "objects", "expected"),
    [
        ([owner("apps/v1", "ReplicaSet", "front-1")], {}, None),
        ([owner("apps/v1", "StatefulSet", "base")], {"base": []}, (OWNERS["apps", "StatefulSet"], "base")),
        (
            [owner("apps/v1", "ReplicaSet", "front-1")],
            {"front-1": [owner("apps/v1", "Deployment", "front")], "front": []},
            (OWNERS["apps", "Deployment"], "front"),
        ),
        # The drain does not know the operator's kind, so the StatefulSet is the top owner.
        (
            [owner("apps/v1", "StatefulSet", "base")],
            {"base": [owner("db.example/v1", "Base", "b")]},
            (OWNERS["apps", "StatefulSet"], "base"),
        ),
        ([owner("db.example/v1", "StatefulSet", "base")], {"base": []}, None),
        ([owner("apps/v1", "StatefulSet", "base", controller=False)], {"base": []}, None),
        ([], {}, None),
    ],
)
def test_top_owner_is_the_highest_known_controller(
    owners: list[dict[str, Any]], objects: dict[str, list[dict[str, Any]]], expected: tuple[Kind, str] | None
) -> None:
    def get(_: Kind, name: str) -> dict[str, Any] | None:
        namespace, _, object_name = name.partition("/")
        assert namespace == "web"
        return item(object_name, *objects[object_name]) if object_name in objects else None

    found = top_owner(pod("p", "data", *owners), get)
    assert (found and (found[0], found[1]["metadata"]["name"])) == expected


def test_top_owner_of_an_ownership_cycle_terminates() -> None:
    cycle = item("a", owner("apps/v1", "ReplicaSet", "a"))
    found = top_owner(cycle, lambda _kind, _name: cycle)
    assert found is not None
    assert found[1] is cycle


class FakeCluster(Cluster):
    """A cluster with a fake API server: objects by path, and the options of each deletion."""

    def __init__(self, objects: dict[str, Any], scope: Scope) -> None:
        super().__init__(self, "cluster", scope)
        self.objects = objects
        self.deleted: dict[str, Any] = {}

    def request(self, method: str, path: str, *, body: Any) -> Any:
        if method == "DELETE":
            self.deleted[path] = body
        elif path not in self.objects:
            raise ApiError(method, path, 404, "NotFound", "")
        return self.objects.get(path)

    def list_objects(self, path: str, _query: dict[str, str]) -> Any:
        return self.objects[path]


def fake_cluster(scope: Scope) -> FakeCluster:
    """Return a cluster with six pods.

    Two belong to a Deployment, one to a Job, and one has no owner. One mounts another claim, and one is in `training`.
    """
    replicas = owner("apps/v1", "ReplicaSet", "front-1")
    pods = [
        pod("front-1-a", "data", replicas),
        pod("front-1-b", "data", replicas),
        pod("load-a", "data", owner("batch/v1", "Job", "load")),
        pod("shell", "data"),
        pod("other", "else"),
        pod("debug", "data", namespace="training"),
    ]
    return FakeCluster(
        {
            "/api/v1/pods": pods,
            f"{APPS}/namespaces/web/replicasets/front-1": item(
                "front-1", owner("apps/v1", "Deployment", "front")
            ),
            f"{APPS}/namespaces/web/deployments/front": item("front"),
            f"{BATCH}/namespaces/web/jobs/load": item("load", deletionTimestamp="2026-01-01T00:00:00Z"),
        },
        scope,
    )


CLAIMS = ["web/data", "training/data"]


def test_users_of_claims_are_deleted_once_at_their_top_owner() -> None:
    cluster = fake_cluster(Scope())
    assert cluster.end_users_of_claims(CLAIMS) == [
        "deployments web/front",
        "pods web/shell",
        "pods training/debug",
    ]
    assert cluster.deleted == {
        f"{APPS}/namespaces/web/deployments/front": {"propagationPolicy": "Foreground"},
        "/api/v1/namespaces/web/pods/shell": {"propagationPolicy": "Foreground"},
        "/api/v1/namespaces/training/pods/debug": {"propagationPolicy": "Foreground"},
    }


@pytest.mark.parametrize(
    ("kind", "name", "path", "propagation"),
    [
        (
            TRAIN_JOBS,
            "r1",
            "/apis/trainer.kubeflow.org/v1alpha1/namespaces/training/trainjobs/r1",
            "Background",
        ),
        (PYTORCH_JOBS, "r1", "/apis/kubeflow.org/v1/namespaces/training/pytorchjobs/r1", "Foreground"),
        (QUEUES, "team/q", "/apis/torchrun.ai/v1alpha1/namespaces/team/torchrunqueues/q", "Foreground"),
        (NODES, "n1", "/api/v1/nodes/n1", "Foreground"),
    ],
)
def test_deletion_has_the_path_and_the_propagation_of_the_kind(
    kind: Kind, name: str, path: str, propagation: str
) -> None:
    cluster = fake_cluster(Scope())
    cluster.delete(kind, name)
    assert cluster.deleted == {path: {"propagationPolicy": propagation}}


def test_existing_cluster_keeps_pods_of_other_namespaces() -> None:
    cluster = fake_cluster(Scope(pools=frozenset({"small"})))
    assert cluster.end_users_of_claims(CLAIMS) == ["pods training/debug"]
    assert list(cluster.deleted) == ["/api/v1/namespaces/training/pods/debug"]


def test_pods_without_these_claims_are_kept() -> None:
    cluster = fake_cluster(Scope())
    assert cluster.end_users_of_claims(["web/nothing"]) == []
    assert cluster.deleted == {}
