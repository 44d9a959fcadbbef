"""Engine commands: following their output and stopping them in order."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from local.home import Home
from trainyard.cli import disk_space
from trainyard.cli.command_lock import turn
from trainyard.cli.engine import ROOT, Engine, EngineError
from trainyard.cli.engine_run import Interrupted, run_command

# Ends in order when it is asked to, or else when a file named `go` is there.
SLOW = "trap 'echo cancelled; exit 7' INT; echo started; while [ ! -e go ]; do sleep 0.02; done; echo ended"


def test_every_line_is_shown_and_the_exit_code_returned(tmp_path: Path) -> None:
    shown: list[str] = []
    words = ["sh", "-c", "echo one; echo two >&2; exit 3"]
    assert run_command(words, tmp_path, os.environ, tmp_path / "log", tmp_path / "record", shown.append) == 3
    assert shown == ["one", "two"]


def test_an_interrupt_is_passed_on_and_the_orderly_end_awaited(tmp_path: Path) -> None:
    shown: list[str] = []

    def show(line: str) -> None:
        shown.append(line)
        if line == "started":
            threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGINT)).start()

    with pytest.raises(Interrupted, match=r"^sh -c was stopped$"):
        run_command(["sh", "-c", SLOW], tmp_path, os.environ, tmp_path / "log", tmp_path / "record", show)
    assert shown[0] == "started"
    assert shown[-1] == "cancelled"


@pytest.mark.parametrize(
    ("stack", "command", "message"),
    [
        ("local", "up", "pulumi up was stopped; `make up` goes on from here, `make down` removes all"),
        (
            "dev",
            "destroy",
            "pulumi destroy was stopped; `make up STACK=dev CLOUD=local` goes on from here, "
            "`make down STACK=dev CLOUD=local` removes all",
        ),
        ("dev", "preview", "pulumi preview was stopped; nothing was changed"),
    ],
)
def test_an_interrupted_engine_says_how_its_own_stack_goes_on(
    stack: str, command: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_arguments: object) -> int:
        raise Interrupted("stopped")

    monkeypatch.setattr("trainyard.cli.engine.run_command", interrupted)
    with pytest.raises(Interrupted) as said:
        Engine(tmp_path / "home", stack, {}).run(command)
    assert str(said.value) == message


def test_a_killed_watcher_does_not_end_the_engine(tmp_path: Path) -> None:
    log = tmp_path / "log"
    code = (
        "import os, sys, pathlib; from trainyard.cli.engine_run import run_command; "
        "log = pathlib.Path(sys.argv[2]); record = log.with_suffix('.record'); "
        "run_command(['sh', '-c', sys.argv[1]], pathlib.Path('.'), os.environ, log, record, print)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    watcher = subprocess.Popen(
        [sys.executable, "-c", code, SLOW, str(log)], stdout=subprocess.PIPE, cwd=tmp_path, env=environment
    )
    deadline = time.monotonic() + 60
    while not (log.exists() and "started" in log.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    watcher.kill()
    watcher.communicate()
    (tmp_path / "go").touch()
    while "ended" not in log.read_text():
        assert time.monotonic() < deadline, "the engine ended with its watcher"
        time.sleep(0.02)


def test_two_commands_take_turns_and_the_second_says_whose_it_waits_for(tmp_path: Path) -> None:
    said: list[str] = []
    order: list[str] = []
    stacks = tmp_path / "home" / "stacks"

    def second() -> None:
        with turn(stacks, said.append):
            order.append("second")

    with turn(stacks, said.append):
        thread = threading.Thread(target=second)
        thread.start()
        deadline = time.monotonic() + 60
        while not said and time.monotonic() < deadline:
            time.sleep(0.01)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]
    assert str(os.getpid()) in said[0]


def test_a_command_in_a_directory_of_somebody_else_is_refused_and_leaves_it_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis").touch()
    with (
        pytest.raises(OSError, match="TRAINYARD_HOME must name a new or empty"),
        turn(tmp_path / "stacks", print),
    ):
        pass
    assert [each.name for each in tmp_path.iterdir()] == ["thesis"]


def test_a_home_whose_first_command_is_none_of_the_clouds_is_a_home_all_the_same(tmp_path: Path) -> None:
    root = tmp_path / "home"
    with turn(root / "preview", print):
        Home(root).make()
    Engine(tmp_path / "other", "dev", {})
    Home(tmp_path / "other").make()


def test_the_engine_finds_no_folder_for_a_log_of_its_own(tmp_path: Path) -> None:
    Engine(tmp_path / "home", "local", {})
    Engine(tmp_path / "home", "dev", {})
    assert (tmp_path / "home" / "pulumi-home" / "logs").is_file()


def test_a_recovery_that_was_killed_is_done_again(tmp_path: Path) -> None:
    first = Engine(tmp_path / "home", "local", {})
    assert not first.was_interrupted()
    first.begin_recovery()
    again = Engine(tmp_path / "home", "local", {})
    assert again.was_interrupted()
    again.end_recovery()
    assert not Engine(tmp_path / "home", "local", {}).was_interrupted()


def test_a_state_that_a_full_disk_cut_off_is_taken_from_the_last_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(tmp_path / "home", "local", {})
    state = engine.state_file
    state.parent.mkdir(parents=True)
    whole = json.dumps({"checkpoint": {"latest": {"resources": [{"type": "aws:ec2/vpc:Vpc"}]}}})
    state.write_text(whole)
    keeper = engine._whole
    keeper.begin()
    assert not keeper.must_stop()
    assert not engine.restore_state()
    state.write_text("")
    monkeypatch.setattr(disk_space, "KEEP_SECONDS", 0.0)
    assert not keeper.must_stop()
    assert engine.restore_state()
    assert state.read_text() == whole
    assert engine.was_interrupted(), "what the engine did since is not looked for"


def test_outputs_are_those_of_the_stack_in_the_state(tmp_path: Path) -> None:
    engine = Engine(tmp_path / "home", "local", {})
    assert engine.outputs() == {}
    resources = [
        {"type": "aws:ec2/vpc:Vpc", "outputs": {"id": "v"}},
        {"type": "pulumi:pulumi:Stack", "outputs": {"clusterName": "c"}},
    ]
    engine.state_file.parent.mkdir(parents=True)
    engine.state_file.write_text(json.dumps({"checkpoint": {"latest": {"resources": resources}}}))
    assert engine.outputs() == {"clusterName": "c"}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"checkpoint": 1}', '{"checkpoint": }'])
def test_damaged_state_is_one_line_that_says_how_to_go_on(tmp_path: Path, text: str) -> None:
    engine = Engine(tmp_path / "home", "local", {})
    engine.state_file.parent.mkdir(parents=True)
    engine.state_file.write_text(text)
    with pytest.raises(EngineError, match=r"is damaged. `.*make up` goes on from the last whole state"):
        engine.has_resources()
    with pytest.raises(EngineError, match=r"local .*reset"):
        engine.restore_state()


STATE = json.dumps({"checkpoint": {"latest": {"resources": []}}})


@pytest.mark.parametrize("cut", ["", STATE[:-1], STATE[:-2], '{"a": {}}', STATE[:-3] + "}"])
def test_only_a_complete_state_is_kept(tmp_path: Path, cut: str) -> None:
    state = tmp_path / "state.json"
    whole = disk_space.WholeState(state, tmp_path, "local")
    state.write_text(STATE)
    whole._keep()
    state.write_text(cut)
    whole._keep()
    assert whole.restore()
    assert state.read_text() == STATE


def test_damaged_copy_of_the_state_is_not_restored(tmp_path: Path) -> None:
    engine = Engine(tmp_path / "home", "local", {})
    engine.state_file.parent.mkdir(parents=True)
    engine.state_file.write_text(STATE)
    engine._whole._keep()
    engine.state_file.write_text("{")
    (kept,) = engine.directory.glob("*.kept.json")
    kept.write_text('{"a": }')
    with pytest.raises(EngineError, match="no whole state was kept"):
        engine.restore_state()
    assert engine.state_file.read_text() == "{"


@pytest.mark.parametrize("text", ["", "[]", '{"pid": 1e400, "startTime": 1, "mark": "x"}'])
def test_damaged_lock_and_session_belong_to_no_process(tmp_path: Path, text: str) -> None:
    engine = Engine(tmp_path / "home", "local", {})
    lock = (
        engine.directory / "state" / ".pulumi" / "locks" / "organization" / "trainyard" / "local" / "a.json"
    )
    lock.parent.mkdir(parents=True)
    _, session = engine.files("up")
    for record in (lock, session):
        record.write_text(text)
    engine.wait_for_other(lambda line: pytest.fail(line))
    engine.end_leftovers(lambda line: pytest.fail(line))
    assert engine.was_interrupted()
    assert not session.exists()


def test_a_full_disk_gets_space_for_the_last_write_and_the_engine_is_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(tmp_path / "home", "local", {})
    keeper = engine._whole
    reserve = engine.directory / "local.reserve"
    keeper.begin()
    assert reserve.stat().st_blocks * 512 >= disk_space.RESERVE_BYTES, "the space is not really set aside"
    monkeypatch.setattr(disk_space, "FULL_BYTES", 1 << 60)
    assert not keeper.must_stop(), "what fills the disk may still be at it"
    monkeypatch.setattr(disk_space, "FULL_SECONDS", 0.0)
    assert keeper.must_stop()
    assert not reserve.exists()
    assert keeper.disk_was_full


def test_run_command_that_has_to_stop_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainyard.cli.engine_run.POLL_SECONDS", 0.02)
    shown: list[str] = []
    asked = (
        "trap 'echo asked; count=$((count + 1))' INT; echo ready; while [ -z $count ]; do sleep 0.02; done"
    )
    words = ["sh", "-c", f"{asked}; sleep 0.2; exit 4"]
    log, record = tmp_path / "log", tmp_path / "record"
    code = run_command(words, tmp_path, os.environ, log, record, shown.append, lambda: "ready" in shown)
    assert (code, shown) == (4, ["ready", "asked"])
