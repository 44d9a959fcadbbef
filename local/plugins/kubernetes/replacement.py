"""Which changes of an object need a new one. Pure.

The table holds what the official plugin replaces without asking (its `forceNewProperties`); for everything else the
API server is asked by a dry run, and a refusal that calls a field immutable means the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from local.plugins.kubernetes.client import ApiError

_ALWAYS = ("apiVersion", "kind", "metadata.name", "metadata.namespace")
_POD = (
    "spec.containers[*].env",
    "spec.containers[*].envFrom",
    "spec.containers[*].name",
    "spec.containers[*].ports",
    "spec.containers[*].resources",
    "spec.containers[*].volumeMounts",
    "spec.containers[*].command",
    "spec.containers[*].args",
    "spec.initContainers",
    "spec.nodeName",
    "spec.nodeSelector",
    "spec.restartPolicy",
    "spec.securityContext",
    "spec.serviceAccountName",
    "spec.volumes",
)
_TABLE: dict[tuple[str, str], tuple[str, ...]] = {
    ("v1", "ConfigMap"): ("data", "binaryData"),
    ("v1", "Secret"): ("data", "stringData", "type"),
    ("v1", "Service"): ("spec.clusterIP", "spec.type"),
    ("v1", "PersistentVolumeClaim"): (
        "spec.accessModes",
        "spec.selector",
        "spec.storageClassName",
        "spec.volumeName",
        "spec.volumeMode",
        "spec.dataSource",
    ),
    ("v1", "ResourceQuota"): ("spec.scopes",),
    ("v1", "Pod"): _POD,
    ("apps/v1", "Deployment"): ("spec.selector",),
    ("apps/v1", "DaemonSet"): ("spec.selector",),
    ("apps/v1", "StatefulSet"): (
        "spec.podManagementPolicy",
        "spec.selector",
        "spec.serviceName",
        "spec.volumeClaimTemplates",
    ),
    ("batch/v1", "Job"): ("spec.completions", "spec.selector", "spec.template", "spec.completionMode"),
    ("rbac.authorization.k8s.io/v1", "RoleBinding"): ("roleRef",),
    ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding"): ("roleRef",),
    ("storage.k8s.io/v1", "StorageClass"): ("parameters", "provisioner"),
}
_MUTABLE = {"ConfigMap": ("data", "binaryData"), "Secret": ("data", "stringData")}
_IMMUTABLE = re.compile(
    r"immutable|may not be changed|cannot be changed|updates to .* are forbidden", re.IGNORECASE
)


def known_replacements(
    inputs: Mapping[str, Any], changed: Iterable[str], mutable_kinds: frozenset[str] = frozenset()
) -> list[str]:
    """The changed property paths that the table replaces. `mutable_kinds`: ConfigMap and Secret where allowed."""
    kind = str(inputs.get("kind"))
    patterns = list(_ALWAYS) + list(_TABLE.get((str(inputs.get("apiVersion")), kind), ()))
    if kind in mutable_kinds:
        patterns = [pattern for pattern in patterns if pattern not in _MUTABLE[kind]]
    return [path for path in changed if any(_covers(pattern, path) for pattern in patterns)]


def refused_replacements(error: ApiError, changed: Iterable[str]) -> list[str] | None:
    """The changed paths that the API server calls immutable; None when it refuses for another reason."""
    if error.code != 422 or not _IMMUTABLE.search(str(error)):
        return None
    fields = [re.sub(r"\[[^\]]*\]", "", field) for field in error.fields()]
    paths = list(changed)
    hit = [
        path
        for path in paths
        if any(_covers(field, _plain(path)) or _covers(_plain(path), field) for field in fields)
    ]
    return hit or [path for path in paths if not path.startswith("metadata.")] or paths


def _covers(pattern: str, path: str) -> bool:
    expression = re.escape(pattern).replace(r"\[\*\]", r"\[\d+\]")
    return re.match(rf"{expression}(?=$|[.\[])", path) is not None


def _plain(path: str) -> str:
    return re.sub(r"\[[^\]]*\]", "", path)
