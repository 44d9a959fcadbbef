"""Build the addresses of workspaces and logs, in a bucket or in a sync pod. Pure.

In a bucket each kind of object has a prefix, and each namespace one below it, so that IAM can separate teams
(docs/queues.md).
"""

from __future__ import annotations

import json
import re
from typing import Final

from trainyard.k8s import names
from trainyard.operator.core import names as n
from trainyard.operator.core.job_spec import Workspace

ATTEMPT: Final = "attempt-"
NODE: Final = "node-"
_ARCHIVE_URL: Final = re.compile(rf"(s3://[^/]+(?:/.*)?)/{names.TORCHRUN_ARCHIVES}/[^/]+/[^/]+")


def workspaces_prefix(where: str, namespace: str) -> str:
    """Return the prefix of a namespace's archives below this bucket and prefix."""
    return f"{where.rstrip('/')}/{names.TORCHRUN_ARCHIVES}/{namespace}"


def logs_prefix(where: str, namespace: str, uid: str) -> str:
    """Return the prefix of the logs of the job with this uid, below this bucket and prefix."""
    return f"{where.rstrip('/')}/{names.TORCHRUN_LOGS}/{namespace}/{uid}"


def log_url(below: str, attempt: int, node: str) -> str:
    """Return the URL of a worker's log, for its attempt and the number of its node."""
    return f"{below}/{ATTEMPT}{attempt}/{NODE}{node}.log"


def archive_prefix(url: str) -> str:
    """Return the bucket and prefix in the URL of an archive from `submit` or `sync`, "" for another URL."""
    found = _ARCHIVE_URL.fullmatch(url)
    return found[1] if found else ""


def archive_annotation(workspace: Workspace) -> str:
    """Return the annotation with the archive that a worker unpacks (trainyard/workspace/store.py: Pointer)."""
    pointer = {"digest": workspace.digest, "size": workspace.size_bytes, "url": workspace.url}
    return json.dumps(pointer, sort_keys=True)


def sync_pod_url(job: str, namespace: str) -> str:
    """Return where the sync pod of this job answers within the cluster (trainyard/workspace/transfer.py)."""
    return f"http://{n.sync_pod(job)}.{job}.{namespace}.svc:{n.SYNC_PORT}"
