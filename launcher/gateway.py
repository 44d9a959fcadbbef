"""Everything that the launcher asks of a cluster, as one protocol and its real form."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

from launcher import observe, sources
from launcher.manifests import Owner
from launcher.observe import Node, Observation, Training
from launcher.request import Request
from launcher.sources import Aging
from launcher.wakeup import Wakeup
from trainyard.k8s import names
from trainyard.k8s.client import ApiError, Client, JsonObject
from trainyard.k8s.informer import Informers, ListWatch
from trainyard.k8s.lease import LeaseStore, ObjectsStore
from trainyard.k8s.objects import Objects

T = TypeVar("T")

# Beside the watches, and within the connections that `Rest` keeps.
AT_ONCE = 8
_NOT_FOUND = 404
_CONFLICT = 409
# An answer that the API server may give from its cache, which costs the store nothing.
_CACHED = {"resourceVersion": "0"}


class Gateway(Protocol):
    """The cluster as the launcher needs it. Every method may raise ApiError and ApiUnavailable."""

    def owner(self, request: Request, job: str) -> Owner:
        """The launcher's own Job."""

    def lacking(self, request: Request) -> list[str]:
        """What the request needs of the cluster and is not there: priority classes, the training operator."""

    def observe(self, request: Request, *, fresh: bool) -> Observation:
        """The cluster now, without what keeps one from buying machines once there is a PyTorchJob: pool and Events.

        With `fresh` it is read from the store itself, otherwise it is what the watches have told, which may lag, and
        once there is a PyTorchJob only that and the run's own pods.
        """

    def wait(self, timeout: float) -> None:
        """Returns when something has changed since the last `observe`, and after this many seconds at the latest."""

    def create_pods(self, request: Request, manifests: Sequence[JsonObject]) -> None:
        """Makes each of these pods, unless one of its name exists."""

    def create_training(self, request: Request, manifest: JsonObject) -> bool:
        """Makes this PyTorchJob; False if one of its name exists."""

    def delete_training(self, request: Request, uid: str) -> None:
        """Deletes exactly this PyTorchJob, if it still exists; it is there until its pods are gone."""

    def delete_pods(self, request: Request, pods: Sequence[tuple[str, str]]) -> None:
        """Deletes exactly the pods of these names and uids, as far as they still exist."""

    def give_back(self, claim: str, uid: str) -> None:
        """Deletes exactly this NodeClaim, if it still exists."""

    def record(self, request: Request, event: JsonObject) -> None:
        """Makes this Event."""

    def lease_store(self, request: Request) -> LeaseStore:
        """Return what reads and writes the run's Lease."""


class KubernetesGateway:
    """A cluster behind a real API server. It watches from the first `observe` until `close`."""

    def __init__(self, client: Client, wall_clock: Callable[[], float]) -> None:
        self._client = client
        self._now = wall_clock
        self._wakeup = Wakeup()
        self._informers = Informers(client, self._wakeup.set)
        # The uid of the PyTorchJob as it was last read from the store itself, "" for none.
        self._training_uid = ""
        self._near: frozenset[str] = frozenset()

    def wait(self, timeout: float) -> None:
        self._wakeup.wait(timeout)

    def wake(self) -> None:
        """Ends the present `wait`, or else the next one; for signal handlers, too."""
        self._wakeup.set()

    def close(self) -> None:
        """Ends the watches."""
        self._informers.close()

    def owner(self, request: Request, job: str) -> Owner:
        found = self._client.request("GET", f"/apis/batch/v1/namespaces/{request.namespace}/jobs/{job}")
        return Owner(name=job, uid=found["metadata"]["uid"])

    def lacking(self, request: Request) -> list[str]:
        path = "/apis/scheduling.k8s.io/v1/priorityclasses"
        names = (request.worker.priority_class, request.placeholder.priority_class)
        found = [f"PriorityClass {name}" for name in names if self._get(f"{path}/{name}") is None]
        if self._get(sources.training_jobs(request), {"limit": "1"}) is None:
            found.append("training operator (resource pytorchjobs of kubeflow.org/v1)")
        return found

    def observe(self, request: Request, *, fresh: bool) -> Observation:
        self._wakeup.clear()
        return self._read(request) if fresh else self._remembered(request)

    def _remembered(self, request: Request) -> Observation:
        """What the watches have told. Raises ApiUnavailable when one of them was not heard for long."""
        job, own = sources.training(request), sources.own_pods(request)
        pool, claims, nodes = sources.node_pool(request), sources.claims(request), sources.nodes(request)
        warnings, others = sources.warnings(), sources.others_pods(request, self._is_near)
        self._informers.start(job)
        told = next(iter(self._informers.items(job)), None)
        training = told if _uid(told) == self._training_uid else self._read_training(request)
        if training is not None:
            self._informers.keep((job, own))
            return Observation(
                now=self._now(), fresh=False, pods=self._informers.items(own), training=training
            )
        self._informers.keep((job, own, pool, claims, nodes, warnings, others))
        present = self._informers.items(nodes)
        aging = self._informers.items(claims)
        # Before the pods are read, so that a pod which comes later rings.
        self._near = _names(present, aging)
        beside = (pod for pod in self._informers.items(others) if self._is_near(pod.node))
        now = self._now()
        return Observation(
            now=now,
            fresh=False,
            nodes=present,
            claims=tuple(each.at(now) for each in aging),
            pool=next(iter(self._informers.items(pool)), None),
            pods=(*self._informers.items(own), *beside),
            warnings=self._informers.items(warnings),
        )

    def _read(self, request: Request) -> Observation:
        training = self._read_training(request)
        own = self._list(sources.own_pods(request))
        pool = [] if training is not None else self._list(sources.node_pool(request))
        warnings = [] if training is not None else self._list(sources.warnings(), cached=True)
        # Nodes after pods: a pod that has left its node by then makes the count too low, never too high. NodeClaims
        # after both: a node that is listed has registered, so its NodeClaim names it.
        others = self._list(sources.others_pods(request, self._is_near))
        nodes = self._list(sources.nodes(request))
        claims = self._list(sources.claims(request))
        near = _names(nodes, claims)
        now = self._now()
        return Observation(
            now=now,
            fresh=True,
            nodes=tuple(nodes),
            claims=tuple(each.at(now) for each in claims),
            pool=next(iter(pool), None),
            pods=(*own, *(pod for pod in others if not pod.node or pod.node in near)),
            warnings=tuple(warnings),
            training=training,
        )

    def _read_training(self, request: Request) -> Training | None:
        """The PyTorchJob as it is now.

        A watch may lag behind what this launcher has read or made itself. What it says of the job's existence is
        believed only where it agrees with this; it would look as if a job that was just made had been deleted.
        """
        item = self._get(f"{sources.training_jobs(request)}/{request.training_job}")
        training = None if item is None else observe.training(item, request.run_id)
        self._training_uid = _uid(training)
        return training

    def _is_near(self, node: str) -> bool:
        return node in self._near

    def create_pods(self, request: Request, manifests: Sequence[JsonObject]) -> None:
        path = f"/api/v1/namespaces/{request.namespace}/pods"
        _each(lambda manifest: self._create(path, manifest), manifests)

    def create_training(self, request: Request, manifest: JsonObject) -> bool:
        return self._create(sources.training_jobs(request), manifest)

    def delete_training(self, request: Request, uid: str) -> None:
        # In the foreground: pods and Services go first (ownerReferences of the operator block the owner's end), and for
        # as long as one of them is there the name is taken.
        path = f"{sources.training_jobs(request)}/{request.training_job}"
        self._delete(path, uid, propagationPolicy="Foreground")

    def delete_pods(self, request: Request, pods: Sequence[tuple[str, str]]) -> None:
        path = f"/api/v1/namespaces/{request.namespace}/pods"
        _each(lambda pod: self._delete(f"{path}/{pod[0]}", pod[1]), pods)

    def give_back(self, claim: str, uid: str) -> None:
        self._delete(f"/apis/karpenter.sh/v1/nodeclaims/{claim}", uid)

    def record(self, request: Request, event: JsonObject) -> None:
        self._create(f"/api/v1/namespaces/{request.namespace}/events", event)

    def lease_store(self, request: Request) -> LeaseStore:
        return ObjectsStore(Objects(self._client, names.MANAGED_BY), request.namespace, request.lease)

    def create_job(self, manifest: JsonObject) -> str:
        """Makes this Job and returns its name; with `generateName` the API chooses it."""
        namespace = manifest["metadata"]["namespace"]
        made = self._client.request(
            "POST", f"/apis/batch/v1/namespaces/{namespace}/jobs", body=manifest, repeatable=False
        )
        return str(made["metadata"]["name"])

    def _get(self, path: str, query: dict[str, str] | None = None) -> JsonObject | None:
        try:
            return self._client.request("GET", path, query)
        except ApiError as error:
            if error.status == _NOT_FOUND:
                return None
            raise

    def _list(self, source: ListWatch[T], *, cached: bool = False) -> list[T]:
        query = {**dict(source.selectors), **(_CACHED if cached else {})}
        return self._client.list_items(source.path, query, source.convert)

    def _delete(self, path: str, uid: str, **options: str) -> None:
        body: JsonObject = {"preconditions": {"uid": uid}, **options}
        try:
            self._client.request("DELETE", path, body=body)
        except ApiError as error:
            # Gone already, or another of its name by now: both are what was asked for.
            if error.status not in (_NOT_FOUND, _CONFLICT):
                raise

    def _create(self, path: str, manifest: JsonObject) -> bool:
        try:
            self._client.request("POST", path, body=manifest)
        except ApiError as error:
            if error.status == _CONFLICT and error.reason == "AlreadyExists":
                return False
            raise
        return True


def _each(work: Callable[[T], object], items: Sequence[T]) -> None:
    """Does this to every item, to several at a time where there are many. Raises what the first failure raises."""
    if len(items) <= AT_ONCE:
        for item in items:
            work(item)
        return
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for _ in pool.map(work, items):
            pass


def _uid(training: Training | None) -> str:
    return "" if training is None else training.uid


def _names(nodes: Iterable[Node], claims: Iterable[Aging]) -> frozenset[str]:
    """The machines of the pool, those among them that have no Node yet or none with its labels."""
    return frozenset((*(node.name for node in nodes), *(each.claim.node for each in claims))) - {""}
