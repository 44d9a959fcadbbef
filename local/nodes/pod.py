"""Run all pods of one cluster (`Pods`). Prepare, run, report and remove each of them (`Pod.run`)."""

from __future__ import annotations

import asyncio
import logging
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from functools import partial

from local.nodes import network, status
from local.nodes.api import UNREACHABLE, Api, ApiError, Object, key_of
from local.nodes.container import Container
from local.nodes.context import RETRY_SECONDS, Context, PodSite
from local.nodes.csi import ROLE_ANNOTATION
from local.nodes.environment import MissingReference
from local.nodes.network import HOST_IP
from local.nodes.process import Process, listens_on_loopback
from local.nodes.status import ContainerState
from local.nodes.volumes import PodVolumes, unmount_memory

log = logging.getLogger(__name__)

SETTLE_SECONDS = 0.05  # changes come in bursts; hosts files and proxies are updated once per burst
REFRESH_SECONDS = 60.0  # the interval of token checks
LOG_CHECK_SECONDS = 1.0  # the interval of log size checks, which is the precision of the time stamps
KEPT_LOGS = 300  # maximum number of log directories of pods
ENDED = ("Succeeded", "Failed")
NOT_FOUND, CONFLICT = 404, 409


class Pod(PodSite):
    """Runs one pod that is bound to a node of this cluster, until it is removed from the API."""

    def __init__(self, context: Context, item: Object) -> None:
        super().__init__(context, item)
        self.grace = 30.0
        self.node_gone = False
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
        self.node_gone = True
        self.stop(0)

    async def run(self) -> None:
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
                await container.started_once.wait()
        else:
            await asyncio.gather(*(container.run() for container in self.containers))
        for container, task in reversed(sidecars):
            task.cancel()
            await self.persist(partial(container.finish, self.grace), f"stop of {container.name}")

    async def _prepare(self) -> bool:
        """Create the pod's directories and volumes. Return false if the pod stops before."""
        reported = ""
        while not self.stopping.is_set():
            try:
                self.directory.mkdir(parents=True, exist_ok=True)
                self.create_hosts_file()
                self.role = await self._find_role()
                await self.volumes.prepare()
                return True
            except (MissingReference, ApiError, *UNREACHABLE, subprocess.CalledProcessError) as error:
                reason = error.message if isinstance(error, ApiError) else str(error)
                if reason != reported:
                    reported = reason
                    self.event("Warning", "FailedMount", f"MountVolume.SetUp failed: {reported}")
                await self.sleep(RETRY_SECONDS)
        return False

    async def _find_role(self) -> str:
        """Return the IAM role of its service account, or ""."""
        account = self.item["spec"].get("serviceAccountName", "default")
        found = await self.context.api.get(f"/api/v1/namespaces/{self.namespace}/serviceaccounts/{account}")
        return str((found["metadata"].get("annotations") or {}).get(ROLE_ANNOTATION, ""))

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
        """Patch the status. A pod that no longer exists is no error.

        Raises:
            ApiError: The API server asks to try again.
            ApiUnavailable: The API server does not answer.
        """
        wanted = self._status(forced_phase)
        if self.node_gone or wanted == self._reported:
            return
        try:
            body = {"metadata": {"uid": self.uid}, "status": wanted}
            await self.context.api.patch(f"{self.path}/status", body)
            self._reported = wanted
        except ApiError as error:
            if await self._is_gone(error):
                return
            if error.status == CONFLICT:
                raise
            log.error("status of pod %s refused: %s", self.label, error)

    async def _is_gone(self, error: ApiError) -> bool:
        """Return whether a request was refused because the pod no longer exists. Another pod may have its name."""
        if error.status != CONFLICT:
            return error.status == NOT_FOUND
        try:
            found = await self.context.api.get(self.path)
        except ApiError as other:
            return other.status == NOT_FOUND
        return bool(found["metadata"]["uid"] != self.uid)

    async def _remove(self) -> None:
        """Report the end and remove the pod from the API. Its caller retries after every error."""
        for container in self.every:
            if container.state.stage != "terminated":
                container.state.end(
                    status.KILLED, time.time(), "ContainerStatusUnknown", "it had not started"
                )
        phase = self.item.get("status", {}).get("phase")
        await self._send(phase if phase in ENDED else status.end_phase([c.state for c in self.containers]))
        try:
            await delete_pod(self.context.api, self.item)
        except ApiError as error:
            if not await self._is_gone(error):
                raise


async def delete_pod(api: Api, item: Object) -> None:
    """Remove this pod, and no later one with its name, from the API at once. The options must be in the body."""
    metadata = item["metadata"]
    path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
    await api.delete(path, {"gracePeriodSeconds": 0, "preconditions": {"uid": metadata["uid"]}})


class Pods:
    """One `Pod` for each pod of this cluster's nodes. `context` must be set before the informers run."""

    context: Context

    def __init__(self, settle: Callable[[], None]) -> None:
        self.by_uid: dict[str, Pod] = {}
        self.nodes: set[str] = set()
        self._settle = settle
        self._dirty = asyncio.Event()

    def pod_changed(self, what: str, item: Object) -> None:
        """Handle a pod that is bound to a node, and was created, changed or deleted."""
        self._dirty.set()
        uid = item["metadata"]["uid"]
        known = self.by_uid.get(uid)
        if known is not None:
            known.stop(min(known.grace, 2.0)) if what == "gone" else known.update(item)
        elif what == "set" and item["spec"]["nodeName"] in self.nodes:
            self._take(item)

    def service_changed(self, _what: str, _item: Object) -> None:
        self._dirty.set()

    def data_changed(self, _what: str, item: Object) -> None:
        for pod in self.by_uid.values():
            if pod.namespace == item["metadata"]["namespace"] and pod.volumes.directories:
                self.context.tasks.start(self._refresh(pod), f"volumes of {pod.label}")

    def node_ready(self, node: str) -> None:
        self.nodes.add(node)
        for item in list(self.context.pods.objects.values()):
            if item["spec"]["nodeName"] == node and item["metadata"]["uid"] not in self.by_uid:
                self._take(item)

    async def node_gone(self, node: str) -> None:
        self.nodes.discard(node)
        for pod in self.by_uid.values():
            if pod.item["spec"]["nodeName"] == node:
                pod.lose()
        for item in list(self.context.pods.objects.values()):
            if item["spec"]["nodeName"] == node and item["metadata"]["uid"] not in self.by_uid:
                try:
                    await delete_pod(self.context.api, item)
                except (ApiError, *UNREACHABLE) as error:
                    log.info("pod %s/%s not removed: %s", *key_of(item), error)

    def _take(self, item: Object) -> None:
        pod = Pod(self.context, item)
        if pod.ip and not pod.host_network:
            self.context.addresses.take(pod.ip)
        self.by_uid[pod.uid] = pod
        self.context.tasks.start(self._run(pod), f"pod {pod.label}")

    async def _run(self, pod: Pod) -> None:
        try:
            await pod.run()
        finally:
            self.by_uid.pop(pod.uid, None)
            self._dirty.set()

    async def _refresh(self, pod: Pod) -> None:
        try:
            await pod.volumes.refresh()
        except (MissingReference, ApiError, *UNREACHABLE, FileNotFoundError) as error:
            log.info("volumes of pod %s stay as they are: %s", pod.label, error)

    async def keep_names(self) -> None:
        """Rewrite hosts files and proxies when pods or Services have changed."""
        while True:
            await self._dirty.wait()
            await asyncio.sleep(SETTLE_SECONDS)
            self._settle()
            context = self.context
            answers = network.records(context.services.objects.values(), context.pods.objects.values())
            for pod in self.by_uid.values():
                if not pod.simulated:
                    pod.write_hosts(network.hosts_file(answers, pod.namespace, pod.own_names, pod.ip))
            # Last, so that the loop repeats all of this after a failure.
            self._dirty.clear()

    async def keep_fresh(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_SECONDS)
            for pod in list(self.by_uid.values()):
                if pod.volumes.directories:
                    await self._refresh(pod)

    async def keep_clocks(self) -> None:
        while True:
            await asyncio.sleep(LOG_CHECK_SECONDS)
            now = time.time()
            for pod in self.by_uid.values():
                for container in pod.every:
                    if container.process is not None:
                        container.clock.record(now)

    def find(self, namespace: str, name: str) -> Pod | None:
        for pod in self.by_uid.values():
            if (pod.namespace, pod.name) == (namespace, name):
                return pod
        return None

    def prune(self) -> None:
        """Remove the files of deleted pods, and all but the newest KEPT_LOGS log directories."""
        context = self.context
        known = {item["metadata"]["uid"] for item in self.context.pods.objects.values()}
        context.settings.pods.mkdir(parents=True, exist_ok=True)
        for directory in context.settings.pods.iterdir():
            if directory.name not in known:
                # Deleted while no local/nodes process ran: kill its remaining processes.
                for container in (directory / "containers").glob("*"):
                    stray = Process.found(container)
                    if stray is not None:
                        stray.signal(signal.SIGKILL)
                unmount_memory(directory)
                shutil.rmtree(directory, ignore_errors=True)
        context.settings.pod_logs.mkdir(parents=True, exist_ok=True)
        outputs = sorted(
            context.settings.pod_logs.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True
        )
        for directory in outputs[KEPT_LOGS:]:
            shutil.rmtree(directory, ignore_errors=True)
