"""The input of a reconcile's steps: the job, its queue and its objects, and the spec of its attempt. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from launcher.manifests import stamp
from launcher.observe import Observation
from trainyard.operator import names as n
from trainyard.operator.api.fields import JsonObject
from trainyard.operator.api.job import C10D, JobSpec, Meta, check_name, parse_metadata, read_job
from trainyard.operator.api.queue import MAX_RESTARTS, NEVER
from trainyard.operator.api.resolve import Settings, resolve
from trainyard.operator.command import Rendezvous, check_command
from trainyard.operator.observe import Children, Cluster, observe
from trainyard.operator.plan import NORMAL, WARNING, Event, ReconcilePlan
from trainyard.operator.resources import Size, Storage
from trainyard.operator.status import Condition, JobStatus, build_status, read_status

# Reasons of a job that makes progress. Events with other reasons are warnings.
_NORMAL_REASONS = (
    n.REASON_WAITING_FOR_WORKSPACE,
    n.REASON_WAITING_FOR_NODES,
    n.REASON_HOLDING_FOR_MORE,
    n.REASON_STOPPING,
    n.REASON_STARTING,
    n.REASON_RUNNING,
    n.REASON_SUSPENDED,
    n.REASON_SUCCEEDED,
)


@dataclass(frozen=True, kw_only=True)
class Wait:
    """Why an attempt can't be created. `requeue_after` as in a ReconcilePlan.

    With the reason InvalidSpec, the job can't run in its queue. Then a job that has had no workers fails.
    """

    reason: str
    message: str
    conditions: tuple[Condition, ...] = ()
    requeue_after: float | None = None


@dataclass(frozen=True, kw_only=True)
class ReconcileContext:
    """The input of a reconcile.

    Attributes:
        job: The TorchrunJob as it was read.
        meta: Its metadata.
        spec: Its spec; with `problems`, the readable part of it.
        status: Its status.
        children: Its Jobs, pods and other objects.
        queue: The TorchrunQueue as it was read; None if it does not exist.
        cluster: The state of the cluster beside the job's objects.
        now: The time in seconds since the epoch.
        progress: The new progress from the first worker; None for nothing new.
        pool: The Karpenter pool of the queue, if it was read.
        refused: Why the API server just rejected a placeholder.
        problems: What is wrong with the spec or the command; "" if they are valid.
        is_spec_readable: Whether the whole spec could be read.
        nearby: The addresses of other jobs' sync pods that may have the archive of this job's workspace.
    """

    job: JsonObject
    meta: Meta
    spec: JobSpec
    status: JobStatus
    children: Children
    queue: JsonObject | None
    cluster: Cluster
    now: float
    progress: JsonObject | None = None
    pool: Observation | None = None
    refused: str = ""
    problems: str = ""
    is_spec_readable: bool = True
    nearby: tuple[str, ...] = ()

    @cached_property
    def resolved(self) -> tuple[Settings | None, tuple[str, ...]]:
        """Return the queue's settings with the job's overrides, or None and what is wrong with them."""
        return (None, ()) if self.queue is None else resolve(self.queue.get("spec") or {}, self.spec)

    @property
    def settings(self) -> Settings | None:
        """Return the queue's settings with the job's overrides; None without a valid queue."""
        return self.resolved[0]

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
        if self.status.started is not None:
            return self.status.started
        starts = [
            *(each.started for each in self.children.jobs),
            *(each.created for each in self.children.workers),
        ]
        return min((each for each in starts if each is not None), default=None)

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
        """Return whether the job has run longer than its deadline."""
        return self.deadline is not None and self.now >= self.deadline

    def count_workers(self) -> JsonObject:
        """Return `workers` of the status: the number of pods of the attempt by state."""
        pods = self.children.workers_of(self.status.attempt)
        return {
            "active": sum(not each.finished for each in pods),
            "ready": sum(each.ready and not each.finished for each in pods),
            "succeeded": sum(each.phase == "Succeeded" for each in pods),
            "failed": sum(each.phase == "Failed" for each in pods),
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
        if status == old:
            return ReconcilePlan(requeue_after=requeue_after)
        well = phase not in (n.PHASE_FAILED, n.PHASE_RESTARTING) and reason in _NORMAL_REASONS
        message = message or f"the job is {phase}"
        event = Event(type=NORMAL if well else WARNING, reason=reason, message=message)
        before = old.get("phase"), old.get("reason"), old.get("attempt", 0)
        events = (event,) if before != (phase, reason, status["attempt"]) else ()
        return ReconcilePlan(status=status, events=events, requeue_after=requeue_after)

    def end(
        self, phase: str, reason: str, message: str, exit_code: int | None, **fields: Any
    ) -> ReconcilePlan:
        """Return the plan that finishes the job."""
        well, over = phase == n.PHASE_SUCCEEDED, "the job is over"
        conditions = [
            Condition(n.COMPLETE, well, reason, message),
            Condition(n.FAILED, not well, reason, message),
            Condition(n.WORKERS_READY, False, reason, over),
        ]
        if n.SUSPENDED in self.status.conditions:
            conditions.append(Condition(n.SUSPENDED, False, reason, over))
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
    cluster: Cluster,
    now: float,
    progress: JsonObject | None = None,
    pool: Observation | None = None,
    refused: str = "",
    nearby: tuple[str, ...] = (),
) -> ReconcileContext:
    """Return the context of a reconcile, from objects as the API server returns them.

    Args:
        job: The TorchrunJob.
        queue: The TorchrunQueue that the job names; None if it does not exist.
        objects: All objects with the job's label, or with the name of a child.
        cluster: The state of the cluster beside the job's objects.
        now: The time in seconds since the epoch.
        progress: The new progress from the first worker; None for nothing new.
        pool: The Karpenter pool that `nodes.pool_to_count` names; None if it was not read.
        refused: Why the API server just rejected a placeholder; "" if it did not.
        nearby: The addresses of other jobs' sync pods that may have the archive of this job's workspace.
    """
    problems: list[str] = []
    meta = parse_metadata(job, problems)
    check_name(meta.name, problems)
    spec, spec_problems = read_job(job.get("spec"))
    if not spec_problems and (problem := check_command(spec.command, spec.args, spec.launcher)):
        problems.append(problem)
    status = read_status(job.get("status"))
    return ReconcileContext(
        job=job,
        meta=meta,
        spec=spec,
        status=status,
        children=observe(meta, objects, status.attempt if status.phase == n.PHASE_RESTARTING else 0),
        queue=queue,
        cluster=cluster,
        now=now,
        progress=progress,
        pool=pool,
        refused=refused,
        problems="; ".join((*problems, *spec_problems)),
        is_spec_readable=not spec_problems,
        nearby=nearby,
    )


def earliest(*seconds: float | None) -> float | None:
    """Return the lowest of these seconds; None for none."""
    return min((each for each in seconds if each is not None), default=None)


def valid_conditions(settings: Settings, said: str = "") -> tuple[Condition, ...]:
    """Return the conditions of a job whose attempt can be created."""
    backend = settings.substituted
    message = f"{backend} needs distributed.rdzvEndpoint; the workers meet by c10d" if backend else ""
    return (
        Condition(n.ACCEPTED, True, "Valid", said),
        Condition(n.QUEUE_FOUND, True, "Found"),
        Condition(n.RENDEZVOUS_SUBSTITUTED, bool(backend), "NoEndpoint" if backend else "AsAsked", message),
        Condition(n.SCHEDULER_NOT_INSTALLED, False, "Installed"),
    )


@dataclass(frozen=True, kw_only=True)
class AttemptSpec:
    """The input for the objects of an attempt.

    Attributes:
        number: The number of the attempt, from 0.
        has_started: Whether the job had workers before.
        nearby: The addresses of other jobs' sync pods that may have the archive of this job's workspace.
    """

    name: str
    namespace: str
    uid: str
    spec: JobSpec
    settings: Settings
    size: Size
    storage: Storage
    cluster: Cluster
    number: int
    has_started: bool = False
    nearby: tuple[str, ...] = ()

    @property
    def labels(self) -> dict[str, str]:
        """Return the labels of all objects of the job."""
        return {n.LABEL_JOB: self.name, n.LABEL_MANAGED_BY: n.MANAGED_BY}

    @property
    def attempt_labels(self) -> dict[str, str]:
        """Return the labels of the objects of the attempt."""
        return {**self.labels, n.LABEL_ATTEMPT: str(self.number)}

    @property
    def sync(self) -> bool:
        """Return whether the workers get the workspace from the sync pod."""
        return self.spec.workspace is not None and not self.spec.workspace.url

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
