"""`preflight` and `verify-clean` on the local cloud: which stack file they take, and of which cloud."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from local.home import Home
from trainyard.cli import commands
from trainyard.cli.arguments import parse
from trainyard.cli.dispatch import run
from trainyard.stack_files import StackFileError

CLOUD = {"generation": "g1", "deployerArn": "arn:aws:iam::123456789012:user/deployer"}


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was done before the account is examined."""
    return []


@pytest.fixture
def home(tmp_path: Path, steps: list[str], monkeypatch: pytest.MonkeyPatch) -> Home:
    def pinned_sources(_document: dict[str, Any]) -> dict[str, str]:
        steps.append("modules")
        return {"karpenterChart": "/m"}

    monkeypatch.setenv("TRAINYARD_HOME", str(tmp_path))
    monkeypatch.setattr(commands, "pinned_sources", pinned_sources)
    monkeypatch.setattr(commands, "with_existing_resources", lambda document, _report: document)
    monkeypatch.setattr(commands, "cloud_environment", lambda _home: {})
    monkeypatch.setattr(commands, "start_local_cloud", lambda _document: steps.append("start"))
    monkeypatch.setattr(commands, "_enter", lambda _home: steps.append("network"))
    return Home()


def deployed(home: Home, generation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the local cloud run, with a stack that was deployed on the cloud `generation`."""
    home.make()
    home.cloud_file.write_text(json.dumps(CLOUD))
    file = home.root / "stacks" / "Pulumi.dev.yaml"
    file.write_text("config: {}")
    file.with_suffix(".generation").write_text(generation)
    monkeypatch.setattr(commands, "running", lambda _home: "a process")


@pytest.mark.parametrize(
    ("command", "generation", "folder", "states"),
    [
        ("verify-clean", "g1", "stacks", "stacks"),
        ("verify-clean", "g0", "checks", "checks"),
        ("preflight", "g1", "checks", "stacks"),
    ],
)
def test_leftovers_are_those_of_the_deployed_file_and_preflight_takes_the_present(
    command: str,
    generation: str,
    folder: str,
    states: str,
    home: Home,
    steps: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    deployed(home, generation, monkeypatch)
    _, file, _, state = commands.local_account(command, "dev") or []
    assert steps == ["modules", "network"]
    assert file == str(home.root / folder / "Pulumi.dev.yaml")
    assert Path(state).is_relative_to(home.root / states)
    if folder == "checks":
        cluster: dict[str, Any] = yaml.safe_load(Path(file).read_text())["config"]["trainyard:cluster"]
        assert CLOUD["deployerArn"] in cluster["administrators"]


def test_nothing_is_left_of_a_cloud_that_has_ended(
    home: Home, steps: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(parse(["verify-clean", "--stack", "dev", "--cloud", "local"])) == 0
    assert "nothing is left" in capsys.readouterr().out
    assert steps == []


def test_unknown_stack_is_refused_before_anything_is_started(home: Home, steps: list[str]) -> None:
    with pytest.raises(StackFileError, match="does not exist"):
        commands.local_account("preflight", "none")
    assert steps == []
