"""Names that the launcher shares with the program, the trainer and the cluster.

The same values stand in `contract.yaml` at the root of the repository; a test compares the two.
"""

from __future__ import annotations

from typing import Final

TRAINING_NAMESPACE: Final = "training"
CLUSTER_EVENTS_NAMESPACE: Final = "default"

LAUNCHER_JOB_PREFIX: Final = "launch-"
TRAINING_JOB_PREFIX: Final = "train-"
PLACEHOLDER_PREFIX: Final = "hold-"
# Services of the training operator are named <training job>-worker-<i> and may have 63 characters.
RUN_ID_MAX_LENGTH: Final = 40
TRAINING_CONTAINER: Final = "pytorch"

LABEL_RUN: Final = "trainyard.dev/run"
LABEL_ROLE: Final = "trainyard.dev/role"
LABEL_POOL: Final = "trainyard.dev/pool"
# On placeholders: "<attempt>-<candidate>", and "-<restart>" in a restart's wait, so that one of another wait is never
# taken for one of this.
LABEL_ATTEMPT: Final = "trainyard.dev/attempt"
LABEL_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
MANAGED_BY: Final = "trainyard-launcher"
ROLE_LAUNCHER: Final = "launcher"
ROLE_PLACEHOLDER: Final = "placeholder"
ROLE_WORKER: Final = "worker"

ANNOTATION_NODES: Final = "trainyard.dev/nodes"
ANNOTATION_REASON: Final = "trainyard.dev/reason"
# On the PyTorchJob: how many trainings of the run came before this one.
ANNOTATION_RESTART: Final = "trainyard.dev/restart"
# On the run's Lease: how far the run is, as JSON (launcher/progress.py).
ANNOTATION_ATTEMPT: Final = "trainyard.dev/attempt"
SHAPE_STATIC: Final = "static"
SHAPE_ELASTIC: Final = "elastic"

DO_NOT_DISRUPT: Final = "karpenter.sh/do-not-disrupt"

LABEL_NODEPOOL: Final = "karpenter.sh/nodepool"
LABEL_INITIALIZED: Final = "karpenter.sh/initialized"
LABEL_INSTANCE_TYPE: Final = "node.kubernetes.io/instance-type"
LABEL_ZONE: Final = "topology.kubernetes.io/zone"
LABEL_CAPACITY_TYPE: Final = "karpenter.sh/capacity-type"
# Set by the training operator on the pods of a PyTorchJob.
LABEL_JOB_NAME: Final = "training.kubeflow.org/job-name"
# The same name under the key that people type: `kubectl logs -l pytorch-job-name=...`.
LABEL_TRAINING_JOB: Final = "pytorch-job-name"
ANNOTATION_NODE_RESOURCES: Final = "trainyard.dev/node-resources"
EFA_RESOURCE: Final = "vpc.amazonaws.com/efa"

PLACEHOLDER_PRIORITY_CLASS: Final = "trainyard-placeholder"
WARM_PRIORITY_CLASS: Final = "trainyard-warm"

POD_USER: Final = 10001

METRICS_PORT: Final = 9464
METRICS_PATH: Final = "/metrics"
# The label of namespaces whose pods may read metrics.
LABEL_SCRAPER: Final = "trainyard.dev/metrics"
SCRAPER: Final = "enabled"
ENV_TRAINER_METRICS_PORT: Final = "TRAINYARD_METRICS_PORT"
TRAINER_METRICS_PORT_NAME: Final = "metrics"
TRAINER_METRICS_PATH: Final = "/metrics"
TRAINER_METRICS_PORT: Final = 9465
TRAINER_PROGRESS: Final = {
    "step": "trainyard_trainer_step",
    "loss": "trainyard_trainer_loss",
    "samplesPerSecond": "trainyard_trainer_samples_per_second",
    "tokensPerSecond": "trainyard_trainer_tokens_per_second",
    "checkpointStep": "trainyard_trainer_checkpoint_last_step",
    "checkpointTime": "trainyard_trainer_checkpoint_last_timestamp_seconds",
}

LEASE_SECONDS: Final = 15
LEASE_RENEW_SECONDS: Final = 5

ENV_REQUEST: Final = "TRAINYARD_REQUEST"
ENV_MIN_NODES: Final = "MIN_NODES"
ENV_MAX_NODES: Final = "MAX_NODES"
ENV_POD_NAME: Final = "POD_NAME"
ENV_POD_NAMESPACE: Final = "POD_NAMESPACE"
ENV_POD_UID: Final = "POD_UID"
ENV_JOB_NAME: Final = "JOB_NAME"

ENV_EXPECTED_NODES: Final = "TRAINYARD_EXPECTED_NODES"
ENV_PROCESSES_PER_NODE: Final = "TRAINYARD_PROCESSES_PER_NODE"
ENV_RUN_ID: Final = "TRAINYARD_RUN_ID"
ENV_RESTART: Final = "TRAINYARD_RESTART"
ENV_DEVICE: Final = "TRAINYARD_DEVICE"

EXIT_SUCCEEDED: Final = 0
EXIT_BAD_REQUEST: Final = 2
EXIT_BELOW_MINIMUM: Final = 10
EXIT_IMPOSSIBLE: Final = 11
EXIT_TRAINING_FAILED: Final = 12
EXIT_API_ERROR: Final = 13
EXIT_STOPPED: Final = 14
EXIT_ALREADY_RUNNING: Final = 15

# Exit codes of a worker that a restart heals not: wrong settings, another world than promised, a command that can't be
# run or isn't there.
WORKER_FINAL_EXIT_CODES: Final = (2, 20, 126, 127)
SHUTDOWN_VARIABLE: Final = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
SHUTDOWN_SECONDS: Final = 30
SHUTDOWN_MOST_SECONDS: Final = 540
SHUTDOWN_SPARE_SECONDS: Final = 15
# Those of the trainer that say by themselves what became of it.
WORKER_EXIT_STOPPED: Final = 24
WORKER_EXIT_HUNG: Final = 25

STATE_WAITING: Final = "waiting"
STATE_HOLDING: Final = "holding"
STATE_PAUSING: Final = "pausing"
STATE_SUBMITTING: Final = "submitting"
STATE_FOLLOWING: Final = "following"
STATE_SUSPENDED: Final = "suspended"
STATE_RESTARTING: Final = "restarting"
STATE_SUCCEEDED: Final = "succeeded"
STATE_FAILED: Final = "failed"
