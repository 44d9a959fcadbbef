"""Follow the EC2 instances of a cluster, and register a Node for each, as their kubelets would."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

import aiohttp

from local.nodes import node
from local.nodes.api import (
    MERGE,
    NODES,
    UNREACHABLE,
    Api,
    ApiError,
    Object,
    ignore_status,
    micro_timestamp,
    owner_reference,
)
from local.nodes.context import Settings, Tasks
from local.nodes.node import ALL_DEVICES, NO_DEVICES, Devices, read_devices

log = logging.getLogger(__name__)

LONG_POLL_SECONDS = 25
LEASE_SECONDS = 40
HEARTBEAT_SECONDS = 10.0
STATUS_SECONDS = 240.0
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"


@dataclass
class RegisteredNode:
    """One running instance and the state of its Node."""

    instance: Object
    life: asyncio.Task[None] | None = None
    registered: bool = False
    devices: Devices = NO_DEVICES
    reported_at: float = 0.0
    # Set when a device plugin or a condition may have changed.
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def name(self) -> str:
        return node.name_of(self.instance)


class Registration:
    """All nodes of one cluster.

    `ready(name, allocatable)` is called when a node has registered, and `gone(name)` when its instance is gone.
    `plugins(name)` returns the resources whose device plugins run on a node.
    """

    def __init__(
        self,
        settings: Settings,
        api: Api,
        tasks: Tasks,
        kubelet_port: int,
        ready: Callable[[str, Object], None],
        gone: Callable[[str], Awaitable[None]],
        plugins: Callable[[str], frozenset[str]],
    ) -> None:
        self.settings = settings
        self.api = api
        self.tasks = tasks
        self.kubelet_port = kubelet_port
        self.ready = ready
        self.gone = gone
        self.plugins = plugins
        self.by_id: dict[str, RegisteredNode] = {}
        self.instances: dict[str, Object] = {}  # by the name of their Node
        self._version = ""

    async def follow(self) -> None:
        """Follow the instances until cancelled. The first list, also that after a failure, removes stale Nodes."""
        self._version = (await self.api.get("/version"))["gitVersion"]
        async with aiohttp.ClientSession() as session:
            instances, etag = await self._instances(session, "")
            await self._apply(instances)
            await self._drop_strangers()
            while True:
                instances, etag = await self._instances(session, etag)
                await self._apply(instances)

    async def _instances(self, session: aiohttp.ClientSession, etag: str) -> tuple[list[Object], str]:
        """Return the emulator's list and its ETag, as soon as it differs from that of `etag`."""
        parameters = {"cluster": self.settings.cluster}
        if etag:
            parameters |= {"wait": str(LONG_POLL_SECONDS), "after": etag}
        async with session.get(
            f"{self.settings.aws_endpoint}/_trainyard/instances",
            params=parameters,
            headers=self.settings.aws_headers,
            timeout=aiohttp.ClientTimeout(total=LONG_POLL_SECONDS + 15),
        ) as response:
            if response.status != 200:
                raise ValueError(f"HTTP {response.status}: {(await response.text())[:200]}")
            return await response.json(content_type=None), response.headers["ETag"].strip('"')

    async def _apply(self, instances: list[Object]) -> None:
        running = {i["instanceId"]: i for i in instances if i["state"] in ("pending", "running")}
        for number in self.by_id.keys() - running.keys():
            await self._lose(self.by_id[number])
            del self.instances[self.by_id[number].name]
            # Deleted last, so that the next list retries if the API server did not answer.
            del self.by_id[number]
        for number, instance in running.items():
            if number not in self.by_id:
                registered = self.by_id[number] = RegisteredNode(instance)
                life = partial(self._live, registered)
                registered.life = self.tasks.start_loop(life, f"life of {registered.name}")
            registered = self.by_id[number]
            before, registered.instance = registered.instance, instance
            if any(before.get(key) != instance.get(key) for key in ("conditions", "dcgmTolerations")):
                registered.changed.set()
            self.instances[registered.name] = instance

    async def _drop_strangers(self) -> None:
        """Remove Nodes whose instance is gone, as the cloud controller manager does on EKS."""
        known = {registered.name for registered in self.by_id.values()}
        for item in (await self.api.get(NODES))["items"]:
            name = item["metadata"]["name"]
            if name not in known:
                await self._remove(name)

    async def _remove(self, name: str) -> None:
        """End the pods of a Node, and delete it."""
        await self.gone(name)
        with ignore_status(404):
            await self.api.delete(f"{NODES}/{name}")

    def plugin_seen(self, name: str) -> None:
        for registered in self.by_id.values():
            if registered.name == name:
                registered.changed.set()

    async def _live(self, registered: RegisteredNode) -> None:
        """Register the Node when the instance has booted, and keep its status up to date.

        After a failure it starts again, and takes over the Node that it has registered.
        """
        boots_at = registered.instance["launchTime"] + self.settings.boot_seconds
        await asyncio.sleep(max(0.0, boots_at - time.time()))
        reported = ""
        # EKS refuses the kubelet without a correct access entry.
        while error := registered.instance.get("joinError"):
            if error != reported:
                reported = error
                log.warning(
                    "instance %s can't join the cluster: %s", registered.instance["instanceId"], error
                )
            await asyncio.sleep(1)
        await self._register(registered)
        registered.changed.set()
        while True:
            await registered.changed.wait()
            registered.changed.clear()
            await self._show(registered)

    async def _show(self, registered: RegisteredNode) -> None:
        """Report devices and conditions. A plugin takes some seconds until it has registered."""
        running = self.plugins(registered.name)
        registered.devices = registered.devices.lose(running)
        if running - registered.devices.usable:
            await asyncio.sleep(self.settings.device_seconds)
            registered.devices = registered.devices.gain(self.plugins(registered.name))
        await self._report(registered)

    async def _register(self, registered: RegisteredNode) -> None:
        settings, now = self.settings, time.time()
        wanted = node.build(registered.instance, settings.region, self.kubelet_port, self._version, now)
        try:
            await self.api.create(NODES, wanted)
            log.info("node %s (%s) registered", registered.name, registered.instance["instanceType"])
        except ApiError as error:
            if error.status != 409:
                raise
            # An earlier process registered the node and its devices.
            registered.devices = read_devices(await self.api.get(f"{NODES}/{registered.name}"))
            log.info("node %s taken over", registered.name)
        await self._renew(registered.name)
        registered.registered, registered.reported_at = True, now
        self.ready(registered.name, node.resources(registered.instance, ALL_DEVICES)[1])

    async def _report(self, registered: RegisteredNode) -> None:
        # Others change conditions too: Kubernetes sets Unknown if a node's Lease was not renewed.
        there = await self.api.get(f"{NODES}/{registered.name}")
        before, now = (there.get("status") or {}).get("conditions") or [], time.time()
        taints = there.get("spec", {}).get("taints") or []
        found = node.status(
            registered.instance, self.kubelet_port, self._version, now, registered.devices, before, taints
        )
        await self.api.patch(f"{NODES}/{registered.name}/status", {"status": found})
        registered.reported_at = now

    async def _lose(self, registered: RegisteredNode) -> None:
        log.info("instance %s of node %s is gone", registered.instance["instanceId"], registered.name)
        if registered.life is not None:
            registered.life.cancel()
            # Wait for its end, so that a Node that it is creating does not appear after the deletion.
            await asyncio.wait([registered.life])
        registered.registered = False
        await self._remove(registered.name)

    async def send_heartbeats(self) -> None:
        """Renew each node's Lease, and its whole status every STATUS_SECONDS."""
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            for registered in [m for m in self.by_id.values() if m.registered]:
                try:
                    await self._renew(registered.name)
                    if time.time() - registered.reported_at > STATUS_SECONDS:
                        await self._report(registered)
                except (*UNREACHABLE, ApiError) as error:
                    log.warning("heartbeat of node %s: %s", registered.name, error)

    async def _renew(self, name: str) -> None:
        """Renew the Lease of a Node. A new one has the Node as owner, so that it is deleted with the Node."""
        spec = {
            "holderIdentity": name,
            "leaseDurationSeconds": LEASE_SECONDS,
            "renewTime": micro_timestamp(time.time()),
        }
        try:
            await self.api.patch(f"{LEASES}/{name}", {"spec": spec}, MERGE)
            return
        except ApiError as error:
            if error.status != 404:
                raise
        with ignore_status(404):  # the Node was deleted meanwhile
            owner = await self.api.get(f"{NODES}/{name}")
            metadata = {"name": name, "ownerReferences": [owner_reference(owner)]}
            await self.api.create(LEASES, {"metadata": metadata, "spec": spec})
