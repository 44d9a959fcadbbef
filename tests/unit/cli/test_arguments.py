"""The command line of `trainyard`: the table of commands, one line for a wrong word, the page, and completion."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from local import arguments as local_cloud
from local.arguments import Command
from local.home import BY_MAKE, STARTED
from trainyard.cli import dispatch, reference
from trainyard.cli.arguments import COMMANDS, SHELLS, parse, parser
from trainyard.cli.completion import script, suggestions
from trainyard.cli.dispatch import ACCOUNT_CHECKS, LOCAL_COMMANDS
from trainyard.stack_files import names

ROOT = Path(__file__).parents[3]
# A make variable of the environment stands for them, or make has nothing for them.
BY_VARIABLE = ("-v", "--no-preflight", "--json", "-f", "process")
STACK_COMMANDS = {each.name for each in COMMANDS} - {"status", "logs", "completion"}


def error_of(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as ended:
        parse(words)
    assert ended.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    "command", [each for each in COMMANDS if each.name != "completion"], ids=lambda each: each.name
)
def test_make_target_of_a_command_passes_each_of_its_options(command: Command) -> None:
    values = {"--stack": "a", "--cloud": "aws", "--keep-data": "no"}
    options = {
        name: values.get(name, "7")
        for each in command.arguments
        if (name := each.names[0]) not in BY_VARIABLE
    }
    variables = [f"{name[2:].upper().replace('-', '_')}={value}" for name, value in options.items()]
    words = ["make", "--no-print-directory", "--dry-run", command.name, *variables]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    line = shlex.split(done.stdout.splitlines()[-1])
    assert line == [
        ".venv/bin/trainyard",
        command.name,
        *(f"{name}={value}" for name, value in options.items()),
    ]
    assert parse(line[1:]).command == command.name


@pytest.mark.parametrize("target", ["up", "down", "policy", "record-states"])
def test_make_variable_that_is_empty_is_passed_on(target: str) -> None:
    """`make down STACK=$name` without a name must not destroy the default stack."""
    words = ["make", "--no-print-directory", "--dry-run", target, "STACK="]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    line = shlex.split(done.stdout.splitlines()[-1])
    assert line[-1] in ("", "--stack=")


def test_missing_option_of_a_make_target_is_named_as_a_variable(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(BY_MAKE, "1")
    assert "the following arguments are required: MIN, MAX." in error_of(capsys, "submit")
    monkeypatch.delenv(BY_MAKE)
    monkeypatch.setenv(STARTED, "yes")
    assert "the following arguments are required: --min, --max." in error_of(capsys, "submit")


def test_make_help_has_the_summary_of_each_command() -> None:
    targets = dict(re.findall(r"^([a-z-]+): environment ## (.+)", (ROOT / "Makefile").read_text(), re.M))
    assert [
        each.name for each in COMMANDS if not targets.get(each.name, each.summary).startswith(each.summary)
    ] == []


@pytest.mark.parametrize("command", sorted(STACK_COMMANDS))
def test_command_of_a_stack_takes_stack_and_cloud(command: str) -> None:
    needed = {"submit": ["--min", "1", "--max", "2"], "check-nodes": ["--pool", "a"]}
    needed["check-fabric"] = [*needed["check-nodes"], "--nodes", "2"]
    words = [command, *needed.get(command, [])]
    assert (parse(words).stack, parse(words).cloud) == ("local", "local")
    assert parse([*words, "--stack", "dev"]).cloud == "aws"
    assert parse([*words, "--stack", "dev", "--cloud", "local"]).cloud == "local"


def test_commands_without_a_stack_are_those_of_the_local_cloud() -> None:
    assert set(LOCAL_COMMANDS) == {each.name for each in COMMANDS} - STACK_COMMANDS - {"completion"}
    assert set(LOCAL_COMMANDS) < {each.name for each in local_cloud.COMMANDS}
    assert set(ACCOUNT_CHECKS) < STACK_COMMANDS


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        (["upp"], ["'upp'", "Did you mean up?", "check-fabric, status, logs"]),
        (["nonsense"], ["'nonsense'", "The commands are up, down"]),
        (["completion", "csh"], ["'csh'", "bash", "fish"]),
        (["up", "--cloud", "gcp"], ["'gcp'", "local", "`trainyard up --help`"]),
        (["status", "--stack", "dev"], ["--stack dev"]),
    ],
)
def test_wrong_word_is_one_line_of_what_exists(
    words: list[str], facts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    error = error_of(capsys, *words)
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert [fact for fact in facts if fact not in error] == []


def test_no_command_prints_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert "verify-clean  list what" in error_of(capsys)


def test_help_names_every_command_and_every_option() -> None:
    whole = parser().format_help()
    for command in COMMANDS:
        assert f"    {command.name} " in whole
        assert command.summary.split(",")[0] in " ".join(whole.split())
        assert [each.names for each in command.arguments if not each.settings.get("help")] == []


def test_page_of_the_commands_is_current() -> None:
    assert reference.PAGE.read_text() == reference.render(), "run: make reference"


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ([], [each.name for each in COMMANDS]),
        (["ver"], ["verify-clean"]),
        (["up", "--n"], ["--no-preflight"]),
        (["up", "--cloud", ""], ["local", "aws"]),
        (["up", "--cloud=l"], ["local"]),
        (["up", "--stack", "lo"], ["local"]),
        (["delete-data", "--confirm", "de"], ["dev"]),
        (["down", "--stack="], names()),
        (["down", "--keep-data", "--sta"], ["--stack"]),
        (["completion", ""], list(SHELLS)),
        (["up", ""], []),
        (["submit", "--min", ""], []),
        (["up", "--nothing=x"], []),
        (["up", "--", "x"], []),
        (["unknown", "--st"], []),
    ],
)
def test_suggestions_complete_the_last_word(words: list[str], found: list[str]) -> None:
    assert suggestions(words) == found


def test_bash_completes_words_and_values_behind_an_equals_sign(tmp_path: Path) -> None:
    program = tmp_path / "trainyard"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -P -m trainyard.cli "$@"\n')
    program.chmod(0o755)
    # Words as bash splits them: it takes `=` for a word of its own.
    lines = ["up --st", "up --stack = p4de-odcr-", "up --stack =", "completion z"]
    tries = "\n".join(
        f'COMP_WORDS=(trainyard {line}); COMP_CWORD={len(line.split())}; _trainyard; echo "${{COMPREPLY[*]}}"'
        for line in lines
    )
    text = f"source <(trainyard completion bash)\ncomplete -p trainyard\n{tries}"
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    words = ["bash", "--norc", "-c", text]
    done = subprocess.run(words, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "complete -F _trainyard trainyard",
        "--stack",
        "p4de-odcr-existing-vpc",
        " ".join(names()),
        "zsh",
    ]


@pytest.mark.parametrize(
    ("stack", "fact"), [("nope", "Stack files here: "), ("dev", "is not up on this machine")]
)
def test_submit_to_a_stack_that_is_not_up_says_which_exist(
    stack: str, fact: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRAINYARD_HOME", str(tmp_path / "home"))
    words = ["submit", "--stack", stack, "--cloud", "local", "--min", "1", "--max", "1"]
    assert dispatch.run(parse(words)) == 1
    assert fact in capsys.readouterr().err


def test_relative_home_is_that_of_the_users_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRAINYARD_HOME", "home")
    assert dispatch.run(parse(["drift"])) == 1
    assert os.environ["TRAINYARD_HOME"] == str(tmp_path / "home")


@pytest.mark.parametrize("shell", SHELLS)
def test_script_of_each_shell_asks_the_program(shell: str) -> None:
    assert " __complete " in script(shell)
