"""The launcher's Job and its request."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from trainyard.k8s import names

from . import JsonObject, pods
from .pool import Pool, outside_pools_affinity, request


@dataclass(frozen=True, kw_only=True)
class WorkerSize:
    """The resources of one worker on its node. Cores and memory are Kubernetes quantities."""

    processes_per_node: int
    cpu: str
    memory: str
    shared_memory: str


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A pool that a run may use, and the seconds for which it waits for the minimum number of nodes there."""

    pool: Pool
    size: WorkerSize
    capacity_deadline_seconds: int


@dataclass(frozen=True, kw_only=True)
class Run:
    """A training run of the settings; see `infra.settings.Training` for the meaning of the fields.

    The launcher tries `candidates` in their order; there is at least one. `mounts` maps the claims of shared
    volumes to the directories where workers see them; `writes` are the directories there that all workers can write
    to. `revision` is the trainer's revision in git; None if the image contains it. `secrets` maps environment
    variables of the workers to `<Secret>/<key>` of their namespace.
    """

    candidates: tuple[Candidate, ...]
    run_id: str | None
    min_nodes: int
    max_nodes: int
    device: str
    hold_seconds: int
    node_start_seconds: int
    attempts: int
    retry_seconds: int
    max_restarts: int
    shape: str
    backend: str
    active_deadline_seconds: int | None
    data: str
    args: tuple[str, ...]
    env: dict[str, str]
    region: str
    mounts: dict[str, str]
    writes: tuple[str, ...] = ()
    revision: str | None = None
    secrets: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """Values that only exist after images and bucket. `checkpoint_uri` None: the run stores no checkpoints."""

    launcher_image: str
    trainer_image: str
    placeholder_image: str
    model_uri: str
    checkpoint_uri: str | None


def launch_request(run: Run, resolved: Resolved) -> JsonObject:
    """Return the value of TRAINYARD_REQUEST."""
    first, *others = (_candidate(run, resolved, each) for each in run.candidates)
    return {
        **first,
        "fallbacks": others,
        "runId": run.run_id,
        "namespace": names.TRAINING_NAMESPACE,
        "minNodes": run.min_nodes,
        "maxNodes": run.max_nodes,
        "holdSeconds": run.hold_seconds,
        "nodeStartSeconds": run.node_start_seconds,
        "attempts": run.attempts,
        "retrySeconds": run.retry_seconds,
        "maxRestarts": run.max_restarts,
        "shape": run.shape,
        "backend": run.backend,
        "activeDeadlineSeconds": run.active_deadline_seconds,
        "placeholder": {
            "image": resolved.placeholder_image,
            "priorityClassName": names.PLACEHOLDER_PRIORITY_CLASS,
        },
    }


def _candidate(run: Run, resolved: Resolved, candidate: Candidate) -> JsonObject:
    size = candidate.size
    return {
        "pool": request(candidate.pool),
        "capacityDeadlineSeconds": candidate.capacity_deadline_seconds,
        "worker": {
            "image": resolved.trainer_image,
            "serviceAccountName": names.TRAINER_SERVICE_ACCOUNT,
            "priorityClassName": names.WORKER_PRIORITY_CLASS,
            "processesPerNode": size.processes_per_node,
            "cpu": size.cpu,
            "memory": size.memory,
            "sharedMemory": size.shared_memory,
            "env": {
                **run.env,
                names.ENV_DEVICE: run.device,
                names.ENV_MODEL_URI: resolved.model_uri,
                **({names.ENV_CHECKPOINT_URI: resolved.checkpoint_uri} if resolved.checkpoint_uri else {}),
                names.ENV_DATA: run.data,
                names.ENV_METRICS_PORT: str(names.TRAINER_METRICS_PORT),
                names.ENV_REGION: run.region,
                **({names.ENV_REVISION: run.revision} if run.revision else {}),
            },
            **({"secrets": dict(run.secrets)} if run.secrets else {}),
            "args": list(run.args),
            "command": None,
            "mounts": run.mounts,
            "writes": list(run.writes),
        },
    }


def job_spec(run: Run, resolved: Resolved) -> JsonObject:
    """Return the `spec` of the launcher's Job. It has no TTL, because the Job is the record of its run."""
    environment = [
        {"name": names.ENV_MIN_NODES, "value": str(run.min_nodes)},
        {"name": names.ENV_MAX_NODES, "value": str(run.max_nodes)},
        {"name": names.ENV_REQUEST, "value": json.dumps(launch_request(run, resolved), sort_keys=True)},
        _field(names.ENV_POD_NAME, "metadata.name"),
        _field(names.ENV_POD_NAMESPACE, "metadata.namespace"),
        _field(names.ENV_POD_UID, "metadata.uid"),
        _field(names.ENV_JOB_NAME, "metadata.labels['batch.kubernetes.io/job-name']"),
    ]
    container = {
        "name": "launcher",
        "image": resolved.launcher_image,
        "env": environment,
        "ports": [{"name": names.METRICS_PORT_NAME, "containerPort": names.METRICS_PORT, "protocol": "TCP"}],
        "resources": {
            "requests": {"cpu": "100m", "memory": "256Mi"},
            "limits": {"memory": "512Mi"},
        },
        "securityContext": pods.container(),
    }
    return {
        "backoffLimit": names.LAUNCHER_BACKOFF_LIMIT,
        "podFailurePolicy": {
            "rules": [
                {
                    "action": "FailJob",
                    "onExitCodes": {
                        "containerName": "launcher",
                        "operator": "In",
                        "values": list(names.LAUNCHER_FINAL_EXIT_CODES),
                    },
                },
                # The disruption of the pod is no failure of the run.
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
            ]
        },
        "template": {
            "metadata": {
                "labels": labels(run.run_id),
                "annotations": {names.DO_NOT_DISRUPT: "true", **pods.scrape_annotations(names.METRICS_PORT)},
            },
            "spec": {
                "restartPolicy": "Never",
                "serviceAccountName": names.LAUNCHER_SERVICE_ACCOUNT,
                # The launcher waits for nodes of the pools, so it does not run on them.
                "affinity": outside_pools_affinity(),
                "securityContext": pods.pod(),
                "containers": [container],
            },
        },
    }


def labels(run_id: str | None) -> dict[str, str]:
    """Return the labels of the launcher's Job and of its pods."""
    base = {names.LABEL_ROLE: names.ROLE_LAUNCHER}
    return {**base, names.LABEL_RUN: run_id} if run_id else base


def manifest(run: Run, resolved: Resolved) -> str:
    """Return a Job for `kubectl create -f -`. Each creation starts another run, with the name of its Job."""
    nameless = replace(run, run_id=None)
    return json.dumps(
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {
                "generateName": names.LAUNCHER_JOB_PREFIX,
                "namespace": names.TRAINING_NAMESPACE,
                "labels": labels(None),
            },
            "spec": job_spec(nameless, resolved),
        },
        indent=2,
    )


def _field(name: str, path: str) -> JsonObject:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
