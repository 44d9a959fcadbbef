"""What the restricted pod security standard wants of a pod and of its containers, as each of ours has it.

https://kubernetes.io/docs/concepts/security/pod-security-standards/#restricted. Each call makes a mapping of its own:
one that stands in a manifest twice would be written as a reference to itself.
"""

from __future__ import annotations

from typing import Any

from trainyard.k8s import names


def pod() -> dict[str, Any]:
    """The `securityContext` of a pod: an ordinary user, and the runtime's own filter of system calls."""
    return {
        "runAsNonRoot": True,
        "runAsUser": names.POD_USER,
        "runAsGroup": names.POD_USER,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container() -> dict[str, Any]:
    """The `securityContext` of a container: no privilege, and nothing to write to but its volumes."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
