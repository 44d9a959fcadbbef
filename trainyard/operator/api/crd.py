"""Build the CustomResourceDefinitions of TorchrunQueue and TorchrunJob. The entry point is `definitions`."""

from __future__ import annotations

from typing import Any, Final

from trainyard.operator import names as n
from trainyard.operator.api.fields import LABEL, Field, JsonObject, Rule
from trainyard.operator.api.job import JOB
from trainyard.operator.api.queue import QUEUE
from trainyard.operator.api.status import JOB_STATUS, QUEUE_STATUS

# The name is the value of a label of KAI's Queue.
QUEUE_NAME_MAX_LENGTH: Final = 63


def definitions() -> dict[str, JsonObject]:
    """Return both definitions by their file names."""
    return {f"{each['metadata']['name']}.yaml": each for each in (torchrun_queue(), torchrun_job())}


def torchrun_queue() -> JsonObject:
    """Return the definition of TorchrunQueue."""
    names = (n.QUEUE_KIND, n.QUEUE_PLURAL, n.QUEUE_SINGULAR, n.QUEUE_SHORT)
    about = "A queue of TorchrunJobs: how its jobs, in the same namespace, are created."
    name = _name_rule(f"^{LABEL}$", QUEUE_NAME_MAX_LENGTH, "a letter or digit at both ends")
    columns = [
        _column("GPUs", "integer", ".spec.nodeResources.gpus", "GPUs of a node"),
        _column("CPUs", "string", ".spec.nodeResources.cpus", "CPU cores of a node"),
        _column("Memory", "string", ".spec.nodeResources.memory", "Memory of a node"),
        _column("KAI Queue", "string", ".spec.kaiQueue", "Queue of KAI Scheduler"),
        _column("Ready", "string", '.status.conditions[?(@.type=="Ready")].status', "Whether jobs can start"),
        _column("Active", "integer", ".status.jobs.active", "Jobs with workers"),
        _column("Pending", "integer", ".status.jobs.pending", "Jobs that wait"),
        _AGE,
        _column("Image", "string", ".spec.image", "Image of the workers", wide=True),
    ]
    return _definition(names, _root(about, name, QUEUE, QUEUE_STATUS), {"status": {}}, columns)


def torchrun_job() -> JsonObject:
    """Return the definition of TorchrunJob."""
    names = (n.JOB_KIND, n.JOB_PLURAL, n.JOB_SINGULAR, n.JOB_SHORT)
    about = "One training with torchrun, on the nodes that its GPUs need."
    # The name of the job is also that of a Service (RFC 1035), and other names begin with it.
    name = _name_rule(
        "^[a-z]([-a-z0-9]*[a-z0-9])?$", n.JOB_NAME_MAX_LENGTH, "a letter first and no '-' at the end"
    )
    scale = {
        "specReplicasPath": ".spec.numNodes",
        "statusReplicasPath": ".status.nodes",
        "labelSelectorPath": ".status.selector",
    }
    progress = ".status.progress"
    columns = [
        _column("Queue", "string", ".spec.jobQueue", "The job's TorchrunQueue"),
        _column("Phase", "string", ".status.phase", "Phase of the job"),
        _column("Nodes", "integer", ".status.nodes", "Nodes of this attempt"),
        _column("GPUs", "integer", ".spec.numGPUs", "Requested GPUs"),
        _column("Step", "integer", f"{progress}.step", "Completed steps"),
        _column("Loss", "number", f"{progress}.loss", "Loss of the last step"),
        _column("Restarts", "integer", ".status.restarts", "How often all workers restarted after a failure"),
        _AGE,
        _column("Throughput", "number", f"{progress}.throughput", "Throughput for each second", wide=True),
        _column("Checkpoint", "integer", f"{progress}.checkpointStep", "Last complete checkpoint", wide=True),
        _column("Reason", "string", ".status.reason", "Reason for the phase", wide=True),
    ]  # fmt: skip
    return _definition(names, _root(about, name, JOB, JOB_STATUS), {"status": {}, "scale": scale}, columns)


def _name_rule(expression: str, maximum: int, ends: str) -> Rule:
    return Rule(
        cel=f"size(self.metadata.name) <= {maximum} && self.metadata.name.matches({expression!r})",
        message=f"metadata.name must be at most {maximum} lower-case letters, digits and '-', {ends}",
        path=".metadata.name",
    )


def _root(description: str, name: Rule, spec: Field, status: Field) -> JsonObject:
    return {
        "description": description,
        "type": "object",
        "required": ["spec"],
        "x-kubernetes-validations": [name.schema()],
        "properties": {
            "apiVersion": {"type": "string", "description": f"{n.API_VERSION}."},
            "kind": {"type": "string", "description": "The kind of this object."},
            # The only part of the metadata that a definition may describe; the rule refers to it.
            "metadata": {"type": "object", "properties": {"name": {"type": "string"}}},
            "spec": spec.schema(),
            "status": status.schema(),
        },
    }


def _definition(
    names: tuple[str, str, str, str], schema: JsonObject, subresources: JsonObject, columns: list[JsonObject]
) -> JsonObject:
    kind, plural, singular, short = names
    version = {
        "name": n.VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "subresources": subresources,
        "additionalPrinterColumns": columns,
    }
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
            "versions": [version],
        },
    }


def _column(name: str, kind: str, path: str, description: str, *, wide: bool = False) -> dict[str, Any]:
    hidden = {"priority": 1} if wide else {}
    return {"name": name, "type": kind, "jsonPath": path, "description": description, **hidden}


_AGE: Final = _column("Age", "date", ".metadata.creationTimestamp", "Time since the creation")
