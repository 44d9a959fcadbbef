"""All changes of moto, installed once per process and in this order: later ones wrap earlier ones."""

from __future__ import annotations

import threading

from local.aws import (
    addresses,
    authorise,
    bucket_policies,
    capacity_blocks,
    dependencies,
    endpoints,
    fleets,
    flow_logs,
    images,
    interfaces,
    keys,
    launch,
    log_groups,
    memory,
    prices,
    quotas,
    reservations,
    s3_deletions,
    searches,
    volume_keys,
    web_identity,
)
from local.aws.eks import responses as eks
from local.aws.fsx import responses as fsx

_lock = threading.Lock()
_installed = False


def install() -> None:
    """Install the changes that are not installed yet."""
    global _installed
    with _lock:
        if _installed:
            return
        for module in (
            memory,
            addresses,
            launch,
            fleets,
            reservations,
            capacity_blocks,
            prices,
            quotas,
            images,
            dependencies,
            web_identity,
            bucket_policies,
            s3_deletions,
            searches,
            log_groups,
            flow_logs,
            endpoints,
            interfaces,
            keys,
            volume_keys,
            eks,
            fsx,
        ):
            module.install()
        authorise.install()
        _installed = True
