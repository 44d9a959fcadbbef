"""Unpack and apply an archive: nothing is written outside, and each file is complete."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import tarfile
from pathlib import Path

import pytest
import zstandard
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.unit.workspace.archives import Killed, fill, killed_at, memory_directory
from trainyard.workspace import place, selection
from trainyard.workspace.archive import digest_of, pack, unpack
from trainyard.workspace.errors import WorkspaceError
from trainyard.workspace.place import Applied, Kept, apply, placed
from trainyard.workspace.selection import link_stays_inside

Member = tuple[str, bytes, str]
KINDS = {
    "file": tarfile.REGTYPE,
    "link": tarfile.SYMTYPE,
    "hard": tarfile.LNKTYPE,
    "device": tarfile.CHRTYPE,
    "block": tarfile.BLKTYPE,
    "pipe": tarfile.FIFOTYPE,
    "directory": tarfile.DIRTYPE,
}


def made(file: Path, *members: Member) -> tuple[Path, str]:
    """Make an archive of these members: name, kind, and content or target."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, kind, more in members:
            member = tarfile.TarInfo(name)
            member.type = kind
            member.linkname = more if kind in (tarfile.SYMTYPE, tarfile.LNKTYPE) else ""
            content = more.encode() if kind == tarfile.REGTYPE else b""
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    file.write_bytes(zstandard.ZstdCompressor().compress(data.getvalue()))
    return file, digest_of(file)


@pytest.mark.parametrize(
    ("member", "said"),
    [
        (("/etc/passwd", tarfile.REGTYPE, "x"), "an absolute path"),
        (("../x", tarfile.REGTYPE, "x"), r'"\.\."'),
        (("a/../../x", tarfile.REGTYPE, "x"), r'"\.\."'),
        (("a//x", tarfile.REGTYPE, "x"), "empty part"),
        (("d/" * 500 + "x", tarfile.REGTYPE, "x"), "500 nested directories or more"),
        ((".torchrun-workspace/state.json", tarfile.REGTYPE, "x"), "is reserved for the worker"),
        (("a", tarfile.REGTYPE, "x"), "second member"),
        (("a/b", tarfile.REGTYPE, "x"), "inside of a file"),
        (("l", tarfile.SYMTYPE, "/etc"), "link out of the workspace"),
        (("l", tarfile.SYMTYPE, ".."), "link out of the workspace"),
        (("d/l", tarfile.SYMTYPE, "../d/../../x"), "link out of the workspace"),
        (("l", tarfile.LNKTYPE, "a"), "a hard link"),
        (("l", tarfile.CHRTYPE, ""), "a device"),
        (("l", tarfile.BLKTYPE, ""), "a device"),
        (("l", tarfile.FIFOTYPE, ""), "a pipe"),
    ],
)
def test_unpack_malicious_member_is_refused(tmp_path: Path, member: Member, said: str) -> None:
    archive, digest = made(tmp_path / "archive", ("a", tarfile.REGTYPE, "1"), member)
    into = tmp_path / "in" / "to"
    into.mkdir(parents=True)
    (into / "mine").write_text("stays")
    with pytest.raises(WorkspaceError, match=said):
        apply(archive, digest, into)
    assert sorted(path.name for path in into.iterdir()) == [".torchrun-workspace", "mine"]
    assert sorted(path.name for path in tmp_path.rglob("x")) == []


def test_unpack_file_below_a_link_is_refused(tmp_path: Path) -> None:
    archive, digest = made(tmp_path / "archive", ("d", tarfile.SYMTYPE, "e"), ("d/x", tarfile.REGTYPE, "1"))
    with pytest.raises(WorkspaceError, match="directory has this name"):
        apply(archive, digest, tmp_path / "into")


PARTS = st.sampled_from(["a", "b", "c", "..", ".", "", "/"])
PATHS = st.lists(PARTS, min_size=1, max_size=5).map("/".join)


def _is_ring(path: Path) -> bool:
    """Whether its links lead nowhere; `resolve` makes "/" of one such as `a -> a//`."""
    try:
        path.stat()
    except OSError as error:
        return error.errno == errno.ELOOP
    return False


@example([("a", "link", "a//")])
@settings(max_examples=120)
@given(st.lists(st.tuples(PATHS, st.sampled_from(sorted(KINDS)), PATHS), max_size=6))
@pytest.mark.long
def test_unpack_writes_nothing_outside(members: list[tuple[str, str, str]]) -> None:
    with memory_directory() as base:
        sent = [(path, KINDS[kind], target) for path, kind, target in members]
        archive, digest = made(base / "archive", *sent)
        into = base / "deep" / "into"
        into.mkdir(parents=True)
        try:
            contents = unpack(archive, digest, into)
        except WorkspaceError:
            contents = None
        assert sorted(path.name for path in base.iterdir()) == ["archive", "deep"]
        assert sorted(path.name for path in (base / "deep").iterdir()) == ["into"]
        for path in into.rglob("*"):
            assert path.is_symlink() or path.is_dir() or path.is_file()
            if not _is_ring(path):
                assert path.resolve().is_relative_to(into.resolve()), (path, members)
        if contents is not None:
            assert contents.keys() == {p.rstrip("/") if kind == "directory" else p for p, kind, _ in members}


@given(st.lists(st.sampled_from(["a", "b", "..", "."]), max_size=4), st.integers(0, 3))
def test_link_stays_inside_with_few_ups_at_its_begin(parts: list[str], depth: int) -> None:
    name = "/".join(["d"] * depth + ["l"])
    target = "/".join(parts)
    kept = [part for part in parts if part != "."]
    ups = len(kept) - len([part for part in kept if part != ".."])
    expected = bool(target) and kept[:ups] == [".."] * ups and ups <= depth
    assert link_stays_inside(name, target) is expected


@pytest.mark.parametrize("damage", ["flip", "cut", "empty"])
def test_unpack_damaged_archive_is_refused(tmp_path: Path, damage: str) -> None:
    archive, digest = made(tmp_path / "archive", ("a", tarfile.REGTYPE, "1"))
    data = bytearray(archive.read_bytes())
    data[len(data) // 2] ^= 1
    archive.write_bytes({"flip": bytes(data), "cut": bytes(data[:-3]), "empty": b""}[damage])
    with pytest.raises(WorkspaceError, match=r"digest is sha256:\w+ and must be " + digest):
        apply(archive, digest, tmp_path / "into")
    assert placed(tmp_path / "into").digest == ""


@pytest.mark.parametrize("data", [b"", b"no archive", zstandard.ZstdCompressor().compress(b"no tar" * 200)])
def test_unpack_of_no_archive_is_refused(tmp_path: Path, data: bytes) -> None:
    archive = tmp_path / "archive"
    archive.write_bytes(data)
    with pytest.raises(WorkspaceError, match="archive: broken"):
        apply(archive, digest_of(archive), tmp_path / "into")


@pytest.mark.parametrize(
    ("kind", "size", "count", "said"),
    [
        (tarfile.XHDTYPE, 0, 5000, ""),
        (tarfile.GNUTYPE_LONGNAME, 1, 5000, ""),
        (tarfile.XHDTYPE, 2**40, 1, "a header of 1099511627776 bytes; the limit is 1048576"),
        (tarfile.XGLTYPE, 0, 1, "a header for all members"),
    ],
)
def test_unpack_endless_headers_are_refused(
    tmp_path: Path, kind: bytes, size: int, count: int, said: str
) -> None:
    member = tarfile.TarInfo("x")
    member.type, member.size = kind, size
    piece = member.tobuf(tarfile.GNU_FORMAT) + bytes(min(512 * size, 2**22))
    archive = tmp_path / "archive"
    archive.write_bytes(zstandard.ZstdCompressor().compress(piece * count + bytes(1024)))
    with pytest.raises(WorkspaceError, match=f"archive: broken: {said}"):
        apply(archive, digest_of(archive), tmp_path / "into")


def test_unpack_small_archive_does_not_fill_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    holes = tarfile.TarInfo("x")
    holes.pax_headers = {"GNU.sparse.map": f"0,0,{2**31},0", "GNU.sparse.size": str(2**31)}
    archive = tmp_path / "archive"
    archive.write_bytes(zstandard.ZstdCompressor().compress(holes.tobuf(tarfile.PAX_FORMAT) + bytes(1024)))
    with pytest.raises(WorkspaceError, match="refused member 'x': a file with holes"):
        apply(archive, digest_of(archive), tmp_path / "into")
    monkeypatch.setattr(selection, "_MIN_UNPACKED", 2**20)
    monkeypatch.setattr(selection, "_MAX_RATIO", 10)
    for name, count, size in (("one", 1, 2**21), ("many", 2**12, 0)):
        zeros = made(tmp_path / name, *((str(each), tarfile.REGTYPE, "\0" * size) for each in range(count)))
        with pytest.raises(WorkspaceError, match="unpacks to more than 1048576 bytes"):
            apply(*zeros, tmp_path / "into")
    root = tmp_path / "root"
    root.mkdir()
    (root / "zeros").write_bytes(bytes(2**21))
    with pytest.raises(
        WorkspaceError, match=r"2.0 MiB compress to .*, which workers unpack to at most 1.0 M"
    ):
        pack(root, directory=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["archive", "into", "many", "one", "root"]
    (root / "zeros").write_bytes(os.urandom(2**21))
    assert apply(pack(root, directory=tmp_path).file, pack(root).digest, tmp_path / "into").put == 1


def workspace(root: Path, files: dict[str, str]) -> tuple[Path, str]:
    packed = pack(fill(root, files), directory=root.parent)
    return packed.file, packed.digest


def shown(into: Path) -> dict[str, str]:
    return {
        str(path.relative_to(into)): path.read_text()
        for path in into.rglob("*")
        if path.is_file() and place.CONTROL_DIRECTORY not in path.parts
    }


def test_apply_changes_only_what_differs(tmp_path: Path) -> None:
    into = tmp_path / "into"
    names = ("same", "other", "gone/deep/x", "flat", "tree/x")
    one = workspace(tmp_path / "1", dict.fromkeys(names, "1"))
    files = {"other": "2", "new/y": "2", "flat/z": "2", "tree": "2"}
    two = workspace(tmp_path / "2", {"same": "1", **files})
    assert apply(*one, into) == Applied(5, 0)
    (into / "gone" / "log").write_text("the job's")
    (into / "tree" / "mine").write_text("the job's")
    (into / "same").write_text("edited by the job")
    before = os.stat(into / "same").st_ino
    applied = apply(*two, into)
    assert (applied.put, applied.removed) == (4, 3)
    assert shown(into) == {"same": "edited by the job", "gone/log": "the job's", **files}
    assert os.stat(into / "same").st_ino == before
    assert [(into / kept / "mine").read_text() for kept in applied.kept] == ["the job's"]
    assert apply(*two, into) == Applied(0, 0)


@pytest.mark.parametrize("other", ["1", "2"])
def test_apply_of_the_same_or_next_archive_restores_lost_files(tmp_path: Path, other: str) -> None:
    into, files = tmp_path / "into", {"a": "1", "b": "1", "d/c": "1", "e": "1"}
    apply(*workspace(tmp_path / "1", files), into)
    (into / "a").unlink()
    (into / "b").write_text("the job's")
    shutil.rmtree(into / "d")
    last = workspace(tmp_path / "2", {**files, "e": other})
    assert apply(*last, into) == Applied(2 if other == "1" else 3, 0)
    assert shown(into) == {"a": "1", "b": "the job's", "d/c": "1", "e": other}
    assert apply(*last, into) == Applied(0, 0)


@pytest.mark.parametrize("path", ["../victim", "/etc/none", "d/../../victim", ".torchrun-workspace/lock"])
def test_apply_ignores_a_state_with_an_invalid_path(tmp_path: Path, path: str) -> None:
    into = tmp_path / "into"
    one, two = workspace(tmp_path / "1", {"a": "1", "d/c": "1"}), workspace(tmp_path / "2", {"a": "2"})
    apply(*one, into)
    (tmp_path / "victim").write_text("1")
    file = into / place.CONTROL_DIRECTORY / "state.json"
    state = json.loads(file.read_text())
    state["contents"][path] = state["contents"]["a"]
    file.write_text(json.dumps(state))
    assert placed(into) == place.State("", {})
    assert apply(*two, into).removed == 0
    assert (tmp_path / "victim").read_text() == "1"
    assert (into / "a").read_text() == "2"


@pytest.mark.parametrize("contents", ['"file 664 0"', "[1, null]", '{"a": 1}', "null"])
def test_apply_keeps_a_file_of_a_state_with_invalid_contents(tmp_path: Path, contents: str) -> None:
    into = tmp_path / "into"
    (into / place.CONTROL_DIRECTORY).mkdir(parents=True)
    state = f'{{"digest": "", "contents": {{"a": {contents}}}}}'
    (into / place.CONTROL_DIRECTORY / "state.json").write_text(state)
    (into / "a").write_text("the job's")
    (kept,) = apply(*workspace(tmp_path / "1", {"a": "1"}), into).kept
    assert (into / kept).read_text() == "the job's"


def test_apply_does_not_follow_links_of_the_job(tmp_path: Path) -> None:
    into, outside = tmp_path / "into", tmp_path / "outside"
    outside.mkdir()
    (outside / "x").write_text("not ours")
    apply(*workspace(tmp_path / "1", {"d/x": "1", "e": "1"}), into)
    (into / "d" / "x").unlink()
    (into / "d").rmdir()
    (into / "d").symlink_to(outside)
    apply(*workspace(tmp_path / "2", {"e": "2"}), into)
    assert (outside / "x").read_text() == "not ours"
    apply(*workspace(tmp_path / "3", {"d/x": "3"}), into)
    assert (outside / "x").read_text() == "not ours"
    assert (into / "d" / "x").read_text() == "3"


def test_apply_moves_files_of_the_job_aside(tmp_path: Path) -> None:
    into = tmp_path / "into"
    files = {"log": "1", "gone": "1", "same": "1", "both": "1", "a/b": "1", "pipe": "1"}
    apply(*workspace(tmp_path / "1", files), into)
    for name in ("log", "gone", "both", "a/b"):
        (into / name).write_text(f"the job's {name}")
    (into / "same").write_text("2")
    (into / "out").write_text("the job's out")
    (into / "new").write_text("the job's new")
    (into / "pipe").unlink()
    os.mkfifo(into / "pipe")
    two = {"log": "2", "same": "2", "both": "1", "a": "2", "out/x": "2", "new": "2", "pipe": "2"}
    applied = apply(*workspace(tmp_path / "2", two), into)
    assert shown(into) == {**two, "both": "the job's both"}
    kept = {Path(name).relative_to(*Path(name).parents[-3:-2]): into / name for name in applied.kept}
    assert sorted(map(str, kept)) == ["a/b", "gone", "log", "new", "out", "pipe"]
    assert kept.pop(Path("pipe")).is_fifo()
    assert {file.read_text() for file in kept.values()} == {f"the job's {name}" for name in kept}


def test_apply_keeps_both_files_moved_from_one_path(tmp_path: Path) -> None:
    into = tmp_path / "into"
    apply(*workspace(tmp_path / "1", {"tree/x": "1"}), into)
    (into / "tree" / "x").write_text("the job's")
    (into / "tree" / "mine").write_text("the job's, too")
    applied = apply(*workspace(tmp_path / "2", {"tree": "2"}), into)
    kept = [file for name in applied.kept for file in (into / name, *(into / name).glob("*"))]
    texts = sorted(file.read_text() for file in kept if file.is_file())
    assert texts == ["the job's", "the job's, too"]
    assert shown(into) == {"tree": "2"}


def test_apply_of_the_first_archive_after_a_killed_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    into = tmp_path / "into"
    one = workspace(tmp_path / "1", {"a": "1", "b": "1", "gone": "1"})
    two = workspace(tmp_path / "2", {"a": "2", "b": "2", "new": "2"})
    apply(*one, into)
    with monkeypatch.context() as patch:
        put = place._put

        def some(incoming: Path, into: Path, path: str, known: list[str], kept: Kept) -> None:
            if path == "b":
                raise Killed
            put(incoming, into, path, known, kept)

        patch.setattr(place, "_put", some)
        with pytest.raises(Killed):
            apply(*two, into)
    assert shown(into) == {"a": "2", "b": "1"}
    assert apply(*one, into).kept == ()
    assert shown(into) == {"a": "1", "b": "1", "gone": "1"}


@pytest.mark.parametrize("first", [False, True])
def test_apply_after_a_kill_at_any_step_completes(tmp_path: Path, first: bool) -> None:
    one = workspace(tmp_path / "1", {"a": "1", "b": "1", "c/d": "1", "gone": "1"})
    two = workspace(tmp_path / "2", {"a": "2", "b": "2" * 9, "c/d": "1", "e/f": "2"})
    whole = {"a": {"1", "2"}, "b": {"1", "2" * 9}, "c/d": {"1"}, "gone": {"1"}, "e/f": {"2"}}
    for step in range(1, 30):
        into = tmp_path / f"into{step}"
        if not first:
            apply(*one, into)
        with killed_at(step) as left:
            try:
                apply(*two, into)
            except Killed:
                assert all(content in whole[path] for path, content in shown(into).items())
                assert placed(into).digest in ("", one[1], two[1])
        apply(*two, into)
        assert shown(into) == {"a": "2", "b": "2" * 9, "c/d": "1", "e/f": "2"}
        assert not list((into / place.CONTROL_DIRECTORY).glob("incoming-*"))
        assert not list((into / place.CONTROL_DIRECTORY).glob("kept-*"))
        if left[0] > 0:
            break
    assert step > (4 if first else 5)
