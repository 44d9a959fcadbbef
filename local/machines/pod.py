"""One pod on a machine: prepared, run, reported, removed."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from local.machines import environment, names, status
from local.machines.api import UNREACHABLE, ApiError
from local.machines.container import Container
from local.machines.context import HOST_IP, Context, log
from local.machines.environment import Facts, MissingReference
from local.machines.images import Program
from local.machines.pod_volumes import PodVolumes
from local.machines.status import ContainerState

Object = dict[str, Any]
ROLE_ANNOTATION = "eks.amazonaws.com/role-arn"
ENDED = ("Succeeded", "Failed")
RETRY_SECONDS = 1.0


class Pod:
    """Runs one pod that is bound to a machine of this cluster, until it is removed from the API."""

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
        self.stopping = asyncio.Event()
        self.grace = 30.0
        self.machine_gone = False
        self._stops: list[asyncio.Task[None]] = []
        self.role = ""
        self.volumes = PodVolumes(self)
        self._load_ports()
        self._changed = asyncio.Event()
        self._reported: Object = {}
        self.init = [self._container(c, True) for c in item["spec"].get("initContainers", [])]
        self.containers = [self._container(c, False) for c in item["spec"]["containers"]]

    def _container(self, spec: Object, init: bool) -> Container:
        reports = self.item.get("status", {})
        every = reports.get("containerStatuses", []) + reports.get("initContainerStatuses", [])
        known = next((ContainerState.of(r) for r in every if r["name"] == spec["name"]), None)
        after_others = not init and self.item["spec"].get("initContainers")
        reason = "PodInitializing" if after_others else "ContainerCreating"
        state = known or ContainerState(spec["name"], spec["image"], reason=reason)
        return Container(self, spec, state, once=init and spec.get("restartPolicy") != "Always")

    @property
    def every(self) -> list[Container]:
        """All containers, init containers first."""
        return self.init + self.containers

    @property
    def simulated(self) -> bool:
        """Whether no container of it has a process: then it needs no files either."""
        return all(container.simulated for container in self.every)

    # What the API says -----------------------------------------------------------------------------------------

    def update(self, item: Object) -> None:
        """Take the newest object; a deletion stops the pod."""
        self.item = item
        if "deletionTimestamp" in item["metadata"]:
            self.stop(float(item["metadata"].get("deletionGracePeriodSeconds") or 0))

    def stop(self, grace: float) -> None:
        """End the containers within `grace` seconds; a second call can only shorten it."""
        if not self.stopping.is_set() or grace < self.grace:
            self.grace = grace
            self.stopping.set()
            self._stops += [
                self.context.tasks.start(c.stop(grace), f"stop {self.label}/{c.name}") for c in self.every
            ]

    def lose(self) -> None:
        """The machine is gone: everything ends at once and the pod is removed without a word."""
        self.machine_gone = True
        self.stop(0)

    async def sleep(self, seconds: float) -> bool:
        """Wait; True as soon as the pod is to stop."""
        try:
            async with asyncio.timeout(seconds):
                await self.stopping.wait()
        except TimeoutError:
            return False
        return True

    def event(self, kind: str, reason: str, message: str) -> None:
        """Post an Event about this pod."""
        self.context.event(self.item, kind, reason, message)

    # Its life --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Its whole life on the machine."""
        if "deletionTimestamp" in self.item["metadata"]:
            self.update(self.item)
        publisher = self.context.tasks.start(self._publisher(), f"status of {self.label}")
        if self.item.get("status", {}).get("phase") not in ENDED:
            await self._live()
        publisher.cancel()
        if not self.stopping.is_set():
            await self._send()
            self.volumes.release()
        await self.stopping.wait()
        await asyncio.gather(*self._stops)
        await self._remove()
        # Not in a `finally`: a stand-in that is told to end leaves everything to the next one.
        self.volumes.release()
        shutil.rmtree(self.directory, ignore_errors=True)
        self.context.moved_ports.pop(self.uid, None)
        if not self.host_network:
            self.context.addresses.give_back(self.ip)

    async def _live(self) -> None:
        """Prepare it, run the init containers in order, then the containers until all have ended."""
        self.ip = HOST_IP if self.host_network else self.context.addresses.take(self.ip)
        self.publish()
        if not self.simulated and not await self._prepare():
            return
        sidecars = []
        for container in self.init:
            if container.once:
                await container.run()
                if container.state.stage != "terminated" or container.state.exit_code != 0:
                    break
            else:
                task = self.context.tasks.start(container.run(), f"{self.label}/{container.name}")
                sidecars.append((container, task))
                await container.begun.wait()
        else:
            await asyncio.gather(*(container.run() for container in self.containers))
        for container, task in sidecars:
            task.cancel()
            await container.finish(self.grace)

    async def _prepare(self) -> bool:
        """Make its directories and volumes; False if it is to stop before they can be made."""
        told = ""
        while not self.stopping.is_set():
            try:
                self.directory.mkdir(parents=True, exist_ok=True)
                self.hosts_file.touch()
                self.write_hosts(self.context.hosts_text(self.namespace, self.own_names, self.ip))
                self.role = await self._find_role()
                await self.volumes.prepare()
                return True
            except (MissingReference, ApiError, *UNREACHABLE, subprocess.CalledProcessError) as error:
                if str(error) != told:
                    told = str(error)
                    self.event("Warning", "FailedMount", f"MountVolume.SetUp failed: {told}")
                await self.sleep(RETRY_SECONDS)
        return False

    async def _find_role(self) -> str:
        """The IAM role of its service account, or ""."""
        account = self.item["spec"].get("serviceAccountName", "default")
        found = await self.context.api.get(f"/api/v1/namespaces/{self.namespace}/serviceaccounts/{account}")
        return str((found["metadata"].get("annotations") or {}).get(ROLE_ANNOTATION, ""))

    # What its containers need ------------------------------------------------------------------------------------

    @property
    def hosts_file(self) -> Path:
        """The file that its containers see as /etc/hosts."""
        return self.directory / "hosts"

    def write_hosts(self, text: str) -> None:
        """Replace the hosts file's text in place: it is bind-mounted, so it must stay the same file.

        Padded with line ends to the old length before it is cut, so that no reader sees half of an old line.
        """
        if not self.hosts_file.exists() or self.hosts_file.read_text() == text:
            return
        with self.hosts_file.open("r+b") as file:
            data = text.encode()
            file.write(data.ljust(self.hosts_file.stat().st_size, b"\n"))
            file.truncate(len(data))

    def facts(self) -> Facts:
        """What environment and volumes may refer to."""
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
        """Environment that the pod did not ask for: AWS endpoints and role, the preloaded library."""
        settings = self.context.settings
        found = environment.cloud(settings.region, settings.aws_endpoint)
        if self.role:
            found = environment.web_identity(self.role, settings.region, settings.aws_endpoint)
        if not self.host_network:
            found |= {"LD_PRELOAD": str(self.context.preload), "POD_BIND_IP": self.ip}
        return found

    def plan(self, spec: Object, program: Program, variables: dict[str, str]) -> Object:
        """What the sandbox is told about one container."""
        return self.volumes.plan(spec, program) | {
            "hostname": self.hostname,
            "argv": list(program.argv),
            "env": variables,
        }

    def port_for(self, wanted: int) -> int:
        """The port that a program of this pod uses instead of `wanted`."""
        return self.context.port_for(self.uid, wanted)

    def port(self, port: int | str) -> int | None:
        """The number in use of a declared port or port name."""
        number = names.container_port(self.item, port)
        moved = self.context.moved_ports.get(self.uid, {})
        return None if number is None else moved.get(number, number)

    def save_ports(self) -> None:
        """Keep the moved ports for a stand-in that takes over."""
        ports = self.context.moved_ports.get(self.uid)
        if ports:
            (self.directory / "ports.json").write_text(json.dumps(ports))

    def _load_ports(self) -> None:
        file = self.directory / "ports.json"
        if file.exists():
            known = json.loads(file.read_text())
            self.context.moved_ports[self.uid] = {int(port): used for port, used in known.items()}

    # What it reports ---------------------------------------------------------------------------------------------

    def publish(self) -> None:
        """Report the present state soon."""
        self._changed.set()

    async def _publisher(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            await self._send()

    def _status(self, forced_phase: str) -> Object:
        once = [c.state for c in self.init if c.once]
        always = [c.state for c in self.init if not c.once]
        before = self.item | {"status": self.item.get("status", {}) | self._reported}
        mains = [c.state for c in self.containers]
        return status.pod_status(before, once, always, mains, self.ip, HOST_IP, time.time(), forced_phase)

    async def _send(self, forced_phase: str = "") -> None:
        """Patch the status until the API server has it or the pod is no more."""
        while not self.machine_gone:
            wanted = self._status(forced_phase)
            if wanted == self._reported:
                return
            try:
                await self.context.api.patch(
                    f"{self.path}/status", {"metadata": {"uid": self.uid}, "status": wanted}
                )
                self._reported = wanted
                return
            except ApiError as error:
                if error.status not in (404, 409):
                    log.error("status of pod %s refused: %s", self.label, error)
                return
            except UNREACHABLE as error:
                log.warning("status of pod %s not sent: %s", self.label, error)
                await asyncio.sleep(RETRY_SECONDS)

    async def _remove(self) -> None:
        """Report the end and take the pod out of the API. The options must be in the body."""
        for container in self.every:
            if container.state.stage != "terminated":
                container.state.end(
                    status.KILLED, time.time(), "ContainerStatusUnknown", "it had not started"
                )
        phase = self.item.get("status", {}).get("phase")
        await self._send(phase if phase in ENDED else status.end_phase([c.state for c in self.containers]))
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": self.uid}}
        while True:
            try:
                await self.context.api.delete(self.path, body)
                return
            except ApiError as error:
                if error.status not in (404, 409):
                    log.error("pod %s not removed: %s", self.label, error)
                return
            except UNREACHABLE:
                await asyncio.sleep(RETRY_SECONDS)
