"""Index jobs and queues by the events of the API, to find those that depend on a change. Pure."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from trainyard.operator import names as n
from trainyard.operator.api.fields import JsonObject
from trainyard.operator.observe import OVER

# What is kept of an object. Queues are kept whole.
_METADATA = ("name", "namespace", "uid", "generation", "deletionTimestamp", "resourceVersion")
_SPEC = ("jobQueue", "workspace", "queue")
_STATUS = ("phase", "reason", "observedGeneration")
_OF_JOB = (("labelSelector", n.LABEL_JOB),)
# The kinds, and the resources that the controller watches with their label selectors.
_TORCHRUN, _KAI = f"/apis/{n.API_VERSION}", f"/apis/{n.KAI_GROUP}"
RESOURCES = {
    n.QUEUE_KIND: (f"{_TORCHRUN}/{n.QUEUE_PLURAL}", ()),
    n.JOB_KIND: (f"{_TORCHRUN}/{n.JOB_PLURAL}", ()),
    "Job": ("/apis/batch/v1/jobs", _OF_JOB),
    "Pod": ("/api/v1/pods", _OF_JOB),
    "Service": ("/api/v1/services", _OF_JOB),
    "PersistentVolumeClaim": ("/api/v1/persistentvolumeclaims", _OF_JOB),
    "Queue": (f"{_KAI}/{n.KAI_QUEUE_VERSION}/{n.KAI_QUEUE_PLURAL}", ()),
    "PodGroup": (f"{_KAI}/{n.KAI_POD_GROUP_VERSION}/{n.KAI_POD_GROUP_PLURAL}", ()),
}
WATCHED = frozenset(RESOURCES)
WATCHED_WITHOUT_KAI = WATCHED - {"Queue", "PodGroup"}

# The delay before a queue counts its jobs, in seconds: the jobs of a queue often change together.
COUNT_SECONDS = 5.0
# After a start and at a resync, jobs at rest are reconciled at about this rate, so that others do not wait for them.
AT_REST_PER_SECOND = 200.0
# Phases in which a job has no workers.
IDLE_PHASES = frozenset({"", n.PHASE_PENDING, n.PHASE_SUSPENDED, *n.FINAL_PHASES})
# Reasons of jobs that wait for a change of KAI Scheduler's queues.
_KAI_REASONS = (n.REASON_KAI_QUEUE_NOT_FOUND, n.REASON_KAI_QUEUE_LIMIT, n.REASON_SCHEDULER_NOT_INSTALLED)


class Key(NamedTuple):
    """A job or a queue: `kind` is n.JOB_KIND or n.QUEUE_KIND."""

    kind: str
    namespace: str
    name: str


Requests = list[tuple[Key, float]]


class ObjectIndex:
    """The jobs and queues, and which jobs have objects.

    `change` applies an event. Other threads may call the methods that only read. `draw` returns random numbers from 0
    to 1.
    """

    def __init__(self, draw: Callable[[], float] = random.random) -> None:
        self._draw = draw
        self._jobs: dict[Key, JsonObject] = {}
        self._queues: dict[Key, JsonObject] = {}
        self._children: defaultdict[Key, set[tuple[str, str]]] = defaultdict(set)
        self._synced: set[str] = set()

    def mark_synced(self, kind: str) -> None:
        """Record that all objects of a kind are in the index."""
        self._synced.add(kind)

    def is_synced(self, kinds: Iterable[str]) -> bool:
        """Return whether all objects of these kinds are in the index."""
        return self._synced.issuperset(kinds)

    def has_children(self, namespace: str, job: str) -> bool:
        """Return whether an object of this job is in the index."""
        return bool(self._children.get(Key(n.JOB_KIND, namespace, job)))

    def find_queue(self, namespace: str, name: str) -> JsonObject | None:
        """Return the last version of a queue; None if it does not exist."""
        return self._queues.get(Key(n.QUEUE_KIND, namespace, name))

    def jobs_with_workspace(self, namespace: str, digest: str) -> list[JsonObject]:
        """Return the jobs of a namespace with this workspace: name, workspace and phase."""
        return [
            job
            for key, job in self._jobs.copy().items()
            if key.namespace == namespace and _field(_field(job, "spec"), "workspace").get("digest") == digest
        ]

    def phases(self) -> Mapping[str, int]:
        """Return the number of jobs in each phase; "" is a job without a status."""
        return Counter(_phase(job) for job in self._jobs.copy().values())

    def phases_of(self, namespace: str, queue: str) -> list[str]:
        """Return the phases of a queue's jobs."""
        return [_phase(job) for job in self._jobs_of(Key(n.QUEUE_KIND, namespace, queue)).values()]

    def resync(self) -> Requests:
        """Return all jobs and queues, each with its delay."""
        return [*((key, self._delay(job)) for key, job in self._jobs.items()), *_at_once(self._queues)]

    def change(self, before: JsonObject | None, after: JsonObject | None) -> Requests:
        """Apply an event, and return the jobs and queues to reconcile, each with a delay in seconds.

        The arguments are the object before and after the event, as `converter` returns it; None if it does not exist.
        """
        kind = (after or before or {}).get("kind")
        if kind == n.JOB_KIND:
            return self._change_job(before, after)
        if kind == n.QUEUE_KIND:
            return self._change_queue(before, after)
        if kind == "Queue":
            waiting = [key for key, job in self._jobs.items() if _status(job, "reason") in _KAI_REASONS]
            return _at_once([*self._queues, *waiting])
        return self._change_child(before, after)

    def _change_job(self, before: JsonObject | None, after: JsonObject | None) -> Requests:
        """Change a TorchrunJob. A new one comes from a list, and may be unchanged since its last reconcile."""
        item = after or before or {}
        key, queue = object_key(item), _field(item, "spec").get("jobQueue")
        if after is None:
            self._jobs.pop(key, None)
        else:
            self._jobs[key] = after
        requests = [(key, self._delay(item) if before is None else 0.0)]
        is_counted = before is not None and after is not None and _phase(before) == _phase(after)
        if isinstance(queue, str) and queue and not is_counted:
            requests.append((Key(n.QUEUE_KIND, key.namespace, queue), COUNT_SECONDS))
        return requests

    def _change_queue(self, before: JsonObject | None, after: JsonObject | None) -> Requests:
        """Change a TorchrunQueue. Its jobs depend on its spec and its existence, not on its status.

        Finished jobs depend only on their time to live.
        """
        key = object_key(after or before or {})
        if after is None:
            self._queues.pop(key, None)
        else:
            self._queues[key] = after
        requests = [(key, 0.0)]
        if _generation(before) == _generation(after):
            return requests
        for job_key, job in self._jobs_of(key).items():
            if _phase(job) not in n.FINAL_PHASES:
                requests.append((job_key, 0.0))
            elif _time_to_live(before) != _time_to_live(after):
                requests.append((job_key, self._delay(job)))
        return requests

    def _change_child(self, before: JsonObject | None, after: JsonObject | None) -> Requests:
        """Change an object with the label of its job.

        A new object of an active job needs no reconcile, because the controller created it and reads it again. A new
        pod does, because it may keep a node, and so does a new object of an idle job. A TorchrunQueue deletes its
        queue of KAI only after the last PodGroup in it is deleted.
        """
        item = after or before or {}
        meta, kind = item.get("metadata", {}), str(item.get("kind"))
        job = _field(meta, "labels").get(n.LABEL_JOB)
        if not job:
            return []
        key = Key(n.JOB_KIND, str(meta.get("namespace") or ""), job)
        if after is None:
            self._children[key].discard((kind, meta["name"]))
            if not self._children[key]:
                del self._children[key]
        else:
            self._children[key].add((kind, meta["name"]))
        is_over = kind != "Pod" or _status(item, "phase") in OVER
        is_expected = kind not in self._synced or _phase(self._jobs.get(key, {})) not in IDLE_PHASES
        requests = [] if before is None and is_over and is_expected else [(key, 0.0)]
        if kind == "PodGroup" and after is None:
            name = _field(item, "spec").get("queue")
            queues = self._queues.items()
            requests += _at_once(
                queue_key for queue_key, queue in queues if _field(queue, "spec").get("kaiQueue") == name
            )
        return requests

    def _jobs_of(self, queue: Key) -> dict[Key, JsonObject]:
        return {
            key: job
            for key, job in self._jobs.copy().items()
            if key.namespace == queue.namespace and _field(job, "spec").get("jobQueue") == queue.name
        }

    def _delay(self, job: JsonObject) -> float:
        return self._draw() * len(self._jobs) / AT_REST_PER_SECOND if _is_at_rest(job) else 0.0


def object_key(item: JsonObject) -> Key:
    """Return the key of a job or a queue."""
    meta = item["metadata"]
    return Key(str(item["kind"]), str(meta.get("namespace") or ""), str(meta["name"]))


def _at_once(keys: Iterable[Key]) -> Requests:
    return [(key, 0.0) for key in keys]


def _phase(item: JsonObject) -> str:
    return str(_status(item, "phase") or "")


def _status(item: JsonObject, field: str) -> object:
    return _field(item, "status").get(field)


def _generation(queue: JsonObject | None) -> object:
    meta = queue["metadata"] if queue is not None else None
    return meta and (meta.get("generation"), "deletionTimestamp" in meta)


def _time_to_live(queue: JsonObject | None) -> object:
    return _field(_field(queue or {}, "spec"), "jobDefaults").get("ttlSecondsAfterFinished")


def _is_at_rest(job: JsonObject) -> bool:
    """Return whether a job is finished or waits for a user, and is unchanged since its last status."""
    meta = job["metadata"]
    if _status(job, "observedGeneration") != meta.get("generation") or "deletionTimestamp" in meta:
        return False
    waits = _status(job, "reason") in (n.REASON_SUSPENDED, n.REASON_QUEUE_NOT_FOUND)
    return waits or _phase(job) in n.FINAL_PHASES


def _field(item: JsonObject, key: str) -> JsonObject:
    """Return an object in an item; {} for another type, which the reconcile of the item reports."""
    found = item.get(key)
    return found if isinstance(found, dict) else {}


def converter(kind: str) -> Callable[[JsonObject], JsonObject]:
    """Return a function that keeps only the fields of an object that the index reads. It keeps whole queues."""

    def convert(item: JsonObject) -> JsonObject:
        meta, spec, status = item["metadata"], _field(item, "spec"), _field(item, "status")
        if kind == n.QUEUE_KIND:
            kept = {key: value for key, value in meta.items() if key != "managedFields"}
            return {**item, "apiVersion": n.API_VERSION, "kind": kind, "metadata": kept}
        kept = {key: meta[key] for key in _METADATA if key in meta}
        if kind == "Queue":
            del kept["resourceVersion"]  # KAI Scheduler updates the status all the time
        job = _field(meta, "labels").get(n.LABEL_JOB)
        return {
            "kind": kind,
            "metadata": {**kept, "labels": {n.LABEL_JOB: job} if job is not None else {}},
            "spec": {key: spec[key] for key in _SPEC if key in spec},
            "status": {key: status[key] for key in _STATUS if key in status},
        }

    return convert
