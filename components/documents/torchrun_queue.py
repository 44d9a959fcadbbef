"""The TorchrunQueue for a pool and its settings.

The names of its fields are those of crd/torchrunqueues.torchrun.ai.yaml; docs/torchrun-fields.md documents
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from trainyard.k8s import names

from . import JsonObject, lustre, pods
from .pool import GPU, Pool

WORKSPACE: Final = "workspace"
DATASETS: Final = "datasets"
CHECKPOINTS: Final = "checkpoints"
# The init container that opens the stack's file system to workers.
OPENING: Final = "open-volumes"
# Workspaces and logs in a bucket have one prefix per kind, with one prefix per namespace below it.
BUCKET_PREFIX: Final = "torchrun"
WORKSPACES_PREFIX: Final = f"{BUCKET_PREFIX}/{names.TORCHRUN_ARCHIVES}"
LOGS_PREFIX: Final = f"{BUCKET_PREFIX}/{names.TORCHRUN_LOGS}"


@dataclass(frozen=True, kw_only=True)
class Volume:
    """A volume of each job: of `size`, or of `size_per_gpu` for each GPU, or an existing claim."""

    size: str | None = None
    size_per_gpu: str | None = None
    storage_class: str | None = None
    existing_claim: str | None = None
    retain: bool = False


@dataclass(frozen=True, kw_only=True)
class JobDefaults:
    """Defaults of jobs. Times are in seconds. None: a finished job is kept, or there is no limit."""

    time_to_live: int | None = None
    deadline: int | None = None
    restart_policy: str = "OnFailure"
    max_restarts: int = 3


@dataclass(frozen=True, kw_only=True)
class Queue:
    """A queue whose jobs run on nodes of one pool.

    `gpus`, `cpus` and `memory` are the resources of a worker: a number of NVIDIA GPUs, and Kubernetes quantities.
    Without an `image`, jobs use the stack's trainer; without a `service_account`, the namespace's default one.
    Workspaces go through the stack's bucket with `own_bucket`, else through `bucket`, or without one through a pod of
    the job. `volumes` are by name (`WORKSPACE`, `DATASETS`, `CHECKPOINTS`).
    """

    name: str
    namespace: str
    pool: Pool
    gpus: int
    cpus: str
    memory: str
    image: str | None
    service_account: str | None
    own_bucket: bool
    bucket: str | None
    volumes: Mapping[str, Volume]
    shared_memory_per_gpu: str
    priority_class: str | None
    job_defaults: JobDefaults

    @property
    def fetches(self) -> bool:
        """Return whether its workers download their workspace from a bucket."""
        return self.own_bucket or self.bucket is not None


@dataclass(frozen=True, kw_only=True)
class QueueContext:
    """Values of the other components. Those of type Any may be outputs of other resources.

    `trainer_image` is the stack's; `workspaces` and `model_uri` are the places of workspaces and models in its
    bucket. `mounts` maps claims of shared volumes in the training namespace to the directories where training pods
    see them, and `writes` are the directories there that all pods can write to. `tools_image` has a shell.
    """

    trainer_image: Any
    tools_image: Any
    workspaces: Any
    model_uri: Any
    region: str
    mounts: Mapping[str, str] = field(default_factory=dict)
    writes: tuple[str, ...] = ()


def spec(queue: Queue, context: QueueContext) -> JsonObject:
    """Return the `spec` of the TorchrunQueue."""
    return {
        "nodeResources": {"gpus": queue.gpus, "cpus": queue.cpus, "memory": queue.memory},
        "image": queue.image or context.trainer_image,
        "podTemplate": _template(queue, context),
        "storage": _storage(queue, context.workspaces),
        "scheduling": {
            "pool": queue.pool.name,
            "tolerations": queue.pool.tolerations,
            **({"priorityClassName": queue.priority_class} if queue.priority_class else {}),
        },
        "jobDefaults": _job_defaults(queue.job_defaults),
    }


def devices(queue: Queue) -> dict[str, str]:
    """Return what a worker requests in addition to cores, memory and NVIDIA GPUs, which the controller requests itself.

    Only workers with a whole node get EFA interfaces. Otherwise a worker with a part of the GPUs, or without one,
    would block the node. A worker gets all other accelerators, which the controller does not divide.
    """
    pool, requested = queue.pool, {}
    if pool.accelerators and pool.resource != GPU:
        requested[pool.resource] = str(pool.accelerators)
    if pool.efa and queue.gpus == (pool.accelerators if pool.resource == GPU else 0):
        requested[names.EFA_RESOURCE] = str(pool.efa)
    return requested


def _template(queue: Queue, context: QueueContext) -> JsonObject:
    """Return the pod template of workers: the restricted standard, devices, and the stack's volumes and variables."""
    mounts = context.mounts if queue.namespace == names.TRAINING_NAMESPACE else {}
    own_image = queue.image is None
    requested = devices(queue)
    env: JsonObject = {
        names.ENV_REGION: context.region,
        **(_for_the_trainer(queue, context) if own_image else {}),
    }
    if names.EFA_RESOURCE in requested:
        # As launchers set it for their workers: no type offers huge pages to Karpenter.
        env["FI_EFA_USE_HUGE_PAGE"] = "0"
    container: JsonObject = {
        "name": names.TORCHRUN_WORKER_CONTAINER,
        "env": [{"name": name, "value": value} for name, value in env.items()],
        # Users' code can write anywhere: the root file system is not read-only.
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        **({"resources": {"requests": dict(requested), "limits": dict(requested)}} if requested else {}),
    }
    volumes: JsonObject = {}
    if mounts:
        container["volumeMounts"] = [{"name": claim, "mountPath": path} for claim, path in mounts.items()]
        volumes = {
            "initContainers": [_opening(context, mounts, index) for index in range(len(context.writes))],
            "volumes": [{"name": claim, "persistentVolumeClaim": {"claimName": claim}} for claim in mounts],
        }
    pod: JsonObject = {
        "automountServiceAccountToken": False,
        **({"serviceAccountName": queue.service_account} if queue.service_account else {}),
        # Volumes that a driver creates belong to root without `fsGroup`.
        "securityContext": {**pods.pod(), "fsGroup": names.POD_USER},
        "containers": [container],
        **volumes,
    }
    if not own_image:
        return {"spec": pod}
    # The controller reads the progress of a job from the trainer's metrics.
    return {"metadata": {"annotations": pods.scrape_annotations(names.TRAINER_METRICS_PORT)}, "spec": pod}


def _opening(context: QueueContext, mounts: Mapping[str, str], index: int) -> JsonObject:
    """Return the init container that opens a directory, as launchers have it: a new file system belongs to root."""
    place = context.writes[index]
    claim = next(name for name, path in mounts.items() if f"{place}/".startswith(f"{path}/"))
    name = f"{OPENING}-{index}" if index else OPENING
    return lustre.opening(name, context.tools_image, claim, mounts[claim], place)


def _for_the_trainer(queue: Queue, context: QueueContext) -> JsonObject:
    """Return variables of this repository's trainer. The controller adds the run's id and the number of nodes."""
    return {
        names.ENV_DEVICE: "cuda" if queue.gpus else "cpu",
        names.ENV_MODEL_URI: context.model_uri,
        names.ENV_METRICS_PORT: str(names.TRAINER_METRICS_PORT),
    }


def workspaces(bucket: str) -> str:
    """Return the place of workspaces in a bucket."""
    return f"s3://{bucket}/{BUCKET_PREFIX}"


def _storage(queue: Queue, own: Any) -> JsonObject:
    result: JsonObject = {name: _volume(volume) for name, volume in queue.volumes.items()}
    if queue.fetches:
        place = own if queue.bucket is None else workspaces(queue.bucket)
        result[WORKSPACE] = {**result.get(WORKSPACE, {}), "bucket": place}
    return {**result, "shmSizePerGPU": queue.shared_memory_per_gpu}


def _volume(volume: Volume) -> JsonObject:
    return {
        "enabled": True,
        **_without_none(
            {
                "size": volume.size,
                "sizePerGPU": volume.size_per_gpu,
                "storageClass": volume.storage_class,
                "existingClaim": volume.existing_claim,
                "retain": volume.retain or None,
            }
        ),
    }


def _without_none(fields: JsonObject) -> JsonObject:
    return {key: value for key, value in fields.items() if value is not None}


def _job_defaults(defaults: JobDefaults) -> JsonObject:
    return _without_none(
        {
            "ttlSecondsAfterFinished": defaults.time_to_live,
            "activeDeadlineSeconds": defaults.deadline,
            "restartPolicy": defaults.restart_policy,
            "maxRestarts": defaults.max_restarts,
        }
    )
