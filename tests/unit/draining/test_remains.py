"""After the cluster: the sweep waits for what still holds the network, and says what it is."""

from __future__ import annotations

import pytest

from components.draining.cluster_api import DrainError
from components.draining.steps import remove_remains
from tests.unit.draining.test_steps import Time

pytestmark = pytest.mark.unit


class Remaining:
    """An account in which an interface becomes free after some rounds (never, for None)."""

    def __init__(self, free_after: int | None) -> None:
        self.rounds = 0
        self.free_after = free_after
        self.there = True
        self.asked: list[str] = []
        # Rounds in which late entries have made the log group anew.
        self.late: set[int] = set()

    def remove_interfaces(self) -> list[str]:
        self.rounds += 1
        if self.there and self.free_after is not None and self.rounds > self.free_after:
            self.there = False
            return ["network interface eni-1"]
        return []

    def remove_cluster_group(self) -> list[str]:
        return []

    def remove_guardduty(self, vpc: str) -> list[str]:
        self.asked.append(vpc)
        return []

    def remove_late_logs(self) -> list[str]:
        return ["log group g"] if self.rounds in self.late else []

    def remaining(self, vpc: str | None) -> list[str]:
        return ["network interface eni-1"] if self.there else []


def sweep(account: Remaining, vpc: str | None, *, timeout: float = 60, late_logs: float = 0) -> list[str]:
    """What the sweep says."""
    lines: list[str] = []
    remove_remains(account, vpc, timeout=timeout, late_logs=late_logs, say=lines.append, clock=Time())
    return lines


def test_an_interface_that_is_still_in_use_is_waited_for() -> None:
    account = Remaining(free_after=5)
    lines = sweep(account, "vpc-1")
    assert lines == ["16 s: waiting for network interface eni-1", "20 s: removed network interface eni-1"]
    assert set(account.asked) == {"vpc-1"}


def test_what_does_not_go_is_named() -> None:
    with pytest.raises(DrainError, match="still in the network: network interface eni-1"):
        sweep(Remaining(free_after=None), None, timeout=20)


def test_a_given_vpc_is_not_searched_for_what_others_put_there() -> None:
    account = Remaining(free_after=0)
    sweep(account, None)
    assert account.asked == []


def test_a_log_group_that_comes_back_is_removed_as_long_as_entries_may_come() -> None:
    account = Remaining(free_after=0)
    account.late = {1, 3, 6}
    lines = sweep(account, None, late_logs=18)
    assert [line for line in lines if "log group" in line] == [
        "0 s: removed log group g",
        "8 s: removed log group g",
        "18 s: removed log group g",
    ], "the last round is after the last moment at which one may come"


def test_where_no_entry_comes_late_nothing_is_waited_for() -> None:
    account = Remaining(free_after=0)
    account.late = {1}
    assert sweep(account, None, late_logs=0) == [
        "0 s: removed network interface eni-1",
        "0 s: removed log group g",
    ]
    assert account.rounds == 1


def test_the_wait_for_late_entries_is_no_failure_after_the_time_for_the_network() -> None:
    assert sweep(Remaining(free_after=0), None, timeout=2, late_logs=20) == [
        "0 s: removed network interface eni-1",
        "16 s: waiting for late entries of the control plane's logs, 4 s more",
    ]
