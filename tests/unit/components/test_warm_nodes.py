"""Warm nodes that stay without a job."""

from __future__ import annotations

from typing import Any

import pytest

from components.documents.pool import Pool
from components.warm_nodes import WarmNodes, WarmNodesArgs
from tests.unit.components.pools import CPU, pool
from tests.unit.components.recording import Recorded, deploy
from trainyard.k8s import names

pytestmark = pytest.mark.unit


def made(*pools: Pool) -> Recorded:
    return deploy(lambda: WarmNodes("warm", WarmNodesArgs(pools=pools, image="pause@sha256:0", after=[])))


def spec(*pools: Pool) -> dict[str, Any]:
    found: dict[str, Any] = made(*pools).one("kubernetes:apps/v1:Deployment").inputs["spec"]
    return found


def test_without_warm_nodes_there_is_nothing() -> None:
    assert [r.type for r in made(pool(), CPU).resources] == ["trainyard:karpenter:WarmNodes"]


def test_a_pool_gets_one_pod_per_machine_that_is_wanted() -> None:
    recorded = made(pool(warm_nodes=2), CPU)
    deployment = recorded.one("kubernetes:apps/v1:Deployment", "warm-small").inputs
    assert deployment["metadata"]["namespace"] == "training"
    assert deployment["spec"]["replicas"] == 2
    pod = deployment["spec"]["template"]
    (rule,) = pod["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert rule["topologyKey"] == "kubernetes.io/hostname"
    assert rule["labelSelector"]["matchLabels"] == pod["metadata"]["labels"]
    assert pod["spec"]["nodeSelector"] == {"karpenter.sh/nodepool": "small"}
    assert pod["spec"]["tolerations"] == pool().tolerations


def test_up_does_not_wait_for_machines() -> None:
    annotations = (
        made(pool(warm_nodes=1)).one("kubernetes:apps/v1:Deployment").inputs["metadata"]["annotations"]
    )
    assert annotations == {"pulumi.com/skipAwait": "true"}


def test_a_new_image_makes_no_machine_more() -> None:
    assert spec(pool(warm_nodes=2))["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": "100%"}


def test_a_worker_fits_beside_the_pod() -> None:
    """It takes none of the accelerators, and next to none of what a worker asks for."""
    (container,) = spec(pool(warm_nodes=1))["template"]["spec"]["containers"]
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


def test_it_keeps_to_the_restricted_standard() -> None:
    pod = spec(CPU, pool(warm_nodes=1))["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (container,) = pod["containers"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
