"""What may reach pods over the network. Pure: the `spec` of NetworkPolicies.

Those of torchrun jobs and their controller are in config/network.yaml and config/network-jobs.yaml.

They are enforced by the VPC CNI, which is told so (`components.cluster`). Policies add up: what none lets in is refused
once one is about a pod. EFA's traffic between workers is no IP traffic and passes by; the machine's own always
may reach its pods (https://kubernetes.io/docs/concepts/services-networking/network-policies/).
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
