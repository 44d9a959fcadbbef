"""Define which fields of jobs and queues need further permissions. Pure.

The controller creates pods for all users. So a job or queue must not lead to a pod that its author may not create. The
API server checks these permissions at each write (trainyard/operator/admission.py). The tables list the free fields.
Every other field needs a permission, and so does each new field.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from trainyard.operator import names as n
from trainyard.operator.api.queue import QueueSpec

# Permission to update the queue that the job names.
UPDATE_QUEUE: Final = "update-queue"
# Permission to create pods in the namespace. It gives access to each service account, Secret and claim there.
CREATE_PODS: Final = "create-pods"

_VOLUMES: Final = ("workspace", "datasets", "checkpoints")
# Free fields: code, size, and the worker's own environment. These are paths in a job's spec. A path has no index for
# the entries of a list.
FREE_JOB_FIELDS: Final = frozenset(
    {
        "jobQueue",
        "numGPUs",
        "numNodes",
        "command",
        "launcher",
        "args",
        "env.name",
        "env.value",
        "env.valueFrom.fieldRef",
        "env.valueFrom.resourceFieldRef",
        "workspace.digest",
        "workspace.sizeBytes",
        "workspace.url",
        "workspace.restartOnSync",
        "distributed.backend",
        "distributed.rdzvBackend",
        "distributed.rdzvEndpoint",
        "distributed.port",
        "elastic.minNodes",
        "elastic.maxNodes",
        "suspend",
        "ttlSecondsAfterFinished",
        "activeDeadlineSeconds",
        "restartPolicy",
        "maxRestarts",
        "persistCheckpoints",
        "overrides.image",
        "overrides.workingDir",
        "overrides.nodeResources.gpus",
        "overrides.nodeResources.cpus",
        "overrides.nodeResources.memory",
        "overrides.nodeResources.gpuType",
        "overrides.networking.port",
        "overrides.networking.interface",
        "overrides.jobDefaults.ttlSecondsAfterFinished",
        "overrides.jobDefaults.activeDeadlineSeconds",
        "overrides.jobDefaults.restartPolicy",
        "overrides.jobDefaults.maxRestarts",
        "overrides.storage.shmSizePerGPU",
        *(
            f"overrides.storage.{volume}.{field}"
            for volume in _VOLUMES
            for field in ("enabled", "size", "sizePerGPU", "retain", "mountPath")
        ),
    }
)
# Other fields outside of `overrides` need CREATE_PODS, fields below `overrides` need UPDATE_QUEUE. These fields below
# `overrides` are the exception and need CREATE_PODS.
_POD_OVERRIDES: Final = (
    "overrides.podTemplate",
    *(f"overrides.storage.{volume}.existingClaim" for volume in _VOLUMES),
)
# Changes of only these fields run no new code.
HARMLESS_CHANGES: Final = (
    "numNodes",
    "elastic",
    "suspend",
    "ttlSecondsAfterFinished",
    "activeDeadlineSeconds",
    "restartPolicy",
    "maxRestarts",
)
# Fields of a queue that give its pods access to service accounts, Secrets, claims or the node. The image runs with the
# access of other users' jobs.
RESTRICTED_QUEUE_FIELDS: Final = (
    "image",
    "podTemplate",
    *(f"storage.{volume}.existingClaim" for volume in _VOLUMES),
)
# Domains and names of labels and annotations that Trainyard, the training operator, Karpenter and KAI Scheduler act on.
# The training operator takes pods, and network policies let traffic in, by training.kubeflow.org/job-name. Sources:
# https://karpenter.sh/docs/concepts/scheduling/#well-known-labels, KAI-Scheduler v0.17.0,
# pkg/common/constants/constants.go, and training-operator v1.9, pkg/apis/kubeflow.org/v1/common_types.go.
RESERVED_DOMAINS: Final = (
    "trainyard.dev",
    n.GROUP,
    "training.kubeflow.org",
    "karpenter.sh",
    "karpenter.k8s.aws",
    "kai.scheduler",
    "run.ai",
    "runai",
)
RESERVED_NAMES: Final = (n.ANNOTATION_POD_GROUP, n.LABEL_JOB)
RESERVED_PATTERN: Final = (
    rf"^(([^/]*[.])?({'|'.join(each.replace('.', '[.]') for each in RESERVED_DOMAINS)})/"
    rf"|({'|'.join(RESERVED_NAMES)})$)"
)
_RESERVED: Final = re.compile(RESERVED_PATTERN)


def required_permission(path: str) -> str:
    """Return the permission that a field of a job's spec needs, "" for a free field."""
    if path in FREE_JOB_FIELDS:
        return ""
    below_overrides = path == "overrides" or path.startswith("overrides.")
    pods = any(path == each or path.startswith(f"{each}.") for each in _POD_OVERRIDES)
    return UPDATE_QUEUE if below_overrides and not pods else CREATE_PODS


def contains_free_field(path: str) -> bool:
    """Return whether any field below this path of a job's spec is free."""
    return any(each.startswith(f"{path}.") for each in FREE_JOB_FIELDS)


def restricted_fields(spec: Any) -> tuple[str, ...]:
    """Return the fields in a job's raw spec that are not free."""
    return tuple(sorted(set(_restricted_paths(spec, "")))) if isinstance(spec, Mapping) else ()


def _restricted_paths(values: Mapping[str, Any], above: str) -> Iterator[str]:
    for key, value in values.items():
        path = f"{above}.{key}" if above else str(key)
        if value is None or not required_permission(path):
            continue
        entries = value if isinstance(value, list) else [value]
        if contains_free_field(path) and all(isinstance(each, Mapping) for each in entries):
            for each in entries:
                yield from _restricted_paths(each, path)
        else:
            yield path


def is_reserved(key: str) -> bool:
    """Return whether users must not set a label or annotation with this key."""
    return _RESERVED.match(key) is not None


def check_reserved_keys(metadata: Mapping[str, Mapping[str, str]], place: str) -> list[str]:
    """Return an error message for each reserved key.

    Args:
        metadata: The labels and annotations, by kind.
        place: The field that contains them.
    """
    return [
        f"{place}.{kind}.{key}: reserved for Trainyard and the schedulers and operators of its pods. Use a key of"
        " another domain."
        for kind, values in metadata.items()
        for key in values
        if is_reserved(key)
    ]


# Set on the pods of a Job; one that its template has already is refused with the Job (kubernetes 1.35.4,
# pkg/registry/batch/job/strategy.go: generateSelector, and validateGeneratedSelector in pkg/apis/batch/validation).
JOB_LABELS: Final = (
    "job-name",
    "controller-uid",
    "batch.kubernetes.io/job-name",
    "batch.kubernetes.io/controller-uid",
)
INDEX_LABEL: Final = "batch.kubernetes.io/job-completion-index"
TOOL_CONTAINERS: Final = (n.FETCH_CONTAINER, n.FOLLOW_CONTAINER)
# Fields of a pod's spec that are more than the pod's own here, each with the queue's field that says them: a gang is
# made for one scheduler, with a priority, and who else places pods than Kubernetes' own takes no placeholders' nodes.
SCHEDULING_FIELDS: Final = {
    "schedulerName": "scheduling.scheduler",
    "priorityClassName": "scheduling.priorityClassName",
    "priority": "scheduling.priorityClassName",
}


def check_pod_template(spec: QueueSpec, place: str = "spec", *, workspace: bool = True) -> list[str]:
    """What is to have another name or place, a line for each field; `place` is where the template and its likes are.

    `workspace` is whether what runs may have one, with containers of its own.
    Told of a queue it keeps no job from beginning: one without a workspace, for instance, may have run so.
    """
    metadata = {
        "labels": spec.pod_template.metadata.labels,
        "annotations": spec.pod_template.metadata.annotations,
    }
    reserved = check_reserved_keys(metadata, f"{place}.podTemplate.metadata")
    return [*reserved, *_labels(spec, place), *_scheduling(spec, place), *_containers(spec, place, workspace)]


def _labels(spec: QueueSpec, place: str) -> Iterator[str]:
    labels = f"{place}.podTemplate.metadata.labels"
    for label in spec.pod_template.metadata.labels:
        if label in (*JOB_LABELS, INDEX_LABEL):
            yield f"{labels}.{label} is Kubernetes' own on the pods of a Job; it must be another label, or none"


def _scheduling(spec: QueueSpec, place: str) -> Iterator[str]:
    for key, right in SCHEDULING_FIELDS.items():
        value = spec.pod_template.spec.get(key)
        if value not in (None, ""):
            yield f"{place}.podTemplate.spec.{key} is {json.dumps(value, default=repr)}; it must be {place}.{right}"


def _containers(spec: QueueSpec, place: str, workspace: bool) -> Iterator[str]:
    for index, each in enumerate(spec.pod_template.spec.get("initContainers") or []):
        if workspace and each["name"] in TOOL_CONTAINERS:
            yield (
                f'{place}.podTemplate.spec.initContainers[{index}].name is "{each["name"]}", as a container of jobs '
                "with a workspace is called; it must be another name"
            )
    for index, each in enumerate(spec.pod_template.spec.get("containers") or []):
        if each["name"] != n.WORKER_CONTAINER:
            yield (
                f'{place}.podTemplate.spec.containers[{index}].name is "{each["name"]}", and a container beside the '
                f"worker's, {n.WORKER_CONTAINER}, goes on when that has ended: the pod keeps its node, and the job has "
                "no end; use initContainers with restartPolicy: Always"
            )
