"""`submit` and `sync`: a directory to the cluster, and the job that runs with it."""

from __future__ import annotations

import argparse
import os
import secrets
import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from trainyard.kubectl import launcher_choice, manifest, secret_variables, sync_pod_check, upload
from trainyard.kubectl.cluster import Cluster, shown, unknown_queue
from trainyard.kubectl.errors import DONE, UNAVAILABLE, USAGE, WORKSPACE, PluginError
from trainyard.kubectl.follow import follow
from trainyard.kubectl.packing import Packed
from trainyard.kubectl.progress import say
from trainyard.kubectl.upload import pods_that_have
from trainyard.operator import names as n
from trainyard.operator.api.job import parse_job
from trainyard.operator.api.resolve import resolve
from trainyard.operator.distribution import InvalidJob, distribute
from trainyard.operator.gang import gang_rejection_reason
from trainyard.operator.names import archive_prefix
from trainyard.operator.observe import Cluster as Facts
from trainyard.operator.pool import pool_rejection_reason, reservation_warning
from trainyard.operator.queue import trial_attempt
from trainyard.workspace.archive import Archive
from trainyard.workspace.bucket import archive_url
from trainyard.workspace.errors import WorkspaceError

JsonObject = dict[str, Any]
_SHOWN: Final = 200


def submit(
    options: argparse.Namespace, cluster: Cluster, packed: Packed, environment: Mapping[str, str]
) -> int:
    """Makes the job and sends its workspace; nothing is left of one whose workspace could not be sent.

    A job that waits for something else, such as a claim, is kept. Its workspace is sent later with `sync`.
    """
    job = _job(options, cluster.namespace, environment)
    queue = cluster.queue(options.queue)
    if queue is None:
        _judge(cluster, job)  # the namespace may not be there, or not be this person's
        raise unknown_queue(cluster, options.queue)
    _check_size(job, queue)
    secret_variables.check(cluster, job["spec"].get("env", ()))
    decided = launcher_choice.choose_launcher(job, _root(options), queue)
    where = upload.bucket_of(queue)
    bucket = upload.bucket() if where and not options.no_workspace else None
    archive = packed()
    if archive:
        # The API server judges all of it before anything is sent; the address follows from the digest.
        try:
            url = archive_url(where, cluster.namespace, archive.digest) if bucket else ""
        except WorkspaceError as error:
            raise PluginError(WORKSPACE, f"queue {options.queue}: storage.workspace.{error}") from None
        job["spec"]["workspace"] = manifest.workspace(archive, url)
    _judge(cluster, job)
    say(decided)
    if archive and bucket:
        upload.to_bucket(archive, where, cluster.namespace, bucket)
    _mark(job)
    made = _make(cluster, job)
    waits = None
    if archive and not bucket:
        waits = _through_pod(cluster, made, archive)
    name = made["metadata"]["name"]
    if options.output:
        print(rendered(made, options.output), end="", flush=True)
    else:
        print(f"{n.JOB_SINGULAR}.{n.GROUP}/{name} created", flush=True)
    if waits:
        say(
            f"job {name}: waits: {waits.why}; send the workspace when {waits.until}: {_sync(options, cluster, name)}; "
            f"if it should not wait: {cluster.command('torchrun cancel', name)}"
        )
    if not options.follow:
        return DONE
    try:
        return follow(cluster, made)
    except (KeyboardInterrupt, OSError):  # the latter of our own output
        say(f"job {name} goes on: {cluster.command('torchrun logs -f', name)}")
        raise


def dry_run(
    options: argparse.Namespace, namespace: str, packed: Packed, environment: Mapping[str, str]
) -> str:
    """The job as YAML or JSON; no cluster is asked, and so the address of a workspace in S3 is not in it."""
    job = _job(options, namespace, environment)
    decided = launcher_choice.choose_launcher(job, _root(options), None)
    if archive := packed():
        job["spec"]["workspace"] = manifest.workspace(archive, "")
    say(decided)
    return rendered(job, options.output or "yaml")


def sync(options: argparse.Namespace, cluster: Cluster, packed: Packed) -> int:
    """Brings the directory to a job; its running workers take what has changed."""
    job = cluster.job(options.name)
    meta, spec, status = job["metadata"], job["spec"], job.get("status", {})
    if status.get("phase") in n.FINAL_PHASES:
        raise PluginError(USAGE, f"job {options.name}: has {status['phase'].lower()}; submit another one")
    if "workspace" not in spec:
        raise PluginError(
            USAGE, f"job {options.name}: was submitted without a workspace; submit another one with it"
        )
    old_url = str(spec["workspace"].get("url") or "")
    where = archive_prefix(old_url)
    if old_url and not where:
        raise PluginError(
            USAGE,
            f"job {options.name}: spec.workspace.url is {old_url[:_SHOWN]!r}, which neither submit nor sync has sent; "
            "submit another job, with its workspace from here",
        )
    try:
        queue = cluster.queue(str(spec["jobQueue"]))
    except PluginError:  # the right to read it is not needed to send
        queue = None
    launcher_choice.check_synced_scripts(job, Path(os.path.expanduser(options.workspace)), queue)
    bucket = upload.bucket() if where else None
    if not bucket:
        sync_pod_check.check(cluster, job)
    archive = packed()
    assert archive is not None  # noqa: S101 (sync has no --no-workspace)
    if bucket:
        url = upload.to_bucket(archive, where, cluster.namespace, bucket)
    else:
        url = ""
        if not upload.wait_for_sync_pod(cluster, options.name, upload.WAIT_SECONDS, sync_pod_check.check):
            raise _no_pod(cluster, options.name)
        same = spec["workspace"].get("digest") == archive.digest
        nearby = [] if same else pods_that_have(cluster, archive.digest, options.name)
        keep = str(spec["workspace"].get("digest") or "")
        upload.to_sync_pod(cluster, options.name, archive, nearby, keep=keep)
    # Said each time: a patch without it would leave what the sync before asked for.
    now = {**manifest.workspace(archive, url), "restartOnSync": options.restart}
    # The archive is uploaded. The change of the job's spec starts it.
    cluster.change(options.name, {"workspace": now}, meta["uid"])
    print(f"{n.JOB_SINGULAR}.{n.GROUP}/{options.name} synced", flush=True)
    return DONE


def _root(options: argparse.Namespace) -> Path | None:
    """Return the directory of the workspace, None without one."""
    return None if getattr(options, "no_workspace", False) else Path(os.path.expanduser(options.workspace))


def rendered(job: JsonObject, output: str) -> str:
    """The job in this format."""
    if output == "name":
        return f"{n.JOB_SINGULAR}.{n.GROUP}/{job['metadata']['name']}\n"
    return shown(job, output)


def directory_name(workspace: str) -> str:
    """What a job from this directory is called after. Raises PluginError where the current one was removed."""
    try:
        # Not Path.resolve(): before Python 3.13 it raises RuntimeError for a symbolic link to itself.
        return os.path.basename(os.path.realpath(workspace)) or "job"
    except OSError as error:
        raise PluginError(
            WORKSPACE, f"workspace: {workspace}: {error.strerror}; go to a directory that exists"
        ) from None


def _job(options: argparse.Namespace, namespace: str, environment: Mapping[str, str]) -> JsonObject:
    job = manifest.job(options, namespace, directory_name(options.workspace), environment)
    secret_variables.warn(job["spec"].get("env", ()))
    if names := manifest.left_out(job):
        say(
            f"--env: {', '.join(names)}: workers begin with the image's sh, which may leave out a name that has more "
            "than letters, digits and '_', as dash does"
        )
    return job


def _through_pod(cluster: Cluster, job: JsonObject, archive: Archive) -> sync_pod_check.Podless | None:
    """Sends the workspace; what the job waits for first, where that brings its pod."""
    name = job["metadata"]["name"]
    try:
        nearby = pods_that_have(cluster, archive.digest, name)
        if upload.wait_for_sync_pod(cluster, name, upload.WAIT_SECONDS, sync_pod_check.check):
            upload.to_sync_pod(cluster, name, archive, nearby)
        else:
            raise _no_pod(cluster, name)
    except sync_pod_check.Podless as error:
        if error.until:
            return error
        _take_back(cluster, job, "it is refused", "without its workspace")
        raise PluginError(USAGE, f"job {name}: {error.why}") from None
    except upload.Ended as error:
        _take_back(cluster, job, f"it has {error.phase} already", "without its workspace")
        raise
    except BaseException:
        _take_back(cluster, job, "its workspace could not be sent", "without its workspace")
        raise
    return None


def _sync(options: argparse.Namespace, cluster: Cluster, name: str) -> str:
    of = "" if options.workspace == "." else f" --workspace {shlex.quote(options.workspace)}"
    return cluster.command(f"torchrun sync{of}", name)


def _no_pod(cluster: Cluster, job: str) -> PluginError:
    pod, seconds = n.sync_pod(job), f"{upload.WAIT_SECONDS:.0f} s"
    if cluster.pod(pod) is not None:
        says = f"is not ready after {seconds}, and takes the workspace; {cluster.command('describe pod', pod)} says why"
    else:
        status = cluster.job(job).get("status", {})
        why = (
            status.get("message") or status.get("reason") or "the controller of torchrun jobs has not seen it"
        )
        phase = status.get("phase") or n.PHASE_PENDING
        says = f"is not there after {seconds}, and takes the workspace; job {job}: {phase}: {why}"
    return PluginError(UNAVAILABLE, f"pod {pod}: {says}")


# Another job of this name may be like ours in everything but this.
MARK: Final = f"{n.GROUP}/submitted-as"
_MARK_BYTES: Final = 16


def _check_size(job: JsonObject, queue: JsonObject) -> None:
    """Refuse a job that the controller would refuse, or that the pool or KAI's queue can never fit.

    The API server checks the schema. In an invalid queue, the job waits.

    Raises:
        PluginError: The job would never start.
    """
    spec, _ = parse_job(job["spec"])
    settings = resolve(queue.get("spec"), spec)[0] if spec is not None else None
    if spec is None or settings is None:
        return
    try:
        size = distribute(spec, settings.queue)
    except InvalidJob as refusal:
        raise PluginError(USAGE, f"queue {spec.job_queue}: {refusal}") from None
    trial = trial_attempt(job["metadata"]["namespace"], spec, settings, size, Facts(tools_image=""))
    status = queue.get("status")
    if why := pool_rejection_reason(status, trial, time.time()) or gang_rejection_reason(status, trial):
        raise PluginError(USAGE, f"queue {spec.job_queue}: {why}")
    if why := reservation_warning(status, settings.queue.scheduling.pool):
        say(f"queue {spec.job_queue}: {why}; the job waits until there is one")


def _judge(cluster: Cluster, job: JsonObject) -> None:
    """The API server's word on the job, which is not made. Raises PluginError."""
    if cluster.create(job, dry_run=True) is None:
        raise _taken(cluster, job["metadata"]["name"])


def _mark(job: JsonObject) -> None:
    """Puts a random mark on the job, by which it is known again."""
    job["metadata"].setdefault("annotations", {})[MARK] = secrets.token_hex(_MARK_BYTES)


def _make(cluster: Cluster, job: JsonObject) -> JsonObject:
    """Makes a job that is marked; nothing is left of it where nobody knows whether it was made. Raises PluginError."""
    try:
        return cluster.create(job) or _there(cluster, job)
    except (PluginError, KeyboardInterrupt) as error:
        if isinstance(error, KeyboardInterrupt) or error.code == UNAVAILABLE:
            _undo(cluster, job)
        raise


def _take_back(cluster: Cluster, job: JsonObject, why: str, lack: str) -> None:
    """Deletes the job. Where that fails, it is told, and what went wrong before stays the reason of the end."""
    name = job["metadata"]["name"]
    try:
        cluster.delete(name, job["metadata"]["uid"])
    except (PluginError, KeyboardInterrupt) as error:
        reason = str(error) or "interrupted"
        say(f"job {name} is left, {lack}: {reason}; remove it: {cluster.command('torchrun cancel', name)}")
    else:
        say(f"job {name} is deleted again: {why}")


def _there(cluster: Cluster, job: JsonObject) -> JsonObject:
    """The job of this name, if the API server made it of a request whose answer was lost."""
    name = job["metadata"]["name"]
    found = cluster.find_job(name)
    if found is None or not _is_ours(found, job):
        raise _taken(cluster, name)
    return found


def _undo(cluster: Cluster, job: JsonObject) -> None:
    """Takes the job back if it is there; another one of its name is left alone."""
    name = job["metadata"]["name"]
    try:
        found = cluster.find_job(name)
    except (PluginError, KeyboardInterrupt):
        found = None
    if found is None:  # a request may still be on its way
        say(f"job {name} may be there by now: {cluster.command('torchrun cancel', name)}")
    elif _is_ours(found, job):
        _take_back(
            cluster, found, "the answer that it was made never came", "and nobody said that it was made"
        )


def _is_ours(found: JsonObject, job: JsonObject) -> bool:
    return bool(found["metadata"].get("annotations", {}).get(MARK) == job["metadata"]["annotations"][MARK])


def _taken(cluster: Cluster, name: str) -> PluginError:
    return PluginError(
        USAGE, f"--name: there is a job {name} in namespace {cluster.namespace}; give another name"
    )
