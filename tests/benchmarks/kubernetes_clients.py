"""Compare Kubernetes clients: processor time and peak memory of a process that imports one and lists pods.

    python -m tests.benchmarks.kubernetes_clients

lightkube and kr8s are no dependencies of this project: install them first, or they are left out. Each figure is the
median of five processes; an API server of this process serves the pods, in pages if it is asked to.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

ROUNDS = 5
PODS = 5000
# What each process does after the import; `phase` is what is kept of a pod.
CLIENTS = {
    "no client": "n = 0",
    "trainyard.k8s": """
from trainyard.k8s import informer, kubeconfig
from trainyard.k8s.client import RetryPolicy
client, _ = kubeconfig.connect(None, None, RetryPolicy())
n = len(client.list_items("/api/v1/pods", {}, lambda pod: pod["status"]["phase"]))
""",
    "kubernetes": """
from kubernetes import client, config, watch
config.load_kube_config()
n = len([pod.status.phase for pod in client.CoreV1Api().list_pod_for_all_namespaces().items])
""",
    "lightkube": """
from lightkube import Client
from lightkube.resources.core_v1 import Pod
n = len([pod.status.phase for pod in Client().list(Pod, namespace="*", chunk_size=500)])
""",
    "kr8s": """
import kr8s
n = len([pod.raw["status"]["phase"] for pod in kr8s.get("pods", namespace=kr8s.ALL)])
""",
}
# The high-water mark of this process alone: that of `getrusage` includes its parent's.
END = """
import resource
use = resource.getrusage(resource.RUSAGE_SELF)
peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(n, use.ru_utime + use.ru_stime, peak)
"""


def pod(number: int) -> dict[str, object]:
    """A pod of about 4 kB."""
    variables = [{"name": f"VARIABLE_{each}", "value": "x" * 40} for each in range(40)]
    return {
        "metadata": {
            "name": f"pod-{number}",
            "namespace": "training",
            "uid": str(number),
            "resourceVersion": "1",
        },
        "spec": {"containers": [{"name": "worker", "image": "trainer", "env": variables}]},
        "status": {"phase": "Running"},
    }


class Handler(BaseHTTPRequestHandler):
    """Serves the list of pods and what clients ask for before."""

    def do_GET(self) -> None:
        path, query = urlsplit(self.path).path.rstrip("/"), parse_qs(urlsplit(self.path).query)
        answer: dict[str, object] = {"major": "1", "minor": "35", "gitVersion": "v1.35.4"}
        if path.endswith("/pods"):
            first = int(query.get("continue", ["0"])[0])
            end = min(PODS, first + int(query.get("limit", [PODS])[0]))
            more = {"continue": str(end)} if end < PODS else {}
            answer = {"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "1", **more}}
            answer["items"] = [pod(number) for number in range(first, end)]
        elif path in ("/api", "/apis"):
            answer = {"versions": ["v1"], "groups": []}
        elif path == "/api/v1":
            pods = {
                "name": "pods",
                "singularName": "pod",
                "kind": "Pod",
                "namespaced": True,
                "verbs": ["list"],
            }
            answer = {"groupVersion": "v1", "resources": [pods]}
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


def main() -> None:
    """Print a line for each client."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "kubeconfig"
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "training"}}],
            "current-context": "c",
        }
        file.write_text(json.dumps(document))
        environment = {**os.environ, "KUBECONFIG": str(file)}
        for name, code in CLIENTS.items():
            runs = [measure(code, environment) for _ in range(ROUNDS)]
            if None in runs:
                print(f"{name:<16} is not installed, or failed")
                continue
            seconds, kilobytes = (statistics.median(each) for each in zip(*filter(None, runs), strict=True))
            print(f"{name:<16} {seconds:5.2f} s  {kilobytes / 1024:4.0f} MiB")


def measure(code: str, environment: dict[str, str]) -> tuple[float, float] | None:
    """Return the seconds of processor time and the peak memory in kB; None if the process failed."""
    result = subprocess.run(
        [sys.executable, "-c", code + END], env=environment, capture_output=True, text=True
    )
    if result.returncode:
        print(result.stderr.splitlines()[-1], file=sys.stderr)
        return None
    number, seconds, kilobytes = result.stdout.split()
    assert int(number) in (0, PODS), number
    return float(seconds), float(kilobytes)


if __name__ == "__main__":
    main()
