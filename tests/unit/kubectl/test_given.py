"""Flags of kubectl's own that are given empty, as by a variable that is not set: kubectl takes them as not given."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.kubectl.plugin_api import Run, TorchrunApi
from trainyard.kubectl import complete
from trainyard.kubectl.__main__ import main

pytestmark = pytest.mark.unit
FLAGS = ("-n", "--namespace", "--context", "--kubeconfig")


@pytest.mark.parametrize("form", ["two words", "one word"])
@pytest.mark.parametrize("flag", FLAGS)
def test_an_empty_one_is_as_none(
    api: TorchrunApi,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    flag: str,
    form: str,
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig(tmp_path / "kubeconfig")))
    words = [f"{flag}="] if form == "one word" and flag != "-n" else [flag, ""]
    assert main(["list", *words], {}) == 0
    assert capfd.readouterr() == ("", "No jobs in namespace team.\n")


def test_the_last_one_holds_as_with_kubectl(api: TorchrunApi, run: Run) -> None:
    assert run("list", "-n", "other", "-n", "")[2] == "No jobs in namespace team.\n"
    assert run("list", "--context", "none", "--context", "") == (0, "", "No jobs in namespace team.\n")


def test_completion_takes_them_so_too(
    api: TorchrunApi, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    api.job("mine")
    file = str(api.kubeconfig(tmp_path / "kubeconfig"))
    assert complete.main(["logs", "--kubeconfig", file, "--context", "", "-n", "", ""]) == 0
    assert capfd.readouterr().out == "mine\n:4\n"
