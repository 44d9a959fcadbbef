"""Reads of `kubectl get` and `kubectl logs` without a process, whose start takes a tenth of a second of a processor."""

from __future__ import annotations

import argparse
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from trainyard.k8s.client import ApiError, ApiUnavailable, Client, RetryPolicy
from trainyard.k8s.kubeconfig import connect

_FLAGS = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
_FLAGS.add_argument("kind")
_FLAGS.add_argument("name", nargs="?")
_FLAGS.add_argument("-n", "--namespace", default="default")
_FLAGS.add_argument("-A", "--all-namespaces", action="store_true")
_FLAGS.add_argument("-l", "--selector", dest="labelSelector")
_FLAGS.add_argument("--field-selector", dest="fieldSelector")
_FLAGS.add_argument("--show-managed-fields", action="store_true")


class ReadError(AssertionError):
    """The API server has no such kind or object, refused, or did not answer."""


def read(kubeconfig: Path, *arguments: str, context: str | None = None) -> Any:
    """Return what `kubectl get ARGUMENTS -o json` prints: an object, or the list of a kind.

    Raises:
        ReadError: The read failed. It is not repeated.
    """
    asked = _FLAGS.parse_args(arguments)
    try:
        client = _client(kubeconfig, kubeconfig.read_text(), context)
        group, resource = _resource(client, asked.kind)
        is_of_all = asked.all_namespaces or not resource["namespaced"]
        space = "" if is_of_all else f"/namespaces/{asked.namespace}"
        path = f"{group}{space}/{resource['name']}"
        if asked.name:
            found: Any = client.request("GET", f"{path}/{asked.name}")
            items = [found]
        else:
            query = {key: vars(asked)[key] for key in ("labelSelector", "fieldSelector") if vars(asked)[key]}
            items = client.list_objects(path, query)
            found = {"items": items}
    except (ApiError, ApiUnavailable, OSError) as error:
        raise ReadError(str(error)) from error
    for each in items:
        # The items of a list name neither; kubectl adds both.
        each.update(apiVersion=group.removeprefix("/apis/").removeprefix("/api/"), kind=resource["kind"])
        if not asked.show_managed_fields:
            each["metadata"].pop("managedFields", None)
    return found


def read_logs(kubeconfig: Path, *pods: str, namespace: str) -> str:
    """Return what pods wrote until now, each with its first container. A pod that has not started yet adds nothing."""
    client = _client(kubeconfig, kubeconfig.read_text(), None)
    texts = []
    for pod in pods:
        with suppress(ReadError, ApiError, ApiUnavailable):
            found = read(kubeconfig, "pod", pod, "-n", namespace)
            query = {"container": found["spec"]["containers"][0]["name"]}
            texts.append(client.read_text(f"/api/v1/namespaces/{namespace}/pods/{pod}/log", query))
    return "".join(texts)


@cache
def _client(kubeconfig: Path, content: str, context: str | None) -> Client:
    """Return a client, the same for the same content, so that connections are used again."""
    return connect(str(kubeconfig), context, RetryPolicy(timeout=0))[0]


def _resource(client: Client, name: str) -> tuple[str, dict[str, Any]]:
    """Find a kind as kubectl does: in the core group first, by its plural, singular or short name."""
    if name not in _resources_by_name(client):
        _resources_by_name.cache_clear()
    found = _resources_by_name(client).get(name)
    if found is None:
        raise ReadError(f"the API server has no kind {name!r}")
    return found


@cache
def _resources_by_name(client: Client) -> dict[str, tuple[str, dict[str, Any]]]:
    groups = client.request("GET", "/apis")["groups"]
    found: dict[str, tuple[str, dict[str, Any]]] = {}
    for path in ["/api/v1", *(f"/apis/{each['preferredVersion']['groupVersion']}" for each in groups)]:
        for resource in client.request("GET", path)["resources"]:
            if "/" in resource["name"]:
                continue
            for name in (resource["name"], resource["singularName"], *resource.get("shortNames", [])):
                found.setdefault(name, (path, resource))
    return found
