"""A small HTTP client for the Kubernetes API: discovery, get, list, server-side apply, delete.

https://kubernetes.io/docs/reference/using-api/api-concepts/ and .../server-side-apply/
"""

from __future__ import annotations

import json
import ssl
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

import urllib3

from local.plugins.kubernetes.kubeconfig import Connection, Token, client_certificate
from local.plugins.provider import ProviderError

Manifest = dict[str, Any]

_ATTEMPTS = 5
_CONNECT_SECONDS = 5.0
_READ_SECONDS = 60.0
_POOL = 32


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
        self._token = Token(connection.user)
        self._kinds: dict[str, dict[str, Kind]] = {}
        self._lock = threading.Lock()
        self._pool = urllib3.PoolManager(
            maxsize=_POOL,
            retries=False,
            timeout=urllib3.Timeout(connect=_CONNECT_SECONDS, read=_READ_SECONDS),
            ssl_context=_tls(connection) if connection.server.startswith("https:") else None,
        )

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
        what: str = "",
    ) -> Manifest:
        """Return the answer as JSON.

        Raises:
            ApiError: The server returned an error.
            Unreachable: There was no answer after several tries.
        """
        url = self.connection.server + path + (f"?{urlencode(query)}" if query else "")
        data = None if body is None else json.dumps(body).encode()
        what = what or f"{method} {path}"
        for attempt in range(_ATTEMPTS):
            last = attempt == _ATTEMPTS - 1
            headers = {"Accept": "application/json", "Content-Type": content_type}
            token = self._token.get()
            if token:
                headers["Authorization"] = f"Bearer {token}"
            try:
                response = self._pool.request(method, url, body=data, headers=headers)
            except urllib3.exceptions.HTTPError as error:
                if last:
                    raise Unreachable(
                        f"{what}: {self.connection.server} does not answer: {_short(error)}"
                    ) from error
                time.sleep(0.2 * 2**attempt)
                continue
            if response.status == 401 and not last and self._token.forget():
                continue
            if response.status in (429, 503) and not last:
                time.sleep(min(5.0, float(response.headers.get("Retry-After") or 0.2 * 2**attempt)))
                continue
            return _answer(response.status, response.data, what)
        raise Unreachable(f"{what}: {self.connection.server} keeps asking to try again later")

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

    def delete(self, kind: Kind, namespace: str | None, name: str) -> bool:
        """Request the deletion, also of all objects that it owns. Return False if the object does not exist."""
        body = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Foreground"}
        try:
            self.request("DELETE", kind.url(namespace, name), body=body, what=f"deleting {kind.kind} {name}")
        except ApiError as error:
            if error.code == 404:
                return False
            raise
        return True


def _answer(code: int, data: bytes, what: str) -> Manifest:
    try:
        parsed = json.loads(data) if data else {}
    except ValueError:
        parsed = {"message": data.decode(errors="replace").strip()}
    if code >= 400:
        raise ApiError(code, parsed, what)
    answer: Manifest = parsed
    return answer


def _short(error: Exception) -> str:
    cause = getattr(error, "reason", None) or error.__cause__ or error
    return str(cause)


def _tls(connection: Connection) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=connection.authority)
    pair = client_certificate(connection.user)
    if pair:
        # The ssl module reads certificates only from files. These files are private and are deleted at once.
        with tempfile.NamedTemporaryFile() as certificate, tempfile.NamedTemporaryFile() as key:
            certificate.write(pair[0])
            key.write(pair[1])
            certificate.flush()
            key.flush()
            context.load_cert_chain(certificate.name, key.name)
    return context
