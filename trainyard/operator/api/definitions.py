"""The two CustomResourceDefinitions (apiextensions.k8s.io/v1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainyard.operator import names as n
from trainyard.operator.api import job, progress, queue, words
from trainyard.operator.api.fields import Field, Rule, Schema

# Its value is a label of KAI's Queue.
QUEUE_NAME_MAX_LENGTH = 63


def torchrun_queue() -> Schema:
    """The definition of TorchrunQueue."""
    return _definition(
        kind=n.QUEUE_KIND,
        plural=n.QUEUE_PLURAL,
        singular=n.QUEUE_SINGULAR,
        short=n.QUEUE_SHORT,
        about="A queue of trainings: how the TorchrunJobs of its namespace that name it are made.",
        name=words.label_name(QUEUE_NAME_MAX_LENGTH),
        spec=queue.spec(),
        status=queue.status(),
        subresources={"status": {}},
        columns=[
            _column("GPUs", "integer", ".spec.nodeResources.gpus", "GPUs of a node"),
            _column("CPUs", "string", ".spec.nodeResources.cpus", "Processors of a node"),
            _column("Memory", "string", ".spec.nodeResources.memory", "Memory of a node"),
            _column("KAI Queue", "string", ".spec.kaiQueue", "Queue of KAI Scheduler"),
            _column("Ready", "string", '.status.conditions[?(@.type=="Ready")].status', "Whether jobs can start"),
            _column("Active", "integer", ".status.jobs.active", "Jobs that have workers"),
            _column("Pending", "integer", ".status.jobs.pending", "Jobs that wait"),
            _AGE,
            _column("Image", "string", ".spec.image", "Image of the workers", wide=True),
        ],
    )  # fmt: skip


def torchrun_job() -> Schema:
    """The definition of TorchrunJob."""
    return _definition(
        kind=n.JOB_KIND,
        plural=n.JOB_PLURAL,
        singular=n.JOB_SINGULAR,
        short=n.JOB_SHORT,
        about="One training by torchrun, on as many nodes as its GPUs need.",
        name=words.service_name(n.JOB_NAME_MAX_LENGTH),
        spec=job.spec(),
        status=progress.status(),
        subresources={
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.numNodes",
                "statusReplicasPath": ".status.nodes",
                "labelSelectorPath": ".status.selector",
            },
        },
        columns=[
            _column("Queue", "string", ".spec.jobQueue", "The job's TorchrunQueue"),
            _column("Phase", "string", ".status.phase", "Where the job is"),
            _column("Nodes", "integer", ".status.nodes", "Nodes of this attempt"),
            _column("GPUs", "integer", ".spec.numGPUs", "GPUs that were asked for"),
            _column("Step", "integer", ".status.progress.step", "Steps done"),
            _column("Loss", "number", ".status.progress.loss", "Loss of the last step"),
            _column("Restarts", "integer", ".status.restarts", "How often all workers were started anew"),
            _AGE,
            _column("Throughput", "number", ".status.progress.throughput", "Trained in a second", wide=True),
            _column(
                "Checkpoint",
                "integer",
                ".status.progress.checkpointStep",
                "Step of the last checkpoint",
                wide=True,
            ),
            _column("Reason", "string", ".status.reason", "Why the job is in its phase", wide=True),
        ],
    )


def definitions() -> dict[str, Schema]:
    """Both, by the names of their files."""
    return {f"{each['metadata']['name']}.yaml": each for each in (torchrun_queue(), torchrun_job())}


def _definition(
    *,
    kind: str,
    plural: str,
    singular: str,
    short: str,
    about: str,
    name: Rule,
    spec: Field,
    status: Field,
    subresources: Schema,
    columns: Sequence[Schema],
) -> Schema:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{plural}.{n.GROUP}",
            "labels": {"app.kubernetes.io/name": n.CONTROLLER, "app.kubernetes.io/part-of": "trainyard"},
        },
        "spec": {
            "group": n.GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": singular,
                "shortNames": [short],
                "categories": [n.CATEGORY],
            },
            "versions": [
                {
                    "name": n.VERSION,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": _root(about, name, spec, status)},
                    "subresources": subresources,
                    "additionalPrinterColumns": list(columns),
                }
            ],
        },
    }


def _root(about: str, name: Rule, spec: Field, status: Field) -> Schema:
    return {
        "description": about,
        "type": "object",
        "required": ["spec"],
        "x-kubernetes-validations": [name.schema()],
        "properties": {
            "apiVersion": {"type": "string", "description": f"{n.API_VERSION}."},
            "kind": {"type": "string", "description": "The kind of this object."},
            "metadata": dict(words.metadata()),
            "spec": spec.schema(),
            "status": status.schema(),
        },
    }


def _column(name: str, kind: str, path: str, about: str, *, wide: bool = False) -> dict[str, Any]:
    hidden = {"priority": 1} if wide else {}
    return {"name": name, "type": kind, "jsonPath": path, "description": about, **hidden}


_AGE = _column("Age", "date", ".metadata.creationTimestamp", "How long ago it was made")
