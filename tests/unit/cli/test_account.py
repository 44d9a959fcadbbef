"""`make preflight` and `make verify-clean` with CLOUD=local: which stack file is asked for, and of which cloud."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from local.home import Home
from trainyard.cli import account
from trainyard.cli.stack_file import Sources
from trainyard.stack_files import StackFileError

pytestmark = pytest.mark.unit
CLOUD = {"generation": "g1", "deployerArn": "arn:aws:iam::123456789012:user/deployer"}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    sources = Sources(karpenter_chart=tmp_path, karpenter_crd_chart=tmp_path, training_operator=tmp_path)
    monkeypatch.setattr(account, "pinned_sources", lambda document: sources)
    monkeypatch.setattr(account, "with_existing_resources", lambda document, _report: document)
    return Home(tmp_path)


def deployed(home: Home, generation: str) -> Path:
    home.make()
    file = home.root / "stacks" / "Pulumi.dev.yaml"
    home.cloud_file.write_text(json.dumps(CLOUD))
    file.write_text("config: {}")
    file.with_suffix(".generation").write_text(generation)
    return file


@pytest.mark.parametrize(
    ("question", "generation", "folder"),
    [("leftovers", "g1", "stacks"), ("leftovers", "g0", "checks"), ("preflight", "g1", "checks")],
)
def test_leftovers_are_asked_of_the_deployed_file_and_preflight_of_the_new(
    home: Home, question: str, generation: str, folder: str
) -> None:
    deployed(home, generation)
    file = account.settings_file(question, home, "dev", CLOUD)
    assert file == home.root / folder / "Pulumi.dev.yaml"
    if folder == "checks":
        cluster: dict[str, Any] = yaml.safe_load(file.read_text())["config"]["trainyard:cluster"]
        assert CLOUD["deployerArn"] in cluster["administrators"]


def test_nothing_is_left_of_a_cloud_that_has_ended(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    assert account.ask("leftovers", "dev", home) == 0
    assert "nothing is left" in capsys.readouterr().out


def test_modules_are_downloaded_before_the_clouds_network(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []

    def run(words: list[str], **_options: Any) -> Any:
        steps.append(words[3])
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(account, "running", lambda _home: "a process")
    monkeypatch.setattr(account, "pinned_sources", lambda _document: steps.append("modules"))
    monkeypatch.setattr(account.subprocess, "run", run)
    assert account.ask("preflight", "dev", home) == 0
    assert steps == ["modules", "exec"]


def test_an_unknown_stack_is_refused_before_anything_is_started(home: Home) -> None:
    with pytest.raises(StackFileError, match="does not exist"):
        account.ask("preflight", "none", home)
    with pytest.raises(StackFileError, match="is no stack name"):
        account.ask("preflight", "../dev", home)
