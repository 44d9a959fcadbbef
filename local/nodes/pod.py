"""Prepare, run, report and remove one pod on a node. `Pod.run` is the entry point."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time
from functools import partial
from typing import Any

from local.nodes import status
from local.nodes.api import UNREACHABLE, ApiError
from local.nodes.container import Container
from local.nodes.context import HOST_IP, Context, log
from local.nodes.environment import MissingReference
from local.nodes.pod_site import RETRY_SECONDS, PodSite
from local.nodes.pod_volumes import PodVolumes
from local.nodes.process import listens_on_loopback
from local.nodes.status import ContainerState

Object = dict[str, Any]
ROLE_ANNOTATION = "eks.amazonaws.com/role-arn"
ENDED = ("Succeeded", "Failed")
NOT_FOUND, CONFLICT = 404, 409


class Pod(PodSite):
    """Runs one pod that is bound to a node of this cluster, until it is removed from the API."""

    def __init__(self, context: Context, item: Object) -> None:
        super().__init__(context, item)
        self.grace = 30.0
        self.machine_gone = False
        self._stops: list[asyncio.Task[None]] = []
        self.volumes = PodVolumes(self)
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
        once = init and spec.get("restartPolicy") != "Always"
        return Container(self, self.volumes, spec, state, once=once)

    @property
    def every(self) -> list[Container]:
        """All containers, init containers first."""
        return self.init + self.containers

    @property
    def simulated(self) -> bool:
        """Whether none of its containers has a process. Such a pod needs no files."""
        return all(container.simulated for container in self.every)

    async def connect(self, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to a port of the pod.

        Pods share the loopback address 127.0.0.1, so it is used only if a process of this pod listens there.

        Raises:
            OSError: Nothing listens at the port.
        """
        number = self.port(port) or port
        try:
            return await asyncio.open_connection(self.ip, number)
        except ConnectionRefusedError:
            programs = [c.process.pid for c in self.every if c.process is not None]
            if not listens_on_loopback([pid for pid in programs if pid is not None], number):
                raise
        return await asyncio.open_connection(HOST_IP, number)

    # Changes in the API ----------------------------------------------------------------------------------------

    def update(self, item: Object) -> None:
        """Store the newest object. A deletion stops the pod."""
        self.item = item
        if "deletionTimestamp" in item["metadata"]:
            self.stop(float(item["metadata"].get("deletionGracePeriodSeconds") or 0))

    def stop(self, grace: float) -> None:
        """Stop the containers within `grace` seconds. A second call can only shorten the time."""
        if not self.stopping.is_set() or grace < self.grace:
            self.grace = grace
            self.stopping.set()
            ends = time.monotonic() + grace
            self._stops.append(self.context.tasks.start(self._stop_in_order(ends), f"stop {self.label}"))

    async def _stop_in_order(self, ends: float) -> None:
        """Stop the containers, then the sidecars in reverse order, as the kubelet does.

        Source: https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#termination-with-sidecars
        """
        sidecars = [each for each in self.init if not each.once]
        others = [each for each in self.every if each not in sidecars]
        await asyncio.gather(*(self._stop(each, ends) for each in others))
        for each in reversed(sidecars):
            await self._stop(each, ends)

    async def _stop(self, container: Container, ends: float) -> None:
        async def stop() -> None:
            await container.stop(max(0.0, ends - time.monotonic()))

        await self.persist(stop, f"stop of {container.name}", to_the_end=True)

    def lose(self) -> None:
        """Handle the loss of the node: kill everything at once, and remove the pod without a report."""
        self.machine_gone = True
        self.stop(0)

    # Life cycle
    # ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run the pod from its start to its removal."""
        if "deletionTimestamp" in self.item["metadata"]:
            self.update(self.item)
        publisher = self.context.tasks.start(self._publisher(), f"status of {self.label}")
        if self.item.get("status", {}).get("phase") not in ENDED:
            await self.persist(self._live, "containers")
        publisher.cancel()
        if not self.stopping.is_set():
            await self.persist(self._rest, "end of the containers")
        await self.stopping.wait()
        # Not in a `finally`: when local/nodes ends, its next process takes over the pod.
        await self.persist(self._end, "removal", to_the_end=True)

    async def _rest(self) -> None:
        """Report the end of all containers, and release the volumes before the pod is removed."""
        await self._send()
        self.volumes.release()

    async def _end(self) -> None:
        """Wait until everything is killed, remove the pod from the API, and release everything."""
        await asyncio.gather(*self._stops)
        await self._remove()
        self.volumes.release()
        shutil.rmtree(self.directory, ignore_errors=True)
        self.context.moved_ports.pop(self.uid, None)
        if not self.host_network:
            self.context.addresses.give_back(self.ip)

    async def _live(self) -> None:
        """Prepare the pod, run the init containers in order, then the containers until all have ended."""
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
        for container, task in reversed(sidecars):
            task.cancel()
            await self.persist(partial(container.finish, self.grace), f"stop of {container.name}")

    async def _prepare(self) -> bool:
        """Create the pod's directories and volumes. Return false if the pod stops before."""
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
                reason = error.message if isinstance(error, ApiError) else str(error)
                if reason != told:
                    told = reason
                    self.event("Warning", "FailedMount", f"MountVolume.SetUp failed: {told}")
                await self.sleep(RETRY_SECONDS)
        return False

    async def _find_role(self) -> str:
        """Return the IAM role of its service account, or ""."""
        account = self.item["spec"].get("serviceAccountName", "default")
        found = await self.context.api.get(f"/api/v1/namespaces/{self.namespace}/serviceaccounts/{account}")
        return str((found["metadata"].get("annotations") or {}).get(ROLE_ANNOTATION, ""))

    # Status
    # ------------------------------------------------------------------------------------------------------

    async def _publisher(self) -> None:
        while True:
            await self.changed.wait()
            self.changed.clear()
            await self.persist(self._send, "status", to_the_end=True)

    def _status(self, forced_phase: str) -> Object:
        once = [c.state for c in self.init if c.once]
        always = [c.state for c in self.init if not c.once]
        before = self.item | {"status": self.item.get("status", {}) | self._reported}
        mains = [c.state for c in self.containers]
        return status.pod_status(before, once, always, mains, self.ip, HOST_IP, time.time(), forced_phase)

    async def _send(self, forced_phase: str = "") -> None:
        """Patch the status until the API server accepts it or the pod no longer exists."""
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
                if await self._is_gone(error):
                    return
                if error.status != CONFLICT:
                    log.error("status of pod %s refused: %s", self.label, error)
                    return
                log.warning("status of pod %s not taken: %s", self.label, error)
            except UNREACHABLE as error:
                log.warning("status of pod %s not sent: %s", self.label, error)
            await asyncio.sleep(RETRY_SECONDS)

    async def _is_gone(self, error: ApiError) -> bool:
        """Return whether a request was refused because the pod no longer exists.

        Another pod may have its name.
        """
        if error.status != CONFLICT:
            return error.status == NOT_FOUND
        try:
            found = await self.context.api.get(self.path)
        except ApiError as other:
            return other.status == NOT_FOUND
        except UNREACHABLE:
            return False
        return bool(found["metadata"]["uid"] != self.uid)

    async def _remove(self) -> None:
        """Report the end and remove the pod from the API. The options must be in the body."""
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
                if await self._is_gone(error):
                    return
                # Retry after every error, otherwise the pod stays Terminating.
                log.error("pod %s not removed: %s", self.label, error)
            except UNREACHABLE as error:
                log.warning("pod %s not removed: %s", self.label, error)
            await asyncio.sleep(RETRY_SECONDS)
