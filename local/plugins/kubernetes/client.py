"""Requests for single objects of the Kubernetes API: discovery, get, list, server-side apply, delete.

https://kubernetes.io/docs/reference/using-api/api-concepts/ and .../server-side-apply/
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from local.plugins.kubernetes.kubeconfig import Connection, connect
from local.plugins.provider import ProviderError
from trainyard.k8s import client as k8s
from trainyard.k8s.kubeconfig import NoLogin

Manifest = dict[str, Any]

RETRY = k8s.RetryPolicy(timeout=10.0)


class Unreachable(ProviderError):
    """The API server does not answer."""


class UnknownKind(ProviderError):
    """The API server does not serve this kind."""


class ApiError(ProviderError):
    """The API server returned an error. `status` is its `Status` object."""

    def __init__(self, code: int, status: Mapping[str, Any], what: str) -> None:
        self.code = code
        self.status = status
        self.reason = str(status.get("reason") or code)
        super().__init__(f"{what}: {status.get('message') or 'HTTP ' + str(code)} ({self.reason})")

    def fields(self) -> list[str]:
        """Return the paths of the fields that the server refuses."""
        causes = (self.status.get("details") or {}).get("causes") or []
        return [cause["field"] for cause in causes if cause.get("field")]


@dataclass(frozen=True)
class Kind:
    """A kind from discovery. `path` is `/api/v1` or `/apis/<group>/<version>`."""

    api_version: str
    kind: str
    plural: str
    namespaced: bool

    @property
    def path(self) -> str:
        """The path of its group and version."""
        return f"/apis/{self.api_version}" if "/" in self.api_version else f"/api/{self.api_version}"

    def url(self, namespace: str | None, name: str | None) -> str:
        """Return the path of one object, or of the list if `name` is None."""
        parts = [self.path]
        if self.namespaced and namespace:
            parts.append(f"namespaces/{quote(namespace, safe='')}")
        parts.append(self.plural)
        if name is not None:
            parts.append(quote(name, safe=""))
        return "/".join(parts)


class Client:
    """A client for one API server. Thread-safe."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._kinds: dict[str, dict[str, Kind]] = {}
        self._lock = threading.Lock()
        self._requests: k8s.Client | None = None

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Manifest | None = None,
        content_type: str = k8s.JSON,
        what: str = "",
    ) -> Manifest:
        """Return the answer as JSON.

        Raises:
            ApiError: The server returned an error.
            Unreachable: There was no answer after several tries.
            ProviderError: There are no credentials.
        """
        with self._lock:
            if self._requests is None:
                self._requests = connect(self.connection, RETRY)
        what = what or f"{method} {path}"
        try:
            return self._requests.request(method, path, query, body, content_type=content_type)
        except k8s.ApiError as error:
            status = {"reason": error.reason, "message": error.message, "details": error.details}
            raise ApiError(error.status, status, what) from error
        except NoLogin as error:
            raise ProviderError(f"{what}: {error}") from error
        except k8s.ApiUnavailable as error:
            raise Unreachable(f"{what}: {self.connection.server} does not answer: {error}") from error

    def kind(self, api_version: str, kind: str, patience: float = 0.0) -> Kind:
        """Find a kind by discovery. Try again for `patience` seconds, because its CRD may not exist yet.

        Raises:
            UnknownKind: The API server does not serve it.
        """
        deadline = time.monotonic() + patience
        while True:
            found = self._kinds.get(api_version, {}).get(kind) or self._discover(api_version).get(kind)
            if found is not None:
                return found
            if time.monotonic() >= deadline:
                raise UnknownKind(
                    f"the API server has no kind {kind} in {api_version}; is its CRD installed?"
                )
            time.sleep(0.5)

    def _discover(self, api_version: str) -> dict[str, Kind]:
        path = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
        try:
            listed = self.request("GET", path)["resources"]
        except ApiError as error:
            if error.code != 404:
                raise
            listed = []
        kinds = {
            entry["kind"]: Kind(api_version, entry["kind"], entry["name"], entry["namespaced"])
            for entry in listed
            if "/" not in entry["name"]
        }
        with self._lock:
            self._kinds[api_version] = kinds
        return kinds

    def get(self, kind: Kind, namespace: str | None, name: str) -> Manifest | None:
        """Return the object, or None if it does not exist."""
        try:
            return self.request("GET", kind.url(namespace, name), what=f"reading {kind.kind} {name}")
        except ApiError as error:
            if error.code == 404:
                return None
            raise

    def list(self, kind: Kind, namespace: str | None, selector: str = "", fields: str = "") -> list[Manifest]:
        """Return the objects of a namespace (or of all), by label and field selectors."""
        given = {"labelSelector": selector, "fieldSelector": fields}
        query = {name: value for name, value in given.items() if value}
        items: list[Manifest] = self.request("GET", kind.url(namespace, None), query=query).get("items") or []
        return items

    def apply(
        self, kind: Kind, manifest: Manifest, manager: str, *, force: bool = False, dry_run: bool = False
    ) -> Manifest:
        """Apply an object server-side. The server refuses unknown fields."""
        metadata = manifest["metadata"]
        query = {"fieldManager": manager, "fieldValidation": "Strict", "force": "true" if force else "false"}
        if dry_run:
            query["dryRun"] = "All"
        place = (
            f"{metadata['namespace']}/{metadata['name']}" if metadata.get("namespace") else metadata["name"]
        )
        return self.request(
            "PATCH",
            kind.url(metadata.get("namespace"), metadata["name"]),
            query=query,
            body=manifest,
            content_type="application/apply-patch+yaml",
            what=f"applying {kind.kind} {place}",
        )

    def delete(self, kind: Kind, namespace: str | None, name: str, propagation: str) -> bool:
        """Request the deletion. Return False if the object does not exist."""
        body = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": propagation}
        try:
            self.request("DELETE", kind.url(namespace, name), body=body, what=f"deleting {kind.kind} {name}")
        except ApiError as error:
            if error.code == 404:
                return False
            raise
        return True
