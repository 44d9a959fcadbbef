"""Which interruptions a sweep tries, and how it goes on where it was stopped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import seed
from tests.sweeps import plan
from tests.sweeps.interrupt import DONE, Counter
from tests.sweeps.plan import Interruption, Outcome, Result, interruptions

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(plan, "RESULTS", tmp_path)
    monkeypatch.setattr(plan, "commit", lambda: "abc")
    return tmp_path


def outcome(left: tuple[str, ...] = (), down: int = 0) -> Outcome:
    interruption = Interruption(command="up", at=3)
    return Outcome(interruption=interruption, reached=3, down=down, left=left, taken_over=1, swept=0)


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


def test_an_unfinished_sweep_of_the_same_commit_goes_on(results: Path) -> None:
    first = Result.resume("local", 5, 3)
    first.add(outcome())
    again = Result.resume("local", None, 3)
    assert (again.seed, again.outcomes) == (5, [outcome()])
    again.add(outcome(left=("vpc",)))
    again.add(outcome(down=1))
    read = json.loads((results / "local.json").read_text())
    assert (read["done"], read["clean"], read["commit"], read["seed"]) == (3, 1, "abc", 5)
    assert Result.resume("local", 5, 3).outcomes == [], "a finished one begins anew"


@pytest.mark.parametrize("change", [{"commit": "other"}, {"seed": 6}, {"count": 4}])
def test_a_sweep_of_something_else_begins_anew(
    change: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    Result.resume("local", 5, 3).add(outcome())
    if "commit" in change:
        monkeypatch.setattr(plan, "commit", lambda: "other")
    seed, count = int(str(change.get("seed", 5))), int(str(change.get("count", 3)))
    assert Result.resume("local", seed, count).outcomes == []


def test_only_finished_resources_are_counted(tmp_path: Path) -> None:
    log = tmp_path / "log"
    counter = Counter(log, DONE["up"])
    assert counter.count() == 0
    log.write_text(
        " +  aws:ec2:Vpc a creating (0s) \n +  aws:ec2:Vpc a created (0.5s) \n@ updating....\n"
        " +  aws:ec2:Route r created (0.50s) \n -  aws:ec2:Vpc a deleted (0.1s) \n"
    )
    assert counter.count() == 2
