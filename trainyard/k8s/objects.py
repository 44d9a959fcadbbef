"""Objects of any kind by what they say of themselves: read, applied, deleted, their status put."""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from trainyard.k8s.client import ApiError, Client, JsonObject
from trainyard.k8s.informer import ListWatch

T = TypeVar("T")

# The content of server-side apply, which is YAML, and so JSON
# (https://kubernetes.io/docs/reference/using-api/server-side-apply/).
_APPLY = "application/apply-patch+yaml"
_MERGE = "application/merge-patch+json"  # RFC 7386: of a list, all of it
_NOT_FOUND = 404
_CONFLICT = 409


def collection(version: str, kind: str, namespace: str) -> str:
    """The path of the list of this apiVersion and kind in a namespace; "" is all of them, or what is in none."""
    group, _, _ = version.rpartition("/")
    root = f"/apis/{version}" if group else f"/api/{version}"
    placed = f"/namespaces/{namespace}" if namespace else ""
    plural = f"{kind.lower()}es" if kind.endswith("s") else f"{kind.lower()}s"
    return f"{root}{placed}/{plural}"


def path_of(item: Mapping[str, Any]) -> str:
    """The path of an object."""
    meta = item["metadata"]
    return f"{collection(item['apiVersion'], item['kind'], meta.get('namespace', ''))}/{meta['name']}"


class Objects:
    """Writes as one field manager. Every method may raise ApiError and ApiUnavailable."""

    def __init__(self, client: Client, manager: str) -> None:
        self._client = client
        self._manager = manager

    def get(self, path: str) -> JsonObject | None:
        """The object, None where there is none."""
        try:
            return self._client.request("GET", path)
        except ApiError as error:
            if error.status == _NOT_FOUND:
                return None
            raise

    def list(self, version: str, kind: str, namespace: str, selector: str = "") -> list[JsonObject]:
        """Those that have these labels, as in `collection`; each says of what kind it is."""

        def named(item: JsonObject) -> JsonObject:  # the items of a list don't
            return {"apiVersion": version, "kind": kind, **item}

        query = {"labelSelector": selector} if selector else {}
        return self._client.list_items(collection(version, kind, namespace), query, named)

    def read(self, source: ListWatch[T], *, cached: bool = False) -> builtins.list[T]:
        """What the source keeps of its list; `cached` may be an older one, which costs the store nothing."""
        query = {**dict(source.selectors), **({"resourceVersion": "0"} if cached else {})}
        return self._client.list_items(source.path, query, source.convert)

    def apply(self, manifest: JsonObject) -> JsonObject:
        """Make the object, or set these of its fields and leave the others: whoever else wrote them keeps theirs."""
        query = {"fieldManager": self._manager, "force": "true"}
        return self._client.request("PATCH", path_of(manifest), query, manifest, content=_APPLY)

    def change(self, manifest: JsonObject) -> bool:
        """Apply to exactly the object whose uid the manifest has; False if that is another one by now, or gone."""
        try:
            self.apply(manifest)
        except ApiError as error:
            # Of an object that is gone the API server would make a new one, but for the uid (409).
            if error.status in (_NOT_FOUND, _CONFLICT):
                return False
            raise
        return True

    def create(self, manifest: JsonObject, *, dry_run: bool = False) -> bool:
        """Make the object; False if one of its name exists.

        With `dry_run` it is judged and not kept, and a field that is none of its kind is a fault, too
        (https://kubernetes.io/docs/reference/using-api/api-concepts/#field-validation).
        """
        meta = manifest["metadata"]
        path = collection(manifest["apiVersion"], manifest["kind"], meta.get("namespace", ""))
        try:
            judged = {"dryRun": "All", "fieldValidation": "Strict"} if dry_run else {}
            query = {"fieldManager": self._manager, **judged}
            self._client.request("POST", path, query, manifest)
        except ApiError as error:
            if error.status == _CONFLICT and error.reason == "AlreadyExists":
                return False
            raise
        return True

    def put(self, item: JsonObject) -> JsonObject | None:
        """Put the object in place of what was read; None if it is another one by now, or gone."""
        return self._put(path_of(item), item)

    def put_status(self, item: JsonObject) -> JsonObject | None:
        """As `put`, the status alone."""
        return self._put(f"{path_of(item)}/status", item)

    def put_finalizers(self, item: JsonObject, finalizers: Sequence[str]) -> bool:
        """Put the whole list over that of what was read; False if that is another one by now, or gone.

        Applied, a list loses only what this manager had put there: nobody but its author could take away a finalizer
        that came with the object, as with one that is restored.
        """
        meta = {"resourceVersion": item["metadata"]["resourceVersion"], "finalizers": [*finalizers]}
        try:
            query = {"fieldManager": self._manager}
            self._client.request("PATCH", path_of(item), query, {"metadata": meta}, content=_MERGE)
        except ApiError as error:
            if error.status in (_NOT_FOUND, _CONFLICT):
                return False
            raise
        return True

    def _put(self, path: str, item: JsonObject) -> JsonObject | None:
        try:
            return self._client.request("PUT", path, {"fieldManager": self._manager}, item)
        except ApiError as error:
            if error.status in (_NOT_FOUND, _CONFLICT):
                return None
            raise

    def delete(self, path: str, uid: str, version: str = "", *, foreground: bool = False) -> None:
        """Delete exactly this object, and with `version` only as it was read; nothing where it is another by now."""
        conditions = {"uid": uid, **({"resourceVersion": version} if version else {})}
        body: JsonObject = {
            "preconditions": conditions,
            "propagationPolicy": "Foreground" if foreground else "Background",
        }
        try:
            self._client.request("DELETE", path, body=body)
        except ApiError as error:
            if error.status not in (_NOT_FOUND, _CONFLICT):
                raise
