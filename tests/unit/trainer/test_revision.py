"""Which state of the project a model says it was trained by."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.repositories import git
from trainer.train import revision

pytestmark = pytest.mark.long


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


def test_revision_of_checkout_is_full_hash_and_dirty_flag(checkout: Path) -> None:
    head = git(checkout, "rev-parse", "HEAD")
    assert revision({"TRAINYARD_REVISION": ""}, checkout) == head
    (checkout / "file").write_text("two")
    assert revision({}, checkout) == f"{head}-dirty"


def test_revision_of_directory_in_another_repository_is_unknown(checkout: Path, tmp_path: Path) -> None:
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
