"""Who reaches whose pods over the network."""

from __future__ import annotations

from typing import Any

from components.documents import pods
from trainyard.k8s import names


def selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    """As Kubernetes decides it, for the two operators that are used here."""
    exact = selector.get("matchLabels", {})
    exists = [each["key"] for each in selector.get("matchExpressions", []) if each["operator"] == "Exists"]
    return all(labels.get(k) == v for k, v in exact.items()) and all(key in labels for key in exists)


def reached(spec: dict[str, Any], pod: dict[str, str], peer: dict[str, str]) -> bool:
    """Whether a policy lets a peer of the same namespace reach a pod that it is about."""
    assert selects(spec["podSelector"], pod), "the policy is not about this pod"
    sources = [source["podSelector"] for rule in spec.get("ingress", []) for source in rule["from"]]
    return any(selects(source, peer) for source in sources)


WORKER = {names.LABEL_JOB_NAME: "train-r1"}
DEBUG = {"app.kubernetes.io/name": "network-debug"}


def test_nothing_reaches_a_pod_of_a_closed_namespace() -> None:
    for pod in (WORKER, DEBUG, {}):
        assert not reached(pods.deny_ingress(), pod, WORKER)


def test_workers_reach_each_other_and_nobody_else_reaches_them() -> None:
    spec = pods.jobs_from(pods.JOB_PODS)
    assert reached(spec, WORKER, {**WORKER, "training.kubeflow.org/replica-type": "worker"})
    assert not reached(spec, WORKER, DEBUG)
    assert not reached(spec, WORKER, {})


def test_the_debug_pod_reaches_workers() -> None:
    assert reached(pods.jobs_from({"matchLabels": DEBUG}), WORKER, DEBUG)


def test_one_port_is_open_to_all_and_only_that_one() -> None:
    spec = pods.port_open({"a": "b"}, 9443)
    assert spec["ingress"] == [{"ports": [{"protocol": "TCP", "port": 9443}]}]
    assert spec["podSelector"] == {"matchLabels": {"a": "b"}}
    assert spec["policyTypes"] == ["Ingress"]


def test_metrics_are_read_from_marked_namespaces_at_one_port_and_by_nobody_beside() -> None:
    spec = pods.scraped({"a": "b"}, 9464, {"c": "d"})
    assert spec["podSelector"] == {"matchLabels": {"a": "b"}}
    assert spec["policyTypes"] == ["Ingress"]
    assert spec["ingress"] == [
        {
            "from": [{"namespaceSelector": {"matchLabels": {"c": "d"}}}],
            "ports": [{"protocol": "TCP", "port": 9464}],
        }
    ]
