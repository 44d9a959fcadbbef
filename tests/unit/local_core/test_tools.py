"""Pinned tools: what is on PATH, what is built, and the message if neither works."""

from __future__ import annotations

import io
import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from local.home import Home
from local.tools import (
    OPTIONAL_TOOLS,
    TOOLS,
    ToolError,
    ensure,
    ensure_other,
    go,
    module_directory,
    path,
    progress,
    registry,
    rendered,
)
from local.tools.tool import OnPath, Tool, exactly, parse_version

SAMPLE = Tool(
    name="sample",
    module="example.org/sample",
    packages=("cmd/one", "cmd/two"),
    binaries={"one": "sample", "two": "sample-two"},
    files={"scripts/start": "sample-start"},
    variables={"example.org/sample.Version": "1.2.3"},
    lock=Path("/replaced by the fixture"),
    on_path={"sample": OnPath(), "sample-two": OnPath(accepts=exactly)},
)

# Stands in for Go: makes the "programs" of the sample tool, and a module with its script.
FAKE_GO = """#!/bin/sh
set -e
case "$1 $2" in
"env GOVERSION") echo "go{version}"; exit ;;
"env -json") echo '{{"GOMODCACHE": "{cache}"}}'; exit ;;
esac
echo "$1" >> {calls}
case "$1" in
list)
  case "$*" in
  *" -m "*) echo '{{"Dir": "{module}"}}' ;;
  *)
    mkdir -p {cache}/cache/download
    head -c 3000000 /dev/zero > {cache}/cache/download/zip
    printf 'pkg\t{module}/scripts\tstart \npkg/part\t{module}/scripts\tstart \n' ;;
  esac ;;
build)
  {build}
  while [ "$1" != -o ]; do shift; done
  for each in one two three; do printf '#!/bin/sh\\necho sample 1.2.3\\n' > "$2/$each"; chmod +x "$2/$each"; done ;;
mod) echo '{{"Dir": "{module}"}}' ;;
esac
"""


def locked_at(directory: Path, version: str, tool: Tool, **changes: Any) -> Tool:
    """Return the tool with a lock directory that requires its module in this version."""
    directory.mkdir()
    (directory / "go.mod").write_text(f"module build\n\ngo 1.26\n\nrequire {tool.module} {version}\n")
    (directory / "go.sum").write_text("")
    return replace(tool, lock=directory, **changes)


class Machine:
    """A machine with its own PATH, cache and home, on which the sample is the only tool."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.home = Home(directory / "home")
        self.cache = directory / "cache"
        self.bin = directory / "bin"
        self.calls = directory / "calls"
        self.module = directory / "module"
        (self.module / "scripts").mkdir(parents=True)
        (self.module / "scripts" / "start").write_text("#!/bin/sh\n")
        self.bin.mkdir()
        self.tool = locked_at(directory / "lock", "v1.2.3", SAMPLE)
        monkeypatch.setenv("TRAINYARD_CACHE", str(self.cache))
        monkeypatch.setenv("PATH", f"{self.bin}:/usr/bin:/bin")
        monkeypatch.setattr(registry, "TOOLS", {"sample": self.tool})
        monkeypatch.setattr(go, "USUAL_PLACE", "/nonexistent")
        self._directory = directory

    def install_go(self, version: str = "1.26.6", build: str = ":") -> None:
        text = FAKE_GO.format(
            version=version,
            build=build,
            cache=self._directory / "modules",
            calls=self.calls,
            module=self.module,
        )
        self.program("go", text)

    def program(self, name: str, text: str) -> Path:
        place = self.bin / name
        place.write_text(text)
        place.chmod(0o755)
        return place

    def called(self) -> list[str]:
        return self.calls.read_text().split() if self.calls.exists() else []


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_a_missing_tool_is_built_once_and_linked(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.install_go()
    places = ensure(["sample"], machine.home)
    assert set(places) == {"sample", "sample-two", "sample-start"}
    for name, place in places.items():
        assert place.is_relative_to(machine.cache / "tools" / machine.tool.key)
        assert os.access(machine.home.bin / name, os.X_OK)
    output = capsys.readouterr().err
    assert "sample 1.2.3: built in" in output
    assert "downloads: 3 MB" in output
    assert not (machine.cache / "build" / machine.tool.key).exists()

    before = machine.called()
    ensure(["sample"], Home(machine.home.root / "other"), quiet=True)
    assert machine.called() == before
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "")


def test_tools_of_one_lock_are_built_together(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    second = replace(
        machine.tool, name="second", packages=("cmd/three",), binaries={"three": "third"}, files={}
    )
    other = locked_at(tmp_path / "other", "v1.2.4", SAMPLE, name="other")
    there = locked_at(tmp_path / "there", "v1.2.5", SAMPLE, name="there")
    tools = {tool.name: tool for tool in (machine.tool, there, other, second)}
    monkeypatch.setattr(registry, "TOOLS", tools)
    machine.install_go()
    ensure(["there"], machine.home, quiet=True)
    before = machine.called().count("build")
    capsys.readouterr()
    ensure([], machine.home)
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("[")]
    titles = [line.partition(": ")[0] for line in lines]
    assert titles == ["[1/2] 2 tools"] * 2 + ["[2/2] other 1.2.4"] * 2
    assert machine.called().count("build") == before + 2
    assert all(registry.is_built(registry.tool_directory(tool)) for tool in tools.values())


@pytest.mark.long
def test_a_build_that_takes_long_says_how_far_it_is(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "REPORT_SECONDS", 0.5)
    machine.install_go(build="echo pkg/part >&2; sleep 2.5")
    ensure(["sample"], machine.home, quiet=True)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "sample 1.2.3: downloading the sources of sample 1.2.3, then building"
    far = re.compile(r"sample 1\.2\.3: building, 1 of at most 2 packages, about \d+ s left, \d+ s")
    assert [line for line in lines if far.fullmatch(line)]
    assert lines[-1].startswith("sample 1.2.3: built in ")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("stream", "lines"), [(Terminal(), 1), (io.StringIO(), 2)])
def test_progress_is_one_line_on_a_terminal_and_quiet_elsewhere(stream: io.StringIO, lines: int) -> None:
    said = progress.Progress("sample", stream)
    said.start("downloading")
    said.update("building, 1 of at most 2 packages")
    said.finish("built")
    text = stream.getvalue()
    assert text.count("\n") == lines
    assert ("building, 1 of at most 2 packages, 0 s" in text) is stream.isatty()
    assert text.endswith("sample: built\n")


def test_a_home_with_a_persons_files_is_refused_before_anything_is_built(machine: Machine) -> None:
    machine.install_go()
    machine.home.root.mkdir()
    (machine.home.root / "thesis").touch()
    with pytest.raises(OSError, match="TRAINYARD_HOME must"):
        ensure(["sample"], machine.home)
    assert machine.called() == []


@pytest.mark.parametrize(
    ("share", "seconds", "text"),
    [
        (0.01, 60, ""),
        (0.5, 60, "about 60 s left"),
        (0.25, 60, "about 3 min left"),
        (1, 600, "about 0 s left"),
    ],
)
def test_time_left_follows_the_share_that_is_done(share: float, seconds: float, text: str) -> None:
    assert progress.time_left(share, seconds) == text


def test_a_failed_build_names_the_tool_the_reason_and_the_log_and_is_taken_up_again(machine: Machine) -> None:
    machine.install_go(build="echo 'a.go:1:2: undefined: b' >&2; exit 1")
    with pytest.raises(ToolError) as caught:
        ensure(["sample"], machine.home)
    assert "building sample v1.2.3 failed" in str(caught.value)
    assert "undefined: b" in str(caught.value)
    log = Path(str(caught.value).rsplit("log: ", 1)[1])
    assert "undefined: b" in log.read_text()
    assert not (machine.cache / "tools").exists()

    machine.install_go()
    assert (ensure(["sample"], machine.home)["sample"]).is_file()


@pytest.mark.parametrize("words", ["no space left on device", "No space left on device"])  # Go's, and C's
def test_full_disk_is_reported_with_the_log(machine: Machine, words: str) -> None:
    machine.install_go(build=f"echo 'write /x: {words}' >&2; exit 1")
    with pytest.raises(ToolError, match=r"building sample v1\.2\.3 failed: the disk is full") as caught:
        ensure(["sample"], machine.home)
    log = Path(str(caught.value).rsplit("log: ", 1)[1])
    assert log == machine.cache / "logs" / "lock.log"
    assert words in log.read_text()
    assert "\n" not in str(caught.value)


def test_cache_that_links_to_itself_raises_oserror(machine: Machine) -> None:
    machine.install_go()
    machine.cache.symlink_to(machine.cache.name)
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        ensure(["sample"], machine.home)


def test_without_go_the_message_says_which_version_to_install(machine: Machine) -> None:
    with pytest.raises(
        ToolError, match=r"Go 1\.26\.6 or newer is needed to build sample; .*https://go\.dev/dl"
    ):
        ensure(["sample"], machine.home)


def test_a_persons_go_flags_are_kept_where_they_change_nothing_of_what_is_built(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.install_go()
    monkeypatch.setenv("GOFLAGS", "-mod=vendor -modcacherw --p=2 -tags=x -buildvcs=true")
    assert go.find_go("sample").environment["GOFLAGS"] == "-modcacherw --p=2 -buildvcs=false"
    monkeypatch.delenv("GOFLAGS")
    assert go.find_go("sample").environment["GOFLAGS"] == "-buildvcs=false"


def test_a_go_that_is_too_old_is_named_with_its_version(machine: Machine) -> None:
    machine.install_go(version="1.26.5")
    with pytest.raises(ToolError, match=r"found 1\.26\.5 at .*/bin/go"):
        ensure(["sample"], machine.home)


def test_a_tool_on_path_is_taken_in_a_compatible_version(machine: Machine) -> None:
    one = machine.program("sample", "#!/bin/sh\necho sample version v1.2.10\n")
    two = machine.program("sample-two", "#!/bin/sh\necho 1.2.3\n")
    assert ensure(["sample"], machine.home) == {"sample": one, "sample-two": two}
    assert (machine.home.bin / "sample").resolve() == one


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("1.2.2", "1.2.3"),
        ("1.3.3", "1.2.3"),
        ("1.2.3", "1.2.4"),
        ("none", "1.2.3"),
        ("1.2.3; exit 1", "1.2.3"),
    ],
)
def test_a_tool_on_path_in_another_version_is_passed_over(machine: Machine, one: str, two: str) -> None:
    machine.program("sample", f"#!/bin/sh\necho {one}\n")
    machine.program("sample-two", f"#!/bin/sh\necho {two}\n")
    machine.install_go()
    assert ensure(["sample"], machine.home)["sample"].is_relative_to(machine.cache)


def test_our_own_links_on_path_do_not_count_as_installed(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.home.make()
    for name in ("sample", "sample-two"):
        place = machine.home.bin / name
        place.write_text("#!/bin/sh\necho 1.2.3\n")
        place.chmod(0o755)
    monkeypatch.setenv("PATH", f"{machine.home.bin}:{os.environ['PATH']}")
    assert path.find(machine.tool, os.environ["PATH"], (machine.home.root,)) is None


def test_unknown_tool_is_reported_with_the_existing_ones(machine: Machine) -> None:
    with pytest.raises(ToolError, match="no tool is called hammer; there are sample"):
        ensure(["hammer"], machine.home)


def test_the_module_directory_is_fetched_again_when_the_module_cache_was_cleaned(machine: Machine) -> None:
    machine.install_go()
    ensure(["sample"], machine.home)
    record = machine.cache / "tools" / machine.tool.key / "build.json"
    assert module_directory("sample") == machine.module
    assert "mod" not in machine.called()
    record.write_text(json.dumps({"moduleDirectory": "/nonexistent"}))
    assert module_directory("sample") == machine.module
    assert "mod" in machine.called()


def test_a_tool_of_the_tests_alone_is_built_once_beside_the_others_and_linked_nowhere(
    machine: Machine, tmp_path: Path
) -> None:
    machine.install_go()
    ensure(["sample"], machine.home)
    linked = sorted(machine.home.bin.iterdir())
    other = locked_at(tmp_path / "other", "v1.1.0", SAMPLE)
    places = ensure_other(other)
    assert places == ensure_other(other)
    assert {each.parent for each in places.values()} == {machine.cache / "tools" / other.key / "bin"}
    assert all(os.access(each, os.X_OK) for each in places.values())
    assert machine.called().count("build") == 2
    assert sorted(machine.home.bin.iterdir()) == linked


def test_the_key_follows_what_is_built_and_nothing_else(machine: Machine) -> None:
    tool = machine.tool
    keys = {replace(tool, **change).key for change in ({}, {"on_path": None})}
    assert keys == {tool.key}
    keys |= {replace(tool, **change).key for change in ({"packages": ("x",)}, {"variables": {}})}
    (tool.lock / "go.sum").write_text("example.org/part v0.2.3 h1:another\n")
    assert len({*keys, tool.key}) == 4


def test_optional_tools_are_only_made_by_name() -> None:
    assert not TOOLS.keys() & OPTIONAL_TOOLS.keys()
    assert [tool.name for tool in registry.find_tools([])] == list(TOOLS)
    assert [tool.name for tool in registry.find_tools(["jobset"])] == ["jobset"]


EVERY_TOOL = TOOLS | OPTIONAL_TOOLS


def test_every_pin_is_complete() -> None:
    for name, tool in EVERY_TOOL.items():
        assert tool.name == name
        parse_version(tool.version)
        built = {package.rpartition("/")[2] for package in tool.packages if package}
        assert built <= set(tool.binaries), name
        assert set(tool.on_path or {}) <= set(tool.programs)
        # What the linker writes into a program is its version in go.mod.
        versions = [
            value.removeprefix("v") for variable, value in tool.variables.items() if "ersion" in variable
        ]
        assert all(tool.number.startswith(value) or value == tool.number.split(".")[1] for value in versions)
    programs = [program for tool in EVERY_TOOL.values() for program in tool.programs]
    assert len(programs) == len(set(programs))


def test_tools_with_one_lock_have_programs_of_different_names() -> None:
    for lock in {tool.lock for tool in EVERY_TOOL.values()}:
        names = [name for tool in EVERY_TOOL.values() if tool.lock == lock for name in tool.binaries]
        assert len(names) == len(set(names))


def test_objects_of_a_kustomization_are_rendered_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINYARD_CACHE", str(tmp_path))
    assert rendered("training-operator", tmp_path / "overlay") == tmp_path / "overlay", "without kubectl"
    kubectl = registry.tool_directory(TOOLS["kubernetes"]) / "bin" / "kubectl"
    kubectl.parent.mkdir(parents=True)
    kubectl.write_text(f'#!/bin/sh\necho "$@"; echo >> {tmp_path}/calls\n')
    kubectl.chmod(0o755)
    files = {rendered("training-operator", tmp_path / "overlay") for _ in range(2)}
    assert [file.read_text() for file in files] == [f"kustomize {tmp_path}/overlay\n"]
    assert (tmp_path / "calls").read_text() == "\n"
