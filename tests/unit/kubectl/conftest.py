"""An API server with torchrun's kinds and logs of pods, a directory with a script, and the plugin that runs in it."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.unit.k8s.conftest import pods  # noqa: F401
from tests.unit.launcher.api_history import Object
from tests.unit.launcher.api_server import FakeApi, serving, status
from trainyard.k8s.client import ApiUnavailable, RetryPolicy
from trainyard.kubectl import cli, logs, upload
from trainyard.kubectl.__main__ import main
from trainyard.kubectl.cluster import Cluster
from trainyard.operator import names as n
from trainyard.operator.names import LABEL_INDEX
from trainyard.workspace.__main__ import parser, receive
from trainyard.workspace.errors import NotThere, WorkspaceError
from trainyard.workspace.sync_pod import Store

ROOT = f"/apis/{n.API_VERSION}"
JOBS = f"{ROOT}/namespaces/team/{n.JOB_PLURAL}"
QUEUES = f"{ROOT}/namespaces/team/{n.QUEUE_PLURAL}"
PODS = "/api/v1/namespaces/team/pods"
SUBMIT = ("submit", "--queue", "q", "--gpus", "8", "--name", "one")
Run = Callable[..., tuple[int, str, str]]


class TorchrunApi(FakeApi):
    """`judge` may refuse a job that is made: a message, "" for none. `logs` are by pod, in pieces.

    `intercept` gets the method and the target first, and may answer in place of the server.
    """

    def __init__(self) -> None:
        super().__init__()
        self.installed = True
        self.judge: Callable[[Object], str] = lambda _job: ""
        self.logs: dict[str, list[bytes]] = {}
        self.log_queries: list[dict[str, str]] = []
        self.on_log: Callable[[str], None] = lambda _pod: None
        self.intercept: Callable[[str, str], Any] = lambda _method, _target: None

    def answer(self, method: str, target: str, body: Object) -> tuple[int, Object] | Iterator[bytes | None]:
        if (answer := self.intercept(method, target)) is not None:
            return answer
        path = urlsplit(target).path
        self._adopt(path)
        query = {key: value[0] for key, value in parse_qs(urlsplit(target).query).items()}
        if path.startswith(ROOT) and not self.installed:
            return status(404, "NotFound", "the server could not find the requested resource")
        if (method, path) in self.refused or path == "/readyz":
            return super().answer(method, target, body)
        if path == ROOT:
            return 200, {"kind": "APIResourceList"}
        listed = method == "GET" and path.rpartition("/")[2] in (n.JOB_PLURAL, n.QUEUE_PLURAL)
        if listed and "watch" not in query:
            kind = path.rpartition("/")[2]
            items = [
                item
                for key, item in self.objects.items()
                if f"/{kind}/" in key and (path == f"{ROOT}/{kind}" or key.startswith(f"{path}/"))
            ]
            return 200, {"items": items, "metadata": {"resourceVersion": str(self.version)}}
        if method == "POST" and path == JOBS and (problem := self.judge(body)):
            return status(422, "Invalid", problem)
        if method == "POST" and query.get("dryRun") == "All":
            self.requests.append((method, path, query))
            return 201, body
        if method == "PATCH" and path not in self.objects:
            return status(404, "NotFound", f"{path} not found")
        if path.endswith("/log"):
            pod = path.split("/")[-2]
            self.log_queries.append(query)
            self.on_log(pod)
            return iter(self.logs.pop(pod, []))
        return super().answer(method, target, body)

    def _adopt(self, path: str) -> None:
        """Make the job of a sync pod its owner, as soon as the job exists. A test may set another owner."""
        owner = self.objects.get(f"{JOBS}/{path.rpartition('/')[2].removesuffix('-sync-0')}")
        if path in self.objects and path.endswith("-sync-0") and owner:
            references = [{"kind": n.JOB_KIND, "uid": owner["metadata"]["uid"]}]
            self.objects[path]["metadata"].setdefault("ownerReferences", references)

    def job(self, name: str, *, phase: str = "", uid: str = "", **spec: Any) -> Object:
        """A job that is there."""
        seen = {"phase": phase} if phase else {}
        whole = {"jobQueue": "q", "numGPUs": 8, "command": "python train.py", **spec}
        meta = {"name": name, "namespace": "team", "creationTimestamp": "2026-01-01T00:00:00Z"}
        return self.put(f"{JOBS}/{name}", {"metadata": meta, "spec": whole, "status": seen})

    def queue(self, name: str, **spec: Any) -> Object:
        """A queue that is there."""
        meta = {"name": name, "namespace": "team", "creationTimestamp": "2026-01-01T00:00:00Z"}
        return self.put(f"{QUEUES}/{name}", {"metadata": meta, "spec": spec})

    def pod(self, name: str, container: str, state: str = "running", **labels: str) -> Object:
        """A pod with one container that is ready."""
        meta = {"name": name, "labels": labels, "creationTimestamp": "2026-01-01T00:00:00Z"}
        containers = [{"name": container, "ready": True, "state": {state: {}}}]
        return self.put(f"{PODS}/{name}", {"metadata": meta, "status": {"containerStatuses": containers}})

    def worker(self, name: str, state: str = "running", **labels: str) -> Object:
        """A pod of node 0 of job `one`, which is there, in its first attempt."""
        uid = self.objects[f"{JOBS}/one"]["metadata"]["uid"]
        usual = {n.LABEL_JOB: "one", n.LABEL_JOB_UID: uid, n.LABEL_ATTEMPT: "0", LABEL_INDEX: "0"}
        return self.pod(name, n.WORKER_CONTAINER, state, **{**usual, **labels})

    def kubeconfig(self, file: Path) -> Path:
        """A kubeconfig whose one context is of namespace `team`."""
        context = {"cluster": "c", "user": "u", "namespace": "team"}
        config = {
            **{"apiVersion": "v1", "kind": "Config", "current-context": "here"},
            "clusters": [{"name": "c", "cluster": {"server": self.url}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "contexts": [{"name": "here", "context": context}],
        }
        file.write_text(json.dumps(config))  # which is YAML, too, and quicker
        return file


def sent(api: TorchrunApi, method: str) -> list[str]:
    """The paths that were asked for with this method, those of dry runs left out."""
    return [path for done, path, query in api.requests if done == method and query.get("dryRun") != "All"]


def only_line(err: str) -> str:
    assert err.count("\n") == 1, err
    return err.strip()


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
