"""The pod with network tools."""

from __future__ import annotations

from components.debug_pod import DebugPod, DebugPodArgs
from tests.unit.components.recording import deploy

IMAGE = "registry.example/tools@sha256:" + "0" * 64


def test_debug_pod_is_restricted_and_runs_outside_the_pools() -> None:
    recorded = deploy(lambda: DebugPod("debug", DebugPodArgs(image=IMAGE, after=[])))
    pods = recorded.one("kubernetes:apps/v1:StatefulSet").inputs
    assert (pods["metadata"]["name"], pods["metadata"]["namespace"]) == ("network-debug", "training")
    assert pods["spec"]["replicas"] == 1, "a pod by itself would be gone with its node"
    spec = pods["spec"]["template"]["spec"]
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
    required = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert required["nodeSelectorTerms"] == [
        {"matchExpressions": [{"key": "karpenter.sh/nodepool", "operator": "DoesNotExist"}]}
    ]
