"""Follow the EC2 instances of a cluster and keep a Node for each, as their kubelets would."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import aiohttp

from local.nodes import node
from local.nodes.api import MERGE, UNREACHABLE, Api, ApiError, Object
from local.nodes.context import Tasks
from local.nodes.devices import ALL, NONE, Devices, shown
from local.nodes.settings import Settings
from local.nodes.times import micro_timestamp

log = logging.getLogger(__name__)

LONG_POLL_SECONDS = 25
LEASE_SECONDS = 40
HEARTBEAT_SECONDS = 10.0
STATUS_SECONDS = 240.0
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
NODES = "/api/v1/nodes"


@dataclass
class Machine:
    """One running instance and the state of its Node."""

    instance: Object
    life: asyncio.Task[None] | None = None
    registered: bool = False
    devices: Devices = NONE
    reported_at: float = 0.0
    # Set when a device plugin or a condition may have changed.
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def name(self) -> str:
        """The name of its Node."""
        return node.name_of(self.instance)


class Machines:
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
        self.by_id: dict[str, Machine] = {}
        self.instances: dict[str, Object] = {}  # by the name of their Node
        self._version = ""

    async def follow(self) -> None:
        """Follow the instances until cancelled."""
        etag, first = "", True
        async with aiohttp.ClientSession() as session:
            while True:
                try:
                    if not self._version:
                        self._version = (await self.api.get("/version"))["gitVersion"]
                    instances, etag = await self._instances(session, etag)
                    await self._apply(instances)
                    if first:
                        await self._drop_strangers()
                        first = False
                except (aiohttp.ClientError, *UNREACHABLE, ApiError, ValueError) as error:
                    log.warning("instances of %s not read: %s", self.settings.cluster, error)
                    etag = ""
                    await asyncio.sleep(1)

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
            instances: list[Object] = await response.json(content_type=None)
            fresh = response.headers.get("ETag", "").strip('"')
        if not fresh:  # without an ETag there is no long poll
            await asyncio.sleep(1)
        return instances, fresh

    async def _apply(self, instances: list[Object]) -> None:
        running = {i["instanceId"]: i for i in instances if i["state"] in ("pending", "running")}
        for number in self.by_id.keys() - running.keys():
            await self._lose(self.by_id[number])
            self.instances.pop(self.by_id[number].name, None)
            # Deleted last, so that the next list retries if the API server did not answer.
            del self.by_id[number]
        for number, instance in running.items():
            if number not in self.by_id:
                machine = self.by_id[number] = Machine(instance)
                machine.life = self.tasks.start(self._live(machine), f"life of {machine.name}")
            machine = self.by_id[number]
            if any(
                machine.instance.get(key) != instance.get(key) for key in ("conditions", "dcgmTolerations")
            ):
                machine.changed.set()
            machine.instance = instance
            self.instances[self.by_id[number].name] = instance

    async def _drop_strangers(self) -> None:
        """Remove Nodes whose instance is gone, as the cloud controller manager does on EKS."""
        known = {machine.name for machine in self.by_id.values()}
        for item in (await self.api.get(NODES))["items"]:
            name = item["metadata"]["name"]
            if name not in known:
                await self.gone(name)
                await self._delete(f"{NODES}/{name}")

    async def _delete(self, path: str) -> None:
        try:
            await self.api.delete(path)
        except ApiError as error:
            if error.status != 404:
                raise

    # One node
    # ----------------------------------------------------------------------------------------------------

    def plugin_seen(self, name: str) -> None:
        """Handle a new, changed or removed device plugin on a node."""
        for machine in self.by_id.values():
            if machine.name == name:
                machine.changed.set()

    async def _live(self, machine: Machine) -> None:
        """Register the Node when the instance has booted, and keep its status up to date."""
        await asyncio.sleep(
            max(0.0, machine.instance["launchTime"] + self.settings.boot_seconds - time.time())
        )
        told = ""
        while error := machine.instance.get(
            "joinError"
        ):  # EKS refuses the kubelet without a correct access entry
            if error != told:
                told = error
                log.warning("instance %s cannot join the cluster: %s", machine.instance["instanceId"], error)
            await asyncio.sleep(1)
        await self._until_done(lambda: self._register(machine))
        machine.changed.set()
        while True:
            await machine.changed.wait()
            machine.changed.clear()
            await self._show(machine)

    async def _show(self, machine: Machine) -> None:
        """Report devices and conditions. A plugin takes some seconds until it has registered."""
        running = self.plugins(machine.name)
        machine.devices = machine.devices.lose(running)
        if running - machine.devices.usable:
            await asyncio.sleep(self.settings.device_seconds)
            machine.devices = machine.devices.gain(self.plugins(machine.name))
        await self._until_done(lambda: self._report(machine))

    async def _until_done(self, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await work()
                return
            except (*UNREACHABLE, ApiError) as error:
                log.warning("node not registered or reported: %s", error)
                await asyncio.sleep(1)

    async def _register(self, machine: Machine) -> None:
        settings, now = self.settings, time.time()
        wanted = node.build(machine.instance, settings.region, self.kubelet_port, self._version, now)
        try:
            await self.api.create(NODES, wanted)
            log.info("node %s (%s) registered", machine.name, machine.instance["instanceType"])
        except ApiError as error:
            if error.status != 409:
                raise
            # An earlier process registered the node and its devices.
            machine.devices = shown(await self.api.get(f"{NODES}/{machine.name}"))
            log.info("node %s taken over", machine.name)
        await self._renew(machine.name)
        machine.registered, machine.reported_at = True, now
        self.ready(machine.name, node.resources(machine.instance, ALL)[1])

    async def _report(self, machine: Machine) -> None:
        # Others change conditions too: Kubernetes sets Unknown if a node's Lease was not renewed.
        there = await self.api.get(f"{NODES}/{machine.name}")
        before, now = (there.get("status") or {}).get("conditions") or [], time.time()
        taints = there.get("spec", {}).get("taints") or []
        found = node.status(
            machine.instance, self.kubelet_port, self._version, now, machine.devices, before, taints
        )
        await self.api.patch(f"{NODES}/{machine.name}/status", {"status": found})
        machine.reported_at = now

    async def _lose(self, machine: Machine) -> None:
        log.info("instance %s of node %s is gone", machine.instance["instanceId"], machine.name)
        if machine.life is not None:
            machine.life.cancel()
            # Wait for its end, so that a Node that it is creating does not appear after the deletion.
            await asyncio.wait([machine.life])
        machine.registered = False
        await self.gone(machine.name)
        await self._delete(f"{NODES}/{machine.name}")

    # Heartbeat
    # ---------------------------------------------------------------------------------------------------

    async def heartbeat(self) -> None:
        """Renew each node's Lease, and its whole status every STATUS_SECONDS."""
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            for machine in [m for m in self.by_id.values() if m.registered]:
                try:
                    await self._renew(machine.name)
                    if time.time() - machine.reported_at > STATUS_SECONDS:
                        await self._report(machine)
                except (*UNREACHABLE, ApiError) as error:
                    log.warning("heartbeat of node %s: %s", machine.name, error)

    async def _renew(self, name: str) -> None:
        spec = {
            "holderIdentity": name,
            "leaseDurationSeconds": LEASE_SECONDS,
            "renewTime": micro_timestamp(time.time()),
        }
        try:
            await self.api.patch(f"{LEASES}/{name}", {"spec": spec}, MERGE)
        except ApiError as error:
            if error.status != 404:
                raise
            await self._create_lease(name, spec)

    async def _create_lease(self, name: str, spec: Object) -> None:
        """Create the Lease with its Node as owner, so that it is deleted with the Node.

        Create none if the Node was deleted.
        """
        try:
            owner = await self.api.get(f"{NODES}/{name}")
        except ApiError as error:
            if error.status == 404:
                return
            raise
        reference = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": owner["metadata"]["uid"]}
        await self.api.create(
            LEASES, {"metadata": {"name": name, "ownerReferences": [reference]}, "spec": spec}
        )
