"""The drain's requests to a cluster, with the identity that runs `destroy`. Entry point: `connect`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Final, TypeVar

from botocore.exceptions import ClientError

from trainyard.k8s import eks
from trainyard.k8s.client import ApiError, ApiUnavailable, Client, RetryPolicy
from trainyard.k8s.names import KARPENTER_NAMESPACE

from .kinds import (
    ALL_PODS,
    EVERYWHERE,
    NODES,
    VOLUMES,
    Item,
    Kind,
    Scope,
    claims_of,
    holds_a_node,
    metadata_of,
    name_of,
    top_owner,
)

T = TypeVar("T")

MERGE: Final = "application/merge-patch+json"
NOT_FOUND: Final = 404
TLS_ERROR: Final = 0
# An API server that restarts, or whose webhooks ran on deleted nodes, answers again within this time.
RETRY_SECONDS: Final = 60.0
# The chart's Deployment (aws/karpenter-provider-aws, charts/karpenter, 1.14).
CONTROLLER_PATH: Final = f"/apis/apps/v1/namespaces/{KARPENTER_NAMESPACE}/deployments/karpenter"


class DrainError(Exception):
    """Instances or objects are left. The message names them, and what to do."""


def connect(session: Any, cluster: str, scope: Scope) -> Cluster | None:
    """Connect to a cluster with the identity that runs `destroy`. Return None if EKS has no such cluster."""
    try:
        description = session.client("eks").describe_cluster(name=cluster)["cluster"]
    except ClientError as error:
        if error.response["Error"]["Code"] == "ResourceNotFoundException":
            return None
        raise
    if description["status"] in ("DELETING", "FAILED"):
        return None
    endpoint, authority = description["endpoint"], description["certificateAuthority"]["data"]
    client = eks.connect(session, cluster, endpoint, authority, RetryPolicy(timeout=RETRY_SECONDS))
    return Cluster(client, f"cluster {cluster} at {endpoint}", scope)


class Cluster:
    """The calls of the drain to a cluster. Each can raise ApiError and DrainError. `label` is for messages."""

    def __init__(self, client: Client, label: str, scope: Scope) -> None:
        self._client = client
        self._label = label
        self._scope = scope

    def names(self, kind: Kind) -> list[str]:
        """Return the names of the stack's objects of a kind; none if the cluster does not know the kind."""
        if not self._scope.asks_for(kind):
            return []
        return [name_of(kind, item) for item in self._items(kind) if self._scope.has(kind, item)]

    def delete(self, kind: Kind, name: str) -> None:
        """Delete an object and its dependents. It is no error if it does not exist."""
        self._request("DELETE", _path(kind, name), {"propagationPolicy": kind.propagation})

    def remove_finalizers(self, kind: Kind, name: str) -> None:
        """Remove the finalizers of an object whose controller can't finish it."""
        self._request("PATCH", _path(kind, name), {"metadata": {"finalizers": None}}, content_type=MERGE)

    def controller_runs(self) -> bool:
        """Return whether a pod of Karpenter's controller is available."""
        deployment = self._request("GET", CONTROLLER_PATH) or {}
        return int(deployment.get("status", {}).get("availableReplicas") or 0) > 0

    def delete_blocking_pods(self) -> list[str]:
        """Delete the pods on the stack's nodes for which Karpenter would wait. Return their names."""
        nodes = frozenset(self.names(NODES))
        holding = [pod for pod in self._items(ALL_PODS) if nodes and holds_a_node(pod, nodes)]
        blocking = [name_of(ALL_PODS, pod) for pod in holding if "deletionTimestamp" not in metadata_of(pod)]
        for name in blocking:
            # Not an eviction: disruption budgets have no purpose any more.
            self.delete(ALL_PODS, name)
        return blocking

    def forget_pods_of(self, nodes: frozenset[str]) -> list[str]:
        """Remove the pods of deleted nodes, as far as permitted. Return their names."""
        of_nodes = [pod for pod in self._items(ALL_PODS) if pod.get("spec", {}).get("nodeName") in nodes]
        removed = []
        for name in (name_of(ALL_PODS, pod) for pod in of_nodes):
            # No grace period: the kubelet does not exist any more. Without permission, garbage collection does it.
            with contextlib.suppress(ApiError, DrainError):
                self._request("DELETE", _path(ALL_PODS, name), {"gracePeriodSeconds": 0})
                removed.append(name)
        return removed

    def claims_of_volumes(self) -> list[str]:
        """Return the volume claims, `<namespace>/<name>`, whose volumes a driver created and deletes."""
        bound = [
            item["spec"].get("claimRef") for item in self._items(VOLUMES) if self._scope.has(VOLUMES, item)
        ]
        return [f"{claim['namespace']}/{claim['name']}" for claim in bound if claim]

    def end_users_of_claims(self, claims: list[str]) -> list[str]:
        """Delete the stack's pods that mount these claims, by their owners. Return what was not deleted before."""
        searched, owners = frozenset(claims), dict[tuple[Kind, str], Item]()
        for pod in self._items(ALL_PODS):
            if self._scope.has(ALL_PODS, pod) and claims_of(pod) & searched:
                kind, item = top_owner(pod, self._get) or (ALL_PODS, pod)
                owners[kind, name_of(kind, item)] = item
        fresh = [each for each, item in owners.items() if "deletionTimestamp" not in metadata_of(item)]
        for kind, name in fresh:
            # In the foreground, so that it creates no more pods, and its pods are deleted with it.
            self.delete(kind, name)
        return [f"{kind.plural} {name}" for kind, name in fresh]

    def _get(self, kind: Kind, name: str) -> dict[str, Any] | None:
        return self._request("GET", _path(kind, name))

    def _items(self, kind: Kind) -> list[dict[str, Any]]:
        query = {"labelSelector": kind.labels} if kind.labels else {}
        return self._call(lambda: self._client.list_objects(_path(kind), query)) or []

    def _request(
        self, method: str, path: str, body: dict[str, Any] | None = None, **options: Any
    ) -> dict[str, Any] | None:
        return self._call(lambda: self._client.request(method, path, body=body, **options))

    def _call(self, request: Callable[[], T]) -> T | None:
        """Make a request. Return None if there is no such object or kind.

        Raises:
            ApiError: The API server refused.
            DrainError: It does not answer, though EKS has the cluster.
        """
        try:
            return request()
        except ApiError as error:
            if error.status == NOT_FOUND:
                return None
            if error.status == TLS_ERROR:
                raise DrainError(
                    f"{self._label}: {error}. Run the destroy without a proxy between"
                ) from error
            raise
        except ApiUnavailable as error:
            raise DrainError(
                f"{self._label}: the API server does not answer, or answers with an error ({error}). Run the destroy"
                " again, from a place that reaches it"
            ) from error


def _path(kind: Kind, name: str = "") -> str:
    """Return the path of a kind's list, or of one object."""
    base = f"/apis/{kind.group}/{kind.version}" if kind.group else f"/api/{kind.version}"
    namespace, _, own = (
        name.rpartition("/") if kind.namespace == EVERYWHERE else (kind.namespace or "", "", name)
    )
    scope = f"/namespaces/{namespace}" if namespace else ""
    return f"{base}{scope}/{kind.plural}" + (f"/{own}" if own else "")
