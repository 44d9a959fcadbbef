"""An unchanged directory is not read again; one that may have changed is."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from trainyard.workspace import archive
from trainyard.workspace.archive import Archive, CachedArchive, pack, pack_cached
from trainyard.workspace.errors import WorkspaceError

LIMIT = 2**20


class Place:
    """A directory with code, and the cache of its digest."""

    def __init__(self, root: Path) -> None:
        self.code, self.memory, self._scratch = root / "code", root / "memory", root / "scratch"
        self._count = 0
        for each in (self.code / "inner", self._scratch):
            each.mkdir(parents=True)
        (self.code / "train.py").write_text("one = 1\n")
        (self.code / "inner" / "data.py").write_text("two = 2\n")
        (self.code / "link").symlink_to("train.py")

    def packed(self) -> Archive:
        self._count += 1
        directory = self._scratch / str(self._count)
        directory.mkdir()
        return pack_cached(self.code, LIMIT, directory, self.memory, lambda _done, _total: None)

    def truth(self) -> str:
        archive = pack(self.code, LIMIT)
        archive.file.unlink()
        return archive.digest


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Its files count as old at once, because a test can't set a ctime."""
    monkeypatch.setattr(archive, "TICK_NANOSECONDS", -(10**12))
    return Place(tmp_path)


def test_cached_archive_opened_packs_again(place: Place) -> None:
    first = place.packed()
    again = place.packed()
    assert not isinstance(first, CachedArchive)
    assert isinstance(again, CachedArchive)
    for field in ("digest", "size", "content", "files"):
        assert getattr(again, field) == getattr(first, field)
    assert not again.file.exists()
    with again.open() as opened, first.open() as other:
        assert opened.read() == other.read()


def keep_size_and_times(place: Place) -> None:
    file = place.code / "train.py"
    known = file.stat()
    file.write_text("one = 9\n")
    os.utime(file, ns=(known.st_atime_ns, known.st_mtime_ns))


CHANGES: dict[str, Callable[[Place], object]] = {
    "content of the same size and time": keep_size_and_times,
    "content": lambda place: (place.code / "train.py").write_text("one = 11\n"),
    "another file": lambda place: (place.code / "more.py").write_text(""),
    "a file less": lambda place: (place.code / "inner" / "data.py").unlink(),
    "another name": lambda place: (place.code / "train.py").rename(place.code / "main.py"),
    "who may execute it": lambda place: (place.code / "train.py").chmod(0o755),
    "a link's target": lambda place: (
        (place.code / "link").unlink(),
        (place.code / "link").symlink_to("inner/data.py"),
    ),
    "what is left out": lambda place: (place.code / ".torchrunignore").write_text("inner\n"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=list(CHANGES))
def test_pack_cached_after_a_change_packs_again(place: Place, change: Callable[[Place], object]) -> None:
    before = place.packed()
    change(place)
    after = place.packed()
    assert not isinstance(after, CachedArchive)
    assert after.digest == place.truth()
    assert after.digest != before.digest
    assert isinstance(place.packed(), CachedArchive)


def test_pack_cached_of_a_recent_change_packs_again(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.packed()
    assert not isinstance(place.packed(), CachedArchive)
    assert not place.memory.exists()


def test_cached_archive_opened_after_a_change_is_refused(place: Place) -> None:
    place.packed()
    again = place.packed()
    (place.code / "train.py").write_text("one = 11\n")
    with pytest.raises(WorkspaceError, match="code changed while it was sent; try again when nothing writes"):
        again.open()
    assert list(again.file.parent.iterdir()) == []


@pytest.mark.parametrize("record", ["", "[]", "{}", '{"mark": 1}', "\x00"])
def test_pack_cached_with_a_broken_record_packs_again(place: Place, record: str) -> None:
    place.packed()
    (file,) = place.memory.iterdir()
    file.write_text(record)
    assert not isinstance(place.packed(), CachedArchive)
    assert isinstance(place.packed(), CachedArchive)


def test_pack_cached_without_a_writable_cache_packs_again(place: Place) -> None:
    place.memory.write_text("in the way")
    assert place.packed().digest == place.packed().digest
    assert place.memory.read_text() == "in the way"
    place.memory.unlink()
    place.memory.symlink_to(place.memory.name)
    assert place.packed().digest == place.packed().digest


def test_pack_cached_with_cache_in_workspace_writes_none(place: Place) -> None:
    place.memory = place.code / "cache"
    first = place.packed()
    assert place.packed().digest == first.digest
    assert not place.memory.exists()
