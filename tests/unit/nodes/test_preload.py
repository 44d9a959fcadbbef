"""The library that pods preload: built once. A missing compiler is reported before anything else is done."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from local import __main__ as command_line
from local import tools
from local.nodes import images
from local.tools import ToolError
from trainyard.cli import commands


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only directory on PATH, empty; the cache is empty, too."""
    directory = tmp_path / "bin"
    directory.mkdir()
    monkeypatch.setenv("PATH", str(directory))
    monkeypatch.setenv("TRAINYARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TRAINYARD_HOME", str(tmp_path / "home"))
    return directory


def compiler(directory: Path, script: str) -> None:
    """A program `gcc` that does what the script says; `$5` is the file to make."""
    program = directory / "gcc"
    program.write_text(f"#!/bin/sh\necho called >> {directory}/calls\n{script}\n")
    program.chmod(0o755)


def test_preload_library_is_built_once(programs: Path) -> None:
    compiler(programs, 'echo library > "$5"')
    path = images.preload_library()
    assert path.read_text() == "library\n"
    assert path.stat().st_mode & 0o777 == 0o755
    assert images.preload_library() == path
    assert (programs / "calls").read_text() == "called\n"
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_preload_failed_build_names_compiler_and_reason(programs: Path, tmp_path: Path) -> None:
    compiler(programs, "echo 'In file included:' >&2; echo 'x.h:1: error: no such file' >&2; exit 4")
    with pytest.raises(ToolError) as caught:
        images.preload_library()
    expected = "building podbind.c with gcc failed (exit code 4): x.h:1: error: no such file"
    assert str(caught.value) == expected
    assert list((tmp_path / "cache" / "tools").rglob("*.so")) == []


def without_compiler(message: str) -> bool:
    wanted = ("a C or C++ compiler is needed", "apt-get install gcc", "cc, gcc, clang, c++, g++")
    return all(words in message for words in wanted) and "\n" not in message.strip()


@pytest.mark.parametrize("command", ["up", "tools"])
def test_preload_without_compiler_fails_local_up_and_tools(
    programs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    monkeypatch.setattr(tools, "ensure", lambda *_, **__: pytest.fail("tools are built"))
    monkeypatch.setattr(sys, "argv", ["local", command])
    assert command_line.main() == 1
    message = capsys.readouterr().err
    assert message.startswith("error: ")
    assert without_compiler(message)


def test_preload_without_compiler_fails_make_up(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "ensure", lambda *_: pytest.fail("tools are built"))
    monkeypatch.setattr(commands, "refuse_foreign", lambda _: None)
    with pytest.raises(ToolError) as caught:
        commands.start_local_cloud({})
    assert without_compiler(str(caught.value))
