"""What a program would do to a stack that an earlier one deployed: which resources it would replace, which delete.

A recording has a line per resource: URN, type, and those of its inputs that can force a replacement. It is judged by
the plugins' own comparison, the one that the engine asks in a real preview; a name that the provider makes up at
random is not compared.
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
from local.plugins.values import UNKNOWN as UNKNOWN_VALUE
from tests.graph.model import UNKNOWN

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
    return {
        state["urn"]: {"type": state["type"], "inputs": _telling(state)}
        | ({"aliases": state["aliases"]} if state.get("aliases") else {})
        for state in states
        if state.get("custom")
    }


def _telling(state: Mapping[str, Any]) -> dict[str, Any]:
    """Inputs that can force a replacement. What is nobody's to compare (documents, tags, code) is left out."""
    kind, inputs = str(state["type"]), dict(state.get("inputs") or {})
    for name in inputs.pop(CHOSEN, None) or []:
        inputs[name] = RANDOM_END.sub("-*", str(inputs.get(name, "")))
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
    providers: dict[str, Provider] = {"aws": AwsProvider(), "kubernetes": KubernetesProvider()}
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
        old_inputs=_known(old["inputs"]),
        old_outputs=_known(old["inputs"]),
        inputs=_known(new["inputs"]),
    )
    return list(providers[package].diff(request).replaces)


def _known(value: Any) -> Any:
    """A value as the engine hands it to a plugin: what a preview can't know is a mark of its own."""
    if isinstance(value, Mapping):
        return {key: _known(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_known(entry) for entry in value]
    return UNKNOWN_VALUE if value == UNKNOWN else value


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
