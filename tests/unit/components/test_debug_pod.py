"""The pod with network tools."""

from __future__ import annotations

import pytest

from components.debug_pod import DebugPod, DebugPodArgs
from tests.unit.components.recording import deploy

pytestmark = pytest.mark.unit

IMAGE = "registry.example/tools@sha256:" + "0" * 64


def test_it_is_an_ordinary_pod_beside_the_workers_without_rights() -> None:
    pod = (
        deploy(lambda: DebugPod("debug", DebugPodArgs(image=IMAGE, after=[])))
        .one("kubernetes:core/v1:Pod")
        .inputs
    )
    assert (pod["metadata"]["name"], pod["metadata"]["namespace"]) == ("network-debug", "training")
    spec = pod["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (container,) = spec["containers"]
    assert container["image"] == IMAGE
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }


def test_it_makes_karpenter_buy_no_machine() -> None:
    pod = (
        deploy(lambda: DebugPod("debug", DebugPodArgs(image=IMAGE, after=[])))
        .one("kubernetes:core/v1:Pod")
        .inputs
    )
    required = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert required["nodeSelectorTerms"] == [
        {"matchExpressions": [{"key": "karpenter.sh/nodepool", "operator": "DoesNotExist"}]}
    ]
