"""What is deleted beside a training, and that nothing is once another has the place."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from trainer.checkpoint import layout
from trainer.checkpoint.owner import Owner
from trainer.checkpoint.writer import Cleaner
from trainer.stores import Directory, StoreError

pytestmark = pytest.mark.unit

FINISHED, REMAINS = (1, 2, 3), 4


@pytest.fixture
def store(tmp_path: Path) -> Directory:
    found = Directory(tmp_path)
    for step in FINISHED:
        found.put(f"{layout.name(step)}/a-0-0.distcp", b"a")
        found.put(f"{layout.name(step)}/manifest.json", b"{}")
    found.put(f"{layout.name(REMAINS)}/a-0-0.distcp", b"a")
    return found


def steps(store: Directory) -> list[int]:
    return sorted(layout.by_step(store.list()))


def owner(store: Directory) -> Owner:
    made = Owner(store, "same", "r1", log_line=lambda _line: None)
    made.claim()
    return made


ACTS: dict[str, Callable[[Cleaner], object]] = {
    "clear": lambda cleaner: cleaner.clear(REMAINS),
    "clear_unfinished": lambda cleaner: cleaner.clear_unfinished(REMAINS),
    "surplus": lambda cleaner: list(cleaner.surplus(3, ())),
}
LEFT = {"clear": [1, 2, 3], "clear_unfinished": [1, 2, 3], "surplus": [2, 3, 4]}


@pytest.mark.parametrize("act", ACTS)
def test_the_owner_deletes_what_is_to_go(store: Directory, act: str) -> None:
    ACTS[act](Cleaner(store, 2, owner(store)))
    assert steps(store) == LEFT[act]


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("noticed", [False, True])
def test_who_was_taken_over_deletes_nothing(store: Directory, act: str, noticed: bool) -> None:
    first = owner(store)
    owner(store)
    if noticed:
        first.renew()
        assert first.lost
    before, cleaner = store.list(), Cleaner(store, 2, first)
    if act == "clear":
        with pytest.raises(StoreError, match=r"cannot delete .*/step-000000004: it was taken over"):
            ACTS[act](cleaner)
    else:
        told = ACTS[act](cleaner)
        assert act != "surplus" or "it was taken over" in str(told)
    assert store.list() == before


def test_the_claim_is_looked_at_before_each_deletion(store: Directory) -> None:
    first = owner(store)

    class Watched(Directory):
        def delete(self, paths: Iterable[str]) -> None:
            super().delete(paths)
            owner(store)  # another takes over in between

    told = list(Cleaner(Watched(store.path), 1, first).surplus(3, ()))
    assert [step for step, _ in told] == [2]
    assert steps(store) == [2, 3, 4]


def test_a_step_without_files_needs_nobody_s_leave(store: Directory) -> None:
    first = owner(store)
    owner(store)
    Cleaner(store, 2, first).clear(9)


def test_a_finished_step_is_no_remains(store: Directory) -> None:
    Cleaner(store, 2, None).clear_unfinished(3)
    assert steps(store) == [1, 2, 3, 4]
