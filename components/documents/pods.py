"""The security context of the restricted profile, and network policies.

`helper_spec`, `pod` and `container` return the fields that
https://kubernetes.io/docs/concepts/security/pod-security-standards/#restricted requires. Each call returns a
new mapping, because YAML writes a mapping that is used twice as a reference.

The other functions return the `spec` of NetworkPolicies; those of TorchrunJobs and their controller are in
config/network.yaml and config/network-jobs.yaml. The VPC CNI enforces them (`components.cluster`). Policies add
up: once one selects a pod, only listed traffic reaches it. They do not apply to EFA traffic between workers,
and a node can always reach its pods
(https://kubernetes.io/docs/concepts/services-networking/network-policies/).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from trainyard.k8s import names

from . import JsonObject

JOB_PODS: Final[Mapping[str, Any]] = {
    "matchExpressions": [{"key": names.LABEL_JOB_NAME, "operator": "Exists"}]
}

# One thousandth of a core: without requests, the pod would be the first to be evicted from a full node.
SMALL_REQUESTS: Final = {"cpu": "1m", "memory": "16Mi"}


def deny_ingress() -> JsonObject:
    """Return a policy that blocks all ingress to the pods of the namespace."""
    return {"podSelector": {}, "policyTypes": ["Ingress"]}


def jobs_from(peer: Mapping[str, Any], jobs: Mapping[str, Any] = JOB_PODS) -> JsonObject:
    """Return a policy that allows the pods selected by `peer` to reach the pods of jobs in their namespace."""
    return {
        "podSelector": dict(jobs),
        "policyTypes": ["Ingress"],
        "ingress": [{"from": [{"podSelector": dict(peer)}]}],
    }


def scraped(labels: Mapping[str, str], port: int, scrapers: Mapping[str, str]) -> JsonObject:
    """Return a policy that allows namespaces with the labels `scrapers` to reach one TCP port of pods with `labels`.

    No namespace has these labels until its owner adds them. kubebuilder's projects protect their metrics in the
    same way (kubernetes-sigs/kubebuilder@22b877f,
    docs/book/src/cronjob-tutorial/testdata/project/config/network-policy/allow-metrics-traffic.yaml).
    """
    return {
        "podSelector": {"matchLabels": dict(labels)},
        "policyTypes": ["Ingress"],
        "ingress": [
            {
                "from": [{"namespaceSelector": {"matchLabels": dict(scrapers)}}],
                "ports": [{"protocol": "TCP", "port": port}],
            }
        ],
    }


def scrape_annotations(port: int) -> dict[str, str]:
    """Return annotations with which Prometheus, and the controller of torchrun jobs, find the metrics of a pod.

    Not a standard, but the default annotations of Prometheus' chart
    (prometheus-community/helm-charts@005bec2, charts/prometheus/values.yaml, job kubernetes-pods).
    """
    return {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(port),
        "prometheus.io/path": names.METRICS_PATH,
    }


def port_open(labels: Mapping[str, str], port: int) -> JsonObject:
    """Return a policy that allows everybody to reach one TCP port of the pods with these labels.

    The API server calls a webhook, and no selector matches its addresses.
    """
    return {
        "podSelector": {"matchLabels": dict(labels)},
        "policyTypes": ["Ingress"],
        "ingress": [{"ports": [{"protocol": "TCP", "port": port}]}],
    }


def policy(name: str, namespace: str, spec: JsonObject) -> JsonObject:
    """Return the NetworkPolicy object."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    }


def helper_spec() -> JsonObject:
    """Return fields of the `spec` of a helper pod: restricted, without an API token, and ended at once."""
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 1,
        "securityContext": pod(),
    }


def pod() -> JsonObject:
    """Return the `securityContext` of a pod: a user without privileges, and the runtime's default seccomp profile."""
    return {
        "runAsNonRoot": True,
        "runAsUser": names.POD_USER,
        "runAsGroup": names.POD_USER,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container() -> JsonObject:
    """Return the `securityContext` of a container: no privileges, and a read-only root file system."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
