"""The DaemonSets of the device plugins, and the releases of plugins that must not be run.

A node's GPUs, EFA interfaces and Neuron devices appear in its Node object only while the matching plugin runs
on it. The manifests follow those of their publishers:

- NVIDIA: github.com/NVIDIA/k8s-device-plugin, deployments/static/nvidia-device-plugin.yml;
- EFA: github.com/aws/eks-charts at 5239609, stable/aws-efa-k8s-device-plugin (chart 0.5.30, image v0.5.20);
- Neuron: github.com/aws-neuron/neuron-helm-charts, charts/neuron-helm-chart: values.yaml at 14049c2 (image
  2.28.27.0), templates/device-plugin-rbac.yaml at 8172e5e.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from trainyard.k8s.names import DEVICE_PLUGIN_NAMESPACE, LABEL_INSTANCE_TYPE, LABEL_NODEPOOL
from trainyard.k8s.names import EFA_RESOURCE as EFA

from . import JsonObject
from .pool import GPU, NEURON, Pool

Version = tuple[int, ...]

NAMES: Final = {GPU: "nvidia-device-plugin", EFA: "efa-device-plugin", NEURON: "neuron-device-plugin"}
SOCKETS: Final = "/var/lib/kubelet/device-plugins"
UNPRIVILEGED: Final = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


# Releases that must not be run: resource, first one (included), release with the fix (excluded), reason.
UNSUPPORTED_RELEASES: Final[tuple[tuple[str, Version, Version, str], ...]] = (
    (
        GPU,
        (0, 19, 0),
        (0, 19, 3),
        "it takes RDMA devices for its own, which breaks EFA (github.com/NVIDIA/k8s-device-plugin/issues/1692)",
    ),
    (
        EFA,
        (0,),
        (0, 5, 10),
        "it takes the NVLink controllers of p6-b200 for EFA interfaces "
        "(github.com/aws/sagemaker-hyperpod-cli/pull/282)",
    ),
    # Image v0.5.18 came with chart 0.5.26, the oldest one that AWS's own training blueprints still use
    # (github.com/awslabs/ai-on-eks, infra/base/terraform/variables.tf). The chart's number runs ahead of the image's.
    (
        EFA,
        (0, 5, 10),
        (0, 5, 18),
        "its list of devices is older than the instance types that a pool may have",
    ),
)
_TAG: Final = re.compile(r":v?(\d+(?:\.\d+)+)(?=[-@]|$)")


def version_of(image: str) -> Version | None:
    """Return the version in an image's tag, such as (0, 19, 3) of `...:v0.19.3@sha256:...`; None without one."""
    match = _TAG.search(image.rsplit("/", 1)[-1])
    return tuple(int(part) for part in match[1].split(".")) if match else None


def refused_release(resource: str, image: str) -> str:
    """Return why this image of a resource's plugin must not be run; empty if no problem is known."""
    version = version_of(image)
    newest = max((fixed for each, _, fixed, _ in UNSUPPORTED_RELEASES if each == resource), default=())
    for each, first, fixed, reason in UNSUPPORTED_RELEASES:
        if each == resource and version is not None and first <= version < fixed:
            right = ".".join(map(str, newest))
            return f"'{image}' is a release that must not be run: {reason}; it must be {right} or newer"
    return ""


def where(pools: tuple[Pool, ...]) -> dict[str, dict[str, str]]:
    """Return, by resource, the pools that have it and their instance types. Resources without a pool are left out."""
    offers: Mapping[str, Callable[[Pool], bool]] = {
        GPU: lambda pool: pool.resource == GPU and pool.accelerators > 0,
        EFA: lambda pool: pool.efa > 0,
        NEURON: lambda pool: pool.resource == NEURON and pool.accelerators > 0,
    }
    by_resource = {
        resource: {pool.name: pool.instance_type for pool in pools if offered(pool)}
        for resource, offered in offers.items()
    }
    return {resource: instance_types for resource, instance_types in by_resource.items() if instance_types}


def daemon_set(resource: str, image: str, instance_types: Mapping[str, str]) -> JsonObject:
    """Return the `spec` of a plugin's DaemonSet on the nodes of these pools (name -> instance type).

    The instance type alone is not enough: on a node of the same type without an EFA interface, the plugin would
    exit again and again (github.com/aws/sagemaker-hyperpod-cli/issues/367).

    Raises:
        ValueError: The image must not be run.
    """
    wrong = refused_release(resource, image)
    if wrong:
        raise ValueError(wrong)
    name = NAMES[resource]
    labels = {"app.kubernetes.io/name": name}
    parts = _PARTS[resource]
    mounts = {"sockets": SOCKETS, **parts.paths}
    on_nodes = [
        {"key": LABEL_INSTANCE_TYPE, "operator": "In", "values": sorted(set(instance_types.values()))},
        {"key": LABEL_NODEPOOL, "operator": "In", "values": sorted(instance_types)},
    ]
    return {
        "selector": {"matchLabels": labels},
        "updateStrategy": {"type": "RollingUpdate"},
        "template": {
            "metadata": {"labels": labels},
            "spec": {
                "priorityClassName": "system-node-critical",
                # The plugin tolerates all taints: the node counts as ready only when its devices are registered.
                "tolerations": [{"operator": "Exists"}],
                "affinity": {
                    "nodeAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": {
                            "nodeSelectorTerms": [{"matchExpressions": on_nodes}]
                        }
                    }
                },
                "automountServiceAccountToken": False,
                **parts.pod,
                "containers": [
                    {
                        "name": name,
                        "image": image,
                        "env": parts.env,
                        "resources": {
                            "requests": {"cpu": "10m", "memory": "64Mi"},
                            "limits": {"memory": "256Mi"},
                        },
                        "securityContext": parts.security,
                        "volumeMounts": [
                            {"name": key, "mountPath": path, **({"readOnly": True} if key in _READ else {})}
                            for key, path in mounts.items()
                        ],
                    }
                ],
                "volumes": [
                    {"name": key, "hostPath": {"path": path, **_KINDS.get(key, {})}}
                    for key, path in mounts.items()
                ],
            },
        },
    }


@dataclass(frozen=True, kw_only=True)
class _Parts:
    """The differences between plugins. `paths` are further directories of the node that a plugin mounts."""

    env: list[JsonObject]
    security: JsonObject
    paths: Mapping[str, str]
    pod: JsonObject


_PARTS: Final = {
    GPU: _Parts(
        # It must not allocate Mellanox devices: they break EFA (its issue 1692).
        env=[
            {"name": "FAIL_ON_INIT_ERROR", "value": "false"},
            {"name": "MOFED_ENABLED", "value": "false"},
        ],
        security=UNPRIVILEGED,
        paths={},
        pod={},
    ),
    # Privileged since image v0.5.9: it allocates the EFA interfaces that are nearest to a pod's accelerators, and reads
    # the accelerators' devices to do so (github.com/aws/eks-charts/pull/1245).
    EFA: _Parts(
        env=[],
        security={
            "allowPrivilegeEscalation": True,
            "privileged": True,
            "runAsNonRoot": False,
            "runAsUser": 0,
        },
        paths={"infiniband": "/dev/infiniband", "neuron-tools": "/opt/aws/neuron"},
        pod={"hostNetwork": True},
    ),
    NEURON: _Parts(
        env=[
            {"name": "KUBECONFIG", "value": "/etc/kubernetes/kubelet.conf"},
            {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        ],
        security=UNPRIVILEGED,
        paths={"run": "/run", "aws": "/opt/aws"},
        pod={"automountServiceAccountToken": True, "serviceAccountName": NAMES[NEURON]},
    ),
}
_READ: Final = ("aws",)
# A node without Neuron tools has no such directory.
_KINDS: Final[Mapping[str, JsonObject]] = {"neuron-tools": {"type": "DirectoryOrCreate"}}

# Neuron's plugin records on pods and nodes which cores it allocated. Charts after 2.28 also grant `nodes/proxy`, which
# is the kubelet's whole API; the pinned release does not.
NEURON_RULES: Final[tuple[JsonObject, ...]] = (
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "patch", "update", "watch"]},
    {"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch", "update"]},
)

NAMESPACE_LABELS: Final = {
    # The kubelet's sockets are in a directory of the node, which the standard `baseline` forbids to all pods.
    "pod-security.kubernetes.io/enforce": "privileged",
    "app.kubernetes.io/part-of": DEVICE_PLUGIN_NAMESPACE,
}
