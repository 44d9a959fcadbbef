"""What pods have in common: the security context of the restricted profile, and network policies. Pure.

`pod` and `container` return the fields that
https://kubernetes.io/docs/concepts/security/pod-security-standards/#restricted requires. Each call returns a new
mapping, because YAML writes a mapping that is used twice as a reference.

The other functions return the `spec` of NetworkPolicies; those of TorchrunJobs and their controller are in
config/network.yaml and config/network-jobs.yaml. The VPC CNI enforces them (`components.cluster`). Policies add up:
once one selects a pod, only listed traffic reaches it. They do not apply to EFA traffic between workers, and a node can
always reach its pods (https://kubernetes.io/docs/concepts/services-networking/network-policies/).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from trainyard.k8s import names

JsonObject = dict[str, Any]

JOB_PODS: Final[Mapping[str, Any]] = {
    "matchExpressions": [{"key": names.LABEL_JOB_NAME, "operator": "Exists"}]
}


def closed() -> JsonObject:
    """Nothing reaches any pod of the namespace."""
    return {"podSelector": {}, "policyTypes": ["Ingress"]}


def jobs_from(peer: Mapping[str, Any], jobs: Mapping[str, Any] = JOB_PODS) -> JsonObject:
    """The pods of jobs are reached by the pods that `peer` selects, in their own namespace."""
    return {
        "podSelector": dict(jobs),
        "policyTypes": ["Ingress"],
        "ingress": [{"from": [{"podSelector": dict(peer)}]}],
    }


def scraped(labels: Mapping[str, str], port: int, scrapers: Mapping[str, str]) -> JsonObject:
    """One TCP port of the pods with these labels is reached by the pods of the namespaces with the labels `scrapers`.

    No namespace has them until its owner says so. kubebuilder's projects let their metrics be read this way, too
    (kubernetes-sigs/kubebuilder@22b877f,
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


def port_open(labels: Mapping[str, str], port: int) -> JsonObject:
    """One TCP port of the pods with these labels is reached by everybody.

    A webhook is called by the API server, whose addresses no selector names.
    """
    return {
        "podSelector": {"matchLabels": dict(labels)},
        "policyTypes": ["Ingress"],
        "ingress": [{"ports": [{"protocol": "TCP", "port": port}]}],
    }


def policy(name: str, namespace: str, spec: JsonObject) -> JsonObject:
    """The whole object."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    }


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
