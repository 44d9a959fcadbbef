"""An API server, a directory with a script, and the plugin that runs in it."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.unit.k8s.conftest import pods  # noqa: F401
from tests.unit.kubectl.plugin_api import Run, TorchrunApi
from tests.unit.launcher.api_server import serving
from trainyard.k8s.client import ApiUnavailable, RetryPolicy
from trainyard.kubectl import cli, logs, upload
from trainyard.kubectl.__main__ import main
from trainyard.kubectl.cluster import Cluster
from trainyard.operator import names as n
from trainyard.workspace.__main__ import parser, receive
from trainyard.workspace.errors import NotThere, WorkspaceError
from trainyard.workspace.sync_pod import Store

_DECISION = re.compile(r"^command: (torchrun starts|runs once|\S+ starts|starts) .*\n", re.MULTILINE)


class Clock:
    """What stands for the module `time`: sleeping moves it on and takes no time."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock by which the plugin waits for a sync pod."""
    made = Clock()
    monkeypatch.setattr(upload, "time", made)
    return made


# It is made once in each process of the plugin, and takes longer than many a verb.
_PARSER = cache(cli.parser)


@pytest.fixture(autouse=True)
def _one_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "parser", _PARSER)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_POLL_SECONDS", 0.01)
    quick = RetryPolicy(timeout=10.0, initial_delay=0.01, max_delay=0.05)
    monkeypatch.setattr(Cluster.connect.__func__, "__defaults__", (quick,))  # type: ignore[attr-defined]


@pytest.fixture
def api() -> Iterator[TorchrunApi]:
    """An API server with the queue `q`."""
    with serving(TorchrunApi()) as served:
        assert isinstance(served, TorchrunApi)
        served.queue("q")
        yield served


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a script, in which the plugin runs."""
    directory = tmp_path / "My_project"
    directory.mkdir()
    (directory / "train.py").write_text("print(1)\n")
    monkeypatch.chdir(directory)
    return directory


@pytest.fixture
def run(api: TorchrunApi, tmp_path: Path, code: Path, capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs the plugin: exit code, standard output, and error without the line that each `submit` says.

    test_launcher_choice.py has that one.
    """
    kubeconfig = api.kubeconfig(tmp_path / "kubeconfig")

    def call(*words: str, **environment: str) -> tuple[int, str, str]:
        capfd.readouterr()
        result = main([*words[:1], "--kubeconfig", str(kubeconfig), *words[1:]], environment)
        out, err = capfd.readouterr()
        return result, out, _DECISION.sub("", err)

    return call


class Receiver:
    """What the sync pod runs, in a thread. With `cut`, the connection breaks at the first write."""

    def __init__(self, root: Path, command: list[str], *, cut: bool = False) -> None:
        self.cut = cut
        self.words = [*command[3:], "--root", str(root)]
        self.code, self.said = 0, ""
        received, sent = os.pipe()
        answered, answers = os.pipe()
        self.sent, self.answered = os.fdopen(sent, "wb", buffering=0), os.fdopen(answered)
        self.thread = threading.Thread(target=self.work, args=(received, answers))
        self.thread.start()

    def work(self, received: int, answers: int) -> None:
        with open(received, "rb") as archive, open(answers, "w") as out:
            try:
                receive(parser().parse_args(self.words), archive, out)
            except (WorkspaceError, NotThere) as error:
                self.code, self.said = 1, str(error)
            except SystemExit:  # of argparse
                self.code = 2

    def __enter__(self) -> Receiver:
        return self

    def __exit__(self, *_: object) -> None:
        self.sent.close()
        self.thread.join()
        self.answered.close()

    def write(self, data: bytes) -> None:
        self.sent.write(data)
        if self.cut:
            self.sent.close()
            self.thread.join()
            raise ApiUnavailable("exec: the connection broke")

    def line(self) -> str:
        return self.answered.readline().rstrip("\n")

    def result(self) -> tuple[int, str]:
        self.thread.join()
        return self.code, self.said


@pytest.fixture
def stores(tmp_path: Path) -> Path:
    """Of each sync pod that uploads go to, by its name."""
    return tmp_path / "stores"


@pytest.fixture
def pod(api: TorchrunApi, stores: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """The sync pod of job `one`, and its store."""
    api.pod("one-sync-0", n.SYNC_CONTAINER)
    monkeypatch.setattr(upload, "execute", lambda _c, pod, _n, command: Receiver(stores / pod, command))
    return Store(stores / "one-sync-0")
