"""Which work of a run counts, read from its records file."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.trainer.records import EVALUATION, START, STEP, training
from trainer.metrics.files import read_history
from trainer.metrics.record import Record, to_line


def lines(*attempts: list[Record]) -> list[str]:
    return [to_line(record) for each in attempts for record in each]


def test_history_without_restart_counts_all_steps() -> None:
    history = read_history([*lines(training(0, 50)), to_line(EVALUATION)], "r1.jsonl")
    (only,) = history.attempts
    assert history.run == "r1"
    assert [step.step for step in only.steps] == [10, 20, 30, 40, 50]
    assert only.evaluations == (EVALUATION,)
    assert only.lost_after is None


def test_what_came_after_the_checkpoint_is_lost() -> None:
    history = read_history(lines(training(0, 50), training(30, 60, 1)), "x")
    first, second = history.attempts
    assert [first.is_kept(step) for step in first.steps] == [True, True, True, False, False]
    assert all(second.is_kept(step) for step in second.steps)


@pytest.mark.parametrize(
    ("attempts", "lost_after"),
    [
        ([training(0, 50), training(50, 60, 1)], [None, None]),
        ([training(0, 50), training(40, 60, 1), training(20, 90, 2)], [20, 20, None]),
    ],
)
def test_history_loses_the_steps_after_the_oldest_resume(
    attempts: list[list[Record]], lost_after: list[int | None]
) -> None:
    assert [each.lost_after for each in read_history(lines(*attempts), "x").attempts] == lost_after


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 20)), min_size=1, max_size=6))
def test_of_each_step_exactly_one_record_counts(plan: list[tuple[int, int]]) -> None:
    reached, attempts = 0, []
    for number, (back, on) in enumerate(plan):
        begin = max(0, reached - back)
        reached = begin + on
        attempts.append(training(begin, reached, number, every=1))
    history = read_history(lines(*attempts), "x")
    counted = [step.step for each in history.attempts for step in each.steps if each.is_kept(step)]
    assert counted == list(range(1, reached + 1))


def test_bad_lines_are_named_and_skipped() -> None:
    good = lines(training(0, 30))
    history = read_history([*good[:2], '{"form\n', *good[2:], "\n", "[]\n"], "r1.jsonl")
    assert len(history.attempts[0].steps) == 3
    assert len(history.problems) == 2
    assert history.problems[0].startswith("r1.jsonl line 3 is skipped: it is not JSON: ")
    assert history.problems[1] == "r1.jsonl line 7 is skipped: it must be a JSON object"


@pytest.mark.parametrize(
    ("given_", "said"),
    [
        ([], "r1.jsonl has no records of a run"),
        (["\n"], "r1.jsonl has no records of a run"),
        (["x\n"], "r1.jsonl has no records of a run; r1.jsonl line 1 is skipped: it is not JSON"),
        (lines([START]), "r1.jsonl has no steps yet"),
        (lines([STEP]), "r1.jsonl has no steps yet"),
    ],
)
def test_nothing_to_draw_is_an_error_that_says_so(given_: list[str], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        read_history(given_, "r1.jsonl")


def test_a_loss_that_is_no_number_is_a_step_like_another() -> None:
    history = read_history(lines([START, replace(STEP, loss=float("nan"))]), "x")
    assert len(history.attempts[0].steps) == 1
    assert history.problems == ()
