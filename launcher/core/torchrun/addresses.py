"""Where a job's workspace is, in a bucket or in its sync pod: who writes it and who reads it agree here. Pure."""

from __future__ import annotations

import re
from typing import Final

from launcher.core.torchrun import names as n

# As launcher/workspace/bucket.py sends archives.
_SENT: Final = re.compile(r"(s3://[^/]+(?:/.*)?)/workspaces/[^/]+")


def sent_below(url: str) -> str:
    """The bucket and prefix that this archive was sent below; empty for one that was not sent by `submit` or `sync`."""
    found = _SENT.fullmatch(url)
    return found[1] if found else ""


def followed_below(url: str, bucket: str) -> str:
    """Where workers look for the pointer of an archive with this address, empty for nowhere.

    `sync` keeps to the bucket that the archive is in, whatever the queue's `bucket` has become since.
    """
    return sent_below(url) or bucket


def pointer_url(where: str, uid: str) -> str:
    """Where the job with this uid has its pointer, below this bucket and prefix."""
    return f"{where.rstrip('/')}/jobs/{uid}/current"


def sync_pod_url(job: str, namespace: str) -> str:
    """Where the sync pod of this job answers within the cluster (launcher/workspace/serve.py)."""
    return f"http://{n.sync_pod(job)}.{job}.{namespace}.svc:{n.SYNC_PORT}"
