"""What may come next: words of ours, and names of the cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.kubectl.plugin_api import JOBS, TorchrunApi
from trainyard.kubectl import complete

pytestmark = pytest.mark.unit


def test_completion() -> None:
    asked: list[str] = []

    def names(kind: str, words: object) -> list[str]:
        asked.append(kind)
        return ["vit", "bert"]

    def ask(*words: str) -> list[str]:
        return complete.suggestions(words, names)[0]

    assert ask("s") == ["status", "submit", "suspend", "sync"]
    assert ask("submit", "--q") == ["--queue"]
    assert ask("submit", "--queue", "v") == ["vit"]
    assert ask("logs", "b") == ["bert"]
    assert ask("cp", "b") == ["bert:"]
    assert ask("list", "-o", "") == ["yaml", "json", "name", "wide"]
    assert ask("submit", "python tr") == []
    assert asked == ["queues", "jobs", "jobs"]
    asked.clear()
    assert ask("submit", "--queue=v") == ["vit"]
    assert ask("list", "--output=y") == ["yaml"]
    assert ask("list", "--colour=y") == []
    assert ask("list", "-n", "b") == ["bert"]
    assert ask("--context", "") == ["vit", "bert"]
    assert asked == ["queues", "namespaces", "contexts"]
    assert ask("-n", "list", "submit", "--ga") == []
    assert ask("-n", "list", "submit", "--gp") == ["--gpus"], "list is the namespace"
    assert ask("submit", "--", "--q") == []


@pytest.mark.parametrize("form", ["{} {}", "{}={}"])
@pytest.mark.parametrize("flag", ["-n", "--namespace"])
def test_completion_looks_where_the_flags_say(
    api: TorchrunApi,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    flag: str,
    form: str,
    monkeypatch: pytest.MonkeyPatch,
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

    assert ask() == "mine\n:4\n"
    assert ask(*form.format(flag, "other").split()) == "theirs\n:4\n"
    assert ask("-nother", *form.format("--context", "here").split()) == "theirs\n:4\n"
    assert ask(*form.format("--context", "none").split()) == ":4\n"
    assert ask("-n", "--tail") == ":4\n"
    assert ask("--context") == "here\n:4\n"
    there = {"items": [{"metadata": {"name": "team"}}]}
    monkeypatch.setattr(
        api, "answer", lambda _, path, *__: (200, there if path.endswith("/namespaces") else {})
    )
    assert ask("-n") == "team\n:4\n"
