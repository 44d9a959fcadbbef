"""What is deleted beside a training, and that nothing is once another has the place."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from trainer.checkpoint import layout
from trainer.checkpoint.owner import Owner
from trainer.checkpoint.write import delete_step, delete_surplus, delete_unfinished
from trainer.stores import Directory, Store, StoreError

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


ACTS: dict[str, Callable[[Store, int], object]] = {
    "step": lambda store, generation: delete_step(store, REMAINS, generation),
    "unfinished": lambda store, generation: delete_unfinished(store, REMAINS, generation),
    "surplus": lambda store, generation: list(delete_surplus(store, 3, 2, (), generation)),
}
LEFT = {"step": [1, 2, 3], "unfinished": [1, 2, 3], "surplus": [2, 3, 4]}


@pytest.mark.parametrize("act", ACTS)
def test_the_owner_deletes_what_is_to_go(store: Directory, act: str) -> None:
    ACTS[act](store, owner(store).generation)
    assert steps(store) == LEFT[act]


@pytest.mark.parametrize("act", ACTS)
def test_who_was_taken_over_deletes_nothing(store: Directory, act: str) -> None:
    generation = owner(store).generation
    owner(store)
    before = store.list()
    if act == "step":
        with pytest.raises(StoreError, match=r"cannot delete .*/step-000000004: it was taken over"):
            ACTS[act](store, generation)
    else:
        failed = ACTS[act](store, generation)
        assert act != "surplus" or "it was taken over" in str(failed)
    assert store.list() == before


def test_the_claim_is_checked_before_each_deletion(store: Directory) -> None:
    generation = owner(store).generation

    class Watched(Directory):
        def delete(self, paths: Iterable[str]) -> None:
            super().delete(paths)
            owner(store)  # another takes over in between

    failed = list(delete_surplus(Watched(store.path), 3, 1, (), generation))
    assert [step for step, _ in failed] == [2]
    assert steps(store) == [2, 3, 4]


def test_the_manifest_is_deleted_first(store: Directory) -> None:
    deleted: list[str] = []

    class Watched(Directory):
        def delete(self, paths: Iterable[str]) -> None:
            deleted.extend(paths)

    delete_step(Watched(store.path), 3, None)
    assert deleted == ["step-000000003/manifest.json", "step-000000003/a-0-0.distcp"]


def test_a_step_without_files_needs_no_claim(store: Directory) -> None:
    generation = owner(store).generation
    owner(store)
    delete_step(store, 9, generation)


def test_a_finished_step_is_no_remains(store: Directory) -> None:
    delete_unfinished(store, 3, None)
    assert steps(store) == [1, 2, 3, 4]
