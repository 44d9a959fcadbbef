"""A Kubernetes API server of the tests' own: a store and the API server, without machines or an account.

What an API server says of an object (validation, defaults, admission, tables) it says without the rest of a cluster,
four seconds after its start; what becomes of Jobs and of what nobody owns any more is seen with the controllers that
make and remove. It runs below a process of its own: that one waits for all of its children, and pytest's
must be left to pytest; it ends with pytest, however pytest ends.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import urllib3

from local.cluster import commands
from local.cluster.control_plane import ControlPlane, ControlPlaneError, Request
from local.cluster.processes import Command, Processes
from local.home import CHECKOUT, Home
from local.tools import ensure

NAME = "tests"
# What `kubectl wait` is to wait for until a definition is served. A new one's conditions are null for a moment, which a
# wait for one of them takes for an error and ends; it waits for the first of them by its place.
ESTABLISHED = ("jsonpath={.status.conditions[0].type}", "condition=Established")
# Nobody has a token of EKS here, so that nobody asks.
NO_ACCOUNT = "http://127.0.0.1:1"
END_SECONDS = 30.0
# What the one who holds the other side of standard input may say.
_START = "start controllers\n"
# Of the controller manager. Those of nodes would take away what is bound to one that nobody keeps alive.
CONTROLLERS = (
    "clusterrole-aggregation",
    "garbage-collector",
    "job",
    "namespace",
    "persistentvolumeclaim-protection",
    "serviceaccount",
)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the API server answered."""

    status: int
    body: Any
    warnings: tuple[str, ...]

    @property
    def message(self) -> str:
        """Why it refused."""
        return str(self.body.get("message", ""))


class ApiServer:
    """A running API server, and its administrator."""

    def __init__(self, facts: Mapping[str, Any], orders: TextIO) -> None:
        self._orders = orders
        self._port: int = facts["port"]
        self.programs: Mapping[str, str] = facts["programs"]
        self.url = f"https://127.0.0.1:{self._port}"
        pki = Path(facts["directory"]) / "pki"
        self.authority = str(pki / "ca.crt")
        self.kubeconfig = Path(facts["directory"]) / "admin.kubeconfig"
        # Connections are used again: most of what a request costs both sides is the handshake of TLS.
        self._connections = urllib3.HTTPSConnectionPool(
            "127.0.0.1", self._port, timeout=30, retries=False, maxsize=8,
            ca_certs=self.authority, cert_file=str(pki / "admin.crt"), key_file=str(pki / "admin.key"),
        )  # fmt: skip

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        accept: str = "",
        content: str = "application/json",
        user: str = "",
    ) -> Answer:
        """One request as the administrator, or as this user."""
        headers = {"Content-Type": content, "Accept": accept or "application/json"}
        if user:
            headers["Impersonate-User"] = user
        data = None if body is None else json.dumps(body)
        response = self._connections.request(method, path, body=data, headers=headers)
        warnings = tuple(response.headers.getlist("Warning"))
        return Answer(status=response.status, body=response.json(), warnings=warnings)

    def established(self, *definitions: str) -> None:
        """These CustomResourceDefinitions (`crd/<name>`) are served from now on, within a minute for each step."""
        for each in ESTABLISHED:
            waited = self.kubectl("wait", f"--for={each}", "--timeout=60s", *definitions)
            assert waited.returncode == 0, waited.stderr

    def start_controllers(self) -> None:
        """Kubernetes' CONTROLLERS from now on. Kinds that come later they know half a minute later."""
        self._orders.write(_START)
        self._orders.flush()

    def kubectl(self, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        """`kubectl ...` as a person types it, in the checkout's root."""
        cache = self.kubeconfig.with_name("kubectl-cache")
        environment = {**os.environ, "KUBECONFIG": str(self.kubeconfig), "KUBECACHEDIR": str(cache)}
        return subprocess.run(
            [self.programs["kubectl"], *arguments],
            cwd=CHECKOUT, env=environment, input=stdin, capture_output=True, text=True, timeout=120,
        )  # fmt: skip


@contextmanager
def api_server() -> Iterator[ApiServer]:
    """One that runs meanwhile, in a directory of its own."""
    command = [sys.executable, "-m", "tests.integration.local.own_api_server"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=CHECKOUT, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            facts = process.stdout.readline()
            assert facts, "the API server did not start; it said why above"
            yield ApiServer(json.loads(facts), process.stdin)
        finally:
            process.stdin.close()
            process.wait(END_SECONDS)


def _serve(directory: Path) -> int:
    """Run until standard input ends, which it does with the one who holds its other side."""
    home = Home(directory / "home")
    programs = ensure(["etcd", "kubernetes"], home, quiet=True)
    home.make()
    request = Request(name=NAME, version="1.35", issuer="https://issuer.invalid", region="us-west-2", arn="")
    processes = Processes(lambda _: None)
    plane = ControlPlane(home, processes, request, NO_ACCOUNT)
    try:
        environment = {"PATH": os.environ["PATH"]}
        plane.start_api(environment)
        facts = {
            "port": plane.plan.api_port,
            "directory": str(plane.plan.directory),
            "programs": {name: str(place) for name, place in programs.items()},
        }
        sys.stdout.write(json.dumps(facts) + "\n")
        sys.stdout.flush()
        for order in sys.stdin:
            assert order == _START, order
            processes.start(
                Command(
                    # The control plane stops it by this name.
                    name=f"{NAME}-controller-manager",
                    arguments=_manager(commands.controller_manager(plane.plan)),
                    environment=environment,
                    log=home.logs / "controller-manager.log",
                )
            )
    except ControlPlaneError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    finally:
        plane.stop()
    return 0


def _manager(arguments: list[str]) -> list[str]:
    """The command of the local cloud's controller manager, with these controllers alone."""
    chosen = ",".join(f"{each}-controller" for each in CONTROLLERS)
    kept = [each for each in arguments if not each.startswith("--controllers=")]
    return [*kept, f"--controllers={chosen}"]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="trainyard-api-") as own:
        code = _serve(Path(own))
    sys.exit(code)
