"""Settings of a cluster's nodes, the state that all pods share (`Context`), and that of one pod (`PodSite`)."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from local.guard import endpoints
from local.home import Home, read_record, write_atomically
from local.nodes import environment, network
from local.nodes.api import Api, Informer, Object, post_event
from local.nodes.environment import Facts
from local.nodes.images import Images
from local.nodes.network import HOST_IP, Addresses
from local.ports import free_ports

log = logging.getLogger(__name__)
RETRY_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of the nodes of one cluster. Delays are in seconds."""

    cluster: str
    home: Home
    region: str
    account: str
    aws_endpoint: str
    aws_token: str
    api_port: int
    service_ip: str
    pod_network: ipaddress.IPv4Network
    boot_seconds: float
    device_seconds: float

    @property
    def aws_headers(self) -> dict[str, str]:
        """Return the headers for the emulator's own paths."""
        return {"Authorization": f"Bearer {self.aws_token}"}

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig of this cluster."""
        return self.home.cluster(self.cluster) / "admin.kubeconfig"

    @property
    def pods(self) -> Path:
        """Private files of the running pods."""
        return self.home.pods / self.cluster

    @property
    def pod_logs(self) -> Path:
        """Output of the containers. It stays after the pods are deleted."""
        return self.home.logs / "pods" / self.cluster

    @property
    def state(self) -> Path:
        """Files of the local/nodes process: small programs and the kubelets' port."""
        return self.home.cluster(self.cluster) / "nodes"

    @property
    def pki(self) -> Path:
        return self.home.cluster(self.cluster) / "pki"

    @classmethod
    def load(cls, cluster: str, home: Home) -> Settings:
        """Read the settings from a home.

        Raises:
            ValueError: The record of the cloud or of the cluster is missing or damaged; the message names it.
            OSError: The file of delays is damaged.
        """
        cluster_file = home.cluster(cluster) / "cluster.json"
        cloud = home.cloud()
        if cloud is None:
            raise ValueError(f"{home.cloud_file}: missing; start the local cloud first")
        record = read_record(cluster_file)
        if record is None:
            raise ValueError(f"{cluster_file}: missing or damaged; cluster {cluster!r} was not created")
        delays = home.settings()
        return cls(
            cluster=cluster,
            home=home,
            region=record["region"],
            account=cloud["accountId"],
            aws_endpoint=cloud["awsEndpoint"],
            aws_token=cloud["emulatorToken"],
            api_port=record["apiPort"],
            service_ip=str(ipaddress.IPv4Network(record["serviceCidr"])[1]),
            pod_network=ipaddress.IPv4Network(record["podCidr"]),
            boot_seconds=delays["bootSeconds"],
            device_seconds=delays["gpuDelaySeconds"],
        )


class Tasks:
    """Background tasks. It keeps references to them, and logs their failures."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def start_loop(self, loop: Callable[[], Coroutine[Any, Any, None]], name: str) -> asyncio.Task[None]:
        """Start a loop as a task, and again RETRY_SECONDS after each failure. A repeated failure is logged once."""

        async def run() -> None:
            reported = ""
            while True:
                try:
                    await loop()
                    return
                except Exception as error:
                    reason = f"{type(error).__name__}: {error}"
                    if reason != reported:
                        reported = reason
                        log.error("%s failed and is started again: %s", name, reason, exc_info=error)
                await asyncio.sleep(RETRY_SECONDS)

        return self.start(run(), name)

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


class PodSite:
    """Names, directories, address and ports of a pod.

    Its parts wait for `stopping`, and call `publish` when the status has changed.
    """

    def __init__(self, context: Context, item: Object) -> None:
        self.context = context
        self.item = item
        self.uid: str = item["metadata"]["uid"]
        self.namespace: str = item["metadata"]["namespace"]
        self.name: str = item["metadata"]["name"]
        self.label = f"{self.namespace}/{self.name}"
        self.path = f"/api/v1/namespaces/{self.namespace}/pods/{self.name}"
        self.hostname = network.host_name(item)
        self.own_names = network.own_names(item)
        self.directory: Path = context.settings.pods / self.uid
        self.log_directory: Path = context.settings.pod_logs / f"{self.namespace}_{self.name}_{self.uid[:8]}"
        self.host_network: bool = item["spec"].get("hostNetwork", False)
        self.ip: str = item.get("status", {}).get("podIP", "")
        self.role = ""
        self.stopping = asyncio.Event()
        self.changed = asyncio.Event()
        self._load_ports()

    async def sleep(self, seconds: float) -> bool:
        """Wait. Return true as soon as the pod stops."""
        try:
            async with asyncio.timeout(seconds):
                await self.stopping.wait()
        except TimeoutError:
            # Both can happen in one iteration of the event loop; the timeout then hides the event.
            return self.stopping.is_set()
        return True

    async def persist(
        self, work: Callable[[], Awaitable[None]], what: str, *, to_the_end: bool = False
    ) -> None:
        """Run `work`, and retry after each failure until it succeeds.

        A kubelet retries without a limit, and nothing else handles the pod. When the pod stops, it does not retry any
        more, so that a failure can't delay the removal. With `to_the_end` it still retries.
        """
        reported = ""
        while True:
            try:
                await work()
                return
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
                if reason != reported:
                    reported = reason
                    log.error("%s of pod %s failed", what, self.label, exc_info=error)
                    self.event("Warning", "FailedSync", f"error syncing pod, {what}: {reason}")
            if to_the_end:
                await asyncio.sleep(RETRY_SECONDS)
            elif await self.sleep(RETRY_SECONDS):
                return

    def event(self, kind: str, reason: str, message: str) -> None:
        """Post an Event about this pod in the background. `kind` is Normal or Warning."""
        source = {"component": "kubelet", "host": self.item["spec"].get("nodeName", "")}
        event = {"type": kind, "reason": reason, "message": message, "source": source}
        self.context.tasks.start(post_event(self.context.api, "Pod", self.item, event), f"event {reason}")

    def publish(self) -> None:
        """Report the current state soon."""
        self.changed.set()

    @property
    def hosts_file(self) -> Path:
        """The file that is mounted at /etc/hosts in the containers."""
        return self.directory / "hosts"

    def write_hosts(self, text: str) -> None:
        """Replace the text of the hosts file in place, because the bind mount needs the same file.

        The text is padded with newlines to the old length before the file is truncated, so no reader sees part of an
        old line.
        """
        if not self.hosts_file.exists() or self.hosts_file.read_text() == text:
            return
        with self.hosts_file.open("r+b") as file:
            data = text.encode()
            file.write(data.ljust(self.hosts_file.stat().st_size, b"\n"))
            file.truncate(len(data))

    def create_hosts_file(self) -> None:
        """Create the hosts file with the names of the present Services and pods."""
        services, pods = self.context.services.objects, self.context.pods.objects
        answers = network.records(services.values(), pods.values())
        self.hosts_file.touch()
        self.write_hosts(network.hosts_file(answers, self.namespace, self.own_names, self.ip))

    def facts(self) -> Facts:
        """Return the facts that environment and volumes may refer to."""
        maps, secrets = self.context.config_maps.objects, self.context.secrets.objects
        return Facts(
            pod=self.item,
            pod_ip=self.ip,
            host_ip=HOST_IP,
            allocatable=self.context.allocatable.get(self.item["spec"]["nodeName"], {}),
            config_map=lambda name: maps.get((self.namespace, name)),
            secret=lambda name: secrets.get((self.namespace, name)),
        )

    def injected(self) -> dict[str, str]:
        """Return the variables that the pod does not declare: AWS endpoints and role, the preloaded library."""
        settings = self.context.settings
        found = endpoints(settings.region, settings.aws_endpoint)
        if self.role:
            found = environment.web_identity(self.role, settings.region, settings.aws_endpoint)
        if not self.host_network:
            found |= {"LD_PRELOAD": str(self.context.preload), "POD_BIND_IP": self.ip}
        return found

    def port_for(self, wanted: int) -> int:
        """Return the port that a program of this pod uses instead of `wanted`. Later calls return the same port."""
        every = self.context.moved_ports
        ports = every.setdefault(self.uid, {})
        if wanted not in ports:
            (ports[wanted],) = free_ports(1, {port for each in every.values() for port in each.values()})
        return ports[wanted]

    def port(self, port: int | str) -> int | None:
        """Return the port in use for a declared port or port name."""
        number = network.container_port(self.item, port)
        moved = self.context.moved_ports.get(self.uid, {})
        return None if number is None else moved.get(number, number)

    def save_ports(self) -> None:
        """Save the changed ports for a local/nodes process that takes over."""
        ports = self.context.moved_ports.get(self.uid)
        if ports:
            write_atomically(self.directory / "ports.json", json.dumps(ports))

    def _load_ports(self) -> None:
        known = read_record(self.directory / "ports.json")
        if known is not None:
            self.context.moved_ports[self.uid] = {int(port): used for port, used in known.items()}
