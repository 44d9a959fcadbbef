"""All changes of moto, in the order of their installation: later ones wrap earlier ones."""

from __future__ import annotations

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


def install() -> None:
    """Install the changes. Call it once."""
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
        authorise,
    ):
        module.install()
