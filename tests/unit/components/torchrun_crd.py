"""The committed definition of TorchrunQueues as a schema to hold the program's objects against."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from tests.unit.components.crd import closed

ROOT = Path(__file__).resolve().parents[3]


@cache
def _validator() -> jsonschema.Draft202012Validator:
    definition = yaml.safe_load((ROOT / "crd" / "torchrunqueues.torchrun.ai.yaml").read_text())
    (version,) = definition["spec"]["versions"]
    return jsonschema.Draft202012Validator(closed(version["schema"]["openAPIV3Schema"]["properties"]["spec"]))


def problems(spec: dict[str, Any]) -> list[str]:
    """What the definition has against a `spec`; its CEL rules aside, which only the API server evaluates."""
    return [f"{error.json_path}: {error.message}" for error in _validator().iter_errors(spec)]
