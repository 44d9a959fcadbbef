"""The launcher's requests to the Kubernetes API. Entry point: `Gateway`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue
from typing import TypeVar

from launcher import backends, sources
from launcher.manifests import Owner
from launcher.observe import Claim, Node, Observation, Training
from launcher.request import Request
from trainyard.k8s import names
from trainyard.k8s.client import ApiError, Client, JsonObject
from trainyard.k8s.informer import Informers
from trainyard.k8s.lease import LeaseStore
from trainyard.k8s.objects import MERGE_PATCH, Objects

T = TypeVar("T")

# Requests in parallel, beside the watches and within the connections that the client keeps.
AT_ONCE = 8
# Changes come in bursts: a starting node updates its Node object several times, and many nodes start together.
SETTLE_SECONDS = 0.05
_NOT_FOUND = 404
_CONFLICT = 409
_UNKNOWN = "unknown"


class Gateway:
    """Reads and writes the objects of a run. It watches from the first `observe` until `close`.

    Every method may raise ApiError and ApiUnavailable.
    """

    def __init__(self, client: Client, wall_clock: Callable[[], float]) -> None:
        self._client = client
        self._objects = Objects(client, names.MANAGED_BY)
        self._now = wall_clock
        self._wakeup = Wakeup()
        self._informers = Informers(client, self._wakeup.set)
        # The uid of the training job at the last read from etcd; "" for none, _UNKNOWN since its creation.
        self._training_uid = ""
        self._near: frozenset[str] = frozenset()

    def wait(self, timeout: float) -> None:
        """Wait for a change since the last `observe`, but at most this many seconds."""
        self._wakeup.wait(timeout)

    def wake(self) -> None:
        """End the present `wait`, or the next one if there is none. Signal handlers may call it."""
        self._wakeup.set()

    def close(self) -> None:
        """End the watches."""
        self._informers.close()

    def owner(self, request: Request, job: str) -> Owner:
        """Return the launcher's own Job."""
        found = self._client.request("GET", f"/apis/batch/v1/namespaces/{request.namespace}/jobs/{job}")
        return Owner(name=job, uid=found["metadata"]["uid"])

    def lacking(self, request: Request) -> list[str]:
        """Return what the cluster lacks for the request: priority classes, the operator of the training job."""
        path = "/apis/scheduling.k8s.io/v1/priorityclasses"
        classes = (request.worker.priority_class, request.placeholder.priority_class)
        found = [f"PriorityClass {name}" for name in classes if self._objects.get(f"{path}/{name}") is None]
        backend = backends.of(request)
        if not self._has_list(backend.path(request.namespace)):
            found.append(f"{backend.operator} (resource {backend.resource} of {backend.api_version})")
        return found

    def _has_list(self, path: str) -> bool:
        try:
            self._client.request("GET", path, {"limit": "1"})
        except ApiError as error:
            if error.status == _NOT_FOUND:
                return False
            raise
        return True

    def observe(self, request: Request, *, fresh: bool) -> Observation:
        """Return the state of the cluster. With a training job, it has no Events.

        With `fresh`, it is read from etcd. Otherwise it comes from the watches, which may lag. Then with a training
        job, it has only the job and the run's own pods.
        """
        self._wakeup.clear()
        return self._read(request) if fresh else self._remembered(request)

    def _remembered(self, request: Request) -> Observation:
        """Return the state from the watches. Raises ApiUnavailable if a watch was silent for too long."""
        job, own = sources.training(request), sources.own_pods(request)
        pool, claims = sources.node_pool(request), sources.claims(request.pool.name)
        nodes = sources.nodes(request.pool.node_selector)
        warnings, foreign = sources.warnings(), sources.foreign_pods(request, self._is_near)
        self._informers.start(job)
        training = next(iter(self._informers.items(job)), None)
        if _uid(training) != self._training_uid:
            training = self._read_training(request)
        if training is not None:
            self._informers.keep((job, own))
            return Observation(
                now=self._now(), fresh=False, pods=self._informers.items(own), training=training
            )
        self._informers.keep((job, own, pool, claims, nodes, warnings, foreign))
        present, launched = self._informers.items(nodes), self._informers.items(claims)
        # Watch before the pods are read, so that a later change of a pod wakes the launcher.
        self._near = _names(present, launched)
        on_pool = (pod for pod in self._informers.items(foreign) if self._is_near(pod.node))
        return Observation(
            now=self._now(),
            fresh=False,
            nodes=present,
            claims=launched,
            pool=next(iter(self._informers.items(pool)), None),
            pods=(*self._informers.items(own), *on_pool),
            warnings=self._informers.items(warnings),
        )

    def _read(self, request: Request) -> Observation:
        training, read = self._read_training(request), self._objects.read
        own = read(sources.own_pods(request))
        pool = read(sources.node_pool(request))
        warnings = [] if training is not None else read(sources.warnings(), cached=True)
        # Nodes after pods: if a pod ends between the lists, the count is too low, never too high. NodeClaims after
        # both: a node in the list has registered, so its NodeClaim names it.
        foreign = read(sources.foreign_pods(request, self._is_near))
        nodes = read(sources.nodes(request.pool.node_selector))
        claims = read(sources.claims(request.pool.name))
        near = _names(nodes, claims)
        return Observation(
            now=self._now(),
            fresh=True,
            nodes=tuple(nodes),
            claims=tuple(claims),
            pool=next(iter(pool), None),
            pods=(*own, *(pod for pod in foreign if not pod.node or pod.node in near)),
            warnings=tuple(warnings),
            training=training,
        )

    def _read_training(self, request: Request) -> Training | None:
        """Read the training job from etcd.

        A watch may lag behind the launcher's own reads and writes. Then a job that was just created would seem to be
        deleted. So the watch counts only if it agrees with the last read.
        """
        item = self._objects.get(_training_path(request))
        training = None if item is None else backends.of(request).parse(item, request.run_id)
        self._training_uid = _uid(training)
        return training

    def _is_near(self, node: str) -> bool:
        return node in self._near

    def create_pods(self, manifests: Sequence[JsonObject]) -> None:
        """Create each of these pods, unless a pod with its name exists."""
        _each(self._objects.create, manifests)

    def apply_runtime(self, manifest: JsonObject) -> None:
        """Create or replace this object, which must exist before the training job."""
        self._objects.apply(manifest)

    def create_training(self, request: Request, manifest: JsonObject) -> bool:
        """Create this training job. Return False if a job with its name exists.

        Raises:
            ApiError: It is a conflict if the operator has not seen the runtime yet. The same step may succeed later.
        """
        backend = backends.of(request)
        self._training_uid = _UNKNOWN
        try:
            return self._objects.create(manifest) is not None
        except ApiError as error:
            if backend.runtime_unseen is None or backend.runtime_unseen not in error.message:
                raise
            message = f"{backend.kind} {request.training_job} is not created: {error.message}"
            raise ApiError(error.method, error.path, _CONFLICT, "RuntimeUnseen", message) from error

    def delete_training(self, request: Request, uid: str) -> None:
        """Delete exactly this training job, if it still exists, and its pods.

        In the foreground, pods and Services are deleted first (the operator's ownerReferences block the owner's
        deletion), and the name is in use until then.
        """
        foreground = backends.of(request).propagation == "Foreground"
        self._objects.delete(_training_path(request), uid, foreground=foreground)

    def annotate_training(self, request: Request, uid: str, annotations: Mapping[str, str]) -> None:
        """Set annotations of exactly this training job, if it still exists."""
        # With another uid, the API server answers with a conflict.
        body = {"metadata": {"uid": uid, "annotations": dict(annotations)}}
        try:
            self._client.request("PATCH", _training_path(request), body=body, content_type=MERGE_PATCH)
        except ApiError as error:
            if error.status not in (_NOT_FOUND, _CONFLICT):
                raise

    def delete_pods(self, request: Request, pods: Sequence[tuple[str, str]]) -> None:
        """Delete exactly the pods with these names and uids, if they still exist."""
        path = f"/api/v1/namespaces/{request.namespace}/pods"
        _each(lambda pod: self._objects.delete(f"{path}/{pod[0]}", pod[1]), pods)

    def delete_claim(self, claim: str, uid: str) -> None:
        """Delete exactly this NodeClaim, if it still exists."""
        self._objects.delete(f"/apis/karpenter.sh/v1/nodeclaims/{claim}", uid)

    def record(self, event: JsonObject) -> None:
        """Create this Event."""
        self._objects.create(event)

    def lease_store(self) -> LeaseStore:
        """Return the store of Leases."""
        return self._objects


def _training_path(request: Request) -> str:
    return f"{backends.of(request).path(request.namespace)}/{request.training_job}"


def _each(work: Callable[[T], object], items: Sequence[T]) -> None:
    """Call `work` for each item, in parallel if there are many. Raise the first exception."""
    if len(items) <= AT_ONCE:
        for item in items:
            work(item)
        return
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(work, items))


def _uid(training: Training | None) -> str:
    return "" if training is None else training.uid


def _names(nodes: Iterable[Node], claims: Iterable[Claim]) -> frozenset[str]:
    """Return the names of the pool's nodes, including nodes whose Node object has no pool label yet."""
    return frozenset((*(node.name for node in nodes), *(each.node for each in claims))) - {""}


class Wakeup:
    """An event that one thread awaits, and that other threads and signal handlers set.

    A signal handler may interrupt the waiting thread between any two of its steps. The locks of `threading` are not
    safe there; `SimpleQueue.put` is (https://docs.python.org/3/library/queue.html#queue.SimpleQueue.put).
    """

    def __init__(self) -> None:
        self._calls: SimpleQueue[None] = SimpleQueue()

    def set(self) -> None:
        """End the present wait, or the next one if there is none."""
        if self._calls.empty():
            self._calls.put(None)

    def clear(self) -> None:
        """Discard all calls of `set` so far."""
        try:
            while True:
                self._calls.get_nowait()
        except Empty:
            pass

    def wait(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds for a call of `set`. After one, wait until a burst of changes settles.

        Returns:
            Whether `set` was called.
        """
        try:
            self._calls.get(timeout=timeout)
        except Empty:
            return False
        time.sleep(SETTLE_SECONDS)
        return True
