"""KAI Scheduler's kinds and its two queues, as its installation brings them; nobody schedules by them.

Their fields are those of github.com/kai-scheduler/KAI-Scheduler v0.17.0, pkg/apis/scheduling/v2 and v2alpha2, but for
those of subgroups: the API server drops what is none of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import yaml

from launcher.core.torchrun import names as n
from tests.local.own_api_server import ApiServer

Schema = dict[str, Any]
_TEXT: Schema = {"type": "string"}
_ANYTHING: Schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def _count(least: int) -> Schema:
    return {"type": "integer", "format": "int32", "minimum": least}


def _object(**fields: Schema) -> Schema:
    return {"type": "object", "properties": fields}


_AMOUNTS = _object(**{name: {"type": "number"} for name in ("quota", "limit", "overQuotaWeight")})
_QUEUE = _object(
    displayName=_TEXT,
    parentQueue=_TEXT,
    preemptMinRuntime=_TEXT,
    reclaimMinRuntime=_TEXT,
    priority={"type": "integer"},
    resources=_object(cpu=_AMOUNTS, gpu=_AMOUNTS, memory=_AMOUNTS),
)
_POD_GROUP = _object(
    minMember=_count(1),
    minSubGroup=_count(1),
    queue=_TEXT,
    priorityClassName=_TEXT,
    preemptibility={"type": "string", "enum": ["preemptible", "non-preemptible"]},
    markUnschedulable={"type": "boolean"},
    schedulingBackoff={"type": "integer", "format": "int32"},
    topologyConstraint=_object(topology=_TEXT, requiredTopologyLevel=_TEXT, preferredTopologyLevel=_TEXT),
)


def _definition(kind: str, plural: str, version: str, scope: str, spec: Schema) -> dict[str, Any]:
    served = {
        "name": version,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": _object(spec=spec, status=_ANYTHING)},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{n.KAI_GROUP}"},
        "spec": {
            "group": n.KAI_GROUP,
            "scope": scope,
            "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
            "versions": [served],
        },
    }


_KINDS = [
    _definition("PodGroup", n.KAI_POD_GROUP_PLURAL, n.KAI_POD_GROUP_VERSION, "Namespaced", _POD_GROUP),
    _definition("Queue", n.KAI_QUEUE_PLURAL, n.KAI_QUEUE_VERSION, "Cluster", _QUEUE),
]
_MANIFESTS = yaml.safe_dump_all(_KINDS)
_UNLIMITED = {kind: {"quota": -1, "limit": -1, "overQuotaWeight": 1} for kind in ("cpu", "gpu", "memory")}
_TREE = {n.KAI_PARENT_QUEUE: {}, n.KAI_DEFAULT_QUEUE: {"parentQueue": n.KAI_PARENT_QUEUE}}
_OWN_QUEUES = yaml.safe_dump_all(
    {
        "apiVersion": f"{n.KAI_GROUP}/{n.KAI_QUEUE_VERSION}",
        "kind": "Queue",
        "metadata": {"name": name},
        "spec": {**above, "resources": _UNLIMITED},
    }
    for name, above in _TREE.items()
)
QUEUES = f"/apis/{n.KAI_GROUP}/{n.KAI_QUEUE_VERSION}/{n.KAI_QUEUE_PLURAL}"


def gangs(namespace: str) -> str:
    """Where the PodGroups of a namespace are."""
    version = f"/apis/{n.KAI_GROUP}/{n.KAI_POD_GROUP_VERSION}"
    return f"{version}/namespaces/{namespace}/{n.KAI_POD_GROUP_PLURAL}"


def install(server: ApiServer) -> None:
    """They are there from now on."""
    applied = server.kubectl("apply", "-f", "-", stdin=_MANIFESTS)
    assert applied.returncode == 0, applied.stderr
    kinds = [f"crd/{each['metadata']['name']}" for each in _KINDS]
    established = server.kubectl("wait", "--for=condition=Established", "--timeout=60s", *kinds)
    assert established.returncode == 0, established.stderr
    applied = server.kubectl("apply", "-f", "-", stdin=_OWN_QUEUES)
    assert applied.returncode == 0, applied.stderr


@contextmanager
def kai_kinds(server: ApiServer) -> Iterator[None]:
    """They are there meanwhile."""
    install(server)
    yield
    server.kubectl("delete", "-f", "-", "--timeout=60s", stdin=_MANIFESTS)
