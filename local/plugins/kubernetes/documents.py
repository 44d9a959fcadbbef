"""YAML documents as Kubernetes objects, their children's names and their order. Pure except for `kustomize`."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from local.plugins.kubernetes import objects
from local.plugins.provider import ProviderError
from local.plugins.values import Props, is_unknown

_KUSTOMIZE_SECONDS = 300


class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """A YAML loader for Kubernetes: a date stays a text. The C parser needs a second for large CRDs, the other ten."""


Loader.yaml_implicit_resolvers = {
    key: [pair for pair in pairs if pair[0] != "tag:yaml.org,2002:timestamp"]
    for key, pairs in Loader.yaml_implicit_resolvers.items()
}


@dataclass(frozen=True)
class Child:
    """An object of a component: its name in the state, its inputs, the names of the children that it depends on."""

    name: str
    inputs: Props
    after: tuple[str, ...]


def parse(text: str, place: str) -> list[Props]:
    """Return all objects of a stream of documents, with lists expanded.

    Raises:
        ProviderError: A document is not valid. The message names `place`.
    """
    try:
        documents = list(yaml.load_all(text, Loader=Loader))
    except yaml.YAMLError as error:
        raise ProviderError(f"{place} is no YAML: {' '.join(str(error).split())}") from error
    return flatten(documents, place)


def flatten(documents: Iterable[Any], place: str) -> list[Props]:
    """Return the objects, with `kind: List` and similar kinds replaced by their items."""
    found: list[Props] = []
    for document in documents:
        if document is None or document == {}:
            continue
        if not isinstance(document, Mapping) or not document.get("apiVersion") or not document.get("kind"):
            raise ProviderError(f"{place} holds a document without apiVersion and kind")
        items = document.get("items")
        if str(document["kind"]).endswith("List") and isinstance(items, list):
            found += flatten(items, place)
        else:
            found.append(dict(document))
    return found


def kustomize(directory: str) -> str:
    """Return the output of `kubectl kustomize` for a directory or a remote target.

    Raises:
        ProviderError: The command failed.
    """
    try:
        done = subprocess.run(
            ["kubectl", "kustomize", directory],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_KUSTOMIZE_SECONDS,
            check=False,
        )
    except FileNotFoundError as error:
        raise ProviderError(
            "kubectl is not on PATH; the local cloud's tools have it in .local/bin"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise ProviderError(
            f"kubectl kustomize {directory} took longer than {_KUSTOMIZE_SECONDS} s"
        ) from error
    if done.returncode:
        raise ProviderError(f"kubectl kustomize {directory}: {done.stderr.strip().removeprefix('error: ')}")
    return done.stdout


def read_files(patterns: Iterable[str]) -> list[Props]:
    """Return the objects of files, by path or glob pattern. A pattern without matches is an error."""
    found: list[Props] = []
    for pattern in patterns:
        if pattern.startswith(("http://", "https://")):
            raise ProviderError(f"{pattern}: manifests from the network are not read here; give a file")
        path = Path(pattern)
        paths = [path] if path.is_file() else sorted(path.parent.glob(path.name))
        if not paths:
            raise ProviderError(f"{pattern}: no such manifest file")
        for one in paths:
            found += parse(one.read_text(), str(one))
    return found


def children(
    items: list[Props],
    prefix: str,
    default_namespace: str,
    namespaced: Callable[[str, str], bool],
    *,
    skip_await: bool = False,
) -> list[Child]:
    """Return children named `<prefix>:<namespace>/<name>`, with Namespaces and CRDs before their users."""
    named: list[tuple[str, Props, str | None]] = []
    defined = {_defined(item): item for item in items if item["kind"] == "CustomResourceDefinition"}
    for item in items:
        api_version, kind = str(item["apiVersion"]), str(item["kind"])
        metadata = dict(item.get("metadata") or {})
        if not metadata.get("name") or is_unknown(metadata["name"]):
            raise ProviderError(f"{prefix}: an object of kind {kind} has no metadata.name")
        definition = defined.get((api_version.split("/")[0], kind))
        scoped = (
            definition["spec"].get("scope") == "Namespaced" if definition else namespaced(api_version, kind)
        )
        namespace = str(metadata.get("namespace") or default_namespace) if scoped else None
        if namespace:
            metadata["namespace"] = namespace
        if skip_await:
            metadata["annotations"] = {objects.SKIP_AWAIT: "true", **(metadata.get("annotations") or {})}
        name = f"{prefix}:{objects.object_id(namespace, metadata['name'])}"
        named.append((name, {**item, "metadata": metadata}, namespace))
    return [Child(name, item, _after(item, namespace, named)) for name, item, namespace in named]


def _after(item: Props, namespace: str | None, named: list[tuple[str, Props, str | None]]) -> tuple[str, ...]:
    group = str(item["apiVersion"]).split("/")[0]
    found = []
    for name, other, _ in named:
        is_namespace = other["kind"] == "Namespace" and other["metadata"]["name"] == namespace
        is_definition = other["kind"] == "CustomResourceDefinition" and _defined(other) == (
            group,
            item["kind"],
        )
        if is_namespace or is_definition:
            found.append(name)
    return tuple(found)


def _defined(definition: Props) -> tuple[str, str]:
    spec = definition.get("spec") or {}
    return str(spec.get("group")), str((spec.get("names") or {}).get("kind"))
