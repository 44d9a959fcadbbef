"""Build the NetworkPolicies of the controller and of namespaces with jobs. A stack applies the same objects.

Policies are additive: once a policy selects a pod, only traffic that some policy allows reaches it. A node always
reaches its own pods, so the kubelet's probes need no policy
(https://kubernetes.io/docs/concepts/services-networking/network-policies/).
"""

from __future__ import annotations

from typing import Any, Final

from trainyard.k8s import names
from trainyard.operator import names as n

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
_CONTROLLER: Final = {"matchLabels": {"app.kubernetes.io/name": n.CONTROLLER}}


def controller_policies() -> list[dict[str, Any]]:
    """Return the policies of the controller's namespace."""
    egress = [
        {"ports": [_tcp(port) for port in _API_SERVER_PORTS]},
        {"to": [_DNS], "ports": [{"protocol": "UDP", "port": 53}, _tcp(53)]},
        {
            "to": [{"namespaceSelector": {}, "podSelector": _JOBS}],
            "ports": [_tcp(names.TRAINER_METRICS_PORT)],
        },
    ]
    return [
        _policy("closed", n.CONTROLLER_NAMESPACE, {}, {"policyTypes": ["Ingress"]}),
        _policy(
            "metrics",
            n.CONTROLLER_NAMESPACE,
            _CONTROLLER,
            {
                "policyTypes": ["Ingress"],
                "ingress": [{"from": [_SCRAPERS], "ports": [_tcp(names.METRICS_PORT)]}],
            },
        ),
        _policy("calls", n.CONTROLLER_NAMESPACE, _CONTROLLER, {"policyTypes": ["Egress"], "egress": egress}),
    ]


def job_namespace_policies() -> list[dict[str, Any]]:
    """Return the policies of a namespace with jobs: traffic between their pods, and scraping of their metrics."""
    controller = {"namespaceSelector": {"matchLabels": {_NAMESPACE_NAME: n.CONTROLLER_NAMESPACE}}}
    metrics = {"from": [_SCRAPERS, controller], "ports": [_tcp(names.TRAINER_METRICS_PORT)]}
    return [
        _policy(
            "torchrun-jobs",
            "",
            _JOBS,
            {"policyTypes": ["Ingress"], "ingress": [{"from": [{"podSelector": _JOBS}]}]},
        ),
        _policy("torchrun-metrics", "", _JOBS, {"policyTypes": ["Ingress"], "ingress": [metrics]}),
    ]


def _tcp(port: int) -> dict[str, Any]:
    return {"protocol": "TCP", "port": port}


def _policy(name: str, namespace: str, pods: dict[str, Any], spec: dict[str, Any]) -> dict[str, Any]:
    scope = {"namespace": namespace} if namespace else {}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name, **scope},
        "spec": {"podSelector": pods, **spec},
    }
