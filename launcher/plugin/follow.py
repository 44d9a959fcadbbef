"""A job from its submit to its end: what changes on one stream, what its first worker prints on the other."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import BinaryIO, TextIO

from launcher.core.torchrun import names
from launcher.kube.rest import ApiError, ApiUnavailable, JsonObject
from launcher.plugin import show
from launcher.plugin.cluster import Cluster

POLL_SECONDS = 1.0
# What a worker printed last may come a moment after the job is over.
DRAIN_SECONDS = 5.0
FAILED = 1


class Follower:
    """Follows one job; the logs are those of one node's worker, of each attempt in turn."""

    def __init__(
        self,
        cluster: Cluster,
        job: str,
        node: int = 0,
        *,
        say: TextIO | None = None,
        out: BinaryIO | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._cluster = cluster
        self._job = job
        self._node = node
        self._say = say or sys.stderr
        self._out = out or sys.stdout.buffer
        self._sleep = sleep
        self._told = ""
        self._reader: threading.Thread | None = None
        self._followed: set[str] = set()

    def run(self) -> int:
        """Until the job's end; returns its exit code. Raises ApiError when the job is gone, and ApiUnavailable."""
        while True:
            item = self._cluster.job(self._job)
            told = show.state(item)
            if told != self._told:
                print(f"{self._job} {told}", file=self._say, flush=True)
                self._told = told
            self._read(item)
            if show.phase(item) in names.FINAL_PHASES:
                self._drain()
                self._read(item)  # what ended while an earlier worker's log was still read
                self._drain()
                return code(item)
            self._sleep(POLL_SECONDS)

    def _read(self, item: JsonObject) -> None:
        """Begin to read the present worker's log, once the one before has ended."""
        if self._reader is not None and self._reader.is_alive():
            return
        attempt = (item.get("status") or {}).get("attempt", 0)
        pod = self._cluster.worker(self._job, attempt, self._node)
        if pod is None or pod.get("status", {}).get("phase") in (None, "Pending", "Unknown"):
            return
        name, uid = str(pod["metadata"]["name"]), str(pod["metadata"]["uid"])
        if uid not in self._followed:
            self._followed.add(uid)
            self._reader = threading.Thread(target=self._copy, args=(name,), daemon=True)
            self._reader.start()

    def _drain(self) -> None:
        if self._reader is not None:
            self._reader.join(DRAIN_SECONDS)

    def _copy(self, pod: str) -> None:
        try:
            for piece in self._cluster.log(pod, follow=True):
                self._out.write(piece)
                self._out.flush()
        except (ApiError, ApiUnavailable) as error:
            print(f"{self._job} log of {pod} broke off: {error}", file=self._say, flush=True)


def code(item: JsonObject) -> int:
    """The job's exit code: 0 for one that succeeded, else its worker's where one is known."""
    if show.phase(item) == names.PHASE_SUCCEEDED:
        return 0
    told = (item.get("status") or {}).get("exitCode")
    return told if isinstance(told, int) and 0 < told < 256 else FAILED
