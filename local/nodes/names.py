"""Compute which pods are behind a Service, and the hosts file of a pod. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Object = dict[str, Any]
PortMap = Mapping[str, Mapping[int, int]]

DOMAIN = "svc.cluster.local"


def is_ready(pod: Object) -> bool:
    """Return whether the pod has the Ready condition and is not being deleted."""
    conditions = pod.get("status", {}).get("conditions", [])
    holds = any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
    return holds and "deletionTimestamp" not in pod["metadata"]


def behind(service: Object, pods: Iterable[Object]) -> list[Object]:
    """Return the pods with an address that a Service selects, sorted by name.

    Pods that are not ready are included only with publishNotReadyAddresses.
    """
    selector = service["spec"].get("selector")
    if not selector:
        return []
    every = service["spec"].get("publishNotReadyAddresses", False)
    found = [
        pod
        for pod in pods
        if pod["metadata"]["namespace"] == service["metadata"]["namespace"]
        and selector.items() <= (pod["metadata"].get("labels") or {}).items()
        and pod.get("status", {}).get("podIP")
        and pod["status"].get("phase") not in ("Succeeded", "Failed")
        and (every or is_ready(pod))
    ]
    return sorted(found, key=lambda pod: str(pod["metadata"]["name"]))


def container_port(pod: Object, port: int | str) -> int | None:
    """Return the number of a port from its number or name, or None if no container has it."""
    if isinstance(port, int) or port.isdigit():
        return int(port)
    for container in pod["spec"].get("initContainers", []) + pod["spec"]["containers"]:
        for declared in container.get("ports") or []:
            if declared.get("name") == port:
                return int(declared["containerPort"])
    return None


def targets(service: Object, port: Object, pods: Iterable[Object], mapped: PortMap) -> list[tuple[str, int]]:
    """Return the addresses behind one port of a Service.

    Args:
        mapped: By pod uid, the ports that a program uses instead of the declared ones.
    """
    found = []
    for pod in behind(service, pods):
        number = container_port(pod, port.get("targetPort") or port["port"])
        if number is not None:
            moved = mapped.get(pod["metadata"]["uid"], {}).get(number, number)
            found.append((pod["status"]["podIP"], moved))
    return found


def service_names(name: str, namespace: str, inside: bool) -> list[str]:
    """Return the names of a Service, the full one first. The bare name is only for its own namespace."""
    long = [f"{name}.{namespace}.{DOMAIN}", f"{name}.{namespace}.svc", f"{name}.{namespace}"]
    return [*long, name] if inside else long


def records(services: Iterable[Object], pods: Iterable[Object]) -> list[tuple[str, str, str]]:
    """Return what DNS would answer: (address, name, namespace). The name may be `pod.service`."""
    every = list(pods)
    found: list[tuple[str, str, str]] = []
    for service in services:
        name, namespace = service["metadata"]["name"], service["metadata"]["namespace"]
        address = service["spec"].get("clusterIP")
        if address and address != "None":
            found.append((address, name, namespace))
            continue
        for pod in behind(service, every):
            ip = pod["status"]["podIP"]
            found.append((ip, name, namespace))
            if pod["spec"].get("hostname") and pod["spec"].get("subdomain") == name:
                found.append((ip, f"{pod['spec']['hostname']}.{name}", namespace))
    return sorted(found)


def hosts_file(answers: Iterable[tuple[str, str, str]], namespace: str, itself: str, ip: str) -> str:
    """Return the hosts file of a pod: itself, by `own_names`, then every name it could look up."""
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost ip6-loopback", f"{ip} {itself}"]
    for address, name, home in answers:
        lines.append(f"{address} {' '.join(service_names(name, home, home == namespace))}")
    return "\n".join(lines) + "\n"


def host_name(pod: Object) -> str:
    """Return a pod's host name: that of its spec, otherwise its own name, cut to 63 characters."""
    return str(pod["spec"].get("hostname") or pod["metadata"]["name"])[:63].rstrip("-.")


def own_names(pod: Object) -> str:
    """Return the pod's own names in its hosts file. With a subdomain the full name is first, as from a kubelet.

    Source: k8s.io/kubernetes v1.35.4, pkg/kubelet/kubelet_pods.go, managedHostsFileContent.
    """
    name, subdomain = host_name(pod), pod["spec"].get("subdomain")
    return f"{name}.{subdomain}.{pod['metadata']['namespace']}.{DOMAIN} {name}" if subdomain else name
