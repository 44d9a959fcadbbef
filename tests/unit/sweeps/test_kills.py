"""Which kills of a launcher a sweep tries, and how it goes on where it was stopped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.sweeps import plan
from tests.integration.sweeps.kills import LONGEST_PAUSE_SECONDS, Kill, Outcome, Result, pause, sample


def outcome(kill: Kill, at: str = "POST /api", wrongs: tuple[str, ...] = ()) -> Outcome:
    return Outcome(kill=kill, commit=plan.commit(), at=at, summary="code 0, 2 nodes", wrongs=wrongs)


def swept(result: Result, writes: int) -> list[Kill]:
    """Go on with a run of so many writes, to the end."""
    tried = []
    while (kill := result.next()) is not None:
        result.add(outcome(kill, "POST /api" if kill.write <= writes else ""))
        tried.append(kill)
    return tried


def test_every_write_is_tried_before_and_after_until_a_run_has_no_more() -> None:
    result = Result.resume(5, of="launcher")
    tried = [(kill.write, kill.moment) for kill in swept(result, 2)]
    assert tried == [(1, "before"), (1, "after"), (2, "before"), (2, "after"), (3, "before")]
    assert result.complete


def test_resume_continues_only_an_unfinished_sweep(results: Path) -> None:
    first = Result.resume(5, of="launcher")
    for _ in range(3):
        kill = first.next()
        assert kill is not None
        first.add(outcome(kill))
    again = Result.resume(None, of="launcher")
    assert (again.seed, again.outcomes, again.complete) == (5, first.outcomes, False)
    assert again.next() == Kill(write=2, moment="after")
    swept(again, 3)
    read = json.loads((results / "launcher.json").read_text())
    assert (read["complete"], read["done"], read["clean"], read["seed"]) == (True, 7, 7, 5)
    assert read["outcomes"][0]["kill"] == {"write": 1, "moment": "before", "of": ""}
    assert Result.resume(5, of="launcher").outcomes == []


def test_what_went_wrong_at_an_earlier_commit_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    first = Result.resume(5, of="launcher")
    bad = Kill(write=1, moment="after")
    first.add(outcome(Kill(write=1, moment="before")))
    first.add(outcome(bad, wrongs=("2 PyTorchJobs were made",)))
    swept(first, 3)
    monkeypatch.setattr(plan, "commit", lambda: "other")
    again = Result.resume(None, of="launcher")
    assert again.next() == bad, "a complete sweep with a wrong outcome goes on, too"
    again.add(outcome(bad))
    assert again.complete
    assert {each.commit for each in again.outcomes} == {"abc", "other"}


def test_resume_with_another_seed_starts_again() -> None:
    Result.resume(5, of="launcher").add(outcome(Kill(write=1, moment="before")))
    assert Result.resume(6, of="launcher").outcomes == []


def test_a_seed_draws_the_same_again() -> None:
    writes = {"POST /jobs": 2, "PATCH /jobs/vit-0": 10}
    kills = sample(7, 6, writes)
    assert kills == sample(7, 6, writes)
    assert kills != sample(8, 6, writes)
    assert len(set(kills)) == 6
    assert {kill.moment for kill in sample(7, 24, writes)} == {"before", "after"}
    pauses = [pause(7, kill) for kill in kills]
    assert pauses == [pause(7, kill) for kill in kills]
    assert all(0 <= each <= LONGEST_PAUSE_SECONDS for each in pauses)
    assert len(set(pauses)) > 3


def test_what_is_read_is_complete_by_what_was_tried_whatever_it_says(results: Path) -> None:
    swept(Result.resume(5, of="launcher"), 2)
    assert Result.read("launcher").complete
    file = results / "launcher.json"
    kept = json.loads(file.read_text())
    file.write_text(json.dumps({**kept, "outcomes": kept["outcomes"][:-1]}))
    assert not Result.read("launcher").complete


def test_writes_that_have_names_are_tried_by_them_whatever_their_order(results: Path) -> None:
    first = Result.resume(5, of="controller")
    first.writes = {"POST /jobs": 2, "PATCH /jobs/vit-0": 1}
    tried = swept(first, 1)  # that a life has one of them less ends nothing
    assert len(set(tried)) == 6
    assert [str(each) for each in tried[:3]] == [
        "killed before write 1 of POST /jobs",
        "killed after write 1 of POST /jobs",
        "killed before write 2 of POST /jobs",
    ]
    assert Result.read("controller").complete
    file = results / "controller.json"
    kept = json.loads(file.read_text())
    file.write_text(json.dumps({**kept, "outcomes": kept["outcomes"][1:]}))
    assert Result.resume(None, of="controller").next() == tried[0]
