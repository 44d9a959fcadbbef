"""Pack a directory: what the archive contains and depends on, and errors of a directory that can't be sent."""

from __future__ import annotations

import os
import random
import shutil
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard

from tests.unit.workspace.archives import fill
from trainyard.workspace import archive as packing
from trainyard.workspace import selection
from trainyard.workspace.archive import EMPTY_DIRECTORY, digest_of, header, pack, unpack
from trainyard.workspace.errors import WorkspaceError
from trainyard.workspace.selection import select

LONG = "d" * 60 + "/" + "f" * 120
FILES = {"b/x.py": b"x" * 3_000_000, "a": b"", LONG: b"1", "ü": b"2", "z" * 99: b"3", "y" * 100: b"4"}


@pytest.fixture
def ordinary() -> Iterator[Path]:
    """A directory of a user who is subject to file modes. The test runs as this user."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    with tempfile.TemporaryDirectory() as directory:
        yield Path(os.path.realpath(directory))
    os.seteuid(user)


def test_pack_depends_only_on_the_files(tmp_path: Path) -> None:
    first = fill(tmp_path / "one", FILES)
    second = fill(tmp_path / "two", dict(reversed(FILES.items())))
    for root in (first, second):
        (root / "link").symlink_to("b/x.py")
        (root / "run.sh").write_text("#!/bin/sh\n")
    (first / "run.sh").chmod(0o700)
    (second / "run.sh").chmod(0o775)
    for path in second.rglob("*"):
        os.utime(path, (1, 1), follow_symlinks=False)
        if os.geteuid() == 0:
            os.chown(path, 1234, 4321, follow_symlinks=False)
    (second / "a").chmod(0o600)
    (first / "empty").mkdir()
    (second / "empty").mkdir(mode=0o700)
    one, two = pack(first, directory=tmp_path), pack(second, directory=tmp_path)
    assert one.digest == two.digest == digest_of(one.file)
    assert one.size == one.file.stat().st_size
    (second / "a").write_text("1")
    assert pack(second).digest != one.digest
    (second / "a").write_bytes((first / "a").read_bytes())
    (second / "empty").rmdir()
    assert pack(second).digest != one.digest
    (first / "run.sh").chmod(0o600)
    assert pack(first).digest != one.digest


def test_pack_is_read_by_tar_and_unpack(tmp_path: Path) -> None:
    files = FILES | {
        "trailing ": b"5",
        f"a{' ' * 97}": b"6",
        f"b{' ' * 60}c": b"7",
        ".env": b"8",
        "b/.x/.x": b"9",
    }
    root = fill(tmp_path / "one", files)
    (root / os.fsdecode(b"\xff")).write_bytes(b"no UTF-8")
    (root / "b" / "up").symlink_to("../a")
    (root / "a").chmod(0o700)
    archive = pack(root, directory=tmp_path)
    into = tmp_path / "into"
    into.mkdir()
    unpack(archive.file, archive.digest, into)
    for name, content in {**files, os.fsdecode(b"\xff"): b"no UTF-8"}.items():
        assert (into / name).read_bytes() == content
    assert os.readlink(into / "b" / "up") == "../a"
    assert os.access(into / "a", os.X_OK)
    assert not (into / "b" / "x.py").stat().st_mode & 0o111
    reader: Any = zstandard.ZstdDecompressor().stream_reader(archive.file.open("rb"))
    with tarfile.open(fileobj=reader, mode="r|") as members:
        known = [(m.name, m.uid, m.gid, m.mtime) for m in members]
    assert {entry[1:] for entry in known} == {(0, 0, 0)}
    names = [os.fsencode(entry[0]) for entry in known]
    assert names == sorted(names)


@pytest.mark.parametrize("name", ["a", "a/b.py", "x" * 99, "trailing ", "x" * 49 + " " * 50, f"a{' ' * 60}b"])
@pytest.mark.parametrize(("size", "mode"), [(0, 0o644), (1, 0o755), (8**11 - 1, 0o644)])
def test_plain_header_equals_that_of_tarfile(name: str, size: int, mode: int) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, mode
    assert header(name, size, mode) == member.tobuf(tarfile.PAX_FORMAT)


def test_pack_names_links_that_lead_out(tmp_path: Path) -> None:
    fill(tmp_path, {"a": b"1"})
    (tmp_path / "python").symlink_to("/usr/bin/python3")
    (tmp_path / "up").symlink_to("../up")
    (tmp_path / "inside").symlink_to("a")
    with pytest.raises(WorkspaceError, match=r"python -> /usr/bin/python3, up -> \.\./up; copy") as reported:
        pack(tmp_path)
    assert "inside" not in str(reported.value)
    (tmp_path / ".torchrunignore").write_text("python\nup\n")
    assert pack(tmp_path).files == 3


@pytest.mark.parametrize(("name", "mode"), [("", 0), ("", 0o400), ("", 0o100), ("in", 0), ("in/secret", 0)])
def test_pack_names_an_unreadable_entry(ordinary: Path, name: str, mode: int) -> None:
    fill(ordinary, {"a": b"1", "in/secret": b"2"})
    (ordinary / name).chmod(mode)
    shown = name or ordinary
    with pytest.raises(WorkspaceError, match=f"^workspace: can't read {shown}: Permission denied; make it"):
        pack(ordinary)
    ordinary.chmod(0o700)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "has no files to send; put your code there"),
        ("ignored", "has no files to send; put your code there"),
        ("none", "none does not exist; name the directory"),
        ("ignored/a", "a is not a directory; name the directory"),
    ],
)
def test_pack_of_no_files_is_refused(tmp_path: Path, name: str, said: str) -> None:
    if name:
        fill(tmp_path / "ignored", {".gitignore": b"*\n!.gitignore\n", "a": b""})
    with pytest.raises(WorkspaceError, match=said):
        pack(tmp_path / name)


def test_pack_names_a_tree_that_is_too_deep(tmp_path: Path) -> None:
    at, top = os.getcwd(), tmp_path / "deep"
    top.mkdir()
    try:
        os.chdir(top)
        for _ in range(498):
            os.mkdir("d")
            os.chdir("d")
        Path("file").write_text("x")
        assert pack(top).files == 1
        os.makedirs("d/d")
    finally:
        os.chdir(at)
    with pytest.raises(WorkspaceError, match=r"workspace: d/d.*\.\.\. has 500 nested directories"):
        pack(top)


def test_select_reads_only_torchrunignore_through_a_link(tmp_path: Path) -> None:
    """git does not follow links to its own files."""
    fill(tmp_path, {"rules": b"*.bin\n", "a.bin": b"1", "train.py": b"2"})
    (tmp_path / ".gitignore").symlink_to("rules")
    assert [entry.path for entry in select(tmp_path)] == [".gitignore", "a.bin", "rules", "train.py"]
    (tmp_path / ".torchrunignore").symlink_to("rules")
    found = [entry.path for entry in select(tmp_path)]
    assert found == [".gitignore", ".torchrunignore", "rules", "train.py"]


@pytest.mark.parametrize(
    ("files", "named"),
    [
        ({}, ".torchrunignore"),
        ({".gitignore": b"secret\n"}, ".gitignore"),
        ({".git/HEAD": b"", "in/.gitignore": b"secret\n"}, ".gitignore"),
        ({".gitignore": b"secret\n", ".torchrunignore": b"other\n"}, ".torchrunignore"),
    ],
)
def test_pack_follows_its_advice_about_ignore_files(
    tmp_path: Path, files: dict[str, bytes], named: str
) -> None:
    """A new .torchrunignore would replace every .gitignore, which may exclude secrets."""
    fill(tmp_path, {"train.py": b"1", "secret": b"2", **files})
    with pytest.raises(WorkspaceError, match=f"name unneeded files in {named};"):
        select(tmp_path, limit=0)
    link = tmp_path / "gone"
    link.symlink_to("/etc")
    with pytest.raises(WorkspaceError, match=f"or name the links in {named} without a slash"):
        select(tmp_path)
    link.unlink()
    entries = select(tmp_path)
    (tmp_path / "train.py").unlink()
    with pytest.raises(WorkspaceError, match=f"removed while .* or name it in {named}$"):
        pack(tmp_path, entries=entries)


def test_limit_error_names_the_largest_ten(tmp_path: Path) -> None:
    fill(tmp_path, {f"file{i}": bytes(1000 * i) for i in range(12)})
    with pytest.raises(WorkspaceError) as reported:
        pack(tmp_path, limit=65_999)
    assert "64.5 KiB in 12 files, and the limit is 64.5 KiB" in str(reported.value)
    named = [word for word in str(reported.value).replace(",", " ").split() if word.startswith("file")]
    assert named == ["files", "files"] + [f"file{i}" for i in range(11, 1, -1)]
    assert pack(tmp_path, limit=66_000).content == 66_000


def test_limit_error_sums_small_files_of_a_directory(tmp_path: Path) -> None:
    many = {f".venv/lib/{number}.py": bytes(10_000) for number in range(300)}
    fill(tmp_path, {**many, "runs/a/last.pt": bytes(500_000), "runs/a/log": bytes(100), "train.py": b"1"})
    with pytest.raises(WorkspaceError) as reported:
        select(tmp_path, limit=1)
    largest = ".venv/ 2.9 MiB, runs/a/last.pt 488.3 KiB, runs/ 100 B, train.py 1 B"
    assert str(reported.value).endswith(f"; the largest: {largest}")


def test_pack_of_a_shrinking_file_leaves_no_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = fill(tmp_path / "in", {"log": bytes(3 * 2**20)})
    out = tmp_path / "out"
    out.mkdir()
    whole = packing.header

    def shrink(*arguments: Any) -> bytes:
        os.truncate(root / "log", 10)
        return whole(*arguments)

    monkeypatch.setattr(packing, "header", shrink)
    with pytest.raises(WorkspaceError, match="log changed while it was read"):
        pack(root, directory=out)
    assert not list(out.iterdir())


@pytest.mark.parametrize("size", [10, 3 * 2**20])
def test_pack_of_a_file_written_meanwhile_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    root, whole = fill(tmp_path / "in", {"data": b"o" * size}), os.pread

    def write_after_read(handle: int, size: int, offset: int) -> bytes:
        data = whole(handle, size, offset)
        time.sleep(0.02)  # a file system's clock has ticks
        with (root / "data").open("r+b") as file:
            file.write(b"new")
        return data

    monkeypatch.setattr(packing.os, "pread", write_after_read)
    with pytest.raises(WorkspaceError, match="workspace: data changed while it was read"):
        pack(root, directory=tmp_path)


def test_pack_of_a_growing_log_has_its_first_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = fill(tmp_path / "in", {"log": b"o" * 3 * 2**20})
    whole = os.pread

    def growing(handle: int, size: int, offset: int) -> bytes:
        data = whole(handle, size, offset)
        time.sleep(0.01)
        with (root / "log").open("ab") as file:
            file.write(b"more")
        return data

    monkeypatch.setattr(packing.os, "pread", growing)
    archive = pack(root, directory=tmp_path)
    (tmp_path / "into").mkdir()
    unpack(archive.file, archive.digest, tmp_path / "into")
    assert (tmp_path / "into" / "log").read_bytes() == b"o" * 3 * 2**20


def test_select_in_a_removed_directory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "here").rmdir()
    for name in (".", "x"):
        with pytest.raises(WorkspaceError, match=r"workspace: \S+ does not exist; name the directory"):
            select(Path(name))


@pytest.mark.parametrize("name", [".gitignore", ".torchrunignore", "in/.gitignore"])
def test_select_does_not_read_a_pipe_named_as_ignore_file(tmp_path: Path, name: str) -> None:
    fill(tmp_path, {"a": b"1", "in/b": b"2"})
    os.mkfifo(tmp_path / name)
    assert [entry.path for entry in select(tmp_path)] == ["a", "in/b"]
    fill(tmp_path, {"x/.torchrunignore": b""})
    (tmp_path / "in" / "c").mkdir()
    os.mkfifo(tmp_path / "in" / "c" / ".torchrunignore")
    assert [entry.path for entry in select(tmp_path)] == ["a", "in/b", "in/c", "x/.torchrunignore"]


@pytest.mark.long
def test_pack_of_2000_files_takes_under_a_second(tmp_path: Path) -> None:
    draw = random.Random(7)  # noqa: S311
    for number in range(2_000):
        directory = tmp_path / "in" / f"package{number % 100}"
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"module{number}.py").write_bytes(draw.randbytes(2500) + b"x" * 2500)
    began = time.process_time()
    assert pack(tmp_path / "in", directory=tmp_path).content == 10_000_000
    assert time.process_time() - began < 1


def test_pack_contains_empty_directories(tmp_path: Path) -> None:
    root = fill(tmp_path / "one", {"a": b"1", ".gitignore": b"*.log\nleft/\n", "logs/x.log": b""})
    for name in ("checkpoints", "deep/in/it", "left"):
        (root / name).mkdir(parents=True)
    entries = select(root)
    assert [each.path for each in entries if each.is_directory] == ["checkpoints", "deep/in/it", "logs"]
    archive = pack(root, directory=tmp_path)
    into = tmp_path / "into"
    into.mkdir()
    contents = unpack(archive.file, archive.digest, into)
    assert contents["checkpoints"] == contents["deep/in/it"] == EMPTY_DIRECTORY
    assert sorted(str(path.relative_to(into)) for path in into.rglob("*") if path.is_dir()) == [
        "checkpoints", "deep", "deep/in", "deep/in/it", "logs",
    ]  # fmt: skip
    shutil.rmtree(root)
    (root / "only").mkdir(parents=True)
    with pytest.raises(WorkspaceError, match="has no files to send"):
        select(root)


def test_select_names_a_link_without_a_slash(tmp_path: Path) -> None:
    fill(tmp_path, {"a": b"1", ".gitignore": b"data/\n"})
    (tmp_path / "data").symlink_to("/mnt")
    with pytest.raises(WorkspaceError, match=r"data -> /mnt; .* in .gitignore without a slash at the end"):
        select(tmp_path)
    (tmp_path / ".gitignore").write_bytes(b"data\n")
    assert [each.path for each in select(tmp_path)] == [".gitignore", "a"]


def test_select_far_above_the_limit_stops_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "_REPORT_EVERY", 2)
    fill(tmp_path, {f"{top}/{each}": b"12345" for top in "abcdef" for each in range(4)})
    reported: list[tuple[int, int]] = []
    limit = r"more than 10 B in 2 files, and the limit is 0 B; .* largest: \w/"
    with pytest.raises(WorkspaceError, match=limit):
        select(tmp_path, 0, lambda files, size: reported.append((files, size)))
    assert reported == [(2, 10)]
