"""Whatever a pod sends for `cp`, nothing is written but below the directory that was asked for."""

from __future__ import annotations

import io
import os
import stat
import tarfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.workspace.archives import memory_directory
from trainyard.kubectl.cp import Tree
from trainyard.workspace.archive import Member

pytestmark = pytest.mark.unit

FILE, LINK, HARD = tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE
DIRECTORY, PIPE, DEVICE = tarfile.DIRTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE
Sent = tuple[str, bytes, str]


def tar(*sent: Sent, **more: object) -> bytes:
    """What a pod sends: name, kind, and content or target of each."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, kind, what in sent:
            member = tarfile.TarInfo(name)
            member.type = kind
            member.linkname = what if kind in (LINK, HARD) else ""
            content = what.encode() if kind == FILE else b""
            member.size = len(content)
            for key, value in more.items():
                setattr(member, key, value)
            archive.addfile(member, io.BytesIO(content))
    return data.getvalue()


def taken(data: bytes, into: Path, base: str = "d") -> list[str]:
    """What is left out of it."""
    tree = Tree(base, into)
    with tarfile.open(fileobj=io.BytesIO(data), mode="r|", tarinfo=Member) as members:
        for member in members:
            tree.add(members, member)
    tree.end()
    return tree.skipped


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (("/d/x", FILE, "x"), "an absolute path"),
        (("d/../x", FILE, "x"), r'"\.\."'),
        (("..", DIRECTORY, ""), r'"\.\."'),
        (("other", FILE, "x"), "not requested"),
        (("do/x", FILE, "x"), "not requested"),
        (("d/a", FILE, "x"), "second member"),
        (("d/a", LINK, "b"), "second member"),
        (("d", LINK, "/etc"), "second member"),
        (("d/a/x", FILE, "x"), "inside of a file"),
        (("d/l/x", FILE, "x"), "inside of a file"),
        (("d/l/e/x", DIRECTORY, ""), "inside of a file"),
        (("d/" + "d/" * 500 + "x", FILE, "x"), "500 nested directories or more"),
    ],
)
def test_a_member_that_no_tar_of_it_has_ends_the_copy(tmp_path: Path, sent: Sent, said: str) -> None:
    (tmp_path / "into").mkdir()
    data = tar(("d", DIRECTORY, ""), ("d/a", FILE, "1"), ("d/l", LINK, "e"), sent)
    with pytest.raises(tarfile.ReadError, match=said):
        taken(data, tmp_path / "into")
    assert [path.name for path in tmp_path.iterdir()] == ["into"]
    assert not list(tmp_path.rglob("x"))


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (("d/x", LINK, "/etc"), "a link that may lead out of it, to /etc"),
        (("d/x", LINK, ".."), "a link that may lead out of it, to .."),
        (("d/x", LINK, "../secret"), "a link that may lead out of it, to ../secret"),
        (("d/x", LINK, "../d/a"), "a link that may lead out of it, to ../d/a"),
        (("d/x", LINK, "l/.."), "a link that may lead out of it, to l/.."),
        (("d/x", HARD, "d/none"), "a hard link to d/none, which was not copied"),
        (("d/x", HARD, "../mine"), "a hard link to ../mine, which was not copied"),
        (("d/x", HARD, "/etc/passwd"), "a hard link to /etc/passwd, which was not copied"),
        (("d/x", PIPE, ""), "neither a file, a directory nor a link"),
        (("d/x", DEVICE, ""), "neither a file, a directory nor a link"),
    ],
)
def test_what_is_no_file_or_leads_elsewhere_is_left_out(tmp_path: Path, sent: Sent, said: str) -> None:
    into = tmp_path / "into"
    into.mkdir()
    (tmp_path / "mine").write_text("mine")
    data = tar(("d", DIRECTORY, ""), ("d/a", FILE, "1"), ("d/l", LINK, "a"), sent, ("d/z", FILE, "2"))
    assert taken(data, into) == [f"d/x is {said}"]
    assert sorted(path.name for path in (into / "d").iterdir()) == ["a", "l", "z"]
    assert (into / "d" / "l").read_text() == "1"


def test_what_a_directory_has_comes_as_it_is(tmp_path: Path) -> None:
    data = tar(
        ("d/deep/a", FILE, "1"),
        ("d/deep/hard", HARD, "d/deep/a"),
        ("d/down", LINK, "deep/a"),
        ("d/same", HARD, "d/down"),
        ("d/deep/up", LINK, "../.hidden/b"),
        ("d/.hidden/b", FILE, "2"),
        mode=0o7777,
        mtime=1_000_000_000,
    )
    assert taken(data, tmp_path) == []
    known = (tmp_path / "d" / "deep" / "a").stat()
    assert (known.st_nlink, stat.S_IMODE(known.st_mode), known.st_mtime) == (2, 0o755, 1_000_000_000)
    assert (tmp_path / "d" / "deep" / "up").read_text() == "2"
    assert (tmp_path / "d" / "same").readlink() == Path("deep/a")
    (tmp_path / "two").mkdir()
    taken(tar(("d", FILE, "1"), mode=0o420, mtime=1e300), tmp_path / "two")
    assert stat.S_IMODE((tmp_path / "two" / "d").stat().st_mode) == 0o600


def test_cp_of_a_workspace_leaves_out_the_control_directory(tmp_path: Path) -> None:
    (tmp_path / "of").mkdir()
    record, log = "d/.torchrun-workspace", "d/.torchrun-workspace/log"
    data = tar(("d", DIRECTORY, ""), (record, DIRECTORY, ""), (log, FILE, "x"), (f"{record}s", FILE, "x"))
    assert taken(data, tmp_path) == []
    assert os.listdir(tmp_path / "d") == [".torchrun-workspaces"]
    data = tar((".torchrun-workspace", DIRECTORY, ""), (".torchrun-workspace/log", FILE, "x"))
    assert taken(data, tmp_path / "of", ".torchrun-workspace") == []
    assert (tmp_path / "of" / ".torchrun-workspace" / "log").exists()


def test_a_tree_of_links_that_tarfiles_own_filter_follows_out(tmp_path: Path) -> None:
    """CVE-2025-4517: node_rank_problem the longest path that can be resolved, a link's end is not known."""
    into, long = tmp_path / "into", "d" * 247
    into.mkdir()
    (tmp_path / "victim").write_text("mine")
    sent: list[Sent] = [("d", DIRECTORY, "")]
    path, steps = "d/", "abcdefghijklmnop"
    for step in steps:
        sent += [(path + long, DIRECTORY, ""), (path + step, LINK, long)]
        path += f"{long}/"
    chain = "/".join(steps) + "/" + "l" * 254
    sent += [
        (f"d/{chain}", LINK, "../" * len(steps)),
        ("d/escape", LINK, f"{chain}/../../victim"),
        ("d/flag", HARD, "d/escape"),
        ("d/flag", FILE, "not mine"),
    ]
    with pytest.raises((tarfile.ReadError, OSError)):
        taken(tar(*sent), into)
    assert (tmp_path / "victim").read_text() == "mine"


@pytest.mark.parametrize(
    ("kind", "size", "said"),
    [
        (tarfile.XHDTYPE, 2**40, "a header of 1099511627776 bytes"),
        (tarfile.GNUTYPE_LONGNAME, 2**21, "a header of 2097152 bytes"),
        (tarfile.GNUTYPE_LONGLINK, 2**21, "a header of 2097152 bytes"),
        (tarfile.XGLTYPE, 0, "a header for all members"),
    ],
)
def test_a_head_that_fills_the_memory_is_not_read(tmp_path: Path, kind: bytes, size: int, said: str) -> None:
    head = tarfile.TarInfo("d")
    head.type, head.size = kind, size
    with pytest.raises(tarfile.ReadError, match=said):
        taken(head.tobuf(tarfile.GNU_FORMAT) + bytes(4096), tmp_path)


def test_holes_are_not_filled(tmp_path: Path) -> None:
    member = tarfile.TarInfo("d")
    member.pax_headers = {"GNU.sparse.map": f"0,0,{2**50},0", "GNU.sparse.size": str(2**50)}
    assert taken(member.tobuf(tarfile.PAX_FORMAT) + bytes(1024), tmp_path) == ["d is a file with holes"]
    assert not list(tmp_path.iterdir())


PATHS = st.lists(st.sampled_from(["a", "b", "c", "..", ".", "", "/"]), min_size=1, max_size=4).map("/".join)
KINDS = (FILE, LINK, HARD, DIRECTORY, PIPE)


@settings(max_examples=120)
@given(
    st.lists(st.tuples(PATHS | PATHS.map("d/".__add__), st.sampled_from(KINDS), PATHS), max_size=6),
)
@pytest.mark.long
def test_whatever_comes_nothing_is_outside(sent: list[Sent]) -> None:
    with memory_directory() as base:
        into = base / "deep" / "into"
        into.mkdir(parents=True)
        with suppress(tarfile.ReadError):
            taken(tar(*sent), into)
        assert [path.name for path in base.iterdir()] == ["deep"]
        assert [path.name for path in (base / "deep").iterdir()] == ["into"]
        assert [path.name for path in into.iterdir()] in ([], ["d"])
        for path in into.rglob("*"):
            if path.is_symlink():
                leads = os.path.normpath(path.parent / os.readlink(path))
                assert leads == str(into / "d") or leads.startswith(f"{into}/d/")
