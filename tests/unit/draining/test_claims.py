"""Who mounts a volume claim, and what of it the drain ends."""

from __future__ import annotations

from typing import Any

import pytest

from components.draining.cluster_api import Cluster
from components.draining.kinds import OWNERS, PYTORCH_JOBS, TRAIN_JOBS, Kind, Scope, claims_of, top_owner
from trainyard.k8s.client import ApiError

pytestmark = pytest.mark.unit

APPS, BATCH = "/apis/apps/v1", "/apis/batch/v1"


def owner(version: str, kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "name": name, "controller": True, **more}


def item(name: str, *owners: dict[str, Any], namespace: str = "web", **metadata: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": namespace, "ownerReferences": list(owners), **metadata},
        "spec": {},
    }


def pod(name: str, claim: str, *owners: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    made = item(name, *owners, **metadata)
    made["spec"] = {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]}
    return made


def test_a_pod_mounts_named_claims_and_those_of_its_ephemeral_volumes() -> None:
    made = item("base-0")
    made["spec"]["volumes"] = [
        {"name": "config", "configMap": {"name": "c"}},
        {"name": "data", "persistentVolumeClaim": {"claimName": "data-base-0"}},
        {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {}}},
    ]
    assert claims_of(made) == {"web/data-base-0", "web/base-0-scratch"}
    assert claims_of(item("bare")) == frozenset()


@pytest.mark.parametrize(
    ("owners", "there", "found"),
    [
        ([owner("apps/v1", "ReplicaSet", "front-1")], {}, None),
        ([owner("apps/v1", "StatefulSet", "base")], {"base": []}, (OWNERS["apps", "StatefulSet"], "base")),
        (
            [owner("apps/v1", "ReplicaSet", "front-1")],
            {"front-1": [owner("apps/v1", "Deployment", "front")], "front": []},
            (OWNERS["apps", "Deployment"], "front"),
        ),
        # What an operator made is ended; the operator's own object is not of a kind that is known here.
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
def test_a_pod_goes_for_good_with_what_makes_it_first(
    owners: list[dict[str, Any]], there: dict[str, list[dict[str, Any]]], found: tuple[Kind, str] | None
) -> None:
    def get(_: Kind, name: str) -> dict[str, Any] | None:
        namespace, _, own = name.partition("/")
        assert namespace == "web"
        return item(own, *there[own]) if own in there else None

    made = top_owner(pod("p", "data", *owners), get)
    assert (made and (made[0], made[1]["metadata"]["name"])) == found


def test_owners_that_own_each_other_come_to_an_end() -> None:
    circle = item("a", owner("apps/v1", "ReplicaSet", "a"))
    made = top_owner(circle, lambda _kind, _name: circle)
    assert made is not None
    assert made[1] is circle


class Served(Cluster):
    """A cluster whose API server a test plays: objects by their path, and what was deleted with which options."""

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


def served(scope: Scope) -> Served:
    """Two pods of a Deployment, one of a Job, one of nobody, one of another claim, and one in `training`."""
    replicas = owner("apps/v1", "ReplicaSet", "front-1")
    pods = [
        pod("front-1-a", "data", replicas),
        pod("front-1-b", "data", replicas),
        pod("load-a", "data", owner("batch/v1", "Job", "load")),
        pod("shell", "data"),
        pod("other", "else"),
        pod("debug", "data", namespace="training"),
    ]
    return Served(
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


def test_what_mounts_the_claims_is_deleted_at_its_root_and_once() -> None:
    cluster = served(Scope())
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


def test_trainjobs_are_deleted_in_background_unlike_other_jobs() -> None:
    cluster = served(Scope())
    cluster.delete(TRAIN_JOBS, "train-r1")
    cluster.delete(PYTORCH_JOBS, "train-r1")
    assert [body["propagationPolicy"] for body in cluster.deleted.values()] == ["Background", "Foreground"]


def test_in_a_given_cluster_pods_of_others_are_left_alone() -> None:
    cluster = served(Scope(pools=frozenset({"small"})))
    assert cluster.end_users_of_claims(CLAIMS) == ["pods training/debug"]
    assert list(cluster.deleted) == ["/api/v1/namespaces/training/pods/debug"]


def test_pods_without_these_claims_stay() -> None:
    cluster = served(Scope())
    assert cluster.end_users_of_claims(["web/nothing"]) == []
    assert cluster.deleted == {}
