"""The objects of a stack's Helm charts, as resources that rules and checkov check like the program's own. Pure.

A release's values may hold what a preview can't know, such as the name of a role. Helm is given a text in its place; an
object's property that holds this text is not known either.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import yaml

from trainyard.policies.kubernetes import RELEASE
from trainyard.policies.model import UNKNOWN, Resource, Stack, Undecided

JsonObject = dict[str, Any]

# CRDs are large: the parser in C takes a tenth of the other one's time.
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
MARK: Final = "not-known-before-an-update"
# Kinds that lie in no namespace (`kubectl api-resources --namespaced=false`).
OF_THE_CLUSTER: Final = frozenset(
    {
        "APIService",
        "ClusterRole",
        "ClusterRoleBinding",
        "CustomResourceDefinition",
        "MutatingWebhookConfiguration",
        "Namespace",
        "PersistentVolume",
        "PriorityClass",
        "StorageClass",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
        "ValidatingWebhookConfiguration",
    }
)
# Options of Helm and inputs of a release that choose a chart, by input.
CHOOSING: Final = {"version": "--version"}
# Inputs that would change what a chart gives, and which are not read here.
UNREAD: Final = ("valueYamlFiles", "postrender", "dependencyUpdate", "repositoryOpts")


class ChartError(Exception):
    """A chart whose objects can't be had."""


def releases(stack: Stack) -> list[Resource]:
    """The Helm releases of a stack."""
    return stack.of(RELEASE)


def arguments(release: Resource) -> list[str]:
    """Arguments of `helm template` for a release, but for its values.

    Raises:
        ChartError: its chart, name or namespace is not known yet, or it has an input that is not read here.
    """
    for name in UNREAD:
        if release.properties.get(name):
            raise ChartError(
                f"release {release.name} has {name}, with which its chart can't be rendered here"
            )
    try:
        name, chart = release.at("name", default=release.name), release.at("chart")
        namespace = release.at("namespace", default="default")
        chosen = [
            text for key, flag in CHOOSING.items() if release.has(key) for text in (flag, release.at(key))
        ]
        crds = "--skip-crds" if release.at("skipCrds", default=False) else "--include-crds"
    except Undecided as reason:
        raise ChartError(f"release {release.name} can't be rendered: {reason}") from reason
    # A chart's own tests run when somebody asks for them.
    return [str(name), str(chart), "--namespace", str(namespace), *map(str, chosen), crds, "--skip-tests"]


def values(release: Resource) -> str:
    """The values of a release as JSON, with a mark for each that is not known."""
    return json.dumps(_marked(release.properties.get("values") or {}))


def objects(release: Resource, rendered: str) -> list[Resource]:
    """The objects in what Helm rendered (YAML documents), named after the release and themselves.

    Raises:
        ChartError: a document is no YAML, or no object of Kubernetes.
    """
    try:
        documents = list(yaml.load_all(rendered, Loader=_Loader))
    except yaml.YAMLError as error:
        raise ChartError(f"the chart of release {release.name} gives no YAML: {_one_line(error)}") from error
    return [_resource(release, each) for document in documents for each in _listed(document)]


def _listed(document: Any) -> Iterator[Any]:
    """A document's objects: those of a List, or itself; none where a template gave nothing."""
    if (
        isinstance(document, Mapping)
        and str(document.get("kind", "")).endswith("List")
        and "items" in document
    ):
        for each in document["items"]:
            yield from _listed(each)
    elif document is not None:
        yield document


def _resource(release: Resource, document: Any) -> Resource:
    try:
        version, kind, name = document["apiVersion"], document["kind"], document["metadata"]["name"]
    except (KeyError, TypeError) as error:
        text = json.dumps(document, default=str)[:60]
        raise ChartError(
            f"the chart of release {release.name} gives {text}; it must be an object with a kind and a name"
        ) from error
    type_ = f"kubernetes:{version if '/' in version else f'core/{version}'}:{kind}"
    metadata = dict(document["metadata"])
    if kind not in OF_THE_CLUSTER:
        metadata["namespace"] = metadata.get("namespace") or release.at("namespace", default="default")
    where = f"{metadata['namespace']}/" if "namespace" in metadata else ""
    properties: JsonObject = _unmarked({**document, "metadata": metadata})
    return Resource(
        type=type_,
        name=f"{release.name}:{where}{name}",
        urn=f"{release.urn}//{type_}::{where}{name}",
        properties=properties,
    )


def _marked(value: Any) -> Any:
    if value is UNKNOWN:
        return MARK
    if isinstance(value, Mapping):
        return {key: _marked(entry) for key, entry in value.items()}
    return [_marked(entry) for entry in value] if isinstance(value, list) else value


def _unmarked(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _unmarked(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_unmarked(entry) for entry in value]
    return UNKNOWN if isinstance(value, str) and MARK in value else value


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
