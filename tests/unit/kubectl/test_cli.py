"""Names and commands as people write them."""

from __future__ import annotations

import argparse
import re
import tomllib
from pathlib import Path

import pytest

from trainyard.kubectl.cli import job_name, namespace_name, object_name, parser

pytestmark = pytest.mark.unit
ROOT = Path(__file__).parents[3]
SUBMIT = ("submit", "--queue", "q", "--gpus", "8")


@pytest.mark.parametrize(
    "word",
    [
        "a",
        "torchrunjob/a",
        "torchrunjobs/a",
        "torchrunjob.torchrun.ai/a",
        "torchrunjobs.torchrun.ai/a",
        "tj/a",
    ],
)
def test_a_job_may_have_its_kind_before_it(word: str) -> None:
    assert job_name(word) == "a"


@pytest.mark.parametrize(
    "word",
    ["", ".", "..", "a/b", "pod/a", "/a", "torchrunjob/", "A", "-a", "a-", "a..b", "a?b", "a" * 254, "ü"],
)
def test_what_is_no_name(word: str) -> None:
    for check in (job_name, object_name):
        with pytest.raises(ValueError, match="must be a name: a-z"):
            check(word)


def test_names_of_namespaces_have_no_dots() -> None:
    assert object_name("a.b-c.9") == "a.b-c.9"
    assert namespace_name("a-9") == "a-9"
    for word in ("a.b", "a" * 64, "", "../.."):
        with pytest.raises(ValueError, match="must be a namespace: a-z"):
            namespace_name(word)


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (("python train.py --nodes 1", "--follow", "--name", "one"), ["python train.py --nodes 1"]),
        (("--env", "A=1", "-n", "team", "python", "train.py"), ["python", "train.py"]),
        (("-nteam", "--env=A=1", "python", "train.py"), ["python", "train.py"]),
        (("--", "python", "t.py", "--nodes", "1"), ["python", "t.py", "--nodes", "1"]),
    ],
)
def test_what_a_command_is(words: tuple[str, ...], command: list[str]) -> None:
    assert parser().parse_args([*SUBMIT, *words]).command == command


def test_the_version_is_that_of_the_project(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parser().parse_args(["--version"])
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert (ended.value.code, capsys.readouterr().out) == (0, f"kubectl torchrun {version}\n")


def test_the_page_has_every_verb_with_its_flags_and_no_other() -> None:
    page = (ROOT / "docs" / "kubectl-torchrun.md").read_text()
    rows = re.findall(r"^\| `([a-z]+)` \|.*?\| (.*) \|$", page, re.MULTILINE)
    short = {"-o": "--output"}
    shown = {
        verb: {short.get(each, each) for each in re.findall(r"`(--?[a-zA-Z][-a-z]*)", flags)}
        for verb, flags in rows
    }
    (verbs,) = (each for each in parser()._actions if isinstance(each, argparse._SubParsersAction))
    common = {"-h", "--help", "-n", "--namespace", "--context", "--kubeconfig", "-o"}
    taken = {verb: {*each._option_string_actions} - common for verb, each in verbs.choices.items()}
    assert shown == taken
