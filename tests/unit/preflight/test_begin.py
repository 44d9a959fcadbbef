"""When capacity reservations begin: what the stack file says must be so, and one that has not begun is one line."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tests.unit.emulator import Cloud
from tests.unit.preflight.accounts import NOW, account, checks, only, wanted
from tests.unit.preflight.test_capacity import (
    BLOCK,
    LAST_END,
    POOL,
    RESERVED,
    SECOND,
    block,
    judged,
    judged_both,
    made,
    reserved,
)
from trainyard.preflight.__main__ import lines
from trainyard.preflight.capacity import check_reservations
from trainyard.preflight.run import examine
from trainyard.preflight.wanted import Caution, Problem

pytestmark = pytest.mark.unit

BEGIN, LATER = NOW + timedelta(days=1), NOW + timedelta(days=3)
BEGINS = f"{POOL}.reservationBegins"


def scheduled(
    begins: datetime, told: datetime | None, *, on_demand_fallback: bool = False
) -> list[Problem | Caution]:
    """What is told of a block that has not begun or has, and of nothing else."""
    ends = NOW + timedelta(days=9)
    block_ = made(
        kind="capacity-block", begins=begins, ends=ends, state="scheduled" if begins > NOW else "active"
    )
    changes = {**BLOCK, "reservation_ends": ends, "reservation_begins": told}
    return check_reservations(
        wanted(pools=(reserved(RESERVED, **changes, on_demand_fallback=on_demand_fallback),)),
        {RESERVED: block_},
        NOW,
    )


def test_block_that_has_not_started_is_one_line() -> None:
    (note,) = scheduled(BEGIN, BEGIN)
    assert isinstance(note, Caution)
    assert str(note) == (
        f"{BEGINS}: '{RESERVED}' begins at 2026-11-22T12:00:00Z; until then the pool has no machines"
    )
    (note,) = scheduled(BEGIN, BEGIN, on_demand_fallback=True)
    assert isinstance(note, Caution)
    assert note.message.endswith("until then the pool has none but those on demand")


@pytest.mark.parametrize(
    ("told", "said"),
    [(None, "is missing"), (LATER, "is 2026-11-24T12:00:00Z"), (NOW, "is 2026-11-21T12:00:00Z")],
)
def test_another_begin_than_the_blocks_is_one_line_with_the_right_one(
    told: datetime | None, said: str
) -> None:
    (problem,) = scheduled(BEGIN, told)
    assert isinstance(problem, Problem)
    assert str(problem) == f"{BEGINS}: {said}; it must be 2026-11-22T12:00:00Z, the begin of '{RESERVED}'"


@pytest.mark.parametrize("told", [None, NOW, NOW - timedelta(days=3)])
def test_of_a_block_that_has_begun_nothing_need_be_said(told: datetime | None) -> None:
    assert scheduled(NOW, told) == []


def test_a_begin_to_come_of_a_block_that_has_begun_is_told() -> None:
    (problem,) = scheduled(NOW - timedelta(days=1), LATER)
    assert str(problem).startswith(
        f"{BEGINS}: is 2026-11-24T12:00:00Z; it must be left out: '{RESERVED}' has begun"
    )


def both_begin(first: datetime, second: datetime, told: datetime | None) -> list[str]:
    ends = NOW + timedelta(days=9)
    blocks = (
        made(kind="capacity-block", begins=begins, ends=ends, reservation_id=identity)
        for begins, identity in ((first, RESERVED), (second, SECOND))
    )
    return judged_both(*blocks, **{**BLOCK, "reservation_ends": ends, "reservation_begins": told})


def test_of_two_blocks_the_first_begin_counts() -> None:
    (line,) = both_begin(LATER, BEGIN, BEGIN)
    assert f"'{SECOND}' begins at 2026-11-22T12:00:00Z, the first of 2 to begin; until then" in line
    (line,) = both_begin(BEGIN, LATER, None)
    assert line.endswith(
        f"it must be 2026-11-22T12:00:00Z, the begin of '{RESERVED}', the first of 2 to begin"
    )
    assert both_begin(NOW, LATER, None) == [], "there are machines already"


def test_of_the_begin_nothing_is_said_while_a_reservation_is_missing_or_ec2_says_none() -> None:
    lines = judged_both(made(kind="capacity-block", begins=BEGIN, ends=LAST_END), None, **BLOCK)
    only(lines, f"{POOL}.capacityReservationIds[1]", "does not exist")
    assert judged(made(kind="capacity-block", ends=BLOCK["reservation_ends"]), **BLOCK) == []
    unknown = made(kind="capacity-block", ends=LAST_END)
    later = made(kind="capacity-block", begins=BEGIN, ends=LAST_END, reservation_id=SECOND)
    assert judged_both(unknown, later, **{**BLOCK, "reservation_ends": LAST_END}) == [], (
        "the other may have begun"
    )


def test_an_odcr_that_has_not_begun_is_a_note_whether_the_stack_file_says_so_or_not() -> None:
    for told in (None, BEGIN):
        pool_ = reserved(RESERVED, reservation_begins=told)
        found = check_reservations(
            wanted(pools=(pool_,)), {RESERVED: made(begins=BEGIN, state="scheduled")}, NOW
        )
        assert [type(each) for each in found] == [Caution]


def test_a_block_that_the_emulator_sells_for_later_is_a_note_of_the_report(cloud: Cloud) -> None:
    ends = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=36)
    identity = block(cloud, ends)
    wanted_pool = reserved(
        identity,
        instance_type="p5.48xlarge",
        vcpus=192,
        reservation_type="capacity-block",
        reservation_begins=ends - timedelta(hours=24),
        reservation_ends=ends,
    )
    stack = wanted(pools=(wanted_pool,))
    report = examine(account(cloud), stack, datetime.now(UTC), checks("capacity reservations"))
    assert report.problems == []
    assert [note.key for note in report.cautions] == [BEGINS]
    *_, note, last = lines("train", report)
    assert note.startswith(f"caution: {BEGINS}: '{identity}' begins at ")
    assert last.endswith("nothing is missing")
