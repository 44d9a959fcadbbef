"""Custom resource definitions as schemas to hold objects against: Karpenter's, and the committed TorchrunQueue's."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from local.tools.registry import module_directory

ROOT = Path(__file__).resolve().parents[3]
KARPENTER = {
    "EC2NodeClass": "karpenter.k8s.aws_ec2nodeclasses.yaml",
    "NodePool": "karpenter.sh_nodepools.yaml",
}


@cache
def _validator(kind: str) -> jsonschema.Draft202012Validator:
    """Return the `spec` schema of a kind's only version. A field that it does not know is a mistake."""
    if kind == "TorchrunQueue":
        path = ROOT / "crd" / "torchrunqueues.torchrun.ai.yaml"
    else:
        path = module_directory("karpenter") / "pkg" / "apis" / "crds" / KARPENTER[kind]
    (version,) = yaml.safe_load(path.read_text())["spec"]["versions"]
    return jsonschema.Draft202012Validator(closed(version["schema"]["openAPIV3Schema"]["properties"]["spec"]))


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
    return [f"{error.json_path}: {error.message}" for error in _validator(kind).iter_errors(spec)]
