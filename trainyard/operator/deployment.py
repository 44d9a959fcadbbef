"""Build the Deployment of the controller, its namespace and service account, and the NetworkPolicies.

The entry points are `objects`, `controller_policies` and `job_namespace_policies`. A stack applies the same objects.
"""

from __future__ import annotations

import re
from typing import Any, Final

from launcher.manifests import pod_security
from trainyard.k8s import names
from trainyard.operator import names as n

# The controller is in the launcher's image. A stack builds or names that image, so its digest is not known here. Nobody
# can publish this one (RFC 2606 reserves .invalid).
IMAGE: Final = f"launcher.invalid/launcher@sha256:{'0' * 64}"
_LABELS: Final = {"app.kubernetes.io/name": n.CONTROLLER}
# Every namespace has this label (https://kubernetes.io/docs/reference/labels-annotations-taints/).
_NAMESPACE_NAME: Final = "kubernetes.io/metadata.name"
# The labels that EKS and kubeadm give CoreDNS (https://docs.aws.amazon.com/eks/latest/userguide/managing-coredns.html).
_DNS: Final = {
    "namespaceSelector": {"matchLabels": {_NAMESPACE_NAME: "kube-system"}},
    "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
}
# The ports of the API server: 443 on EKS, 6443 with kubeadm. Most network plugins see the port behind the Service.
_API_SERVER_PORTS: Final = (443, 6443)
_JOBS: Final = {"matchExpressions": [{"key": n.LABEL_JOB, "operator": "Exists"}]}
_SCRAPERS: Final = {"namespaceSelector": {"matchLabels": {names.LABEL_SCRAPER: names.SCRAPER}}}


def check_image(image: str) -> str:
    """Return the image.

    Raises:
        ValueError: The image has no digest.
    """
    if re.fullmatch(r"[^\s@]+@sha256:[0-9a-f]{64}", image) is None:
        raise ValueError(f"image is {image!r}; it must be <name>@sha256:<64 hex digits>")
    return image


def objects(image: str = IMAGE) -> list[dict[str, Any]]:
    """Return the objects, without the RBAC roles and the NetworkPolicies."""
    # The Pod Security Standard "restricted" (https://kubernetes.io/docs/concepts/security/pod-security-standards/).
    levels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "audit", "warn")}
    metadata = {"name": n.CONTROLLER, "namespace": n.CONTROLLER_NAMESPACE, "labels": _LABELS}
    pod = {
        "serviceAccountName": n.CONTROLLER,
        "automountServiceAccountToken": True,
        "terminationGracePeriodSeconds": 30,
        "securityContext": pod_security(),
        "containers": [_container(image)],
        "volumes": [{"name": "tmp", "emptyDir": {"sizeLimit": "64Mi"}}],
    }
    deployment = {
        "replicas": 1,
        # Two controllers would create and delete the same objects.
        "strategy": {"type": "Recreate"},
        "selector": {"matchLabels": _LABELS},
        "template": {"metadata": {"labels": _LABELS}, "spec": pod},
    }
    return [
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": n.CONTROLLER_NAMESPACE, "labels": {**_LABELS, **levels}},
        },
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata, "automountServiceAccountToken": False},
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": deployment},
    ]  # fmt: skip


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
        # 500 if no reconcile, not even the heartbeat, ended for three minutes.
        "livenessProbe": {
            "httpGet": {"path": n.LIVENESS_PATH, "port": "liveness"},
            "initialDelaySeconds": 15,
            "periodSeconds": 10,
            "timeoutSeconds": 5,
            "failureThreshold": 3,
        },
        # 1,000 idle jobs need less than half of the memory. After a restart, all their events arrive at once.
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


def controller_policies() -> list[dict[str, Any]]:
    """Return the NetworkPolicies of the controller's namespace.

    Once a policy selects a pod, only traffic that some policy allows reaches it. A node always reaches its own pods, so
    the kubelet's probes need no policy (https://kubernetes.io/docs/concepts/services-networking/network-policies/).
    """
    controller = {"matchLabels": _LABELS}
    scraping = [{"from": [_SCRAPERS], "ports": [_tcp(names.METRICS_PORT)]}]
    jobs = {"namespaceSelector": {}, "podSelector": _JOBS}
    calls = [
        {"ports": [_tcp(port) for port in _API_SERVER_PORTS]},
        {"to": [_DNS], "ports": [{"protocol": "UDP", "port": 53}, _tcp(53)]},
        {"to": [jobs], "ports": [_tcp(names.TRAINER_METRICS_PORT)]},
    ]
    namespace = n.CONTROLLER_NAMESPACE
    return [
        _policy("closed", {}, {"policyTypes": ["Ingress"]}, namespace),
        _policy("metrics", controller, {"policyTypes": ["Ingress"], "ingress": scraping}, namespace),
        _policy("calls", controller, {"policyTypes": ["Egress"], "egress": calls}, namespace),
    ]


def job_namespace_policies() -> list[dict[str, Any]]:
    """Return the NetworkPolicies of a namespace with jobs: traffic between pods, and scraping of metrics."""
    controller = {"namespaceSelector": {"matchLabels": {_NAMESPACE_NAME: n.CONTROLLER_NAMESPACE}}}
    workers = [{"from": [{"podSelector": _JOBS}]}]
    scraping = [{"from": [_SCRAPERS, controller], "ports": [_tcp(names.TRAINER_METRICS_PORT)]}]
    return [
        _policy("torchrun-jobs", _JOBS, {"policyTypes": ["Ingress"], "ingress": workers}),
        _policy("torchrun-metrics", _JOBS, {"policyTypes": ["Ingress"], "ingress": scraping}),
    ]


def _tcp(port: int) -> dict[str, Any]:
    return {"protocol": "TCP", "port": port}


def _policy(name: str, pods: dict[str, Any], spec: dict[str, Any], namespace: str = "") -> dict[str, Any]:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name, **({"namespace": namespace} if namespace else {})},
        "spec": {"podSelector": pods, **spec},
    }
