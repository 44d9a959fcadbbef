"""Send an archive to where a job's workers fetch it: the queue's bucket (`to_bucket`) or the job's sync pod."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, Final, Protocol

from launcher.observe import PATIENCE_SECONDS, pending_reason
from trainyard.k8s.client import ApiUnavailable
from trainyard.kubectl.cluster import Cluster, explained
from trainyard.kubectl.errors import UNAVAILABLE, USAGE, WORKSPACE, PluginError
from trainyard.kubectl.progress import Bar, say
from trainyard.operator import names as n
from trainyard.operator.names import sync_pod_url
from trainyard.workspace.archive import Archive
from trainyard.workspace.bucket import Bucket, archive_url
from trainyard.workspace.errors import NotThere, WorkspaceError, format_size

JsonObject = dict[str, Any]
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


class Running(Protocol):
    """A command in a container (trainyard/k8s/exec.py)."""

    def __enter__(self) -> Running: ...
    def __exit__(self, *_: Any) -> None: ...
    def write(self, data: bytes) -> None: ...
    def line(self) -> str: ...
    def result(self) -> tuple[int, str]: ...


Execute = Callable[[Cluster, str, str, list[str]], Running]


def execute(cluster: Cluster, pod: str, container: str, command: list[str]) -> Running:
    """Run a command with standard input."""
    from trainyard.k8s.exec import Execution  # its import takes longer than a request

    return Execution(cluster.client, cluster.namespace, pod, container, command, stdin=True)


def bucket_of(queue: JsonObject | None) -> str:
    """Return the queue's s3://bucket/prefix for workspaces, "" for none."""
    storage = (queue or {}).get("spec", {}).get("storage", {})
    return str(storage.get("workspace", {}).get("bucket") or "")


def bucket() -> Bucket:
    """Return the client of S3. Raise PluginError."""
    try:
        return Bucket()
    except WorkspaceError as error:
        raise PluginError(WORKSPACE, str(error)) from None


def to_bucket(archive: Archive, where: str, namespace: str, bucket: Bucket) -> str:
    """Send the archive unless the bucket has it, and return its URL. Raise PluginError."""
    try:
        url = archive_url(where, namespace, archive.digest)
        with Bar("sending") as bar:
            is_sent = bucket.send(archive, url, bar)
    except WorkspaceError as error:
        raise PluginError(WORKSPACE, str(error)) from None
    except NotThere as error:
        raise PluginError(UNAVAILABLE, str(error)) from None
    _report(archive, is_sent)
    return url


def wait_for_sync_pod(
    cluster: Cluster,
    job: str,
    seconds: float = WAIT_SECONDS,
    check: Callable[[Cluster, JsonObject, float], None] = lambda _cluster, _job, _waited: None,
) -> None:
    """Wait until the job's sync pod receives archives.

    Raises:
        PluginError: The pod is not ready in time, or it will not come, also as `check` finds.
    """
    name, began, last = n.sync_pod(job), time.monotonic(), ""
    while True:
        pod = cluster.pod(name)
        if pod is not None and is_running(pod):
            return
        found = cluster.job(job)
        status = found.get("status", {})
        if status.get("phase") in n.FINAL_PHASES:
            raise Ended(job, status["phase"], status.get("message") or status.get("reason") or "")
        if pod is None and found["spec"].get("suspend"):
            resume = cluster.command("torchrun resume", job)
            raise PluginError(
                USAGE, f"job {job}: is suspended, and has no pod that receives the workspace; {resume} first"
            )
        waited = time.monotonic() - began
        if pod is None:
            check(cluster, found, waited)
        if waited >= seconds:
            raise _no_pod(cluster, name, found, pod, seconds)
        if not last:
            last = f"waiting for pod {name}, which receives the workspace"
            say(last)
        if waited >= PATIENCE_SECONDS and (why := _pending_reason(found, pod)) and why != last:
            say(why)
            last = why
        time.sleep(_POLL_SECONDS)


def _no_pod(
    cluster: Cluster, name: str, job: JsonObject, pod: JsonObject | None, seconds: float
) -> PluginError:
    if pod is not None:
        details = f"is not ready after {seconds:.0f} s; {cluster.command('describe pod', name)} shows why"
    else:
        status = job.get("status", {})
        why = (
            status.get("message") or status.get("reason") or "the controller of TorchrunJobs has not seen it"
        )
        phase = status.get("phase") or n.PHASE_PENDING
        details = f"does not exist after {seconds:.0f} s; job {job['metadata']['name']}: {phase}: {why}"
    return PluginError(UNAVAILABLE, f"pod {name}: receives the workspace, and {details}")


def _pending_reason(job: JsonObject, pod: JsonObject | None) -> str:
    """Return why the pod is not ready, "" if that is unknown."""
    if pod is not None:
        why = pending_reason(pod)
        return f"pod {pod['metadata']['name']} {why}" if why else ""
    status = job.get("status", {})
    message = status.get("message") or status.get("reason")
    is_pending = status.get("phase") == n.PHASE_PENDING and message
    return f"{job['metadata']['name']}: {n.PHASE_PENDING}: {message}" if is_pending else ""


def to_sync_pod(
    cluster: Cluster,
    job: str,
    archive: Archive,
    nearby: Sequence[str],
    run: Execute = execute,
    keep: str = "",
) -> None:
    """Send the missing bytes of the archive to the sync pod. Raise PluginError.

    First the pod itself asks the pods at the URLs `nearby` for the archive. The pod also keeps the archive with the
    digest `keep`, because workers that start before the job's change fetch that one.
    """
    for tries_left in reversed(range(_TRIES)):
        try:
            with explained("get and create pods/exec", cluster.namespace):
                is_sent = _send(cluster, job, archive, nearby, run, keep)
        except PluginError as error:
            if not tries_left or not isinstance(error.__context__, ApiUnavailable):
                raise
            say(f"{error}; continuing")
            nearby = ()  # one of them may be the reason
            time.sleep(_POLL_SECONDS)
        else:
            _report(archive, is_sent)
            return


def _send(
    cluster: Cluster, job: str, archive: Archive, nearby: Sequence[str], run: Execute, keep: str
) -> bool:
    command = ["python", "-m", "trainyard.workspace", "receive"]
    command += ["--digest", archive.digest, "--size", str(archive.size)]
    command += ["--keep", keep] if keep else []
    command += [word for url in nearby for word in ("--nearby", url)]
    pod = n.sync_pod(job)
    with run(cluster, pod, n.SYNC_CONTAINER, command) as running:
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


def _stream(archive: Archive, offset: int, running: Running) -> None:
    try:
        opened = archive.open()
    except WorkspaceError as error:
        raise PluginError(WORKSPACE, str(error)) from None
    with opened as file, Bar("sending") as bar:
        file.seek(offset)
        while data := file.read(_CHUNK):
            running.write(data)
            offset += len(data)
            bar(offset, archive.size)


def pods_that_have(cluster: Cluster, digest: str, job: str) -> list[str]:
    """Return the URLs of sync pods of other jobs that have this archive, those of running jobs first.

    Jobs that the user may not list are left out.
    """
    try:
        phases = {
            each["metadata"]["name"]: each.get("status", {}).get("phase", "")
            for each in cluster.jobs()
            if each["metadata"]["name"] != job and _uses(each, digest)
        }
        names = [name for name, phase in phases.items() if phase not in n.FINAL_PHASES]
        names.sort(key=lambda name: phases[name] != n.PHASE_RUNNING)
        pods = ((name, cluster.pod(n.sync_pod(name))) for name in names[:_MAX_NEARBY_REQUESTS])
        having = (name for name, pod in pods if pod is not None and _container(pod).get("ready") is True)
        return [sync_pod_url(name, cluster.namespace) for name in islice(having, _MAX_NEARBY)]
    except PluginError:
        return []


def _uses(job: JsonObject, digest: str) -> bool:
    workspace = job["spec"].get("workspace", {})
    return bool(workspace.get("digest") == digest and not workspace.get("url"))


def is_running(pod: JsonObject) -> bool:
    """Return whether this sync pod runs. With an archive, it is ready, too."""
    return "running" in _container(pod).get("state", {})


def _container(pod: JsonObject) -> JsonObject:
    """Return the status of the pod's container, {} if the pod is being deleted."""
    if pod["metadata"].get("deletionTimestamp"):
        return {}
    statuses = pod.get("status", {}).get("containerStatuses", ())
    return next((each for each in statuses if each.get("name") == n.SYNC_CONTAINER), {})


def _report(archive: Archive, is_sent: bool) -> None:
    size = format_size(archive.size)
    say(
        f"workspace {archive.digest[:19]}: "
        + (f"{size} sent" if is_sent else f"unchanged, its {size} are already there")
    )
