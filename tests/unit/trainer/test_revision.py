"""Which state of the project a model says it was trained by."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.repositories import git

pytestmark = [pytest.mark.unit, pytest.mark.long]


@pytest.fixture(scope="module", autouse=True)
def _torch() -> None:
    """Import torch where the tests run. Collection imports this module in every worker, and torch takes two seconds."""
    global revision
    from trainer.train import revision


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    place = tmp_path / "checkout"
    place.mkdir()
    git(place, "init", "--quiet")
    (place / "file").write_text("one")
    git(place, "add", "file")
    git(place, "commit", "--quiet", "--message", "one")
    git(place, "tag", "--annotate", "--message", "v1", "v1")
    return place


def test_revision_of_the_image_has_precedence(checkout: Path) -> None:
    assert revision({"TRAINYARD_REVISION": "0123abc"}, checkout) == "0123abc"


def test_a_checkout_says_its_whole_hash_and_whether_it_was_changed(checkout: Path) -> None:
    head = git(checkout, "rev-parse", "HEAD")
    assert revision({"TRAINYARD_REVISION": ""}, checkout) == head
    (checkout / "file").write_text("two")
    assert revision({}, checkout) == f"{head}-dirty"


def test_nobody_knows_it_of_a_directory_also_inside_of_another_repository(
    checkout: Path, tmp_path: Path
) -> None:
    (checkout / "site-packages").mkdir()
    assert revision({}, checkout / "site-packages") is None
    assert revision({}, tmp_path) is None


def test_what_is_no_revision_is_left_out(checkout: Path, tmp_path: Path) -> None:
    assert revision({"TRAINYARD_REVISION": "two\nlines"}, checkout) is None
    assert revision({"TRAINYARD_REVISION": "é"}, checkout) is None
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / ".git").write_text("gitdir: nowhere")
    assert revision({}, broken) is None
