"""Reconcile TorchrunJobs and TorchrunQueues. `STEPS` lists the steps for a job, and `plan_job` runs them.

Each reconcile reads the present objects, makes a plan, and applies it. Planning is level-based and pure. A crash
between two writes is safe, because the next reconcile reads the earlier writes:

1. the status names the next attempt (`Pending`, or `Restarting` with its restart counted),
2. objects of other attempts are deleted, and the job waits until they are gone,
3. all objects are created, with suspended Jobs, and the status says `Provisioning`,
4. the Jobs are resumed. A Job that the status does not name never runs, and one that it names is never created again.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final
from urllib.parse import quote

from launcher import cost
from trainyard.k8s.client import ApiError
from trainyard.k8s.objects import Objects, collection, path_of
from trainyard.operator import names as n
from trainyard.operator import running
from trainyard.operator.api.fields import JsonObject
from trainyard.operator.attempt import start_attempt
from trainyard.operator.cluster_reader import ClusterReader
from trainyard.operator.context import (
    Condition,
    ReconcileContext,
    build_context,
    build_status,
    earliest,
    merge_conditions,
    read_status,
)
from trainyard.operator.cost import CostMeters
from trainyard.operator.diagnostics import nearby_sync_pods
from trainyard.operator.gang import read_kai_queue
from trainyard.operator.index import IDLE_PHASES, WATCHED, WATCHED_WITHOUT_KAI, ObjectIndex
from trainyard.operator.nodes import CAPACITY_POLL_SECONDS, IMPOSSIBLE_SECONDS, pool_to_count
from trainyard.operator.observe import is_ending, observe
from trainyard.operator.plan import WARNING, Event, ReconcilePlan, apply_plan
from trainyard.operator.progress import Ask, ProgressPoller, find_first_worker, read_progress
from trainyard.operator.queue import QueueContext, build_queue_context, build_trial_pod, reconcile_queue
from trainyard.operator.resources import has_unknown_class

# The kinds of a job's objects; PodGroups only with KAI Scheduler.
_BATCH_JOB, _POD = ("batch/v1", "Job"), ("v1", "Pod")
_OTHERS = (("v1", "Service"), ("v1", "PersistentVolumeClaim"))
_POD_GROUP = (f"{n.KAI_GROUP}/{n.KAI_POD_GROUP_VERSION}", "PodGroup")
_KAI_QUEUE = (f"{n.KAI_GROUP}/{n.KAI_QUEUE_VERSION}", "Queue")
# The API server has read the object and rejects it: it is invalid, forbidden, or refused by admission.
_REJECTED_STATUS = (400, 403, 422)
# Reasons to wait or to fail that may come from an outdated read of the cluster.
_CLUSTER_REASONS = (
    n.REASON_STORAGE_CLASS_NOT_FOUND,
    n.REASON_INVALID_SPEC,
    n.REASON_KAI_QUEUE_NOT_FOUND,
    n.REASON_KAI_QUEUE_LIMIT,
)
# The pause after a conflict with another writer.
CONFLICT_SECONDS = 0.2
# The limit for the reconciles of all jobs that wait for nodes.
READS_PER_SECOND = 5.0

# The steps of a reconcile of a TorchrunJob, in order. The first step that returns a plan decides.
STEPS: Final[tuple[Callable[[ReconcileContext], ReconcilePlan | None], ...]] = (
    running.clean_up_finished,  # a finished job stays finished; time to live
    running.reject_invalid_spec,
    running.finish_succeeded,  # enough workers succeeded
    running.fail_past_deadline,  # activeDeadlineSeconds
    running.suspend,  # spec.suspend
    running.end_attempt,  # a worker failed or is lost; counts the restart
    running.replace_attempt,  # another size or workspace
    running.keep_running,  # reports the workers, resumes suspended Jobs
    start_attempt,  # why the job is Pending; chooses nodes, creates the objects
)


def plan_job(ctx: ReconcileContext) -> ReconcilePlan:
    """Return the plan for a TorchrunJob.

    `reconcile_job` makes up to five plans, each with newer input, and applies one of them:

    1. `_idle_plan`: a job at rest, as the informers know it. The plan counts only if it writes nothing.
    2. `_plan`: the job's objects from the API server. A new job has none. The pool may come from a cache.
    3. `_plan` again if the plan is a `recount`: the pool without the cache.
    4. `_plan` again if it `_may_be_outdated`: the classes and KAI's queues without the cache.
    5. `_plan` again if the API server rejects a placeholder: `ctx.refused` has the reason.
    """
    if ctx.meta.deleting:
        return ReconcilePlan()  # the garbage collector deletes the objects that the job owns
    plan = next(plan for step in STEPS if (plan := step(ctx)) is not None)
    if ctx.status.final:
        return plan
    left = None if ctx.deadline is None else ctx.deadline - ctx.now
    cost_after = None if ctx.cost is None else ctx.cost.requeue_after
    return replace(plan, requeue_after=earliest(plan.requeue_after, left, cost_after))


class Reconciler:
    """Reconcile jobs and queues. Several threads may call it, each for another object.

    The methods `reconcile_job` and `reconcile_queue` may raise ApiError and ApiUnavailable.
    """

    def __init__(
        self,
        objects: Objects,
        cluster_reader: ClusterReader,
        *,
        now: Callable[[], float] = time.time,
        ask: Ask = read_progress,
        index: ObjectIndex | None = None,
        price: cost.Price = cost.unknown,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`index` saves reads. Before it is synced, everything is read from the API server.

        `price` returns the price of a node, and `clock` counts seconds for it.
        """
        self._objects = objects
        self._cluster_reader = cluster_reader
        self._now = now
        self._index = index or ObjectIndex()
        self._progress_poller = ProgressPoller(now, ask)
        self._meters = CostMeters(price, cluster_reader.read_offerings, clock)
        self._waiting: set[str] = set()  # the jobs that wait for nodes
        # For each job, the paths of foreign objects that have a name it needs.
        self._conflicts: dict[str, set[str]] = defaultdict(set)

    def reconcile_job(self, namespace: str, name: str) -> float | None:
        """Reconcile a job. Return the seconds until the next reconcile is due, None for never."""
        path = f"{collection(n.API_VERSION, n.JOB_KIND, namespace)}/{quote(name)}"
        job = self._objects.get(path)
        if job is None:
            self._conflicts.pop(path, None)
            self._progress_poller.forget(path)
            self._meters.forget(path)
            self._waiting.discard(path)
            return None
        with self._report_rejection(job):
            cluster = self._cluster_reader.cluster(namespace, claims=False)
            ctx = build_context(job, None, [], cluster, self._now())
            ctx = ctx.with_queue(self._index.find_queue(namespace, ctx.spec.job_queue))
            idle_plan = self._idle_plan(path, ctx)
            if idle_plan is not None:
                return self._pace(path, idle_plan.requeue_after, waits=False)
            ctx = self._read_cluster(ctx.with_queue(self._read_queue(ctx)))
            pool = pool_to_count(ctx)
            plan = self._plan(path, ctx, pool)
            if _may_be_outdated(ctx, plan):
                ctx = self._read_cluster(ctx, fresh=True)
                plan = self._plan(path, ctx, pool)
            try:
                requeue_after = self._apply(path, job, plan)
            except ApiError as error:
                is_pod = error.method == "POST" and error.path.endswith("/pods")
                if not pool or error.status not in _REJECTED_STATUS or not is_pod:
                    raise
                plan = self._plan(path, replace(ctx, refused=error.message), pool)
                requeue_after = self._apply(path, job, plan)
            return self._pace(path, requeue_after, waits=bool(pool))

    def _idle_plan(self, path: str, ctx: ReconcileContext) -> ReconcilePlan | None:
        """Return the plan of a job without objects if it writes nothing, else None.

        A watch may be late, so plans that write are made from fresh reads. A late event enqueues the job again.
        """
        if ctx.status.phase not in IDLE_PHASES or not self._has_no_known_objects(path, ctx):
            return None
        if not (ctx.status.final or ctx.spec.suspend):
            ctx = self._read_cluster(ctx)
        if pool_to_count(ctx):
            return None
        plan = plan_job(ctx)
        writes = replace(plan, requeue_after=None) != ReconcilePlan()
        return None if writes or _may_be_outdated(ctx, plan) else plan

    def _has_no_known_objects(self, path: str, ctx: ReconcileContext) -> bool:
        """Return whether the watches, which may be late, have seen no object of the job."""
        return (
            self._index.is_synced(WATCHED if ctx.cluster.kai else WATCHED_WITHOUT_KAI)
            and not self._index.has_children(ctx.meta.namespace, ctx.meta.name)
            and not self._conflicts.get(path)
        )

    def _plan(self, path: str, ctx: ReconcileContext, pool: str) -> ReconcilePlan:
        """Read the job's objects and its pool, and return the plan.

        A new job has no objects. If a watch is late, its first creation finds one of the same name, and the next plan
        reads them all.
        """
        namespace = ctx.meta.namespace
        is_new = not ctx.status.phase and self._has_no_known_objects(path, ctx)
        for fresh in (False, True):
            objects = [] if is_new else self._with_conflicts(path, self._read_children(ctx))
            ctx = replace(ctx, children=observe(ctx.meta, objects, ctx.status.attempt))
            seen = self._cluster_reader.pool(pool, namespace, self._now(), fresh=fresh) if pool else None
            worker = find_first_worker(ctx)
            ctx = replace(
                ctx,
                pool=seen,
                nearby=self._nearby_sync_pods(ctx),
                progress=None if worker is None else self._progress_poller.poll(path, worker),
                cost=self._meters.count(path, ctx),
                now=self._now(),
            )
            plan = plan_job(ctx)
            if not plan.recount:
                break
        return plan

    def reconcile_queue(self, namespace: str, name: str) -> float | None:
        """Reconcile a queue. Return the seconds until the next reconcile is due, None for never."""
        path = f"{collection(n.API_VERSION, n.QUEUE_KIND, namespace)}/{quote(name)}"
        queue = self._objects.get(path)
        if queue is None:
            self._conflicts.pop(path, None)
            return None
        with self._report_rejection(queue):
            cluster = self._cluster_reader.cluster(namespace, claims=False)
            kai_queues = self._objects.list(*_KAI_QUEUE, "") if cluster.kai else []
            present = {item["metadata"]["name"]: read_kai_queue(item) for item in kai_queues}
            cluster = replace(cluster, kai_queues=present)
            ctx = build_queue_context(queue, kai_queues, cluster, self._now())
            pool = ctx.spec.scheduling.pool if ctx.spec is not None else ""
            ctx = replace(
                ctx,
                refusal=self._dry_run(ctx),
                phases=self._index.phases_of(namespace, name),
                # An administrator may have put gangs into the queues of KAI that this queue must delete.
                gangs=self._objects.list(*_POD_GROUP, "") if ctx.unused_kai_queues else (),
                pool=self._cluster_reader.pool(pool, namespace, self._now()) if pool else None,
            )
            return self._apply(path, queue, reconcile_queue(ctx))

    def close(self) -> None:
        """Stop the threads that read the progress of jobs."""
        self._progress_poller.close()

    # --- read

    def _read_queue(self, ctx: ReconcileContext) -> JsonObject | None:
        if not ctx.spec.job_queue:
            return None
        queues = collection(n.API_VERSION, n.QUEUE_KIND, ctx.meta.namespace)
        return self._objects.get(f"{queues}/{quote(ctx.spec.job_queue)}")

    def _read_cluster(self, ctx: ReconcileContext, *, fresh: bool = False) -> ReconcileContext:
        # The claims of the namespace matter only for an existing claim.
        volumes = ctx.settings.queue.volumes.values() if ctx.settings is not None else ()
        claims = any(volume.existing_claim for volume in volumes)
        cluster = self._cluster_reader.cluster(ctx.meta.namespace, claims=claims, fresh=fresh)
        if pool_to_count(ctx):
            cluster = replace(cluster, placeholders=self._cluster_reader.has_priority_class())
        return replace(ctx, cluster=cluster)

    def _read_children(self, ctx: ReconcileContext) -> list[JsonObject]:
        def read(version: str, kind: str) -> list[JsonObject]:
            return self._objects.list(version, kind, ctx.meta.namespace, f"{n.LABEL_JOB}={ctx.meta.name}")

        jobs, pods = read(*_BATCH_JOB), read(*_POD)
        if any(map(is_ending, pods)):
            # A succeeded Job deletes its other pods. With Jobs from before the success, these pods would look lost.
            jobs = read(*_BATCH_JOB)
        others = [*_OTHERS, _POD_GROUP] if ctx.cluster.kai else _OTHERS
        return [*jobs, *pods, *(each for kind in others for each in read(*kind))]

    def _with_conflicts(self, path: str, objects: list[JsonObject]) -> list[JsonObject]:
        """Add the foreign objects with a name that the object needs, as found before, if they still exist."""
        present = {path_of(item) for item in objects}
        for other in self._conflicts[path] - present:
            found = self._objects.get(other)
            if found is None:
                self._conflicts[path].discard(other)
            else:
                objects.append(found)
        return objects

    def _nearby_sync_pods(self, ctx: ReconcileContext) -> tuple[str, ...]:
        """Return the addresses from which a new sync pod may get the workspace."""
        pod = ("Pod", n.sync_pod(ctx.meta.name))
        exists = pod in ctx.children.objects or pod in ctx.children.foreign_objects
        if exists or ctx.status.final or not ctx.spec.has_sync_pod:
            return ()
        if self._index.is_synced((n.JOB_KIND,)):
            jobs = self._index.jobs_with_workspace(ctx.meta.namespace, ctx.workspace_digest)
        else:
            jobs = self._objects.list(n.API_VERSION, n.JOB_KIND, ctx.meta.namespace)
        return nearby_sync_pods(ctx, jobs)

    def _dry_run(self, ctx: QueueContext) -> str | None:
        """Return why the API server rejects a pod of the queue, "" if it does not; None for an invalid queue."""
        pod = build_trial_pod(ctx)
        if pod is None:
            return None
        try:
            self._objects.create(pod, dry_run=True)
        except ApiError as error:
            if error.status not in _REJECTED_STATUS:
                raise
            return error.message
        return ""

    # --- write

    def _apply(self, path: str, item: JsonObject, plan: ReconcilePlan) -> float | None:
        # The job was read before its objects, so an old status never replaces a newer one.
        conflict = apply_plan(plan, item, self._objects, now=self._now)
        if not conflict:
            return plan.requeue_after
        if conflict != path:
            self._conflicts[path].add(conflict)
        return CONFLICT_SECONDS

    def _pace(self, path: str, requeue_after: float | None, *, waits: bool) -> float | None:
        """Return the seconds until the next reconcile of this job, more than planned if many jobs wait for nodes.

        All of these jobs together are reconciled `READS_PER_SECOND` times a second, and each at least every
        IMPOSSIBLE_SECONDS. Only the interval of a poll increases: it is above 0 and at most CAPACITY_POLL_SECONDS.
        """
        if not waits or requeue_after is None or not 0 < requeue_after <= CAPACITY_POLL_SECONDS:
            self._waiting.discard(path)
            return requeue_after
        self._waiting.add(path)
        return max(requeue_after, min(len(self._waiting) / READS_PER_SECOND, IMPOSSIBLE_SECONDS))

    @contextmanager
    def _report_rejection(self, item: JsonObject) -> Iterator[None]:
        """Write to the object's status if the API server rejects a request: by a quota, a webhook, or missing RBAC."""
        try:
            yield
        except ApiError as error:
            if error.status in _REJECTED_STATUS:
                plan = reject_request(item, str(error), self._now())
                apply_plan(plan, item, self._objects, now=self._now)
            raise


def _may_be_outdated(ctx: ReconcileContext, plan: ReconcilePlan) -> bool:
    """Return whether the plan depends on a class or queue that may be newer than the cluster that was read."""
    if any(has_unknown_class(manifest, ctx.cluster) for manifest in plan.creations):
        return True
    finished = plan.status is None and ctx.status.final
    return not finished and (plan.status or ctx.status.raw).get("reason") in _CLUSTER_REASONS


def reject_request(item: JsonObject, message: str, now: float) -> ReconcilePlan:
    """Return the plan that reports a rejected request in the status, and in an Event if it is new.

    A finished job keeps its status. Then only the controller's log has the message.
    """
    generation, old = item["metadata"].get("generation", 0), item.get("status") or {}
    if item["kind"] == n.JOB_KIND:
        before = read_status(old)
        if before.final:
            return ReconcilePlan()
        rejection = Condition(n.ACCEPTED, False, n.REASON_REFUSED, message)
        phase = before.phase or n.PHASE_PENDING
        new = build_status(before, generation, now, phase, n.REASON_REFUSED, message, [rejection])
    else:
        rejection = Condition(n.READY, False, n.REASON_REFUSED, message)
        conditions = merge_conditions(old.get("conditions"), [rejection], generation, now)
        new = {**old, "observedGeneration": generation, "conditions": conditions}
    if new == old:
        return ReconcilePlan()
    return ReconcilePlan(status=new, events=(Event(type=WARNING, reason=n.REASON_REFUSED, message=message),))
