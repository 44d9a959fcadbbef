"""An archive to where a job's workers get it: the queue's bucket, or the job's sync pod."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, BinaryIO, Final, Protocol

from launcher.observe import PATIENCE_SECONDS, held_up
from trainyard.k8s.client import ApiUnavailable
from trainyard.k8s.exec import Execution
from trainyard.kubectl.cluster import Cluster, explained
from trainyard.kubectl.errors import UNAVAILABLE, USAGE, WORKSPACE, PluginError
from trainyard.kubectl.progress import Bar, say
from trainyard.operator import names as n
from trainyard.operator.names import sync_pod_url
from trainyard.workspace.archive import Archive
from trainyard.workspace.bucket import Bucket, archive_url
from trainyard.workspace.errors import NotThere, WorkspaceError
from trainyard.workspace.selection import size_in_words

JsonObject = dict[str, Any]
_CHUNK: Final = 2**16
_TRIES: Final = 3
# How `python -m trainyard.workspace` ends on words that it does not know.
_UNKNOWN_WORD: Final = 2
WAIT_SECONDS: Final = 300.0
_ASK_SECONDS: Final = 0.5


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
    """Runs a command with its standard input."""
    return Execution(cluster.rest, cluster.namespace, pod, container, command, stdin=True)


def bucket_of(queue: JsonObject | None) -> str:
    """The queue's s3://bucket/prefix for workspaces, "" for none."""
    storage = (queue or {}).get("spec", {}).get("storage", {})
    return str(storage.get("workspace", {}).get("bucket") or "")


def bucket() -> Bucket:
    """S3 as this person. Raises PluginError."""
    try:
        return Bucket()
    except WorkspaceError as error:
        raise PluginError(WORKSPACE, str(error)) from None


def to_bucket(archive: Archive, where: str, namespace: str, bucket: Bucket) -> str:
    """Sends it if it is not there; its address. Raises PluginError."""
    try:
        url = archive_url(where, namespace, archive.digest)
        with Bar("sending") as bar:
            sent = bucket.send(archive, url, bar)
    except WorkspaceError as error:
        raise PluginError(WORKSPACE, str(error)) from None
    except NotThere as error:
        raise PluginError(UNAVAILABLE, str(error)) from None
    _told(archive, sent)
    return url


def wait_for_sync_pod(
    cluster: Cluster,
    job: str,
    seconds: float = WAIT_SECONDS,
    check: Callable[[Cluster, JsonObject, float], None] = lambda _cluster, _job, _waited: None,
) -> bool:
    """Whether the job's sync pod takes archives within this time.

    Raises PluginError where no such pod comes, also what `check` raises of a job that has none.
    """
    name, began, told, held = n.sync_pod(job), time.monotonic(), False, ""
    while True:
        pod = cluster.pod(name)
        if pod is not None and takes_archives(pod):
            return True
        found = cluster.job(job)
        if found.get("status", {}).get("phase") in n.FINAL_PHASES:
            status = found["status"]
            raise Ended(job, status["phase"], status.get("message") or status.get("reason") or "")
        if pod is None and found["spec"].get("suspend"):
            raise PluginError(
                USAGE,
                f"job {job}: is suspended, and has no pod that takes the workspace; "
                f"{cluster.command('torchrun resume', job)} first",
            )
        waited = time.monotonic() - began
        if pod is None:
            check(cluster, found, waited)
        if waited >= seconds:
            return False
        if not told:
            say(f"waiting for pod {name}, which takes the workspace")
            told = True
        if waited >= PATIENCE_SECONDS and (why := _held(found, pod)) and why != held:
            say(why)
            held = why
        time.sleep(_ASK_SECONDS)


def _held(job: JsonObject, pod: JsonObject | None) -> str:
    """What keeps the pod from being there, "" where nothing is known of that."""
    if pod is not None:
        why = held_up(pod)
        return f"pod {pod['metadata']['name']} {why}" if why else ""
    status = job.get("status", {})
    said = status.get("message") or status.get("reason")
    waits = status.get("phase") == n.PHASE_PENDING and said
    return f"{job['metadata']['name']}: {n.PHASE_PENDING}: {said}" if waits else ""


def to_sync_pod(
    cluster: Cluster,
    job: str,
    archive: Archive,
    nearby: Sequence[str],
    run: Execute = execute,
    keep: str = "",
) -> None:
    """Send the missing bytes of the archive to the sync pod. Raises PluginError.

    First the pod itself asks the pods at the addresses `nearby` for the archive. The pod also keeps the archive with
    the digest `keep`, because workers that start before the job's change fetch that one.
    """
    for tries_left in reversed(range(_TRIES)):
        try:
            with explained("get and create pods/exec", cluster.namespace):
                sent = _send(cluster, job, archive, nearby, run, keep)
        except PluginError as error:
            if not tries_left or not isinstance(error.__context__, ApiUnavailable):
                raise
            say(f"{error}; going on where it broke")
            nearby = ()  # one of them may be what it waited for
            time.sleep(_ASK_SECONDS)
        else:
            _told(archive, sent)
            return


def _send(
    cluster: Cluster, job: str, archive: Archive, nearby: Sequence[str], run: Execute, keep: str
) -> bool:
    command = ["python", "-m", "trainyard.workspace", "receive"]
    command += ["--digest", archive.digest, "--size", str(archive.size)]
    command += ["--keep", keep] if keep else []
    command += [word for address in nearby for word in ("--nearby", address)]
    pod = n.sync_pod(job)
    with run(cluster, pod, n.SYNC_CONTAINER, command) as running:
        word, _, number = running.line().partition(" ")
        if word == "offset":
            offset = int(number)
            if offset < archive.size:
                _stream(archive, offset, running)
            if running.line() == f"done {archive.digest}":
                return offset < archive.size
        code, said = running.result()
    if nearby and code == _UNKNOWN_WORD:  # of an earlier release, which can be sent it all the same
        return _send(cluster, job, archive, (), run, keep)
    reason = said.splitlines()[-1] if said else f"the command ended with {code}"
    raise PluginError(UNAVAILABLE, f"pod {pod}: {reason}")


def _stream(archive: Archive, offset: int, running: Running) -> None:
    with _opened(archive) as file, Bar("sending") as bar:
        file.seek(offset)
        done = offset
        while data := file.read(_CHUNK):
            running.write(data)
            done += len(data)
            bar(done, archive.size)


def _opened(archive: Archive) -> BinaryIO:
    try:
        return archive.open()
    except WorkspaceError as error:
        raise PluginError(WORKSPACE, str(error)) from None


def takes_archives(pod: JsonObject) -> bool:
    """Whether this sync pod runs."""
    return "running" in _sync_container(pod).get("state", {})


def has_archive(pod: JsonObject) -> bool:
    """Return whether this sync pod has an archive. Then it is ready."""
    return _sync_container(pod).get("ready") is True


def _sync_container(pod: JsonObject) -> JsonObject:
    """Return the status of the pod's container, {} if the pod is being deleted."""
    if pod["metadata"].get("deletionTimestamp"):
        return {}
    statuses = pod.get("status", {}).get("containerStatuses", ())
    return next((each for each in statuses if each.get("name") == n.SYNC_CONTAINER), {})


def _told(archive: Archive, sent: bool) -> None:
    size = size_in_words(archive.size)
    say(
        f"workspace {archive.digest[:19]}: "
        + (f"{size} sent" if sent else f"unchanged, its {size} are there")
    )


# Each one that does not answer costs seconds.
_MOST: Final = 3
# Each is a question to the API server; of a hundred jobs that wait together no pod may be there.
_ASKED: Final = 12


def pods_that_have(cluster: Cluster, digest: str, job: str) -> list[str]:
    """Their addresses, for a pod of `job`, as far as this person may see the jobs; those of running jobs first.

    A job that names this archive has it in its sync pod from when it was submitted, or found room, to its end.
    """
    try:
        phases = {
            each["metadata"]["name"]: each.get("status", {}).get("phase", "")
            for each in cluster.jobs()
            if each["metadata"]["name"] != job and _names(each, digest)
        }
        there = [name for name, phase in phases.items() if phase not in n.FINAL_PHASES]
        there.sort(key=lambda name: phases[name] != n.PHASE_RUNNING)
        having = (name for name in there[:_ASKED] if _has_pod(cluster, name))
        return [sync_pod_url(name, cluster.namespace) for name in islice(having, _MOST)]
    except PluginError:
        return []


def _has_pod(cluster: Cluster, job: str) -> bool:
    pod = cluster.pod(n.sync_pod(job))
    return pod is not None and has_archive(pod)


def _names(job: JsonObject, digest: str) -> bool:
    workspace = job["spec"].get("workspace", {})
    return bool(workspace.get("digest") == digest and not workspace.get("url"))
