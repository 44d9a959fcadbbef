"""The project's small API server with torchrun's kinds, logs of pods, and a kubeconfig that leads to it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.unit.launcher.api_history import Object
from tests.unit.launcher.api_server import FakeApi, status
from trainyard.operator import names as n
from trainyard.operator.names import LABEL_INDEX

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
