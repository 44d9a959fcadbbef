"""The memory of a launcher process beside a large cluster, up to the training that it submits."""

from __future__ import annotations

import copy
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.benchmarks import api_process
from tests.benchmarks.api_process import ApiProcess, Server
from tests.benchmarks.figures import Figure, Note
from tests.unit.launcher import cluster
from tests.unit.launcher.api_server import FakeApi
from tests.unit.launcher.conftest import DOCUMENT
from tests.unit.launcher.test_large_cluster import memory
from trainyard.k8s import names

ROOT = Path(__file__).resolve().parents[2]
NODES, PODS = 256, 2000
LIMIT_MB = 80.0
WATCHES = 7
_ENDING_SECONDS = 60.0


def set_cordoned(api: FakeApi, cordoned: bool) -> None:
    """Changes every node twice."""
    for flag in (not cordoned, cordoned):
        for name in [name for name in api.objects if name.startswith(f"{cluster.NODES}/")]:
            item = api.objects[name]
            api.put(name, {**item, "spec": {**item["spec"], "unschedulable": flag}})


def started(server: Server, folder: Path, output: Path) -> subprocess.Popen[bytes]:
    """`python -m launcher` as in its pod, for MAX of all these nodes."""
    document = copy.deepcopy(DOCUMENT)
    document.update(minNodes=2, maxNodes=NODES, holdSeconds=1000, capacityDeadlineSeconds=3000)
    document["pool"]["maxNodes"] = NODES
    document["worker"]["cpu"] = "30"  # beside the pods of others, a CPU each
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "clusters": [{"name": "test", "cluster": {"server": server.url}}],
        "users": [{"name": "test", "user": {"token": "x"}}],
    }
    path = folder / "kubeconfig"
    path.write_text(json.dumps(kubeconfig))
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "KUBECONFIG": str(path),
        "TRAINYARD_REQUEST": json.dumps(document),
        names.ENV_JOB_NAME: "launch-r1",
    }
    with output.open("wb") as sink:
        return subprocess.Popen(
            [sys.executable, "-m", "launcher"],
            env=environment,
            cwd=ROOT,
            stdout=sink,
            stderr=subprocess.STDOUT,
        )


def peak(process: ApiProcess) -> tuple[float, float]:
    """Megabytes (10**6 bytes): resident while it waits, and at most, until after the submit of all nodes.

    The submit reads everything again, beside what is cached already.
    """
    with process.server() as server, tempfile.TemporaryDirectory() as name:
        folder, output = Path(name), Path(name) / "said"
        server.call(cluster.grow, NODES, PODS)
        server.call(set_cordoned, True)
        launcher = started(server, folder, output)
        try:
            server.until(api_process.watching, WATCHES, NODES)
            waiting = memory(launcher.pid, "VmRSS")
            server.call(set_cordoned, True)
            server.call(set_cordoned, False)
            server.until(api_process.replicas)
            found = waiting, memory(launcher.pid, "VmHWM")
            made = server.call(api_process.replicas)
        except TimeoutError as error:
            raise TimeoutError(f"{error}; the launcher said:\n{output.read_text()[-2000:]}") from None
        finally:
            launcher.send_signal(signal.SIGTERM)
            try:
                code = launcher.wait(_ENDING_SECONDS)
            finally:
                launcher.kill()
        if (code, made) != (names.EXIT_STOPPED, NODES):
            raise AssertionError(
                f"exit code {code}, a training of {made} nodes:\n{output.read_text()[-2000:]}"
            )
    return found


def measure() -> Iterator[Figure | Note]:
    """The figure of memory; some seconds."""
    with ApiProcess() as process:
        waiting, most = peak(process)
    name = f"launcher's memory, {NODES} nodes and {PODS} pods"
    yield Figure(name=f"{name}: peak", value=most, limit=LIMIT_MB, unit="MB")
    yield Note(name=f"{name}: waiting", text=f"{waiting:.1f} MB")
