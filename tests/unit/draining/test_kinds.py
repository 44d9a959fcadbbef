"""The objects that a drain may delete."""

from __future__ import annotations

from typing import Any

import pytest

from components.draining.kinds import (
    GANGS,
    HOLDERS,
    INGRESSES,
    JOBS,
    NODE_CLAIMS,
    NODE_CLASSES,
    NODE_POOLS,
    PODS,
    PYTORCH_JOBS,
    QUEUES,
    SERVICES,
    VOLUMES,
    Kind,
    Scope,
    holds_a_node,
)
from components.lustre import LustreProof, LustreProofArgs
from tests.unit.components.recording import deploy

OWN = Scope()
SHARED = Scope(pools=frozenset({"small"}))


def item(name: str, namespace: str | None = None, **more: Any) -> dict[str, Any]:
    labels = more.pop("labels", {})
    annotations = more.pop("annotations", {})
    metadata = {"name": name, "labels": labels, "annotations": annotations}
    return {"metadata": {**metadata, **({"namespace": namespace} if namespace else {})}, **more}


def test_kinds_select_only_objects_of_runs() -> None:
    assert JOBS.labels == "trainyard.dev/role=launcher"
    assert PODS.labels == HOLDERS.labels == "trainyard.dev/role"
    assert NODE_CLAIMS.labels == "karpenter.sh/nodepool"


def test_pods_include_the_lustre_proof_pod() -> None:
    args = LustreProofArgs(image="i@sha256:0", claim="lustre", mount_path="/fsx", placement={}, after=[])
    pod = deploy(lambda: LustreProof("lustre-proof", args)).one("kubernetes:core/v1:Pod").inputs
    assert PODS.labels in pod["metadata"]["labels"]
    assert pod["metadata"]["namespace"] == PODS.namespace


def test_services_include_only_load_balancers() -> None:
    assert OWN.has(SERVICES, item("a", "web", spec={"type": "LoadBalancer"}))
    assert not OWN.has(SERVICES, item("a", "web", spec={"type": "ClusterIP"}))


def test_shared_cluster_includes_only_pools_of_the_stack() -> None:
    balancer = {"type": "LoadBalancer"}
    assert SHARED.has(SERVICES, item("a", "training", spec=balancer))
    assert not SHARED.has(SERVICES, item("a", "web", spec=balancer))
    assert not SHARED.has(INGRESSES, item("a", "web"))
    for kind in (NODE_POOLS, NODE_CLASSES):
        assert SHARED.has(kind, item("small"))
        assert not SHARED.has(kind, item("foreign"))
    assert SHARED.has(NODE_CLAIMS, item("x", labels={"karpenter.sh/nodepool": "small"}))
    assert not SHARED.has(NODE_CLAIMS, item("x", labels={"karpenter.sh/nodepool": "foreign"}))
    assert OWN.has(NODE_CLAIMS, item("x", labels={"karpenter.sh/nodepool": "foreign"}))


@pytest.mark.parametrize("kind", [GANGS, QUEUES])
def test_torchrun_kinds_are_deleted_only_with_their_crds(
    kind: Kind,
) -> None:
    """In an existing cluster they may belong to another team, and RBAC may not allow to list them."""
    with_crds = Scope(pools=frozenset({"small"}), torchrun=True)
    for scope in (OWN, with_crds):
        assert scope.asks_for(kind)
        assert scope.has(kind, item("a", "team"))
    for namespace in ("training", "team"):
        assert not SHARED.has(kind, item("a", namespace))
    assert not SHARED.asks_for(kind)
    assert SHARED.asks_for(PYTORCH_JOBS)
    assert not with_crds.has(SERVICES, item("a", "web", spec={"type": "LoadBalancer"}))


def volume(policy: str, driver: str | None, namespace: str = "training") -> dict[str, Any]:
    annotations = {"pv.kubernetes.io/provisioned-by": driver} if driver else {}
    claim = {"namespace": namespace, "name": "data"}
    return item(
        "pv", annotations=annotations, spec={"persistentVolumeReclaimPolicy": policy, "claimRef": claim}
    )


def test_static_and_retained_volumes_are_kept() -> None:
    assert OWN.has(VOLUMES, volume("Delete", "ebs.csi.aws.com"))
    assert not OWN.has(VOLUMES, volume("Retain", "ebs.csi.aws.com"))
    assert not OWN.has(VOLUMES, volume("Delete", None)), "a static volume of FSx"
    assert not SHARED.has(VOLUMES, volume("Delete", "ebs.csi.aws.com", "foreign"))


def pod(node: str, phase: str = "Running", owner: str | None = None) -> dict[str, Any]:
    pod_ = item("p", "web", spec={"nodeName": node}, status={"phase": phase})
    pod_["metadata"]["ownerReferences"] = [{"kind": owner}] if owner else []
    return pod_


def test_holds_a_node_ignores_finished_and_node_owned_pods() -> None:
    nodes = frozenset({"n1"})
    assert holds_a_node(pod("n1"), nodes)
    assert holds_a_node(pod("n1", owner="ReplicaSet"), nodes)
    assert not holds_a_node(pod("system"), nodes)
    assert not holds_a_node(pod("n1", phase="Succeeded"), nodes)
    assert not holds_a_node(pod("n1", owner="DaemonSet"), nodes)
    assert not holds_a_node(pod("n1", owner="Node"), nodes)
