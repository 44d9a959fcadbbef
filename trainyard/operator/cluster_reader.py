"""Read the other inputs of plans: Karpenter's pools, storage classes and queues of KAI Scheduler.

Jobs that wait for nodes share recent reads. The start of an attempt reads without caches.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any, TypeVar
from urllib.parse import quote

from launcher import observe, sources
from launcher.cost import Offering
from launcher.observe import Observation
from trainyard.k8s import names
from trainyard.k8s.objects import Objects, collection
from trainyard.operator import names as n
from trainyard.operator.api.fields import JsonObject, parse_time
from trainyard.operator.gang import read_kai_queue
from trainyard.operator.observe import ClusterState

T = TypeVar("T")

SHARED_SECONDS = 1.0
# The pods of the whole cluster show which nodes of the pool are in use. A decision to start never uses an old list.
PODS_SECONDS = 10.0
CLASS_SECONDS = 30.0
# Schedulers and storage classes are rarely installed.
CLUSTER_SECONDS = 30.0
_NO_CACHE = -1.0
_POOL = f"{collection('karpenter.sh/v1', 'NodePool', '')}/"
_NODE_CLASS = f"{collection(f'{observe.NODE_CLASS_GROUP}/v1', 'EC2NodeClass', '')}/"
_PRIORITY_CLASS = (
    f"{collection('scheduling.k8s.io/v1', 'PriorityClass', '')}/{names.PLACEHOLDER_PRIORITY_CLASS}"
)
# What a gang needs. https://kubernetes.io/docs/reference/using-api/api-concepts/#discovery-api
_KAI_RESOURCES = (
    (n.KAI_QUEUE_VERSION, n.KAI_QUEUE_PLURAL),
    (n.KAI_POD_GROUP_VERSION, n.KAI_POD_GROUP_PLURAL),
)
_ADMISSION = "/apis/admissionregistration.k8s.io/v1"
_POLICY_RESOURCES = ("validatingadmissionpolicies", "validatingadmissionpolicybindings")
# https://kubernetes.io/docs/concepts/storage/storage-classes/#default-storageclass
_DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"


class Cache:
    """Values that are read again when they are too old. Any thread may use it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._values: dict[Hashable, tuple[float, Any]] = {}

    def get(self, key: Hashable, seconds: float, read: Callable[[], T]) -> T:
        """Return the value of this key, at most this old."""
        started = self._clock()
        with self._lock:
            at, value = self._values.get(key, (float("-inf"), None))
        if started - at <= seconds:
            kept: T = value
            return kept
        found = read()
        longest = max(PODS_SECONDS, CLASS_SECONDS, CLUSTER_SECONDS)
        with self._lock:
            self._values = {key: item for key, item in self._values.items() if started - item[0] <= longest}
            self._values[key] = started, found
        return found


class ClusterReader:
    """Read the cluster and Karpenter's pools, from any thread. Each method may raise ApiError and ApiUnavailable.

    `tools_image` is the image of trainyard.workspace.
    """

    def __init__(
        self, objects: Objects, tools_image: str, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._objects = objects
        self._tools_image = tools_image
        self._cache = Cache(clock)

    def cluster(self, namespace: str, *, claims: bool, fresh: bool = False) -> ClusterState:
        """Return the cluster, with the claims of the namespace if `claims` is set.

        Claims are never cached. With `fresh`, nothing is cached.
        """
        cluster = self._cache.get("cluster", _NO_CACHE if fresh else CLUSTER_SECONDS, self._read_cluster)
        if not claims:
            return cluster
        found = self._objects.list("v1", "PersistentVolumeClaim", namespace)
        modes = {_name(claim): tuple(claim.get("spec", {}).get("accessModes") or ()) for claim in found}
        return replace(cluster, claims=modes)

    def has_priority_class(self) -> bool:
        """Return whether the priority class of placeholders exists."""
        return self._cache.get("class", CLASS_SECONDS, lambda: self._objects.get(_PRIORITY_CLASS) is not None)

    def pool(self, name: str, namespace: str, now: float, *, fresh: bool = False) -> Observation:
        """Return a NodePool's state at the time `now`, and Karpenter's Events about the pods of a namespace.

        If the NodePool does not exist, nothing else is read. With `fresh`, nothing is cached.
        """
        if fresh:
            return self._read_pool(name, namespace, now, fresh=True)
        return self._cache.get(
            (name, namespace), SHARED_SECONDS, lambda: self._read_pool(name, namespace, now, fresh=False)
        )

    def read_offerings(self) -> dict[str, Offering]:
        """Return the instance type, zone and capacity type of all nodes, by name. The list is at most 1 s old."""

        def read() -> dict[str, Offering]:
            nodes = self._objects.read(sources.nodes({}), cached=True)
            return {node.name: Offering.from_labels(node.labels) for node in nodes}

        return self._cache.get("nodes", SHARED_SECONDS, read)

    def _read_pool(self, name: str, namespace: str, now: float, *, fresh: bool) -> Observation:
        item = self._objects.get(f"{_POOL}{quote(name, safe='')}")
        if item is None:
            return Observation(now=now, fresh=fresh)
        read = self._objects.read
        warnings = [
            *read(sources.warnings(), cached=True),
            *read(sources.karpenter_on_pods(namespace), cached=True),
        ]
        # Nodes after pods: a pod that has left its node in between makes the count too low, never too high. NodeClaims
        # after both: a listed node has registered, so its NodeClaim names it.
        pods = self._cache.get(
            "pods",
            _NO_CACHE if fresh else PODS_SECONDS,
            lambda: read(sources.unfinished_pods(), cached=not fresh),
        )
        nodes = read(sources.nodes({names.LABEL_NODEPOOL: name}), cached=not fresh)
        claims = read(sources.claims(name), cached=not fresh)
        node_class = observe.reserved_class(item)
        found = self._objects.get(f"{_NODE_CLASS}{quote(node_class, safe='')}") if node_class else None
        return Observation(
            now=now,
            fresh=fresh,
            nodes=tuple(nodes),
            claims=tuple(claims),
            pool=observe.node_pool(item, found),
            pods=tuple(pods),
            warnings=tuple(warnings),
        )

    def _read_cluster(self) -> ClusterState:
        kai = all(self._serves(*resource) for resource in _KAI_RESOURCES)
        version = f"{n.KAI_GROUP}/{n.KAI_QUEUE_VERSION}"
        queues = self._objects.list(version, "Queue", "") if kai else []
        classes = self._objects.list("storage.k8s.io/v1", "StorageClass", "")
        marked = [
            item
            for item in classes
            if (item["metadata"].get("annotations") or {}).get(_DEFAULT_CLASS) == "true"
        ]
        # The newest of several is the default class.
        default = max(marked, key=lambda item: str(item["metadata"].get("creationTimestamp")), default=None)
        return ClusterState(
            tools_image=self._tools_image,
            kai=kai,
            kai_queues={_name(item): read_kai_queue(item) for item in queues},
            provisioners={_name(item): str(item.get("provisioner", "")) for item in classes},
            default_class=_name(default) if default is not None else "",
            policy_since=self._read_policy_age(),
        )

    def _serves(self, version: str, plural: str) -> bool:
        """Return whether the API server serves this kind of KAI Scheduler."""
        found = self._objects.get(f"/apis/{n.KAI_GROUP}/{version}")
        return any(resource.get("name") == plural for resource in (found or {}).get("resources") or ())

    def _read_policy_age(self) -> float | None:
        """Return the time since when the admission policy for jobs is in force, in seconds; None if it is not."""
        policy, binding = (
            self._objects.get(f"{_ADMISSION}/{resource}/{n.JOB_POLICY}") for resource in _POLICY_RESOURCES
        )
        if policy is None or binding is None:
            return None
        denies = "Deny" in (binding.get("spec") or {}).get("validationActions", ())
        if not denies or (policy.get("spec") or {}).get("failurePolicy") != "Fail":
            return None
        return max(parse_time(item["metadata"].get("creationTimestamp")) or 0.0 for item in (policy, binding))


def _name(item: JsonObject) -> str:
    return str(item["metadata"]["name"])
