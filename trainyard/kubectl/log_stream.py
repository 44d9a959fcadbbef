"""Read logs of pods once (`read_lines`), or follow them in a thread (`Stream`)."""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from trainyard.k8s.client import ApiError, ApiUnavailable
from trainyard.kubectl.cluster import Cluster, explained
from trainyard.kubectl.errors import UNAVAILABLE, PluginError
from trainyard.kubectl.pod_state import has_ended, is_over

JsonObject = dict[str, Any]
# A job may print nothing for a long time. The keep-alive of `Client` detects a lost connection.
_SILENCE_SECONDS: Final = 3600.0
# Before the API server has answered, a log only counts as silent after this time. The client waits longer.
_ANSWER_SECONDS: Final = 10.0
_REPORT_SECONDS: Final = 1.0
_NO_LOG: Final = 400
# The timestamp that the kubelet adds before each line of a container (RFC 3339).
_STAMP: Final = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
_NO_LOG_STATUSES: Final = frozenset({_NO_LOG, 404})


def read_lines(cluster: Cluster, pod: JsonObject, query: dict[str, str]) -> Iterator[bytes]:
    """Yield the present lines of a container's log.

    Raises:
        PluginError: The log can't be read.
    """
    path = f"/api/v1/namespaces/{cluster.namespace}/pods/{pod['metadata']['name']}/log"
    with (
        explained("get pods/log", cluster.namespace),
        _explain_missing_log(pod),
        cluster.client.open(path, query) as answer,
    ):
        yield from split(answer.chunks())


@contextmanager
def _explain_missing_log(pod: JsonObject) -> Iterator[None]:
    """Convert the API server's error for a container without a log to a PluginError."""
    try:
        yield
    except ApiError as error:
        if error.status != _NO_LOG:
            raise
        name, status = pod["metadata"]["name"], pod.get("status", {})
        message = f"pod {name}: has no log yet: {error.message}; logs -f waits for it"
        if is_over(pod):
            reason = status.get("message") or status.get("reason") or error.message
            message = f"pod {name}: has ended, and its worker has no log: {reason}"
        raise PluginError(UNAVAILABLE, message) from None


def split(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the lines of a response that arrives in chunks."""
    rest: list[bytes] = []  # chunks of the present line, which may be long
    for piece in pieces:
        first, *others = piece.split(b"\n")
        rest.append(first)
        for each in others:
            yield b"".join(rest)
            rest = [each]
    if last := b"".join(rest):
        yield last


def print_line(line: bytes) -> None:
    """Print one line of a log."""
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


class LogPosition:
    """The printed part of a pod's log: the last timestamp, and the number of printed lines with this timestamp."""

    def __init__(self) -> None:
        self.last = ""
        self._lines_at_last = 0

    def resume(self) -> Callable[[str], bool]:
        """Return a function for a log that is read again from `last` on.

        It takes the timestamp of each line in order, and returns whether the line is new.
        """
        before, left = _pad_fraction(self.last), self._lines_at_last

        def is_new(when: str) -> bool:
            nonlocal left
            if _pad_fraction(when) < before or (_pad_fraction(when) == before and left > 0):
                left -= _pad_fraction(when) == before
                return False
            self._lines_at_last = self._lines_at_last + 1 if when == self.last else 1
            self.last = when
            return True

        return is_new


class Stream(threading.Thread):
    """Print the new lines of a container's log, until the log ends or the connection breaks.

    When the thread has ended, `ended` says whether the pod's log is complete, and `error` is the exception, if any.
    """

    def __init__(
        self,
        cluster: Cluster,
        pod: JsonObject,
        container: str,
        position: LogPosition,
        *,
        tail: int | None,
        prefix: bytes,
    ) -> None:
        super().__init__(name=f"log of {pod['metadata']['name']}", daemon=True)
        self.uid: str = pod["metadata"]["uid"]
        self.position = position
        self.ended = False
        self.error: Exception | None = None
        self._cluster, self._name, self._container = cluster, pod["metadata"]["name"], container
        self._tail, self._prefix = tail, prefix
        self._stopped = False
        self._is_open = False
        self._last = time.monotonic()

    def stop(self) -> None:
        """Stop printing."""
        self._stopped = True

    def is_silent(self, seconds: float) -> bool:
        """Return whether nothing was printed for this time, or the API server does not answer."""
        limit = seconds if self._is_open else max(seconds, _ANSWER_SECONDS)
        return time.monotonic() - self._last >= limit

    def run(self) -> None:
        try:
            self.ended = self._print_all()
        except Exception as error:  # the main thread raises it
            self.error = error

    def _print_all(self) -> bool:
        query = {"container": self._container, "follow": "true", "timestamps": "true"}
        if self.position.last:
            # sinceTime has whole seconds. `is_new` skips the lines that were printed before.
            query["sinceTime"] = self.position.last[:19] + "Z"
        elif self._tail is not None:
            query["tailLines"] = str(self._tail)
        cluster = self._cluster
        path = f"/api/v1/namespaces/{cluster.namespace}/pods/{self._name}/log"
        is_new = self.position.resume()
        try:
            with cluster.client.open(path, query, silence=_SILENCE_SECONDS) as answer:
                self._last, self._is_open = time.monotonic(), True
                for line in split(answer.chunks()):
                    stamp, _, text = line.partition(b" ")
                    # The kubelet's own messages, such as that it can't follow the log, have no timestamp.
                    own = not _STAMP.fullmatch(stamp)
                    if self._stopped:
                        return False
                    if own or is_new(stamp.decode()):
                        print_line(self._prefix + (line if own else text))
                        self._last = time.monotonic()
        except ApiUnavailable:
            return False
        except ApiError as error:
            if error.status in _NO_LOG_STATUSES:  # the pod is gone, or its container has not started yet
                return error.status == 404
            with explained("get pods/log", cluster.namespace):
                raise
        return self._has_ended()

    def _has_ended(self) -> bool:
        """Return whether the pod has ended, too. The kubelet closes the stream shortly before it reports the end."""
        until = time.monotonic() + _REPORT_SECONDS
        while True:
            now = self._cluster.pod(self._name)
            if now is None or now["metadata"]["uid"] != self.uid or has_ended(now):
                return True
            if self._stopped or time.monotonic() >= until:
                return False
            time.sleep(_REPORT_SECONDS / 5)


def _pad_fraction(when: str) -> str:
    """Return an RFC 3339 timestamp with nine fractional digits, so that timestamps compare as strings."""
    whole, _, part = when.rstrip("Z").partition(".")
    return f"{whole}.{part:0<9}"
