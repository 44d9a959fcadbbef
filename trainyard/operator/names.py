"""Names of TorchrunQueues and TorchrunJobs: their API, their objects, phases, conditions and reasons.

In a bucket, archives and logs have a prefix for each namespace, so that IAM can separate teams (docs/queues.md).
KAI's names: github.com/kai-scheduler/KAI-Scheduler v0.17.0, docs/batch/README.md and docs/queues/README.md.
"""

from __future__ import annotations

import re
from typing import Final

from trainyard.k8s import names

GROUP: Final = names.TORCHRUN_GROUP
VERSION: Final = names.TORCHRUN_VERSION
API_VERSION: Final = f"{GROUP}/{VERSION}"
CATEGORY: Final = "torchrun"

QUEUE_KIND: Final = names.TORCHRUN_QUEUE_KIND
QUEUE_SINGULAR: Final = "torchrunqueue"
QUEUE_PLURAL: Final = names.TORCHRUN_QUEUES
QUEUE_SHORT: Final = "tq"

JOB_KIND: Final = "TorchrunJob"
JOB_SINGULAR: Final = "torchrunjob"
JOB_PLURAL: Final = names.TORCHRUN_JOBS
JOB_SHORT: Final = "tj"
# RFC 1123 (https://kubernetes.io/docs/concepts/overview/working-with-objects/names/).
RFC1123_LABEL: Final = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
RFC1123_SUBDOMAIN: Final = rf"{RFC1123_LABEL}(\.{RFC1123_LABEL})*"
# The longest name is that of a pod, <job>-<attempt>-<index>. With the random suffix of the Job controller it must be a
# label of at most 63 characters.
JOB_NAME_MAX_LENGTH: Final = 40

# The controller's own objects, and the manager of the fields that it applies.
CONTROLLER: Final = names.TORCHRUN_CONTROLLER
CONTROLLER_NAMESPACE: Final = names.TORCHRUN_NAMESPACE
FIELD_MANAGER: Final = CONTROLLER
# The liveness probe; the metrics' port is `trainyard.k8s.names.METRICS_PORT`.
LIVENESS_PORT: Final = 8080
LIVENESS_PATH: Final = "/healthz"
QUEUE_FINALIZER: Final = f"{GROUP}/kai-queue"
# The ValidatingAdmissionPolicies, and their bindings.
JOB_POLICY: Final = f"{JOB_PLURAL}.{GROUP}"
QUEUE_POLICY: Final = f"{QUEUE_PLURAL}.{GROUP}"

# The controller's environment: the image of trainyard.workspace, which is its own.
ENV_TOOLS_IMAGE: Final = "TORCHRUN_TOOLS_IMAGE"

# On all objects of a job; users type this short key.
LABEL_JOB: Final = names.TORCHRUN_LABEL_JOB
LABEL_ATTEMPT: Final = f"{GROUP}/attempt"
# On workers: the job's uid, because an earlier job of the name may still have workers.
LABEL_JOB_UID: Final = f"{GROUP}/job-uid"
# On the workers of a Job for one node: Kubernetes counts the pods of each Job from 0.
LABEL_NODE: Final = f"{GROUP}/node"
# Set by Kubernetes on the pods of an Indexed Job.
LABEL_INDEX: Final = "batch.kubernetes.io/job-completion-index"
LABEL_MANAGED_BY: Final = names.LABEL_MANAGED_BY
MANAGED_BY: Final = CONTROLLER
# On a batch/v1 Job: the size and the workspace of the TorchrunJob when it was created.
ANNOTATION_SIZE: Final = f"{GROUP}/size"
ANNOTATION_WORKSPACE: Final = f"{GROUP}/workspace"
# The annotation of a worker's pod with the archive of the job's workspace, as JSON (trainyard/workspace/sync_pod.py:
# Pointer). The controller writes it from the job's spec, and the pod reads it through the downward API. So neither the
# bucket nor another pod selects the code that the worker runs.
ANNOTATION_ARCHIVE: Final = f"{GROUP}/archive"
ARCHIVE_VOLUME: Final = "workspace-archive"
ARCHIVE_DIRECTORY: Final = "/etc/torchrun"
ARCHIVE_FILE: Final = "archive"
# The first process of a worker copies the worker's output to this file, and the sidecar archives it in the bucket.
LOG_VOLUME: Final = "worker-log"
LOG_DIRECTORY: Final = "/var/log/torchrun"
LOG_FILE: Final = f"{LOG_DIRECTORY}/worker.log"
ENV_LOG: Final = "TORCHRUN_LOG"
# The number of batch/v1 Jobs in the attempt.
ANNOTATION_PARTS: Final = f"{GROUP}/parts"
# On a batch/v1 Job, a gang, and a placeholder: a digest of its spec.
ANNOTATION_MADE_OF: Final = f"{GROUP}/made-of"
# The id of a launcher's run has no '.' (launcher/request.py), so it never matches a job's placeholders.
RUN_PREFIX: Final = "torchrun."
# Set by an administrator: the type of a node's GPUs.
LABEL_GPU_TYPE: Final = f"{GROUP}/gpu-type"
# On KAI's Queue, which is cluster-scoped and can't be owned by a TorchrunQueue.
LABEL_QUEUE_NAMESPACE: Final = f"{GROUP}/queue-namespace"
LABEL_QUEUE_NAME: Final = f"{GROUP}/queue-name"

WORKER_CONTAINER: Final = names.TORCHRUN_WORKER_CONTAINER
# In the same pod: the init container unpacks the workspace, and the sidecar updates it.
FETCH_CONTAINER: Final = "workspace"
FOLLOW_CONTAINER: Final = "workspace-sync"
# The sync pod: its container, and where it keeps archives (trainyard/workspace/sync_pod.py).
SYNC_PORT: Final = 8080
SYNC_CONTAINER: Final = "sync"
SYNC_DIRECTORY: Final = "/var/lib/torchrun-sync"
# Before the first worker, a sync pod without an archive ends with this code if it received no byte for this time.
SYNC_ABANDONED_EXIT: Final = 3
SYNC_ABANDONED_SECONDS: Final = 600
# Sync pods avoid nodes of Karpenter, except those with this label: "true" in a NodePool's template.
LABEL_SYNC_PODS: Final = f"{GROUP}/sync-pods"
# Bytes of the largest archive that a sync pod takes.
ENV_SYNC_MOST: Final = "TORCHRUN_SYNC_MOST_BYTES"
TOOLS_WORKSPACE: Final = "/var/lib/torchrun-workspace"
RENDEZVOUS_PORT: Final = 29500

# The worker's environment.
ENV_JOB: Final = "TORCHRUN_JOB"
ENV_ATTEMPT: Final = "TORCHRUN_ATTEMPT"
ENV_BACKEND: Final = "TORCHRUN_BACKEND"
ENV_NODE_RANK: Final = "TORCHRUN_NODE_RANK"
ENV_NCCL_INTERFACE: Final = "NCCL_SOCKET_IFNAME"
ENV_GLOO_INTERFACE: Final = "GLOO_SOCKET_IFNAME"
ENV_THREADS: Final = "OMP_NUM_THREADS"

KAI_SCHEDULER: Final = "kai-scheduler"
KAI_GROUP: Final = "scheduling.run.ai"
KAI_QUEUE_VERSION: Final = "v2"
KAI_QUEUE_PLURAL: Final = "queues"
KAI_POD_GROUP_VERSION: Final = "v2alpha2"
# A PodGroup's stalenessGracePeriod that never evicts a gang after it lost members (kai-scheduler/KAI-Scheduler#1942).
KAI_NEVER_STALE: Final = "-1s"
KAI_POD_GROUP_PLURAL: Final = "podgroups"
# KAI creates it at its installation.
KAI_PARENT_QUEUE: Final = "default-parent-queue"
# The queue of pods without one. KAI creates it at its installation.
KAI_DEFAULT_QUEUE: Final = "default-queue"
LABEL_KAI_QUEUE: Final = "kai.scheduler/queue"
ANNOTATION_SKIP_POD_GROUPER: Final = "kai.scheduler/skip-podgrouper"
ANNOTATION_POD_GROUP: Final = "pod-group-name"
# On workers with metrics, as on the pods of any exporter.
ANNOTATION_SCRAPE: Final = "prometheus.io/scrape"

PHASE_PENDING: Final = "Pending"
PHASE_PROVISIONING: Final = "Provisioning"
PHASE_RUNNING: Final = "Running"
PHASE_RESTARTING: Final = "Restarting"
PHASE_SUSPENDED: Final = "Suspended"
PHASE_SUCCEEDED: Final = "Succeeded"
PHASE_FAILED: Final = "Failed"
PHASES: Final = (
    PHASE_PENDING, PHASE_PROVISIONING, PHASE_RUNNING, PHASE_RESTARTING, PHASE_SUSPENDED, PHASE_SUCCEEDED, PHASE_FAILED,
)  # fmt: skip
# A finished job stays in its phase.
FINAL_PHASES: Final = (PHASE_SUCCEEDED, PHASE_FAILED)
# Phases in which the attempt's Jobs may run. They are never created again.
STARTED_PHASES: Final = (PHASE_PROVISIONING, PHASE_RUNNING)

# Condition types of a job ...
ACCEPTED: Final = "Accepted"
QUEUE_FOUND: Final = "QueueFound"
WORKERS_READY: Final = "WorkersReady"
SUSPENDED: Final = "Suspended"
COMPLETE: Final = "Complete"
FAILED: Final = "Failed"
RENDEZVOUS_SUBSTITUTED: Final = "RendezvousSubstituted"
SCHEDULER_NOT_INSTALLED: Final = "SchedulerNotInstalled"
CAPACITY_AVAILABLE: Final = "CapacityAvailable"
JOB_CONDITIONS: Final = (
    ACCEPTED, QUEUE_FOUND, WORKERS_READY, SUSPENDED, COMPLETE, FAILED, RENDEZVOUS_SUBSTITUTED, SCHEDULER_NOT_INSTALLED,
    CAPACITY_AVAILABLE,
)  # fmt: skip
# ... and of a queue.
READY: Final = "Ready"
POD_TEMPLATE_VALID: Final = "PodTemplateValid"
KAI_QUEUE_READY: Final = "KaiQueueReady"
POOL_READY: Final = "PoolReady"
QUEUE_CONDITIONS: Final = (READY, POD_TEMPLATE_VALID, KAI_QUEUE_READY, POOL_READY)

# The reasons of a waiting job, ...
REASON_QUEUE_NOT_FOUND: Final = "QueueNotFound"
REASON_SCHEDULER_NOT_INSTALLED: Final = "SchedulerNotInstalled"
REASON_QUEUE_INVALID: Final = "QueueInvalid"
REASON_CLAIM_NOT_FOUND: Final = "ClaimNotFound"
REASON_STORAGE_CLASS_NOT_FOUND: Final = "StorageClassNotFound"
REASON_NAME_TAKEN: Final = "NameTaken"
REASON_KAI_QUEUE_NOT_FOUND: Final = "KaiQueueNotFound"
REASON_KAI_QUEUE_LIMIT: Final = "KaiQueueLimit"
REASON_PARENT_QUEUE_NOT_FOUND: Final = "ParentQueueNotFound"
REASON_REFUSED: Final = "Refused"
REASON_POLICY_MISSING: Final = "AdmissionPolicyMissing"
REASON_WAITING_FOR_WORKSPACE: Final = "WaitingForWorkspace"
REASON_WAITING_FOR_NODES: Final = "WaitingForNodes"
REASON_HOLDING_FOR_MORE: Final = "HoldingForMoreNodes"
REASON_INSUFFICIENT_CAPACITY: Final = "InsufficientCapacity"
REASON_CAPACITY_IMPOSSIBLE: Final = "CapacityImpossible"
REASON_POOL_NOT_FOUND: Final = "PoolNotFound"
REASON_POOL_NOT_READY: Final = "PoolNotReady"
REASON_PRIORITY_CLASS_NOT_FOUND: Final = "PriorityClassNotFound"
REASON_PLACEHOLDER_REFUSED: Final = "PlaceholderRefused"
REASON_COUNTED: Final = "Counted"
REASON_STOPPING: Final = "Stopping"
REASON_SUSPENDED: Final = "Suspended"
REASON_SUSPENDED_BY_ANOTHER: Final = "SuspendedByAnother"
REASON_BACKING_OFF: Final = "BackOff"
REASON_STARTING: Final = "Starting"
REASON_RUNNING: Final = "Running"
REASON_WORKER_FAILED: Final = "WorkerFailed"
REASON_RESIZED: Final = "Resized"
REASON_SYNCED: Final = "WorkspaceSynced"
REASON_WORKSPACE_LOST: Final = "WorkspaceLost"
REASON_SUCCEEDED: Final = "Succeeded"
# ... and of a failed one.
REASON_INVALID_SPEC: Final = "InvalidSpec"
REASON_WORKSPACE_NOT_SENT: Final = "WorkspaceNotSent"
REASON_DEADLINE_EXCEEDED: Final = "DeadlineExceeded"
REASON_RESTARTS_USED_UP: Final = "RestartsUsedUp"
REASON_NOT_RESTARTABLE: Final = "NotRestartable"


def attempt_name(job: str, attempt: int) -> str:
    """Return the name of an attempt's batch/v1 Job. Attempts count from 0. The Service has the name of the job."""
    return f"{job}-{attempt}"


def node_job(job: str, attempt: int, node: int) -> str:
    """Return the name of one node's batch/v1 Job if each node has one. The Job of node 0 has the attempt's name.

    The letter separates it from the attempts of a job with the attempt's name.
    """
    return attempt_name(job, attempt) if node == 0 else f"{attempt_name(job, attempt)}-n{node}"


def claim_name(job: str, volume: str, node: int = 0) -> str:
    """Return the name of a job's claim for this volume. A claim that all nodes share has the name for node 0."""
    return f"{job}-{volume}" if node == 0 else f"{job}-{volume}-{node}"


def sync_pod(job: str) -> str:
    """Return the name of the sync pod, which has the archive of a workspace without a bucket."""
    return f"{job}-sync-0"


def hold_pod(job: str, index: int) -> str:
    """Return the name of a placeholder, which reserves a node for a worker. Placeholders count from 0."""
    return f"{job}-hold-{index}"


ATTEMPT: Final = "attempt-"
NODE: Final = "node-"
_ARCHIVE_URL: Final = re.compile(rf"(s3://[^/]+(?:/.*)?)/{names.TORCHRUN_ARCHIVES}/[^/]+/[^/]+")


def workspaces_prefix(where: str, namespace: str) -> str:
    """Return the prefix of a namespace's archives below this bucket and prefix."""
    return f"{where.rstrip('/')}/{names.TORCHRUN_ARCHIVES}/{namespace}"


def logs_prefix(where: str, namespace: str, uid: str) -> str:
    """Return the prefix of the logs of the job with this uid, below this bucket and prefix."""
    return f"{where.rstrip('/')}/{names.TORCHRUN_LOGS}/{namespace}/{uid}"


def log_url(below: str, attempt: int, node: str) -> str:
    """Return the URL of a worker's log, for its attempt and the number of its node."""
    return f"{below}/{ATTEMPT}{attempt}/{NODE}{node}.log"


def archive_prefix(url: str) -> str:
    """Return the bucket and prefix in the URL of an archive from `submit` or `sync`, "" for another URL."""
    found = _ARCHIVE_URL.fullmatch(url)
    return found[1] if found else ""


def sync_pod_url(job: str, namespace: str) -> str:
    """Return where the sync pod of this job answers within the cluster (trainyard/workspace/sync_pod.py)."""
    return f"http://{sync_pod(job)}.{job}.{namespace}.svc:{SYNC_PORT}"
