"""What there is of a job, out of the objects that carry its label or have its children's names. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

from launcher.observe import held_up, taken_by
from trainyard.k8s import names
from trainyard.operator import names as n
from trainyard.operator.api.fields import JsonObject, parse_time
from trainyard.operator.api.job import Meta

# The fields of a pod's metadata that only Kubernetes and the controller write.
_TRUSTED_METADATA: Final = (
    "name",
    "namespace",
    "uid",
    "labels",
    "ownerReferences",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
)
_SHOWN: Final = 300
# Phases of a pod that runs no more.
OVER: Final = ("Succeeded", "Failed")


@dataclass(frozen=True, kw_only=True)
class AttemptJob:
    """A batch/v1 Job of the job. `ending` says that it has succeeded, and removes pods that are not needed for that.

    It succeeds with `needed` of its `pods`, and its attempt with `enough` of the attempt's `parts` Jobs.
    `suspended_by` is who wrote its `suspend` last, "" for the controller itself, and `suspended_at` when, in seconds
    since the epoch.
    """

    attempt: int
    job_count: int
    pods: int
    required_pods: int
    size: str
    workspace: str
    complete: bool
    success_criteria_met: bool
    failed: bool
    suspended: bool
    deleting: bool
    item: JsonObject
    suspended_by: str = ""
    suspended_at: float | None = None

    @property
    def name(self) -> str:
        return str(self.item["metadata"]["name"])

    @property
    def uid(self) -> str:
        return str(self.item["metadata"]["uid"])

    @property
    def least(self) -> int | None:
        """With how many workers an elastic one runs; None for one of fixed size."""
        return _number(self.size.partition(":")[0]) if ":" in self.size else None

    @property
    def required_jobs(self) -> int:
        return self.job_count if self.least is None else max(1, min(self.job_count, self.least))

    @property
    def references(self) -> frozenset[tuple[str, str]]:
        """The claims, and the gang, that its pods name, by kind and name."""
        template = (self.item.get("spec") or {}).get("template") or {}
        claims = [
            each["persistentVolumeClaim"]["claimName"]
            for each in (template.get("spec") or {}).get("volumes") or []
            if each.get("persistentVolumeClaim")
        ]
        gang = ((template.get("metadata") or {}).get("annotations") or {}).get(n.ANNOTATION_POD_GROUP)
        groups = [("PodGroup", gang)] if gang else []
        return frozenset([*(("PersistentVolumeClaim", each) for each in claims), *groups])


@dataclass(frozen=True, kw_only=True)
class Worker:
    """A worker's pod. `job` is the uid of its Job, `end` how it ended.

    `told_to_go`: it ran when somebody deleted it, and has its time to end; what is over when it is deleted has none.
    `created` is seconds since the epoch; `held` is what keeps it from starting, as its pod says it, `taken` for
    what reason others ended or refused it, and `fetching` says that it waits for its workspace, or fetches it.
    `beside` are the containers other than its own that have not ended, `node_rank` the number of its node in the
    attempt, `removed` the time of the request for its deletion, in seconds since the epoch, and `archive` the
    annotation with the archive of its workspace, None for a pod without a workspace.
    """

    name: str
    job: str
    attempt: int
    node: str
    phase: str
    ready: bool
    deleting: bool
    deleted_gracefully: bool
    end: PodExit
    has_metrics: bool
    created: float | None = None
    held: str = ""
    fetching: bool = False
    disruption: str = ""
    running_sidecars: tuple[str, ...] = ()
    node_rank: int | None = None
    deletion_time: float | None = None
    uid: str = ""
    archive: str | None = None

    @property
    def failed(self) -> bool:
        """Return whether its own container or its pod failed. A running sidecar keeps the pod in phase Running."""
        return self.phase == "Failed" or (not self.end.before and self.end.code not in (None, 0))

    @property
    def finished(self) -> bool:
        return self.phase in OVER


@dataclass(frozen=True, kw_only=True)
class Children:
    """What there is. `others` are objects under the job's label or names that belong to somebody else.

    `strays` are workers whose Job is gone, or is another job's. `objects` has all else by kind and name. Attempts
    before `restarting` were given up.
    """

    restarting: int
    jobs: tuple[AttemptJob, ...]
    workers: tuple[Worker, ...]
    orphans: tuple[Worker, ...]
    objects: Mapping[tuple[str, str], JsonObject]
    others: Mapping[tuple[str, str], JsonObject]

    @property
    def placeholders(self) -> tuple[JsonObject, ...]:
        """The pods that hold nodes until workers take their places, those on their way out among them."""
        return tuple(
            item
            for (kind, _), item in self.objects.items()
            if kind == "Pod" and _labels(item).get(names.LABEL_ROLE) == names.ROLE_PLACEHOLDER
        )

    @property
    def claims(self) -> Mapping[str, tuple[str, ...]]:
        """Access modes of the job's claims that stay, by name; those on their way out are waited for."""
        return {
            name: tuple((item.get("spec") or {}).get("accessModes") or ())
            for (kind, name), item in self.objects.items()
            if kind == "PersistentVolumeClaim" and "deletionTimestamp" not in item["metadata"]
        }

    def of(self, attempt: int) -> tuple[AttemptJob, ...]:
        """The Jobs of an attempt."""
        return tuple(each for each in self.jobs if each.attempt == attempt)

    def workers_of(self, attempt: int) -> tuple[Worker, ...]:
        """The workers of an attempt."""
        return tuple(each for each in self.workers if each.attempt == attempt)

    def complete(self, attempt: int) -> bool:
        """Whether as many Jobs of the attempt as it needs are complete."""
        jobs = self.of(attempt)
        return bool(jobs) and sum(each.complete for each in jobs) >= jobs[0].required_jobs

    @cached_property
    def succeeded_jobs(self) -> frozenset[str]:
        """The uids of Jobs whose workers ended well, whether or not the Job controller has said so yet.

        A pod that is being removed may end as it likes: that says nothing of its training. The Job controller counts it
        all the same, so that a Job's own word is not taken where such pods are part of it, nor where its attempt was
        given up before; an elastic one's is, as the others may end well without the worker that was lost.
        """
        kept = [each for each in self.workers if not each.deleting]
        succeeded = Counter(each.job for each in kept if each.phase == "Succeeded")
        failed = {each.job for each in kept if each.phase == "Failed"}
        deleted_gracefully = {
            each.job for each in self.workers if each.deleted_gracefully and each.phase == "Succeeded"
        }
        return frozenset(
            each.uid
            for each in self.jobs
            if self._is_believed(each, deleted_gracefully)
            or (not each.failed and each.uid not in failed and succeeded[each.uid] >= each.required_pods)
        )

    def _is_believed(self, job: AttemptJob, deleted_gracefully: Collection[str]) -> bool:
        if not (job.complete or job.success_criteria_met):
            return False
        return job.least is not None or (job.attempt >= self.restarting and job.uid not in deleted_gracefully)

    @cached_property
    def succeeded_attempt(self) -> int | None:
        """The attempt of which enough workers ended well, and none failed: it has succeeded, whatever comes after.

        One that runs is waited for where nobody else removes it: it may be the one that writes the last checkpoint.
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
    """Sorts the objects; each is as the API server shows it. `restarting` is the attempt that restarts, 0 for none."""
    jobs: list[AttemptJob] = []
    pods: list[JsonObject] = []
    objects: dict[tuple[str, str], JsonObject] = {}
    others: dict[tuple[str, str], JsonObject] = {}
    for item in items:
        key = (str(item.get("kind")), str(item["metadata"]["name"]))
        if item.get("kind") == "Pod" and n.LABEL_ATTEMPT in _labels(item):
            pods.append(item)
        elif not _ours(item, meta):
            others[key] = item
        elif item.get("kind") == "Job":
            jobs.append(_job(item))
        else:
            objects[key] = item
    owners = {each.item["metadata"].get("uid") for each in jobs}
    mine = [each for each in pods if owners.intersection(_owners(each))]
    return Children(
        restarting=restarting,
        jobs=tuple(sorted(jobs, key=lambda each: (each.attempt, each.name))),
        workers=tuple(map(_read_worker, mine)),
        orphans=tuple(_read_worker(each) for each in pods if each not in mine),
        objects=objects,
        others=others,
    )


def is_ending(pod: JsonObject) -> bool:
    """Whether this pod is being removed, or has failed."""
    return "deletionTimestamp" in pod["metadata"] or (pod.get("status") or {}).get("phase") == "Failed"


def _labels(item: JsonObject) -> Mapping[str, Any]:
    return item["metadata"].get("labels") or {}


def _owners(item: JsonObject) -> set[Any]:
    return {each.get("uid") for each in item["metadata"].get("ownerReferences") or []}


def _ours(item: JsonObject, meta: Meta) -> bool:
    owners = _owners(item)
    if item.get("kind") != "PersistentVolumeClaim" or owners:
        return meta.uid in owners
    # A retained claim has no owner, and may be from an earlier job of the name.
    labels = _labels(item)
    return labels.get(n.LABEL_JOB) == meta.name and labels.get(n.LABEL_MANAGED_BY) == n.MANAGED_BY


def _number(text: Any) -> int:
    return int(text) if isinstance(text, str) and text.isdecimal() and len(text) < 10 else 0


def _job(item: JsonObject) -> AttemptJob:
    meta, status = item["metadata"], item.get("status") or {}
    annotations = meta.get("annotations") or {}
    spec = item.get("spec") or {}
    pods = spec.get("completions") or 1
    rules = (spec.get("successPolicy") or {}).get("rules") or [{}]
    true = {each.get("type") for each in status.get("conditions") or [] if each.get("status") == "True"}
    by, at = _suspender(meta)
    return AttemptJob(
        attempt=_number(_labels(item).get(n.LABEL_ATTEMPT)),
        job_count=_number(annotations.get(n.ANNOTATION_PARTS)) or 1,
        pods=pods,
        required_pods=rules[0].get("succeededCount") or pods,
        size=annotations.get(n.ANNOTATION_SIZE, ""),
        workspace=annotations.get(n.ANNOTATION_WORKSPACE, ""),
        complete="Complete" in true,
        success_criteria_met="SuccessCriteriaMet" in true,
        failed=bool(true & {"Failed", "FailureTarget"}),
        suspended=bool(spec.get("suspend")),
        deleting="deletionTimestamp" in meta,
        item=item,
        suspended_by=by,
        suspended_at=at,
    )


def _suspender(meta: JsonObject) -> tuple[str, float | None]:
    """https://kubernetes.io/docs/reference/using-api/server-side-apply/#field-management"""
    wrote = [
        each
        for each in meta.get("managedFields") or []
        if "f:suspend" in ((each.get("fieldsV1") or {}).get("f:spec") or {})
    ]
    if not wrote or any(each.get("manager") == n.FIELD_MANAGER for each in wrote):
        return "", None
    return str(wrote[-1].get("manager") or "somebody"), parse_time(wrote[-1].get("time"))


def _read_worker(item: JsonObject) -> Worker:
    """Return the worker of a pod. If its status can't be read, use the trusted fields only."""
    try:
        return _worker(item)
    except Exception as error:
        return replace(_worker(trusted_fields(item)), held=f"its status can't be read: {error!r}"[:_SHOWN])


def trusted_fields(item: JsonObject) -> JsonObject:
    """Return the fields of a pod that only Kubernetes and the controller write."""
    meta, spec, status = item["metadata"], item.get("spec"), item.get("status")
    kept = {key: meta[key] for key in _TRUSTED_METADATA if key in meta}
    annotations = meta.get("annotations")
    index = annotations.get(n.LABEL_INDEX) if isinstance(annotations, dict) else None
    return {
        "kind": item.get("kind"),
        "metadata": {**kept, **({"annotations": {n.LABEL_INDEX: index}} if isinstance(index, str) else {})},
        "spec": {"nodeName": spec.get("nodeName")} if isinstance(spec, dict) else {},
        "status": {"phase": status.get("phase")} if isinstance(status, dict) else {},
    }


def _worker(item: JsonObject) -> Worker:
    meta, status = item["metadata"], item.get("status") or {}
    ready = any(
        each.get("type") == "Ready" and each.get("status") == "True"
        for each in status.get("conditions") or []
    )
    return Worker(
        name=meta["name"],
        job=next((str(each.get("uid")) for each in meta.get("ownerReferences") or []), ""),
        attempt=_number(_labels(item).get(n.LABEL_ATTEMPT)),
        node=(item.get("spec") or {}).get("nodeName") or "",
        phase=status.get("phase") or "Pending",
        ready=ready,
        deleting="deletionTimestamp" in meta,
        deleted_gracefully=bool(meta.get("deletionGracePeriodSeconds")),
        end=read_pod_exit(item),
        has_metrics=(meta.get("annotations") or {}).get(n.ANNOTATION_SCRAPE) == "true",
        created=parse_time(meta.get("creationTimestamp")),
        held=held_up(item),
        fetching=_runs(status.get("initContainerStatuses"), n.FETCH_CONTAINER),
        disruption=taken_by(item),
        running_sidecars=_beside(status.get("containerStatuses")),
        node_rank=_node_rank(item),
        deletion_time=_removal_time(meta),
        uid=str(meta.get("uid") or ""),
        archive=(meta.get("annotations") or {}).get(n.ANNOTATION_ARCHIVE),
    )


def _removal_time(meta: JsonObject) -> float | None:
    """`deletionTimestamp` is the end of the grace period (k8s.io/apimachinery, meta/v1/types.go: ObjectMeta)."""
    at = parse_time(meta.get("deletionTimestamp"))
    return None if at is None else at - float(meta.get("deletionGracePeriodSeconds") or 0)


def _node_rank(item: JsonObject) -> int | None:
    labels = _labels(item)
    rank = labels.get(n.LABEL_NODE) or labels.get(n.LABEL_INDEX)
    rank = rank or (item["metadata"].get("annotations") or {}).get(n.LABEL_INDEX)
    return _number(rank) if rank else None


def _beside(containers: Any) -> tuple[str, ...]:
    return tuple(
        str(each.get("name"))
        for each in containers or []
        if each.get("name") != n.WORKER_CONTAINER and "terminated" not in (each.get("state") or {})
    )


def _runs(containers: Any, name: str) -> bool:
    return any(
        each.get("name") == name and "running" in (each.get("state") or {}) for each in containers or []
    )


_MAX_LINE: Final = 300
# Of a container that the runtime could not start: containerd's and dockershim's word, and the kubelet's own.
_START_ERRORS: Final = ("StartError", "ContainerCannotRun", "CreateContainerError")


@dataclass(frozen=True, kw_only=True)
class PodExit:
    """`code` and `at`, seconds since the epoch, are None while it runs.

    `before` is the name of the init container that failed, "" where the worker's own began, and `said` its last line;
    of the worker's own container the runtime's last line, where it could not start that, else "". `of_pod` is what the
    kubelet says of the pod as a whole, such as what it evicted it for. `text` is the whole termination message.
    """

    code: int | None
    at: float | None
    reason: str
    before: str = ""
    said: str = ""
    of_pod: str = ""
    text: str = ""


def read_pod_exit(item: JsonObject) -> PodExit:
    """The end of this pod."""
    status = item.get("status") or {}
    own: JsonObject = next(
        (each for each in status.get("containerStatuses") or [] if each.get("name") == n.WORKER_CONTAINER), {}
    )
    ended, failed = _terminated(own), {}
    if not ended:
        failed = _failed_before(item)
        ended = _terminated(failed)
    code = ended.get("exitCode") if isinstance(ended.get("exitCode"), int) else None
    return PodExit(
        code=code if failed else command_exit_code(code, str(ended.get("message") or "")),
        at=parse_time(ended.get("finishedAt")),
        reason=str(ended.get("reason") or status.get("reason") or ""),
        before=str(failed.get("name") or ""),
        said=_last_line(ended) if failed or ended.get("reason") in _START_ERRORS else "",
        of_pod=" ".join(str(status.get("message") or "").split())[:_MAX_LINE],
        text=str(ended.get("message") or ""),
    )


def _failed_before(item: JsonObject) -> JsonObject:
    """The init container that failed first; sidecars among them are ended with the pod, and none of them fails it."""
    sidecars = {
        each.get("name")
        for each in (item.get("spec") or {}).get("initContainers") or []
        if each.get("restartPolicy") == "Always"
    }
    for each in (item.get("status") or {}).get("initContainerStatuses") or []:
        if each.get("name") not in sidecars and _terminated(each).get("exitCode"):
            return dict(each)
    return {}


def _terminated(container: JsonObject) -> JsonObject:
    return (container.get("state") or {}).get("terminated") or {}


def _last_line(ended: JsonObject) -> str:
    """Of what the kubelet kept of the log, which may be 2048 bytes, the last line; or of the runtime's own words.

    Those are one line, at whose end is what was wrong.
    """
    lines = [" ".join(each.split()) for each in str(ended.get("message") or "").splitlines() if each.strip()]
    last = lines[-1] if lines else ""
    return last[-_MAX_LINE:].lstrip() if ended.get("reason") in _START_ERRORS else last[:_MAX_LINE]


_TORCHRUN_EXIT: Final = 1
_SIGNAL_BASE: Final = 128
# What a process of Linux can end with, and the signals that it has. The last lines are the command's own words, too.
_MAX_EXIT: Final = 255
_MAX_SIGNAL: Final = 64
_ROOT_CAUSE: Final = re.compile(
    r"^Root Cause \(first observed failure\):$(?:\n.*)*?\n *exitcode *: (-?[0-9]{1,3}) ", re.M
)
# As shells have it.
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126
_START_FAILURES: Final = {
    "FileNotFoundError: [Errno 2] ": _NOT_FOUND,
    "PermissionError: [Errno 13] ": _NOT_EXECUTABLE,
}
# The command's own tracebacks have its rank in front of each line.
_POPEN_TRACE: Final = re.compile(r"^ +File .*[/.]subprocess_handler\.py\"", re.M)


def command_exit_code(code: int | None, message: str) -> int | None:
    """That of the process that failed first; `code`, the container's own, where nothing tells of one that can be.

    128 and its number for one that a signal ended, 127 for a program that is not there, 126 for one that may not run.
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
    """What the decisions need to know of the cluster.

    `kai` says whether KAI Scheduler's API is there, and `kai_queues` has its queues by name. `provisioners` has
    each StorageClass with its provisioner, `default_class` the one that claims without a class get, and `claims` the
    access modes of existing claims. `tools_image` is the image of trainyard.workspace. `placeholders` says whether the
    priority class is there that pods which hold nodes have. `policy_since` is the time since which the admission policy
    for jobs is in force (trainyard/operator/admission.py), in seconds since the epoch; None if it is not.
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
    """A queue of KAI. `parent` is "" for one at the top.

    `limits` are in GPUs, cores and bytes, without those that are not set or -1, which is none.
    """

    parent: str = ""
    limits: Mapping[str, float] = field(default_factory=dict)
