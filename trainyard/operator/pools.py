"""What there is of a Karpenter pool, read for the jobs that wait for its nodes, and for no others.

Jobs that wait at the same time share what was read a moment ago. What an attempt begins with is read for it alone, from
the store itself.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from typing import Any, TypeVar
from urllib.parse import quote

from launcher import observe, sources
from launcher.observe import Observation
from trainyard.k8s import names
from trainyard.k8s.objects import Objects, collection
from trainyard.operator.core import nodes
from trainyard.operator.core.reading import JsonObject

T = TypeVar("T")

SHARED_SECONDS = 1.0
# All pods of the cluster: they say which of the pool's idle nodes are somebody else's, which decides alone only when
# the list is read anew.
PODS_SECONDS = 10.0
CLASS_SECONDS = 30.0
_POOL = f"{collection('karpenter.sh/v1', 'NodePool', '')}/"
_NODE_CLASS = f"{collection(f'{observe.NODE_CLASS_GROUP}/v1', 'EC2NodeClass', '')}/"
_CLASS = f"{collection('scheduling.k8s.io/v1', 'PriorityClass', '')}/{names.PLACEHOLDER_PRIORITY_CLASS}"


class Pools:
    """Several threads may read. Every method may raise ApiError and ApiUnavailable."""

    def __init__(self, objects: Objects, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._objects = objects
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: dict[Hashable, tuple[float, Any]] = {}

    def placeholders(self) -> bool:
        """Whether the priority class of placeholders is there."""
        return self._shared("class", CLASS_SECONDS, lambda: self._objects.get(_CLASS) is not None)

    def read(self, pool: str, namespace: str, now: float, *, fresh: bool = False) -> Observation:
        """The pool at this moment, in seconds since the epoch, and what Karpenter says of the pods of a namespace.

        Of a pool that does not exist nothing else is read. With `fresh` everything is of after the call.
        """
        if fresh:
            return self._read(pool, namespace, now, fresh=True)
        return self._shared(
            (pool, namespace), SHARED_SECONDS, lambda: self._read(pool, namespace, now, fresh=False)
        )

    def _read(self, pool: str, namespace: str, now: float, *, fresh: bool) -> Observation:
        item = self._objects.get(f"{_POOL}{quote(pool, safe='')}")
        if item is None:
            return Observation(now=now, fresh=fresh)
        read, cached = self._objects.read, not fresh
        warnings = [
            *read(sources.warnings(), cached=True),
            *read(sources.karpenter_on_pods(namespace), cached=True),
        ]
        # Nodes after pods: a pod that has left its node by then makes the count too low, never too high. NodeClaims
        # after both: a node that is listed has registered, so its NodeClaim names it.
        if fresh:
            pods = read(sources.unfinished_pods())
        else:
            pods = self._shared("pods", PODS_SECONDS, lambda: read(sources.unfinished_pods(), cached=True))
        present = read(sources.nodes_with({names.LABEL_NODEPOOL: pool}), cached=cached)
        claims = read(sources.claims_of(pool), cached=cached)
        return Observation(
            now=now,
            fresh=fresh,
            nodes=tuple(present),
            claims=tuple(each.at(now) for each in claims),
            pool=observe.node_pool(item, self._node_class(item)),
            pods=tuple(pods),
            warnings=tuple(warnings),
        )

    def _node_class(self, pool: JsonObject) -> JsonObject | None:
        """Return the EC2NodeClass of a NodePool that only uses capacity reservations."""
        name = observe.reserved_class(pool)
        return self._objects.get(f"{_NODE_CLASS}{quote(name, safe='')}") if name else None

    def _shared(self, key: Hashable, seconds: float, read: Callable[[], T]) -> T:
        with self._lock:
            at, value = self._kept.get(key, (float("-inf"), None))
        if self._clock() - at <= seconds:
            found: T = value
            return found
        begun = self._clock()
        found = read()
        with self._lock:
            self._kept[key] = (begun, found)
            longest = max(PODS_SECONDS, CLASS_SECONDS)
            for old in [key for key, (when, _) in self._kept.items() if begun - when > longest]:
                del self._kept[old]
        return found


class Pace:
    """When jobs that wait for nodes look again: all of them together not more than `LOOKS_A_SECOND` times."""

    LOOKS_A_SECOND = 5.0

    def __init__(self) -> None:
        self._waiting: set[str] = set()

    def paced(self, path: str, again: float | None, *, waits: bool = False) -> float | None:
        """The pause of the job at this path, in seconds; longer where it `waits` for nodes, and many do.

        Never longer than a hopeless job's. One that looks less often anyway, or at once, is as it is.
        """
        if not waits or again is None or not 0 < again <= nodes.LOOK_SECONDS:
            self._waiting.discard(path)
            return again
        self._waiting.add(path)
        return max(again, min(len(self._waiting) / self.LOOKS_A_SECOND, nodes.IMPOSSIBLE_SECONDS))
