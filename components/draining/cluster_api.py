"""The drain's connection to a cluster: an EKS token made at run time, and the Kubernetes API over HTTPS."""

from __future__ import annotations

import base64
import contextlib
import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import urllib3
from botocore.exceptions import ClientError
from botocore.signers import RequestSigner

from components.draining.claims import claims_of, first_maker
from components.draining.kinds import (
    ALL_PODS,
    EVERYWHERE,
    NODES,
    VOLUMES,
    Kind,
    Scope,
    holds_a_node,
    metadata_of,
    name_of,
)
from components.draining.steps import DrainError
from trainyard.k8s.names import KARPENTER_NAMESPACE

# EKS takes a presigned STS call as a token, for 15 minutes; the signature itself is to last 60 seconds
# (https://github.com/kubernetes-sigs/aws-iam-authenticator, "API Authorization from Outside a Cluster").
TOKEN_PREFIX: Final = "k8s-aws-v1."  # noqa: S105 - not a password
SIGNATURE_SECONDS: Final = 60
BAD_REQUEST: Final = 400
UNAUTHORIZED: Final = 401
NOT_FOUND: Final = 404
REQUEST_TIMEOUT_SECONDS: Final = 30
# A TorchrunQueue or TorchrunJob in a list may be 10,000 levels deep, as the API server takes it
# (sigs.k8s.io/json, maxNestingDepth). By itself Python reads about 1,000.
DEEPEST: Final = 25_000
# The chart's Deployment (aws/karpenter-provider-aws, charts/karpenter, 1.14).
CONTROLLER_PATH: Final = f"/apis/apps/v1/namespaces/{KARPENTER_NAMESPACE}/deployments/karpenter"


class ApiError(Exception):
    """The API server refused a request; which one, and how."""


def connect(session: Any, cluster: str, scope: Scope) -> Cluster | None:
    """Connect to a cluster as the identity that runs the destroy; None where EKS has no such cluster any more."""
    try:
        description = session.client("eks").describe_cluster(name=cluster)["cluster"]
    except ClientError as error:
        if error.response["Error"]["Code"] == "ResourceNotFoundException":
            return None
        raise
    if description["status"] in ("DELETING", "FAILED"):
        return None
    return Cluster(session, cluster, description, scope)


def token(session: Any, cluster: str) -> str:
    """A token for a cluster: a presigned GetCallerIdentity that is bound to the cluster's name."""
    client = session.client("sts")
    signer = RequestSigner(
        client.meta.service_model.service_id,
        session.region_name,
        "sts",
        "v4",
        session.get_credentials(),
        session.events,
    )
    request = {
        "method": "GET",
        "url": f"{client.meta.endpoint_url}/?Action=GetCallerIdentity&Version=2011-06-15",
        "body": {},
        "headers": {"x-k8s-aws-id": cluster},
        "context": {},
    }
    url = signer.generate_presigned_url(
        request, region_name=session.region_name, expires_in=SIGNATURE_SECONDS, operation_name=""
    )
    return TOKEN_PREFIX + base64.urlsafe_b64encode(url.encode()).decode().rstrip("=")


class Cluster:
    """A `ClusterApi`."""

    def __init__(self, session: Any, cluster: str, description: dict[str, Any], scope: Scope) -> None:
        sys.setrecursionlimit(max(sys.getrecursionlimit(), DEEPEST))
        self._session = session
        self._cluster = cluster
        self._scope = scope
        self._directory = tempfile.TemporaryDirectory(prefix="trainyard-drain-")
        authority = Path(self._directory.name) / "ca.crt"
        authority.write_bytes(base64.b64decode(description["certificateAuthority"]["data"]))
        self._endpoint = description["endpoint"]
        self._http = urllib3.PoolManager(
            ca_certs=str(authority), timeout=REQUEST_TIMEOUT_SECONDS, retries=urllib3.Retry(3, redirect=False)
        )
        self._token = token(session, cluster)

    def names(self, kind: Kind) -> list[str]:
        if not self._scope.asks_for(kind):
            return []
        return [name_of(kind, item) for item in self._items(kind) if self._scope.has(kind, item)]

    def delete(self, kind: Kind, name: str) -> None:
        self._call("DELETE", _path(kind, name), {"propagationPolicy": "Foreground"})

    def remove_finalizers(self, kind: Kind, name: str) -> None:
        change = {"metadata": {"finalizers": None}}
        self._call("PATCH", _path(kind, name), {}, change, "application/merge-patch+json")

    def controller_runs(self) -> bool:
        deployment = self._call("GET", CONTROLLER_PATH, {}) or {}
        return int(deployment.get("status", {}).get("availableReplicas") or 0) > 0

    def delete_pods_that_hold_machines(self) -> list[str]:
        nodes = frozenset(self.names(NODES))
        holding = [pod for pod in self._items(ALL_PODS) if nodes and holds_a_node(pod, nodes)]
        found = [name_of(ALL_PODS, pod) for pod in holding if "deletionTimestamp" not in metadata_of(pod)]
        for name in found:
            # Not an eviction: a disruption budget has nothing left to guard.
            self.delete(ALL_PODS, name)
        return found

    def forget_pods_of(self, nodes: frozenset[str]) -> list[str]:
        of_nodes = [pod for pod in self._items(ALL_PODS) if pod.get("spec", {}).get("nodeName") in nodes]
        removed = []
        for name in (name_of(ALL_PODS, pod) for pod in of_nodes):
            # No grace: it would be a wait for a kubelet that is gone. Who may not do this waits for the collector.
            with contextlib.suppress(ApiError):
                self._call("DELETE", _path(ALL_PODS, name), {"gracePeriodSeconds": 0})
                removed.append(name)
        return removed

    def claims_of_volumes(self) -> list[str]:
        bound = [
            item["spec"].get("claimRef") for item in self._items(VOLUMES) if self._scope.has(VOLUMES, item)
        ]
        return [f"{claim['namespace']}/{claim['name']}" for claim in bound if claim]

    def end_users_of_claims(self, claims: list[str]) -> list[str]:
        wanted, found = frozenset(claims), dict[tuple[Kind, str], Mapping[str, Any]]()
        for pod in self._items(ALL_PODS):
            if self._scope.has(ALL_PODS, pod) and claims_of(pod) & wanted:
                kind, item = first_maker(pod, self._get) or (ALL_PODS, pod)
                found[kind, name_of(kind, item)] = item
        fresh = [each for each, item in found.items() if "deletionTimestamp" not in metadata_of(item)]
        for kind, name in fresh:
            # In the foreground, so that it makes no pod anew, and its pods go with it.
            self.delete(kind, name)
        return [f"{kind.plural} {name}" for kind, name in fresh]

    def _get(self, kind: Kind, name: str) -> dict[str, Any] | None:
        item: dict[str, Any] | None = self._call("GET", _path(kind, name), {})
        return item

    def _items(self, kind: Kind) -> list[dict[str, Any]]:
        answer = self._call("GET", _path(kind), {"labelSelector": kind.labels} if kind.labels else {})
        items: list[dict[str, Any]] = (answer or {}).get("items") or []
        return items

    def _call(
        self, method: str, path: str, query: dict[str, Any], body: Any = None, content: str = ""
    ) -> Any:
        """One request; a token that has run out is renewed once. None where there is no such thing.

        Raises:
            ApiError: the API server refused.
            DrainError: it can't be reached, though EKS has the cluster.
        """
        url = f"{self._endpoint}{path}" + (f"?{urlencode(query)}" if query else "")
        payload = None if body is None else json.dumps(body).encode()
        for attempt in range(2):
            headers = {
                "Accept": "application/json",
                "Content-Type": content or "application/json",
                "Authorization": f"Bearer {self._token}",
            }
            try:
                answer = self._http.request(method, url, body=payload, headers=headers)
            except urllib3.exceptions.HTTPError as error:
                raise DrainError(
                    f"the API server of cluster {self._cluster} at {self._endpoint} can't be reached from here"
                    f" ({error}); run the destroy from a place that reaches it"
                ) from error
            if answer.status == UNAUTHORIZED and attempt == 0:
                self._token = token(self._session, self._cluster)
                continue
            if answer.status == NOT_FOUND:
                return None
            if answer.status >= BAD_REQUEST:
                raise ApiError(f"{method} {path}: {answer.status} {answer.reason}")
            return json.loads(answer.data)
        return None


def _path(kind: Kind, name: str = "") -> str:
    """The path of a kind's list, or of one object."""
    base = f"/apis/{kind.group}/{kind.version}" if kind.group else f"/api/{kind.version}"
    namespace, _, own = (
        name.rpartition("/") if kind.namespace == EVERYWHERE else (kind.namespace or "", "", name)
    )
    scope = f"/namespaces/{namespace}" if namespace else ""
    return f"{base}{scope}/{kind.plural}" + (f"/{own}" if own else "")
