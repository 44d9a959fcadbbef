"""Read a job's Jobs, pods and other objects into plain data. Pure. Entry point: `observe`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from launcher.observe import disruption_reason
from launcher.observe import pending_reason as pod_pending_reason
from trainyard.k8s import names
from trainyard.operator import names as n
from trainyard.operator.api.fields import JsonObject, parse_time
from trainyard.operator.api.job import Meta

# Phases of a finished pod.
OVER: Final = ("Succeeded", "Failed")


@dataclass(frozen=True, kw_only=True)
class AttemptJob:
    """A batch/v1 Job of the job. Times are in seconds since the epoch.

    Attributes:
        job_count: The number of Jobs in the attempt.
        pods: The number of pods of this Job.
        required_pods: The number of succeeded pods with which the Job succeeds.
        size: `JobSpec.size_key` when the Job was created.
        workspace: The digest of the workspace when the Job was created.
        started: When it was created or resumed last.
        complete: Whether the Job has succeeded, and its pods are gone or ended.
        succeeded: Whether it has succeeded. It then deletes its other pods, and is complete after that.
        suspended_by: Who wrote `suspend` last, "" for the controller itself.
    """

    item: JsonObject
    name: str
    uid: str
    attempt: int
    job_count: int
    pods: int
    required_pods: int
    size: str
    workspace: str
    started: float | None
    complete: bool
    succeeded: bool
    failed: bool
    suspended: bool
    deleting: bool
    suspended_by: str
    suspended_at: float | None

    @property
    def least(self) -> int | None:
        """Return the minimum number of workers of an elastic job; None for a fixed size."""
        return _number(self.size.partition(":")[0]) if ":" in self.size else None

    @property
    def required_jobs(self) -> int:
        """Return the number of complete Jobs with which the attempt succeeds."""
        return self.job_count if self.least is None else max(1, min(self.job_count, self.least))

    @property
    def references(self) -> frozenset[tuple[str, str]]:
        """Return the claims and the gang that its pods name, by kind and name."""
        template = self.item["spec"]["template"]
        volumes = [each.get("persistentVolumeClaim") for each in template["spec"].get("volumes") or ()]
        gang = (template["metadata"].get("annotations") or {}).get(n.ANNOTATION_POD_GROUP)
        claims = [("PersistentVolumeClaim", each["claimName"]) for each in volumes if each]
        return frozenset([*claims, *([("PodGroup", gang)] if gang else [])])


@dataclass(frozen=True, kw_only=True)
class Worker:
    """A worker's pod. Times are in seconds since the epoch.

    Attributes:
        job: The uid of its Job.
        deleted_gracefully: Whether it ran at its deletion, and has a grace period.
        deletion_time: The time of the deletion request.
        end: How it ended.
        held: The reason in its status why it does not start.
        fetching: Whether it waits for its workspace or fetches it.
        disruption: The reason why something other than its command ended or rejected it.
        running_sidecars: The other containers that have not ended.
        node_rank: The number of its node in the attempt.
        archive: The annotation with the archive of its workspace; None without a workspace.
    """

    name: str
    uid: str
    job: str
    attempt: int
    node: str
    node_rank: int | None
    phase: str
    ready: bool
    created: float | None
    deleting: bool
    deleted_gracefully: bool
    deletion_time: float | None
    end: PodExit
    held: str
    fetching: bool
    disruption: str
    running_sidecars: tuple[str, ...]
    has_metrics: bool
    archive: str | None

    @property
    def failed(self) -> bool:
        """Return whether its own container or its pod failed. A running sidecar keeps the pod in phase Running."""
        return self.phase == "Failed" or (not self.end.before and self.end.code not in (None, 0))

    @property
    def finished(self) -> bool:
        """Return whether its pod has ended."""
        return self.phase in OVER


@dataclass(frozen=True, kw_only=True)
class Children:
    """The objects of a job.

    Attributes:
        restarting: The number of the restarting attempt. Earlier ones were given up.
        orphans: Workers whose Job is gone, or belongs to another job.
        objects: All other objects of the job, by kind and name.
        others: Foreign objects with the job's label or with a name that it needs.
    """

    restarting: int
    jobs: tuple[AttemptJob, ...]
    workers: tuple[Worker, ...]
    orphans: tuple[Worker, ...]
    objects: Mapping[tuple[str, str], JsonObject]
    others: Mapping[tuple[str, str], JsonObject]

    @property
    def placeholders(self) -> tuple[JsonObject, ...]:
        """Return the pods that reserve nodes until workers replace them, including those being deleted."""
        return tuple(
            item
            for (kind, _), item in self.objects.items()
            if kind == "Pod" and _labels(item).get(names.LABEL_ROLE) == names.ROLE_PLACEHOLDER
        )

    @property
    def claims(self) -> Mapping[str, tuple[str, ...]]:
        """Return the access modes of the job's claims, without those being deleted."""
        return {
            name: tuple((item.get("spec") or {}).get("accessModes") or ())
            for (kind, name), item in self.objects.items()
            if kind == "PersistentVolumeClaim" and "deletionTimestamp" not in item["metadata"]
        }

    def of(self, attempt: int) -> tuple[AttemptJob, ...]:
        """Return the Jobs of an attempt."""
        return tuple(each for each in self.jobs if each.attempt == attempt)

    def workers_of(self, attempt: int) -> tuple[Worker, ...]:
        """Return the workers of an attempt."""
        return tuple(each for each in self.workers if each.attempt == attempt)

    def complete(self, attempt: int) -> bool:
        """Return whether as many Jobs of the attempt as required are complete."""
        jobs = self.of(attempt)
        return bool(jobs) and sum(each.complete for each in jobs) >= jobs[0].required_jobs

    @cached_property
    def succeeded_jobs(self) -> frozenset[str]:
        """Return the uids of Jobs with enough succeeded workers, even before the Job controller reports it.

        A worker that is being deleted may end with any code, which does not show whether its command succeeded. The Job
        controller counts it anyway. So the status of a Job with such a worker does not count, nor the status of a Job
        of an attempt that was given up. The status of an elastic Job counts, because the other workers may succeed
        without the lost one.
        """
        kept = [each for each in self.workers if not each.deleting]
        succeeded = Counter(each.job for each in kept if each.phase == "Succeeded")
        failed = {each.job for each in kept if each.phase == "Failed"}
        doubtful = {
            each.job for each in self.workers if each.deleted_gracefully and each.phase == "Succeeded"
        }
        doubtful |= {each.uid for each in self.jobs if each.attempt < self.restarting}
        return frozenset(
            each.uid
            for each in self.jobs
            if (each.succeeded and (each.least is not None or each.uid not in doubtful))
            or (not each.failed and each.uid not in failed and succeeded[each.uid] >= each.required_pods)
        )

    @cached_property
    def succeeded_attempt(self) -> int | None:
        """Return the attempt with enough succeeded workers and no failed one; None if there is none.

        It waits for a running worker that nothing else deletes, because this worker may write the last checkpoint.
        """
        well = Counter(each.attempt for each in self.jobs if each.uid in self.succeeded_jobs)
        unended = {
            each.attempt
            for each in self.workers
            if each.phase in ("Failed", "Running")
            and not each.deleting
            and each.job not in self.succeeded_jobs
        }
        enough = (each.attempt for each in self.jobs if well[each.attempt] >= each.required_jobs)
        return next((each for each in enough if each not in unended), None)


def observe(meta: Meta, items: Iterable[JsonObject], restarting: int) -> Children:
    """Return the objects of a job, from the API server. `restarting` is the attempt that restarts, 0 for none."""
    jobs: list[AttemptJob] = []
    pods: list[JsonObject] = []
    objects: dict[tuple[str, str], JsonObject] = {}
    others: dict[tuple[str, str], JsonObject] = {}
    for item in items:
        key = item["kind"], item["metadata"]["name"]
        if item["kind"] == "Pod" and n.LABEL_ATTEMPT in _labels(item):
            pods.append(item)
        elif not _is_ours(item, meta):
            others[key] = item
        elif item["kind"] == "Job":
            jobs.append(_job(item))
        else:
            objects[key] = item
    workers, uids = [_worker(each) for each in pods], {each.uid for each in jobs}
    return Children(
        restarting=restarting,
        jobs=tuple(sorted(jobs, key=lambda each: (each.attempt, each.name))),
        workers=tuple(each for each in workers if each.job in uids),
        orphans=tuple(each for each in workers if each.job not in uids),
        objects=objects,
        others=others,
    )


def is_ending(pod: JsonObject) -> bool:
    """Return whether this pod is being deleted, or has failed."""
    return "deletionTimestamp" in pod["metadata"] or (pod.get("status") or {}).get("phase") == "Failed"


def _labels(item: JsonObject) -> Mapping[str, str]:
    return item["metadata"].get("labels") or {}


def _annotations(item: JsonObject) -> Mapping[str, str]:
    return item["metadata"].get("annotations") or {}


def _owners(item: JsonObject) -> list[str]:
    return [each["uid"] for each in item["metadata"].get("ownerReferences") or ()]


def _true_conditions(item: JsonObject) -> set[str]:
    conditions = (item.get("status") or {}).get("conditions") or ()
    return {each["type"] for each in conditions if each.get("status") == "True"}


def _is_ours(item: JsonObject, meta: Meta) -> bool:
    owners, labels = _owners(item), _labels(item)
    if item["kind"] != "PersistentVolumeClaim" or owners:
        return meta.uid in owners
    # A retained claim has no owner, and may be from an earlier job of the name.
    return labels.get(n.LABEL_JOB) == meta.name and labels.get(n.LABEL_MANAGED_BY) == n.MANAGED_BY


def _number(text: str | None) -> int:
    """Return the number in a label or an annotation; 0 if it is invalid, because anybody may change it."""
    return int(text) if text is not None and text.isdecimal() and len(text) < 10 else 0


def _job(item: JsonObject) -> AttemptJob:
    meta, spec, annotations, true = item["metadata"], item["spec"], _annotations(item), _true_conditions(item)
    pods = spec.get("completions") or 1
    rules = (spec.get("successPolicy") or {}).get("rules") or [{}]
    by, at = _suspender(meta)
    return AttemptJob(
        item=item,
        name=meta["name"],
        uid=meta["uid"],
        attempt=_number(_labels(item).get(n.LABEL_ATTEMPT)),
        job_count=_number(annotations.get(n.ANNOTATION_PARTS)) or 1,
        pods=pods,
        required_pods=rules[0].get("succeededCount") or pods,
        size=annotations.get(n.ANNOTATION_SIZE, ""),
        workspace=annotations.get(n.ANNOTATION_WORKSPACE, ""),
        started=parse_time((item.get("status") or {}).get("startTime")),
        complete="Complete" in true,
        succeeded=bool(true & {"Complete", "SuccessCriteriaMet"}),
        failed=bool(true & {"Failed", "FailureTarget"}),
        suspended=bool(spec.get("suspend")),
        deleting="deletionTimestamp" in meta,
        suspended_by=by,
        suspended_at=at,
    )


def _suspender(meta: JsonObject) -> tuple[str, float | None]:
    """Return the field manager that wrote `suspend` last, and the time.

    https://kubernetes.io/docs/reference/using-api/server-side-apply/#field-management
    """
    wrote = [
        each
        for each in meta.get("managedFields") or ()
        if "f:suspend" in ((each.get("fieldsV1") or {}).get("f:spec") or {})
    ]
    if not wrote or any(each.get("manager") == n.FIELD_MANAGER for each in wrote):
        return "", None
    return wrote[-1].get("manager") or "somebody", parse_time(wrote[-1].get("time"))


def _worker(item: JsonObject) -> Worker:
    meta, status, annotations = item["metadata"], item.get("status") or {}, _annotations(item)
    rank = (
        _labels(item).get(n.LABEL_NODE) or _labels(item).get(n.LABEL_INDEX) or annotations.get(n.LABEL_INDEX)
    )
    grace, removal = meta.get("deletionGracePeriodSeconds") or 0, parse_time(meta.get("deletionTimestamp"))
    return Worker(
        name=meta["name"],
        uid=meta["uid"],
        job=next(iter(_owners(item)), ""),
        attempt=_number(_labels(item).get(n.LABEL_ATTEMPT)),
        node=item["spec"].get("nodeName") or "",
        node_rank=_number(rank) if rank else None,
        phase=status.get("phase") or "Pending",
        ready="Ready" in _true_conditions(item),
        created=parse_time(meta.get("creationTimestamp")),
        deleting="deletionTimestamp" in meta,
        deleted_gracefully=bool(grace),
        # `deletionTimestamp` is the end of the grace period (k8s.io/apimachinery, meta/v1/types.go: ObjectMeta).
        deletion_time=None if removal is None else removal - grace,
        end=read_pod_exit(item),
        held=pod_pending_reason(item),
        fetching=any(
            each["name"] == n.FETCH_CONTAINER and "running" in (each.get("state") or {})
            for each in status.get("initContainerStatuses") or ()
        ),
        disruption=disruption_reason(item),
        running_sidecars=tuple(
            each["name"]
            for each in status.get("containerStatuses") or ()
            if each["name"] != n.WORKER_CONTAINER and "terminated" not in (each.get("state") or {})
        ),
        has_metrics=annotations.get(n.ANNOTATION_SCRAPE) == "true",
        archive=annotations.get(n.ANNOTATION_ARCHIVE),
    )


_MAX_LINE: Final = 300
# The reasons of a container that could not start: those of containerd, dockershim and the kubelet.
_START_ERRORS: Final = ("StartError", "ContainerCannotRun", "CreateContainerError")


@dataclass(frozen=True, kw_only=True)
class PodExit:
    """How a worker's pod ended.

    Attributes:
        code: The exit code, None while it runs.
        at: The time in seconds since the epoch, None while it runs.
        reason: The reason in its status.
        before: The init container that failed, "" if the worker's own container started.
        said: The last line of that init container, or the runtime's error if the worker's container could not start.
        of_pod: The message of the kubelet for the pod, such as the cause of an eviction.
        text: The whole termination message.
    """

    code: int | None
    at: float | None
    reason: str
    before: str = ""
    said: str = ""
    of_pod: str = ""
    text: str = ""


def read_pod_exit(item: JsonObject) -> PodExit:
    """Return how a pod ended."""
    status = item.get("status") or {}
    containers = status.get("containerStatuses") or ()
    own: JsonObject = next((each for each in containers if each["name"] == n.WORKER_CONTAINER), {})
    ended, failed = _terminated(own), {}
    if not ended:
        failed = _failed_before(item)
        ended = _terminated(failed)
    code, message, reason = ended.get("exitCode"), ended.get("message") or "", ended.get("reason") or ""
    return PodExit(
        code=code if failed else command_exit_code(code, message),
        at=parse_time(ended.get("finishedAt")),
        reason=reason or status.get("reason") or "",
        before=failed.get("name", ""),
        said=_last_line(ended) if failed or reason in _START_ERRORS else "",
        of_pod=" ".join((status.get("message") or "").split())[:_MAX_LINE],
        text=message,
    )


def _failed_before(item: JsonObject) -> JsonObject:
    """Return the init container that failed first. Sidecars never fail a pod."""
    before = (item.get("spec") or {}).get("initContainers") or ()
    sidecars = {each["name"] for each in before if each.get("restartPolicy") == "Always"}
    statuses: list[JsonObject] = (item.get("status") or {}).get("initContainerStatuses") or []
    failed = (each for each in statuses if each["name"] not in sidecars and _terminated(each).get("exitCode"))
    return next(failed, {})


def _terminated(container: JsonObject) -> JsonObject:
    return (container.get("state") or {}).get("terminated") or {}


def _last_line(ended: JsonObject) -> str:
    """Return the last line of a termination message. For an error of the runtime, return the end of its line.

    The kubelet keeps up to 2048 bytes of the log.
    """
    lines = [" ".join(each.split()) for each in (ended.get("message") or "").splitlines() if each.strip()]
    last = lines[-1] if lines else ""
    return last[-_MAX_LINE:].lstrip() if ended.get("reason") in _START_ERRORS else last[:_MAX_LINE]


_TORCHRUN_EXIT: Final = 1
_SIGNAL_BASE: Final = 128
# The highest exit code and signal of Linux. The message may contain any text of the command.
_MAX_EXIT: Final = 255
_MAX_SIGNAL: Final = 64
_ROOT_CAUSE: Final = re.compile(
    r"^Root Cause \(first observed failure\):$(?:\n.*)*?\n *exitcode *: (-?[0-9]{1,3}) ", re.M
)
# As in a shell.
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126
_START_FAILURES: Final = {
    "FileNotFoundError: [Errno 2] ": _NOT_FOUND,
    "PermissionError: [Errno 13] ": _NOT_EXECUTABLE,
}
# Tracebacks of the command itself have the rank in front of each line.
_POPEN_TRACE: Final = re.compile(r"^ +File .*[/.]subprocess_handler\.py\"", re.M)


def command_exit_code(code: int | None, message: str) -> int | None:
    """Return the exit code of the user's command under torchrun. torchrun itself always exits with 1.

    The last lines of torchrun have the code: ChildFailedError in
    torch/distributed/elastic/multiprocessing/errors/__init__.py. The kubelet keeps them as the termination message
    (terminationMessagePolicy FallbackToLogsOnError,
    https://kubernetes.io/docs/tasks/debug/debug-application/determine-reason-pod-failure/).

    Args:
        code: The exit code of the container.
        message: Its termination message.

    Returns:
        The exit code of the process that failed first: 128 plus the signal, 127 for a missing program, 126 for one that
        is not executable. `code` if the message has none.
    """
    if code != _TORCHRUN_EXIT:
        return code
    causes = _ROOT_CAUSE.findall(message)
    if causes:
        first = int(causes[-1])
        if 0 < first <= _MAX_EXIT:
            return first
        return _SIGNAL_BASE - first if -_MAX_SIGNAL <= first < 0 else code
    last = message.rstrip().rpartition("\n")[2]
    if _POPEN_TRACE.search(message):
        return next((own for words, own in _START_FAILURES.items() if last.startswith(words)), code)
    return code


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The state of the cluster that plans use, in addition to the job's objects.

    Attributes:
        tools_image: The image of trainyard.workspace.
        kai: Whether the API of KAI Scheduler is installed.
        kai_queues: The queues of KAI Scheduler, by name.
        provisioners: The provisioner of each StorageClass.
        default_class: The StorageClass of claims without one.
        claims: The access modes of existing claims.
        placeholders: Whether the priority class of placeholders exists.
        policy_since: The time since when the admission policy for jobs is in force (trainyard/operator/admission.py),
            in seconds since the epoch; None if it is not.
    """

    tools_image: str
    kai: bool = False
    kai_queues: Mapping[str, KaiQueue] = field(default_factory=dict)
    provisioners: Mapping[str, str] = field(default_factory=dict)
    default_class: str = ""
    claims: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    placeholders: bool = True
    policy_since: float | None = None


@dataclass(frozen=True, kw_only=True)
class KaiQueue:
    """A queue of KAI Scheduler. `parent` is "" at the top.

    `limits` are in GPUs, cores and bytes. A missing limit, or -1, means no limit.
    """

    parent: str = ""
    limits: Mapping[str, float] = field(default_factory=dict)
