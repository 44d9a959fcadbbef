"""Turns: every way once in every round, in no fixed order, alike in all processes; no median of a few."""

from __future__ import annotations

from functools import partial

import pytest

from tests.benchmarks.turns import LEAST, in_turns, middle

WAYS = ("ours", "bare", "again")


def calls(rounds: int, seed: int = 0) -> tuple[list[str], dict[str, list[float]]]:
    """The order of the calls, and what came of them: each returns how many there were before it."""
    order: list[str] = []

    def called(name: str) -> float:
        order.append(name)
        return len(order) - 1.0

    found = in_turns({name: partial(called, name) for name in WAYS}, rounds, seed)
    return order, found


def test_each_round_has_every_way_once_and_values_stay_in_their_rounds() -> None:
    order, found = calls(30)
    rounds = [tuple(order[at : at + 3]) for at in range(0, 90, 3)]
    assert all(sorted(each) == sorted(WAYS) for each in rounds)
    assert len(set(rounds)) == 6, "every order comes, so that none has an advantage"
    for values in found.values():
        assert [value // 3 for value in values] == list(range(30))


def test_all_processes_have_the_same_order_and_another_seed_has_another() -> None:
    assert calls(30)[0] == calls(30)[0]
    assert calls(30)[0] != calls(30, seed=1)[0]


def test_a_median_is_taken_of_seven_values_at_least() -> None:
    assert LEAST == 7
    assert middle([9.0, 1, 8, 2, 7, 3, 4]) == 4.0
    with pytest.raises(ValueError, match="a median of 6 values; expected at least 7"):
        middle([1.0] * 6)
