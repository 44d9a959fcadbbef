"""`submit` and `sync`: a directory to the cluster, and the job that runs with it."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from trainyard.kubectl import launcher_choice, making, manifest, podless, secret_variables, upload
from trainyard.kubectl.cluster import Cluster, shown
from trainyard.kubectl.exits import DONE, UNAVAILABLE, USAGE, WORKSPACE, PluginError
from trainyard.kubectl.following import follow
from trainyard.kubectl.near_archives import pods_that_have
from trainyard.kubectl.near_queues import unknown_queue
from trainyard.kubectl.packing import Packed
from trainyard.kubectl.screen import say
from trainyard.operator.core import names as n
from trainyard.operator.core.addresses import archive_prefix
from trainyard.workspace.bucket import archive_url
from trainyard.workspace.errors import WorkspaceError
from trainyard.workspace.pack import Archive

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
        making.judge(cluster, job)  # the namespace may not be there, or not be this person's
        raise unknown_queue(cluster, options.queue)
    making.fits(job, queue)
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
    making.judge(cluster, job)
    say(decided)
    if archive and bucket:
        upload.to_bucket(archive, where, cluster.namespace, bucket)
    making.mark(job)
    made = making.make(cluster, job)
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
        podless.check(cluster, job)
    archive = packed()
    assert archive is not None  # noqa: S101 (sync has no --no-workspace)
    if bucket:
        url = upload.to_bucket(archive, where, cluster.namespace, bucket)
    else:
        url = ""
        if not upload.wait_for_sync_pod(cluster, options.name, upload.WAIT_SECONDS, podless.check):
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


def _through_pod(cluster: Cluster, job: JsonObject, archive: Archive) -> podless.Podless | None:
    """Sends the workspace; what the job waits for first, where that brings its pod."""
    name = job["metadata"]["name"]
    try:
        nearby = pods_that_have(cluster, archive.digest, name)
        if upload.wait_for_sync_pod(cluster, name, upload.WAIT_SECONDS, podless.check):
            upload.to_sync_pod(cluster, name, archive, nearby)
        else:
            raise _no_pod(cluster, name)
    except podless.Podless as error:
        if error.until:
            return error
        making.take_back(cluster, job, "it is refused", "without its workspace")
        raise PluginError(USAGE, f"job {name}: {error.why}") from None
    except upload.Ended as error:
        making.take_back(cluster, job, f"it has {error.phase} already", "without its workspace")
        raise
    except BaseException:
        making.take_back(cluster, job, "its workspace could not be sent", "without its workspace")
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
