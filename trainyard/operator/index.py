"""What is known of jobs and queues from the API's events, and which of them a change concerns. Pure."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from trainyard.operator import names as n
from trainyard.operator.api.fields import JsonObject
from trainyard.operator.observe import OVER

# A queue's jobs change together; it is told how many there are not more often than this, in seconds.
COUNT_SECONDS = 5.0
# What rests is looked at, too, but not all at once: within this time, in seconds.
SPREAD_SECONDS = 60.0
# Jobs that are over hear of another time to live, so many of them a second: there may be thousands, and none is urgent.
OVER_A_SECOND = 10.0
# The same for what waits for somebody: a change of the job or its queue is seen without it.
WAITING_SPREAD_SECONDS = 20.0


class Key(NamedTuple):
    """One thing to be looked at: `kind` is n.JOB_KIND or n.QUEUE_KIND."""

    kind: str
    namespace: str
    name: str


Requests = list[tuple[Key, float]]


class ObjectIndex:
    """Each method returns what is to be looked at, and in how many seconds.

    `draw` gives numbers from 0 to 1.
    """

    def __init__(self, draw: Callable[[], float] = random.random) -> None:
        self._draw = draw
        self._phases: dict[Key, str] = {}
        self._queue_of: dict[Key, Key] = {}
        self._jobs_of: defaultdict[Key, set[Key]] = defaultdict(set)
        self._generations: dict[Key, tuple[Any, bool]] = {}
        self._times_to_live: dict[Key, Any] = {}
        self._kai_names: dict[Key, str] = {}
        self._kai_parents: dict[Key, str] = {}
        self._kai_queues: dict[str, tuple[Any, Any, bool]] = {}

    def phases(self) -> Mapping[str, int]:
        """How many jobs are in each phase; "" is one that nobody has looked at."""
        return Counter(self._phases.values())

    def there(self) -> set[Key]:
        """All that is there, as far as it was heard."""
        return {*self._phases, *self._generations}

    def job(self, item: JsonObject, *, gone: bool = False, first: bool = False) -> Requests:
        """A TorchrunJob was seen; `first`: in a list, where nothing says that it has changed."""
        key = object_key(item)
        status = item.get("status") or {}
        named = _part(item, "spec").get("jobQueue")
        queue = Key(n.QUEUE_KIND, key.namespace, named if isinstance(named, str) else "")
        before = self._phases.get(key)
        self._forget_job(key)
        if not gone:
            self._phases[key] = str(status.get("phase") or "")
            self._queue_of[key] = queue
            self._jobs_of[queue].add(key)
        asked = [(key, self._draw() * _spread_seconds(item) if first else 0.0)]
        if queue.name and before != self._phases.get(key):
            asked.append((queue, COUNT_SECONDS))
        return asked

    def queue(self, item: JsonObject, *, gone: bool = False) -> Requests:
        """A TorchrunQueue was seen. Its jobs go by its spec, and whether it is there; not by its status.

        Of jobs that are over only the time to live still matters.
        """
        key = object_key(item)
        generation = (item["metadata"].get("generation"), "deletionTimestamp" in item["metadata"])
        before, lived = self._generations.pop(key, None), self._times_to_live.pop(key, None)
        self._forget_kai(key)
        spec = _part(item, "spec")
        if not gone:
            self._generations[key] = generation
            self._times_to_live[key] = _part(spec, "jobDefaults").get("ttlSecondsAfterFinished")
            self._kai_names[key] = str(spec.get("kaiQueue") or "")
            # The parent has a default, and matters to those that are below it alone.
            self._kai_parents[key] = str(spec.get("parentKaiQueue") or "") if spec.get("kaiQueue") else ""
        if before == self._generations.get(key):
            return [(key, 0.0)]
        jobs = self._jobs_of.get(key, set())
        over = self._over(jobs) if lived != self._times_to_live.get(key) else []
        return [(key, 0.0), *self._live(jobs), *over]

    def child(self, item: JsonObject, *, first: bool = False) -> Requests:
        """Something with the label of a job was made, changed or removed.

        `first`: in a list. Then it is seen when its job is looked at; but a pod that runs may be of a job that is over,
        and hold a machine.
        """
        meta = item["metadata"]
        name = (meta.get("labels") or {}).get(n.LABEL_JOB)
        rests = first and (item.get("kind") != "Pod" or _part(item, "status").get("phase") in OVER)
        return [(Key(n.JOB_KIND, str(meta.get("namespace") or ""), name), 0.0)] if name and not rests else []

    def gang(self, item: JsonObject, *, gone: bool) -> Requests:
        """A PodGroup was made, changed or removed: a queue of KAI that is to go waits for the last one in it."""
        name = _part(item, "spec").get("queue")
        queues = [key for key, named in self._kai_names.items() if gone and named == name]
        return [*self.child(item), *((key, 0.0) for key in queues)]

    def kai_queue(self, item: JsonObject, *, gone: bool = False) -> Requests:
        """A queue of KAI was made, changed or removed. Its status, which KAI writes all the time, is nothing to us."""
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
        if gone:  # one above it that is to go waits for the last one in it
            above = _part(item, "spec").get("parentQueue")
            queues |= {key for key, each in self._kai_names.items() if each and each == above}
        jobs = {job for key in queues for job in self._jobs_of.get(key, ())}
        if all(owner):
            queues.add(Key(n.QUEUE_KIND, str(owner[0]), str(owner[1])))
        return [*((key, 0.0) for key in queues), *self._live(jobs)]

    def unfinished(self) -> Requests:
        """All queues, and the jobs that are not over: something changed that any of them may depend on."""
        return [*((key, 0.0) for key in self._generations), *self._live(self._phases)]

    def lost(self, gone: set[Key]) -> Requests:
        """These are not in a new list any more; their removal was not heard."""
        asked = []
        for key in gone:
            self._generations.pop(key, None)
            self._times_to_live.pop(key, None)
            self._forget_kai(key)
            queue = self._queue_of.get(key)
            self._forget_job(key)
            asked.append((key, 0.0))
            if queue is not None:
                asked.append((queue, COUNT_SECONDS))
        return asked

    def _live(self, jobs: Iterable[Key]) -> Requests:
        return [(key, 0.0) for key in jobs if self._phases[key] not in n.FINAL_PHASES]

    def _over(self, jobs: Iterable[Key]) -> Requests:
        over = sorted(key for key in jobs if self._phases[key] in n.FINAL_PHASES)
        return [(key, place / OVER_A_SECOND) for place, key in enumerate(over)]

    def _forget_kai(self, key: Key) -> None:
        self._kai_names.pop(key, None)
        self._kai_parents.pop(key, None)

    def _forget_job(self, key: Key) -> None:
        self._phases.pop(key, None)
        queue = self._queue_of.pop(key, None)
        if queue is not None:
            self._jobs_of[queue].discard(key)
            if not self._jobs_of[queue]:
                del self._jobs_of[queue]


def object_key(item: JsonObject) -> Key:
    """The key of a job or a queue."""
    meta = item["metadata"]
    return Key(str(item["kind"]), str(meta.get("namespace") or ""), str(meta["name"]))


def _spread_seconds(item: JsonObject) -> float:
    """Within how many seconds a job is to be looked at of which nothing says that it has changed."""
    meta, status = item["metadata"], item.get("status") or {}
    if status.get("observedGeneration") != meta.get("generation") or "deletionTimestamp" in meta:
        return 0.0
    if status.get("phase") in n.FINAL_PHASES:
        return SPREAD_SECONDS
    if status.get("reason") in (n.REASON_SUSPENDED, n.REASON_QUEUE_NOT_FOUND):
        return WAITING_SPREAD_SECONDS
    return 0.0


def _part(item: JsonObject, key: str) -> JsonObject:
    """An object in it; nothing where the API has something else, which the thing's own look tells."""
    found = item.get(key)
    return found if isinstance(found, dict) else {}
