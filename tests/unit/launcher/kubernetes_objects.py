"""The nodes and pods of the simulated world, converted as the launcher converts Kubernetes objects.

Each conversion is cached, because the traces need the same objects a million times.
"""

from __future__ import annotations

from functools import cache

from launcher import observe


@cache
def node(
    name: str, pool: str, gpus: int, *, ready: bool, starting: bool, initialized: bool, cordoned: bool
) -> observe.Node:
    """A node that shows so many devices."""
    taints = [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]
    if starting:
        taints.append({"key": "example.com/starting", "effect": "NoSchedule"})
    labels = {"karpenter.sh/nodepool": pool}
    if initialized:
        labels["karpenter.sh/initialized"] = "true"
    return observe.node(
        {
            "metadata": {"name": name, "labels": labels},
            "spec": {"taints": taints, **({"unschedulable": True} if cordoned else {})},
            "status": {
                "conditions": [{"type": "Ready", "status": "True" if ready else "Unknown"}],
                "allocatable": {"cpu": "95", "memory": "1000Gi", "nvidia.com/gpu": str(gpus)},
            },
        }
    )


@cache
def foreign_pod(node: str) -> observe.Pod:
    """A pod of others that has a device of this node."""
    return observe.pod(
        {
            "metadata": {"name": f"other-{node}", "namespace": "default", "uid": f"other-{node}"},
            "spec": {"nodeName": node, "containers": [{"resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
            "status": {"phase": "Running"},
        }
    )


@cache
def daemon_pod(node: str) -> observe.Pod:
    """A DaemonSet's pod on this node."""
    owner = {"kind": "DaemonSet", "name": "plugin", "uid": "d", "controller": True}
    meta = {"name": f"d-{node}", "namespace": "kube-system", "uid": f"d-{node}", "ownerReferences": [owner]}
    return observe.pod({"metadata": meta, "spec": {"nodeName": node}, "status": {"phase": "Running"}})
