from __future__ import annotations

from decimal import Decimal

import pytest

from local.nodes import quantity

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("500m", "0.5"),
        ("2", "2"),
        ("1.5Gi", str(3 * 2**29)),
        ("1k", "1000"),
        ("100Mi", str(100 * 2**20)),
        (3, "3"),
    ],
)
def test_a_quantity_is_the_number_it_stands_for(text: str, expected: str) -> None:
    assert quantity.parse(text) == Decimal(expected)


@pytest.mark.parametrize("text", ["", "Gi", "5Xi", "5mm"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a quantity"):
        quantity.parse(text)


def test_a_time_survives_being_written_and_read() -> None:
    assert quantity.epoch(quantity.timestamp(1_800_000_000.0)) == 1_800_000_000.0
