"""Warm nodes that stay without a job."""

from __future__ import annotations

from components.documents.pool import Pool
from components.warm_nodes import WarmNodes, WarmNodesArgs, deployment
from tests.unit.components.pools import CPU, pool
from tests.unit.components.recording import Recorded, deploy
from trainyard.k8s import names


def made(*pools: Pool) -> Recorded:
    return deploy(lambda: WarmNodes("warm", WarmNodesArgs(pools=pools, image="pause@sha256:0", after=[])))


def test_without_warm_nodes_there_is_nothing() -> None:
    assert [r.type for r in made(pool(), CPU).resources] == ["trainyard:karpenter:WarmNodes"]


def test_a_pool_gets_one_pod_per_machine_that_is_wanted() -> None:
    recorded = made(pool(warm_nodes=2), CPU)
    warm = recorded.one("kubernetes:apps/v1:Deployment", "warm-small").inputs
    assert warm["metadata"]["namespace"] == "training"
    assert warm["spec"]["replicas"] == 2
    pod = warm["spec"]["template"]
    (rule,) = pod["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert rule["topologyKey"] == "kubernetes.io/hostname"
    assert rule["labelSelector"]["matchLabels"] == pod["metadata"]["labels"]
    assert pod["spec"]["nodeSelector"] == {"karpenter.sh/nodepool": "small"}
    assert pod["spec"]["tolerations"] == pool().tolerations
    # `up` does not wait for nodes, and a new image launches no additional one.
    assert warm["metadata"]["annotations"] == {"pulumi.com/skipAwait": "true"}
    assert warm["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": "100%"}


def test_warm_pod_is_restricted_and_leaves_room_for_a_worker() -> None:
    """It takes none of the accelerators, and next to none of what a worker asks for."""
    pod = deployment(pool(warm_nodes=1), "pause")["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (container,) = pod["containers"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert container["resources"] == {
        "requests": {"cpu": "1m", "memory": "16Mi"},
        "limits": {"memory": "16Mi"},
    }


def test_its_priority_is_below_every_other_and_it_displaces_nothing() -> None:
    recorded = made(pool(warm_nodes=1))
    priority = recorded.one("kubernetes:scheduling.k8s.io/v1:PriorityClass").inputs
    assert priority["value"] < names.PLACEHOLDER_PRIORITY < names.WORKER_PRIORITY
    assert priority["preemptionPolicy"] == "Never"
    pod = recorded.one("kubernetes:apps/v1:Deployment").inputs["spec"]["template"]["spec"]
    assert pod["priorityClassName"] == priority["metadata"]["name"]
