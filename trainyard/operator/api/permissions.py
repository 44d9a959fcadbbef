"""Define which fields of jobs and queues need further permissions. Pure.

The controller creates pods for all users. So a job or queue must not result in a pod that its author may not create.
The API server checks these permissions at each write (trainyard/operator/admission.py). The tables list the free
fields. All other fields, including new ones, need a permission.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from trainyard.operator import names as n
from trainyard.operator.api.queue import VOLUMES, PodTemplate

# Permission to update the queue that the job names.
UPDATE_QUEUE: Final = "update-queue"
# Permission to create pods in the namespace. It gives access to each service account, Secret and claim there.
CREATE_PODS: Final = "create-pods"

# Free fields: code, size, and the worker's own environment. These are paths in a job's spec. A path has no index for
# the entries of a list.
_FREE: Final = """
    jobQueue numGPUs numNodes command launcher args
    env.name env.value env.valueFrom.fieldRef env.valueFrom.resourceFieldRef
    workspace.digest workspace.sizeBytes workspace.url workspace.restartOnSync
    distributed.backend distributed.rdzvBackend distributed.rdzvEndpoint distributed.port
    elastic.minNodes elastic.maxNodes suspend
    ttlSecondsAfterFinished activeDeadlineSeconds restartPolicy maxRestarts persistCheckpoints
    overrides.image overrides.workingDir
    overrides.nodeResources.gpus overrides.nodeResources.cpus
    overrides.nodeResources.memory overrides.nodeResources.gpuType
    overrides.networking.port overrides.networking.interface
    overrides.jobDefaults.ttlSecondsAfterFinished overrides.jobDefaults.activeDeadlineSeconds
    overrides.jobDefaults.restartPolicy overrides.jobDefaults.maxRestarts
    overrides.storage.shmSizePerGPU
"""
_FREE_VOLUME_FIELDS: Final = ("enabled", "size", "sizePerGPU", "retain", "mountPath")
FREE_JOB_FIELDS: Final = frozenset(_FREE.split()) | {
    f"overrides.storage.{volume}.{field}" for volume in VOLUMES for field in _FREE_VOLUME_FIELDS
}
# Other fields outside of `overrides` need CREATE_PODS, fields below `overrides` need UPDATE_QUEUE. These fields below
# `overrides` are the exception and need CREATE_PODS.
_POD_OVERRIDES: Final = (
    "overrides.podTemplate",
    *(f"overrides.storage.{volume}.existingClaim" for volume in VOLUMES),
)
# Changes of only these fields run no new code.
HARMLESS_CHANGES: Final = (
    "numNodes", "elastic", "suspend",
    "ttlSecondsAfterFinished", "activeDeadlineSeconds", "restartPolicy", "maxRestarts",
)  # fmt: skip
# Fields of a queue that give its pods access to service accounts, Secrets, claims or the node. The image runs with the
# access of other users' jobs.
RESTRICTED_QUEUE_FIELDS: Final = (
    "image",
    "podTemplate",
    *(f"storage.{volume}.existingClaim" for volume in VOLUMES),
)
# Domains and names of labels and annotations that Trainyard, the training operator, Karpenter and KAI Scheduler act on.
# The training operator takes pods, and network policies let traffic in, by training.kubeflow.org/job-name. Sources:
# https://karpenter.sh/docs/concepts/scheduling/#well-known-labels, KAI-Scheduler v0.17.0,
# pkg/common/constants/constants.go, and training-operator v1.9, pkg/apis/kubeflow.org/v1/common_types.go.
RESERVED_DOMAINS: Final = (
    "trainyard.dev", n.GROUP, "training.kubeflow.org",
    "karpenter.sh", "karpenter.k8s.aws", "kai.scheduler", "run.ai", "runai",
)  # fmt: skip
RESERVED_NAMES: Final = (n.ANNOTATION_POD_GROUP, n.LABEL_JOB)
RESERVED_PATTERN: Final = (
    rf"^(([^/]*[.])?({'|'.join(domain.replace('.', '[.]') for domain in RESERVED_DOMAINS)})/"
    rf"|({'|'.join(RESERVED_NAMES)})$)"
)
_RESERVED: Final = re.compile(RESERVED_PATTERN)


def required_permission(path: str) -> str:
    """Return the permission that a field of a job's spec needs, "" for a free field."""
    if path in FREE_JOB_FIELDS:
        return ""
    below_overrides = path == "overrides" or path.startswith("overrides.")
    pods = any(path == field or path.startswith(f"{field}.") for field in _POD_OVERRIDES)
    return UPDATE_QUEUE if below_overrides and not pods else CREATE_PODS


def contains_free_field(path: str) -> bool:
    """Return whether any field below this path of a job's spec is free."""
    return any(field.startswith(f"{path}.") for field in FREE_JOB_FIELDS)


def restricted_fields(spec: Any, above: str = "") -> tuple[str, ...]:
    """Return the fields in a job's raw spec that are not free. `above` is the path of an object in it."""
    found: set[str] = set()
    for key, value in spec.items() if isinstance(spec, Mapping) else ():
        path = f"{above}.{key}" if above else str(key)
        if value is None or not required_permission(path):
            continue
        entries = value if isinstance(value, list) else [value]
        if contains_free_field(path) and all(isinstance(entry, Mapping) for entry in entries):
            found.update(*(restricted_fields(entry, path) for entry in entries))
        else:
            found.add(path)
    return tuple(sorted(found))


def is_reserved(key: str) -> bool:
    """Return whether users must not set a label or annotation with this key."""
    return _RESERVED.match(key) is not None


# Kubernetes sets these labels on the pods of a Job, and refuses a template with other values (kubernetes 1.35.4,
# pkg/registry/batch/job/strategy.go: generateSelector, and validateGeneratedSelector in pkg/apis/batch/validation).
JOB_LABELS: Final = (
    "job-name", "controller-uid", "batch.kubernetes.io/job-name", "batch.kubernetes.io/controller-uid",
)  # fmt: skip
_INDEX_LABEL: Final = "batch.kubernetes.io/job-completion-index"
_TOOL_CONTAINERS: Final = (n.FETCH_CONTAINER, n.FOLLOW_CONTAINER)
# Fields of a PodSpec that also matter outside of the pod, each with the field of the queue. A gang is created for one
# scheduler and priority, and only the default scheduler can give the nodes of placeholders to workers.
_SCHEDULING_FIELDS: Final = {
    "schedulerName": "scheduling.scheduler",
    "priorityClassName": "scheduling.priorityClassName",
    "priority": "scheduling.priorityClassName",
}


def check_pod_template(template: PodTemplate, path: str = "spec", *, workspace: bool = True) -> list[str]:
    """Return an error for each name, label and field of a pod template that the controller sets itself.

    The status of the queue shows these errors. They do not stop its jobs, because a job without a workspace can run.
    `path` is the object that contains the pod template. With `workspace`, the pods may have its containers.
    """
    place = f"{path}.podTemplate"
    metadata = {"labels": template.metadata.labels, "annotations": template.metadata.annotations}
    errors = [
        f"{place}.metadata.{kind}.{key}: reserved for Trainyard and the schedulers and operators of its pods. Use a key"
        " of another domain."
        for kind, values in metadata.items()
        for key in values
        if is_reserved(key)
    ]
    errors += [
        f"{place}.metadata.labels.{label}: Kubernetes sets this label on the pods of a Job. Remove it."
        for label in template.metadata.labels
        if label in (*JOB_LABELS, _INDEX_LABEL)
    ]
    errors += [
        f"{place}.spec.{key} is {json.dumps(value, default=repr)}; it must be {path}.{field}"
        for key, field in _SCHEDULING_FIELDS.items()
        if (value := template.spec.get(key)) not in (None, "")
    ]
    errors += [
        f'{place}.spec.initContainers[{index}].name is "{container["name"]}", the name of a container of jobs with a '
        "workspace; it must be another name"
        for index, container in enumerate(template.spec.get("initContainers") or [])
        if workspace and container["name"] in _TOOL_CONTAINERS
    ]
    errors += [
        f'{place}.spec.containers[{index}].name is "{container["name"]}": a container beside {n.WORKER_CONTAINER} '
        "continues when the worker has ended, so the job never ends. Use initContainers with restartPolicy: Always."
        for index, container in enumerate(template.spec.get("containers") or [])
        if container["name"] != n.WORKER_CONTAINER
    ]
    return errors
