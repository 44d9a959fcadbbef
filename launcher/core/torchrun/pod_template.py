"""What a queue's podTemplate leaves to others: names and labels that its workers have from elsewhere. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from launcher.core.torchrun import names as n
from launcher.core.torchrun.queue_spec import QueueSpec

# Set on the pods of a Job; one that its template has already is refused with the Job (kubernetes 1.35.4,
# pkg/registry/batch/job/strategy.go: generateSelector, and validateGeneratedSelector in pkg/apis/batch/validation).
JOB_LABELS: Final = (
    "job-name",
    "controller-uid",
    "batch.kubernetes.io/job-name",
    "batch.kubernetes.io/controller-uid",
)
WORKER_LABELS: Final = (n.LABEL_JOB, n.LABEL_JOB_UID, n.LABEL_ATTEMPT, n.LABEL_NODE)
INDEX_LABEL: Final = "batch.kubernetes.io/job-completion-index"
TOOLS: Final = (n.FETCH_CONTAINER, n.FOLLOW_CONTAINER)


def taken(spec: QueueSpec) -> list[str]:
    """What is to have another name, a line for each field.

    It is told of the queue and keeps no job from beginning: one without a workspace, for instance, may have run so.
    """
    return [*_labels(spec), *_containers(spec)]


def _labels(spec: QueueSpec) -> Iterator[str]:
    place = "spec.podTemplate.metadata.labels"
    for label in spec.template_labels:
        if label in (*JOB_LABELS, INDEX_LABEL):
            yield f"{place}.{label} is Kubernetes' own on the pods of a Job; right would be another label, or none"
        elif label in WORKER_LABELS:
            yield f"{place}.{label} is the controller's own; right would be another label, or none"


def _containers(spec: QueueSpec) -> Iterator[str]:
    for key in ("initContainers", "containers"):
        for index, each in enumerate(spec.template_spec.get(key) or []):
            if each["name"] in TOOLS:
                yield (
                    f'spec.podTemplate.spec.{key}[{index}].name is "{each["name"]}", as a container of jobs with a '
                    "workspace is called; right would be another name"
                )
