"""`sync`: send a directory to an existing job. Its running workers take what has changed."""

from __future__ import annotations

import argparse
from typing import Final

from trainyard.kubectl import launcher_choice, manifest, upload
from trainyard.kubectl.cluster import connect
from trainyard.kubectl.output import DONE, USAGE, PluginError, job_reference
from trainyard.kubectl.packing import Packed, workspace_root
from trainyard.operator import names as n
from trainyard.operator.names import archive_prefix
from trainyard.workspace.bucket import archive_url

_SHOWN: Final = 200


def run(options: argparse.Namespace, packed: Packed) -> int:
    """Send the workspace and change the job's spec. Return the exit code."""
    cluster = connect(options)
    job, name = cluster.job(options.name), options.name
    spec, phase = job["spec"], job.get("status", {}).get("phase")
    before = spec.get("workspace", {})
    old_url, old_digest = str(before.get("url") or ""), str(before.get("digest") or "")
    where, problem = archive_prefix(old_url), ""
    if phase in n.FINAL_PHASES:
        problem = f"has {phase.lower()}; submit another job"
    elif "workspace" not in spec:
        problem = "was submitted without a workspace; submit another job with one"
    elif old_url and not where:
        problem = (
            f"spec.workspace.url is {old_url[:_SHOWN]!r}, which was not sent by submit or sync; submit another job "
            "with the workspace from here"
        )
    if problem:
        raise PluginError(USAGE, f"job {name}: {problem}")
    try:
        queue = cluster.find(n.QUEUE_PLURAL, spec["jobQueue"])
    except PluginError:  # sync does not need permission to read it
        queue = None
    root = workspace_root(options)
    assert root is not None  # noqa: S101 (sync always has a workspace)
    launcher_choice.check_synced_scripts(job, root, queue)
    bucket = upload.bucket() if where else None
    if not bucket:
        upload.check_sync_pod(cluster, job)
    archive, url = packed(), ""
    assert archive is not None  # noqa: S101
    if bucket:
        with upload.explain_workspace():
            url = archive_url(where, cluster.namespace, archive.digest)
        upload.to_bucket(archive, url, bucket)
    else:
        upload.wait_for_sync_pod(cluster, name)
        is_same = old_digest == archive.digest
        nearby = [] if is_same else upload.pods_that_have(cluster, archive.digest, name)
        upload.to_sync_pod(cluster, name, archive, nearby, keep=old_digest)
    # Always set: a patch without restartOnSync would leave the value of an earlier sync.
    workspace = {**manifest.workspace(archive, url), "restartOnSync": options.restart}
    cluster.change(name, {"workspace": workspace}, job["metadata"]["uid"])
    print(f"{job_reference(name)} synced", flush=True)
    return DONE
