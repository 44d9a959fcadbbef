"""`make preview`: a plan against the state where there is one, and the reason where there is none."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from local.cluster import lifecycle
from trainyard.cli import aws_commands, commands
from trainyard.cli.engine import Engine, EngineError


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """The engine's commands, each with the folder of its state."""
    found: list[tuple[str, str]] = []

    def run(self: Engine, command: str, *_words: str, **_more: Any) -> None:
        found.append((self.directory.name, command))

    @contextlib.contextmanager
    def free(_directory: Path, _say: Any) -> Iterator[None]:
        yield

    monkeypatch.setenv("TRAINYARD_HOME", str(tmp_path))
    monkeypatch.setattr(Engine, "run", run)
    monkeypatch.setattr(Engine, "initialise", lambda _self: None)
    monkeypatch.setattr(commands.program, "check", lambda *_words: None)
    monkeypatch.setattr(commands, "ensure", lambda *_words: None)
    monkeypatch.setattr(commands, "pinned_sources", lambda document: None)
    monkeypatch.setattr(commands, "with_sources", lambda document, _sources: document)
    monkeypatch.setattr(commands, "turn", free)
    return found


@pytest.mark.parametrize("cloud", ["local", "aws"])
def test_without_a_state_everything_is_listed_and_the_reason_given(
    cloud: str,
    ran: list[tuple[str, str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(aws_commands.sign_in, "_missing", lambda: "pulumi is not logged in")
    assert commands.preview("dev", cloud) == 0
    assert ran == [("preview", "preview")]
    reason = "not logged in" if cloud == "aws" else "the local cloud is not running"
    (line,) = capsys.readouterr().out.splitlines()
    assert "no plan against its state" in line
    assert reason in line


def test_signed_in_the_official_engine_plans_against_its_state(
    ran: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[str, ...]] = []
    state = {"resources": [{"type": "aws:ec2/vpc:Vpc", "custom": True}]}
    monkeypatch.setattr(aws_commands.sign_in, "check", lambda *_words: None)
    monkeypatch.setattr(aws_commands.AwsStack, "deployment", lambda _stack: state)
    monkeypatch.setattr(aws_commands.pulumi_cli, "run", lambda *words: asked.append(words))
    assert commands.preview("dev", "aws") == 0
    assert asked == [("dev", "preview")]
    assert ran == []
    assert "against its state" in capsys.readouterr().out


@pytest.mark.parametrize("deployed", [{}, None])
def test_stack_that_was_never_up_has_no_plan(
    deployed: dict[str, Any] | None, ran: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def deployment(_stack: object) -> dict[str, Any]:
        if deployed is None:
            raise EngineError("stack dev can't be read: no stack named 'dev' found")
        return deployed

    monkeypatch.setattr(aws_commands.sign_in, "check", lambda *_words: None)
    monkeypatch.setattr(aws_commands.AwsStack, "deployment", deployment)
    assert commands.preview("dev", "aws") == 0
    assert ran == [("preview", "preview")]


def test_engine_of_a_first_plan_knows_no_local_cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another stack may be up on the local cloud, whose variables are in the environment then."""
    variables = {"TRAINYARD_LOCAL_CLOUD": "cloud.json", "AWS_ENDPOINT_URL": "http://127.0.0.1:1"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert not set(variables) & set(Engine(tmp_path / "home", "dev", {}, state="preview").environment)
    assert variables.items() <= Engine(tmp_path / "home", "dev", variables).environment.items()


def test_preview_and_up_share_neither_log_nor_record(tmp_path: Path) -> None:
    engine = Engine(tmp_path / "home", "dev", {})
    assert not set(engine.files("preview")) & set(engine.files("up"))
    assert engine.files("up") == engine.files("destroy")


@pytest.mark.parametrize(
    ("backend", "built"), [("pytorchjob", [()]), ("trainjob", [(), ("kubeflow-trainer", "jobset")])]
)
def test_local_cloud_builds_kubeflow_trainer_only_for_its_stacks(
    backend: str, built: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(commands, "refuse_foreign", lambda _: None)
    monkeypatch.setattr(commands, "preload_library", lambda: None)
    monkeypatch.setattr(commands, "ensure", lambda names, _home: asked.append(tuple(names)))
    monkeypatch.setattr(lifecycle, "up", lambda *_: None)
    monkeypatch.setattr(commands, "_enter", lambda _home: None)
    commands.start_local_cloud({"config": {"trainyard:training": {"backend": backend}}})
    assert asked == built
