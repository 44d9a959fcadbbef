"""The Kubernetes control plane of one EKS cluster. `ControlPlane.start` starts all of it, `stop` stops it."""

from __future__ import annotations

import base64
import contextlib
import errno
import http.client
import json
import os
import shutil
import signal
import ssl
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from local.cluster import commands, kubeconfig
from local.cluster.commands import Plan
from local.cluster.network import claim_number
from local.cluster.pki import KUBELET_CLIENT, Authority, Pair, signing_key, write_private
from local.cluster.processes import Command, Processes, last_line
from local.cluster.record import Process, read_stat
from local.cluster.usage import descendants
from local.home import Home, write_atomically
from local.ports import free_ports
from local.tools import TOOLS

READY_PATHS = ("/readyz", "/api/v1/namespaces/default")
READY_SECONDS = 60.0
# etcd reserves this space for its write-ahead log at start (SegmentSizeBytes in etcd's
# server/storage/wal/wal.go).
ETCD_BYTES = 64 * 1000 * 1000
POLL_SECONDS = 0.1
REQUEST_SECONDS = 10.0
# Exits of one process after which the start has failed.
TRIES = 4
# The nodes first end their pods, each with its own grace period.
NODES_GRACE = 20.0
SERVED_VERSION = TOOLS["kubernetes"].number
GROUPS = {"eks:cluster-admin": "cluster-admin", "eks:admin": "admin", "eks:edit": "edit", "eks:view": "view"}


class ControlPlaneError(Exception):
    """The control plane did not start. The message is one line with the path of the log."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """The facts about a new cluster that the emulator sends."""

    name: str
    version: str
    issuer: str
    region: str
    arn: str


class ControlPlane:
    """The processes of one cluster and their files."""

    def __init__(self, home: Home, processes: Processes, request: Request, aws_endpoint: str) -> None:
        self._home = home
        self._processes = processes
        self._request = request
        number, self._claim = claim_number()
        api, etcd, peer = free_ports(3)
        self.plan = Plan(
            name=request.name,
            directory=home.cluster(request.name),
            programs=home.bin,
            number=number,
            api_port=api,
            etcd_port=etcd,
            peer_port=peer,
            issuer=request.issuer,
            # The API server drops the query of a webhook's URL, so the name is in the path.
            authenticate=f"{aws_endpoint}/_trainyard/authenticate/{request.name}",
        )
        self.administrator: kubeconfig.Document = {}

    def start(self, environment: Mapping[str, str], report: Callable[[str], None]) -> dict[str, Any]:
        """Start everything and wait until the API server is ready.

        Returns:
            The facts that the emulator needs.

        Raises:
            ControlPlaneError: The API server is not ready after a minute, or a process dies repeatedly.
            OSError: Files could not be written.
        """
        started = time.monotonic()
        if self._request.version.split(".")[:2] != SERVED_VERSION.split(".")[:2]:
            report(
                f"cluster {self.plan.name}: version {self._request.version} was asked for, {SERVED_VERSION} runs"
            )
        authority, administrator, client = self.start_api(environment)
        for group, role in GROUPS.items():
            client.call("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", _binding(group, role))
        keys = client.call("/openid/v1/jwks")
        self._start("controller-manager", commands.controller_manager(self.plan), environment)
        self._start("scheduler", commands.scheduler(self.plan), environment)
        program = [sys.executable, "-m", "local.nodes"]
        options = ["--cluster", self.plan.name, "--home", str(self._home.root)]
        self._start("nodes", [*program, *options], environment, grace=NODES_GRACE)
        self.administrator = kubeconfig.document(self.plan.name, self.plan.endpoint, authority, administrator)
        report(
            f"cluster {self.plan.name} is ready after {time.monotonic() - started:.1f} s at {self.plan.endpoint}"
        )
        return {
            "endpoint": self.plan.endpoint,
            "certificateAuthority": base64.b64encode(authority).decode(),
            "jwks": keys,
        }

    def start_api(self, environment: Mapping[str, str]) -> tuple[bytes, Pair, Client]:
        """Start only etcd and the API server.

        Returns:
            The CA certificate, the administrator's key pair, and a client that uses it.

        Raises:
            ControlPlaneError: See `start`.
            OSError: See `start`.
        """
        authority, administrator = self._write_files()
        self._start("etcd", commands.etcd(self.plan), environment)
        self._start("apiserver", commands.api_server(self.plan), environment)
        client = Client(self.plan.api_port, self.plan.directory)
        self._wait_ready(client)
        return authority, administrator, client

    def stop(self) -> None:
        """Stop everything, first the nodes and the rest of their pods, and remove the cluster's directory."""
        pods = self._pod_processes()
        for name in ("nodes", "scheduler", "controller-manager", "apiserver", "etcd"):
            self._processes.stop(f"{self.plan.name}-{name}")
            if name == "nodes":
                kill_remaining(pods)
        self._claim.close()
        shutil.rmtree(self.plan.directory, ignore_errors=True)

    def _pod_processes(self) -> list[Process]:
        """Return the processes below the nodes, and those of containers that an earlier nodes process started."""
        root = self._processes.pid(f"{self.plan.name}-nodes")
        recorded = recorded_processes(self._home.pods / self.plan.name)
        roots = {each.pid for each in recorded} | ({root} if root is not None else set())
        below = [Process(pid, start) for pid in descendants(*roots) if (start := read_stat(pid)) is not None]
        return [*recorded, *below]

    def facts(self) -> dict[str, Any]:
        """Return the content of `cluster.json`."""
        return {
            "name": self.plan.name,
            "number": self.plan.number.value,
            "serviceCidr": self.plan.number.service_cidr,
            "podCidr": self.plan.number.pod_cidr,
            "apiPort": self.plan.api_port,
            "region": self._request.region,
            "issuer": self._request.issuer,
            "arn": self._request.arn,
            "version": self._request.version,
            "servedVersion": SERVED_VERSION,
        }

    def _start(
        self, name: str, arguments: list[str], environment: Mapping[str, str], grace: float = 5.0
    ) -> None:
        full = f"{self.plan.name}-{name}"
        log = self._home.logs / f"{full}.log"
        self._processes.start(
            Command(name=full, arguments=arguments, environment=environment, log=log, grace=grace)
        )

    def _write_files(self) -> tuple[bytes, Pair]:
        """Write the certificates, kubeconfigs and `cluster.json`.

        Returns:
            The CA certificate and the administrator's key pair.
        """
        plan = self.plan
        shutil.rmtree(plan.directory, ignore_errors=True)
        plan.pki.mkdir(parents=True, mode=0o700)
        authority = Authority(f"trainyard {plan.name}")
        (plan.pki / "ca.crt").write_bytes(authority.certificate)
        service = "kubernetes.default.svc"
        names = ["localhost", "kubernetes", "kubernetes.default", service, f"{service}.cluster.local"]
        authority.issue(
            "kube-apiserver", hosts=names, addresses=["127.0.0.1", plan.number.api_service]
        ).write(plan.pki, "api-server")
        authority.issue("etcd", hosts=["localhost"], addresses=["127.0.0.1"]).write(plan.pki, "etcd")
        authority.issue("kube-apiserver").write(plan.pki, "etcd-client")
        authority.issue(KUBELET_CLIENT).write(plan.pki, "kubelet-client")
        authority.issue("kubelet", hosts=["localhost"], addresses=["127.0.0.1"]).write(plan.pki, "kubelet")
        write_private(plan.pki / "service-accounts.key", signing_key())
        administrator = authority.issue("kubernetes-admin", group="system:masters")
        for user, pair in (
            ("admin", administrator),
            ("controller-manager", authority.issue("system:kube-controller-manager")),
            ("scheduler", authority.issue("system:kube-scheduler")),
        ):
            content = kubeconfig.document(plan.name, plan.endpoint, authority.certificate, pair)
            kubeconfig.write(plan.directory / f"{user}.kubeconfig", content)
        administrator.write(plan.pki, "admin")
        kubeconfig.write(plan.directory / "token-webhook.yaml", kubeconfig.token_webhook(plan.authenticate))
        write_atomically(plan.directory / "cluster.json", json.dumps(self.facts(), indent=2) + "\n")
        return authority.certificate, administrator

    def _wait_ready(self, client: Client) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while not client.is_ready():
            for part in ("etcd", "apiserver"):
                name = f"{self.plan.name}-{part}"
                if self._processes.restarts(name) >= TRIES:
                    if shutil.disk_usage(self._home.root).free < ETCD_BYTES:
                        raise ControlPlaneError(f"{os.strerror(errno.ENOSPC)}: {self._home.root}")
                    raise ControlPlaneError(f"{name} dies again and again: {self._last_words(part)}")
            if time.monotonic() > deadline:
                raise ControlPlaneError(
                    f"the API server of cluster {self.plan.name} is not ready after {READY_SECONDS:.0f} s: "
                    f"{self._last_words('apiserver')}"
                )
            time.sleep(POLL_SECONDS)

    def _last_words(self, part: str) -> str:
        log = self._home.logs / f"{self.plan.name}-{part}.log"
        return f"{last_line(log)} (log: {log})"


def recorded_processes(pods: Path) -> list[Process]:
    """Return the running processes that `local.nodes.process` recorded for the containers of a cluster's pods."""
    files = [*pods.glob("*/containers/*/keeper"), *pods.glob("*/containers/*/process")]
    return [found for file in files if (found := Process.read(file)) is not None and found.alive]


def kill_remaining(processes: list[Process]) -> None:
    for process in processes:
        if process.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)


def _binding(group: str, role: str) -> dict[str, Any]:
    """Return the ClusterRoleBinding that grants the permissions of an EKS access policy."""
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": group},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": group}],
    }


class Client:
    """The administrator's requests during the start.

    The complete client library would need too much memory for these few.
    """

    def __init__(self, port: int, directory: Path) -> None:
        context = ssl.create_default_context(cafile=str(directory / "pki" / "ca.crt"))
        context.load_cert_chain(directory / "pki" / "admin.crt", directory / "pki" / "admin.key")
        https = urllib.request.HTTPSHandler(context=context)
        self._open = urllib.request.build_opener(urllib.request.ProxyHandler({}), https).open
        self._url = f"https://127.0.0.1:{port}"

    def is_ready(self) -> bool:
        """Return whether the API server is ready and has created the namespace `default`.

        The API server creates its own namespaces shortly after /readyz succeeds. An ACTIVE EKS cluster has them. An API
        server that does not answer is not ready.
        """
        try:
            for path in READY_PATHS:
                self._open(self._url + path, timeout=REQUEST_SECONDS).close()
        except (OSError, http.client.HTTPException):  # also an answer that is not 200
            return False
        return True

    def call(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """Read an object, or create it with `body`. It may exist already.

        Raises:
            ControlPlaneError: The API server refused, or does not answer.
        """
        content = json.dumps(body).encode() if body else None
        request = urllib.request.Request(self._url + path, content, {"Content-Type": "application/json"})  # noqa: S310
        place = f"{request.get_method()} {path} on the new API server"
        try:
            with self._open(request, timeout=REQUEST_SECONDS) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            if error.code == 409:
                return None
            raise ControlPlaneError(f"{place}: {error.code} {error.read().decode()[:300]}") from error
        except (OSError, http.client.HTTPException) as error:
            raise ControlPlaneError(f"{place} failed: {error}") from error
