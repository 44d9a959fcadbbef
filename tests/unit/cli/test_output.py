"""Where a command's lines go: the screen, the status row of a terminal, the log."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from local.home import Home
from trainyard.cli import commands, runs
from trainyard.cli.__main__ import main
from trainyard.cli.engine import Engine
from trainyard.cli.follow import Result
from trainyard.cli.output import CLEAR_ROW, OUTPUT, Output, is_live, status_row


@pytest.mark.parametrize(("verbose", "shown"), [(False, ["brief"]), (True, ["all of it"])])
def test_log_has_every_line_and_screen_the_chosen(
    verbose: bool, shown: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = Output(live=False)
    output.verbose = verbose
    log = tmp_path / "logs" / "up-local.log"
    output.open_log(log, "logs/up-local.log")
    output.detail("all of it", ["brief"])
    output.report("message")
    assert capsys.readouterr().out.splitlines() == ["log: logs/up-local.log", *shown, "message"]
    assert log.read_text().splitlines()[1:] == ["all of it", "message"]


def test_log_that_cannot_be_written_does_not_stop_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    output = Output(live=False)
    output.open_log(tmp_path / "file" / "up.log", "up.log")
    output.open_log(Path("/dev/full"), "/dev/full")
    output.report("message")
    assert capsys.readouterr().out.splitlines()[-1] == "message"


def test_pipe_gets_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output()
    with output.stage("pulumi up", lambda: "created 1"):
        output.report("message")
    assert capsys.readouterr().out == "message\n"


def test_terminal_gets_status_row_below_the_lines(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output(live=True)
    with output.stage("pulumi up", lambda: "created 57 of 155"):
        output.report("message")
    text = capsys.readouterr().out
    assert f"{CLEAR_ROW}message\n{CLEAR_ROW}pulumi up  0:00  created 57 of 155" in text
    assert text.endswith(CLEAR_ROW)


@pytest.mark.parametrize(
    ("columns", "expected"), [(80, "run r1  1:05  following, loss 0.5"), (14, "run r1  1:05 ")]
)
def test_status_row_fits_the_terminal(columns: int, expected: str) -> None:
    assert status_row("run r1", 65.4, "following, loss 0.5", columns) == expected


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "term", "live"),
    [(_Terminal(), "xterm", True), (_Terminal(), "dumb", False), (io.StringIO(), "xterm", False)],
)
def test_status_row_needs_a_terminal(stream: io.StringIO, term: str, live: bool) -> None:
    assert is_live(stream, {"TERM": term}) is live


@pytest.mark.parametrize(
    ("words", "variable", "verbose"),
    [([], "", False), ([], "no", False), ([], "1", True), (["-v"], "", True), (["--verbose"], "no", True)],
)
@pytest.mark.parametrize("command", ["up", "down"])
def test_verbose_is_an_option_and_a_variable(
    command: str, words: list[str], variable: str, verbose: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"trainyard.cli.commands.{command}", lambda *_arguments: 0)
    monkeypatch.setattr(OUTPUT, "verbose", False)
    monkeypatch.setattr("sys.argv", ["trainyard.cli", command, *words])
    monkeypatch.setattr("signal.signal", lambda *_arguments: None)
    monkeypatch.setenv("VERBOSE", variable)
    assert main() == 0
    assert OUTPUT.verbose is verbose


def test_wrong_verbose_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["trainyard.cli", "up"])
    monkeypatch.setattr("signal.signal", lambda *_arguments: None)
    monkeypatch.setenv("VERBOSE", "maybe")
    assert main() == 1
    assert capsys.readouterr().err.startswith("error: VERBOSE is 'maybe'; it must be ")


@pytest.mark.parametrize(
    ("words", "module"),
    [
        (["preflight", "--stack", "dev"], "trainyard.preflight --stack dev"),
        (["preflight"], "trainyard.preflight --stack local --file F"),
        (["verify-clean", "--stack", "dev"], "trainyard.preflight.leftovers --stack dev"),
        (["verify-clean"], "trainyard.preflight.leftovers --stack local --file F"),
        (["status"], "local status"),
        (["status", "--json"], "local status --json"),
        (["logs"], "local logs"),
        (["logs", "-f", "aws"], "local logs -f aws"),
    ],
)
def test_command_of_another_module_runs_it(
    words: list[str], module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def execute(_program: str, words: list[str], _environment: dict[str, str]) -> None:
        raise SystemExit(" ".join(words[1:]))

    monkeypatch.setattr("os.execve", execute)
    monkeypatch.setattr(commands, "local_account", lambda _command, _stack: ["--file", "F"])
    monkeypatch.setattr("sys.argv", ["trainyard.cli", *words])
    monkeypatch.setattr("signal.signal", lambda *_arguments: None)
    with pytest.raises(SystemExit, match=f"^-P -m {module}$"):
        main()


def test_no_preflight_is_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFLIGHT", "yes")
    monkeypatch.setattr("signal.signal", lambda *_arguments: None)
    monkeypatch.setattr("trainyard.cli.commands.up", lambda *_arguments: 0)
    monkeypatch.setattr("sys.argv", ["trainyard.cli", "up", "--no-preflight"])
    assert (main(), os.environ["PREFLIGHT"]) == (0, "no")


ROWS = [f" +  aws:ec2:Subnet private-{number} created (0.5s)" for number in range(30)]


@pytest.mark.parametrize(("command", "lines"), [("up", 1), ("preview", 30)])
def test_rows_of_engine_are_counted_but_for_a_plan(
    command: str,
    lines: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def run_command(*arguments: Any) -> int:
        for row in ROWS:
            arguments[5](row)
        return 0

    monkeypatch.setattr("trainyard.cli.engine.run_command", run_command)
    Engine(tmp_path / "home", "local", {}).run(command)
    assert len(capsys.readouterr().out.splitlines()) == lines


def test_lines_of_run_are_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Following:
        def __init__(self, _kubeconfig: Path, say: Callable[[str], None]) -> None:
            self._say = say

        def follow(self, *_arguments: Any) -> Result:
            self._say("   1.0 s  node joined: a g5")
            self._say("   2.0 s  node ready: a g5")
            return Result(succeeded=False, message="no more nodes", seconds=3.0)

    monkeypatch.setattr(runs, "Follower", Following)
    monkeypatch.setattr(commands, "places", lambda *_arguments: [])
    engine = Engine(tmp_path / "home", "local", {})
    stack = commands.LocalStack(home=Home(tmp_path), record={}, engine=engine)
    outputs = {"trainingNamespace": "training", "clusterName": "c"}
    assert runs.follow_run(stack, outputs, "launch-r1", "make up") == 1
    assert capsys.readouterr().out.splitlines() == [
        "   2.0 s  node ready: a g5",
        "run r1 failed: no more nodes",
    ]
