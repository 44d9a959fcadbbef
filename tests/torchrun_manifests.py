"""Torchrun queues and jobs that tests begin with."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml

from trainyard.operator import names as n

CHECKOUT = Path(__file__).resolve().parents[1]
SEED: list[dict[str, Any]] = list(
    yaml.safe_load_all(Path(__file__).with_name("torchrun_seed.yaml").read_text())
)
QUEUE_SPEC = {"nodeResources": {"gpus": 8, "cpus": 96, "memory": "512Gi"}, "image": "example.com/pytorch:2.9"}
JOB_SPEC = {"jobQueue": "research", "numGPUs": 16, "command": "python train.py"}
SPECS = {n.QUEUE_KIND: QUEUE_SPEC, n.JOB_KIND: JOB_SPEC}


def installed(name: str) -> list[dict[str, Any]]:
    """Return the objects of a file in config/."""
    return list(yaml.safe_load_all((CHECKOUT / "config" / name).read_text()))


def controller_rules(kind: str = "ClusterRole") -> list[dict[str, Any]]:
    """Return the rules of the controller's ClusterRole or Role."""
    (role,) = (
        each
        for each in installed("rbac/role.yaml")
        if (each["kind"], each["metadata"]["name"]) == (kind, n.CONTROLLER)
    )
    return list(role["rules"])


def manifest(kind: str, name: str, changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A queue or a job with these values, each by its dotted path in the spec; None takes the field away."""
    spec: dict[str, Any] = deepcopy(SPECS[kind])
    change(spec, changes or {})
    return {"apiVersion": n.API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec}


def change(spec: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Put values at dotted paths; None takes a field away."""
    for path, value in changes.items():
        *above, last = path.split(".")
        place = spec
        for name in above:
            place = place.setdefault(name, {})
        if value is None:
            place.pop(last, None)
        else:
            place[last] = deepcopy(value)
