"""Run all pods of one cluster: from API objects to running pods, and their hosts files. See `Pods`."""

from __future__ import annotations

import asyncio
import logging
import shutil
import signal
import time
from collections.abc import Callable

from local.nodes import names
from local.nodes.api import UNREACHABLE, ApiError, Informer, Object
from local.nodes.context import Context
from local.nodes.environment import MissingReference
from local.nodes.pod import Pod
from local.nodes.pod_volumes import PodVolumes
from local.nodes.process import Process

log = logging.getLogger(__name__)

SETTLE_SECONDS = 0.05  # changes come in bursts; hosts files and proxies are updated once per burst
REFRESH_SECONDS = 60.0  # the interval of token checks
LOOK_SECONDS = 1.0  # the interval of log size checks, which is the precision of the time stamps
KEPT_LOGS = 300  # maximum number of log directories of pods


class Pods:
    """One `Pod` for each pod of this cluster's nodes."""

    def __init__(self, settle: Callable[[], None]) -> None:
        self.by_uid: dict[str, Pod] = {}
        self.nodes: set[str] = set()
        self.context: Context | None = None
        self._settle = settle
        self._dirty = asyncio.Event()

    # Informers' callbacks ----------------------------------------------------------------------------------------

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
        """Handle a Service that was created, changed or deleted."""
        self._dirty.set()

    def data_changed(self, _what: str, item: Object) -> None:
        """Handle a changed or deleted ConfigMap or Secret: refresh the volumes of its namespace."""
        for pod in self.by_uid.values():
            if pod.namespace == item["metadata"]["namespace"] and pod.volumes.directories:
                self._context.tasks.start(self._refresh(pod), f"volumes of {pod.label}")

    @property
    def _context(self) -> Context:
        if self.context is None:
            raise RuntimeError("the pods are used before their context is set")
        return self.context

    # Nodes
    # -------------------------------------------------------------------------------------------------------

    def machine_ready(self, node: str) -> None:
        """Start to run the pods of a node."""
        self.nodes.add(node)
        for item in list(self._informer.objects.values()):
            if item["spec"]["nodeName"] == node and item["metadata"]["uid"] not in self.by_uid:
                self._take(item)

    async def machine_gone(self, node: str) -> None:
        """End all pods of a node and remove them from the API."""
        self.nodes.discard(node)
        for pod in self.by_uid.values():
            if pod.item["spec"]["nodeName"] == node:
                pod.lose()
        for item in list(self._informer.objects.values()):
            if item["spec"]["nodeName"] == node and item["metadata"]["uid"] not in self.by_uid:
                await self._delete(item)

    async def _delete(self, item: Object) -> None:
        metadata = item["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        try:
            body = {"gracePeriodSeconds": 0, "preconditions": {"uid": metadata["uid"]}}
            await self._context.api.delete(path, body)
        except (ApiError, *UNREACHABLE) as error:
            log.info("pod %s/%s not removed: %s", metadata["namespace"], metadata["name"], error)

    @property
    def _informer(self) -> Informer:
        return self._context.pods

    def _take(self, item: Object) -> None:
        pod = Pod(self._context, item)
        if pod.ip and not pod.host_network:
            self._context.addresses.take(pod.ip)
        self.by_uid[pod.uid] = pod
        self._context.tasks.start(self._run(pod), f"pod {pod.label}")

    async def _run(self, pod: Pod) -> None:
        try:
            await pod.run()
        finally:
            self.by_uid.pop(pod.uid, None)
            self._dirty.set()

    # Loops
    # -------------------------------------------------------------------------------------------------------

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
            self._dirty.clear()
            context = self._context
            answers = names.records(context.services.objects.values(), context.pods.objects.values())
            for pod in self.by_uid.values():
                if not pod.simulated:
                    pod.write_hosts(names.hosts_file(answers, pod.namespace, pod.own_names, pod.ip))
            self._settle()

    async def keep_fresh(self) -> None:
        """Renew tokens before they expire."""
        while True:
            await asyncio.sleep(REFRESH_SECONDS)
            for pod in list(self.by_uid.values()):
                if pod.volumes.directories:
                    await self._refresh(pod)

    async def keep_clocks(self) -> None:
        """Record the sizes of the log files."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            now = time.time()
            for pod in self.by_uid.values():
                for container in pod.every:
                    if container.process is not None:
                        container.clock.look(now)

    def find(self, namespace: str, name: str) -> Pod | None:
        """Return the `Pod` with this name, or None."""
        for pod in self.by_uid.values():
            if (pod.namespace, pod.name) == (namespace, name):
                return pod
        return None

    def prune(self) -> None:
        """Remove the files of deleted pods, and all but the newest KEPT_LOGS log directories."""
        context = self._context
        known = {item["metadata"]["uid"] for item in self._informer.objects.values()}
        context.settings.pods.mkdir(parents=True, exist_ok=True)
        for directory in context.settings.pods.iterdir():
            if directory.name not in known:
                # Deleted while no local/nodes process ran: kill its remaining processes.
                for container in (directory / "containers").glob("*"):
                    stray = Process.found(container)
                    if stray is not None:
                        stray.signal(signal.SIGKILL)
                PodVolumes.release_left(directory)
                shutil.rmtree(directory, ignore_errors=True)
        context.settings.pod_logs.mkdir(parents=True, exist_ok=True)
        outputs = sorted(
            context.settings.pod_logs.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True
        )
        for directory in outputs[KEPT_LOGS:]:
            shutil.rmtree(directory, ignore_errors=True)
