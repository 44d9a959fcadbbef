"""From the submit of a job to the last of its pods: TorchrunJobs, PyTorchJobs and TrainJobs on one stack, in turns.

Entry point: `measure()`. No node runs the pods, so that only their creation is measured.
"""

from __future__ import annotations

import itertools
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from tests.benchmarks.figures import Figure, Note
from tests.benchmarks.torchrun_stack import NOWHERE, PYTORCH_JOBS, Bench
from tests.benchmarks.turns import in_turns
from tests.faults.place import SPACE, until
from tests.faults.run import PODS
from tests.kubeflow_trainer import kubeflow_trainer
from trainyard.k8s.client import JsonObject
from trainyard.k8s.informer import Informer, ListWatch
from trainyard.operator import names as n

# Numbers of nodes, and how many jobs of each kind are submitted.
SAMPLES = {1: 9, 8: 9, 64: 7}
LATER_SECONDS = 0.1  # than a PyTorchJob, up to RATIO_NODES
RATIO_NODES = 64
RATIO = 0.3  # of a PyTorchJob's and a TrainJob's seconds, from RATIO_NODES on
QUEUE = "pod-creation"
REST_SECONDS = 0.5
LONGEST_SECONDS = 120.0
TRAINER = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/" + SPACE
TORCHRUN_JOB, PYTORCH_JOB, TRAIN_JOB = "TorchrunJob", "PyTorchJob", "TrainJob"
# Where jobs of a kind are created, and the label of their pods that has the job's name.
PATHS = {
    TORCHRUN_JOB: f"/apis/{n.API_VERSION}/namespaces/{SPACE}/{n.JOB_PLURAL}",
    PYTORCH_JOB: PYTORCH_JOBS,
    TRAIN_JOB: f"{TRAINER}/trainjobs",
}
LABELS = {
    TORCHRUN_JOB: n.LABEL_JOB,
    PYTORCH_JOB: "training.kubeflow.org/job-name",
    # The JobSet has the name of its TrainJob (kubeflow/trainer@v2.3.0 pkg/runtime/framework/plugins/jobset).
    TRAIN_JOB: "jobset.sigs.k8s.io/jobset-name",
}


class PodWatch:
    """Watches the pods of the namespace and measures when the last pod of a job is created."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._is_complete: Callable[[], bool] = lambda: False
        self._completed, self._moment = threading.Event(), 0.0
        source = ListWatch[dict[str, str]](path=PODS, convert=lambda pod: pod["metadata"].get("labels") or {})
        self._informer = Informer(bench.place.api, source, self._changed)
        self._informer.start()
        self._informer.items()

    def close(self) -> None:
        self._informer.stop()
        self._informer.join(10.0)

    def _changed(self) -> None:
        moment = time.monotonic()
        if not self._completed.is_set() and self._is_complete():
            self._moment = moment
            self._completed.set()

    def _count(self, kind: str, name: str) -> int:
        return sum(labels.get(LABELS[kind]) == name for labels in self._informer.items())

    def seconds(self, kind: str, job: JsonObject, nodes: int) -> float:
        """Return the seconds from the start of the create call to the event of the last pod; delete the job."""
        name = job["metadata"]["name"]
        self._completed.clear()
        self._is_complete = lambda: self._count(kind, name) >= nodes
        began = time.monotonic()
        self._bench.place.api.request("POST", PATHS[kind], body=job)
        if not self._completed.wait(LONGEST_SECONDS):
            raise TimeoutError(f"{kind} {name}: not {nodes} pods within {LONGEST_SECONDS:.0f} s")
        self._is_complete = lambda: False
        self._bench.place.delete(f"{PATHS[kind]}/{name}")
        until(lambda: not self._count(kind, name), f"the pods of {name} are gone")
        time.sleep(REST_SECONDS)
        return self._moment - began


def measure(bench: Bench) -> Iterator[Figure | Note]:
    """Measure each number of nodes; the order of the kinds is another in each round."""
    bench.queue(QUEUE, {}, nowhere=True)
    with (
        tempfile.TemporaryDirectory(prefix="trainyard-trainer-") as directory,
        kubeflow_trainer(bench.environment, Path(directory)),
    ):
        bench.place.api.request("POST", f"{TRAINER}/trainingruntimes", body=training_runtime(bench))
        watch = PodWatch(bench)
        try:
            for nodes, samples in SAMPLES.items():
                yield from evaluate(nodes, _sample(bench, watch, nodes, samples))
        finally:
            watch.close()


def _sample(bench: Bench, watch: PodWatch, nodes: int, samples: int) -> dict[str, list[float]]:
    numbers = itertools.count()
    makers = {TORCHRUN_JOB: torchrun_job, PYTORCH_JOB: partial(pytorch_job, bench), TRAIN_JOB: train_job}

    def sample(kind: str) -> float:
        return watch.seconds(kind, makers[kind](f"pods-{nodes}-{next(numbers)}", nodes), nodes)

    return in_turns({kind: partial(sample, kind) for kind in makers}, samples)


def evaluate(nodes: int, seconds: dict[str, Sequence[float]]) -> Iterator[Figure | Note]:
    """Compare the medians of the kinds: by the difference for a few nodes, by the ratio for many."""
    name = f"submit to {nodes} pods"
    medians = {kind: median(values) for kind, values in seconds.items()}
    text = ", ".join(
        f"{kind} {medians[kind]:.3f} s (worst {max(values):.3f})" for kind, values in seconds.items()
    )
    yield Note(name=f"{name}: medians", text=text)
    ours = medians[TORCHRUN_JOB]
    for kind, later in ((PYTORCH_JOB, LATER_SECONDS), (TRAIN_JOB, 0.0)):
        if nodes < RATIO_NODES:
            difference = ours - medians[kind]
            yield Figure(name=f"{name}, later than {kind}", value=difference, limit=later, unit="s", digits=3)
        else:
            ratio = ours / medians[kind]
            yield Figure(name=f"{name}, to {kind}'s", value=ratio, limit=RATIO, unit="", digits=2)


# -- one job in each kind, with the same workers


def torchrun_job(name: str, nodes: int) -> JsonObject:
    spec = {"jobQueue": QUEUE, "numGPUs": 0, "numNodes": nodes, "command": "python train.py"}
    return {"apiVersion": n.API_VERSION, "kind": TORCHRUN_JOB, "metadata": {"name": name}, "spec": spec}


def pytorch_job(bench: Bench, name: str, nodes: int) -> JsonObject:
    pod = _pod(bench, "pytorch")
    replicas = {
        kind: {"replicas": count, "restartPolicy": "Never", "template": {"spec": pod}}
        for kind, count in (("Master", 1), ("Worker", nodes - 1))
        if count
    }
    spec = {"pytorchReplicaSpecs": replicas}
    return {"apiVersion": "kubeflow.org/v1", "kind": PYTORCH_JOB, "metadata": {"name": name}, "spec": spec}


def training_runtime(bench: Bench) -> JsonObject:
    """Return the runtime of the TrainJobs, which has what a queue has for TorchrunJobs."""
    step = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    job = {"spec": {"template": {"spec": _pod(bench, "node")}}, "metadata": {"labels": step}}
    spec = {
        "mlPolicy": {"numNodes": 1, "torch": {}},
        "template": {"spec": {"replicatedJobs": [{"name": "node", "template": job}]}},
    }
    version = "trainer.kubeflow.org/v1alpha1"
    return {"apiVersion": version, "kind": "TrainingRuntime", "metadata": {"name": QUEUE}, "spec": spec}


def train_job(name: str, nodes: int) -> JsonObject:
    spec = {"runtimeRef": {"name": QUEUE, "kind": "TrainingRuntime"}, "trainer": {"numNodes": nodes}}
    version = "trainer.kubeflow.org/v1alpha1"
    return {"apiVersion": version, "kind": TRAIN_JOB, "metadata": {"name": name}, "spec": spec}


def _pod(bench: Bench, container: str) -> dict[str, Any]:
    """Return a worker's pod, with what the pod security standard of the namespace requires."""
    user = {"runAsNonRoot": True, "runAsUser": 10001, "seccompProfile": {"type": "RuntimeDefault"}}
    worker = {
        "name": container,
        "image": bench.outputs["trainerImage"],
        "command": ["python", "train.py"],
        "resources": {part: {"cpu": "1", "memory": "2Gi"} for part in ("requests", "limits")},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    return {"nodeSelector": NOWHERE, "securityContext": user, "containers": [worker]}
