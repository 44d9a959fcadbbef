"""Changes of an object that its API server refuses and that no plugin replaces first: an `up` would fail at them. Pure.

kubernetes 1.35.4, `Validate...Update` in pkg/apis/{core,batch,scheduling,storage}/validation/validation.go. Only kinds
that the program deploys are here; rules in the schemas of custom resources are not. What may change in one direction
(a deadline may become shorter) counts as refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from tests.integration.graph.paths import covers

_FIXED: Final[dict[tuple[str, str], tuple[str, ...]]] = {
    ("v1", "Pod"): ("spec",),
    ("v1", "PersistentVolume"): ("spec.volumeMode", "spec.nodeAffinity"),
    ("v1", "PersistentVolumeClaim"): ("spec",),
    ("batch/v1", "Job"): (
        "spec.backoffLimitPerIndex",
        "spec.completionMode",
        "spec.managedBy",
        "spec.podFailurePolicy",
        "spec.successPolicy",
    ),
    ("scheduling.k8s.io/v1", "PriorityClass"): ("value", "preemptionPolicy"),
    ("storage.k8s.io/v1", "StorageClass"): ("reclaimPolicy", "volumeBindingMode"),
}
_OPEN: Final[dict[tuple[str, str], tuple[str, ...]]] = {
    ("v1", "Pod"): ("spec.tolerations[*].tolerationSeconds",),
    ("v1", "PersistentVolumeClaim"): ("spec.resources.requests", "spec.volumeAttributesClassName"),
}
# Tolerations may be added, not changed.
_ADDED: Final = re.compile(r"spec\.tolerations(\[\d+\])?")


def fixed(api_version: str, kind: str) -> tuple[str, ...]:
    """Property paths of a kind of object that stay as they were made, or some of whose parts do."""
    return _FIXED.get((api_version, kind), ())


def refused(api_version: str, kind: str, changed: Mapping[str, str]) -> list[str]:
    """Those of the changes (property path -> `add`, `delete` or `update`) that the API server refuses."""
    opened = _OPEN.get((api_version, kind), ())
    return [
        path
        for path, how in changed.items()
        if any(covers(each, path) for each in fixed(api_version, kind))
        and not any(covers(each, path) for each in opened)
        and not (kind == "Pod" and how == "add" and _ADDED.fullmatch(path))
    ]
