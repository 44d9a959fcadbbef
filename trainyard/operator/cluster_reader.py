"""Read the other inputs of plans: Karpenter's pools, storage classes and queues of KAI Scheduler.

Jobs that wait for nodes share recent reads. The start of an attempt reads without caches.
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
from trainyard.operator import names as n
from trainyard.operator.api.fields import JsonObject, parse_time
from trainyard.operator.gang import read_kai_queue
from trainyard.operator.nodes import CAPACITY_POLL_SECONDS, IMPOSSIBLE_SECONDS
from trainyard.operator.observe import Cluster, KaiQueue

T = TypeVar("T")

SHARED_SECONDS = 1.0
# The pods of the whole cluster show which nodes of the pool are in use. A decision to start never uses an old list.
PODS_SECONDS = 10.0
CLASS_SECONDS = 30.0
_POOL = f"{collection('karpenter.sh/v1', 'NodePool', '')}/"
_NODE_CLASS = f"{collection(f'{observe.NODE_CLASS_GROUP}/v1', 'EC2NodeClass', '')}/"
_PRIORITY_CLASS = (
    f"{collection('scheduling.k8s.io/v1', 'PriorityClass', '')}/{names.PLACEHOLDER_PRIORITY_CLASS}"
)


class PoolReader:
    """Read Karpenter's pools, from any thread. Each method may raise ApiError and ApiUnavailable."""

    def __init__(self, objects: Objects, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._objects = objects
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: dict[Hashable, tuple[float, Any]] = {}

    def placeholders(self) -> bool:
        """Return whether the priority class of placeholders exists."""
        return self._shared("class", CLASS_SECONDS, lambda: self._objects.get(_PRIORITY_CLASS) is not None)

    def read(self, pool: str, namespace: str, now: float, *, fresh: bool = False) -> Observation:
        """Return the pool's state and Karpenter's Events about the pods of a namespace.

        Args:
            pool: The name of the NodePool. If it does not exist, nothing else is read.
            namespace: The namespace of the pods.
            now: The time in seconds since the epoch.
            fresh: Read without caches.
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
        # Nodes after pods: a pod that has left its node in between makes the count too low, never too high. NodeClaims
        # after both: a listed node has registered, so its NodeClaim names it.
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
        started = self._clock()
        found = read()
        with self._lock:
            self._kept[key] = (started, found)
            longest = max(PODS_SECONDS, CLASS_SECONDS)
            for old in [key for key, (when, _) in self._kept.items() if started - when > longest]:
                del self._kept[old]
        return found


class PollPacer:
    """Limit the reconciles of all jobs that wait for nodes to `READS_PER_SECOND` together."""

    READS_PER_SECOND = 5.0

    def __init__(self) -> None:
        self._waiting: set[str] = set()

    def pace(self, path: str, requeue_after: float | None, *, waits: bool = False) -> float | None:
        """Return the pause of the job at this path, in seconds. It is longer if many jobs wait for nodes.

        It is at most IMPOSSIBLE_SECONDS. A pause of 0 or over this limit does not change.
        """
        if not waits or requeue_after is None or not 0 < requeue_after <= CAPACITY_POLL_SECONDS:
            self._waiting.discard(path)
            return requeue_after
        self._waiting.add(path)
        return max(requeue_after, min(len(self._waiting) / self.READS_PER_SECOND, IMPOSSIBLE_SECONDS))


# Schedulers and storage classes are rarely installed.
CLUSTER_SECONDS = 30.0
# What a gang needs. https://kubernetes.io/docs/reference/using-api/api-concepts/#discovery-api
_KAI_RESOURCES = (
    (n.KAI_QUEUE_VERSION, n.KAI_QUEUE_PLURAL),
    (n.KAI_POD_GROUP_VERSION, n.KAI_POD_GROUP_PLURAL),
)
_KAI_VERSION = f"{n.KAI_GROUP}/{n.KAI_QUEUE_VERSION}"
# https://kubernetes.io/docs/concepts/storage/storage-classes/#default-storageclass
_ADMISSION = "/apis/admissionregistration.k8s.io/v1"
_POLICY_RESOURCES = ("validatingadmissionpolicies", "validatingadmissionpolicybindings")
_DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"


class ClusterReader:
    """Read the cluster at most once every CLUSTER_SECONDS. `tools_image` is the image of trainyard.workspace."""

    def __init__(
        self, objects: Objects, tools_image: str, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._objects = objects
        self._tools_image = tools_image
        self._clock = clock
        self._read_at = float("-inf")
        self._kai = False
        self._kai_queues: dict[str, KaiQueue] = {}
        self._classes: list[JsonObject] = []
        self._policy_since: float | None = None

    def cluster(self, namespace: str, *, claims: bool, fresh: bool = False) -> Cluster:
        """Return the cluster, with the claims of the namespace if `claims` is set.

        Claims are never cached. With `fresh`, nothing is cached. May raise ApiError and ApiUnavailable.
        """
        if fresh or self._clock() - self._read_at > CLUSTER_SECONDS:
            self._kai = all(self._serves(*each) for each in _KAI_RESOURCES)
            queues = self._objects.list(_KAI_VERSION, "Queue", "") if self._kai else []
            self._kai_queues = {each["metadata"]["name"]: read_kai_queue(each) for each in queues}
            self._classes = self._objects.list("storage.k8s.io/v1", "StorageClass", "")
            self._policy_since = self._read_policy_age()
            self._read_at = self._clock()
        found = self._objects.list("v1", "PersistentVolumeClaim", namespace) if claims else []
        return Cluster(
            tools_image=self._tools_image,
            kai=self._kai,
            kai_queues=self._kai_queues,
            provisioners={
                each["metadata"]["name"]: str(each.get("provisioner", "")) for each in self._classes
            },
            default_class=_default_class(self._classes),
            policy_since=self._policy_since,
            claims={
                each["metadata"]["name"]: tuple(each.get("spec", {}).get("accessModes") or ())
                for each in found
            },
        )

    def _serves(self, version: str, plural: str) -> bool:
        """Return whether the API server serves this kind of KAI Scheduler."""
        found = self._objects.get(f"/apis/{n.KAI_GROUP}/{version}")
        return any(each.get("name") == plural for each in (found or {}).get("resources") or ())

    def _read_policy_age(self) -> float | None:
        """Return the time since when the admission policy for jobs is in force, in seconds; None if it is not."""
        policy, binding = (
            self._objects.get(f"{_ADMISSION}/{each}/{n.JOB_POLICY}") for each in _POLICY_RESOURCES
        )
        if policy is None or binding is None:
            return None
        denies = "Deny" in (binding.get("spec") or {}).get("validationActions", ())
        if not denies or (policy.get("spec") or {}).get("failurePolicy") != "Fail":
            return None
        made = [parse_time(each["metadata"].get("creationTimestamp")) or 0.0 for each in (policy, binding)]
        return max(made)


def _default_class(classes: list[JsonObject]) -> str:
    """Return the default StorageClass, the newest of several; "" for none."""
    marked = [
        each for each in classes if (each["metadata"].get("annotations") or {}).get(_DEFAULT_CLASS) == "true"
    ]
    newest = max(marked, key=lambda each: str(each["metadata"].get("creationTimestamp")), default=None)
    return "" if newest is None else str(newest["metadata"]["name"])
