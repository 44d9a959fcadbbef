"""Read and write objects of any kind. Their path follows from apiVersion, kind, namespace and name."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from trainyard.k8s.client import ApiError, Client, JsonObject
from trainyard.k8s.informer import ListWatch

T = TypeVar("T")

# The content of server-side apply, which is YAML, and so JSON
# (https://kubernetes.io/docs/reference/using-api/server-side-apply/).
_APPLY = "application/apply-patch+yaml"
MERGE_PATCH = "application/merge-patch+json"  # RFC 7386: of a list, all of it
_NOT_FOUND = 404
_CONFLICT = 409


def collection(version: str, kind: str, namespace: str) -> str:
    """Return the path of a list. Namespace "" means all namespaces, or a cluster-scoped kind."""
    group, _, _ = version.rpartition("/")
    root = f"/apis/{version}" if group else f"/api/{version}"
    placed = f"/namespaces/{namespace}" if namespace else ""
    plural = f"{kind.lower()}es" if kind.endswith("s") else f"{kind.lower()}s"
    return f"{root}{placed}/{plural}"


def path_of(item: Mapping[str, Any]) -> str:
    """Return the path of an object."""
    meta = item["metadata"]
    return f"{collection(item['apiVersion'], item['kind'], meta.get('namespace', ''))}/{meta['name']}"


class Objects:
    """Read and write objects as one field manager. Every method may raise ApiError and ApiUnavailable."""

    def __init__(self, client: Client, manager: str) -> None:
        self._client = client
        self._manager = manager

    def get(self, path: str) -> JsonObject | None:
        """Return the object, None if it does not exist."""
        try:
            return self._client.request("GET", path)
        except ApiError as error:
            if error.status == _NOT_FOUND:
                return None
            raise

    def list(self, version: str, kind: str, namespace: str, selector: str = "") -> list[JsonObject]:
        """Return the objects with these labels. Each has its apiVersion and kind, which the items of a list lack."""

        def named(item: JsonObject) -> JsonObject:
            return {"apiVersion": version, "kind": kind, **item}

        query = {"labelSelector": selector} if selector else {}
        return self._client.list_items(collection(version, kind, namespace), query, named)

    def read(self, source: ListWatch[T], *, cached: bool = False) -> builtins.list[T]:
        """Return the converted items of a list. With `cached` the list may be older, and is not read from etcd."""
        query = {**dict(source.selectors), **({"resourceVersion": "0"} if cached else {})}
        return self._client.list_items(source.path, query, source.convert)

    def apply(self, manifest: JsonObject) -> JsonObject:
        """Create the object, or set these fields and leave those of other field managers."""
        query = {"fieldManager": self._manager, "force": "true"}
        return self._client.request("PATCH", path_of(manifest), query, manifest, content_type=_APPLY)

    def change(self, manifest: JsonObject) -> bool:
        """Apply to the object with the manifest's uid. Return False if it is gone, or another one has its name.

        Without the uid, the API server would create the object if it is gone.
        """
        return _unless_gone(lambda: self.apply(manifest)) is not None

    def create(self, manifest: JsonObject, *, dry_run: bool = False) -> JsonObject | None:
        """Create the object. Return None if one with its name exists.

        With `dry_run` the API server validates it without keeping it, and an unknown field is an error
        (https://kubernetes.io/docs/reference/using-api/api-concepts/#field-validation).
        """
        meta = manifest["metadata"]
        path = collection(manifest["apiVersion"], manifest["kind"], meta.get("namespace", ""))
        try:
            judged = {"dryRun": "All", "fieldValidation": "Strict"} if dry_run else {}
            query = {"fieldManager": self._manager, **judged}
            return self._client.request("POST", path, query, manifest)
        except ApiError as error:
            if error.status == _CONFLICT and error.reason == "AlreadyExists":
                return None
            raise

    def put(self, item: JsonObject) -> JsonObject | None:
        """Replace the object that was read. Return None if it has changed since or is gone."""
        return self._put(path_of(item), item)

    def put_status(self, item: JsonObject) -> JsonObject | None:
        """Replace only the status, as `put` does."""
        return self._put(f"{path_of(item)}/status", item)

    def put_finalizers(self, item: JsonObject, finalizers: Sequence[str]) -> bool:
        """Replace the finalizers of the object that was read. Return False if it has changed since or is gone.

        Server-side apply removes only entries of the same field manager, so the finalizer of a restored object would
        stay.
        """
        meta = {"resourceVersion": item["metadata"]["resourceVersion"], "finalizers": [*finalizers]}
        path, query, change = path_of(item), {"fieldManager": self._manager}, {"metadata": meta}
        changed = _unless_gone(
            lambda: self._client.request("PATCH", path, query, change, content_type=MERGE_PATCH)
        )
        return changed is not None

    def _put(self, path: str, item: JsonObject) -> JsonObject | None:
        query = {"fieldManager": self._manager}
        return _unless_gone(lambda: self._client.request("PUT", path, query, item))

    def delete(self, path: str, uid: str, version: str = "", *, foreground: bool = False) -> None:
        """Delete the object with this uid; with `version`, only if it has not changed. Never delete another object."""
        conditions = {"uid": uid, **({"resourceVersion": version} if version else {})}
        body: JsonObject = {
            "preconditions": conditions,
            "propagationPolicy": "Foreground" if foreground else "Background",
        }
        _unless_gone(lambda: self._client.request("DELETE", path, body=body))


def _unless_gone(send: Callable[[], JsonObject]) -> JsonObject | None:
    """Send a request about one object. Return None if the object is gone or has changed."""
    try:
        return send()
    except ApiError as error:
        if error.status in (_NOT_FOUND, _CONFLICT):
            return None
        raise
