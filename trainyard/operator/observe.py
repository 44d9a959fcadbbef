"""Read a job's Jobs, pods and other objects into plain data. Pure. Entry point: `observe`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from launcher.observe import disruption_reason, number
from trainyard.k8s import names
from trainyard.operator import names as n
from trainyard.operator.api.fields import JsonObject, parse_time
from trainyard.operator.api.job import Meta

# Phases of a finished pod.
OVER: Final = ("Succeeded", "Failed")


@dataclass(frozen=True, kw_only=True)
class AttemptJob:
    """A batch/v1 Job of the job. Times are in seconds since the epoch."""

    item: JsonObject
    name: str
    uid: str
    attempt: int
    job_count: int  # the number of Jobs in the attempt
    pods: int  # the number of pods of this Job
    required_pods: int  # the number of succeeded pods with which the Job succeeds
    size: str  # `JobSpec.size_key` when the Job was created
    workspace: str  # the digest of the workspace when the Job was created
    started: float | None  # when it was created or resumed last
    complete: bool  # whether the Job has succeeded, and its pods are gone or ended
    succeeded: bool  # whether it has succeeded. It then deletes its other pods, and is complete after that.
    failed: bool
    suspended: bool
    deleting: bool
    suspended_by: str  # the field manager that wrote `suspend` last, "" for the controller itself
    suspended_at: float | None

    @property
    def minimum(self) -> int | None:
        """Return the minimum number of workers of an elastic job; None for a fixed size."""
        return number(self.size.partition(":")[0]) if ":" in self.size else None

    @property
    def required_jobs(self) -> int:
        """Return the number of complete Jobs with which the attempt succeeds."""
        return self.job_count if self.minimum is None else max(1, min(self.job_count, self.minimum))


@dataclass(frozen=True, kw_only=True)
class Worker:
    """A worker's pod. Times are in seconds since the epoch."""

    item: JsonObject
    name: str
    uid: str
    job: str  # the uid of its Job
    attempt: int
    node: str
    node_rank: int | None  # the number of its node in the attempt
    phase: str
    ready: bool
    # Whether its own container or its pod failed. A running sidecar keeps the pod in phase Running.
    failed: bool
    finished: bool
    created: float | None
    deleting: bool
    deleted_gracefully: bool  # whether it ran at its deletion, and has a grace period
    deletion_time: float | None  # the time of the deletion request
    end: PodExit  # how it ended
    disruption: str  # the reason why something other than its command ended or rejected it


@dataclass(frozen=True, kw_only=True)
class Children:
    """The objects of a job."""

    attempt: int  # the present attempt. Earlier ones were given up.
    jobs: tuple[AttemptJob, ...]
    workers: tuple[Worker, ...]
    orphans: tuple[Worker, ...]  # workers whose Job is gone, or belongs to another job
    # All other objects of the job, by kind and name.
    objects: Mapping[tuple[str, str], JsonObject]
    # Foreign objects with the job's label or with a name that it needs.
    foreign_objects: Mapping[tuple[str, str], JsonObject]

    def of(self, attempt: int) -> tuple[AttemptJob, ...]:
        return tuple(job for job in self.jobs if job.attempt == attempt)

    def of_kind(self, kind: str) -> list[JsonObject]:
        return [item for (item_kind, _), item in self.objects.items() if item_kind == kind]

    @property
    def placeholders(self) -> list[JsonObject]:
        """Return the pods that reserve nodes until workers replace them, including those being deleted."""
        role = names.ROLE_PLACEHOLDER
        return [pod for pod in self.of_kind("Pod") if labels_of(pod).get(names.LABEL_ROLE) == role]

    @cached_property
    def succeeded_jobs(self) -> frozenset[str]:
        """Return the uids of Jobs with enough succeeded workers, even before the Job controller reports it.

        A worker that is deleted may end with 0 although its command has only saved: signal_forwarder.py does not see
        the end by a preStop hook, which runs before SIGTERM. The Job controller counts this worker. So the status of a
        Job with such a worker does not count, nor that of a Job of an attempt that was given up. The status of an
        elastic Job counts, because the other workers may succeed without the deleted one.
        """
        kept = [worker for worker in self.workers if not worker.deleting]
        succeeded = Counter(worker.job for worker in kept if worker.phase == "Succeeded")
        failed = {worker.job for worker in kept if worker.phase == "Failed"}
        doubtful = {job.uid for job in self.jobs if job.attempt < self.attempt} | {
            worker.job for worker in self.workers if worker.deleted_gracefully and worker.phase == "Succeeded"
        }
        return frozenset(
            job.uid
            for job in self.jobs
            if (job.succeeded and (job.minimum is not None or job.uid not in doubtful))
            or (not job.failed and job.uid not in failed and succeeded[job.uid] >= job.required_pods)
        )

    @cached_property
    def succeeded_attempt(self) -> int | None:
        """Return the attempt with enough succeeded workers and no failed one; None if there is none.

        It waits for a running worker that nothing else deletes, because this worker may write the last checkpoint.
        """
        succeeded = Counter(job.attempt for job in self.jobs if job.uid in self.succeeded_jobs)
        unended = {
            worker.attempt
            for worker in self.workers
            if worker.phase in ("Failed", "Running")
            and not worker.deleting
            and worker.job not in self.succeeded_jobs
        }
        enough = (job.attempt for job in self.jobs if succeeded[job.attempt] >= job.required_jobs)
        return next((attempt for attempt in enough if attempt not in unended), None)


def observe(meta: Meta, items: Iterable[JsonObject], attempt: int) -> Children:
    """Return the objects of a job, from the API server. `attempt` is that of its status."""
    jobs: list[AttemptJob] = []
    workers: list[Worker] = []
    objects: dict[tuple[str, str], JsonObject] = {}
    foreign: dict[tuple[str, str], JsonObject] = {}
    for item in items:
        key = item["kind"], item["metadata"]["name"]
        if item["kind"] == "Pod" and n.LABEL_ATTEMPT in labels_of(item):
            workers.append(_read_worker(item))
        elif not _is_ours(item, meta):
            foreign[key] = item
        elif item["kind"] == "Job":
            jobs.append(_read_job(item))
        else:
            objects[key] = item
    uids = {job.uid for job in jobs}
    return Children(
        attempt=attempt,
        jobs=tuple(sorted(jobs, key=lambda job: (job.attempt, job.name))),
        workers=tuple(worker for worker in workers if worker.job in uids),
        orphans=tuple(worker for worker in workers if worker.job not in uids),
        objects=objects,
        foreign_objects=foreign,
    )


def is_ending(pod: JsonObject) -> bool:
    """Return whether this pod is being deleted, or has failed."""
    return "deletionTimestamp" in pod["metadata"] or (pod.get("status") or {}).get("phase") == "Failed"


def is_over(pod: JsonObject) -> bool:
    """Return whether no container of the pod can start any more."""
    return (pod.get("status") or {}).get("phase") in OVER


def labels_of(item: JsonObject) -> Mapping[str, str]:
    return item["metadata"].get("labels") or {}


def annotations_of(item: JsonObject) -> Mapping[str, str]:
    return item["metadata"].get("annotations") or {}


def container_statuses(pod: JsonObject, field: str = "containerStatuses") -> dict[str, JsonObject]:
    """Return the statuses of a pod's containers, by name."""
    return {status["name"]: status for status in (pod.get("status") or {}).get(field) or ()}


def owners_of(item: JsonObject) -> list[str]:
    """Return the uids of an object's owners."""
    return [owner["uid"] for owner in item["metadata"].get("ownerReferences") or ()]


def _true_conditions(item: JsonObject) -> set[str]:
    conditions = (item.get("status") or {}).get("conditions") or ()
    return {condition["type"] for condition in conditions if condition.get("status") == "True"}


def _is_ours(item: JsonObject, meta: Meta) -> bool:
    if item["kind"] != "PersistentVolumeClaim" or owners_of(item):
        return meta.uid in owners_of(item)
    # A retained claim has no owner, and may be from an earlier job of the name.
    labels = labels_of(item)
    return labels.get(n.LABEL_JOB) == meta.name and labels.get(n.LABEL_MANAGED_BY) == n.MANAGED_BY


def _read_job(item: JsonObject) -> AttemptJob:
    meta, spec, annotations = item["metadata"], item["spec"], annotations_of(item)
    true = _true_conditions(item)
    pods = spec.get("completions") or 1
    rules = (spec.get("successPolicy") or {}).get("rules") or [{}]
    # https://kubernetes.io/docs/reference/using-api/server-side-apply/#field-management
    writers = [
        entry
        for entry in meta.get("managedFields") or ()
        if "f:suspend" in ((entry.get("fieldsV1") or {}).get("f:spec") or {})
    ]
    is_own = not writers or any(entry.get("manager") == n.FIELD_MANAGER for entry in writers)
    return AttemptJob(
        item=item,
        name=meta["name"],
        uid=meta["uid"],
        attempt=number(labels_of(item).get(n.LABEL_ATTEMPT)),
        job_count=number(annotations.get(n.ANNOTATION_PARTS)) or 1,
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
        suspended_by="" if is_own else writers[-1].get("manager") or "another client",
        suspended_at=None if is_own else parse_time(writers[-1].get("time")),
    )


def _read_worker(item: JsonObject) -> Worker:
    meta, labels, end = item["metadata"], labels_of(item), read_pod_exit(item)
    rank = labels.get(n.LABEL_NODE) or labels.get(n.LABEL_INDEX)
    grace, removal = meta.get("deletionGracePeriodSeconds") or 0, parse_time(meta.get("deletionTimestamp"))
    phase = (item.get("status") or {}).get("phase") or "Pending"
    return Worker(
        item=item,
        name=meta["name"],
        uid=meta["uid"],
        job=next(iter(owners_of(item)), ""),
        attempt=number(labels.get(n.LABEL_ATTEMPT)),
        node=item["spec"].get("nodeName") or "",
        node_rank=number(rank) if rank else None,
        phase=phase,
        ready="Ready" in _true_conditions(item),
        failed=phase == "Failed" or (not end.failed_init_container and end.code not in (None, 0)),
        finished=phase in OVER,
        created=parse_time(meta.get("creationTimestamp")),
        deleting="deletionTimestamp" in meta,
        deleted_gracefully=bool(grace),
        # `deletionTimestamp` is the end of the grace period (k8s.io/apimachinery, meta/v1/types.go: ObjectMeta).
        deletion_time=None if removal is None else removal - grace,
        end=end,
        disruption=disruption_reason(item),
    )


_MAX_LINE: Final = 300
# The reasons of a container that could not start: those of containerd and cri-dockerd.
_START_ERRORS: Final = ("StartError", "ContainerCannotRun")


@dataclass(frozen=True, kw_only=True)
class PodExit:
    """How a worker's pod ended."""

    code: int | None  # the exit code, None while it runs
    at: float | None  # the time in seconds since the epoch, None while it runs
    reason: str  # the reason in its status
    failed_init_container: str = ""  # "" if none failed, or the worker's own container started
    # The last line of that init container, or the runtime's error if the worker's container could not start.
    start_error: str = ""
    pod_message: str = ""  # the message of the kubelet for the pod, such as the cause of an eviction
    message: TerminationMessage


def read_pod_exit(item: JsonObject) -> PodExit:
    """Return how a pod ended."""
    status = item.get("status") or {}
    ended, failed = _terminated(container_statuses(item).get(n.WORKER_CONTAINER) or {}), ""
    if not ended:  # the first init container that failed; sidecars never fail a pod
        before = (item.get("spec") or {}).get("initContainers") or ()
        sidecars = {container["name"] for container in before if container.get("restartPolicy") == "Always"}
        for name, container in container_statuses(item, "initContainerStatuses").items():
            if name not in sidecars and _terminated(container).get("exitCode"):
                ended, failed = _terminated(container), name
                break
    code, text, reason = ended.get("exitCode"), ended.get("message") or "", ended.get("reason") or ""
    message = read_termination_message(text)
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
    error = ""
    if lines and reason in _START_ERRORS:  # the end of the runtime's line has the cause
        error = lines[-1][-_MAX_LINE:].lstrip()
    elif lines and failed:
        error = lines[-1][:_MAX_LINE]
    return PodExit(
        code=code if failed else command_exit_code(code, message),
        at=parse_time(ended.get("finishedAt")),
        reason=reason or status.get("reason") or "",
        failed_init_container=failed,
        start_error=error,
        pod_message=" ".join((status.get("message") or "").split())[:_MAX_LINE],
        message=message,
    )


def _terminated(container: JsonObject) -> JsonObject:
    return (container.get("state") or {}).get("terminated") or {}


_TORCHRUN_EXIT: Final = 1
_SIGNAL_BASE: Final = 128
# The highest exit code and signal of Linux. The message may contain any text of the command.
_MAX_EXIT: Final = 255
_MAX_SIGNAL: Final = 64
_SUMMARY: Final = re.compile(r"^Root Cause \(first observed failure\):$", re.M)
_EXIT_CODE: Final = re.compile(r"^ *exitcode *: (-?[0-9]{1,3}) ", re.M)
_RANK: Final = re.compile(r"^ *rank *: (\d{1,9}) \(local_rank: (\d{1,9})\)", re.M)
# The container's local time (torch/distributed/elastic/multiprocessing/errors/__init__.py, `timestamp_isoformat`).
_TIME: Final = re.compile(r"^ *time *: (\d{4}-\d\d-\d\d_\d\d:\d\d:\d\d)$", re.M)
# The exit codes of a shell.
_START_FAILURES: Final = {"FileNotFoundError: [Errno 2] ": 127, "PermissionError: [Errno 13] ": 126}
# Tracebacks of the command itself have the rank in front of each line.
_POPEN_TRACE: Final = re.compile(r"^ +File .*[/.]subprocess_handler\.py\"", re.M)


@dataclass(frozen=True, kw_only=True)
class TerminationMessage:
    """The last lines of a worker. torchrun's summary describes the process that failed first on its node.

    It is ChildFailedError in torch/distributed/elastic/multiprocessing/errors/__init__.py. The kubelet keeps it in the
    termination message (terminationMessagePolicy FallbackToLogsOnError,
    https://kubernetes.io/docs/tasks/debug/debug-application/determine-reason-pod-failure/).
    """

    text: str  # all lines
    log: str  # the lines before the summary
    exit_code: int | None = None  # of that process, negative for a signal; None if it is not reported
    rank: int | None = None  # its global rank
    local_rank: str = ""  # its rank on the node, "" if it is not reported
    time: str = ""  # when it failed, in local time

    @property
    def has_summary(self) -> bool:
        return self.log != self.text


def read_termination_message(text: str) -> TerminationMessage:
    """Return the last lines of a worker, with the last summary of torchrun."""
    start = max((found.start() for found in _SUMMARY.finditer(text)), default=len(text))
    summary = text[start:]
    code, rank, time = (pattern.search(summary) for pattern in (_EXIT_CODE, _RANK, _TIME))
    return TerminationMessage(
        text=text,
        log=text[:start],
        exit_code=int(code[1]) if code else None,
        rank=int(rank[1]) if rank else None,
        local_rank=rank[2] if rank else "",
        time=time[1] if time else "",
    )


def command_exit_code(code: int | None, message: TerminationMessage) -> int | None:
    """Return the exit code of the user's command under torchrun. torchrun itself always exits with 1.

    It is that of the process that failed first: 128 plus the signal, 127 for a missing program, 126 for one that is not
    executable. If the message has none, it is `code`, that of the container.
    """
    if code != _TORCHRUN_EXIT:
        return code
    if (first := message.exit_code) is not None:
        if 0 < first <= _MAX_EXIT:
            return first
        return _SIGNAL_BASE - first if -_MAX_SIGNAL <= first < 0 else code
    last = message.text.rstrip().rpartition("\n")[2]
    if _POPEN_TRACE.search(message.text):
        return next((own for words, own in _START_FAILURES.items() if last.startswith(words)), code)
    return code


@dataclass(frozen=True, kw_only=True)
class ClusterState:
    """The state of the cluster that plans use, in addition to the job's objects."""

    tools_image: str  # the image of trainyard.workspace
    kai: bool = False  # whether the API of KAI Scheduler is installed
    kai_queues: Mapping[str, KaiQueue] = field(default_factory=dict)  # the queues of KAI Scheduler, by name
    provisioners: Mapping[str, str] = field(default_factory=dict)  # the provisioner of each StorageClass
    default_class: str = ""  # the StorageClass of claims without one
    claims: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # the access modes of existing claims
    placeholders: bool = True  # whether the priority class of placeholders exists
    # The time since when the admission policy for jobs is in force (trainyard/operator/admission.py), in
    # seconds since the epoch; None if it is not.
    policy_since: float | None = None


@dataclass(frozen=True, kw_only=True)
class KaiQueue:
    """A queue of KAI Scheduler. `parent` is "" at the top.

    `limits` are in GPUs, cores and bytes. A missing limit, or -1, means no limit.
    """

    parent: str = ""
    limits: Mapping[str, float] = field(default_factory=dict)
