"""The input of a reconcile's steps: the job, its queue and its objects, and the spec of its attempt. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from launcher.manifests import stamp
from launcher.observe import Observation
from trainyard.operator import names as n
from trainyard.operator.api.fields import JsonObject, parse_time
from trainyard.operator.api.job import C10D, JobSpec, Meta, check_name, parse_metadata, read_job
from trainyard.operator.api.queue import MAX_RESTARTS, NEVER, parse_queue
from trainyard.operator.api.resolve import Settings, own_template, resolve
from trainyard.operator.command import Rendezvous, check_command, detect_launcher
from trainyard.operator.launcher_detection import find_conflict
from trainyard.operator.names import logs_prefix
from trainyard.operator.observe import Children, Cluster, observe
from trainyard.operator.plan import NORMAL, POLL_SECONDS, SCHEDULER_SECONDS, WARNING, Event, ReconcilePlan
from trainyard.operator.resources import InvalidJob, Size, Storage, VolumeMissing, distribute, plan_storage
from trainyard.operator.status import (
    Condition,
    JobStatus,
    build_status,
    conditions_by_type,
    read_status,
    template_rejection,
)


@dataclass(frozen=True, kw_only=True)
class Wait:
    """The attempt can't start yet. `requeue_after` as in a ReconcilePlan."""

    reason: str
    message: str
    conditions: tuple[Condition, ...] = ()
    requeue_after: float | None = None


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """The job's spec can't be met."""

    message: str


@dataclass(frozen=True, kw_only=True)
class ReconcileContext:
    """The input of a reconcile.

    Attributes:
        job: The TorchrunJob as it was read.
        spec: Its spec; with `problems`, the readable part of it.
        queue: The raw spec of the job's queue, None without a queue.
        queue_leaves: Whether the queue is being deleted.
        queue_status: The raw status of the queue.
        now: The time in seconds since the epoch.
        progress: What the first worker reports; None for nothing new.
        pool: The Karpenter pool of the queue, if it was read.
        refused: Why the API server just rejected a placeholder.
        problems: What is wrong with the spec.
        template_refused: Why the API server rejects a pod of the queue in a dry run, "" if it does not.
        nearby: As in AttemptSpec.
    """

    job: JsonObject
    meta: Meta
    spec: JobSpec
    status: JobStatus
    children: Children
    queue: Any
    cluster: Cluster
    now: float
    progress: JsonObject | None = None
    pool: Observation | None = None
    refused: str = ""
    queue_leaves: bool = False
    problems: str = ""
    is_spec_readable: bool = True
    template_refused: str = ""
    nearby: tuple[str, ...] = ()
    queue_status: Any = None

    @cached_property
    def settings(self) -> Settings | None:
        """Return the queue's settings with the job's overrides; None without a valid queue."""
        return resolve(self.queue, self.spec)[0] if self.queue is not None else None

    @property
    def max_restarts(self) -> int:
        """Return the limit of restarts. Without a valid queue, it is the job's own limit, or the highest one.

        The next attempt waits for the queue anyway.
        """
        settings = self.settings
        if settings is not None:
            return settings.max_restarts
        if self.spec.restart_policy == NEVER:
            return 0
        return MAX_RESTARTS if self.spec.max_restarts is None else self.spec.max_restarts

    @cached_property
    def started(self) -> float | None:
        """Return the start time of the first worker, from the status or from its Job and pod."""
        if self.status.started is not None:
            return self.status.started
        starts = [parse_time((each.item.get("status") or {}).get("startTime")) for each in self.children.jobs]
        starts += [each.created for each in self.children.workers]
        return min((each for each in starts if each is not None), default=None)

    @property
    def has_started(self) -> bool:
        """Return whether workers started, or may have started. Then an invalid spec does not end the job."""
        return self.started is not None or self.status.running

    @property
    def deadline(self) -> float | None:
        """Return the end of activeDeadlineSeconds; None before the first start, or without a deadline."""
        settings = self.settings
        seconds = settings.deadline if settings is not None else self.spec.active_deadline_seconds
        return None if seconds is None or self.started is None else self.started + seconds

    @property
    def is_past_deadline(self) -> bool:
        """Whether the job has run longer than its deadline."""
        deadline = self.deadline
        return deadline is not None and self.now >= deadline

    def workers(self) -> JsonObject:
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
        first = (
            {}
            if self.started is None or self.status.started is not None
            else {"startTime": stamp(self.started)}
        )
        status = build_status(
            self.status,
            generation=self.meta.generation,
            now=self.now,
            phase=phase,
            reason=reason,
            message=message,
            conditions=conditions,
            **{"selector": f"{n.LABEL_JOB}={self.meta.name},{n.LABEL_ATTEMPT}", **first, **fields},
        )
        raw = self.status.raw
        if status == raw:
            return ReconcilePlan(requeue_after=requeue_after)
        news = (phase, reason, status["attempt"]) != (
            raw.get("phase"),
            raw.get("reason"),
            raw.get("attempt", 0),
        )
        bad = phase in (n.PHASE_FAILED, n.PHASE_RESTARTING) or reason in _WARNING_REASONS
        event = Event(
            type=WARNING if bad else NORMAL, reason=reason, message=message or f"the job is {phase}"
        )
        return ReconcilePlan(status=status, events=(event,) if news else (), requeue_after=requeue_after)

    def end(
        self, phase: str, reason: str, message: str, exit_code: int | None, **fields: Any
    ) -> ReconcilePlan:
        """Return the plan that finishes the job."""
        well = phase == n.PHASE_SUCCEEDED
        conditions = (
            Condition(type=n.COMPLETE, status=well, reason=reason, message=message),
            Condition(type=n.FAILED, status=not well, reason=reason, message=message),
            Condition(type=n.WORKERS_READY, status=False, reason=reason, message="the job is over"),
            *(
                [Condition(type=n.SUSPENDED, status=False, reason=reason, message="the job is over")]
                if n.SUSPENDED in conditions_by_type(self.status.raw.get("conditions"))
                else []
            ),
            *(
                [Condition(type=n.ACCEPTED, status=False, reason=reason, message=message)]
                if reason == n.REASON_INVALID_SPEC
                else []
            ),
        )
        return self.write(
            phase,
            reason,
            message,
            conditions=conditions,
            requeue_after=0.0,
            capacity=None,
            completionTime=stamp(self.now),
            exitCode=exit_code,
            # The remaining workers are stopped now, without another count.
            workers={**self.workers(), "active": 0, "ready": 0},
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
        queue: The TorchrunQueue that it names.
        objects: All objects with the job's label, or with the name of a child.
        cluster: What was read of the cluster.
        now: The time in seconds since the epoch.
        progress: What the first worker reports; None for nothing new.
        pool: The Karpenter pool that `nodes.pool_to_count` names.
        refused: Why the API server rejected a placeholder of the last plan.
        nearby: The addresses of other jobs' sync pods that may have the archive of the workspace.
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
        queue=None if queue is None else queue.get("spec") or {},
        queue_leaves=queue is not None and "deletionTimestamp" in queue["metadata"],
        cluster=cluster,
        now=now,
        progress=progress,
        pool=pool,
        refused=refused,
        problems="; ".join((*problems, *spec_problems)),
        is_spec_readable=not spec_problems,
        template_refused=template_rejection(queue),
        nearby=nearby,
        queue_status=None if queue is None else queue.get("status"),
    )


_WARNING_REASONS = (
    n.REASON_QUEUE_NOT_FOUND,
    n.REASON_QUEUE_INVALID,
    n.REASON_SCHEDULER_NOT_INSTALLED,
    n.REASON_CLAIM_NOT_FOUND,
    n.REASON_STORAGE_CLASS_NOT_FOUND,
    n.REASON_NAME_TAKEN,
    n.REASON_KAI_QUEUE_NOT_FOUND,
    n.REASON_KAI_QUEUE_LIMIT,
    n.REASON_INVALID_SPEC,
    n.REASON_INSUFFICIENT_CAPACITY,
    n.REASON_CAPACITY_IMPOSSIBLE,
    n.REASON_POOL_NOT_FOUND,
    n.REASON_PRIORITY_CLASS_NOT_FOUND,
    n.REASON_PLACEHOLDER_REFUSED,
    n.REASON_POLICY_MISSING,
)


def unknown_capacity(noted: JobStatus, reason: str) -> tuple[Condition, ...]:
    """Return the condition CapacityAvailable as unknown, if the job has had it."""
    known = n.CAPACITY_AVAILABLE in conditions_by_type(noted.raw.get("conditions"))
    return (Condition(type=n.CAPACITY_AVAILABLE, status=None, reason=reason),) if known else ()


# A queue that is being deleted stays for its running jobs, and starts none.
_NOT_STARTED = ("", n.PHASE_PENDING, n.PHASE_SUSPENDED)
QUEUE_FOUND_CONDITION = Condition(type=n.QUEUE_FOUND, status=True, reason="Found")


def rejected_conditions(refusal: Refusal) -> tuple[Condition, ...]:
    """Return the conditions of a job whose spec can't be met."""
    return Condition(
        type=n.ACCEPTED, status=False, reason=n.REASON_INVALID_SPEC, message=refusal.message
    ), QUEUE_FOUND_CONDITION


def unretained_claims(ctx: ReconcileContext, attempt: AttemptSpec) -> str:
    """Return a message about claims without `retain` at their creation, and how to keep them; "" for none.

    The garbage collector deletes them with the job. The controller has no permission to change claims.
    """
    names = [
        each.name
        for each in attempt.storage.claims
        if each.retain
        and (live := ctx.children.objects.get(("PersistentVolumeClaim", each.name))) is not None
        and live["metadata"].get("ownerReferences")
    ]
    if not names:
        return ""
    patch = '[{"op": "remove", "path": "/metadata/ownerReferences"}]'
    return (
        "is deleted with the job, because it was created before its queue retained it: "
        f"{', '.join(names)}. To keep it: "
        f"kubectl patch pvc -n {attempt.namespace} {' '.join(names)} --type json -p '{patch}'"
    )


def acceptance_message(ctx: ReconcileContext, attempt: AttemptSpec) -> str:
    """Return the message of the condition Accepted for a valid job: decisions that the user may not expect."""
    spec = attempt.spec
    found = None if spec.launcher else detect_launcher(spec.command, spec.args)
    unknown = (
        f"the command runs once on each node, without torchrun: {found.unknown} is not known to be a plain program; "
        "launcher: torchrun starts it once for each GPU"
        if found is not None and found.unknown
        else ""
    )
    return "; ".join(filter(None, (unknown, unretained_claims(ctx, attempt))))


def valid_conditions(settings: Settings, said: str = "") -> tuple[Condition, ...]:
    """Return the conditions of a job whose attempt can be created."""
    substituted = settings.substituted
    message = f"{substituted} needs distributed.rdzvEndpoint; the workers meet by c10d" if substituted else ""
    return (
        Condition(type=n.ACCEPTED, status=True, reason="Valid", message=said),
        QUEUE_FOUND_CONDITION,
        Condition(
            type=n.RENDEZVOUS_SUBSTITUTED,
            status=bool(substituted),
            reason="NoEndpoint" if substituted else "AsAsked",
            message=message,
        ),
        Condition(type=n.SCHEDULER_NOT_INSTALLED, status=False, reason="Installed"),
    )


def _queue_message(noted: JobStatus) -> str:
    """Return what a job without a queue does."""
    if noted.running:
        return "the workers go on; what needs the queue, such as a restart, waits until it is there"
    began = noted.phase not in _NOT_STARTED
    return "the workers restart when it is there" if began else "the job begins when it is there"


def _policy_wait(ctx: ReconcileContext) -> Wait | None:
    """Wait if no admission policy has checked the job's restricted fields.

    Only the API server knows the author of the job and their permissions.
    """
    since = ctx.cluster.policy_since
    if not ctx.spec.restricted_fields or (since is not None and ctx.meta.created >= since):
        return None
    lacks = "is not installed" if since is None else "was installed after the creation of the job"
    message = (
        f"spec: {', '.join(ctx.spec.restricted_fields)} requires permissions that ValidatingAdmissionPolicy "
        f"{n.JOB_POLICY} checks, but the policy {lacks}. Apply config/admission.yaml, then create the job again."
    )
    return Wait(reason=n.REASON_POLICY_MISSING, message=message, requeue_after=SCHEDULER_SECONDS)


def prepare_attempt(ctx: ReconcileContext, attempt: int, nodes: Any = None) -> AttemptSpec | Wait | Refusal:
    """Return the spec of an attempt, or why it can't be created.

    Args:
        ctx: The context.
        attempt: The number of the attempt.
        nodes: The number of nodes of an elastic job.
    """
    spec, meta = ctx.spec, ctx.meta
    if ctx.problems:
        return Refusal(message=ctx.problems)
    if not ctx.has_started and (unchecked := _policy_wait(ctx)):
        return unchecked
    if ctx.queue is None or (ctx.queue_leaves and ctx.status.phase in _NOT_STARTED):
        lacks = f"is not in namespace {meta.namespace}" if ctx.queue is None else "is being deleted"
        message = f"TorchrunQueue {spec.job_queue} {lacks}; {_queue_message(ctx.status)}"
        missing = Condition(
            type=n.QUEUE_FOUND, status=False, reason=n.REASON_QUEUE_NOT_FOUND, message=message
        )
        return Wait(reason=n.REASON_QUEUE_NOT_FOUND, message=message, conditions=(missing,))
    settings = ctx.settings
    if settings is None:
        _, problems = resolve(ctx.queue, spec)
        _, own = parse_queue(ctx.queue)
        if own:
            message = f"TorchrunQueue {spec.job_queue}: {'; '.join(own)}"
            return Wait(reason=n.REASON_QUEUE_INVALID, message=message, conditions=(QUEUE_FOUND_CONDITION,))
        return Refusal(message="; ".join(problems))
    # A job that started under an earlier version of the program continues.
    if not ctx.has_started and (own := own_template(ctx.queue, spec, settings.queue)):
        return Refusal(message="; ".join(own))
    if settings.gang and not ctx.cluster.kai:
        message = f"scheduling.scheduler is {n.KAI_SCHEDULER}, whose API is not installed; the job begins when it is"
        absent = Condition(
            type=n.SCHEDULER_NOT_INSTALLED,
            status=True,
            reason=n.REASON_SCHEDULER_NOT_INSTALLED,
            message=message,
        )
        return Wait(
            reason=n.REASON_SCHEDULER_NOT_INSTALLED,
            message=message,
            conditions=(*valid_conditions(settings)[:3], absent),
            requeue_after=SCHEDULER_SECONDS,
        )
    try:
        size = distribute(spec, settings.queue)
        # A job that has started keeps its size.
        resized = any(each.size != spec.size_key for each in ctx.children.of(ctx.status.attempt))
        if (resized or not ctx.has_started) and (wrong := _find_launcher_conflict(spec, size, settings)):
            return Refusal(message=wrong)
        if isinstance(nodes, int) and size.least <= nodes < size.nodes:
            size = replace(size, nodes=nodes)
        storage = plan_storage(meta.name, spec, settings, size, ctx.cluster, ctx.children.claims)
    except InvalidJob as refusal:
        return Refusal(message=str(refusal))
    except VolumeMissing as missing:
        return Wait(
            reason=missing.reason,
            message=str(missing),
            conditions=valid_conditions(settings),
            requeue_after=POLL_SECONDS,
        )
    return AttemptSpec(
        name=meta.name,
        namespace=meta.namespace,
        uid=meta.uid,
        spec=spec,
        settings=settings,
        size=size,
        storage=storage,
        cluster=ctx.cluster,
        number=attempt,
        has_started=ctx.has_started,
        nearby=ctx.nearby,
    )


def _find_launcher_conflict(spec: JobSpec, size: Size, settings: Settings) -> str:
    """Return how the command contradicts the job's size. The controller can't read scripts in the workspace."""
    found = detect_launcher(spec.command, spec.args, variables=spec.literal_variables)
    return ": ".join(filter(None, find_conflict(spec, found, size, settings.rendezvous)))


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
        """Whether the workspace comes through a pod of the job."""
        return self.spec.workspace is not None and not self.spec.workspace.url

    @property
    def logs(self) -> str:
        """Return the URL of the job's archived logs, "" without a bucket."""
        bucket = self.settings.queue.bucket
        return logs_prefix(bucket, self.namespace, self.uid) if bucket else ""

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
            nodes=self.size.nodes,
            least=self.size.least,
            processes=self.size.processes,
            given=bool(self.spec.distributed.rdzv_endpoint),
        )
