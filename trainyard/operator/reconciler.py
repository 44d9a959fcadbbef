"""One look at a job or a queue: what there is, what is decided, what is done. Everything is read anew for each."""

from __future__ import annotations

import json
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final
from urllib.parse import quote

from launcher.errors import strip_control_characters
from launcher.manifests import stamp
from launcher.observe import Observation
from trainyard.k8s.client import ApiError
from trainyard.k8s.objects import Objects, collection, path_of
from trainyard.operator import names as n
from trainyard.operator.api.fields import JsonObject
from trainyard.operator.api.job import check_name, parse_metadata, read_job
from trainyard.operator.api.status import fit_status
from trainyard.operator.attempt import delete_jobs, orphan_hint, start_attempt
from trainyard.operator.cluster_reader import ClusterReader, PollPacer, PoolReader
from trainyard.operator.command import check_command
from trainyard.operator.context import ReconcileContext, Refusal, rejected_conditions, unknown_capacity
from trainyard.operator.diagnostics import nearby_sync_pods, needs_sync_pod
from trainyard.operator.nodes import delete_placeholders, pool_to_count
from trainyard.operator.observe import Cluster, is_ending, observe, trusted_fields
from trainyard.operator.plan import WARNING, Deletion, Event, ReconcilePlan, deletion
from trainyard.operator.progress import Ask, ProgressPoller, find_first_worker, read_progress
from trainyard.operator.queue import (
    DryRun,
    build_trial_pod,
    has_unused_kai_queues,
    lacks_parent,
    pool_name,
    reconcile_queue,
)
from trainyard.operator.running import continue_attempt, find_end, keep_running
from trainyard.operator.status import (
    Condition,
    build_status,
    conditions_by_type,
    merge_conditions,
    read_status,
    template_rejection,
)
from trainyard.operator.storage import has_unknown_class

# What jobs have made for them; a gang only where KAI Scheduler is installed.
_BATCH_JOB, _POD = ("batch/v1", "Job"), ("v1", "Pod")
_OTHERS = (("v1", "Service"), ("v1", "PersistentVolumeClaim"))
_POD_GROUP = (f"{n.KAI_GROUP}/{n.KAI_POD_GROUP_VERSION}", "PodGroup")
_KAI_QUEUE = (f"{n.KAI_GROUP}/{n.KAI_QUEUE_VERSION}", "Queue")
# The API server has read the pod and does not take it: refused by admission, or wrong.
_REJECTED_STATUS = (400, 403, 422)
# Reasons to wait, or to fail, that what was known of the cluster may be too old for.
_CLUSTER_REASONS = (
    n.REASON_STORAGE_CLASS_NOT_FOUND,
    n.REASON_INVALID_SPEC,
    n.REASON_KAI_QUEUE_NOT_FOUND,
    n.REASON_KAI_QUEUE_LIMIT,
)
log = logging.getLogger(__name__)

# Until something that was in the way is seen: a write of somebody else that came first.
CONFLICT_SECONDS = 0.2


class Reconciler:
    """Looks at jobs and queues. Several threads may, each at another one."""

    def __init__(
        self,
        objects: Objects,
        facts: ClusterReader,
        *,
        now: Callable[[], float] = time.time,
        ask: Ask = read_progress,
    ) -> None:
        self._objects = objects
        self._facts = facts
        self._now = now
        self._progress_poller = ProgressPoller(now, ask)
        self._pools = PoolReader(objects)
        self._pace = PollPacer()
        # Paths of names that a job or queue needs and that something without its labels has.
        self._taken: dict[str, set[str]] = defaultdict(set)

    def job(self, namespace: str, name: str) -> float | None:
        """Do what is due; returns in how many seconds something is due again. May raise ApiError and ApiUnavailable."""
        path = f"{collection(n.API_VERSION, n.JOB_KIND, namespace)}/{quote(name)}"
        item = self._objects.get(path)
        if item is None:
            self._taken.pop(path, None)
            self._progress_poller.forget(path)
            self._pace.paced(path, None)
            return None
        with self._telling(item):
            return self._job(path, item)

    def _job(self, path: str, item: JsonObject) -> float | None:
        namespace, name = item["metadata"]["namespace"], item["metadata"]["name"]
        queue = self._queue(namespace, item.get("spec"))
        pool = pool_to_count(item, queue)
        claims = _names_claims(item, queue)
        cluster = self._facts.cluster(namespace, claims=claims)
        if pool:
            cluster = replace(cluster, placeholders=self._pools.placeholders())

        def decided(*, fresh: bool = False, refused: str = "") -> ReconcilePlan:
            seen = self._with_taken(path, self._children(namespace, name, gang=cluster.kai))
            there = self._pools.read(pool, namespace, self._now(), fresh=fresh) if pool else None
            conditions = self._progress(path, item, seen)
            more: dict[str, Any] = {
                "pool": there,
                "refused": refused,
                "nearby": self._nearby(item, seen),
            }
            try:
                return reconcile(item, queue, seen, cluster, self._now(), conditions, **more)
            except Exception:
                # The job's deadline and suspension must take effect even if the data of its pods can't be read.
                log.exception("%s: reconciled without the data of its pods", path)
                trusted = [trusted_fields(each) if each.get("kind") == "Pod" else each for each in seen]
                return reconcile(item, queue, trusted, cluster, self._now(), **more)

        def counted() -> ReconcilePlan:
            decision = decided()
            return decided(fresh=True) if decision.recount else decision

        decision = counted()
        if _may_be_outdated(item, decision, cluster):
            # Not by what was known of the cluster before somebody made the class or the queue that it needs.
            anew = self._facts.cluster(namespace, claims=claims, fresh=True)
            cluster = replace(anew, placeholders=cluster.placeholders)
            decision = counted()
        try:
            requeue_after = self._do(path, item, decision)
        except ApiError as error:
            if not pool or error.status not in _REJECTED_STATUS or not _is_of_a_pod(error):
                raise
            requeue_after = self._do(path, item, decided(refused=error.message))
        return self._pace.paced(path, requeue_after, waits=bool(pool))

    def queue(self, namespace: str, name: str) -> float | None:
        """As `job`, for a queue."""
        path = f"{collection(n.API_VERSION, n.QUEUE_KIND, namespace)}/{quote(name)}"
        item = self._objects.get(path)
        if item is None:
            self._taken.pop(path, None)
            return None
        with self._telling(item):
            return self._see_queue(path, item)

    def _see_queue(self, path: str, item: JsonObject) -> float | None:
        namespace, name = item["metadata"]["namespace"], item["metadata"]["name"]
        cluster = self._facts.cluster(namespace, claims=False)
        theirs: list[JsonObject] = []
        if cluster.kai:
            labels = {n.LABEL_QUEUE_NAMESPACE: namespace, n.LABEL_QUEUE_NAME: name}
            selector = ",".join(f"{key}={value}" for key, value in labels.items())
            theirs = self._with_taken(path, self._objects.list(*_KAI_QUEUE, "", selector))
            if lacks_parent(item, theirs, cluster):
                cluster = self._facts.cluster(namespace, claims=False, fresh=True)
        decision = reconcile_queue(
            item,
            theirs,
            self._tried(item, cluster),
            self._phases(namespace, name),
            cluster,
            self._now(),
            self._in_kai() if has_unused_kai_queues(item, theirs) else (),
            self._read_pool(item),
        )
        return self._do(path, item, decision)

    def _read_pool(self, queue: JsonObject) -> Observation | None:
        """Read the queue's Karpenter pool; None for a queue without one."""
        pool = pool_name(queue)
        return self._pools.read(pool, queue["metadata"]["namespace"], self._now()) if pool else None

    def _in_kai(self) -> list[JsonObject]:
        """Everybody's gangs and queues: an administrator may have put some into one of ours."""
        return [each for kind in (_POD_GROUP, _KAI_QUEUE) for each in self._objects.list(*kind, "")]

    def close(self) -> None:
        """Nothing is looked at any more."""
        self._progress_poller.close()

    def _nearby(self, item: JsonObject, seen: list[JsonObject]) -> tuple[str, ...]:
        """Return the addresses from which a new sync pod may get the workspace."""
        namespace, name = item["metadata"]["namespace"], n.sync_pod(item["metadata"]["name"])
        there = any((each["kind"], each["metadata"]["name"]) == ("Pod", name) for each in seen)
        if there or not needs_sync_pod(item):
            return ()
        return nearby_sync_pods(item, self._objects.list(n.API_VERSION, n.JOB_KIND, namespace))

    def _progress(self, path: str, item: JsonObject, seen: list[JsonObject]) -> JsonObject | None:
        """Return the progress from the first worker. An error does not stop the reconcile."""
        try:
            worker = find_first_worker(item, seen)
            return None if worker is None else self._progress_poller.poll(path, worker)
        except Exception as error:
            log.warning("%s: its progress can't be read: %r", path, error)
            return None

    def _do(self, path: str, item: JsonObject, decision: ReconcilePlan) -> float | None:
        # What was made for it goes when it is gone; what was missing for that reason is not to be made anew. It was
        # read before all that it has, so that no status is written over one that knows more.
        if decision.creations and not self._is_there(path, item):
            return None
        blocked = apply_plan(decision, item, self._objects, now=self._now)
        if not blocked:
            return decision.requeue_after
        if blocked != path:
            self._taken[path].add(blocked)
        return CONFLICT_SECONDS

    def _is_there(self, path: str, item: JsonObject) -> bool:
        found = self._objects.get(path)
        return found is not None and bool(found["metadata"].get("uid") == item["metadata"].get("uid"))

    @contextmanager
    def _telling(self, item: JsonObject) -> Iterator[None]:
        """People look at the object, not at the controller: what the API server refuses is written there.

        That is a quota, a webhook, or a right that the controller has not.
        """
        try:
            yield
        except ApiError as error:
            if error.status in _REJECTED_STATUS:
                decision = reject_request(item, str(error), self._now())
                apply_plan(decision, item, self._objects, now=self._now)
            raise

    def _with_taken(self, path: str, seen: list[JsonObject]) -> list[JsonObject]:
        """And what has been in the way before, as far as it is there still."""
        there = {path_of(each) for each in seen}
        for other in self._taken[path] - there:
            found = self._objects.get(other)
            if found is None:
                self._taken[path].discard(other)
            else:
                seen.append(found)
        return seen

    def _tried(self, item: JsonObject, cluster: Cluster) -> DryRun | None:
        """What the API server says of a pod of the queue, without making it."""
        pod = build_trial_pod(item, cluster)
        if pod is None:
            return None
        try:
            self._objects.create(pod, dry_run=True)
        except ApiError as error:
            if error.status not in _REJECTED_STATUS:
                raise
            return DryRun(refusal=error.message)
        return DryRun()

    def _phases(self, namespace: str, name: str) -> list[str]:
        items = self._objects.list(n.API_VERSION, n.JOB_KIND, namespace)
        return [
            str((each.get("status") or {}).get("phase") or "")
            for each in items
            if (each.get("spec") or {}).get("jobQueue") == name
        ]

    def _queue(self, namespace: str, spec: Any) -> JsonObject | None:
        name = spec.get("jobQueue") if isinstance(spec, dict) else None
        if not isinstance(name, str) or not name:
            return None
        return self._objects.get(
            f"{collection(n.API_VERSION, n.QUEUE_KIND, namespace)}/{quote(name, safe='')}"
        )

    def _children(self, namespace: str, name: str, *, gang: bool) -> list[JsonObject]:
        def listed(version: str, kind: str) -> list[JsonObject]:
            return self._objects.list(version, kind, namespace, f"{n.LABEL_JOB}={name}")

        jobs, pods = listed(*_BATCH_JOB), listed(*_POD)
        if any(map(is_ending, pods)):
            # A Job that has succeeded with some of its workers removes the others. Who read it before that, and them
            # after, would take them for lost.
            jobs = listed(*_BATCH_JOB)
        others = [each for kind in (*_OTHERS, *((_POD_GROUP,) if gang else ())) for each in listed(*kind)]
        return [*jobs, *pods, *others]


def _is_of_a_pod(error: ApiError) -> bool:
    return error.method == "POST" and error.path.endswith("/pods")


def _may_be_outdated(item: JsonObject, decision: ReconcilePlan, cluster: Cluster) -> bool:
    """Whether it waits, fails now, or is made otherwise for what somebody may have made since `cluster` was read."""
    if any(has_unknown_class(each, cluster) for each in decision.creations):
        return True
    conditions = decision.status or item.get("status") or {}
    over = decision.status is None and conditions.get("phase") in n.FINAL_PHASES
    return not over and conditions.get("reason") in _CLUSTER_REASONS


def _names_claims(item: JsonObject, queue: JsonObject | None) -> bool:
    """Whether a claim is used as it is: only then the claims of the namespace matter."""
    return "existingClaim" in json.dumps([item.get("spec"), queue and queue.get("spec")])


_STOPPING: Final = "the workers are being stopped"


def reconcile(
    job: JsonObject,
    queue: JsonObject | None,
    items: Iterable[JsonObject],
    cluster: Cluster,
    now: float,
    progress: JsonObject | None = None,
    pool: Observation | None = None,
    refused: str = "",
    nearby: tuple[str, ...] = (),
) -> ReconcilePlan:
    """What is to be done for this job.

    `queue` is the TorchrunQueue that it names, `items` every object with its label or with the name of a child,
    `progress` what the trainer of its first worker tells, None for nothing new, `pool` what there is of the pool that
    `nodes.pool_to_count` names, `refused` why the API server did not take a placeholder of the last decision, and
    `nearby` the addresses of other jobs' sync pods that may have the archive of its workspace.
    """
    problems: list[str] = []
    meta = parse_metadata(job, problems)
    if meta.deleting:
        return ReconcilePlan()  # all that it owns goes with it
    check_name(meta.name, problems)
    spec, wrong = read_job(job.get("spec"))
    if not wrong and (problem := check_command(spec.command, spec.args, spec.launcher)):
        problems.append(problem)
    problems += wrong
    known = read_status(job.get("status"))
    ctx = ReconcileContext(
        meta=meta,
        spec=spec,
        status=known,
        children=observe(meta, items, known.attempt if known.phase == n.PHASE_RESTARTING else 0),
        queue=None if queue is None else queue.get("spec") or {},
        queue_leaves=queue is not None and "deletionTimestamp" in queue["metadata"],
        cluster=cluster,
        now=now,
        progress=progress,
        pool=pool,
        refused=refused,
        problems="; ".join(problems),
        template_refused=template_rejection(queue),
        nearby=nearby,
        queue_status=None if queue is None else queue.get("status"),
    )
    if ctx.status.final:
        return _reconcile_finished(ctx, job, known=not wrong)
    if problems and not ctx.has_started:
        return ctx.end(n.PHASE_FAILED, n.REASON_INVALID_SPEC, ctx.problems, None)
    return _reconcile_live(ctx)


def _reconcile_live(ctx: ReconcileContext) -> ReconcilePlan:
    if ctx.children.succeeded_attempt is not None:
        return _finish_succeeded(ctx, ctx.children.succeeded_attempt)
    deadline = ctx.deadline
    if ctx.late:
        return ctx.end(n.PHASE_FAILED, n.REASON_DEADLINE_EXCEEDED, _deadline_message(ctx), None)
    if ctx.spec.suspend:
        decision = _suspend(ctx)
    elif ctx.status.running:
        return continue_attempt(ctx)
    else:
        decision = start_attempt(ctx)
    if deadline is None:
        return decision
    left = deadline - ctx.now
    return replace(
        decision, requeue_after=left if decision.requeue_after is None else min(decision.requeue_after, left)
    )


def _finish_succeeded(ctx: ReconcileContext, attempt: int) -> ReconcilePlan:
    """What is trained is trained, even by an attempt that was to be stopped.

    Its Job says so once its other pods are gone. That is not waited for where anything else would end the attempt.
    """
    stays = ctx.status.running and attempt == ctx.status.attempt and not ctx.spec.suspend and not ctx.late
    leaves = any(each.deleting for each in ctx.children.of(attempt))
    if ctx.children.complete(attempt) or leaves or not stays:
        return ctx.end(n.PHASE_SUCCEEDED, n.REASON_SUCCEEDED, "all workers ended well", 0)
    return keep_running(ctx)


def _deadline_message(ctx: ReconcileContext) -> str:
    seconds = ctx.settings.deadline if ctx.settings is not None else ctx.spec.active_deadline_seconds
    return f"activeDeadlineSeconds, {seconds} s since the first start, are over"


def _suspend(ctx: ReconcileContext) -> ReconcilePlan:
    """The workers go, all else stays. However they end on the way, it is not counted."""
    if ctx.status.running:
        over = find_end(ctx)
        message = f"suspended after {over.why}" if over is not None else "suspended"
        conditions = (
            *_spec_problems(ctx),
            Condition(type=n.SUSPENDED, status=False, reason=n.REASON_STOPPING, message=_STOPPING),
            Condition(type=n.WORKERS_READY, status=False, reason=n.REASON_SUSPENDED),
        )
        attempt = ctx.status.attempt + 1
        return ctx.write(
            n.PHASE_SUSPENDED,
            n.REASON_SUSPENDED,
            message,
            conditions=conditions,
            requeue_after=0.0,
            attempt=attempt,
        )
    groups = [item for (kind, _), item in ctx.children.objects.items() if kind == "PodGroup"]
    deletions = (*delete_jobs(ctx.children.jobs), *_delete(groups), *delete_placeholders(ctx))
    orphans = [each for each in ctx.children.orphans if not each.finished]
    gone = not (ctx.children.jobs or ctx.children.workers or orphans)
    message = "the job has no workers" if gone else f"{_STOPPING}{orphan_hint(orphans)}"
    idle: tuple[Condition, ...] = (
        *_spec_problems(ctx),
        Condition(
            type=n.SUSPENDED,
            status=gone,
            reason=n.REASON_SUSPENDED if gone else n.REASON_STOPPING,
            message=message,
        ),
        Condition(type=n.WORKERS_READY, status=False, reason=n.REASON_SUSPENDED),
        *unknown_capacity(ctx.status, n.REASON_SUSPENDED),
    )
    decision = ctx.write(
        n.PHASE_SUSPENDED,
        n.REASON_SUSPENDED,
        message,
        conditions=idle,
        workers=ctx.workers(),
        capacity=None,
    )
    return replace(decision, deletions=deletions)


def _spec_problems(ctx: ReconcileContext) -> tuple[Condition, ...]:
    """What is wrong with the job, also while it is suspended; put right, it is judged when it begins."""
    if ctx.problems:
        return rejected_conditions(Refusal(message=ctx.problems))[:1]
    before = conditions_by_type(ctx.status.raw.get("conditions")).get(n.ACCEPTED, {})
    unknown = Condition(
        type=n.ACCEPTED, status=None, reason=n.REASON_SUSPENDED, message="tried when it is resumed"
    )
    return (unknown,) if before.get("reason") in (n.REASON_INVALID_SPEC, n.REASON_REFUSED) else ()


def _delete(items: Iterable[JsonObject]) -> list[Deletion]:
    return [deletion(each) for each in items if "deletionTimestamp" not in each["metadata"]]


def _reconcile_finished(ctx: ReconcileContext, job: JsonObject, *, known: bool) -> ReconcilePlan:
    """A job that is over stays so. Its finished Jobs are kept for their pods' logs, all else that takes room goes."""
    # A Job of which a pod failed is about to be failed; those of its other nodes are not.
    failing = {each.job for each in ctx.children.workers if each.failed}
    kept = [
        each
        for each in ctx.children.jobs
        if each.uid in ctx.children.succeeded_jobs
        or (each.attempt == ctx.status.attempt and (each.failed or each.uid in failing))
    ]
    others = [
        deletion(each.item, foreground=True)
        for each in ctx.children.jobs
        if each not in kept and not each.deleting
    ]
    spent = [item for (kind, _), item in ctx.children.objects.items() if kind in ("PodGroup", "Pod")]
    deletions: tuple[Deletion, ...] = (*others, *_delete(spent))
    raw, seconds = ctx.status.raw, _time_to_live(ctx) if known else None
    decision = ReconcilePlan()
    if raw.get("observedGeneration") != ctx.meta.generation:
        # How it ended stays; that an edit was seen is told all the same.
        decision = ctx.write(ctx.status.phase, raw.get("reason") or "", raw.get("message") or "")
    if seconds is None or ctx.status.completed is None:
        return replace(decision, deletions=deletions)
    left = ctx.status.completed + seconds - ctx.now
    if left > 0:
        return replace(decision, deletions=deletions, requeue_after=left)
    # Only as it was read: somebody may have given it more time.
    return ReconcilePlan(deletions=(*deletions, deletion(job, as_read=True)))


def _time_to_live(ctx: ReconcileContext) -> Any:
    settings = ctx.settings
    return settings.time_to_live if settings is not None else ctx.spec.ttl_seconds_after_finished


# An Event's message may have 1024 characters (k8s.io/kubernetes, pkg/apis/core/validation/events.go).
_MESSAGE_LENGTH = 1024
_TRIES = 5
# A machine is given back with all that is on it. That is nothing of this job while it waits for machines, and by now it
# may have begun.
_NODE_CLAIM = "NodeClaim"


def apply_plan(
    decision: ReconcilePlan, item: JsonObject, objects: Objects, *, now: Callable[[], float] = time.time
) -> str:
    """Do what was decided about `item`, as it was read.

    Returns "" when all is done, else what was in the way: the path of an object that has a name that was to be taken,
    or the item's own where that has changed since. The next decision is to know what is there. Raises ApiError and
    ApiUnavailable; what was done until then is found by the next decision.
    """
    if any(each.kind == _NODE_CLAIM for each in decision.deletions) and not _is_unchanged(objects, item):
        return path_of(item)
    for each in decision.deletions:
        path = f"{collection(each.api_version, each.kind, each.namespace)}/{each.name}"
        objects.delete(path, each.uid, each.version, foreground=each.foreground)
    for manifest in decision.creations:
        if not objects.create(manifest):
            return path_of(manifest)
    for manifest in decision.patches:
        if not objects.change(manifest):
            return path_of(manifest)
    if decision.finalizers is not None and not objects.put_finalizers(item, decision.finalizers):
        return path_of(item)
    status = None if decision.status is None else fit_status(item["kind"], decision.status)
    if status is not None and status == item.get("status"):
        return ""  # only invalid values changed
    if status is not None and not _put_status(objects, item, status):
        return path_of(item)
    for event in decision.events:
        try:
            objects.create(_event(event, item, now()))
        except ApiError as error:  # an Event is only information
            log.warning("%s: no Event recorded: %s", path_of(item), error)
    return ""


def _put_status(objects: Objects, item: JsonObject, status: JsonObject) -> bool:
    """Puts the status over what was read, or over what differs from it in labels and annotations alone.

    Somebody who writes those all the time would let no status be put, else.
    """
    latest: JsonObject | None = item
    for _ in range(_TRIES):
        if objects.put_status({**(latest or item), "status": status}) is not None:
            return True
        latest = objects.get(path_of(item))
        if not _is_same_input(latest, item):
            return False
    return False


def _is_unchanged(objects: Objects, item: JsonObject) -> bool:
    return _is_same_input(objects.get(path_of(item)), item)


def _is_same_input(latest: JsonObject | None, item: JsonObject) -> bool:
    return latest is not None and _plan_input(latest) == _plan_input(item)


def _plan_input(item: JsonObject) -> list[Any]:
    """All of it that a decision is made from."""
    meta = [item["metadata"].get(key) for key in ("uid", "generation", "deletionTimestamp", "finalizers")]
    return [*meta, item.get("spec"), item.get("status")]


def _event(event: Event, item: JsonObject, now: float) -> JsonObject:
    """A v1 Event on the item."""
    meta = item["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{meta['name']}.{int(now * 1e6):x}", "namespace": meta["namespace"]},
        "involvedObject": {
            "apiVersion": item["apiVersion"],
            "kind": item["kind"],
            "name": meta["name"],
            "namespace": meta["namespace"],
            "uid": meta["uid"],
        },
        "type": event.type,
        "reason": event.reason,
        "message": strip_control_characters(event.message)[:_MESSAGE_LENGTH],
        "source": {"component": n.CONTROLLER},
        "reportingComponent": n.CONTROLLER,
        "firstTimestamp": stamp(now),
        "lastTimestamp": stamp(now),
        "count": 1,
    }


def reject_request(item: JsonObject, message: str, now: float) -> ReconcilePlan:
    """Its status with the refusal, and an Event where that is new. What was known of it before stays.

    A job that is over keeps how it ended: nothing is told on it, and the controller's log has the refusal.
    """
    status = item.get("status")
    old: JsonObject = dict(status) if isinstance(status, Mapping) else {}
    refusal = Condition(
        type=n.READY if item["kind"] == n.QUEUE_KIND else n.ACCEPTED,
        status=False,
        reason=n.REASON_REFUSED,
        message=message,
    )
    generation = item["metadata"].get("generation", 0)
    if item["kind"] == n.JOB_KIND:
        noted = read_status(old)
        if noted.final:
            return ReconcilePlan()
        phase = noted.phase or n.PHASE_PENDING
        new = build_status(
            noted,
            generation=generation,
            now=now,
            phase=phase,
            reason=n.REASON_REFUSED,
            message=message,
            conditions=[refusal],
        )
    else:
        conditions = merge_conditions(old.get("conditions"), [refusal], generation, now)
        new = {**old, "observedGeneration": generation, "conditions": conditions}
    if new == status:
        return ReconcilePlan()
    return ReconcilePlan(status=new, events=(Event(type=WARNING, reason=n.REASON_REFUSED, message=message),))
