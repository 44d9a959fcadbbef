"""Starting and ending a local cloud: records of the dead, ports of others, full disks, and the command line."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from local import __main__ as command_line
from local.arguments import EXIT_USAGE, NOT_RUNNING, parse
from local.cluster import lifecycle, record
from local.cluster.lifecycle import CloudError
from local.cluster.record import Process, parse_stat, read_stat, stat_fields
from local.home import Home

FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    home.make()
    return home


@pytest.fixture
def running(home: Home) -> Home:
    """A home whose cloud runs: as this process."""
    start = read_stat(os.getpid())
    assert start is not None
    write_record(home, os.getpid(), start)
    return home


def write_record(home: Home, pid: int, start_time: int) -> None:
    home.supervisor_file.write_text(json.dumps({"pid": pid, "startTime": start_time}))
    home.cloud_file.write_text(
        json.dumps({"pid": pid, "startTime": start_time, "awsEndpoint": "http://127.0.0.1:1"})
    )


def test_a_process_is_known_by_id_and_start_time() -> None:
    start = read_stat(os.getpid())
    assert start is not None
    assert Process(os.getpid(), start).alive
    assert not Process(os.getpid(), start + 1).alive
    assert not Process(2**22 + 1, start).alive


def test_a_zombie_is_not_alive() -> None:
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert read_stat(child.pid) is None
    child.wait()


def test_a_process_may_have_any_name(tmp_path: Path) -> None:
    line = "42 (a) b (c) S " + " ".join(str(n) for n in range(4, 53))
    assert parse_stat(line) == Process(42, 22)
    program = tmp_path / "a) Z (b"
    program.write_text("#!/bin/sh\nread line\n")
    program.chmod(0o755)
    with subprocess.Popen([program], stdin=subprocess.PIPE) as child:
        fields = stat_fields(child.pid)
        assert fields is not None
        assert fields[0] in "RSD"
        assert read_stat(child.pid) == int(fields[19])


def test_record_without_its_process_is_reported_and_removed(home: Home) -> None:
    write_record(home, os.getpid(), 1)
    said: list[str] = []
    lifecycle.down(home, said.append)
    assert "ended without `down`; its record is removed" in said[0]
    assert said[1] == "local cloud: not running"
    assert not home.cloud_file.exists()
    assert lifecycle.status(home) is None


@pytest.mark.parametrize("text", ['{"pid": ', '{"pid": 1e400, "startTime": 1}', "[1, 2]", '{"pid": "x"}'])
def test_damaged_record_counts_as_none(home: Home, text: str) -> None:
    home.supervisor_file.write_text(text)
    assert record.recorded(home) is None


def test_a_second_up_finds_the_first(running: Home) -> None:
    said: list[str] = []
    lifecycle.up(running, said.append)
    assert said == [f"local cloud: already running at http://127.0.0.1:1 (process {os.getpid()})"]


def test_starting_cloud_is_awaited_and_its_end_reported(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        start = read_stat(child.pid)
        assert start is not None
        home.supervisor_file.write_text(json.dumps({"pid": child.pid, "startTime": start}))
        (home.logs / "supervisor.log").write_text("error: the emulator ended\n")
        monkeypatch.setattr(lifecycle.time, "sleep", lambda _: child.kill())
        said: list[str] = []
        with pytest.raises(CloudError, match="the emulator ended"):
            lifecycle.up(home, said.append)
    assert said == [f"local cloud: process {child.pid} runs but is not ready yet; waiting"]


def test_up_keeps_the_delays_of_its_options(running: Home) -> None:
    lifecycle.up(running, lambda _: None, boot_seconds=1.5)
    lifecycle.up(running, lambda _: None, gpu_delay_seconds=0.5)
    assert running.settings() == {"bootSeconds": 1.5, "gpuDelaySeconds": 0.5}


@pytest.mark.parametrize(
    ("owner", "name", "fault", "message"),
    [
        (shutil, "disk_usage", lambda _: Mock(free=5_000_000), "is full: 5 MB free, 1000 MB are needed"),
        (lifecycle, "write_atomically", Mock(side_effect=FULL), "the disk of .* is full: free some space"),
        (
            subprocess,
            "run",
            lambda command, **_: subprocess.CompletedProcess(command, 1, "", "Operation not\npermitted\n"),
            "needs PID and mount namespaces: .*Operation not permitted",
        ),
    ],
    ids=("disk", "write", "namespaces"),
)
def test_up_names_what_the_machine_lacks_in_one_line(
    home: Home, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, fault: Any, message: str
) -> None:
    monkeypatch.setattr(owner, name, fault)
    with pytest.raises(CloudError, match=message) as refused:
        lifecycle.up(home, lambda _: None)
    assert "\n" not in str(refused.value)


@pytest.fixture
def ordinary_user() -> Iterator[Path]:
    """Run the test as a user other than root. It has a directory of its own."""
    before = os.geteuid()
    os.seteuid(before or 65534)
    try:
        with tempfile.TemporaryDirectory() as directory:
            yield Path(directory)
    finally:
        os.seteuid(before)


@pytest.mark.parametrize("mode", [0o000, 0o500, 0o700])
def test_reset_deletes_directories_without_permissions(ordinary_user: Path, mode: int) -> None:
    home = Home(ordinary_user / "home")
    home.make()
    layer = home.pods / "c" / "uid" / "layer" / "0" / "work" / "work" / "incompat"
    (layer / "volatile" / "file").mkdir(parents=True)
    (layer / "volatile").chmod(mode)
    lifecycle.reset(home, lambda _: None)
    assert not home.root.exists()


def test_reset_that_fails_names_the_path_and_can_be_repeated(
    ordinary_user: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(ordinary_user / "home")
    home.make()
    said: list[str] = []
    with monkeypatch.context() as patched:
        refusal = PermissionError(errno.EACCES, "Permission denied", str(home.pods / "c"))
        patched.setattr(lifecycle.shutil, "rmtree", Mock(side_effect=refusal))
        with pytest.raises(CloudError, match=rf"^{home.root}: could not be deleted: {home.pods / 'c'}: Perm"):
            lifecycle.reset(home, said.append)
    assert not any("deleted" in line for line in said)
    home.make()
    lifecycle.reset(home, said.append)
    assert not home.root.exists()


def test_reset_through_a_link_leaves_what_links_lead_to(tmp_path: Path) -> None:
    models, place = tmp_path / "models", tmp_path / "disk"
    models.mkdir()
    place.mkdir()
    (models / "model").touch()
    (tmp_path / "home").symlink_to(place)
    home = Home(tmp_path / "home")
    home.make()
    (home.root / "models").symlink_to(models)
    lifecycle.reset(home, lambda _: None)
    assert list(place.iterdir()) == []
    assert (models / "model").exists()


def test_up_in_a_directory_with_other_files_is_refused_so_that_reset_never_deletes_them(
    tmp_path: Path,
) -> None:
    foreign = Home(tmp_path / "documents")
    foreign.root.mkdir()
    (foreign.root / "thesis").touch()
    with pytest.raises(CloudError, match=rf"^TRAINYARD_HOME must .*: {foreign.root}$"):
        lifecycle.up(foreign, lambda _: None)
    with pytest.raises(CloudError, match="is not deleted"):
        lifecycle.reset(foreign, lambda _: None)
    assert [each.name for each in foreign.root.iterdir()] == ["thesis"]


def test_words_of_another_command_are_left_alone() -> None:
    assert parse(["kubectl", "--token", "x"]).words == ["--token", "x"]
    assert parse(["--home", "h", "exec", "--", "ls", "-l"]).words == ["--", "ls", "-l"]
    assert parse(["kubectl"]).words == []
    assert parse(["kubectl", "--help"]).words == ["--help"]
    assert parse(["--home=h", "kubectl", "--token", "x"]).words == ["--token", "x"]
    assert parse(["exec", "--", "ls", "--help"]).words == ["--", "ls", "--help"]
    assert parse(["exec", "ls", "--help"]).words == ["ls", "--help"]
    assert parse(["logs", "-f", "exec"]).process == "exec"


@pytest.mark.parametrize(
    "words",
    [["exec", "--help"], ["exec", "-h"], ["--home", "h", "exec", "--help"], ["--home=h", "exec", "-h"]],
)
def test_help_of_exec_is_its_own(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(words)
    assert ended.value.code == 0
    assert "usage: python -m local exec [-h]" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "fact"),
    [
        ([], "COMMAND"),
        (["upp"], "'upp'"),
        (["up", "--boot-seconds", "x"], "'x' must be a number of seconds"),
        (["--home", "", "status"], "'' must be a directory"),
        (["status", "--nothing"], "--nothing"),
    ],
)
def test_wrong_arguments_are_one_line(
    words: list[str], fact: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(words)
    assert ended.value.code == EXIT_USAGE
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert fact in error
    assert error.count("\n") == 1


def test_status_of_a_stopped_cloud_has_its_own_exit_code(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command_line.run(["--home", str(home.root), "status", "--json"]) == NOT_RUNNING
    assert json.loads(capsys.readouterr().out) == {
        "ready": False,
        "awsEndpoint": None,
        "kubeconfig": str(home.kubeconfig),
        "processes": [],
    }


def test_logs_of_an_unknown_process_name_those_that_exist(home: Home) -> None:
    (home.logs / "aws.log").write_text("line\n")
    with pytest.raises(CloudError, match="no log is called x; there are: aws"):
        command_line.run(["--home", str(home.root), "logs", "x"])


def test_logs_carry_the_name_of_their_process(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    (home.logs / "a-folder.log").mkdir()
    (home.logs / "a-link.log").symlink_to("nowhere")
    os.mkfifo(home.logs / "a-pipe.log")
    (home.logs / "aws.log").write_text("line\n")
    command_line.run(["--home", str(home.root), "logs"])
    assert capsys.readouterr().out == "aws: line\n"
