"""State that all pods of a cluster share: the API client, informers, addresses, ports and events."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

from local.nodes import names
from local.nodes.api import UNREACHABLE, Api, ApiError, Informer, Object
from local.nodes.images import Images
from local.nodes.settings import Settings
from local.nodes.times import timestamp
from local.ports import free_ports

log = logging.getLogger(__name__)

HOST_IP = "127.0.0.1"


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
        """Release the address of a removed pod."""
        self.taken.discard(address)


class Tasks:
    """Background tasks. It keeps references to them, and logs their failures."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Start a coroutine as a task."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("%s failed: %s", task.get_name(), error, exc_info=error)


@dataclass
class Context:
    """The shared state of one cluster.

    `moved_ports` maps pod uid -> declared port -> port in use instead. `instances` maps a Node's name to its EC2
    instance.
    """

    settings: Settings
    api: Api
    images: Images
    pods: Informer
    services: Informer
    config_maps: Informer
    secrets: Informer
    addresses: Addresses
    tasks: Tasks
    preload: Path
    helpers: Path
    allocatable: dict[str, Object] = field(default_factory=dict)
    moved_ports: dict[str, dict[int, int]] = field(default_factory=dict)
    instances: dict[str, Object] = field(default_factory=dict)

    def port_for(self, uid: str, wanted: int) -> int:
        """Return the port that a pod's program uses instead of `wanted`. Later calls return the same port."""
        ports = self.moved_ports.setdefault(uid, {})
        if wanted not in ports:
            taken = {port for each in self.moved_ports.values() for port in each.values()}
            (ports[wanted],) = free_ports(1, taken)
        return ports[wanted]

    def hosts_text(self, namespace: str, itself: str, ip: str) -> str:
        """Return the current hosts file of a pod."""
        answers = names.records(self.services.objects.values(), self.pods.objects.values())
        return names.hosts_file(answers, namespace, itself, ip)

    def event(self, pod: Object, kind: str, reason: str, message: str) -> None:
        """Post an Event about a pod in the background. `kind` is Normal or Warning."""
        self.tasks.start(self._post_event(pod, kind, reason, message), f"event {reason}")

    async def _post_event(self, pod: Object, kind: str, reason: str, message: str) -> None:
        metadata, now = pod["metadata"], time.time()
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{metadata['name'][:200]}.", "namespace": metadata["namespace"]},
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "Pod",
                "name": metadata["name"],
                "namespace": metadata["namespace"],
                "uid": metadata["uid"],
            },
            "type": kind,
            "reason": reason,
            "message": message[:1000],
            "source": {"component": "kubelet", "host": pod["spec"].get("nodeName", "")},
            "firstTimestamp": timestamp(now),
            "lastTimestamp": timestamp(now),
            "count": 1,
        }
        try:
            await self.api.create(f"/api/v1/namespaces/{metadata['namespace']}/events", body)
        except (*UNREACHABLE, ApiError) as error:
            log.debug("event %s of %s/%s: %s", reason, metadata["namespace"], metadata["name"], error)
