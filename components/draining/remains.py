"""Removes what a deleted cluster leaves in its network and in no state.

The VPC CNI leaves network interfaces if their node ends first. EKS leaves its security group if such an interface uses
it, and GuardDuty keeps its endpoint and group. The control plane's log group must go because the next cluster needs its
name: EKS delivers entries within a few minutes
(https://docs.aws.amazon.com/eks/latest/userguide/control-plane-logs.html) with its own role, and entries after the
deletion of the group create it again. Pure: account and clock are passed in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from .steps import POLL_SECONDS, REPORT_SECONDS, Clock, DrainError, some


class RemainsApi(Protocol):
    """The calls to the AWS account. `account_api` implements them."""

    def remove_interfaces(self) -> list[str]:
        """Remove the cluster's free interfaces. Return their names."""

    def remove_cluster_group(self) -> list[str]:
        """Remove the group that EKS created. Return its name."""

    def remove_guardduty(self, vpc: str) -> list[str]:
        """Remove what GuardDuty created in the VPC. Return the names."""

    def remove_late_logs(self) -> list[str]:
        """Remove the control plane's log group if late entries created it again. Return its name."""

    def remaining(self, vpc: str | None) -> list[str]:
        """Return what still uses the network, in whatever state."""


def remove(
    account: RemainsApi,
    vpc: str | None,
    *,
    timeout: float,
    late_logs: float,
    say: Callable[[str], None],
    clock: Clock,
) -> None:
    """Remove the leftovers of a cluster. `vpc` is its id if the stack created it, None for an existing one.

    `late_logs` are the seconds for which entries of the control plane's logs may still come.

    Raises:
        DrainError: Something still uses the network after `timeout` seconds.
    """
    started = reported = clock.now()
    while True:
        # Before the search for the group, so that the last round sees an entry of the last moment.
        left = late_logs - (clock.now() - started)
        removed = [*account.remove_interfaces(), *account.remove_cluster_group(), *account.remove_late_logs()]
        removed += account.remove_guardduty(vpc) if vpc else []
        for name in removed:
            say(f"{clock.now() - started:.0f} s: removed {name}")
        remaining = account.remaining(vpc)
        if not remaining and left <= 0:
            return
        now = clock.now()
        if remaining and now - started >= timeout:
            raise DrainError(
                f"still in the network: {some(remaining)}; find who uses them, then run the destroy again"
            )
        if now - reported >= REPORT_SECONDS:
            reported = now
            waiting = (
                some(remaining)
                if remaining
                else f"late entries of the control plane's logs, {left:.0f} s more"
            )
            say(f"{now - started:.0f} s: waiting for {waiting}")
        clock.sleep(POLL_SECONDS * 2 if remaining else min(POLL_SECONDS * 2, left))
