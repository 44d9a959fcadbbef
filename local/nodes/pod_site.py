"""State that the containers and volumes of one pod share."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from local.nodes import environment, names
from local.nodes.context import HOST_IP, Context
from local.nodes.environment import Facts

Object = dict[str, Any]
RETRY_SECONDS = 1.0

log = logging.getLogger(__name__)


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
        self.hostname = names.host_name(item)
        self.own_names = names.own_names(item)
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
        told = ""
        while True:
            try:
                await work()
                return
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
                if reason != told:
                    told = reason
                    log.error("%s of pod %s failed", what, self.label, exc_info=error)
                    self.event("Warning", "FailedSync", f"error syncing pod, {what}: {reason}")
            if to_the_end:
                await asyncio.sleep(RETRY_SECONDS)
            elif await self.sleep(RETRY_SECONDS):
                return

    def event(self, kind: str, reason: str, message: str) -> None:
        """Post an Event about this pod."""
        self.context.event(self.item, kind, reason, message)

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
        found = environment.cloud(settings.region, settings.aws_endpoint)
        if self.role:
            found = environment.web_identity(self.role, settings.region, settings.aws_endpoint)
        if not self.host_network:
            found |= {"LD_PRELOAD": str(self.context.preload), "POD_BIND_IP": self.ip}
        return found

    def port_for(self, wanted: int) -> int:
        """Return the port that a program of this pod uses instead of `wanted`."""
        return self.context.port_for(self.uid, wanted)

    def port(self, port: int | str) -> int | None:
        """Return the port in use for a declared port or port name."""
        number = names.container_port(self.item, port)
        moved = self.context.moved_ports.get(self.uid, {})
        return None if number is None else moved.get(number, number)

    def save_ports(self) -> None:
        """Save the changed ports for a local/nodes process that takes over."""
        ports = self.context.moved_ports.get(self.uid)
        if ports:
            # Written in one step, because a process that reads an incomplete file could not take over any
            # pods.
            fresh = self.directory / "ports.new"
            fresh.write_text(json.dumps(ports))
            os.replace(fresh, self.directory / "ports.json")

    def _load_ports(self) -> None:
        file = self.directory / "ports.json"
        if file.exists():
            known = json.loads(file.read_text())
            self.context.moved_ports[self.uid] = {int(port): used for port, used in known.items()}
