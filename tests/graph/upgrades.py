"""What a program would do to a stack that an earlier one deployed: which resources it would replace, which delete.

A recording has a line per resource: URN, type, and those of its inputs that can force a replacement. It is judged by
the plugins' own comparison, the one that the engine asks in a real preview. What a preview can't know stays as its
mark, which is equal to itself; a name that the provider makes up at random loses its end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from local.plugins.aws.handlers import HANDLERS
from local.plugins.aws.provider import AwsProvider
from local.plugins.kubernetes.provider import KubernetesProvider
from local.plugins.provider import DiffRequest, Provider

STATES = Path(__file__).parent / "states"
# Names that the provider chose itself stand in this input.
CHOSEN = "__defaults"
RANDOM_END = re.compile(r"-[0-9a-f]{7}$")
# Kinds of Kubernetes objects some of whose fields can't be changed (Kubernetes API conventions, "immutable fields").
WITH_SPEC = frozenset(
    {
        "kubernetes:apps/v1:DaemonSet",
        "kubernetes:apps/v1:Deployment",
        "kubernetes:apps/v1:StatefulSet",
        "kubernetes:core/v1:PersistentVolume",
        "kubernetes:core/v1:PersistentVolumeClaim",
    }
)
IDENTITY = (
    "apiVersion",
    "kind",
    "metadata",
    "name",
    "namespace",
    "roleRef",
    "provisioner",
    "parameters",
    "value",
)

# So that no cluster of the environment is asked.
NO_CLUSTER = "{}"

Recording = dict[str, dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Harm:
    """A resource that the program would take away, and why."""

    urn: str
    what: str

    def __str__(self) -> str:
        return f"{self.what}: {self.urn.split('::', 2)[2]}"


def recorded(document: Mapping[str, Any]) -> Recording:
    """What a preview's resources are, in the form of a recording."""
    states = [step["newState"] for step in document["steps"] if step.get("newState")]
    found: Recording = {
        state["urn"]: {"type": state["type"], "inputs": _telling(state)}
        | ({"aliases": state["aliases"]} if state.get("aliases") else {})
        for state in states
        if state.get("custom")
    }
    chosen = {name: RANDOM_END.sub("-*", name) for state in states for name in _chosen(state)}
    return {urn: _renamed(each, chosen) for urn, each in found.items()}


def _chosen(state: Mapping[str, Any]) -> list[str]:
    """The names that the provider made up for a resource. Others are told them, too: an attachment its role's."""
    inputs = state.get("inputs") or {}
    return [
        str(inputs[key]) for key in inputs.get(CHOSEN) or [] if RANDOM_END.search(str(inputs.get(key, "")))
    ]


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    """The value with each of the names as its counterpart."""
    if isinstance(value, Mapping):
        return {key: _renamed(entry, names) for key, entry in value.items()}
    if isinstance(value, list):
        return [_renamed(entry, names) for entry in value]
    return names.get(value, value) if isinstance(value, str) else value


def _telling(state: Mapping[str, Any]) -> dict[str, Any]:
    """Inputs that can force a replacement. What is nobody's to compare (documents, tags, code) is left out."""
    kind, inputs = str(state["type"]), dict(state.get("inputs") or {})
    inputs.pop(CHOSEN, None)
    if kind in HANDLERS:
        handler = HANDLERS[kind]
        left_out = {"tags", "tagsAll", *handler.documents}
        return {
            key: value for key, value in inputs.items() if key not in left_out and not key.startswith("__")
        }
    if kind.startswith("kubernetes:"):
        wanted = (*IDENTITY, "spec") if kind in WITH_SPEC else IDENTITY
        kept = {key: inputs[key] for key in wanted if key in inputs}
        if isinstance(kept.get("metadata"), Mapping):
            kept["metadata"] = {k: v for k, v in kept["metadata"].items() if k in ("name", "namespace")}
        return kept
    if kind.startswith("pulumi-python:"):
        return {key: inputs[key] for key in ("cluster", "region", "vpc") if key in inputs}
    return {}


def harms(before: Recording, now: Recording) -> Iterator[Harm]:
    """What today's program would replace or delete of what was recorded."""
    renamed = {alias: urn for urn, each in now.items() for alias in each.get("aliases", [])}
    kubernetes = KubernetesProvider()
    kubernetes.configure({"kubeconfig": NO_CLUSTER})
    providers: dict[str, Provider] = {"aws": AwsProvider(), "kubernetes": kubernetes}
    for urn, old in before.items():
        new = now.get(urn) or now.get(renamed.get(urn, ""))
        if new is None:
            yield Harm(urn=urn, what="deleted")
            continue
        for path in _replaced(providers, urn, old, new):
            yield Harm(urn=urn, what=f"replaced for {path}")


def _replaced(
    providers: Mapping[str, Provider], urn: str, old: Mapping[str, Any], new: Mapping[str, Any]
) -> list[str]:
    kind = str(old["type"])
    package = kind.split(":", 1)[0]
    if package == "pulumi-python":
        return sorted(
            k for k in {*old["inputs"], *new["inputs"]} if old["inputs"].get(k) != new["inputs"].get(k)
        )
    if package not in providers or (package == "aws" and kind not in HANDLERS):
        return []
    request = DiffRequest(
        urn=urn,
        type=kind,
        name=urn.rsplit("::", 1)[1],
        id="recorded",
        old_inputs=old["inputs"],
        old_outputs=old["inputs"],
        inputs=new["inputs"],
    )
    return list(providers[package].diff(request).replaces)


def load(stack: str) -> Recording:
    """A stack's recording."""
    found: Recording = json.loads((STATES / f"{stack}.json").read_text())
    return found


def save(stack: str, recording: Recording) -> Path:
    """Write a stack's recording, a line per resource."""
    path = STATES / f"{stack}.json"
    lines = [
        f"{json.dumps(urn)}: {json.dumps(each, sort_keys=True)}" for urn, each in sorted(recording.items())
    ]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    return path
