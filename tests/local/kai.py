"""KAI Scheduler's kinds, as its installation brings them; nobody schedules by them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import yaml

from launcher.core.torchrun import names as n
from tests.local.own_api_server import ApiServer


def _definition(kind: str, plural: str, version: str, scope: str) -> dict[str, Any]:
    """The name, place and scope of a kind of KAI Scheduler v0.17.0; its schema is not what is asked here."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{n.KAI_GROUP}"},
        "spec": {
            "group": n.KAI_GROUP,
            "scope": scope,
            "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
            "versions": [
                {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
            ],
        },
    }


_KINDS = [
    _definition("PodGroup", n.KAI_POD_GROUP_PLURAL, n.KAI_POD_GROUP_VERSION, "Namespaced"),
    _definition("Queue", n.KAI_QUEUE_PLURAL, n.KAI_QUEUE_VERSION, "Cluster"),
]


@contextmanager
def kai_kinds(server: ApiServer) -> Iterator[None]:
    """They are there meanwhile."""
    manifests = yaml.safe_dump_all(_KINDS)
    applied = server.kubectl("apply", "-f", "-", stdin=manifests)
    assert applied.returncode == 0, applied.stderr
    kinds = [f"crd/{each['metadata']['name']}" for each in _KINDS]
    established = server.kubectl("wait", "--for=condition=Established", "--timeout=60s", *kinds)
    assert established.returncode == 0, established.stderr
    yield
    server.kubectl("delete", "-f", "-", "--timeout=60s", stdin=manifests)
