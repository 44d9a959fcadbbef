"""Create, read, update and delete one object of the Kubernetes API, and wait for the result."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from local.plugins.kubernetes import objects, projection, readiness
from local.plugins.kubernetes.client import ApiError, Client, Kind, Unreachable
from local.plugins.provider import InitFailed, ProviderError, ReadResult
from local.plugins.values import Props

# In seconds: the official plugin's defaults (its `await` package), including Jobs and releases.
DEFAULT_TIMEOUT = 600.0
# The time limit for a kind to appear after its CRD, and for a namespace after its creation.
_PATIENCE = 15.0
_POLL_FIRST, _POLL_LAST = 0.1, 1.0


@dataclass(frozen=True)
class Call:
    """The context of an operation: progress messages and the deadline."""

    manager: str
    timeout: float | None
    status: Callable[[str], None]
    cancelled: threading.Event
    # Whether the object may exist already.
    upsert: bool


def create(client: Client, inputs: Props, call: Call) -> tuple[str, Props]:
    """Apply an object that must not exist yet, and wait until it is ready."""
    kind = client.kind(inputs["apiVersion"], inputs["kind"], _PATIENCE)
    _make_way(client, kind, inputs, call)
    return _apply_and_wait(client, kind, inputs, call)


def update(client: Client, inputs: Props, call: Call) -> Props:
    """Apply the new inputs. Fields that are no longer set are removed, because the field manager is the same."""
    kind = client.kind(inputs["apiVersion"], inputs["kind"], _PATIENCE)
    return _apply_and_wait(client, kind, inputs, call)[1]


def read(client: Client, resource_id: str, inputs: Props, manager: str) -> ReadResult | None:
    """Return the live object, and the inputs that describe it. An object under deletion still exists."""
    kind = client.kind(inputs["apiVersion"], inputs["kind"])
    namespace, name = objects.split_id(resource_id)
    if kind.namespaced and namespace is None:
        namespace = client.connection.namespace
    live = client.get(kind, namespace, name)
    if live is None:
        return None
    described = (
        projection.project_object(live, inputs) if "metadata" in inputs else projection.import_inputs(live)
    )
    identity = objects.object_id(live["metadata"].get("namespace"), live["metadata"]["name"])
    outputs = objects.outputs(live, manager, inputs)
    if not objects.flag(inputs, objects.SKIP_AWAIT):
        now = readiness.judge(client, live)
        if not now.ready:
            raise InitFailed(identity, outputs, [f"{objects.describe(live)}: {now.text}"], described)
    return ReadResult(identity, outputs, described)


def delete(client: Client, resource_id: str, state: Props, call: Call) -> None:
    """Delete an object and wait until it and all objects that it owns are gone."""
    kind = client.kind(state["apiVersion"], state["kind"])
    namespace, name = objects.split_id(resource_id)
    if not client.delete(kind, namespace, name):
        return
    if objects.flag(state, objects.SKIP_AWAIT):
        return
    uid = (state.get("metadata") or {}).get("uid")

    def gone() -> readiness.Readiness:
        live = client.get(kind, namespace, name)
        if live is None or (uid and live["metadata"].get("uid") != uid):
            return readiness.READY
        held = live["metadata"].get("finalizers") or []
        text = f"Waiting for deletion; finalizers: {', '.join(held)}" if held else "Waiting for deletion"
        return readiness.Readiness(False, text + _namespace_content(live))

    ended = _wait(gone, call)
    if not ended.ready:
        raise ProviderError(f"{kind.kind} {resource_id} is not gone: {ended.text}")


def give_up(client: Client, resource_id: str, state: Props, call: Call) -> None:
    """Release all fields of an object. Values that only this manager set are removed. The object stays."""
    kind = client.kind(state["apiVersion"], state["kind"])
    namespace, name = objects.split_id(resource_id)
    if client.get(kind, namespace, name) is None:
        return
    identity = {"name": name} | ({"namespace": namespace} if namespace else {})
    nothing = {"apiVersion": state["apiVersion"], "kind": state["kind"], "metadata": identity}
    client.apply(kind, nothing, call.manager)


def dry_run(client: Client, inputs: Props, manager: str) -> ApiError | None:
    """Return the API server's error for an update, or None if it accepts the update."""
    kind = client.kind(inputs["apiVersion"], inputs["kind"])
    try:
        client.apply(kind, objects.manifest(inputs), manager, force=True, dry_run=True)
    except ApiError as error:
        return error
    return None


def _make_way(client: Client, kind: Kind, inputs: Props, call: Call) -> None:
    """Refuse an object that already exists. Wait for one that is under deletion (a replaced one)."""
    metadata = inputs["metadata"]
    namespace, name = metadata.get("namespace"), metadata["name"]
    place = objects.object_id(namespace, name)

    def check() -> readiness.Readiness:
        found = client.get(kind, namespace, name)
        if found is None:
            return readiness.READY
        leaving = "deletionTimestamp" in found["metadata"]
        return readiness.Readiness(
            False, f"Waiting for the old {kind.kind} {place} to be gone", failed=not leaving
        )

    ended = _wait(check, call)
    if ended.failed and not call.upsert:
        raise ProviderError(
            f"{kind.plural} {place!r} already exists (AlreadyExists); import it with id {place}, or delete it"
        )
    if not ended.ready and not ended.failed:
        raise ProviderError(f"{kind.plural} {place!r} can't be created: {ended.text}")


def _apply_and_wait(client: Client, kind: Kind, inputs: Props, call: Call) -> tuple[str, Props]:
    live = _apply(client, kind, inputs, call.manager)
    identity = objects.object_id(live["metadata"].get("namespace"), live["metadata"]["name"])
    if objects.flag(inputs, objects.SKIP_AWAIT):
        return identity, objects.outputs(live, call.manager, inputs)
    latest: dict[str, Any] = {"live": live}

    def check() -> readiness.Readiness:
        found = client.get(kind, live["metadata"].get("namespace"), live["metadata"]["name"])
        if found is None:
            return readiness.Readiness(False, "it was deleted meanwhile", failed=True)
        latest["live"] = found
        return readiness.judge(client, found)

    ended = _wait(check, call)
    outputs = objects.outputs(latest["live"], call.manager, inputs)
    if not ended.ready:
        what = "was created or updated but failed to become ready"
        raise InitFailed(identity, outputs, [f"{objects.describe(live)} {what}: {ended.text}"])
    return identity, outputs


def _apply(client: Client, kind: Kind, inputs: Props, manager: str) -> Props:
    """Apply the object server-side. A new namespace may need another moment."""
    force = objects.flag(inputs, objects.PATCH_FORCE)
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            return client.apply(kind, objects.manifest(inputs), manager, force=force)
        except ApiError as error:
            missing = error.code == 404 and (error.status.get("details") or {}).get("kind") == "namespaces"
            if missing and time.monotonic() < deadline:
                time.sleep(0.5)
                continue
            if error.code == 409:
                hint = f'another manager owns these fields; annotation {objects.PATCH_FORCE}: "true" takes them over'
                raise ProviderError(f"{error}; {hint}") from error
            raise


def _wait(check: Callable[[], readiness.Readiness], call: Call) -> readiness.Readiness:
    timeout = call.timeout or DEFAULT_TIMEOUT
    deadline = time.monotonic() + timeout
    pause, shown = _POLL_FIRST, ""
    while True:
        try:
            now = check()
        except Unreachable as error:
            now = readiness.Readiness(False, str(error))
        if now.ready or now.failed:
            return now
        if time.monotonic() >= deadline:
            return readiness.Readiness(False, f"timed out after {timeout:.0f} s: {now.text}")
        if now.text != shown:
            call.status(now.text)
            shown = now.text
        if call.cancelled.wait(pause):
            return readiness.Readiness(False, f"cancelled: {now.text}")
        pause = min(_POLL_LAST, pause * 1.5)


def _namespace_content(live: Props) -> str:
    """Return what delays the deletion of a namespace, from its conditions."""
    if live.get("kind") != "Namespace":
        return ""
    waiting = ("NamespaceContentRemaining", "NamespaceFinalizersRemaining")
    found = [
        str(condition.get("message"))
        for condition in (live.get("status") or {}).get("conditions") or []
        if condition.get("type") in waiting and condition.get("status") == "True"
    ]
    return f"; {' '.join(found)}" if found else ""
