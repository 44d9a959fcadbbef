"""The official Pulumi CLI behind the commands on AWS: short output, its questions, its end."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from trainyard.cli import pulumi_cli
from trainyard.cli.aws_commands import AwsStack
from trainyard.cli.engine import EngineError
from trainyard.cli.engine_run import Interrupted
from trainyard.cli.output import OUTPUT

CREATIONS = 60
# Prints a plan and writes its events, or carries it out; notes its arguments and the passphrase.
PULUMI = """#!/usr/bin/env python3
import json, os, sys, time
words = sys.argv[1:]
with open("{directory}/asked", "a") as file:
    print(*words, os.environ.get("PULUMI_CONFIG_PASSPHRASE", ""), file=file)
is_plan = words[0] == "preview" or "--preview-only" in words
print("Previewing update (dev):" if is_plan else "Updating (dev):")
if is_plan:
    assert os.environ["PULUMI_DEBUG_COMMANDS"] == "true"
    with open(words[words.index("--event-log") + 1], "w") as file:
        for number in range({creations}):
            new = {{"type": "aws:ec2/subnet:Subnet", "urn": f"urn::private-{{number}}", "custom": True}}
            print(json.dumps({{"resourcePreEvent": {{"metadata": {{"op": "create", "new": new}}}}}}), file=file)
for number in range({creations}):
    print(f" +  aws:ec2:Subnet private-{{number}} " + ("create" if is_plan else "created (0.5s)"))
if not is_plan:
    print(" +  aws:eks:Cluster cluster creating (90s) waiting")
print("Resources:")
print("    + {creations} " + ("to create" if is_plan else "created"))
"""


@pytest.fixture
def pulumi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A program named `pulumi` on PATH; returns the file with the arguments of its calls."""
    program = tmp_path / "bin" / "pulumi"
    program.parent.mkdir()
    program.write_text(PULUMI.format(directory=tmp_path, creations=CREATIONS))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("TRAINYARD_HOME", str(tmp_path / "home"))
    for name in ("PULUMI_SKIP_CONFIRMATIONS", pulumi_cli.PASSPHRASE, pulumi_cli.PASSPHRASE_FILE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pulumi_cli, "_secrets", {})
    monkeypatch.setattr(OUTPUT, "verbose", False)
    yield tmp_path / "asked"
    OUTPUT._log = None


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Make the test a terminal; a test writes what a person answers."""
    given: list[str] = []
    monkeypatch.setattr(pulumi_cli, "is_interactive", lambda: True)
    monkeypatch.setattr("builtins.input", lambda _question: given.pop(0))
    return given


def up() -> None:
    pulumi_cli.change("dev", "up", deployment={})


def test_up_prints_plan_and_counts_of_its_total(
    pulumi: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PULUMI_SKIP_CONFIRMATIONS", "true")
    AwsStack(name="dev").open_log("up")
    up()
    lines = [line for line in capsys.readouterr().out.splitlines() if line]
    assert lines[0] == f"log: {tmp_path}/home/logs/commands/up-dev.aws.log"
    assert [line for line in lines if " create" in line and "Subnet" in line] == [
        f" +  aws:ec2:Subnet private-{number} create" for number in range(10)
    ]
    assert f"    + {CREATIONS} to create" in lines
    counts = [line.split(" resources")[0].strip() for line in lines if " resources after " in line]
    assert counts == ["created 25 of 60", "created 50 of 60"]
    assert " +  aws:eks:Cluster cluster creating (90s) waiting" in lines
    assert len(lines) < 25
    log = (tmp_path / "home" / "logs" / "commands" / "up-dev.aws.log").read_text()
    assert log.count("aws:ec2:Subnet") == 2 * CREATIONS


def test_verbose_prints_every_line(
    pulumi: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PULUMI_SKIP_CONFIRMATIONS", "true")
    monkeypatch.setattr(OUTPUT, "verbose", True)
    up()
    assert capsys.readouterr().out.count("aws:ec2:Subnet") == 2 * CREATIONS


@pytest.mark.parametrize(
    ("given", "changes"), [(["yes"], True), (["", "details", "yes"], True), (["no"], False)]
)
def test_person_on_terminal_confirms_the_plan(
    given: list[str], changes: bool, answers: list[str], pulumi: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers += given
    if changes:
        up()
    else:
        with pytest.raises(EngineError, match="the update was declined; no resource was changed"):
            up()
    calls = [line.split()[0] for line in pulumi.read_text().splitlines()]
    assert calls == (["preview", "up"] if changes else ["preview"])
    assert ("Subnet private-59 create" in capsys.readouterr().out) is ("details" in given)


def test_change_without_terminal_needs_the_variable(pulumi: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulumi_cli, "is_interactive", lambda: False)
    with pytest.raises(EngineError, match="PULUMI_SKIP_CONFIRMATIONS=true"):
        up()
    assert not pulumi.exists()


@pytest.mark.parametrize(
    ("deployment", "variables", "passphrase"),
    [
        ({"secrets_providers": {"type": "passphrase"}}, {}, "secret"),
        ({"secrets_providers": {"type": "cloud"}}, {}, ""),
        ({}, {}, ""),
        ({"secrets_providers": {"type": "passphrase"}}, {pulumi_cli.PASSPHRASE: "set"}, "set"),
    ],
)
def test_person_on_terminal_gives_the_passphrase_once(
    deployment: dict[str, Any],
    variables: dict[str, str],
    passphrase: str,
    answers: list[str],
    pulumi: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = ["secret"]
    monkeypatch.setattr("getpass.getpass", lambda _question: given.pop())
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    for _ in range(2):
        pulumi_cli.unlock("dev", deployment)
    answers.append("yes")
    up()
    assert [line.endswith(f" dev {passphrase}") for line in pulumi.read_text().splitlines()] == [True, True]
    assert os.environ.get(pulumi_cli.PASSPHRASE) == variables.get(pulumi_cli.PASSPHRASE)


def test_stack_file_with_salt_has_a_passphrase(
    answers: list[str], tmp_path: Path, pulumi: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "Pulumi.dev.yaml"
    file.write_text("encryptionsalt: v1:x\nconfig: {}\n")
    monkeypatch.setattr(pulumi_cli, "path_of", lambda _stack: file)
    monkeypatch.setattr("getpass.getpass", lambda _question: "secret")
    pulumi_cli.unlock("dev", {})
    assert pulumi_cli._secrets == {pulumi_cli.PASSPHRASE: "secret"}


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (lambda: pulumi_cli.run("dev", "up", "--yes"), "`make up STACK=dev` goes on from here"),
        (lambda: pulumi_cli.run("dev", "preview"), "nothing was changed"),
    ],
    ids=("up", "preview"),
)
def test_interrupt_reaches_pulumi_and_waits_for_its_end(
    run: Callable[[], None],
    message: str,
    pulumi: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    program = pulumi.parent / "bin" / "pulumi"
    program.write_text(
        "#!/bin/sh\ntrap 'sleep 0.5; echo cancelled; exit 1' INT\necho started\nwhile :; do sleep 0.02; done\n"
    )
    detail = OUTPUT.detail

    def show(line: str, shown: Any) -> None:
        detail(line, shown)
        if line == "started":
            threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()

    monkeypatch.setattr(OUTPUT, "detail", show)
    with pytest.raises(Interrupted, match=message):
        run()
    assert "cancelled" in capsys.readouterr().out


def test_failure_names_stack_command_and_log(pulumi: Path, tmp_path: Path) -> None:
    (pulumi.parent / "bin" / "pulumi").write_text("#!/bin/sh\necho 'error: locked'; exit 3\n")
    with pytest.raises(EngineError) as failed:
        pulumi_cli.run("dev", "refresh")
    log = tmp_path / "home" / "logs" / "pulumi-dev.aws.refresh.log"
    assert str(failed.value) == (
        f"stack dev: pulumi refresh failed with exit code 3; run the same command again to go on. See above, or {log}"
    )
    assert log.read_text() == "error: locked\n"


@pytest.mark.parametrize("is_terminal", [True, False])
def test_missing_stack_is_created_if_a_person_agrees(
    is_terminal: bool, pulumi: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulumi_cli, "is_interactive", lambda: is_terminal)
    monkeypatch.setattr("builtins.input", lambda _question: "")
    (pulumi.parent / "bin" / "pulumi").write_text(f'#!/bin/sh\necho "$@" >> {pulumi}\n')
    if is_terminal:
        pulumi_cli.offer_new("dev")
        assert pulumi.read_text() == "stack init dev\n"
    else:
        with pytest.raises(EngineError, match="Create it: pulumi stack init dev"):
            pulumi_cli.offer_new("dev")


def test_query_of_missing_stack_raises_its_own_error(pulumi: Path) -> None:
    program = pulumi.parent / "bin" / "pulumi"
    program.write_text("#!/bin/sh\necho \"error: no stack named 'dev' found\" >&2; exit 255\n")
    with pytest.raises(pulumi_cli.NoStackError, match="stack dev can't be read"):
        pulumi_cli.query("dev", "export")
    program.write_text(f"#!/bin/sh\necho '{json.dumps({'deployment': {}})}'\n")
    assert pulumi_cli.query("dev", "export") == {"deployment": {}}
