"""After a cluster and its nodes: what still holds the subnets and groups of its network, and is in nobody's state.

The network plugin leaves interfaces when its node goes first, EKS leaves its security group where such an interface
held it, and GuardDuty keeps its own endpoint and group. And the control plane's log group, which holds nothing, but
whose name the next cluster needs: EKS delivers entries within a few minutes
(https://docs.aws.amazon.com/eks/latest/userguide/control-plane-logs.html), by its own role, and those that come
after the group was deleted make it anew. Pure: account and clock are passed in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from components.draining.steps import POLL_SECONDS, REPORT_SECONDS, Clock, DrainError, some


class RemainsApi(Protocol):
    """What is asked of the account. `account_api` has the real one."""

    def remove_interfaces(self) -> list[str]:
        """Remove the cluster's free interfaces; returns their names."""

    def remove_cluster_group(self) -> list[str]:
        """Remove the group that EKS made; returns its name."""

    def remove_guardduty(self, vpc: str) -> list[str]:
        """Remove what GuardDuty made in the VPC; returns the names."""

    def remove_late_logs(self) -> list[str]:
        """Remove the control plane's log group where late entries made it anew; returns its name."""

    def held(self, vpc: str | None) -> list[str]:
        """What still holds the network, in whatever state."""


def remove(
    account: RemainsApi,
    vpc: str | None,
    *,
    timeout: float,
    late_logs: float,
    say: Callable[[str], None],
    clock: Clock,
) -> None:
    """Remove the remains of a cluster; `vpc` only where the stack made it, None for one that was given.

    `late_logs` are the seconds for which entries of the control plane's logs may still come.

    Raises:
        DrainError: something still holds the network after `timeout` seconds.
    """
    started = reported = clock.now()
    while True:
        # Asked before the group is looked for: an entry of the last moment is to be seen by the last round.
        left = late_logs - (clock.now() - started)
        removed = [*account.remove_interfaces(), *account.remove_cluster_group(), *account.remove_late_logs()]
        removed += account.remove_guardduty(vpc) if vpc else []
        for name in removed:
            say(f"{clock.now() - started:.0f} s: removed {name}")
        held = account.held(vpc)
        if not held and left <= 0:
            return
        now = clock.now()
        if held and now - started >= timeout:
            raise DrainError(
                f"still in the network: {some(held)}; find who uses them, then run the destroy again"
            )
        if now - reported >= REPORT_SECONDS:
            reported = now
            waiting = some(held) if held else f"late entries of the control plane's logs, {left:.0f} s more"
            say(f"{now - started:.0f} s: waiting for {waiting}")
        clock.sleep(POLL_SECONDS * 2 if held else min(POLL_SECONDS * 2, left))
