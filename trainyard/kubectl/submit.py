"""`submit`: send a directory to the cluster, and create the job that runs with it.

A job is created exactly once, even if an answer is lost, and deleted again if its workspace can't be sent.
"""

from __future__ import annotations

import argparse
import os
import secrets
import shlex
import time
from contextlib import suppress
from typing import Any, Final

from trainyard.kubectl import launcher_choice, manifest, output, upload
from trainyard.kubectl.cluster import Cluster, connect, namespace_of, suggest_queue
from trainyard.kubectl.output import DONE, UNAVAILABLE, USAGE, WORKSPACE, PluginError, say
from trainyard.kubectl.packing import Packed, workspace_root
from trainyard.operator import names as n
from trainyard.operator.api.job import parse_job
from trainyard.operator.api.resolve import resolve
from trainyard.operator.resources import InvalidJob, distribute
from trainyard.workspace.archive import Archive
from trainyard.workspace.bucket import archive_url

JsonObject = dict[str, Any]
# Identifies a job of this process: another job may have the same name and spec.
MARK: Final = f"{n.GROUP}/submitted-as"
_MARK_BYTES: Final = 16


def run(options: argparse.Namespace, packed: Packed) -> int:
    """Create the job and send its workspace. Return the exit code.

    A job that waits for something else, such as a claim, is kept without its workspace: `sync` sends that later.
    """
    if options.dry_run:
        print(_dry_run(options, packed), end="")
        return DONE
    cluster = connect(options)
    job = _job(options, cluster.namespace)
    queue = cluster.find(n.QUEUE_PLURAL, options.queue)
    if queue is None:
        _check(cluster, job)  # the namespace may not exist, or not be allowed
        why = f"does not exist in namespace {cluster.namespace}; {suggest_queue(cluster, options.queue)}"
        raise PluginError(USAGE, f"--queue: queue {options.queue} {why}")
    _check_size(job, queue)
    manifest.check_secrets(cluster, job["spec"].get("env", ()))
    decision = launcher_choice.choose_launcher(job, workspace_root(options), queue)
    storage = queue.get("spec", {}).get("storage", {}).get("workspace", {})
    where = "" if options.no_workspace else str(storage.get("bucket") or "")
    bucket = upload.bucket() if where else None
    archive, url = packed(), ""
    if archive:
        if bucket:
            with upload.explain_workspace(f"queue {options.queue}: storage.workspace."):
                url = archive_url(where, cluster.namespace, archive.digest)
        job["spec"]["workspace"] = manifest.workspace(archive, url)
    _check(cluster, job)  # the whole job, before anything is sent
    say(decision)
    if archive and bucket:
        upload.to_bucket(archive, url, bucket)
    job["metadata"].setdefault("annotations", {})[MARK] = secrets.token_hex(_MARK_BYTES)
    created = _create(cluster, job)
    waits = _send_through_pod(cluster, created, archive) if archive and not bucket else None
    name = created["metadata"]["name"]
    text = f"{output.job_reference(name)} created\n"
    print(output.serialize(created, options.output) if options.output else text, end="", flush=True)
    if waits:
        flag = f" --workspace {shlex.quote(options.workspace)}" if options.workspace else ""
        sync, cancel = cluster.command(f"torchrun sync{flag}", name), cluster.command("torchrun cancel", name)
        say(
            f"job {name}: has no workspace yet: {waits.why}. When {waits.until}, run `{sync}`. To give up, run "
            f"`{cancel}`."
        )
    if not options.follow:
        return DONE
    from trainyard.kubectl.logs import follow

    try:
        return follow(cluster, created)
    except (KeyboardInterrupt, OSError, PluginError) as error:  # an OSError of the output
        if not (isinstance(error, PluginError) and error.code == output.REMOVED):
            say(f"job {name} continues: {cluster.command('torchrun logs -f', name)}")
        raise


def _dry_run(options: argparse.Namespace, packed: Packed) -> str:
    """Return the job as YAML or JSON, without a request. A workspace in S3 has no URL in it."""
    try:
        namespace = options.namespace or namespace_of(options.kubeconfig, options.context)
    except PluginError:
        if options.kubeconfig or options.context:
            raise
        namespace = "default"
    job = _job(options, namespace)
    decision = launcher_choice.choose_launcher(job, workspace_root(options), None)
    if archive := packed():
        job["spec"]["workspace"] = manifest.workspace(archive, "")
    say(decision)
    return output.serialize(job, options.output or "yaml")


def _job(options: argparse.Namespace, namespace: str) -> JsonObject:
    where = options.workspace or "."
    try:
        # Not Path.resolve(): before Python 3.13 it raises RuntimeError for a symbolic link to itself.
        directory = os.path.basename(os.path.realpath(where)) or "job"
    except OSError as error:  # a removed current directory
        message = f"workspace: {where}: {error.strerror}; go to a directory that exists"
        raise PluginError(WORKSPACE, message) from None
    job = manifest.job(options, namespace, directory)
    manifest.warn_of_variables(job["spec"].get("env", ()))
    return job


def _check_size(job: JsonObject, queue: JsonObject) -> None:
    """Refuse a job that the controller would refuse, or that the pool or KAI's queue can never fit.

    The API server checks the schema. In an invalid queue, the job waits.
    """
    spec, _ = parse_job(job["spec"])
    settings = resolve(queue.get("spec"), spec)[0] if spec is not None else None
    if spec is None or settings is None:
        return
    try:
        size = distribute(spec, settings.queue)
    except InvalidJob as refusal:
        raise PluginError(USAGE, f"queue {spec.job_queue}: {refusal}") from None
    status = queue.get("status") or {}
    if not (status.get("pool") or status.get("kai")):
        return
    # Their imports take a fifth of the processor time of an unchanged submit.
    from trainyard.operator.gang import gang_rejection_reason
    from trainyard.operator.nodes import pool_rejection_reason, reservation_warning
    from trainyard.operator.observe import ClusterState
    from trainyard.operator.queue import trial_attempt

    trial = trial_attempt(job["metadata"]["namespace"], spec, settings, size, ClusterState(tools_image=""))
    why = pool_rejection_reason(status, trial, time.time()) or gang_rejection_reason(status, trial)
    if why:
        raise PluginError(USAGE, f"queue {spec.job_queue}: {why}")
    if why := reservation_warning(status, settings.queue.scheduling.pool):
        say(f"queue {spec.job_queue}: {why}; the job waits until there is one")


def _check(cluster: Cluster, job: JsonObject) -> None:
    """Let the API server check the job without creating it. Raise PluginError."""
    if cluster.create(job, dry_run=True) is None:
        raise _name_taken(cluster, job)


def _create(cluster: Cluster, job: JsonObject) -> JsonObject:
    """Create the marked job, and delete it if nobody knows whether it was created. Raise PluginError."""
    try:
        # Without an answer to an earlier try, the job with the name may be this one.
        created = cluster.create(job) or _find_same(cluster, job)
    except (PluginError, KeyboardInterrupt) as error:
        if isinstance(error, KeyboardInterrupt) or error.code == UNAVAILABLE:
            _undo_create(cluster, job)
        raise
    if not created:
        raise _name_taken(cluster, job)
    return created


def _undo_create(cluster: Cluster, job: JsonObject) -> None:
    """Delete the job if it was created. Another job with its name stays."""
    name, found = job["metadata"]["name"], None
    with suppress(PluginError, KeyboardInterrupt):
        found = _find_same(cluster, job)
    if found is None:  # a request may still be under way
        say(f"job {name} may still be created: {cluster.command('torchrun cancel', name)}")
    elif found:
        _delete(cluster, found, "the answer to its creation was lost", "and its creation was not confirmed")


def _find_same(cluster: Cluster, job: JsonObject) -> JsonObject | None:
    """Return the job if it was created, None if no job has its name, {} if another job has it."""
    found = cluster.find(n.JOB_PLURAL, job["metadata"]["name"])
    mark = job["metadata"]["annotations"][MARK]
    return found if found is None or found["metadata"].get("annotations", {}).get(MARK) == mark else {}


def _delete(cluster: Cluster, job: JsonObject, why: str, lack: str = "without its workspace") -> None:
    """Delete the job. If that fails, say so, and leave the earlier error as the reason of the end."""
    name = job["metadata"]["name"]
    try:
        cluster.delete(name, job["metadata"]["uid"])
    except (PluginError, KeyboardInterrupt) as error:
        reason = str(error) or "interrupted"
        say(
            f"job {name}: is left, {lack}: {reason}. To remove it, run `{cluster.command('torchrun cancel', name)}`."
        )
    else:
        say(f"job {name}: was deleted: {why}")


def _name_taken(cluster: Cluster, job: JsonObject) -> PluginError:
    name = job["metadata"]["name"]
    return PluginError(USAGE, f"--name: job {name} exists in namespace {cluster.namespace}; use another name")


def _send_through_pod(cluster: Cluster, job: JsonObject, archive: Archive) -> upload.NoSyncPod | None:
    """Send the workspace. If the job waits for something that brings its pod, return what it waits for."""
    name = job["metadata"]["name"]
    try:
        nearby = upload.pods_that_have(cluster, archive.digest, name)
        upload.wait_for_sync_pod(cluster, name)
        upload.to_sync_pod(cluster, name, archive, nearby)
    except upload.NoSyncPod as error:
        if error.until:
            return error
        _delete(cluster, job, "the controller refuses it")
        raise PluginError(USAGE, f"job {name}: {error.why}") from None
    except BaseException as error:
        ended = f"it has {error.phase} already" if isinstance(error, upload.Ended) else ""
        _delete(cluster, job, ended or "its workspace could not be sent")
        raise
    return None
