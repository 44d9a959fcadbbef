"""What the lives of a sweep come to, as figures."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.benchmarks.figures import verdict
from tests.integration.sweeps.history import BEFORE, Made, differences, figures

WHOLE = Made(made=Counter({"Job vit-0 of TorchrunJob": 1, "Pod 0 of vit-0": 1}), left=frozenset({"claim"}))


def of(
    *, made: dict[str, int] | None = None, left: tuple[str, ...] = ("claim",), after: str = ""
) -> tuple[str, ...]:
    life = Made(
        made=WHOLE.made + Counter(made or {}),
        left=frozenset(left),
        wrongs=(f"after its end: {after}",) if after else (),
    )
    return differences(life, WHOLE)


def test_a_life_as_the_undisturbed_one_is_nothing_wrong() -> None:
    rows = figures(of())
    assert [(row.name, row.value) for row in rows] == [
        ("duplicates", 0), ("orphans", 0), ("re-runs", 0), ("missing", 0)
    ]  # fmt: skip
    assert verdict(rows) == 0


@pytest.mark.parametrize(
    ("wrongs", "name"),
    [
        (of(made={"Pod 0 of vit-0": 1}), "duplicates"),
        (of(left=("claim", "Service vit")), "orphans"),
        (of(after="TorchrunJob vit is Running again"), "re-runs"),
        (of(left=()), "missing"),
    ],
)
def test_what_is_wrong_is_named(
    wrongs: tuple[str, ...], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verdict(figures([*wrongs, *(f"{BEFORE}{each}" for each in wrongs)])) == 1
    assert capsys.readouterr().err == f"missed: {name}\n"
