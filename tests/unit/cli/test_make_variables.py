"""What a person may write in a variable of make, and that it reaches the command as one word."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from local.home import BY_MAKE, STARTED
from trainyard.cli.arguments import parse, parser
from trainyard.cli.dispatch import EXPECTED
from trainyard.cli.errors import CommandError
from trainyard.cli.make_variables import is_yes, nodes, user_command

ROOT = Path(__file__).parents[3]


def commanded(target: str, *variables: str) -> list[str]:
    """The arguments with which a target of the Makefile starts its command."""
    words = ["make", "--no-print-directory", "--dry-run", target, *variables]
    answer = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert answer.returncode == 0, answer.stderr
    line = next(each for each in answer.stdout.splitlines() if each.startswith(".venv/bin/trainyard "))
    return shlex.split(line)[1:]


@pytest.mark.parametrize(
    ("texts", "expected"),
    [(("1", "yes", "YES", "true", "on", " yes "), True), (("0", "no", "No", "false", "off"), False)],
)
def test_word_is_yes_or_no(texts: tuple[str, ...], expected: bool) -> None:
    for text in texts:
        assert is_yes("A", text) is expected
        assert parser().parse_args(["down", f"--keep-data={text}"]).keep_data is expected


@pytest.mark.parametrize("text", ["maybe", "2", "", "nein", "yes no"])
def test_another_word_is_refused_in_one_line(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CommandError) as refused:
        is_yes("PREFLIGHT", text)
    assert str(refused.value) == (
        f"PREFLIGHT is {text!r}; it must be 1, yes, true or on, or 0, no, false or off"
    )
    assert CommandError in EXPECTED
    with pytest.raises(SystemExit):
        parser().parse_args(["down", f"--keep-data={text}"])
    assert f"KEEP_DATA is {text!r}" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["1_0", "\u0664", "+4", "-1", "4.0", " 4", "", "four"])
def test_what_is_no_number_of_nodes_is_refused_by_the_variables_name(text: str) -> None:
    with pytest.raises(CommandError) as refused:
        nodes("MIN", text)
    assert str(refused.value) == f"MIN={text!r} is no number of nodes; it must be one such as 4"


def test_wrong_value_is_named_by_its_option(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(STARTED, "yes")
    monkeypatch.delenv(BY_MAKE, raising=False)
    with pytest.raises(CommandError, match=r"^--min 'x' is no number"):
        nodes("MIN", "x")
    with pytest.raises(SystemExit):
        parse(["down", "--keep-data=x"])
    assert "--keep-data is 'x'" in capsys.readouterr().err
    # This one comes from the environment.
    with pytest.raises(CommandError, match=r"^PREFLIGHT is 'x'"):
        is_yes("PREFLIGHT", "x")


def test_numbers_of_nodes_are_numbers() -> None:
    assert nodes("MIN", "16") == 16


@pytest.mark.parametrize(
    ("stack", "cloud", "variables", "of_make", "of_trainyard"),
    [
        ("local", "local", {}, "make up", "trainyard up"),
        ("dev", "aws", {}, "make up STACK=dev", "trainyard up --stack dev"),
        ("dev", "local", {}, "make up STACK=dev CLOUD=local", "trainyard up --stack dev --cloud local"),
        (
            "local",
            "local",
            {"MIN": "1", "MAX": "2"},
            "make up STACK=local MIN=1 MAX=2",
            "trainyard up --stack local --min 1 --max 2",
        ),
        (
            "dev",
            "aws",
            {"KEEP_DATA": "1"},
            "make up STACK=dev KEEP_DATA=1",
            "trainyard up --stack dev --keep-data",
        ),
        (
            "dev",
            "aws",
            {"PREFLIGHT": "no"},
            "make up STACK=dev PREFLIGHT=no",
            "trainyard up --stack dev --no-preflight",
        ),
    ],
)
def test_user_command_is_in_the_words_of_the_user(
    stack: str,
    cloud: str,
    variables: dict[str, str],
    of_make: str,
    of_trainyard: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(STARTED, raising=False)
    assert user_command("up", stack, cloud, **variables) == of_make
    monkeypatch.setenv(STARTED, "yes")
    monkeypatch.setenv(BY_MAKE, "1")
    assert user_command("up", stack, cloud, **variables) == of_make
    monkeypatch.delenv(BY_MAKE)
    assert user_command("up", stack, cloud, **variables) == of_trainyard
    # What a message says is a command line.
    if not {"KEEP_DATA", "MIN"} & set(variables):
        assert parse(shlex.split(of_trainyard)[1:]).stack == stack


@pytest.mark.parametrize("value", ["2 --cloud local", "$(touch x)", "2; touch x", "it's", '"', "`x`"])
def test_a_variable_of_make_is_one_word_of_the_command(value: str) -> None:
    # Make itself reads a dollar sign.
    given = value.replace("$", "$$")
    submit = commanded("submit", "STACK=dev", "MIN=1", f"MAX={given}")
    assert submit == ["submit", "--stack=dev", "--min=1", f"--max={value}"]
    submit = commanded("submit", "STACK=dev", f"MIN={given}", "MAX=2")
    assert submit[-2:] == [f"--min={value}", "--max=2"]
    assert commanded("up", f"STACK={given}") == ["up", f"--stack={value}"]
    assert commanded("check-nodes", "STACK=dev", f"POOL={given}")[-1] == f"--pool={value}"
    fabric = commanded("check-fabric", "STACK=dev", f"POOL={given}", f"NODES={given}")
    assert fabric[-2:] == [f"--pool={value}", f"--nodes={value}"]


@pytest.mark.parametrize(
    ("variables", "keeps"),
    [
        ([], False),
        (["KEEP_DATA=1"], True),
        (["KEEP_DATA=yes"], True),
        (["KEEP_DATA=0"], False),
        (["KEEP_DATA=no"], False),
    ],
)
def test_down_retains_data_only_when_requested(variables: list[str], keeps: bool) -> None:
    assert parser().parse_args(commanded("down", "STACK=dev", *variables)).keep_data is keeps


@pytest.mark.parametrize(("cloud", "place"), [("local", "TRAINYARD_HOME=/x "), ("aws", "")])
def test_user_command_on_the_local_cloud_names_its_home(
    cloud: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(BY_MAKE, "1")
    monkeypatch.setenv("TRAINYARD_HOME", "/x")
    command = user_command("up", "dev", cloud)
    assert command.startswith(f"{place}make up STACK=dev")
