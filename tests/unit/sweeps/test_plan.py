"""Which interruptions a sweep tries, and how it goes on where it was stopped."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests import seed
from tests.integration.sweeps import plan
from tests.integration.sweeps.interrupt import DONE, Counter
from tests.integration.sweeps.plan import Interruption, Outcome, Result, interruptions


def outcome(left: tuple[str, ...] = (), down: int = 0) -> Outcome:
    interruption = Interruption(command="up", at=3)
    return Outcome(
        interruption=interruption,
        commit=plan.commit(),
        reached=3,
        down=down,
        left=left,
        taken_over=1,
        swept=0,
    )


def test_a_seed_gives_the_same_interruptions_again_half_of_them_of_destroy() -> None:
    tried = interruptions(7, 20, 150)
    assert tried == interruptions(7, 20, 150)
    assert tried != interruptions(8, 20, 150)
    assert sum(each.command == "destroy" for each in tried) == 10
    assert all(1 <= each.at <= 150 for each in tried)
    assert len({each.at for each in tried}) > 10


def test_the_seed_of_the_environment_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINYARD_SEED", "42")
    assert seed.of_run() == 42


def test_an_unfinished_sweep_goes_on(results: Path) -> None:
    first = Result.resume("local", 5, 3)
    first.add(outcome())
    again = Result.resume("local", None, 3)
    assert (again.seed, again.outcomes) == (5, [outcome()])
    again.add(outcome(left=("vpc",)))
    again.add(outcome(down=1))
    read = json.loads((results / "local.json").read_text())
    assert (read["done"], read["clean"], read["commit"], read["seed"]) == (3, 1, "abc", 5)
    assert Result.resume("local", 5, 3).outcomes == [], "a finished one starts again"


def test_it_goes_on_at_another_commit_with_what_was_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    first = Result.resume("local", 5, 3)
    clean = outcome()
    first.add(clean)
    first.add(outcome(left=("vpc",)))
    first.add(outcome())
    monkeypatch.setattr(plan, "commit", lambda: "other")
    again = Result.resume("local", None, 3)
    assert again.commit == "other"
    assert again.outcomes == [clean, clean], "what was left by the earlier commit is tried again"
    assert {each.commit for each in again.outcomes} == {"abc"}


@pytest.mark.parametrize("change", [{"seed": 6}, {"count": 4}])
def test_resume_of_another_sweep_starts_again(change: dict[str, int]) -> None:
    Result.resume("local", 5, 3).add(outcome())
    assert Result.resume("local", change.get("seed", 5), change.get("count", 3)).outcomes == []


def test_what_was_tried_is_not_tried_again() -> None:
    result = Result.resume("local", 5, 20)
    every = result.todo(150)
    assert every == interruptions(5, 20, 150)
    for each in every[3:9]:
        result.add(replace(outcome(), interruption=each))
    assert result.todo(150) == [*every[:3], *every[9:]]
    assert len(result.todo(151)) == 14, "another size has other interruptions, but no more of them"


def test_only_finished_resources_are_counted(tmp_path: Path) -> None:
    log = tmp_path / "log"
    counter = Counter(log, DONE["up"])
    assert counter.count() == 0
    log.write_text(
        " +  aws:ec2:Vpc a creating (0s) \n +  aws:ec2:Vpc a created (0.5s) \n@ updating....\n"
        " +  aws:ec2:Route r created (0.50s) \n -  aws:ec2:Vpc a deleted (0.1s) \n"
    )
    assert counter.count() == 2
    with log.open("a") as file:
        file.write(" +  aws:ec2:Eip e created (1s) \n +  aws:ec2:Eip f created (")
    assert counter.count() == 3, "half a line counts when it is whole"
    with log.open("a") as file:
        file.write("2s) \n")
    assert counter.count() == 4
    log.write_text(" +  aws:ec2:Vpc a created (0.5s) \n")
    assert counter.count() == 1, "another engine's log"
