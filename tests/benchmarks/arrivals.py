"""From the submit of a job to the last of its pods: TorchrunJobs beside bare PyTorchJobs on one stack, in turns."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator
from typing import Any

from tests.benchmarks.figures import Figure, Note
from tests.benchmarks.torchrun_stack import NOWHERE, Bench
from tests.faults.place import SPACE, until
from tests.faults.run import PODS, TRAININGS
from trainyard.k8s.client import JsonObject
from trainyard.k8s.informer import Informer, ListWatch
from trainyard.operator import names as n

# Nodes, and how many jobs of each kind are submitted.
SAMPLES = {1: 15, 8: 15, 64: 7}
LATER_SECONDS = 0.5  # than a bare PyTorchJob's, at 1 and 8 nodes
TIMES = 1.2  # a bare PyTorchJob's, at 64
QUEUE = "arrivals"
REST_SECONDS = 1.0
LONGEST_SECONDS = 120.0
TORCHRUN_JOBS = f"/apis/{n.API_VERSION}/namespaces/{SPACE}/{n.JOB_PLURAL}"
OF_PYTORCH_JOBS = "training.kubeflow.org/job-name"
LABELS = {TORCHRUN_JOBS: n.LABEL_JOB, TRAININGS: OF_PYTORCH_JOBS}


class Arrivals:
    """The pods of the namespace, and the moment when the last of so many came."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._wanted, self._there = ("", "", 0), threading.Event()
        self._moment = 0.0
        source = ListWatch[dict[str, str]](path=PODS, convert=lambda pod: pod["metadata"].get("labels") or {})
        self._informer = Informer(bench.place.api, source, self._changed)
        self._informer.start()
        self._informer.items()

    def close(self) -> None:
        self._informer.stop()
        self._informer.join(10.0)

    def _changed(self) -> None:
        moment = time.monotonic()
        label, name, nodes = self._wanted
        if name and not self._there.is_set() and self._count(label, name) >= nodes:
            self._moment = moment
            self._there.set()

    def _count(self, label: str, name: str) -> int:
        return sum(labels.get(label) == name for labels in self._informer.items())

    def seconds(self, path: str, job: JsonObject, nodes: int) -> float:
        """From the begin of the create call to the news of the last pod; the job is removed afterwards."""
        name = job["metadata"]["name"]
        self._there.clear()
        self._wanted = (LABELS[path], name, nodes)
        began = time.monotonic()
        self._bench.place.api.request("POST", path, body=job)
        if not self._there.wait(LONGEST_SECONDS):
            raise TimeoutError(f"{name}: its {nodes} pods were not there within {LONGEST_SECONDS:.0f} s")
        self._wanted = ("", "", 0)
        taken = self._moment - began
        self._bench.place.delete(f"{path}/{name}")
        until(lambda: not self._count(LABELS[path], name), f"the pods of {name} are gone")
        time.sleep(REST_SECONDS)
        return taken


def measure(bench: Bench) -> Iterator[Figure | Note]:
    """Nothing of it runs: its machines do not exist."""
    bench.queue(QUEUE, {}, nowhere=True)
    arrivals = Arrivals(bench)
    try:
        for nodes, samples in SAMPLES.items():
            ours, theirs = [], []
            for number in range(samples):
                name = f"arrival-{nodes}-{number}"
                theirs.append(arrivals.seconds(TRAININGS, pytorch_job(bench, name, nodes), nodes))
                ours.append(arrivals.seconds(TORCHRUN_JOBS, torchrun_job(name, nodes), nodes))
            yield from _judged(
                nodes, statistics.median(ours), statistics.median(theirs), max(ours), max(theirs)
            )
    finally:
        arrivals.close()


def _judged(
    nodes: int, ours: float, theirs: float, worst: float, their_worst: float
) -> Iterator[Figure | Note]:
    told = f"{ours:.3f} s (worst {worst:.3f}), PyTorchJob {theirs:.3f} s (worst {their_worst:.3f})"
    name = f"submit to {nodes} pods"
    yield Note(name=f"{name}: medians", told=told)
    if nodes < max(SAMPLES):
        yield Figure(
            name=f"{name}, later than PyTorchJob",
            value=ours - theirs,
            limit=LATER_SECONDS,
            unit="s",
            digits=3,
        )
    else:
        yield Figure(name=f"{name}, to PyTorchJob's", value=ours / theirs, limit=TIMES, unit="", digits=2)


def torchrun_job(name: str, nodes: int) -> JsonObject:
    spec = {"jobQueue": QUEUE, "numGPUs": 0, "numNodes": nodes, "command": "python train.py"}
    return {"apiVersion": n.API_VERSION, "kind": n.JOB_KIND, "metadata": {"name": name}, "spec": spec}


def pytorch_job(bench: Bench, name: str, nodes: int) -> JsonObject:
    """The same workers, as the namespace's security standard wants them."""
    container: dict[str, Any] = {
        "name": "pytorch",
        "image": bench.outputs["trainerImage"],
        "command": ["python", "train.py"],
        "resources": {part: {"cpu": "1", "memory": "2Gi"} for part in ("requests", "limits")},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    user = {"runAsNonRoot": True, "runAsUser": 10001, "seccompProfile": {"type": "RuntimeDefault"}}
    pod = {"nodeSelector": NOWHERE, "securityContext": user, "containers": [container]}
    replicas = {
        kind: {"replicas": count, "restartPolicy": "Never", "template": {"spec": pod}}
        for kind, count in (("Master", 1), ("Worker", nodes - 1))
        if count
    }
    spec = {"pytorchReplicaSpecs": replicas}
    return {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": name}, "spec": spec}
