"""The input of a reconcile's steps: the job, its status, its queue and its objects; the spec of its attempt. Pure.

The schema of the CRD has checked each status that the API server returns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

from launcher.manifests import stamp
from launcher.observe import Observation
from trainyard.operator import names as n
from trainyard.operator.api.fields import JsonObject, parse_time
from trainyard.operator.api.job import C10D, JobSpec, Meta, parse_metadata, read_job
from trainyard.operator.api.queue import MAX_RESTARTS, NEVER
from trainyard.operator.api.resolve import Settings, resolve
from trainyard.operator.api.status import JOB_STATUS, fit_status
from trainyard.operator.command import Rendezvous, check_command
from trainyard.operator.observe import AttemptJob, Children, ClusterState, Worker, observe
from trainyard.operator.plan import NORMAL, WARNING, Deletion, Event, ReconcilePlan
from trainyard.operator.resources import Size, StoragePlan

MAX_MESSAGE: Final = 4096
_CONDITION_ORDER: Final = (*n.JOB_CONDITIONS, *n.QUEUE_CONDITIONS)
# Reasons of a job that makes progress. Events with other reasons are warnings.
_NORMAL_REASONS: Final = (
    n.REASON_WAITING_FOR_WORKSPACE, n.REASON_WAITING_FOR_NODES, n.REASON_HOLDING_FOR_MORE, n.REASON_STOPPING,
    n.REASON_STARTING, n.REASON_RUNNING, n.REASON_SUSPENDED, n.REASON_SUCCEEDED,
)  # fmt: skip


@dataclass(frozen=True)
class Condition:
    """A condition of Kubernetes. `status` is True, False, or None for Unknown."""

    type: str
    status: bool | None
    reason: str
    message: str = ""


def conditions_by_type(conditions: Iterable[JsonObject] | None) -> dict[str, JsonObject]:
    return {each["type"]: each for each in conditions or ()}


def merge_conditions(
    old: Iterable[JsonObject] | None, conditions: Sequence[Condition], generation: int, now: float
) -> list[JsonObject]:
    """Replace old conditions by new ones of the same type, in the order of the kind's types.

    A different order alone is not a change. Conditions of other writers come last.
    """
    before = conditions_by_type(old)
    result = dict(before)
    for each in conditions:
        status = {True: "True", False: "False", None: "Unknown"}[each.status]
        last = before.get(each.type, {})
        result[each.type] = {
            "type": each.type,
            "status": status,
            "observedGeneration": generation,
            "lastTransitionTime": last["lastTransitionTime"] if last.get("status") == status else stamp(now),
            "reason": each.reason,
            "message": each.message[:MAX_MESSAGE],
        }
    if result == before:
        return list(before.values())
    order = {each: place for place, each in enumerate(_CONDITION_ORDER)}
    return sorted(result.values(), key=lambda each: order.get(each["type"], len(order)))


def valid_conditions(
    settings: Settings, accepted: str = "", *, missing_scheduler: str = ""
) -> tuple[Condition, ...]:
    """Return the conditions of a job with a valid spec and a valid queue, with the messages of two of them."""
    backend, installed = settings.substituted, not missing_scheduler
    rendezvous = f"{backend} needs distributed.rdzvEndpoint. The workers meet by c10d." if backend else ""
    scheduler = "Installed" if installed else n.REASON_SCHEDULER_NOT_INSTALLED
    return (
        Condition(n.ACCEPTED, True, "Valid", accepted),
        Condition(n.QUEUE_FOUND, True, "Found"),
        Condition(
            n.RENDEZVOUS_SUBSTITUTED, bool(backend), "NoEndpoint" if backend else "AsRequested", rendezvous
        ),
        Condition(n.SCHEDULER_NOT_INSTALLED, not installed, scheduler, missing_scheduler),
    )


@dataclass(frozen=True, kw_only=True)
class CapacityStatus:
    """The wait for nodes of a pool. Times are in seconds since the epoch."""

    since: float  # the start of this try
    tries: int = 1  # the number of tries, including this one
    quorum_since: float | None = None  # the time since when the job's minimum of nodes is available
    retry: float | None = None  # the start of the next try after a failed one

    def to_status(self) -> JsonObject:
        """Return `capacity` of the status."""
        moments = {"since": self.since, "enoughSince": self.quorum_since, "retryTime": self.retry}
        return {"tries": self.tries, **{key: stamp(at) for key, at in moments.items() if at is not None}}


@dataclass(frozen=True, kw_only=True)
class JobCost:
    """The cost of a job so far."""

    status: JsonObject  # `cost` of the status; {} for none yet
    summary: str  # for a message; "" for none yet
    is_due: bool  # whether the status is written if nothing else has changed
    requeue_after: float  # the seconds until it is due again


@dataclass(frozen=True, kw_only=True)
class JobStatus:
    """The status of a job. Times are in seconds since the epoch. `raw` is the status as it was read."""

    phase: str
    attempt: int
    restarts: int
    started: float | None
    completed: float | None
    raw: JsonObject
    capacity: CapacityStatus | None = None

    @property
    def final(self) -> bool:
        return self.phase in n.FINAL_PHASES

    @property
    def running(self) -> bool:
        return self.phase in n.STARTED_PHASES

    @cached_property
    def conditions(self) -> dict[str, JsonObject]:
        return conditions_by_type(self.raw.get("conditions"))


def read_status(status: JsonObject | None) -> JobStatus:
    """Return the status of a job, None before its first reconcile."""
    raw = status or {}
    capacity = raw.get("capacity") or {}
    wait, since = None, parse_time(capacity.get("since"))
    if since is not None:
        wait = CapacityStatus(
            since=since,
            tries=max(1, capacity.get("tries", 1)),
            quorum_since=parse_time(capacity.get("enoughSince")),
            retry=parse_time(capacity.get("retryTime")),
        )
    return JobStatus(
        phase=raw.get("phase", ""),
        attempt=raw.get("attempt", 0),
        restarts=raw.get("restarts", 0),
        started=parse_time(raw.get("startTime")),
        completed=parse_time(raw.get("completionTime")),
        raw=raw,
        capacity=wait,
    )


def build_status(
    before: JobStatus,
    generation: int,
    now: float,
    phase: str,
    reason: str,
    message: str,
    conditions: Sequence[Condition],
    **fields: Any,
) -> JsonObject:
    """Return the status with these values. None removes a field. Other fields stay."""
    if unknown := fields.keys() - JOB_STATUS.fields.keys():
        raise TypeError(f"the status of a job has no field {', '.join(sorted(unknown))}")
    status: JsonObject = {
        **before.raw,
        "observedGeneration": generation,
        "phase": phase,
        "reason": reason,
        "message": message[:MAX_MESSAGE],
        "conditions": merge_conditions(before.raw.get("conditions"), conditions, generation, now),
        "attempt": before.attempt,
        "restarts": before.restarts,
        **fields,
    }
    return {key: value for key, value in status.items() if value is not None}


@dataclass(frozen=True)
class PendingReason:
    """Why a job is Pending. Only a wait for nodes has `capacity`, deletions and creations."""

    reason: str
    message: str
    conditions: tuple[Condition, ...] = ()
    requeue_after: float | None = None
    capacity: CapacityStatus | None = None  # the state for the status, None for none
    deletions: tuple[Deletion, ...] = ()
    creations: tuple[JsonObject, ...] = ()


@dataclass(frozen=True)
class Rejection:
    """Why a job that has had no workers fails: it can't run in its queue."""

    message: str


@dataclass(frozen=True, kw_only=True)
class ReconcileContext:
    """The input of a reconcile."""

    job: JsonObject  # the TorchrunJob as it was read
    meta: Meta
    spec: JobSpec  # its spec; with `problems`, the readable part of it
    status: JobStatus
    children: Children  # its Jobs, pods and other objects
    queue: JsonObject | None  # the TorchrunQueue as it was read; None if it does not exist
    cluster: ClusterState  # the state of the cluster beside the job's objects
    now: float  # the time in seconds since the epoch
    progress: JsonObject | None = None  # the new progress from the first worker; None for nothing new
    cost: JobCost | None = None  # None if it is unchanged
    # The Karpenter pool that `nodes.pool_to_count` names; None if it was not read.
    pool: Observation | None = None
    refused: str = ""  # why the API server just rejected a placeholder; "" if it did not
    # The addresses of other jobs' sync pods that may have the archive of this job's workspace.
    nearby: tuple[str, ...] = ()
    problems: str = ""  # What is wrong with the spec or the command; "" if they are valid
    is_spec_readable: bool = True  # whether the whole spec could be read
    # The queue's settings with the job's overrides, or None and what is wrong with them.
    resolved: tuple[Settings | None, tuple[str, ...]] = (None, ())

    def with_queue(self, queue: JsonObject | None) -> ReconcileContext:
        """Return the context with this version of the queue."""
        spec = None if queue is None else queue.get("spec") or {}
        if spec is None:
            return replace(self, queue=None, resolved=(None, ()))
        if self.queue is not None and (self.queue.get("spec") or {}) == spec:
            return replace(self, queue=queue)
        return replace(self, queue=queue, resolved=resolve(spec, self.spec))

    @property
    def settings(self) -> Settings | None:
        """Return the queue's settings with the job's overrides; None without a valid queue."""
        return self.resolved[0]

    @cached_property
    def jobs(self) -> tuple[AttemptJob, ...]:
        """Return the Jobs of the attempt that the status names."""
        return self.children.of(self.status.attempt)

    @cached_property
    def workers(self) -> tuple[Worker, ...]:
        """Return the workers of the attempt that the status names."""
        return tuple(worker for worker in self.children.workers if worker.attempt == self.status.attempt)

    @property
    def workspace_digest(self) -> str:
        """Return the digest of the workspace in the spec, "" for none."""
        return self.spec.workspace.digest if self.spec.workspace is not None else ""

    @property
    def max_restarts(self) -> int:
        """Return the limit of restarts. Without a valid queue, it is the job's own limit, or the highest one.

        The next attempt waits for the queue anyway.
        """
        if self.settings is not None:
            return self.settings.max_restarts
        if self.spec.restart_policy == NEVER:
            return 0
        return MAX_RESTARTS if self.spec.max_restarts is None else self.spec.max_restarts

    @cached_property
    def started(self) -> float | None:
        """Return the start time of the first worker, from the status or from its Job and pod."""
        starts = [self.status.started]
        if self.status.started is None:
            starts += [job.started for job in self.children.jobs]
            starts += [worker.created for worker in self.children.workers]
        return earliest(*starts)

    @property
    def has_started(self) -> bool:
        """Return whether workers started, or may have started. Then an invalid spec does not end the job."""
        return self.started is not None or self.status.running

    @property
    def deadline_seconds(self) -> int | None:
        """Return activeDeadlineSeconds; None for no deadline."""
        return self.spec.active_deadline_seconds if self.settings is None else self.settings.deadline

    @property
    def deadline(self) -> float | None:
        """Return the time of the deadline; None before the first start, or without a deadline."""
        seconds = self.deadline_seconds
        return None if seconds is None or self.started is None else self.started + seconds

    @property
    def is_past_deadline(self) -> bool:
        return self.deadline is not None and self.now >= self.deadline

    def count_workers(self) -> JsonObject:
        """Return `workers` of the status: the number of pods of the attempt by state."""
        return {
            "active": sum(not worker.finished for worker in self.workers),
            "ready": sum(worker.ready and not worker.finished for worker in self.workers),
            "succeeded": sum(worker.phase == "Succeeded" for worker in self.workers),
            "failed": sum(worker.phase == "Failed" for worker in self.workers),
        }

    def write(
        self,
        phase: str,
        reason: str,
        message: str = "",
        *,
        conditions: Sequence[Condition] = (),
        requeue_after: float | None = None,
        **fields: Any,
    ) -> ReconcilePlan:
        """Return the plan that writes this status if it changes, and an Event for a new phase or reason."""
        fields = {"selector": f"{n.LABEL_JOB}={self.meta.name},{n.LABEL_ATTEMPT}", **fields}
        if self.started is not None and self.status.started is None:
            fields["startTime"] = stamp(self.started)
        generation, old = self.meta.generation, self.status.raw
        status = build_status(self.status, generation, self.now, phase, reason, message, conditions, **fields)
        # A status that only differs in invalid values is not written.
        cost = self.cost
        if cost is not None and cost.status and (cost.is_due or fit_status(n.JOB_KIND, status) != old):
            status["cost"] = cost.status
        if status == old:
            return ReconcilePlan(requeue_after=requeue_after)
        well = phase != n.PHASE_FAILED and reason in _NORMAL_REASONS
        message = message or f"the job is {phase}"
        if phase in n.FINAL_PHASES and cost is not None and cost.summary:
            message = f"{message}; {cost.summary}"
        event = Event(type=NORMAL if well else WARNING, reason=reason, message=message)
        before = old.get("phase"), old.get("reason"), old.get("attempt", 0)
        events = (event,) if before != (phase, reason, status["attempt"]) else ()
        return ReconcilePlan(status=status, events=events, requeue_after=requeue_after)

    def end(
        self, phase: str, reason: str, message: str, exit_code: int | None = None, **fields: Any
    ) -> ReconcilePlan:
        """Return the plan that finishes the job."""
        well, finished = phase == n.PHASE_SUCCEEDED, "The job is finished."
        conditions = [
            Condition(n.COMPLETE, well, reason, message),
            Condition(n.FAILED, not well, reason, message),
            Condition(n.WORKERS_READY, False, reason, finished),
        ]
        if n.SUSPENDED in self.status.conditions:
            conditions.append(Condition(n.SUSPENDED, False, reason, finished))
        if reason == n.REASON_INVALID_SPEC:
            conditions.append(Condition(n.ACCEPTED, False, reason, message))
        return self.write(
            phase,
            reason,
            message,
            conditions=conditions,
            requeue_after=0.0,
            capacity=None,
            completionTime=stamp(self.now),
            exitCode=exit_code,
            # The remaining workers are stopped now, and they are not counted again.
            workers={**self.count_workers(), "active": 0, "ready": 0},
            **fields,
        )


def build_context(
    job: JsonObject,
    queue: JsonObject | None,
    objects: Iterable[JsonObject],
    cluster: ClusterState,
    now: float,
    progress: JsonObject | None = None,
    **inputs: Any,
) -> ReconcileContext:
    """Return the context of a reconcile, from objects as the API server returns them.

    The arguments are attributes of the context. `objects` are those with the job's label or the name of a child.
    """
    meta, status = parse_metadata(job), read_status(job.get("status"))
    spec, problems = read_job(job.get("spec"))
    wrong_command = "" if problems else check_command(spec.command, spec.args, spec.launcher)
    ctx = ReconcileContext(
        job=job,
        meta=meta,
        spec=spec,
        status=status,
        children=observe(meta, objects, status.attempt),
        queue=None,
        cluster=cluster,
        now=now,
        progress=progress,
        problems=wrong_command or "; ".join(problems),
        is_spec_readable=not problems,
        **inputs,
    )
    return ctx.with_queue(queue)


def earliest(*seconds: float | None) -> float | None:
    return min((each for each in seconds if each is not None), default=None)


@dataclass(frozen=True, kw_only=True)
class AttemptSpec:
    """The input for the objects of an attempt."""

    name: str
    namespace: str
    uid: str
    spec: JobSpec
    settings: Settings
    size: Size
    storage: StoragePlan
    cluster: ClusterState
    number: int  # the number of the attempt, from 0
    has_started: bool = False  # whether the job had workers before
    nearby: tuple[str, ...] = ()  # As in the context

    @property
    def labels(self) -> dict[str, str]:
        return {n.LABEL_JOB: self.name, n.LABEL_MANAGED_BY: n.MANAGED_BY}

    @property
    def attempt_labels(self) -> dict[str, str]:
        return {**self.labels, n.LABEL_ATTEMPT: str(self.number)}

    @property
    def logs(self) -> str:
        """Return the URL of the job's archived logs, "" without a bucket."""
        bucket = self.settings.queue.bucket
        return n.logs_prefix(bucket, self.namespace, self.uid) if bucket else ""

    @property
    def rendezvous(self) -> Rendezvous:
        """Return where the workers meet. A single worker needs no DNS name and no fixed port."""
        first = f"{n.attempt_name(self.name, self.number)}-0.{self.name}.{self.namespace}.svc"
        alone = self.size.nodes == 1 and self.settings.rendezvous == C10D
        place = "localhost:0" if alone else f"{first}:{self.settings.port}"
        return Rendezvous(
            backend=self.settings.rendezvous,
            endpoint=self.spec.distributed.rdzv_endpoint or place,
            id=f"{self.uid}-{self.number}",
            size=self.size,
            is_external=bool(self.spec.distributed.rdzv_endpoint),
        )
