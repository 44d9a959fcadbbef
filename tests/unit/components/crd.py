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
    return dict(closed(version["schema"]["openAPIV3Schema"]["properties"]["spec"]))


def closed(node: Any) -> Any:
    """The API server prunes unknown fields (or, for strict callers, refuses them); JSON schema lets them pass."""
    if isinstance(node, list):
        return [closed(entry) for entry in node]
    if not isinstance(node, dict):
        return node
    made = {key: closed(value) for key, value in node.items()}
    if isinstance(made.get("properties"), dict) and made.get("type") == "object":
        made.setdefault("additionalProperties", False)
    if made.get("x-kubernetes-int-or-string"):
        made.pop("type", None)
    return made


def problems(kind: str, spec: dict[str, Any]) -> list[str]:
    """What the definition has against a `spec`; its CEL rules aside, which only the API server evaluates."""
    validator = jsonschema.Draft202012Validator(schema(kind))
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(spec)]
