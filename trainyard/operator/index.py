"""Index jobs and queues by the events of the API, to find those that depend on a change. Pure."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from trainyard.operator import names as n
from trainyard.operator.api.fields import JsonObject
from trainyard.operator.observe import OVER

# What is kept of an object.
_METADATA = ("name", "namespace", "uid", "generation", "deletionTimestamp", "resourceVersion")
_LABELS = (n.LABEL_JOB, n.LABEL_QUEUE_NAMESPACE, n.LABEL_QUEUE_NAME)
_SPEC = ("jobQueue", "workspace", "jobDefaults", "kaiQueue", "parentKaiQueue", "queue", "parentQueue")
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
# The rate of reconciles of finished jobs after a change of their time to live. There may be thousands.
FINISHED_PER_SECOND = 10.0


class Key(NamedTuple):
    """A job or a queue: `kind` is n.JOB_KIND or n.QUEUE_KIND."""

    kind: str
    namespace: str
    name: str


Requests = list[tuple[Key, float]]


class ObjectIndex:
    """The jobs and queues, how they depend on each other, and which jobs have objects.

    Each method for an event returns the keys to reconcile with their delays in seconds. `draw` returns random numbers
    from 0 to 1. Other threads may call the methods that only read.
    """

    def __init__(self, draw: Callable[[], float] = random.random) -> None:
        self._draw = draw
        self._phases: dict[Key, str] = {}
        self._phase_counts: Counter[str] = Counter()
        self._queue_of: dict[Key, Key] = {}
        self._jobs_of: defaultdict[Key, set[Key]] = defaultdict(set)
        self._generations: dict[Key, tuple[Any, bool]] = {}
        self._times_to_live: dict[Key, Any] = {}
        self._kai_names: dict[Key, str] = {}
        self._kai_parents: dict[Key, str] = {}
        self._kai_queues: dict[str, tuple[Any, Any, bool]] = {}
        self._queues: dict[Key, JsonObject] = {}
        self._children: defaultdict[Key, set[tuple[str, str]]] = defaultdict(set)
        self._workspaces: defaultdict[tuple[str, str], dict[Key, JsonObject]] = defaultdict(dict)
        self._workspace_of: dict[Key, tuple[str, str]] = {}
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
        return list(self._workspaces.get((namespace, digest), {}).copy().values())

    def phases(self) -> Mapping[str, int]:
        """Return the number of jobs in each phase; "" is a job without a status."""
        return {phase: count for phase, count in self._phase_counts.items() if count}

    def phases_of(self, namespace: str, queue: str) -> list[str]:
        """Return the phases of a queue's jobs. May be called from any thread."""
        jobs = tuple(self._jobs_of.get(Key(n.QUEUE_KIND, namespace, queue), ()))
        return [self._phases.get(each, "") for each in jobs]

    def all_keys(self) -> set[Key]:
        """Return all jobs and queues."""
        return {*self._phases, *self._generations}

    def change(self, before: JsonObject | None, after: JsonObject | None) -> Requests:
        """Apply a change of a watched object, as `converter` returns it; None if it does not exist."""
        item = after or before
        if item is None:
            return []
        gone, new, kind = after is None, before is None, item["kind"]
        if kind == n.JOB_KIND:
            return self.job(item, gone=gone, first=new)
        elif kind == n.QUEUE_KIND:
            return self.queue(item, gone=gone)
        elif kind == "Queue":
            return self.kai_queue(item, gone=gone)
        elif kind == "PodGroup":
            return self.child(item, first=True) if new else self.gang(item, gone=gone)
        else:
            return self.child(item, gone=gone, first=new)

    def job(self, item: JsonObject, *, gone: bool = False, first: bool = False) -> Requests:
        """Add, change or remove a TorchrunJob. With `first`, it comes from a list and may be unchanged."""
        key = object_key(item)
        status = item.get("status") or {}
        named = field_object(item, "spec").get("jobQueue")
        queue = Key(n.QUEUE_KIND, key.namespace, named if isinstance(named, str) else "")
        before = self._phases.get(key)
        self._forget_job(key)
        if not gone:
            self._phases[key] = str(status.get("phase") or "")
            self._phase_counts[self._phases[key]] += 1
            self._queue_of[key] = queue
            self._jobs_of[queue].add(key)
            workspace = field_object(field_object(item, "spec"), "workspace")
            if isinstance(digest := workspace.get("digest"), str) and digest:
                self._workspace_of[key] = key.namespace, digest
                self._workspaces[key.namespace, digest][key] = item
        spread = len(self._phases) / AT_REST_PER_SECOND if first and _is_at_rest(item) else 0.0
        asked = [(key, self._draw() * spread)]
        if queue.name and before != self._phases.get(key):
            asked.append((queue, COUNT_SECONDS))
        return asked

    def queue(self, item: JsonObject, *, gone: bool = False) -> Requests:
        """Add, change or remove a TorchrunQueue. Its jobs depend on its spec and its existence, not on its status.

        Finished jobs only depend on the time to live.
        """
        key = object_key(item)
        generation = (item["metadata"].get("generation"), "deletionTimestamp" in item["metadata"])
        before, lived = self._generations.pop(key, None), self._times_to_live.pop(key, None)
        self._forget_kai(key)
        spec = field_object(item, "spec")
        if gone:
            self._queues.pop(key, None)
        else:
            self._generations[key] = generation
            self._queues[key] = item  # in one step, because the workers' threads read it
            self._times_to_live[key] = field_object(spec, "jobDefaults").get("ttlSecondsAfterFinished")
            self._kai_names[key] = str(spec.get("kaiQueue") or "")
            # The parent has a default, so it only matters for a queue with kaiQueue.
            self._kai_parents[key] = str(spec.get("parentKaiQueue") or "") if spec.get("kaiQueue") else ""
        if before == self._generations.get(key):
            return [(key, 0.0)]
        jobs = self._jobs_of.get(key, set())
        finished = self._finished(jobs) if lived != self._times_to_live.get(key) else []
        return [(key, 0.0), *self._unfinished(jobs), *finished]

    def child(self, item: JsonObject, *, gone: bool = False, first: bool = False) -> Requests:
        """Add, change or remove an object with the label of its job, and return the job.

        With `first`, the object is new. The first reconcile of the job reads it anyway, and so does the reconcile after
        the creation of a worker. But a running pod may belong to a finished job, and keep a node.
        """
        meta = item["metadata"]
        name, kind = (meta.get("labels") or {}).get(n.LABEL_JOB), str(item.get("kind"))
        if not name:
            return []
        key = Key(n.JOB_KIND, str(meta.get("namespace") or ""), name)
        if not gone:
            self._children[key].add((kind, meta["name"]))
        elif key in self._children:
            self._children[key].discard((kind, meta["name"]))
            if not self._children[key]:
                del self._children[key]
        is_over = kind != "Pod" or field_object(item, "status").get("phase") in OVER
        is_expected = kind not in self._synced or self._phases.get(key, "") not in IDLE_PHASES
        return [] if first and is_over and is_expected else [(key, 0.0)]

    def gang(self, item: JsonObject, *, gone: bool) -> Requests:
        """Return the job of a PodGroup, and the queues that wait for its deletion before they delete a queue of KAI."""
        name = field_object(item, "spec").get("queue")
        queues = [key for key, named in self._kai_names.items() if gone and named == name]
        return [*self.child(item, gone=gone), *((key, 0.0) for key in queues)]

    def kai_queue(self, item: JsonObject, *, gone: bool = False) -> Requests:
        """Add, change or remove a queue of KAI. Changes of its status do not matter."""
        meta = item["metadata"]
        name, labels = str(meta["name"]), meta.get("labels") or {}
        version = (meta.get("uid"), meta.get("generation"), "deletionTimestamp" in meta)
        before = self._kai_queues.get(name)
        if not gone:
            self._kai_queues[name] = version
            if before == version:
                return []
        elif before is not None and before[0] == version[0]:  # not yet another of its name
            del self._kai_queues[name]
        owner = labels.get(n.LABEL_QUEUE_NAMESPACE), labels.get(n.LABEL_QUEUE_NAME)
        named = (*self._kai_names.items(), *self._kai_parents.items())
        queues = {key for key, each in named if each == name}
        if gone:  # the queue above may wait for this deletion before its own
            above = field_object(item, "spec").get("parentQueue")
            queues |= {key for key, each in self._kai_names.items() if each and each == above}
        jobs = {job for key in queues for job in self._jobs_of.get(key, ())}
        if all(owner):
            queues.add(Key(n.QUEUE_KIND, str(owner[0]), str(owner[1])))
        return [*((key, 0.0) for key in queues), *self._unfinished(jobs)]

    def remove(self, gone: set[Key]) -> Requests:
        """Remove jobs and queues that a new list no longer has."""
        asked = []
        for key in gone:
            self._generations.pop(key, None)
            self._times_to_live.pop(key, None)
            self._forget_kai(key)
            self._queues.pop(key, None)
            queue = self._queue_of.get(key)
            self._forget_job(key)
            asked.append((key, 0.0))
            if queue is not None:
                asked.append((queue, COUNT_SECONDS))
        return asked

    def _unfinished(self, jobs: Iterable[Key]) -> Requests:
        return [(key, 0.0) for key in jobs if self._phases[key] not in n.FINAL_PHASES]

    def _finished(self, jobs: Iterable[Key]) -> Requests:
        finished = sorted(key for key in jobs if self._phases[key] in n.FINAL_PHASES)
        return [(key, place / FINISHED_PER_SECOND) for place, key in enumerate(finished)]

    def _forget_kai(self, key: Key) -> None:
        self._kai_names.pop(key, None)
        self._kai_parents.pop(key, None)

    def _forget_job(self, key: Key) -> None:
        phase = self._phases.pop(key, None)
        if phase is not None:
            self._phase_counts[phase] -= 1
        workspace = self._workspace_of.pop(key, None)
        if workspace is not None:
            del self._workspaces[workspace][key]
            if not self._workspaces[workspace]:
                del self._workspaces[workspace]
        queue = self._queue_of.pop(key, None)
        if queue is not None:
            self._jobs_of[queue].discard(key)
            if not self._jobs_of[queue]:
                del self._jobs_of[queue]


def object_key(item: JsonObject) -> Key:
    """Return the key of a job or a queue."""
    meta = item["metadata"]
    return Key(str(item["kind"]), str(meta.get("namespace") or ""), str(meta["name"]))


def _is_at_rest(item: JsonObject) -> bool:
    """Return whether a job from a list is finished or waits for a user, and is unchanged since its last status."""
    meta, status = item["metadata"], item.get("status") or {}
    if status.get("observedGeneration") != meta.get("generation") or "deletionTimestamp" in meta:
        return False
    waits = status.get("reason") in (n.REASON_SUSPENDED, n.REASON_QUEUE_NOT_FOUND)
    return waits or status.get("phase") in n.FINAL_PHASES


def field_object(item: JsonObject, key: str) -> JsonObject:
    """Return an object in an item; {} for another type, which the reconcile of the item reports."""
    found = item.get(key)
    return found if isinstance(found, dict) else {}


def converter(kind: str) -> Callable[[JsonObject], JsonObject]:
    """Return a function that keeps only the fields of an object that the index reads. It keeps whole queues."""

    def convert(item: JsonObject) -> JsonObject:
        if kind == n.QUEUE_KIND:
            meta = {key: value for key, value in item["metadata"].items() if key != "managedFields"}
            return {**item, "apiVersion": n.API_VERSION, "kind": kind, "metadata": meta}
        meta, labels = item["metadata"], field_object(item["metadata"], "labels")
        kept = {key: meta[key] for key in _METADATA if key in meta}
        if kind == "Queue":
            del kept["resourceVersion"]  # KAI Scheduler updates the status all the time
        spec, status = field_object(item, "spec"), field_object(item, "status")
        return {
            "kind": kind,
            "metadata": {**kept, "labels": {key: labels[key] for key in _LABELS if key in labels}},
            "spec": {key: spec[key] for key in _SPEC if key in spec},
            "status": {key: status[key] for key in _STATUS if key in status},
        }

    return convert
