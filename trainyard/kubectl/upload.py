"""Send an archive to where a job's workers fetch it: the queue's bucket (`to_bucket`) or the job's sync pod.

A job in an invalid queue, for example, gets no sync pod until the queue is corrected (`check_sync_pod`). Waiting for
nodes does not matter: the sync pod exists before the workers (trainyard/operator/attempt.py).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from launcher.observe import PATIENCE_SECONDS, pending_reason
from trainyard.k8s.client import ApiUnavailable
from trainyard.kubectl.cluster import Cluster, explained, suggest_queue
from trainyard.kubectl.output import UNAVAILABLE, USAGE, WORKSPACE, Bar, PluginError, say
from trainyard.operator import names as n
from trainyard.operator.names import sync_pod_url
from trainyard.operator.observe import container_statuses, owners_of
from trainyard.workspace.archive import Archive
from trainyard.workspace.bucket import Bucket
from trainyard.workspace.errors import NotThere, WorkspaceError, format_size

if TYPE_CHECKING:
    from trainyard.k8s.exec import Execution


JsonObject = dict[str, Any]
# For each reason of a waiting job's status: until when the job waits, and what to do instead of waiting.
_UNTIL: Final[Mapping[str, tuple[str, str]]] = {
    n.REASON_QUEUE_NOT_FOUND: ("the queue exists", ", or cancel the job if the queue's name is wrong"),
    n.REASON_QUEUE_INVALID: ("the queue is valid", ""),
    n.REASON_SCHEDULER_NOT_INSTALLED: ("it is installed", ", or submit to a queue without it"),
    n.REASON_CLAIM_NOT_FOUND: ("the claim exists", ""),
    n.REASON_STORAGE_CLASS_NOT_FOUND: ("the class exists", ""),
    n.REASON_KAI_QUEUE_NOT_FOUND: ("KAI's queue exists", ""),
    n.REASON_KAI_QUEUE_LIMIT: ("the limit is higher", ", or submit a job of fewer GPUs"),
    n.REASON_REFUSED: ("the API server accepts it", ""),
    n.REASON_NAME_TAKEN: ("the name is free", ""),
}
# The reasons of a job that never gets a sync pod, and what to do.
_NEVER: Final[Mapping[str, str]] = {
    n.REASON_INVALID_SPEC: "correct the spec, then run sync again",
    n.REASON_POLICY_MISSING: "submit another job when the policy is installed",
}
# The objects of a deleted job with the same name disappear within seconds, and the controller finds a new queue.
_SOON_SECONDS: Final[Mapping[str, float]] = {n.REASON_NAME_TAKEN: 30.0, n.REASON_QUEUE_NOT_FOUND: 3.0}
WAIT_SECONDS: Final = 300.0
_CHUNK: Final = 2**16
_TRIES: Final = 3
_POLL_SECONDS: Final = 0.5
# Other sync pods to copy from. Each one that does not answer costs seconds.
_MAX_NEARBY: Final = 3
# Requests for such pods. Of a hundred jobs that wait together, none may have a pod.
_MAX_NEARBY_REQUESTS: Final = 12


class Ended(PluginError):
    """The job ended before its workspace was sent."""

    def __init__(self, job: str, phase: str, why: str) -> None:
        super().__init__(USAGE, f"job {job}: {phase}: {why}")
        self.phase = phase.lower()


class NoSyncPod(PluginError):
    """The job gets no sync pod: `why`, and `until` when, "" if it never gets one."""

    def __init__(self, job: str, why: str, until: str, advice: str) -> None:
        super().__init__(UNAVAILABLE, f"job {job}: has no pod that receives the workspace: {why}; {advice}")
        self.why = why
        self.until = until


def execute(cluster: Cluster, pod: str, container: str, command: list[str]) -> Execution:
    from trainyard.k8s.exec import Execution  # its import takes longer than a request

    return Execution(cluster.client, cluster.namespace, pod, container, command, stdin=True)


@contextmanager
def explain_workspace(place: str = "") -> Iterator[None]:
    """Convert errors of archives and buckets to PluginError."""
    try:
        yield
    except WorkspaceError as error:
        raise PluginError(WORKSPACE, f"{place}{error}") from None
    except NotThere as error:
        raise PluginError(UNAVAILABLE, str(error)) from None


def bucket() -> Bucket:
    """Return the client of S3. Raise PluginError."""
    with explain_workspace():
        return Bucket()


def to_bucket(archive: Archive, url: str, bucket: Bucket) -> None:
    """Send the archive unless the bucket has it. Raise PluginError."""
    with explain_workspace(), Bar("sending") as bar:
        is_sent = bucket.send(archive, url, bar)
    _report(archive, is_sent)


def wait_for_sync_pod(cluster: Cluster, job: str) -> None:
    """Wait until the job's sync pod receives archives."""
    name, began, last = n.sync_pod(job), time.monotonic(), ""
    while True:
        found, waited = cluster.job(job), time.monotonic() - began
        pod = _sync_pod(cluster, found)
        if pod is not None and "running" in _container(pod).get("state", {}):
            return
        status = found.get("status", {})
        phase = status.get("phase") or n.PHASE_PENDING
        why = status.get("message") or status.get("reason") or ""
        if phase in n.FINAL_PHASES:
            raise Ended(job, phase, why)
        if pod is None and found["spec"].get("suspend"):
            resume = cluster.command("torchrun resume", job)
            problem = f"is suspended, and has no pod that receives the workspace; {resume} first"
            raise PluginError(USAGE, f"job {job}: {problem}")
        if pod is None:
            check_sync_pod(cluster, found, waited)
        if waited >= WAIT_SECONDS:
            describe = f"{cluster.command('describe pod', name)} shows why"
            why = why or "the controller of TorchrunJobs has not seen it"
            problem, details = f"is not ready after {WAIT_SECONDS:.0f} s", describe
            if pod is None:
                problem, details = f"does not exist after {WAIT_SECONDS:.0f} s", f"job {job}: {phase}: {why}"
            raise PluginError(UNAVAILABLE, f"pod {name}: receives the workspace, and {problem}; {details}")
        if not last:
            last = f"waiting for pod {name}, which receives the workspace"
            say(last)
        if waited >= PATIENCE_SECONDS:
            why = f"{job}: {phase}: {why}" if why and phase == n.PHASE_PENDING else ""
            if pod is not None:
                why = f"pod {name} {pending}" if (pending := pending_reason(pod)) else ""
            if why not in ("", last):
                say(why)
                last = why
        time.sleep(_POLL_SECONDS)


def to_sync_pod(cluster: Cluster, job: str, archive: Archive, nearby: Sequence[str], keep: str = "") -> None:
    """Send the missing bytes of the archive to the sync pod. Raise PluginError.

    First the pod itself asks the pods at the URLs `nearby` for the archive. The pod also keeps the archive with the
    digest `keep`, because workers that start before the job's change fetch that one.
    """
    for tries_left in reversed(range(_TRIES)):
        try:
            with explained("get and create pods/exec", cluster.namespace):
                is_sent = _send(cluster, n.sync_pod(job), archive, nearby, keep)
        except PluginError as error:
            if not tries_left or not isinstance(error.__context__, ApiUnavailable):
                raise
            say(f"{error}; continuing")
            nearby = ()  # one of them may be the reason
            time.sleep(_POLL_SECONDS)
        else:
            _report(archive, is_sent)
            return


def _send(cluster: Cluster, pod: str, archive: Archive, nearby: Sequence[str], keep: str) -> bool:
    command = ["python", "-m", "trainyard.workspace", "receive"]
    command += ["--digest", archive.digest, "--size", str(archive.size)]
    command += ["--keep", keep] if keep else []
    command += [word for url in nearby for word in ("--nearby", url)]
    with execute(cluster, pod, n.SYNC_CONTAINER, command) as running:
        word, _, number = running.line().partition(" ")
        if word == "offset":
            offset = int(number)
            if offset < archive.size:
                _stream(archive, offset, running)
            if running.line() == f"done {archive.digest}":
                return offset < archive.size
        code, stderr = running.result()
    reason = stderr.splitlines()[-1] if stderr else f"the command ended with exit code {code}"
    raise PluginError(UNAVAILABLE, f"pod {pod}: {reason}")


def _stream(archive: Archive, offset: int, running: Execution) -> None:
    with explain_workspace():
        opened = archive.open()
    with opened as file, Bar("sending") as bar:
        file.seek(offset)
        while data := file.read(_CHUNK):
            running.write(data)
            offset += len(data)
            bar(offset, archive.size)


def _report(archive: Archive, is_sent: bool) -> None:
    size = format_size(archive.size)
    sent = f"{size} sent" if is_sent else f"unchanged, its {size} are already there"
    say(f"workspace {archive.digest[:19]}: {sent}")


def pods_that_have(cluster: Cluster, digest: str, job: str) -> list[str]:
    """Return the URLs of sync pods of other jobs that have this archive, those of running jobs first.

    Jobs that the user may not list are left out.
    """
    try:
        phases = {
            item["metadata"]["name"]: item.get("status", {}).get("phase", "")
            for item in cluster.items(n.JOB_PLURAL)
            if (workspace := item["spec"].get("workspace", {})).get("digest") == digest
            and not workspace.get("url")
        }
        names = [name for name, phase in phases.items() if phase not in n.FINAL_PHASES and name != job]
        names.sort(key=lambda name: phases[name] != n.PHASE_RUNNING)
        pods = ((name, cluster.find("pods", n.sync_pod(name))) for name in names[:_MAX_NEARBY_REQUESTS])
        having = (name for name, pod in pods if pod is not None and _container(pod).get("ready") is True)
        return [sync_pod_url(name, cluster.namespace) for name in islice(having, _MAX_NEARBY)]
    except PluginError:
        return []


def _sync_pod(cluster: Cluster, job: JsonObject) -> JsonObject | None:
    """Return the job's sync pod, None if there is none. A pod of its name may be left of an earlier job."""
    pod = cluster.find("pods", n.sync_pod(job["metadata"]["name"]))
    return pod if pod is not None and job["metadata"]["uid"] in owners_of(pod) else None


def _container(pod: JsonObject) -> JsonObject:
    """Return the status of the sync pod's container, {} if the pod is being deleted. With an archive, it is ready."""
    if pod["metadata"].get("deletionTimestamp"):
        return {}
    return container_statuses(pod).get(n.SYNC_CONTAINER) or {}


def check_sync_pod(cluster: Cluster, job: JsonObject, waited: float = 0.0) -> None:
    """Raise NoSyncPod if the job gets no sync pod at present. `waited` is how many seconds the caller has waited."""
    status, name = job.get("status", {}), job["metadata"]["name"]
    reason = status.get("reason")
    is_old = status.get("observedGeneration") != job["metadata"].get("generation")
    if is_old or waited < _SOON_SECONDS.get(reason, 0.0):
        return
    until, instead = _UNTIL.get(reason, ("", ""))
    advice = _NEVER.get(reason, "") or f"run sync again when {until}{instead}"
    if reason == n.REASON_QUEUE_NOT_FOUND:
        advice = f"{advice}: {suggest_queue(cluster, job['spec']['jobQueue'])}"
    elif not until and reason not in _NEVER:
        return
    # The pod may have been created after the caller looked for it.
    if _sync_pod(cluster, job) is None:
        raise NoSyncPod(name, f"{reason}: {status.get('message') or 'no message'}", until, advice)
