"""Suggested commands name the right stack and cluster, whatever else is up."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from local.home import CHECKOUT, Home
from trainyard.cli import commands, runs
from trainyard.cli.aws_commands import AwsStack
from trainyard.cli.engine_run import Interrupted
from trainyard.cli.follow import Follower, Result
from trainyard.cli.make_variables import user_command
from trainyard.cli.next_steps import places, run_end

OUTPUTS: dict[str, Any] = {
    "clusterName": "trainyard-dev",
    "region": "us-west-2",
    "trainingNamespace": "training",
    "launcherJobName": "launch-r1",
    "runId": "r1",
}


@pytest.mark.parametrize(
    ("current", "note"),
    [
        ("trainyard-dev", ""),
        ("trainyard-local", " (the current context is trainyard-local: give --context)"),
        ("", " (the current context is not set: give --context)"),
    ],
)
def test_where_things_are_names_the_stacks_own_cluster(
    monkeypatch: pytest.MonkeyPatch, current: str, note: str
) -> None:
    monkeypatch.setattr("trainyard.cli.next_steps.current_context", lambda _file: current)
    assert places(Home(CHECKOUT / ".local"), "trainyard-dev", "training") == [
        "logs:       .local/logs/, or KUBECONFIG=.local/kubeconfig .local/bin/kubectl --context trainyard-dev logs "
        "-n training <pod>",
        f"kubeconfig: .local/kubeconfig, context trainyard-dev{note}",
    ]


@pytest.fixture
def stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> commands.LocalStack:
    """A stack that is up, whose runs a person stops watching at once."""

    def follow(*_arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Follower, "__init__", lambda *_arguments: None)
    monkeypatch.setattr(Follower, "follow", follow)
    engine: Any = SimpleNamespace(stack="dev", environment={}, outputs=lambda: OUTPUTS)
    stack = commands.LocalStack(home=Home(tmp_path), record={}, engine=engine)
    monkeypatch.setattr(commands, "_running", lambda _stack: stack)
    monkeypatch.setattr(runs, "start_run", lambda *_arguments: "launch-r2")
    monkeypatch.setattr("trainyard.cli.sign_in.check", lambda _stack: None)
    monkeypatch.setenv("TRAINYARD_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(AwsStack, "outputs", lambda _stack: OUTPUTS)
    monkeypatch.setattr(AwsStack, "kubeconfig", lambda *_arguments: contextlib.nullcontext(tmp_path))
    return stack


@pytest.mark.parametrize(
    ("stack", "cloud", "command"),
    [
        ("local", "local", "make submit STACK=local MIN="),
        ("dev", "local", "make submit STACK=dev CLOUD=local MIN="),
        ("dev", "aws", "make submit STACK=dev MIN="),
    ],
)
def test_end_of_earlier_run_says_how_to_start_another(stack: str, cloud: str, command: str) -> None:
    message = run_end(stack, cloud, "r1", Result(succeeded=True, message="", seconds=39, is_earlier=True))
    assert message.startswith("run r1 has already succeeded, in 39 s. ")
    assert f"`{command}" in message


def test_a_run_that_nobody_watches_any_more_is_shown_by_its_stacks_own_up(
    stopped: commands.LocalStack,
) -> None:
    again = user_command("up", "dev", "local")
    with pytest.raises(Interrupted) as interrupted:
        runs.follow_run(stopped, OUTPUTS, "launch-r1", again)
    assert str(interrupted.value) == (
        f"stopped watching; run r1 goes on: `TRAINYARD_HOME={Home().root} make up STACK=dev CLOUD=local` shows "
        f"it, `TRAINYARD_HOME={Home().root} make down STACK=dev CLOUD=local` ends it"
    )


def test_a_submitted_run_is_shown_by_its_launchers_log(stopped: commands.LocalStack) -> None:
    with pytest.raises(Interrupted) as interrupted:
        commands.submit("dev", "local", 1, 2)
    home = stopped.home
    assert (
        f"run r2 goes on: `KUBECONFIG={home.kubeconfig} {home.bin / 'kubectl'} --context trainyard-dev logs"
        in str(interrupted.value)
    )
    assert (
        f" logs -n training -f job/launch-r2` shows it, `TRAINYARD_HOME={Home().root} make down STACK=dev CLOUD=local`"
        in str(interrupted.value)
    )


@pytest.mark.usefixtures("stopped")
def test_a_submitted_run_on_aws_is_shown_by_its_launchers_log() -> None:
    with pytest.raises(Interrupted) as interrupted:
        commands.submit("dev", "aws", 1, 2)
    assert str(interrupted.value) == (
        "stopped watching; run r2 goes on: `kubectl logs -n training -f job/launch-r2` shows it, "
        "`make down STACK=dev` ends it"
    )
