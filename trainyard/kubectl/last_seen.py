"""The end of a job that is followed, also of one that is removed as soon as it is over."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from trainyard.k8s.client import ApiError, ApiUnavailable
from trainyard.k8s.informer import Informer, ListWatch
from trainyard.kubectl.cluster import Cluster
from trainyard.kubectl.exits import REMOVED, PluginError
from trainyard.operator.core import names as n

JsonObject = dict[str, Any]
# From the answer that it is gone to the watch's word on that.
_HEAR_SECONDS: Final = 5.0


class LastSeen:
    """What the job said at its end.

    With `ttlSecondsAfterFinished: 0` it may be gone when the end of its log is seen, which the kubelet looks for every
    5 s; a watch has told of its end by then.
    """

    def __init__(self, cluster: Cluster, job: JsonObject) -> None:
        self._cluster = cluster
        self._name, self._uid = job["metadata"]["name"], job["metadata"]["uid"]
        self._over: JsonObject | None = None
        self._news = threading.Condition()
        source = ListWatch(
            path=cluster.path(n.JOB_PLURAL),
            selectors=(("fieldSelector", f"metadata.name={self._name}"),),
            convert=self._take,
        )
        self._watch = Informer(cluster.rest, source, self._changed)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """The job is watched meanwhile."""
        self._watch.start()
        try:
            yield
        finally:
            self._watch.stop()

    def look(self) -> JsonObject:
        """The job as it is now, as it was at its end where it is gone. Raises PluginError where nobody saw that."""
        found = self._cluster.find_job(self._name)
        if found is None or found["metadata"]["uid"] != self._uid:
            found = self._at_its_end()
        if found is None:
            raise PluginError(REMOVED, f"job {self._name}: was removed; how it ended is not known")
        self._take(found)
        return found

    def _at_its_end(self) -> JsonObject | None:
        end = time.monotonic() + _HEAR_SECONDS
        with self._news:
            while self._over is None and self._is_there() and (left := end - time.monotonic()) > 0:
                self._news.wait(left)
            return self._over

    def _is_there(self) -> bool:
        """To those who watch, whom the end of it reaches a little later; False where it can't be watched."""
        try:
            return self._uid in self._watch.items()
        except (ApiError, ApiUnavailable):
            return False

    # -- in the watch's thread

    def _take(self, item: JsonObject) -> str:
        uid = str(item["metadata"]["uid"])
        if uid == self._uid and item.get("status", {}).get("phase") in n.FINAL_PHASES:
            self._over = item
        return uid

    def _changed(self) -> None:
        try:
            self._watch.items()
        except ApiError:  # it may be read and not watched
            self._watch.stop()
        except ApiUnavailable:
            return
        with self._news:
            self._news.notify_all()
