"""Build the CustomResourceDefinitions of TorchrunQueue and TorchrunJob, and the page docs/torchrun-fields.md.

The entry points are `definitions` and `reference_page`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from trainyard.operator import names as n
from trainyard.operator.api.fields import FORBIDDEN, Field, JsonObject, Rule
from trainyard.operator.api.job import JOB
from trainyard.operator.api.queue import QUEUE
from trainyard.operator.api.status import JOB_STATUS, QUEUE_STATUS

# The name is the value of a label of KAI's Queue.
QUEUE_NAME_MAX_LENGTH: Final = 63


def definitions() -> dict[str, JsonObject]:
    """Return both definitions by their file names."""
    return {f"{crd['metadata']['name']}.yaml": crd for crd in (torchrun_queue(), torchrun_job())}


def torchrun_queue() -> JsonObject:
    """Return the definition of TorchrunQueue."""
    names = (n.QUEUE_KIND, n.QUEUE_PLURAL, n.QUEUE_SINGULAR, n.QUEUE_SHORT)
    about = "A queue of TorchrunJobs: how its jobs, in the same namespace, are created."
    name = _name_rule(f"^{n.RFC1123_LABEL}$", QUEUE_NAME_MAX_LENGTH, "a letter or digit at both ends")
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
        _column("USD", "number", ".status.cost.usd", "Estimated cost so far, in USD", wide=True),
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


def reference_page() -> str:
    """Return the page with each field of both kinds."""
    return f"""\
# Fields of torchrun queues and jobs

<!-- Written by `make manifests` from trainyard/operator/api; edits here are lost. -->

`{n.API_VERSION}`; both kinds are namespaced. `kubectl explain {n.JOB_SINGULAR}.spec` shows the same. The API server
refuses an invalid value with the field and what it must be. A quantity is one of Kubernetes, above 0.

## {n.QUEUE_KIND}

How jobs are created (`{n.QUEUE_SINGULAR}`, `{n.QUEUE_PLURAL}`, `{n.QUEUE_SHORT}`; category `{n.CATEGORY}`). \
Its name has at most {QUEUE_NAME_MAX_LENGTH} characters.
{"".join(_kind(QUEUE, QUEUE_STATUS))}
## {n.JOB_KIND}

One training (`{n.JOB_SINGULAR}`, `{n.JOB_PLURAL}`, `{n.JOB_SHORT}`; category `{n.CATEGORY}`). Its name has at most \
{n.JOB_NAME_MAX_LENGTH} characters and begins with a letter.
`kubectl scale --replicas` sets `spec.numNodes`; the API server shows the scale only of jobs that have numNodes.
{"".join(_kind(JOB, JOB_STATUS))}"""


def _kind(spec: Field, status: Field) -> Iterator[str]:
    yield "\n### spec\n\n| Field | Type | Default | Unit | Description |\n|---|---|---|---|---|\n"
    for path, field in _below("", spec):
        default = "required" if field.required else field.default_text()
        shown = f"`{default}`" if field.default not in (None, {}) else default
        yield _row(f"`{path}`", field.holds, shown, field.unit, field.description)
    if "overrides" in spec.fields:
        yield _OVERRIDES
    yield "\nRules:\n\n"
    yield from (f"- {rule}\n" for rule in _rules(spec))
    yield "\n### status\n\n| Field | Type | Unit | Description |\n|---|---|---|---|\n"
    for path, field in _below("", status):
        yield _row(f"`{path}`", field.holds, field.unit, field.description)


_OVERRIDES: Final = """
`spec.overrides` has all fields of the queue's `spec` except `parentKaiQueue`. Each is optional and has no default. \
The rules apply there, too, except those that need the complete queue. Some fields need further permissions: \
[torchrun.md](torchrun.md#what-a-job-may-ask-for).
"""


def _below(place: str, parent: Field) -> Iterator[tuple[str, Field]]:
    """Yield each field below with its path, except those of `overrides`, which are fields of the queue."""
    for name, field in parent.fields.items():
        path = f"{place}{name}"
        yield path, field
        if path != "overrides":
            yield from _below(f"{path}.", field)
        if field.item is not None:
            yield from _below(f"{path}[].", field.item)


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _rules(spec: Field) -> Iterator[str]:
    """Yield the rules for several fields. One line names all fields that can't be changed."""
    fixed = [rule.path.removeprefix(".") for rule in spec.rules if rule.reason == FORBIDDEN]
    if fixed:
        yield f"These can't be changed: {', '.join(fixed)}."
    objects = [spec, *(field for path, field in _below("", spec) if path != "overrides")]
    objects += [parent.item for parent in objects if parent.item is not None]
    for parent in objects:
        if parent.fields:
            yield from (f"{rule.message}." for rule in parent.rules if rule.reason != FORBIDDEN)
