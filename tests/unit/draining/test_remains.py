"""After the cluster: the sweep waits for what still holds the network, and says what it is."""

from __future__ import annotations

import pytest

from components.draining.remains import remove
from components.draining.steps import DrainError
from tests.unit.draining.test_steps import Time

pytestmark = pytest.mark.unit


class Remaining:
    """An account in which an interface becomes free after some rounds (never, for None)."""

    def __init__(self, free_after: int | None) -> None:
        self.rounds = 0
        self.free_after = free_after
        self.there = True
        self.asked: list[str] = []

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

    def held(self, vpc: str | None) -> list[str]:
        return ["network interface eni-1"] if self.there else []


def test_an_interface_that_is_still_in_use_is_waited_for() -> None:
    account, lines = Remaining(free_after=5), []
    remove(account, "vpc-1", timeout=60, say=lines.append, clock=Time())
    assert lines == ["16 s: waiting for network interface eni-1", "20 s: removed network interface eni-1"]
    assert set(account.asked) == {"vpc-1"}


def test_what_does_not_go_is_named() -> None:
    with pytest.raises(DrainError, match="still in the network: network interface eni-1"):
        remove(Remaining(free_after=None), None, timeout=20, say=lambda _: None, clock=Time())


def test_a_given_vpc_is_not_searched_for_what_others_put_there() -> None:
    account = Remaining(free_after=0)
    remove(account, None, timeout=20, say=lambda _: None, clock=Time())
    assert account.asked == []
