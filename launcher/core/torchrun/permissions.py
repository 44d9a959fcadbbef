"""Which fields of a job and of a queue need more than the right to write it. Pure.

The controller makes pods for everybody, so a job or a queue must not make a pod that its author may not make. The API
server asks for these rights when the object is written (launcher/controller/admission.py). The tables list what is
free; every other field needs a right, new ones too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

# The right to update the queue that the job names.
UPDATE_QUEUE: Final = "update-queue"
# The right to create pods in the namespace: who has it can use each service account, Secret and claim there.
CREATE_PODS: Final = "create-pods"

_VOLUMES: Final = ("workspace", "datasets", "checkpoints")
# What a submitter decides: code, size, and the worker's own environment. Paths of a job's spec; the entries of a list
# have the list's path.
FREE_OF_JOB: Final = frozenset(
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
# Fields outside of `overrides` need the right to create pods, those below it the right to update the queue, and of
# these the following the right to create pods instead.
_PODS_OF_OVERRIDES: Final = (
    "overrides.podTemplate",
    *(f"overrides.storage.{volume}.existingClaim" for volume in _VOLUMES),
)
# A change of these alone starts nothing that the job did not run before.
HARMLESS_CHANGES: Final = (
    "numNodes",
    "elastic",
    "suspend",
    "ttlSecondsAfterFinished",
    "activeDeadlineSeconds",
    "restartPolicy",
    "maxRestarts",
)
# Of a queue: what lets its pods use accounts, Secrets, claims or the node itself. The image runs with what the jobs of
# others have.
PODS_OF_QUEUE: Final = ("image", "podTemplate", *(f"storage.{volume}.existingClaim" for volume in _VOLUMES))
# Domains of labels and annotations by which this program, Karpenter and KAI Scheduler decide (the names of both:
# https://karpenter.sh/docs/concepts/scheduling/#well-known-labels, and KAI-Scheduler v0.17.0,
# pkg/common/constants/constants.go), and names without a domain.
RESERVED_DOMAINS: Final = (
    "trainyard.dev",
    "torchrun.ai",
    "karpenter.sh",
    "karpenter.k8s.aws",
    "kai.scheduler",
    "run.ai",
    "runai",
)
RESERVED_NAMES: Final = ("pod-group-name", "torchrun-job-name")
RESERVED_PATTERN: Final = (
    rf"^(([^/]*[.])?({'|'.join(each.replace('.', '[.]') for each in RESERVED_DOMAINS)})/"
    rf"|({'|'.join(RESERVED_NAMES)})$)"
)
_RESERVED: Final = re.compile(RESERVED_PATTERN)


def right_of(path: str) -> str:
    """Return the right that a field of a job's spec needs, "" for one that is free."""
    if path in FREE_OF_JOB:
        return ""
    below_overrides = path == "overrides" or path.startswith("overrides.")
    pods = any(path == each or path.startswith(f"{each}.") for each in _PODS_OF_OVERRIDES)
    return UPDATE_QUEUE if below_overrides and not pods else CREATE_PODS


def leads_to_free(path: str) -> bool:
    """Whether a field below this path of a job's spec is free."""
    return any(each.startswith(f"{path}.") for each in FREE_OF_JOB)


def guarded(spec: Any) -> tuple[str, ...]:
    """Return the fields of a job's raw spec that are not free."""
    return tuple(sorted(set(_guarded(spec, "")))) if isinstance(spec, Mapping) else ()


def _guarded(values: Mapping[str, Any], above: str) -> Iterator[str]:
    for key, value in values.items():
        path = f"{above}.{key}" if above else str(key)
        if value is None or not right_of(path):
            continue
        entries = value if isinstance(value, list) else [value]
        if leads_to_free(path) and all(isinstance(each, Mapping) for each in entries):
            for each in entries:
                yield from _guarded(each, path)
        else:
            yield path


def is_reserved(key: str) -> bool:
    """Whether a label or annotation of this key is not for users' pods."""
    return _RESERVED.match(key) is not None


def reserved(metadata: Mapping[str, Mapping[str, str]], place: str) -> list[str]:
    """Return a line for each reserved key in labels and annotations, given by kind."""
    return [
        f"{place}.{kind}.{key}: reserved for Trainyard, Karpenter and KAI Scheduler. Use a key of another domain."
        for kind, values in metadata.items()
        for key in values
        if is_reserved(key)
    ]
