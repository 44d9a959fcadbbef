"""Names that the program shares with the launcher and the trainer; `contract.yaml` states them for all sides."""

from __future__ import annotations

from typing import Final

TRAINING_NAMESPACE: Final = "training"
OPERATOR_NAMESPACE: Final = "kubeflow"
KARPENTER_NAMESPACE: Final = "kube-system"
DEVICE_PLUGIN_NAMESPACE: Final = "device-plugins"
CLUSTER_EVENTS_NAMESPACE: Final = "default"

LAUNCHER_JOB_PREFIX: Final = "launch-"
TRAINING_JOB_PREFIX: Final = "train-"
NODE_CHECK_PREFIX: Final = "check-"
RUN_ID_MAX_LENGTH: Final = 40
LAUNCHER_SERVICE_ACCOUNT: Final = "launcher"
TRAINER_SERVICE_ACCOUNT: Final = "trainer"

LABEL_RUN: Final = "trainyard.dev/run"
LABEL_ROLE: Final = "trainyard.dev/role"
LABEL_POOL: Final = "trainyard.dev/pool"
ROLE_LAUNCHER: Final = "launcher"
ROLE_WORKER: Final = "worker"
ROLE_WARM: Final = "warm"
ROLE_CHECK: Final = "check"
ROLE_PROOF: Final = "lustre-proof"
ANNOTATION_NODE_RESOURCES: Final = "trainyard.dev/node-resources"
DO_NOT_DISRUPT: Final = "karpenter.sh/do-not-disrupt"
LABEL_NODEPOOL: Final = "karpenter.sh/nodepool"
LABEL_INITIALIZED: Final = "karpenter.sh/initialized"

TORCHRUN_GROUP: Final = "torchrun.ai"
TORCHRUN_VERSION: Final = "v1alpha1"
TORCHRUN_QUEUE_KIND: Final = "TorchrunQueue"
TORCHRUN_QUEUES: Final = "torchrunqueues"
TORCHRUN_JOBS: Final = "torchrunjobs"
TORCHRUN_NAMESPACE: Final = "torchrun-system"
TORCHRUN_CONTROLLER: Final = "torchrun-controller"
TORCHRUN_LABEL_JOB: Final = "torchrun-job-name"
"""On everything that is made for a TorchrunJob."""
TORCHRUN_WORKER_CONTAINER: Final = "torchrun"
TORCHRUN_ARCHIVES: Final = "workspaces"
"""In a bucket of workspaces, below its prefix: <this>/<namespace>/<digest>.tar.zst"""
TORCHRUN_LOGS: Final = "logs"
"""Workers' logs in this bucket: <this>/<namespace>/<uid of the job>/attempt-<number>/node-<number>.log"""

WORKER_PRIORITY_CLASS: Final = "trainyard-worker"
WORKER_PRIORITY: Final = 0
PLACEHOLDER_PRIORITY_CLASS: Final = "trainyard-placeholder"
PLACEHOLDER_PRIORITY: Final = -100
WARM_PRIORITY_CLASS: Final = "trainyard-warm"
WARM_PRIORITY: Final = -200

TAKEN_BACK_SECONDS: Final = 2400
TAKEN_BACK_SECONDS_ULTRASERVER: Final = 4200
"""How long before a capacity block's end a run has to be over: Karpenter then begins to drain the machines, 10 minutes
before EC2 ends them (https://karpenter.sh/docs/tasks/odcrs/)."""

POD_USER: Final = 10001
"""User and group of launcher, placeholder and worker pods."""

ENV_REQUEST: Final = "TRAINYARD_REQUEST"
ENV_MIN_NODES: Final = "MIN_NODES"
ENV_MAX_NODES: Final = "MAX_NODES"
ENV_POD_NAME: Final = "POD_NAME"
ENV_POD_NAMESPACE: Final = "POD_NAMESPACE"
ENV_POD_UID: Final = "POD_UID"
ENV_JOB_NAME: Final = "JOB_NAME"
ENV_DEVICE: Final = "TRAINYARD_DEVICE"
ENV_MODEL_URI: Final = "TRAINYARD_MODEL_URI"
ENV_CHECKPOINT_URI: Final = "TRAINYARD_CHECKPOINT_URI"
ENV_DATA: Final = "TRAINYARD_DATA"
ENV_METRICS_PORT: Final = "TRAINYARD_METRICS_PORT"
ENV_REGION: Final = "AWS_REGION"
ENV_REVISION: Final = "TRAINYARD_REVISION"
ENV_NODE_CHECK: Final = "TRAINYARD_NODE_CHECK"
ENV_NODE: Final = "TRAINYARD_NODE"

METRICS_PORT: Final = 9464
METRICS_PORT_NAME: Final = "metrics"
METRICS_PATH: Final = "/metrics"
TRAINER_METRICS_PORT: Final = 9465
LABEL_SCRAPER: Final = "trainyard.dev/metrics"
"""On a namespace whose pods may read the metrics of launchers and trainings, with the value `SCRAPER`."""
SCRAPER: Final = "enabled"

TRAINER_OPTIONS: Final = (
    "--epochs",
    "--steps",
    "--batch-size",
    "--micro-batch-size",
    "--data",
    "--model",
    "--sequence-length",
    "--learning-rate",
    "--warmup-steps",
    "--weight-decay",
    "--gradient-clip",
    "--seed",
    "--precision",
    "--compile",
    "--parallel",
    "--bucket-megabytes",
    "--log-every",
    "--evaluate-every",
    "--metrics-directory",
    "--metrics-port",
    "--checkpoint-uri",
    "--checkpoint-every",
    "--checkpoint-keep",
    "--owner",
    "--notice-file",
    "--timeout-seconds",
    "--start-timeout-seconds",
    "--device",
    "--model-uri",
    "--run-id",
    "--expected-nodes",
    "--processes-per-node",
    "--restart",
)
"""Options of the trainer in this repository, each with a value behind it."""

LAUNCHER_FINAL_EXIT_CODES: Final = (2, 10, 11, 12)
"""Exit codes of the launcher after which another pod of its Job would end the same way."""
SHUTDOWN_VARIABLE: Final = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
SHUTDOWN_MOST_SECONDS: Final = 540
"""The workers' variable for how many seconds torchrun leaves its processes after SIGTERM, and its most."""
LAUNCHER_BACKOFF_LIMIT: Final = 3
