"""Compute a Node from the facts about its EC2 instance and the device plugins that run on it. Pure.

Memory overhead, reserved amounts and labels follow the EKS bootstrap and Karpenter's instance type provider
(karpenter.sh, "Concepts > NodeClasses > kubeReserved"; awslabs/amazon-eks-ami, nodeadm).

As with a real kubelet, a device plugin registers at the kubelet's socket, through a hostPath volume. Then the Node has
its resource. When the plugin is gone, the devices stay in the Node's capacity, and no device is allocatable
(https://kubernetes.io/docs/concepts/extend-kubernetes/compute-storage-net/device-plugins/).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from local.nodes.api import Object, timestamp
from local.nodes.network import is_ready
from trainyard.k8s import names
from trainyard.k8s.names import EFA_RESOURCE as EFA

GPU = "nvidia.com/gpu"
NEURON = "aws.amazon.com/neuron"
# Extended resource -> key of its number in the emulator's list of instances.
DEVICE_KEYS = {GPU: "gpus", EFA: "efaInterfaces", NEURON: "neuronDevices"}
PLUGINS = {
    re.compile(r"(^|/)k8s-device-plugin(:|@|$)"): GPU,
    re.compile(r"(^|/)aws-efa-k8s-device-plugin(:|@|$)"): EFA,
    re.compile(r"(^|/)neuron-device-plugin(:|@|$)"): NEURON,
}
SOCKETS = "/var/lib/kubelet/device-plugins"
VM_MEMORY_OVERHEAD = 0.075
EVICTION_MIB = 100
ROOT_VOLUME_GIB = 20
UNREGISTERED = {"key": "karpenter.sh/unregistered", "effect": "NoExecute"}
HARDWARE = "AcceleratedHardwareReady"
# Temporary taints: after a node joined, or before it is removed.
PASSING_TAINTS = (
    "karpenter.sh/",
    "node.kubernetes.io/",
    "node.cloudprovider.kubernetes.io/",
    "fsx.csi.aws.com/",
)
# The conditions of a healthy kubelet.
HEALTHY = [
    {"type": kind, "status": status, "reason": reason, "message": message}
    for kind, status, reason, message in (
        ("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
        ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
        ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
        ("Ready", "True", "KubeletReady", "the node's process is running"),
    )
]
NODEGROUP_EFFECTS = {
    "NO_SCHEDULE": "NoSchedule", "NO_EXECUTE": "NoExecute", "PREFER_NO_SCHEDULE": "PreferNoSchedule",
}  # fmt: skip


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


ALL_DEVICES = Devices(frozenset(DEVICE_KEYS), frozenset(DEVICE_KEYS))
NO_DEVICES = Devices()


def read_devices(node: Object) -> Devices:
    """Return the devices of a Node that was registered before."""
    status = node.get("status") or {}
    capacity, allocatable = status.get("capacity") or {}, status.get("allocatable") or {}
    known = frozenset(name for name in DEVICE_KEYS if name in capacity)
    return Devices(known, frozenset(name for name in known if allocatable.get(name, "0") != "0"))


def device_amounts(instance: Object, devices: Devices) -> tuple[Object, Object]:
    """Return capacity and allocatable of the devices. Devices that the instance does not have are in neither."""
    capacity = {
        name: str(instance[key])
        for name, key in DEVICE_KEYS.items()
        if name in devices.known and instance.get(key)
    }
    return capacity, {name: count if name in devices.usable else "0" for name, count in capacity.items()}


def plugin_resources(pod: Object) -> frozenset[str]:
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


def running_plugins(pods: Iterable[Object], node: str) -> frozenset[str]:
    """Return the resources whose device plugins run on a node."""
    found: frozenset[str] = frozenset()
    for pod in pods:
        if pod["spec"].get("nodeName") == node and is_ready(pod):
            found |= plugin_resources(pod)
    return found


def name_of(instance: Object) -> str:
    """Return the node's name: the private DNS name, as on EKS."""
    return str(instance["privateDns"])


def architecture(instance: Object) -> str:
    """Return `arm64` for families with a g after the generation (m7g, c8gn), otherwise `amd64`."""
    family = instance["instanceType"].split(".")[0]
    letters = family.lstrip("abcdefghijklmnopqrstuvwxyz").lstrip("0123456789")
    return "arm64" if letters.startswith("g") or family == "a1" else "amd64"


def max_pods(vcpus: int) -> int:
    """Return how many pods the network interfaces of the common families allow, a step function."""
    for most, pods in ((2, 29), (8, 58), (48, 234)):
        if vcpus <= most:
            return pods
    return 737


def reserved_cpu(vcpus: int) -> int:
    """Return the millicores that EKS reserves for the kubelet.

    It is 6 % of the first core, then 1 %, 0.5 %, and 0.25 % of each further core.
    """
    shares = [60, 10, 5, 5] + [2.5] * max(0, vcpus - 4)
    return math.floor(sum(shares[:vcpus]))


def resources(instance: Object, devices: Devices) -> tuple[Object, Object]:
    """Return capacity and allocatable.

    Devices (GPUs, EFA, Neuron) appear later than the node, when their plugins run.
    """
    vcpus = instance["vcpus"]
    pods = max_pods(vcpus)
    memory = math.floor(instance["memoryMiB"] * (1 - VM_MEMORY_OVERHEAD))
    kept = 255 + 11 * pods + EVICTION_MIB
    disk = instance.get("nvmeGiB") or ROOT_VOLUME_GIB
    capacity: Object = {
        "cpu": str(vcpus),
        "memory": f"{memory}Mi",
        "pods": str(pods),
        "ephemeral-storage": f"{disk}Gi",
        "hugepages-2Mi": "0",
    }
    allocatable = capacity | {
        "cpu": f"{vcpus * 1000 - reserved_cpu(vcpus)}m",
        "memory": f"{max(memory - kept, 64)}Mi",
        "ephemeral-storage": f"{math.floor(disk * 0.9) - 1}Gi",
    }
    there, usable = device_amounts(instance, devices)
    return capacity | there, allocatable | usable


def labels(instance: Object, region: str) -> dict[str, str]:
    """Return the labels that a kubelet on EKS sets, and those of the node group."""
    found = {
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": architecture(instance),
        "kubernetes.io/hostname": name_of(instance),
        names.LABEL_INSTANCE_TYPE: instance["instanceType"],
        names.LABEL_ZONE: instance["zone"],
        "topology.kubernetes.io/region": region,
    }
    group = instance.get("nodegroup")
    if group:
        kind = "SPOT" if instance.get("capacityType") == "spot" else "ON_DEMAND"
        found |= {"eks.amazonaws.com/nodegroup": group["name"], "eks.amazonaws.com/capacityType": kind}
        found |= group.get("labels") or {}
    return found


def taints(instance: Object) -> list[Object]:
    """Return the taints of the node group, or the one that Karpenter removes after it has seen the node."""
    group = instance.get("nodegroup")
    if group is None:
        return [UNREGISTERED]
    return [
        each
        | {"value": each.get("value") or "", "effect": NODEGROUP_EFFECTS.get(each["effect"], each["effect"])}
        for each in group.get("taints") or []
    ]


def conditions(instance: Object, now: float, before: list[Object], node_taints: list[Object]) -> list[Object]:
    """Return the four conditions of a healthy kubelet, and those of EKS's node monitoring agent.

    Args:
        now: Seconds since the epoch.
        before: The Node's current conditions. A status keeps the time of its last change.
    """
    since = {(each["type"], each["status"]): each.get("lastTransitionTime") for each in before}
    reported = instance.get("conditions") or []
    error = _dcgm_error(instance, node_taints)
    if error is not None:
        reported = [error if (c["type"], c["status"]) == (HARDWARE, "True") else c for c in reported]
    found = []
    for each in (*HEALTHY, *reported):
        changed = timestamp(each["since"]) if "since" in each else since.get((each["type"], each["status"]))
        fields = {key: each[key] for key in ("type", "status", "reason", "message")}
        times = {"lastHeartbeatTime": timestamp(now), "lastTransitionTime": changed or timestamp(now)}
        found.append(fields | times)
    return found


def _dcgm_error(instance: Object, node_taints: list[Object]) -> Object | None:
    """Return the agent's condition of NVIDIA GPUs if dcgm-server does not run on the node; None if it runs.

    The DaemonSet has only the tolerations of the add-on's configuration
    (github.com/aws/eks-node-monitoring-agent, charts/eks-node-monitoring-agent/values.yaml, dcgmAgent.tolerations).
    """
    tolerations = instance.get("dcgmTolerations")
    if tolerations is None:
        return None
    refused = [
        taint["key"]
        for taint in node_taints
        if taint["effect"] != "PreferNoSchedule"
        and not taint["key"].startswith(PASSING_TAINTS)
        and not any(_tolerates(each, taint) for each in tolerations)
    ]
    if not refused:
        return None
    message = f"no DCGM host engine: dcgm-server does not tolerate the taint {', '.join(refused)}"
    return {"type": HARDWARE, "status": "False", "reason": "DCGMError", "message": message}


def _tolerates(toleration: Object, taint: Object) -> bool:
    """Return whether a toleration matches a taint.

    Source: https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/
    """
    if (toleration.get("key") or taint["key"]) != taint["key"]:
        return False
    if (toleration.get("effect") or taint["effect"]) != taint["effect"]:
        return False
    if toleration.get("operator") == "Exists":
        return True
    return bool(toleration.get("key")) and (toleration.get("value") or "") == (taint.get("value") or "")


def status(
    instance: Object,
    kubelet_port: int,
    version: str,
    now: float,
    devices: Devices,
    before: list[Object],
    node_taints: list[Object],
) -> Object:
    """Return the Node's status.

    Its address is the loopback address, which the API server calls for logs.
    """
    capacity, allocatable = resources(instance, devices)
    return {
        "capacity": capacity,
        "allocatable": allocatable,
        "conditions": conditions(instance, now, before, node_taints),
        # No Hostname and no InternalDNS: the API server would try them first, and nothing here resolves them.
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": kubelet_port}},
        "nodeInfo": {
            "architecture": architecture(instance),
            "bootID": instance["instanceId"],
            "containerRuntimeVersion": "trainyard://1",
            "kernelVersion": "local",
            "kubeProxyVersion": "",
            "kubeletVersion": version,
            "machineID": instance["instanceId"],
            "operatingSystem": "linux",
            "osImage": "Trainyard local node",
            "systemUUID": instance["instanceId"],
        },
    }


def build(instance: Object, region: str, kubelet_port: int, version: str, now: float) -> Object:
    """Return the Node at registration, before it has devices.

    It has no attach annotation (volumes.kubernetes.io/controller-managed-attach-detach). Nothing here detaches volumes,
    and Karpenter waits for attachments when it drains.
    """
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name_of(instance), "labels": labels(instance, region)},
        "spec": {
            "providerID": f"aws:///{instance['zone']}/{instance['instanceId']}",
            "taints": taints(instance),
        },
        "status": status(instance, kubelet_port, version, now, NO_DEVICES, [], taints(instance)),
    }
