"""The network of the pods: their addresses and names, and the Services, for which kube-proxy stands on a real node."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from ipaddress import IPv4Network

from local.nodes.api import Object

PortMap = Mapping[str, Mapping[int, int]]

DOMAIN = "svc.cluster.local"
HOST_IP = "127.0.0.1"
BUFFER = 1 << 16
Target = tuple[str, int]

log = logging.getLogger(__name__)


class Addresses:
    """Assigns the pod addresses of one network, each to one pod at a time."""

    def __init__(self, network: IPv4Network) -> None:
        self.network = network
        self.taken: set[str] = set()
        self._next = 2

    def take(self, wanted: str = "") -> str:
        """Return a free address, or reserve the `wanted` one for a pod that already has it."""
        if wanted:
            self.taken.add(wanted)
            return wanted
        for _ in range(self.network.num_addresses):
            address = str(self.network[self._next])
            self._next = 2 + (self._next - 1) % (self.network.num_addresses - 4)
            if address not in self.taken:
                self.taken.add(address)
                return address
        raise RuntimeError(f"no free pod address in {self.network}: {len(self.taken)} are taken")

    def give_back(self, address: str) -> None:
        self.taken.discard(address)


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


def targets(service: Object, port: Object, pods: Iterable[Object], mapped: PortMap) -> list[Target]:
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
    """Return the hosts file of a pod: itself, by `own_names`, then every name it could look up.

    The bare name of a Service is only for its own namespace.
    """
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost ip6-loopback", f"{ip} {itself}"]
    for address, name, home in answers:
        names = f"{name}.{home}.{DOMAIN} {name}.{home}.svc {name}.{home}"
        lines.append(f"{address} {names} {name}" if home == namespace else f"{address} {names}")
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


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy one direction until its end, and forward the end."""
    with contextlib.suppress(OSError):
        while data := await reader.read(BUFFER):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()


async def join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: Target) -> None:
    """Connect a client to a target until both sides have ended. If the target refuses, reset the client."""
    try:
        far_reader, far_writer = await asyncio.open_connection(*target)
    except OSError as error:
        log.debug("no connection to %s:%d: %s", *target, error)
        writer.transport.abort()
        return
    try:
        await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))
    finally:
        for each in (writer, far_writer):
            each.close()


def listeners(
    services: Iterable[Object], pods: Iterable[Object], mapped: PortMap
) -> dict[Target, list[Target]]:
    """Return the TCP addresses of Services with a ready pod, each with its targets."""
    every = list(pods)
    found = {}
    for service in services:
        address = service["spec"].get("clusterIP", "None")
        for port in service["spec"].get("ports") or []:
            behind = targets(service, port, every, mapped)
            if behind and port.get("protocol", "TCP") == "TCP" and address not in ("None", ""):
                found[address, port["port"]] = behind
    return found


class Proxies:
    """One listener per address that `find` returns, each with its targets.

    A Service without a ready pod has no listener. So a client gets "connection refused", as with kube-proxy.
    """

    def __init__(self, find: Callable[[], dict[Target, list[Target]]]) -> None:
        self.find = find
        self.targets: dict[Target, list[Target]] = {}
        self._servers: dict[Target, asyncio.Server] = {}
        self._changed = asyncio.Event()

    def settle(self) -> None:
        self._changed.set()

    async def run(self) -> None:
        while True:
            self._changed.clear()
            self.targets = self.find()
            for address in self._servers.keys() - self.targets.keys():
                self._servers.pop(address).close()
            for address in self.targets.keys() - self._servers.keys():
                await self._listen(address)
            await self._changed.wait()

    async def _listen(self, address: Target) -> None:
        try:
            self._servers[address] = await asyncio.start_server(partial(self._serve, address), *address)
        except OSError as error:
            log.error("service address %s:%d: cannot listen: %s", *address, error)

    async def _serve(
        self, address: Target, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        behind = self.targets.get(address)
        if behind:
            await join(reader, writer, random.choice(behind))  # noqa: S311 balancing, no secret
        else:
            writer.transport.abort()

    def close(self) -> None:
        for server in self._servers.values():
            server.close()
