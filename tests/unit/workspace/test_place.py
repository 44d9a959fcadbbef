"""The files of a workspace in place: no file of the job is lost, also if a process is killed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.workspace.archives import Killed, killed_at, memory_directory
from trainyard.workspace import place
from trainyard.workspace.archive import pack
from trainyard.workspace.place import apply, is_own, placed

ONE = "file 664 6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b"
PATHS = st.sampled_from(["a", "b", "a/x", "a/y", "a/x/deep", "b/z"])
FILES = st.dictionaries(PATHS, st.sampled_from("12"), min_size=1)
JOB, SYNC = st.tuples(st.just("job"), PATHS), st.tuples(st.just("sync"), FILES, st.integers(0, 9))
STEPS = st.lists(JOB | SYNC, max_size=8)


def write(root: Path, path: str, content: str) -> bool:
    """Write a file unless something else is in its place."""
    try:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(content)
    except OSError:
        return False
    return True


def sync(base: Path, into: Path, files: dict[str, str], killed_after: int) -> None:
    source = base / "source"
    shutil.rmtree(source, ignore_errors=True)
    for path, content in files.items():
        write(source, path, content)
    archive = pack(source, directory=base)
    try:
        with killed_at(killed_after):
            apply(archive.file, archive.digest, into)
    except Killed:
        apply(archive.file, archive.digest, into)
    assert placed(into).digest == archive.digest
    for path in source.rglob("*"):
        if path.is_file() and (into / path.relative_to(source)).read_text()[0] != "j":
            assert (into / path.relative_to(source)).read_text() == path.read_text()


@settings(max_examples=60)
@given(STEPS)
@pytest.mark.long
def test_apply_loses_no_file_of_the_job(steps: list[tuple]) -> None:  # type: ignore[type-arg]
    with memory_directory() as base:
        into = base / "into"
        into.mkdir()
        written: dict[str, str] = {}
        for number, step in enumerate(steps):
            if step[0] == "sync":
                sync(base, into, *step[1:])
            elif write(into, step[1], f"job {number}"):
                written[step[1]] = f"job {number}"
        found = {path.read_text() for path in into.rglob("*") if path.is_file()}
        assert set(written.values()) <= found


@pytest.mark.parametrize(
    ("name", "known", "expected"),
    [
        ("a", [ONE], True),
        ("a", ["link x", ONE, "file 664 00"], True),
        ("l", ["link a b"], True),
        *((name, [ONE], False) for name in ("l", "", "no")),
        *(("a", known, False) for known in (["file 664 "], ["link a b"], [])),
    ],
)
def test_is_own_compares_contents(tmp_path: Path, name: str, known: list[str], expected: bool) -> None:
    (tmp_path / "a").write_text("1")
    (tmp_path / "l").symlink_to("a b")
    assert is_own(tmp_path / name, known) is expected


def tree(root: Path) -> list[str]:
    shown = {str(path.relative_to(root)) for path in root.rglob("*")}
    return sorted(each for each in shown if not each.startswith(".torchrun-workspace"))


def test_apply_that_is_complete_leaves_no_unpacked_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is killed right after it wrote the state leaves it to nobody."""
    save, copies = place._save, {}

    def observe(control: Path, state: place.State) -> None:
        copies[state.digest] = len([*control.glob("incoming-*")])
        save(control, state)

    monkeypatch.setattr(place, "_save", observe)
    write(tmp_path / "source", "a", "1")
    archive = pack(tmp_path / "source", directory=tmp_path)
    apply(archive.file, archive.digest, tmp_path / "into")
    assert copies == {"": 1, archive.digest: 0}


def test_apply_creates_and_removes_empty_directories(tmp_path: Path) -> None:
    into, source = tmp_path / "into", tmp_path / "source"

    def bring(*names: str) -> list[str]:
        shutil.rmtree(source, ignore_errors=True)
        for name in names:
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).mkdir() if name.endswith("/") else (source / name).write_text("1")
        archive = pack(source, directory=tmp_path)
        apply(archive.file, archive.digest, into)
        return tree(into)

    assert bring("a", "logs/", "out/in/") == ["a", "logs", "out", "out/in"]
    assert bring("a", "logs/", "out/in/") == ["a", "logs", "out", "out/in"]
    assert bring("a", "logs/b") == ["a", "logs", "logs/b"]
    assert bring("a", "logs/", "out") == ["a", "logs", "out"]
    assert (into / "out").read_text() == "1"
    (into / "logs" / "job").write_text("j")
    assert bring("a", "logs") == ["a", "logs"]
    assert [path.read_text() for path in into.glob(".torchrun-workspace/kept-*/logs/job")] == ["j"]
    assert bring("a", "logs/") == ["a", "logs"]
    (into / "logs" / "job").write_text("j")
    assert bring("a") == ["a", "logs", "logs/job"]
