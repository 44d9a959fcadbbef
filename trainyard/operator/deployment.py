"""The controller's own Deployment, with its namespace and its service account."""

from __future__ import annotations

import re
from typing import Any, Final

from launcher.manifests import pod_security
from trainyard.k8s import names
from trainyard.operator import names as n

# The controller is in the launcher's image, which a stack builds or is given: no digest is known before. This one can't
# be pulled from anywhere (RFC 2606 keeps .invalid free), so that nothing else runs in its place.
IMAGE: Final = f"launcher.invalid/launcher@sha256:{'0' * 64}"
_DIGEST: Final = re.compile(r"[^\s@]+@sha256:[0-9a-f]{64}")
_LABELS: Final = {"app.kubernetes.io/name": n.CONTROLLER}


def checked(image: str) -> str:
    """The image, if it is given by its digest.

    Raises:
        ValueError: it is not.
    """
    if _DIGEST.fullmatch(image) is None:
        raise ValueError(
            f"image {image!r} is not given by its digest; it must be <name>@sha256:<64 hex digits>"
        )
    return image


def objects(image: str = IMAGE) -> list[dict[str, Any]]:
    """Everything but rights."""
    return [_namespace(), _service_account(), _deployment(image)]


def _metadata(**more: Any) -> dict[str, Any]:
    return {"name": n.CONTROLLER, "namespace": n.CONTROLLER_NAMESPACE, "labels": dict(_LABELS), **more}


def _namespace() -> dict[str, Any]:
    """Under the restricted security standard (https://kubernetes.io/docs/concepts/security/pod-security-standards/)."""
    levels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "audit", "warn")}
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": n.CONTROLLER_NAMESPACE, "labels": {**_LABELS, **levels}},
    }


def _service_account() -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": _metadata(),
        "automountServiceAccountToken": False,
    }


def _deployment(image: str) -> dict[str, Any]:
    """One replica, and the old one is gone before the new one starts: two would make and delete the same objects."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(),
        "spec": {
            "replicas": 1,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": dict(_LABELS)},
            "template": {"metadata": {"labels": dict(_LABELS)}, "spec": _pod(image)},
        },
    }


def _pod(image: str) -> dict[str, Any]:
    return {
        "serviceAccountName": n.CONTROLLER,
        "automountServiceAccountToken": True,
        "terminationGracePeriodSeconds": 30,
        "securityContext": pod_security(),
        "containers": [_container(image)],
        "volumes": [{"name": "tmp", "emptyDir": {"sizeLimit": "64Mi"}}],
    }


def _container(image: str) -> dict[str, Any]:
    return {
        "name": "controller",
        "image": image,
        "command": ["python", "-m", "trainyard.operator"],
        "env": [
            {"name": n.ENV_TOOLS_IMAGE, "value": image},
            {"name": names.ENV_POD_UID, "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
        ],
        "ports": [
            {"name": "liveness", "containerPort": n.LIVENESS_PORT},
            {"name": "metrics", "containerPort": names.METRICS_PORT},
        ],
        # kopf answers 500 there when one of its probes fails, and not at all when its loop hangs.
        "livenessProbe": {
            "httpGet": {"path": n.LIVENESS_PATH, "port": "liveness"},
            "initialDelaySeconds": 15,
            "periodSeconds": 10,
            "timeoutSeconds": 5,
            "failureThreshold": 3,
        },
        # 1,000 jobs at rest take less than half of the memory; their events after a restart come all at once.
        "resources": {
            "requests": {"cpu": "100m", "memory": "256Mi"},
            "limits": {"cpu": "1", "memory": "512Mi"},
        },
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],  # noqa: S108  (in the container)
    }
