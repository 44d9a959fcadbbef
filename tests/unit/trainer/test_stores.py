"""A directory as a store: whole files or none, and failures that say why."""

from __future__ import annotations

import errno
import os
import pickle
import re
import threading
from pathlib import Path

import pytest

from trainer.contract import Exit
from trainer.stores import Bucket, Directory, MissingError, PlaceError, StoreError, destination, os_errors


@pytest.fixture
def store(tmp_path: Path) -> Directory:
    return Directory(tmp_path / "store")


def test_what_was_put_is_listed_with_its_size_and_read_back(store: Directory) -> None:
    assert store.list() == {}
    store.put("step-1/a", b"four")
    store.put("step-1/.metadata", b"x")
    store.put("other", b"")
    assert store.list() == {"step-1/a": 4, "step-1/.metadata": 1, "other": 0}
    assert store.list("step-") == {"step-1/a": 4, "step-1/.metadata": 1}
    assert store.list("step-1/a") == {"step-1/a": 4}
    assert store.read("step-1/a") == b"four"


def test_files_are_sent_and_fetched(store: Directory, tmp_path: Path) -> None:
    body = os.urandom(3 * 2**20 + 1)
    (tmp_path / "in").write_bytes(body)
    store.send(tmp_path / "in", "deep/down/file")
    store.fetch("deep/down/file", tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == body


def test_put_if_absent_of_many_threads_succeeds_once(store: Directory) -> None:
    won: list[int] = []
    barrier = threading.Barrier(8)

    def put(number: int) -> None:
        barrier.wait()
        if store.put_if_absent("owners/1", f"{number}".encode() * 1000):
            won.append(number)

    threads = [threading.Thread(target=put, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert store.read("owners/1") == f"{won[0]}".encode() * 1000
    assert store.list() == {"owners/1": 1000}  # and no unfinished file of the others


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    store: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("a", b"old")

    def fail(_handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StoreError, match=r"cannot save .*/store/a: No space left on device"):
        store.put("a", b"new")
    assert store.read("a") == b"old"
    assert store.list() == {"a": 3}


def test_write_syncs_content_before_and_name_after_rename(
    store: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    true_sync, true_replace = os.fsync, Path.replace
    monkeypatch.setattr(
        os,
        "fsync",
        lambda each: (done.append("d" if os.path.isdir(f"/proc/self/fd/{each}") else "f"), true_sync(each)),
    )
    monkeypatch.setattr(
        Path, "replace", lambda self, target: (done.append("name"), true_replace(self, target))[1]
    )
    store.put("a", b"x")
    assert done == ["f", "name", "d"]


def test_delete_removes_empty_folder_and_ignores_missing_files(store: Directory) -> None:
    store.put("step-1/a", b"x")
    store.put("step-1/b", b"x")
    store.delete(["step-1/a", "step-1/none", "nowhere/at/all"])
    assert store.list() == {"step-1/b": 1}
    store.delete(["step-1/b"])
    assert [each.name for each in store.path.iterdir()] == []


def test_a_listing_that_fails_is_no_empty_listing(store: Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put("step-1/a", b"x")
    true_scandir = os.scandir

    def fail(path: str) -> object:
        if str(path).endswith("step-1"):
            raise PermissionError(13, "Permission denied", str(path))
        return true_scandir(path)

    monkeypatch.setattr(os, "scandir", fail)
    with pytest.raises(StoreError, match=r"cannot list .*/store: Permission denied"):
        store.list()


def test_directory_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    store = Directory(tmp_path / "file")
    with pytest.raises(PlaceError, match=f"cannot list {tmp_path}/file: Not a directory"):
        store.list()
    with pytest.raises(PlaceError, match=r"cannot save .*: (File exists|Not a directory)"):
        store.put("a", b"x")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errno.ENOTDIR, Exit.CONFIGURATION),
        (errno.EISDIR, Exit.CONFIGURATION),
        (errno.EEXIST, Exit.CONFIGURATION),
        (errno.ELOOP, Exit.CONFIGURATION),
        (errno.ENAMETOOLONG, Exit.CONFIGURATION),
        (errno.ENOENT, Exit.SAVE),
        (errno.EACCES, Exit.SAVE),
        (errno.EROFS, Exit.SAVE),
        (errno.ENOSPC, Exit.SAVE),
        (errno.ESTALE, Exit.SAVE),
        (errno.EIO, Exit.SAVE),
    ],
)
def test_only_a_wrong_place_has_the_code_of_mistakes(error: int, code: Exit) -> None:
    with pytest.raises(StoreError) as caught, os_errors("save", "x"):
        raise OSError(error, os.strerror(error))
    assert caught.value.code == code


@pytest.mark.parametrize("target", ["full", "empty", "missing", "loop"])
def test_linked_directory_is_refused_and_its_target_stays(
    store: Directory, tmp_path: Path, target: str
) -> None:
    store.path.mkdir()
    outside = tmp_path / "outside"
    if target in ("full", "empty"):
        outside.mkdir()
    if target == "full":
        (outside / "a").write_text("x")
    link = store.path / "step-1"
    link.symlink_to(link if target == "loop" else outside)
    before = everything(tmp_path)
    for act in (
        lambda: store.list("step-"),
        lambda: store.list("step-1/"),
        lambda: store.list(),
        lambda: store.delete(["step-1/a"]),
    ):
        with pytest.raises(PlaceError, match=f"^cannot (list|delete) {link}: it is a link; it must be"):
            act()
    assert everything(tmp_path) == before
    assert store.list("other") == {}


def test_store_that_is_a_link_and_linked_files_are_used(store: Directory, tmp_path: Path) -> None:
    store.put("step-1/a", b"four")
    (store.path / "step-1" / "b").symlink_to(store.path / "step-1" / "a")
    (tmp_path / "link").symlink_to(store.path)
    linked = Directory(tmp_path / "link")
    assert linked.list("step-") == {"step-1/a": 4, "step-1/b": 4}
    linked.delete(["step-1/b"])
    assert store.list() == {"step-1/a": 4}


def everything(path: Path) -> list[str]:
    return sorted(str(each.relative_to(path)) for each in path.rglob("*"))


@pytest.mark.parametrize("there", ["", "store", "store/r1"])
def test_a_place_is_probed_by_writing_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: str
) -> None:
    (tmp_path / there).mkdir(parents=True, exist_ok=True)
    before, wrote = everything(tmp_path), []
    monkeypatch.setattr(os, "fsync", lambda handle: wrote.append(os.fstat(handle).st_size))
    Directory(tmp_path / "store").probe("r1/model.pt")
    assert wrote == [1]
    assert everything(tmp_path) == before


def test_probe_of_unwritable_place_names_file_and_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match=f"^cannot save {tmp_path}/file/r1/model.pt: Not a directory$"):
        Directory(tmp_path / "file").probe("r1/model.pt")

    def fail(_handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StoreError, match=r"/store/r1/model.pt: No space left on device$"):
        Directory(tmp_path / "store").probe("r1/model.pt")
    assert everything(tmp_path) == ["file"]


@pytest.mark.skipif(
    not Path("/proc/self").exists(), reason="a file system that takes nothing, from root neither"
)
def test_probe_of_unwritable_file_system_fails_for_root() -> None:
    with pytest.raises(StoreError, match=r"^cannot save /proc/models/r1/model.pt: "):
        Directory(Path("/proc/models")).probe("r1/model.pt")


def test_missing_file_raises_missing_error(store: Directory, tmp_path: Path) -> None:
    for act in (lambda: store.read("none"), lambda: store.fetch("none", tmp_path / "out")):
        with pytest.raises(MissingError, match="No such file"):
            act()


def test_stores_travel_to_other_processes() -> None:
    for uri in ("s3://models/a/b", "/data/checkpoints"):
        store = destination(uri)
        if isinstance(store, Bucket):
            store.__dict__["_client"] = threading.Lock()  # stands for a client, which cannot be pickled
        assert pickle.loads(pickle.dumps(store)) == store  # noqa: S301
    error = pickle.loads(pickle.dumps(MissingError("cannot")))  # noqa: S301
    assert (type(error), str(error)) == (MissingError, "cannot")


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("s3://models", Bucket("models", "")),
        ("s3://models/a/b/", Bucket("models", "a/b")),
        ("file:///data/models", Directory(Path("/data/models"))),
        ("file:///data/my%20models", Directory(Path("/data/my models"))),
        ("/data/models", Directory(Path("/data/models"))),
        ("models", Directory(Path("models"))),
    ],
)
def test_a_destination_is_a_bucket_or_a_directory(uri: str, expected: Bucket | Directory) -> None:
    assert destination(uri) == expected


@pytest.mark.parametrize("place", ["s3://models/a", "file:///data/a", "/data/a", "a"])
@pytest.mark.parametrize("rest", ["?", "#", "?versionId=1", "#1", "?/b", "#/b"])
def test_place_with_a_query_or_fragment_is_refused(place: str, rest: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"'{place}{rest}' has a '{rest[0]}'; a place must have")):
        destination(place + rest)


@pytest.mark.parametrize("uri", ["s3:///x", "s3://Models/x", "s3://ab", "file://host/x", "gs://bucket/x", ""])
def test_anything_else_is_refused_with_the_value(uri: str) -> None:
    with pytest.raises(ValueError, match=f"'{uri}'"):
        destination(uri)


def test_objects_are_named_under_prefix_and_run() -> None:
    assert Bucket("models", "a/b").uri("r1/model.pt") == "s3://models/a/b/r1/model.pt"
    assert Bucket("models", "").uri("r1/model.pt") == "s3://models/r1/model.pt"
