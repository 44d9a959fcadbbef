"""The entry point of the resources in `components.drain` when they are deleted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import boto3

from . import protection, steps
from .account_api import AccountClient
from .cluster_api import connect
from .kinds import Scope

REMAINS: Final = "remains"


def at_delete(props: Mapping[str, Any]) -> None:
    """Do the task in `props`, with progress on standard output.

    Raises:
        DrainError: Something is left after the time limit.
    """
    cluster, timeout = str(props["cluster"]), float(props["timeoutSeconds"])
    session = boto3.Session(region_name=str(props["region"]), profile_name=props.get("profile"))
    report = _printer(f"{props['task']} of {cluster}")
    if props["task"] == REMAINS:
        vpc = str(props["vpc"]) if props.get("vpc") else None
        # An earlier version of the program did not record it.
        late = float(props.get("lateLogSeconds", 0))
        account = AccountClient(session, cluster)
        steps.remove_remains(
            account, vpc, timeout=timeout, late_logs=late, report=report, clock=steps.Clock()
        )
        return
    pools = None if props.get("pools") is None else frozenset(map(str, props["pools"]))
    account = AccountClient(session, cluster, pools)
    connection = connect(session, cluster, Scope(pools=pools, torchrun=bool(props.get("torchrun"))))
    steps.run(connection, account, timeout=timeout, report=report, clock=steps.Clock())
    if pools is None:  # an existing cluster stays
        protection.turn_off(session.client("eks"), cluster, report=report, clock=steps.Clock())


def _printer(prefix: str) -> Callable[[str], None]:
    def report(line: str) -> None:
        print(f"{prefix}: {line}", flush=True)

    return report
