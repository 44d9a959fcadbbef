"""The controller as a process of its own, with the rights of its service account and no others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.request import urlopen

from local.home import CHECKOUT
from local.ports import free_ports
from tests.integration.local.own_api_server import ApiServer
from tests.torchrun_manifests import controller_rules
from trainyard.k8s import names
from trainyard.operator import names as n

T = TypeVar("T")

TOOLS = "tools.example.com/launcher@sha256:" + "0" * 64
START_SECONDS = 30.0
PROGRAM = "trainyard.operator"
RBAC_GROUP = "rbac.authorization.k8s.io"
PLURALS = {n.JOB_KIND: n.JOB_PLURAL, n.QUEUE_KIND: n.QUEUE_PLURAL}


def until(look: Callable[[], T], what: str, seconds: float = 20.0) -> T:
    """The first answer that is true."""
    end = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < end, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.05)
    return found


@dataclass
class Running:
    """A controller that runs. `log` has all that it said."""

    process: subprocess.Popen[bytes]
    log: Path
    metrics_port: int
    liveness_port: int

    def said(self) -> str:
        return self.log.read_text()

    def scrape(self) -> str:
        with urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=5) as answer:
            return str(answer.read().decode())

    def healthy(self) -> dict[str, Any]:
        with urlopen(f"http://127.0.0.1:{self.liveness_port}{n.LIVENESS_PATH}", timeout=5) as answer:
            return dict(json.load(answer))

    def stop(self) -> int:
        """As the kubelet does."""
        self.process.terminate()
        return self.process.wait(30)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)

    @property
    def working(self) -> bool:
        return "is held: reconciles start" in self.said()


def kubeconfig(
    server: ApiServer,
    directory: Path,
    through: str = "",
    *,
    namespace: str = n.CONTROLLER_NAMESPACE,
    account: str = n.CONTROLLER,
) -> Path:
    """One with a token of this service account; `through` is the address of a proxy, if there is one."""
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
    answer = server.request(
        "POST", path, {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    )
    assert answer.status == 201, answer.message
    document = json.loads(server.kubectl("config", "view", "--raw", "-o", "json").stdout)
    document["users"] = [{"name": account, "user": {"token": answer.body["status"]["token"]}}]
    document["contexts"][0]["context"]["user"] = account
    if through:
        document["clusters"][0]["cluster"] = {"server": through}
    file = directory / f"{account}.kubeconfig"
    file.write_text(json.dumps(document))
    file.chmod(0o600)
    return file


@contextmanager
def controller(
    server: ApiServer,
    directory: Path,
    *,
    wait: bool = True,
    pod: str = "",
    through: str = "",
    program: str = PROGRAM,
) -> Iterator[Running]:
    """A new one; it works once this is entered, or with `wait` false perhaps later.

    `pod` is its pod's uid, if any, `through` the address where it goes instead of the API server's own, and `program`
    the module that is run.
    """
    directory.mkdir(parents=True, exist_ok=True)
    ports = free_ports(2)
    log = directory / "log"
    arguments = ["--address=127.0.0.1", f"--metrics-port={ports[0]}", f"--liveness-port={ports[1]}"]
    variables = {"KUBECONFIG": str(kubeconfig(server, directory, through)), n.ENV_TOOLS_IMAGE: TOOLS}
    if pod:
        variables[names.ENV_POD_UID] = pod
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", program, *arguments],
            cwd=CHECKOUT,
            env={**os.environ, **variables},
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    running = Running(process, log, *ports)
    try:
        if wait:
            until(
                lambda: running.working or process.poll() is not None, "the controller works", START_SECONDS
            )
            assert process.poll() is None, running.said()
        yield running
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)


class Team:
    """A namespace on the API server, and what a person sees in it."""

    def __init__(self, server: ApiServer, name: str) -> None:
        self.server = server
        self.name = name
        self._make(
            "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        )
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
        answer = server.request("POST", self.core("serviceaccounts"), account)
        assert answer.status in (201, 409), answer.message  # where Kubernetes' controllers run, they make it

    def core(self, plural: str, name: str = "") -> str:
        return f"/api/v1/namespaces/{self.name}/{plural}" + (f"/{name}" if name else "")

    def batch(self, name: str = "") -> str:
        return f"/apis/batch/v1/namespaces/{self.name}/jobs" + (f"/{name}" if name else "")

    def path(self, kind: str, name: str = "") -> str:
        return f"/apis/{n.API_VERSION}/namespaces/{self.name}/{PLURALS[kind]}" + (f"/{name}" if name else "")

    def make(self, manifest: dict[str, Any]) -> dict[str, Any]:
        return self._make(self.path(manifest["kind"]), manifest)

    def _make(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = self.server.request("POST", path, body)
        assert answer.status == 201, answer.message
        return dict(answer.body)

    def get(self, path: str) -> dict[str, Any]:
        """The object, {} where there is none."""
        answer = self.server.request("GET", path)
        return dict(answer.body) if answer.status == 200 else {}

    def delete(self, path: str) -> None:
        answer = self.server.request("DELETE", path)
        assert answer.status in (200, 202), answer.message

    def merge(self, path: str, body: dict[str, Any]) -> None:
        answer = self.server.request("PATCH", path, body, content="application/merge-patch+json")
        assert answer.status == 200, answer.message

    def status(self, name: str, kind: str = n.JOB_KIND) -> dict[str, Any]:
        return dict(self.get(self.path(kind, name)).get("status") or {})

    def condition(self, name: str, of: str, kind: str = n.JOB_KIND) -> dict[str, Any]:
        found = self.status(name, kind).get("conditions") or []
        return next((dict(each) for each in found if each["type"] == of), {})

    def events(self, name: str, kind: str = n.JOB_KIND) -> list[dict[str, Any]]:
        """The events of an object, as `kubectl describe` shows them."""
        uid = self.get(self.path(kind, name))["metadata"]["uid"]
        answer = self.server.request("GET", f"{self.core('events')}?fieldSelector=involvedObject.uid={uid}")
        assert answer.status == 200, answer.message
        return list(answer.body["items"])

    def reaches(self, name: str, phase: str, seconds: float = 20.0) -> dict[str, Any]:
        until(
            lambda: self.status(name).get("phase") == phase,
            f"{name} is {phase}: {self.status(name)}",
            seconds,
        )
        return self.status(name)


@contextmanager
def without_right(server: ApiServer, resource: str, verb: str) -> Iterator[None]:
    """The controller may not do this meanwhile, and all else."""
    place = f"/apis/{RBAC_GROUP}/v1/clusterroles/{n.CONTROLLER}"
    granted = controller_rules()

    def put(rules: list[dict[str, Any]]) -> None:
        answer = server.request("PATCH", place, {"rules": rules}, content="application/merge-patch+json")
        assert answer.status == 200, answer.message

    put([
        {**each, "verbs": [one for one in each["verbs"] if one != verb]} if resource in each["resources"] else each
        for each in granted
    ])  # fmt: skip
    try:
        yield
    finally:
        put(granted)


def taken_away(server: ApiServer) -> Callable[[], None]:
    """Takes all rights from the controller; returns what gives them back."""
    place = f"/apis/{RBAC_GROUP}/v1/clusterrolebindings"
    answer = server.request("DELETE", f"{place}/{n.CONTROLLER}")
    assert answer.status == 200, answer.message

    def give() -> None:
        # As it was installed: what applies the file once more finds it so.
        applied = server.kubectl("apply", "-f", str(CHECKOUT / "config" / "rbac" / "role.yaml"))
        assert applied.returncode == 0, applied.stderr

    return give
