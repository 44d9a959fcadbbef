"""Against AWS: the person's own kubeconfig may point at another cluster, so it is neither used nor changed."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from local.deploy import official
from local.deploy.answers import AnswerError
from local.deploy.engine import EngineError
from local.deploy.program import RefusedError

pytestmark = pytest.mark.unit

OUTPUTS = {"clusterName": "trainyard-dev", "region": "us-west-2"}


@pytest.fixture
def aws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program named `aws` on PATH; a test writes what it does."""
    program = tmp_path / "bin" / "aws"
    program.parent.mkdir()
    program.touch()
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    return program


def test_the_stacks_cluster_gets_a_kubeconfig_of_its_own(aws: Path, tmp_path: Path) -> None:
    aws.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/said\n')
    file = official._kubeconfig(OUTPUTS, tmp_path)
    assert file.parent == tmp_path
    said = (tmp_path / "said").read_text().strip()
    assert said == f"eks update-kubeconfig --name trainyard-dev --region us-west-2 --kubeconfig {file}"


def test_a_refusal_of_the_aws_command_is_one_line_with_its_reason(aws: Path, tmp_path: Path) -> None:
    aws.write_text("#!/bin/sh\necho 'No cluster found\nfor name: trainyard-dev.' >&2; exit 254\n")
    with pytest.raises(EngineError, match="No cluster found for name: trainyard-dev") as refused:
        official._kubeconfig(OUTPUTS, tmp_path)
    assert "\n" not in str(refused.value)


@pytest.fixture
def pulumi(aws: Path, tmp_path: Path) -> Path:
    """A program named `pulumi` on PATH that notes what it is asked."""
    program = aws.with_name("pulumi")
    program.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\necho "{{}}"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return tmp_path / "asked"


def test_what_the_account_lacks_stops_up_before_the_engine_starts(
    pulumi: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A port that nothing listens on: the account can't even be asked.
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with pytest.raises(RefusedError, match="PREFLIGHT=no"):
        official.up("dev")
    assert not pulumi.exists()
    monkeypatch.setenv("PREFLIGHT", "no")
    assert official.up("dev") == 0
    assert pulumi.read_text().startswith("up --stack dev\n")


@pytest.mark.parametrize("word", ["0", "no", "false", "No"])
def test_the_preflight_can_be_left_out_by_any_word_for_no(
    word: str, pulumi: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(official.program, "preflight", lambda _stack: pytest.fail("the account was asked"))
    monkeypatch.setenv("PREFLIGHT", word)
    assert official.up("dev") == 0


@pytest.mark.parametrize("word", ["", "1", "yes", "true"])
def test_the_preflight_is_made_where_nobody_says_no(
    word: str, pulumi: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(official.program, "preflight", asked.append)
    monkeypatch.setenv("PREFLIGHT", word)
    assert official.up("dev") == 0
    assert asked == ["dev"]


def test_another_word_stops_up_before_all(pulumi: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFLIGHT", "maybe")
    with pytest.raises(AnswerError, match="PREFLIGHT is 'maybe'; it must be"):
        official.up("dev")
    assert not pulumi.exists()


COMMANDS: list[Callable[[], int]] = [
    lambda: official.up("dev"),
    lambda: official.down("dev"),
    lambda: official.submit("dev", 1, 2),
    lambda: official.check_nodes("dev", "small"),
]


@pytest.mark.parametrize("command", COMMANDS, ids=("up", "down", "submit", "check-nodes"))
def test_without_the_official_cli_each_command_says_where_it_is(
    command: Callable[[], int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineError, match=r"needs the official Pulumi CLI on PATH .* add CLOUD=local"):
        command()


@pytest.mark.parametrize("command", COMMANDS[1:], ids=("down", "submit", "check-nodes"))
def test_a_stack_that_is_not_there_is_named(command: Callable[[], int], aws: Path) -> None:
    program = aws.with_name("pulumi")
    program.write_text("#!/bin/sh\necho 'error: no stack found' >&2; exit 255\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    with pytest.raises(EngineError) as refused:
        command()
    assert str(refused.value) == (
        "stack dev can't be read: pulumi stack output: error: no stack found"
        " (`pulumi stack ls` lists those that there are)"
    )


def test_a_stack_file_that_is_not_there_stops_up_before_all(pulumi: Path) -> None:
    with pytest.raises(RefusedError, match=r"Pulumi\.nowhere\.yaml does not exist"):
        official.up("nowhere")
    assert not pulumi.exists()
