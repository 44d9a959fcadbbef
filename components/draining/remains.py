"""After a cluster and its nodes: what still holds the subnets and groups of its network, and is in nobody's state.

The network plugin leaves interfaces when its node goes first, EKS leaves its security group where such an interface
held it, and GuardDuty keeps its own endpoint and group. Pure: account and clock are passed in.
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

    def held(self, vpc: str | None) -> list[str]:
        """What is still there of all this, in whatever state."""


def remove(
    account: RemainsApi, vpc: str | None, *, timeout: float, say: Callable[[str], None], clock: Clock
) -> None:
    """Remove the remains of a cluster; `vpc` only where the stack made it, None for one that was given.

    Raises:
        DrainError: something still holds the network after `timeout` seconds.
    """
    started = reported = clock.now()
    while True:
        removed = [*account.remove_interfaces(), *account.remove_cluster_group()]
        removed += account.remove_guardduty(vpc) if vpc else []
        for name in removed:
            say(f"{clock.now() - started:.0f} s: removed {name}")
        held = account.held(vpc)
        if not held:
            return
        now = clock.now()
        if now - started >= timeout:
            raise DrainError(
                f"still in the network: {some(held)}; find who uses them, then run the destroy again"
            )
        if now - reported >= REPORT_SECONDS:
            reported = now
            say(f"{now - started:.0f} s: waiting for {some(held)}")
        clock.sleep(POLL_SECONDS * 2)
