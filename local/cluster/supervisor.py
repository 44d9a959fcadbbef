"""The supervisor: starts the AWS emulator and a control plane per cluster, and ends them.

`Supervisor.run` is the entry point.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import shutil
import sys
import threading
import time
import urllib.request
import uuid
from collections.abc import Mapping

from local.cluster import kubeconfig
from local.cluster.control import ControlError, JsonObject, serve
from local.cluster.control_plane import ControlPlane, ControlPlaneError, Request
from local.cluster.processes import Command, Processes, last_line
from local.cluster.record import Process, remove_records
from local.cluster.usage import everything, usage
from local.home import CHECKOUT, Home, write_atomically
from local.tools import cache_directory

AWS = "aws"
REGION = "us-west-2"
HEALTH_SECONDS = 60.0
POLL_SECONDS = 0.1
AWS_TRIES = 3
# Variables of the user that no process of the cloud may see.
PRIVATE = ("AWS_", "PULUMI_", "KUBECONFIG", "TRAINYARD_")


class StartError(Exception):
    """The local cloud can't start. The message is one line."""


def report(line: str) -> None:
    """Print a line of the supervisor's log, with the time in UTC. On a full disk the line is lost.

    It must not raise: the caller still has processes to start or to end, and the disk may soon have space again.
    """
    with contextlib.suppress(OSError):
        print(f"{datetime.datetime.now(datetime.UTC):%Y-%m-%dT%H:%M:%SZ} {line}", flush=True)


def child_environment(home: Home, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of all processes of the cloud.

    It has the tools and this interpreter on PATH, and no variables of the user's accounts.
    """
    kept = {name: value for name, value in inherited.items() if not name.startswith(PRIVATE)}
    path = [str(home.bin), os.path.dirname(sys.executable), inherited.get("PATH", "/usr/bin:/bin")]
    return {
        **kept,
        "PATH": os.pathsep.join(path),
        "PYTHONPATH": str(CHECKOUT),
        "PYTHONUNBUFFERED": "1",
        "TRAINYARD_HOME": str(home.root),
        "TRAINYARD_CACHE": str(cache_directory()),
        "NO_PROXY": "*",
        "no_proxy": "*",
    }


class Supervisor:
    """One local cloud. `outer` is the supervisor's process as seen from outside its PID namespace."""

    def __init__(self, home: Home, outer: Process, port: int) -> None:
        self._home = home
        self._outer = outer
        self._endpoint = f"http://127.0.0.1:{port}"
        self._port = port
        self._generation = ""
        self._environment = child_environment(home, os.environ)
        self._processes = Processes(report)
        self._clusters: dict[str, ControlPlane] = {}
        self._starting: set[str] = set()
        self._lock = threading.RLock()
        self._stop = threading.Event()
        self._aws_deaths = 0

    def run(self) -> None:
        """Start everything, wait for the request to stop, and stop everything.

        Raises:
            StartError: The emulator does not start.
            OSError: State can't be written.
        """
        self._clean()
        write_atomically(self._home.supervisor_file, json.dumps(self._outer.as_json()), mode=0o600)
        serve(self._home.control_socket, self)
        try:
            self._start_aws()
            self._stop.wait()
        finally:
            report("stopping")
            self._stop_everything()
            remove_records(self._home)
            report("stopped")

    def _clean(self) -> None:
        """Delete the state of the last cloud. It belongs to an emulated account that existed only in memory."""
        for directory in (self._home.clusters, self._home.pods, self._home.volumes):
            shutil.rmtree(directory, ignore_errors=True)
        self._home.make()
        for file in (self._home.kubeconfig, self._home.aws_file, self._home.cloud_file):
            file.unlink(missing_ok=True)

    def _start_aws(self) -> None:
        self._home.aws_file.unlink(missing_ok=True)
        options = ["--home", str(self._home.root), "--port", str(self._port)]
        arguments = [sys.executable, "-m", "local.aws", *options]
        log = self._home.logs / "aws.log"
        failed = threading.Event()

        def ended(_: int) -> None:
            if self._home.cloud_file.exists():
                self._aws_lost()
            else:
                failed.set()

        command = Command(name=AWS, arguments=arguments, environment=self._environment, log=log)
        self._processes.start(command, on_exit=ended)
        deadline = time.monotonic() + HEALTH_SECONDS
        while not self._aws_is_healthy():
            if failed.is_set() or time.monotonic() > deadline:
                raise StartError(f"the AWS emulator does not come up: {last_line(log)} (log: {log})")
            if self._stop.wait(POLL_SECONDS):
                return
        account = json.loads(self._home.aws_file.read_text())
        self._generation = str(uuid.uuid4())
        record = {
            **self._outer.as_json(),
            "generation": self._generation,
            "awsEndpoint": self._endpoint,
            "region": REGION,
            "accountId": account["accountId"],
            "accessKeyId": account["accessKeyId"],
            "secretAccessKey": account["secretAccessKey"],
            "emulatorToken": account["emulatorToken"],
            "deployerArn": account["deployerArn"],
        }
        write_atomically(self._home.cloud_file, json.dumps(record, indent=2) + "\n", mode=0o600)
        report(f"the AWS emulator answers at {self._endpoint}")

    def _aws_is_healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._endpoint}/_trainyard/health", timeout=2) as response:  # noqa: S310
                healthy: bool = response.status == 200
        except OSError:
            return False
        return healthy and self._home.aws_file.exists()

    def _aws_lost(self) -> None:
        """Stop all clusters and start a new emulator, because the account ended with the last one.

        After AWS_TRIES such restarts the local cloud ends.
        """
        if self._stop.is_set():
            return
        self._aws_deaths += 1
        if self._aws_deaths > AWS_TRIES:
            report(f"the AWS emulator has died {self._aws_deaths} times: giving up")
            self._stop.set()
            return
        report("the emulated account is lost: stopping its clusters, starting a new one")
        self._home.cloud_file.unlink(missing_ok=True)
        with self._lock:
            lost = list(self._clusters.values())
            self._clusters.clear()
        for plane in lost:
            plane.stop()
        self._write_kubeconfig()
        try:
            self._start_aws()
        except (StartError, OSError) as error:
            report(f"error: {error}")
            self._stop.set()

    def _stop_everything(self) -> None:
        with self._lock:
            planes = list(self._clusters.values())
        threads = [threading.Thread(target=plane.stop) for plane in planes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self._processes.stop(AWS)

    def create_cluster(self, body: JsonObject) -> JsonObject:
        """See `local.cluster.control`."""
        request = Request(**body)
        with self._lock:
            if request.name in self._clusters or request.name in self._starting:
                raise ControlError(409, f"cluster {request.name} exists already")
            self._starting.add(request.name)
            deaths = self._aws_deaths
        plane: ControlPlane | None = None
        try:
            plane = ControlPlane(self._home, self._processes, request, self._endpoint)
            answer = plane.start(self._environment, report)
            with self._lock:
                if self._aws_deaths != deaths:
                    raise ControlPlaneError("the emulated account was lost meanwhile")
                self._clusters[request.name] = plane
            self._write_kubeconfig()
        except (ControlPlaneError, OSError, RuntimeError) as error:
            report(f"cluster {request.name} could not be started: {error}")
            if plane is not None:
                plane.stop()
            raise ControlError(500, f"cluster {request.name} could not be started: {error}") from error
        finally:
            with self._lock:
                self._starting.discard(request.name)
        return answer

    def delete_cluster(self, name: str) -> None:
        """See `local.cluster.control`."""
        with self._lock:
            plane = self._clusters.pop(name, None)
        if plane is None:
            raise ControlError(404, f"there is no cluster {name}")
        plane.stop()
        self._write_kubeconfig()
        report(f"cluster {name} is gone")

    def status(self) -> JsonObject:
        """See `local.cluster.control`. `total` includes every process, also those in pods."""
        processes = []
        for command, pid in self._processes.list():
            used = usage(pid) if pid is not None else None
            processes.append(
                {
                    "name": command.name,
                    "pid": pid,
                    "alive": used is not None,
                    "rssBytes": used.rss_bytes if used else 0,
                    "cpuSeconds": used.cpu_seconds if used else 0.0,
                    "log": str(command.log),
                }
            )
        found = everything().values()
        with self._lock:
            clusters = [plane.facts() for plane in self._clusters.values()]
        return {
            "generation": self._generation,
            "ready": self._home.cloud_file.exists(),
            "awsEndpoint": self._endpoint,
            "clusters": clusters,
            "processes": processes,
            "total": {
                "processes": len(found),
                "rssBytes": sum(each.rss_bytes for each in found),
                "cpuSeconds": round(sum(each.cpu_seconds for each in found), 2),
            },
        }

    def shut_down(self) -> None:
        """See `local.cluster.control`."""
        self._stop.set()

    def _write_kubeconfig(self) -> None:
        with self._lock:
            documents = {name: plane.administrator for name, plane in self._clusters.items()}
            before = kubeconfig.read(self._home.kubeconfig)
            kubeconfig.write(self._home.kubeconfig, kubeconfig.merge(documents, before))
