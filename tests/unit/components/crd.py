"""Karpenter's custom resource definitions, as its module publishes them, as schemas to hold objects against."""

from __future__ import annotations

from functools import cache
from typing import Any

import jsonschema
import yaml

from local.tools.registry import module_directory

FILES = {
    "EC2NodeClass": "karpenter.k8s.aws_ec2nodeclasses.yaml",
    "NodePool": "karpenter.sh_nodepools.yaml",
}


@cache
def schema(kind: str) -> dict[str, Any]:
    """The `spec` schema of the served version v1 of a kind; a field that it does not know is a mistake."""
    path = module_directory("karpenter") / "pkg" / "apis" / "crds" / FILES[kind]
    definition = yaml.safe_load(path.read_text())
    (version,) = (each for each in definition["spec"]["versions"] if each["name"] == "v1")
    return dict(_closed(version["schema"]["openAPIV3Schema"]["properties"]["spec"]))


def _closed(node: Any) -> Any:
    """The API server prunes unknown fields (or, for strict callers, refuses them); JSON schema lets them pass."""
    if isinstance(node, list):
        return [_closed(entry) for entry in node]
    if not isinstance(node, dict):
        return node
    closed = {key: _closed(value) for key, value in node.items()}
    if isinstance(closed.get("properties"), dict) and closed.get("type") == "object":
        closed.setdefault("additionalProperties", False)
    if closed.get("x-kubernetes-int-or-string"):
        closed.pop("type", None)
    return closed


def problems(kind: str, spec: dict[str, Any]) -> list[str]:
    """What the definition has against a `spec`; its CEL rules aside, which only the API server evaluates."""
    validator = jsonschema.Draft202012Validator(schema(kind))
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(spec)]
