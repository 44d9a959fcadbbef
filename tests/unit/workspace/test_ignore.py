"""A workspace has the files that git does not ignore: a comparison with git over random trees."""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.seed import SEED
from tests.unit.workspace.archives import fill, memory_directory
from trainyard.workspace.errors import WorkspaceError
from trainyard.workspace.ignore import parse
from trainyard.workspace.selection import select

NAMES = ("a", "b", "ab", "a.py", "b.txt", "data", "Data", "x y", "é", "a[1]", "#c", "!d", "-", "]", "s ")
PATTERNS = (
    "a", "b/", "/a", "*.py", "!*.py", "*", "!*/", "!a", "data/", "data/*", "!data/a", "**/b", "a/**", "a/**/b",
    "/*", "!/data", "a/b", "[ab]", "[!a]", "[^b]*", "a[[]1]", "[]-]", "[a-", "?", "??", "\\#c", "\\!d", "#c", "x y",
    "x\\ y", "s ", "s\\ ", "a  ", "", "/", "//a", "a//b", "**", "**/", "*/", "**a", "a**", "*a*b*", "[[:alpha:]]",
    "[[:nope:]]", "[b-a]", "data/**", "!data/**/a", "é", "D*", "a\\", "\\a", "[\\]]", "a/*/b", "*/a", "!b.txt", "a\t",
    "[!]-a]", "[a-c]*", "***/a", "data/a.py", "!/data/a.py", "[a", "*[", "/**/a", "a.py/", "/", "!", "!!d",
    "a**/b", "/a**/b", "dat**/a", "a/b**/a", "a**\\/b", "/a*/*b*/**", "**/a*b/**/a", "*a/*/*b", "a?**/b", "/*a*b*",
)  # fmt: skip


@pytest.fixture
def memory_path() -> Iterator[Path]:
    with memory_directory() as directory:
        yield directory


def git(root: Path, *words: str) -> bytes:
    quiet = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    return subprocess.run(["git", *words], cwd=root, env=quiet, check=True, capture_output=True).stdout


def init(root: Path) -> None:
    """Make an empty repository, as `git init` does."""
    for name in ("objects", "refs"):
        (root / ".git" / name).mkdir(parents=True)
    (root / ".git" / "HEAD").write_text("ref: refs/heads/main\n")


def grow(root: Path, draw: random.Random, depth: int = 0, ignore: str = ".gitignore") -> None:
    root.mkdir(exist_ok=True)
    for name in draw.sample(NAMES, draw.randint(2, 6)):
        if depth < 3 and draw.random() < 0.45:
            grow(root / name, draw, depth + 1, ignore)
        else:
            (root / name).write_text("x")
    if depth == 0 or draw.random() < 0.4:
        ending = draw.choice(("\n", "\r\n"))
        (root / ignore).write_bytes(
            ending.join(draw.choices(PATTERNS, k=draw.randint(1, 6))).encode() + draw.choice((b"", b"\n"))
        )


def ours(root: Path) -> set[str]:
    try:
        return {entry.path for entry in select(root) if not entry.is_directory}
    except WorkspaceError as error:
        assert "no files to send" in str(error)  # noqa: PT017
        return set()


def theirs(root: Path) -> set[str]:
    listed = git(root, "ls-files", "-z", "--others", "--exclude-standard")
    return {os.fsdecode(path) for path in listed.split(b"\0") if path}


def only_ignore_files(paths: set[str]) -> bool:
    return all(path.rpartition("/")[2] == ".gitignore" for path in paths)


def test_select_chooses_the_same_files_as_git(memory_path: Path) -> None:
    draw = random.Random(f"{os.environ[SEED]} same")  # noqa: S311
    left_out = 0
    for number in range(80):
        root = memory_path / str(number)
        grow(root, draw)
        init(root)
        expected = theirs(root)
        everything = {
            str(path.relative_to(root))
            for path in root.rglob("*")
            if path.is_file() and ".git" not in path.parts
        }
        left_out += len(everything - expected)
        if only_ignore_files(expected):
            expected = set()
        files = {str(f.relative_to(root)): f.read_text() for f in root.rglob(".gitignore")}
        assert ours(root) == expected, files
    assert left_out > 100


@pytest.mark.parametrize(
    ("pattern", "path"), [("*a*a*a*a*a*b", "a" * 120), ("**/a*/" * 6 + "b", "a/" * 120 + "c")]
)
def test_pattern_with_many_stars_matches_quickly(pattern: str, path: str) -> None:
    (parsed,) = parse(pattern.encode())
    began = time.process_time()
    assert not parsed.expression.fullmatch(path.encode())
    assert time.process_time() - began < 5


def test_select_two_stars_after_a_prefix_match_as_in_git(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    fill(tmp_path, ("foo/x/bar/f", "foox/y/bar/f", "foobar/f", "x/foo/bar/f", "foo/f"))
    fill(tmp_path, {".gitignore": "foo**/bar\n"})
    assert ours(tmp_path) == theirs(tmp_path) == {".gitignore", "foo/f", "x/foo/bar/f"}


def test_select_applies_info_exclude(tmp_path: Path) -> None:
    root = fill(tmp_path / "root", ("a", "secret", "d/b", "d/secret", "d/mine"))
    fill(root, {".gitignore": "!/d/secret\n"})
    git(root, "init", "-q")
    (root / ".git" / "info" / "exclude").write_text("secret\n/d/mine\n")
    assert ours(root) == theirs(root) == {".gitignore", "a", "d/b", "d/secret"}
    assert ours(root / "d") == {"b", "secret"}
    author = ("-c", "user.name=a", "-c", "user.email=a@b")
    git(root, *author, "commit", "-q", "--allow-empty", "-m", "x")
    git(root, "worktree", "add", "-q", str(tmp_path / "tree"))
    fill(tmp_path / "tree", ("a", "secret"))
    assert ours(tmp_path / "tree") == theirs(tmp_path / "tree") == {"a"}


def test_select_nested_repository_has_its_own_rules(tmp_path: Path) -> None:
    fill(tmp_path, ("a.bin", "a.py", "sub/a.bin", "sub/a.tmp", "sub/secret", "sub/deep/a.bin", "out/a.py"))
    fill(tmp_path, {".gitignore": "*.bin\n/out/\n", "sub/.gitignore": "*.tmp\n"})
    for root in (tmp_path, tmp_path / "sub", tmp_path / "out"):
        git(root, "init", "-q")
    (tmp_path / "sub" / ".git" / "info" / "exclude").write_text("secret\n")
    inner = {f"sub/{name}" for name in theirs(tmp_path / "sub")}
    assert inner == {"sub/.gitignore", "sub/a.bin", "sub/deep/a.bin"}
    assert ours(tmp_path) == {".gitignore", "a.py"} | inner
    (tmp_path / ".torchrunignore").write_text("*.bin\n")
    assert "sub/a.bin" not in ours(tmp_path)


def test_select_below_the_top_applies_files_above(memory_path: Path) -> None:
    draw = random.Random(f"{os.environ[SEED]} below")  # noqa: S311
    compared = 0
    for number in range(40):
        root = memory_path / str(number)
        grow(root, draw)
        init(root)
        listed = theirs(root)
        for below in [path for path in root.iterdir() if path.is_dir() and path.name != ".git"]:
            expected = {p.removeprefix(f"{below.name}/") for p in listed if p.startswith(f"{below.name}/")}
            # git does not search an ignored directory, but it was requested here.
            if expected and not only_ignore_files(expected):
                assert ours(below) == expected
                compared += 1
    assert compared > 5


def test_select_torchrunignore_replaces_gitignore(tmp_path: Path) -> None:
    fill(tmp_path, ("a.py", "a.bin", "in/keep.bin", "in/a.bin"))
    fill(tmp_path, {".gitignore": "*.py\n", ".torchrunignore": "*.bin\n"})
    fill(tmp_path, {"in/.torchrunignore": "!keep.bin\n"})
    found = {path for path in ours(tmp_path) if "ignore" not in path}
    assert found == {"a.py", "in/keep.bin"}


def test_select_leaves_out_git_directories(tmp_path: Path) -> None:
    fill(tmp_path, (".git/config", "sub/.git", ".torchrun-workspace/state.json", "a"))
    fill(tmp_path, {".torchrunignore": "!.git\n!.git/**\n"})
    assert ours(tmp_path) == {".torchrunignore", "a"}


def commit(root: Path, *paths: str) -> None:
    """Make git track these paths of a repository, also ignored ones."""
    git(root, "init", "-q")
    git(root, "add", "--force", "--", *paths)


def test_select_keeps_ignored_files_that_git_tracks(tmp_path: Path) -> None:
    root = fill(tmp_path / "root", {".gitignore": "data/\n*.log\n"})
    fill(root, ("a", "data/labels.csv", "data/big.bin", "data/in/x", "sub/data/y"))
    fill(root, ("out.log", "other.log", "sub/b.log"))
    commit(root, "data/labels.csv", "out.log", "sub/b.log")
    assert ours(root) == {".gitignore", "a", "data/labels.csv", "out.log", "sub/b.log"}
    assert ours(root / "sub") == {"b.log"}
    # A .torchrunignore replaces the rules of git.
    (root / ".torchrunignore").write_text("data/\n*.log\n")
    assert ours(root) == {".gitignore", ".torchrunignore", "a"}


def test_select_keeps_tracked_files_of_nested_repositories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = fill(tmp_path / "inner", {"a.log": "x", "b.log": "x", ".gitignore": "*.log\n"})
    commit(inner, "a.log")
    git(tmp_path, "init", "-q")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / ".git"))
    assert ours(tmp_path) == {"inner/.gitignore", "inner/a.log"}


def test_select_does_not_run_programs_of_the_repository(tmp_path: Path) -> None:
    fill(tmp_path, {"a.log": "x", ".gitignore": "*.log\n"})
    commit(tmp_path, "a.log")
    hook = tmp_path / "hook"
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    hook.chmod(0o700)
    git(tmp_path, "config", "core.fsmonitor", str(hook))
    assert ours(tmp_path) == {".gitignore", "a.log", "hook"}


def test_select_without_git_knows_no_tracked_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, {"a.log": "x", "keep.log": "x", ".gitignore": "*.log\n!keep.log\n"})
    commit(tmp_path, "a.log")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert ours(tmp_path) == {".gitignore", "keep.log"}


def test_select_ignored_submodule_has_its_own_rules(tmp_path: Path) -> None:
    root = tmp_path / "root"
    inner = fill(root / "third" / "inner", {"a": "x", "b.log": "x", ".gitignore": "*.log\n"})
    commit(inner, "a", ".gitignore")
    git(inner, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "x")
    fill(root, {".gitignore": "third/\n", "third/other": "x"})
    commit(root, "third/inner")
    assert ours(root) == {".gitignore", "third/inner/.gitignore", "third/inner/a"}
