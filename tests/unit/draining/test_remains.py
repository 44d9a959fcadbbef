"""The sweep after the cluster is deleted waits for the network and names the resources that block it."""

from __future__ import annotations

import pytest

from components.draining.cluster_api import DrainError
from components.draining.steps import remove_remains
from tests.unit.draining.test_steps import Time


class FakeAccount:
    """An account with an interface that is free after `free_after` rounds, or never if it is None."""

    def __init__(self, free_after: int | None) -> None:
        self.rounds = 0
        self.free_after = free_after
        self.has_interface = True
        self.guardduty_vpcs: list[str] = []
        # Rounds in which late log entries have created the log group again.
        self.late_rounds: set[int] = set()

    def remove_interfaces(self) -> list[str]:
        self.rounds += 1
        if self.has_interface and self.free_after is not None and self.rounds > self.free_after:
            self.has_interface = False
            return ["network interface eni-1"]
        return []

    def remove_cluster_group(self) -> list[str]:
        return []

    def remove_guardduty(self, vpc: str) -> list[str]:
        self.guardduty_vpcs.append(vpc)
        return []

    def remove_late_logs(self) -> list[str]:
        return ["log group g"] if self.rounds in self.late_rounds else []

    def remaining(self, vpc: str | None) -> list[str]:
        return ["network interface eni-1"] if self.has_interface else []


def sweep(account: FakeAccount, vpc: str | None, *, timeout: float = 60, late_logs: float = 0) -> list[str]:
    """Return the progress lines of the sweep."""
    lines: list[str] = []
    remove_remains(account, vpc, timeout=timeout, late_logs=late_logs, report=lines.append, clock=Time())
    return lines


def test_sweep_waits_for_an_interface_in_use() -> None:
    account = FakeAccount(free_after=5)
    lines = sweep(account, "vpc-1")
    assert lines == ["16 s: waiting for network interface eni-1", "20 s: removed network interface eni-1"]
    assert set(account.guardduty_vpcs) == {"vpc-1"}


def test_sweep_at_timeout_names_the_interface() -> None:
    with pytest.raises(DrainError, match="still in the network: network interface eni-1"):
        sweep(FakeAccount(free_after=None), None, timeout=20)


def test_sweep_of_an_existing_vpc_keeps_guardduty() -> None:
    account = FakeAccount(free_after=0)
    sweep(account, None)
    assert account.guardduty_vpcs == []


def test_sweep_removes_a_recreated_log_group_until_deadline() -> None:
    account = FakeAccount(free_after=0)
    account.late_rounds = {1, 3, 6}
    lines = sweep(account, None, late_logs=18)
    assert [line for line in lines if "log group" in line] == [
        "0 s: removed log group g",
        "8 s: removed log group g",
        "18 s: removed log group g",
    ], "the last round runs after the deadline for late entries"


def test_sweep_without_late_logs_does_not_wait() -> None:
    account = FakeAccount(free_after=0)
    account.late_rounds = {1}
    assert sweep(account, None, late_logs=0) == [
        "0 s: removed network interface eni-1",
        "0 s: removed log group g",
    ]
    assert account.rounds == 1


def test_sweep_wait_for_late_logs_may_exceed_the_timeout() -> None:
    assert sweep(FakeAccount(free_after=0), None, timeout=2, late_logs=20) == [
        "0 s: removed network interface eni-1",
        "16 s: waiting for late entries of the control plane's logs, 4 s more",
    ]
