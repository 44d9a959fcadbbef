"""Compute the devices in a Node's status from the device plugins that run on the node. Pure.

As with a real kubelet, a plugin registers at the kubelet's socket, through a hostPath volume. Then the Node has its
resource. When the plugin is gone, the devices stay in the Node's capacity, and none is allocatable
(https://kubernetes.io/docs/concepts/extend-kubernetes/compute-storage-net/device-plugins/).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from trainyard.k8s.names import EFA_RESOURCE as EFA

Object = dict[str, Any]

GPU = "nvidia.com/gpu"
NEURON = "aws.amazon.com/neuron"
# Extended resource -> key of its number in the emulator's list of instances.
HARDWARE = {GPU: "gpus", EFA: "efaInterfaces", NEURON: "neuronDevices"}
PLUGINS = {
    re.compile(r"(^|/)k8s-device-plugin(:|@|$)"): GPU,
    re.compile(r"(^|/)aws-efa-k8s-device-plugin(:|@|$)"): EFA,
    re.compile(r"(^|/)neuron-device-plugin(:|@|$)"): NEURON,
}
SOCKETS = "/var/lib/kubelet/device-plugins"


@dataclass(frozen=True)
class Devices:
    """The extended resources of a Node, and which of them are allocatable."""

    known: frozenset[str] = frozenset()
    usable: frozenset[str] = frozenset()

    def lose(self, running: frozenset[str]) -> Devices:
        """Return the devices when only the plugins for `running` run."""
        return replace(self, usable=self.usable & running)

    def gain(self, running: frozenset[str]) -> Devices:
        """Return the devices after the plugins for `running` have registered."""
        return Devices(self.known | running, running)


ALL = Devices(frozenset(HARDWARE), frozenset(HARDWARE))
NONE = Devices()


def shown(node: Object) -> Devices:
    """Return the devices of a Node that was registered before."""
    status = node.get("status") or {}
    capacity, allocatable = status.get("capacity") or {}, status.get("allocatable") or {}
    known = frozenset(name for name in HARDWARE if name in capacity)
    return Devices(known, frozenset(name for name in known if allocatable.get(name, "0") != "0"))


def amounts(instance: Object, devices: Devices) -> tuple[Object, Object]:
    """Return capacity and allocatable of the devices. Devices that the instance does not have are in neither."""
    capacity = {
        name: str(instance[key])
        for name, key in HARDWARE.items()
        if name in devices.known and instance.get(key)
    }
    return capacity, {name: count if name in devices.usable else "0" for name, count in capacity.items()}


def offered(pod: Object) -> frozenset[str]:
    """Return the resources for which this pod is the device plugin, whether it runs or not."""
    reachable = {
        volume["name"]
        for volume in pod["spec"].get("volumes") or []
        if str((volume.get("hostPath") or {}).get("path", "")).rstrip("/") == SOCKETS
    }
    found = set()
    for container in pod["spec"]["containers"]:
        mounts = {mount["name"] for mount in container.get("volumeMounts") or []}
        if mounts & reachable:
            image = container["image"].split("@")[0]
            found |= {resource for pattern, resource in PLUGINS.items() if pattern.search(image)}
    return frozenset(found)


def running(pods: Iterable[Object], node: str) -> frozenset[str]:
    """Return the resources whose device plugins run on a node."""
    found: frozenset[str] = frozenset()
    for pod in pods:
        if pod["spec"].get("nodeName") == node and _ready(pod):
            found |= offered(pod)
    return found


def _ready(pod: Object) -> bool:
    if "deletionTimestamp" in pod["metadata"]:
        return False
    conditions = (pod.get("status") or {}).get("conditions") or []
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
