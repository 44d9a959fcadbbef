"""The command line: names, flags, completion."""

from __future__ import annotations

import argparse
import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.kubectl.conftest import JOBS, Run, TorchrunApi
from trainyard.kubectl import complete
from trainyard.kubectl.cli import job_name, namespace_name, object_name, parser

ROOT = Path(__file__).parents[3]
SUBMIT = ("submit", "--queue", "q", "--gpus", "8")


@pytest.mark.parametrize(
    "word", ["a", *(f"{kind}/a" for kind in ("torchrunjob", "torchrunjobs.torchrun.ai", "tj"))]
)
def test_job_name_with_a_kind_is_accepted(word: str) -> None:
    assert job_name(word) == "a"


@pytest.mark.parametrize("check", [object_name, namespace_name])
@pytest.mark.parametrize(
    "word",
    ["", ".", "..", "a/b", "pod/a", "/a", "torchrunjob/", "A", "-a", "a-", "a..b", "a?b", "a" * 254, "ü"],
)
def test_name_invalid_is_refused(check: Callable[[str], str], word: str) -> None:
    with pytest.raises(ValueError, match=r"must be a (name|namespace): a-z"):
        check(word)
    assert object_name("a.b-c.9") == "a.b-c.9"
    with pytest.raises(ValueError, match="must be a namespace"):
        namespace_name("a.b")


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (("python train.py --nodes 1", "--follow", "--name", "one"), ["python train.py --nodes 1"]),
        (("--env", "A=1", "-n", "team", "python", "train.py"), ["python", "train.py"]),
        (("-nteam", "--env=A=1", "python", "train.py"), ["python", "train.py"]),
        (("--", "python", "t.py", "--nodes", "1"), ["python", "t.py", "--nodes", "1"]),
    ],
)
def test_parser_splits_flags_from_the_command(words: tuple[str, ...], command: list[str]) -> None:
    assert parser().parse_args([*SUBMIT, *words]).command == command


def test_version_is_that_of_the_project(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parser().parse_args(["--version"])
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert (ended.value.code, capsys.readouterr().out) == (0, f"kubectl torchrun {version}\n")


def test_docs_page_has_each_verb_with_its_flags() -> None:
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


@pytest.mark.parametrize(
    "words",
    ["-n other -n", "--namespace", "--context none --context", "--context", "--kubeconfig"],
)
def test_empty_flag_of_kubectl_counts_as_absent(
    api: TorchrunApi, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig(tmp_path / "kubeconfig")))
    assert run("list", *words.split(), "") == (0, "", "No jobs in namespace team.\n")


def test_completion_suggests_words_and_names() -> None:
    """The live test has the names of jobs and queues (tests/integration/local/test_torchrun_plugin.py)."""
    asked: list[str] = []

    def names(kind: str, words: object) -> list[str]:
        asked.append(kind)
        return ["vit", "bert"]

    def ask(*words: str) -> list[str]:
        return complete.suggestions(words, names)[0]

    assert ask("s") == ["status", "submit", "suspend", "sync"]
    assert ask("submit", "--q") == ["--queue"]
    assert ask("submit", "python tr") == []
    assert ask("list", "--colour=y") == []
    assert ask("-n", "list", "submit", "--ga") == [], "list is the namespace"
    assert asked == []
    assert ask("list", "-n", "b") == ["bert"]
    assert ask("--context", "") == ["vit", "bert"]
    assert asked == ["namespaces", "contexts"]


@pytest.mark.parametrize("form", ["{} {}", "{}={}"])
@pytest.mark.parametrize("flag", ["-n", "--namespace"])
def test_completion_uses_the_flags_of_the_cluster(
    api: TorchrunApi, tmp_path: Path, capfd: pytest.CaptureFixture[str], flag: str, form: str
) -> None:
    file = str(api.kubeconfig(tmp_path / "k"))
    api.job("mine")
    other = api.job("theirs")
    api.objects[f"{JOBS.replace('/team/', '/other/')}/theirs"] = other
    del api.objects[f"{JOBS}/theirs"]
    kubeconfig = form.format("--kubeconfig", file).split()

    def ask(*words: str) -> str:
        assert complete.main(["logs", *kubeconfig, *words, ""]) == 0
        return capfd.readouterr().out

    assert ask() == ask("--context", "", "-n", "") == "mine\n:4\n"
    assert ask(*form.format(flag, "other").split()) == "theirs\n:4\n"
    assert ask("-nother", *form.format("--context", "here").split()) == "theirs\n:4\n"
    assert ask(*form.format("--context", "none").split()) == ":4\n"
    assert ask("-n", "--tail") == ":4\n"
    assert ask("--context") == "here\n:4\n"
    there = {"items": [{"metadata": {"name": "team", "uid": "u"}}]}
    api.intercept = lambda _, path: (200, there if path.endswith("/namespaces") else {})
    assert ask("-n") == "team\n:4\n"
