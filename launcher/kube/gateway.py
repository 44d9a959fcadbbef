"""Everything that the launcher asks of a cluster, as one protocol and its real form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from launcher.core import contract as c
from launcher.core import observe
from launcher.core.manifests import Owner
from launcher.core.observe import Observation
from launcher.core.request import Request
from launcher.kube.rest import ApiError, JsonObject, Rest

_NOT_FOUND = 404
_CONFLICT = 409
# An answer that the API server may give from its cache, which costs the store nothing.
_CACHED = {"resourceVersion": "0"}
_ACTIVE_PODS = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}


class Gateway(Protocol):
    """The cluster as the launcher needs it. Every method may raise ApiError and ApiUnavailable."""

    def owner(self, request: Request, job: str) -> Owner:
        """The launcher's own Job."""

    def lacking(self, request: Request) -> list[str]:
        """What the request needs of the cluster and is not there: priority classes, the training operator."""

    def observe(self, request: Request, *, fresh: bool) -> Observation:
        """The cluster now. Once there is a PyTorchJob, only that and the run's own pods."""

    def create_pod(self, request: Request, manifest: JsonObject) -> None:
        """Makes this pod, unless one of its name exists."""

    def create_training(self, request: Request, manifest: JsonObject) -> bool:
        """Makes this PyTorchJob; False if one of its name exists."""

    def delete_pod(self, request: Request, name: str, uid: str) -> None:
        """Deletes exactly this pod, if it still exists."""

    def give_back(self, claim: str, uid: str) -> None:
        """Deletes exactly this NodeClaim, if it still exists."""

    def record(self, request: Request, event: JsonObject) -> None:
        """Makes this Event."""

    def lease(self, request: Request) -> JsonObject | None:
        """The run's Lease, if there is one."""

    def create_lease(self, request: Request, manifest: JsonObject) -> JsonObject | None:
        """Makes the run's Lease; None if there is one already."""

    def update_lease(self, request: Request, manifest: JsonObject) -> JsonObject | None:
        """Puts this in place of the Lease of the same resourceVersion; None if there is a newer one, or none."""


class KubernetesGateway:
    """A cluster behind a real API server."""

    def __init__(self, rest: Rest, wall_clock: Callable[[], float]) -> None:
        self._rest = rest
        self._now = wall_clock

    def owner(self, request: Request, job: str) -> Owner:
        found = self._rest.request("GET", f"/apis/batch/v1/namespaces/{request.namespace}/jobs/{job}")
        return Owner(name=job, uid=found["metadata"]["uid"])

    def lacking(self, request: Request) -> list[str]:
        path = "/apis/scheduling.k8s.io/v1/priorityclasses"
        names = (request.worker.priority_class, request.placeholder.priority_class)
        found = [f"PriorityClass {name}" for name in names if self._get(f"{path}/{name}") is None]
        jobs = self._training_path(request).rpartition("/")[0]
        if self._get(jobs, {"limit": "1"}) is None:
            found.append("training operator (resource pytorchjobs of kubeflow.org/v1)")
        return found

    def observe(self, request: Request, *, fresh: bool) -> Observation:
        pods = f"/api/v1/namespaces/{request.namespace}/pods"
        # Read from the store, always: whether the training exists decides on everything else.
        training = self._get(self._training_path(request))
        own = self._list(pods, {"labelSelector": f"{c.LABEL_RUN}={request.run_id}"}, fresh)
        if training is not None:
            return Observation(
                now=self._now(),
                fresh=fresh,
                pods=tuple(observe.pod(item) for item in own),
                training=observe.training(training, request.run_id),
            )
        selector = ",".join(f"{key}={value}" for key, value in sorted(request.pool.node_selector.items()))
        of_pool = {"labelSelector": f"{c.LABEL_NODEPOOL}={request.pool.name}"}
        pool = self._get(f"/apis/karpenter.sh/v1/nodepools/{request.pool.name}")
        claims = self._list("/apis/karpenter.sh/v1/nodeclaims", of_pool, fresh)
        warnings = self._list(
            f"/api/v1/namespaces/{c.CLUSTER_EVENTS_NAMESPACE}/events",
            {"fieldSelector": "type=Warning,involvedObject.kind=NodeClaim"},
            fresh=False,
        )
        # Nodes after pods: a pod that has left its node by then makes the count too low, never too high.
        active = self._list("/api/v1/pods", _ACTIVE_PODS, fresh)
        nodes = self._list("/api/v1/nodes", {"labelSelector": selector}, fresh)
        by_uid = {item["metadata"]["uid"]: item for item in (*active, *own)}
        now = self._now()
        return Observation(
            now=now,
            fresh=fresh,
            nodes=tuple(observe.node(item) for item in nodes),
            claims=tuple(observe.claim(item, now) for item in claims),
            pool=None if pool is None else observe.node_pool(pool),
            pods=tuple(observe.pod(item) for item in by_uid.values()),
            warnings=tuple(observe.warned(item) for item in warnings),
        )

    def create_pod(self, request: Request, manifest: JsonObject) -> None:
        self._create(f"/api/v1/namespaces/{request.namespace}/pods", manifest)

    def create_training(self, request: Request, manifest: JsonObject) -> bool:
        return self._create(self._training_path(request).rpartition("/")[0], manifest)

    def delete_pod(self, request: Request, name: str, uid: str) -> None:
        self._delete(f"/api/v1/namespaces/{request.namespace}/pods/{name}", uid)

    def give_back(self, claim: str, uid: str) -> None:
        self._delete(f"/apis/karpenter.sh/v1/nodeclaims/{claim}", uid)

    def record(self, request: Request, event: JsonObject) -> None:
        self._create(f"/api/v1/namespaces/{request.namespace}/events", event)

    def lease(self, request: Request) -> JsonObject | None:
        return self._get(f"{_leases(request)}/{request.lease}")

    def create_lease(self, request: Request, manifest: JsonObject) -> JsonObject | None:
        try:
            return self._rest.request("POST", _leases(request), body=manifest)
        except ApiError as error:
            if error.status == _CONFLICT and error.reason == "AlreadyExists":
                return None
            raise

    def update_lease(self, request: Request, manifest: JsonObject) -> JsonObject | None:
        try:
            return self._rest.request("PUT", f"{_leases(request)}/{request.lease}", body=manifest)
        except ApiError as error:
            if error.status in (_NOT_FOUND, _CONFLICT):
                return None
            raise

    def create_job(self, manifest: JsonObject) -> str:
        """Makes this Job and returns its name; with `generateName` the API chooses it."""
        namespace = manifest["metadata"]["namespace"]
        made = self._rest.request(
            "POST", f"/apis/batch/v1/namespaces/{namespace}/jobs", body=manifest, repeatable=False
        )
        return str(made["metadata"]["name"])

    def _training_path(self, request: Request) -> str:
        return f"/apis/kubeflow.org/v1/namespaces/{request.namespace}/pytorchjobs/{request.training_job}"

    def _get(self, path: str, query: dict[str, str] | None = None) -> JsonObject | None:
        try:
            return self._rest.request("GET", path, query)
        except ApiError as error:
            if error.status == _NOT_FOUND:
                return None
            raise

    def _list(self, path: str, query: dict[str, str], fresh: bool) -> list[dict[str, Any]]:
        answer = self._rest.request("GET", path, {**query, **({} if fresh else _CACHED)})
        items: list[dict[str, Any]] = answer.get("items") or []
        return items

    def _delete(self, path: str, uid: str) -> None:
        body: JsonObject = {"preconditions": {"uid": uid}}
        try:
            self._rest.request("DELETE", path, body=body)
        except ApiError as error:
            # Gone already, or another of its name by now: both are what was asked for.
            if error.status not in (_NOT_FOUND, _CONFLICT):
                raise

    def _create(self, path: str, manifest: JsonObject) -> bool:
        try:
            self._rest.request("POST", path, body=manifest)
        except ApiError as error:
            if error.status == _CONFLICT and error.reason == "AlreadyExists":
                return False
            raise
        return True


def _leases(request: Request) -> str:
    return f"/apis/coordination.k8s.io/v1/namespaces/{request.namespace}/leases"
