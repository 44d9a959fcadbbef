"""Which objects a drain may delete."""

from __future__ import annotations

from typing import Any

import pytest

from components.draining.kinds import (
    ALL_PODS,
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
    name_of,
)
from components.lustre import LustreProof, LustreProofArgs
from tests.unit.components.recording import deploy

pytestmark = pytest.mark.unit

OWN = Scope()
SHARED = Scope(pools=frozenset({"small"}))


def item(name: str, namespace: str | None = None, **more: Any) -> dict[str, Any]:
    labels = more.pop("labels", {})
    annotations = more.pop("annotations", {})
    metadata = {"name": name, "labels": labels, "annotations": annotations}
    return {"metadata": {**metadata, **({"namespace": namespace} if namespace else {})}, **more}


def test_only_the_trainings_own_jobs_pods_and_deployments_are_asked_for() -> None:
    assert JOBS.labels == "trainyard.dev/role=launcher"
    assert PODS.labels == HOLDERS.labels == "trainyard.dev/role"
    assert NODE_CLAIMS.labels == "karpenter.sh/nodepool"


def test_the_pod_that_holds_the_shared_file_systems_claim_is_one_of_them() -> None:
    args = LustreProofArgs(image="i@sha256:0", claim="lustre", mount_path="/fsx", placement={}, after=[])
    pod = deploy(lambda: LustreProof("lustre-proof", args)).one("kubernetes:core/v1:Pod").inputs
    assert PODS.labels in pod["metadata"]["labels"]
    assert pod["metadata"]["namespace"] == PODS.namespace


def test_of_services_those_with_a_load_balancer() -> None:
    assert OWN.has(SERVICES, item("a", "web", spec={"type": "LoadBalancer"}))
    assert not OWN.has(SERVICES, item("a", "web", spec={"type": "ClusterIP"}))


def test_in_a_shared_cluster_only_the_stacks_pools_and_namespace_are_touched() -> None:
    balancer = {"type": "LoadBalancer"}
    assert SHARED.has(SERVICES, item("a", "training", spec=balancer))
    assert not SHARED.has(SERVICES, item("a", "web", spec=balancer))
    assert not SHARED.has(INGRESSES, item("a", "web"))
    for kind in (NODE_POOLS, NODE_CLASSES):
        assert SHARED.has(kind, item("small"))
        assert not SHARED.has(kind, item("theirs"))
    assert SHARED.has(NODE_CLAIMS, item("x", labels={"karpenter.sh/nodepool": "small"}))
    assert not SHARED.has(NODE_CLAIMS, item("x", labels={"karpenter.sh/nodepool": "theirs"}))
    assert OWN.has(NODE_CLAIMS, item("x", labels={"karpenter.sh/nodepool": "theirs"}))


@pytest.mark.parametrize("kind", [GANGS, QUEUES])
def test_torchrun_jobs_and_queues_go_from_everywhere_with_their_definitions_and_else_from_nowhere(
    kind: Kind,
) -> None:
    """Of a given cluster they may be somebody else's, and whoever destroys may not even list them."""
    brought = Scope(pools=frozenset({"small"}), torchrun=True)
    for scope in (OWN, brought):
        assert scope.asks_for(kind)
        assert scope.has(kind, item("a", "team"))
    for place in ("training", "team"):
        assert not SHARED.has(kind, item("a", place))
    assert not SHARED.asks_for(kind)
    assert SHARED.asks_for(PYTORCH_JOBS)
    assert not brought.has(SERVICES, item("a", "web", spec={"type": "LoadBalancer"}))


def volume(policy: str, driver: str | None, namespace: str = "training") -> dict[str, Any]:
    annotations = {"pv.kubernetes.io/provisioned-by": driver} if driver else {}
    claim = {"namespace": namespace, "name": "data"}
    return item(
        "pv", annotations=annotations, spec={"persistentVolumeReclaimPolicy": policy, "claimRef": claim}
    )


def test_volumes_that_somebody_made_by_hand_or_wants_kept_stay() -> None:
    assert OWN.has(VOLUMES, volume("Delete", "ebs.csi.aws.com"))
    assert not OWN.has(VOLUMES, volume("Retain", "ebs.csi.aws.com"))
    assert not OWN.has(VOLUMES, volume("Delete", None)), "a static volume of FSx"
    assert not SHARED.has(VOLUMES, volume("Delete", "ebs.csi.aws.com", "theirs"))


def pod(node: str, phase: str = "Running", owner: str | None = None) -> dict[str, Any]:
    made = item("p", "web", spec={"nodeName": node}, status={"phase": phase})
    made["metadata"]["ownerReferences"] = [{"kind": owner}] if owner else []
    return made


def test_a_pod_holds_its_machine_unless_it_has_ended_or_belongs_to_the_machine() -> None:
    nodes = frozenset({"n1"})
    assert holds_a_node(pod("n1"), nodes)
    assert holds_a_node(pod("n1", owner="ReplicaSet"), nodes)
    assert not holds_a_node(pod("system"), nodes)
    assert not holds_a_node(pod("n1", phase="Succeeded"), nodes)
    assert not holds_a_node(pod("n1", owner="DaemonSet"), nodes)
    assert not holds_a_node(pod("n1", owner="Node"), nodes)


def test_an_object_of_any_namespace_is_named_with_it() -> None:
    assert name_of(ALL_PODS, item("p", "web")) == "web/p"
    assert name_of(PODS, item("p", "training")) == "p"
