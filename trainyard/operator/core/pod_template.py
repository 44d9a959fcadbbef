"""What a podTemplate leaves to others: names, labels and fields that its workers have from elsewhere. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

from trainyard.operator.core import names as n
from trainyard.operator.core import permissions
from trainyard.operator.core.queue_spec import QueueSpec

# Set on the pods of a Job; one that its template has already is refused with the Job (kubernetes 1.35.4,
# pkg/registry/batch/job/strategy.go: generateSelector, and validateGeneratedSelector in pkg/apis/batch/validation).
JOB_LABELS: Final = (
    "job-name",
    "controller-uid",
    "batch.kubernetes.io/job-name",
    "batch.kubernetes.io/controller-uid",
)
INDEX_LABEL: Final = "batch.kubernetes.io/job-completion-index"
TOOLS: Final = (n.FETCH_CONTAINER, n.FOLLOW_CONTAINER)
# Fields of a pod's spec that are more than the pod's own here, each with the queue's field that says them: a gang is
# made for one scheduler, with a priority, and who else places pods than Kubernetes' own takes no placeholders' nodes.
SCHEDULING: Final = {
    "schedulerName": "scheduling.scheduler",
    "priorityClassName": "scheduling.priorityClassName",
    "priority": "scheduling.priorityClassName",
}


def taken(spec: QueueSpec, place: str = "spec", *, workspace: bool = True) -> list[str]:
    """What is to have another name or place, a line for each field; `place` is where the template and its likes are.

    `workspace` is whether what runs may have one, with containers of its own.
    Told of a queue it keeps no job from beginning: one without a workspace, for instance, may have run so.
    """
    metadata = {"labels": spec.template_labels, "annotations": spec.template_annotations}
    reserved = permissions.check_reserved_keys(metadata, f"{place}.podTemplate.metadata")
    return [*reserved, *_labels(spec, place), *_scheduling(spec, place), *_containers(spec, place, workspace)]


def _labels(spec: QueueSpec, place: str) -> Iterator[str]:
    labels = f"{place}.podTemplate.metadata.labels"
    for label in spec.template_labels:
        if label in (*JOB_LABELS, INDEX_LABEL):
            yield f"{labels}.{label} is Kubernetes' own on the pods of a Job; it must be another label, or none"


def _scheduling(spec: QueueSpec, place: str) -> Iterator[str]:
    for key, right in SCHEDULING.items():
        value = spec.template_spec.get(key)
        if value not in (None, ""):
            yield f"{place}.podTemplate.spec.{key} is {json.dumps(value, default=repr)}; it must be {place}.{right}"


def _containers(spec: QueueSpec, place: str, workspace: bool) -> Iterator[str]:
    for index, each in enumerate(spec.template_spec.get("initContainers") or []):
        if workspace and each["name"] in TOOLS:
            yield (
                f'{place}.podTemplate.spec.initContainers[{index}].name is "{each["name"]}", as a container of jobs '
                "with a workspace is called; it must be another name"
            )
    for index, each in enumerate(spec.template_spec.get("containers") or []):
        if each["name"] != n.WORKER_CONTAINER:
            yield (
                f'{place}.podTemplate.spec.containers[{index}].name is "{each["name"]}", and a container beside the '
                f"worker's, {n.WORKER_CONTAINER}, goes on when that has ended: the pod keeps its node, and the job has "
                "no end; use initContainers with restartPolicy: Always"
            )
