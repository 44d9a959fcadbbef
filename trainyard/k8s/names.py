"""Names that several parts of Trainyard share.

The program, the launcher, the operator, the plugin, the command line and the local cloud import this module. The
trainer's image has no other package, so `trainer/contract.py` repeats what the trainer needs, and a test compares the
two. The module imports nothing but `typing`, so that every package may import it. The names that only the operator and
the plugin use are in `trainyard/operator/names.py`.
"""

from __future__ import annotations

from typing import Final

# Namespaces.
TRAINING_NAMESPACE: Final = "training"  # launcher Jobs, placeholder pods, PyTorchJobs
OPERATOR_NAMESPACE: Final = "kubeflow"  # the training operator
TRAINER_NAMESPACE: Final = "kubeflow-system"  # Kubeflow Trainer and JobSet
KARPENTER_NAMESPACE: Final = "kube-system"  # Karpenter and the other add-ons
DEVICE_PLUGIN_NAMESPACE: Final = "device-plugins"  # the device plugins for GPUs, EFA and Neuron
# Kubernetes keeps the Events of cluster-scoped objects (NodeClaims, NodePools) here.
CLUSTER_EVENTS_NAMESPACE: Final = "default"

# Objects of a run. <run> is the run's id, a DNS label.
LAUNCHER_JOB_PREFIX: Final = "launch-"  # + <run>; the Lease of the run's launcher has the same name
TRAINING_JOB_PREFIX: Final = "train-"  # + <run>; its pods are <this>-master-0 and <this>-worker-<index>
PLACEHOLDER_PREFIX: Final = "hold-"  # + <run>-<index>
NODE_CHECK_PREFIX: Final = "check-"  # + <pool>: the suspended CronJob that checks the nodes of a pool
FABRIC_CHECK_PREFIX: Final = "fabric-"  # + <pool>: the suspended CronJob that checks the network of a pool
FABRIC_CHECK_SERVICE: Final = "fabric-check"  # the headless Service of its pods
# Services of the training operator are named <training job>-worker-<index> and may have 63 characters.
RUN_ID_MAX_LENGTH: Final = 40
TRAINING_CONTAINER: Final = "pytorch"  # required by the training operator
# The backends of a run (launcher/backends): the training operator, or Kubeflow Trainer with JobSet.
BACKEND_PYTORCHJOB: Final = "pytorchjob"
BACKEND_TRAINJOB: Final = "trainjob"
LAUNCHER_SERVICE_ACCOUNT: Final = "launcher"
TRAINER_SERVICE_ACCOUNT: Final = "trainer"
# User, group and fsGroup of launcher, placeholder and worker pods; the USER of both images.
POD_USER: Final = 10001

# Labels.
LABEL_RUN: Final = "trainyard.dev/run"  # on the launcher Job, placeholders, the PyTorchJob and its pods
LABEL_ROLE: Final = "trainyard.dev/role"  # on pods and on system nodes, with one of the roles below
LABEL_POOL: Final = "trainyard.dev/pool"  # on nodes, as the taint of CPU pools, and on warm pods
# On placeholders: "<attempt>-<candidate>", and "-<restart>" while a restart waits. So the placeholders of one wait are
# never counted for another one.
LABEL_ATTEMPT: Final = "trainyard.dev/attempt"
# On worker pods: the PyTorchJob's name under a short key, for `kubectl logs -l pytorch-job-name=<name>`.
LABEL_TRAINING_JOB: Final = "pytorch-job-name"
LABEL_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
MANAGED_BY: Final = "trainyard-launcher"  # also the name of the launcher's Role and ClusterRole
# On a namespace whose pods may read the metrics of launchers and workers, with the value SCRAPER.
LABEL_SCRAPER: Final = "trainyard.dev/metrics"
SCRAPER: Final = "enabled"

ROLE_LAUNCHER: Final = "launcher"
ROLE_PLACEHOLDER: Final = "placeholder"
ROLE_WORKER: Final = "worker"
ROLE_WARM: Final = "warm"
ROLE_CHECK: Final = "check"
ROLE_FABRIC_CHECK: Final = "fabric-check"
ROLE_PROOF: Final = "lustre-proof"
ROLE_SYSTEM: Final = "system"

# Annotations.
# On the PyTorchJob: the number of nodes that the launcher counted, and the reason for this number.
ANNOTATION_NODES: Final = "trainyard.dev/nodes"
ANNOTATION_REASON: Final = "trainyard.dev/reason"
ANNOTATION_RESTART: Final = "trainyard.dev/restart"  # on the PyTorchJob: the number of restarts before it
# On the PyTorchJob, at the end of its run: what the run used (launcher/cost.py).
ANNOTATION_NODE_HOURS: Final = "trainyard.dev/node-hours"
ANNOTATION_IDLE_NODE_HOURS: Final = "trainyard.dev/idle-node-hours"
ANNOTATION_COST: Final = "trainyard.dev/cost-usd"
# On the run's Lease: its progress as JSON (launcher/progress.py).
ANNOTATION_ATTEMPT: Final = "trainyard.dev/attempt"
# On a NodePool: the resources of one of its nodes, as JSON of Kubernetes quantities.
ANNOTATION_NODE_RESOURCES: Final = "trainyard.dev/node-resources"

# Karpenter: https://karpenter.sh/docs/concepts/scheduling/#well-known-labels and
# https://karpenter.sh/docs/concepts/disruption/#pod-level-controls
LABEL_NODEPOOL: Final = "karpenter.sh/nodepool"
LABEL_INITIALIZED: Final = "karpenter.sh/initialized"
LABEL_CAPACITY_TYPE: Final = "karpenter.sh/capacity-type"
DO_NOT_DISRUPT: Final = "karpenter.sh/do-not-disrupt"  # "true" on launcher, placeholder and worker pods

# Kubernetes: https://kubernetes.io/docs/reference/labels-annotations-taints/
LABEL_INSTANCE_TYPE: Final = "node.kubernetes.io/instance-type"
LABEL_ZONE: Final = "topology.kubernetes.io/zone"

# The training operator sets it on the pods of a PyTorchJob (kubeflow/training-operator v1.9.4,
# pkg/apis/kubeflow.org/v1/common_types.go), the launcher on those of a TrainJob.
LABEL_JOB_NAME: Final = "training.kubeflow.org/job-name"
# The resource of the EFA device plugin: https://docs.aws.amazon.com/eks/latest/userguide/node-efa.html
EFA_RESOURCE: Final = "vpc.amazonaws.com/efa"

# TorchrunQueues, TorchrunJobs and their controller (crd/, config/).
TORCHRUN_GROUP: Final = "torchrun.ai"
TORCHRUN_VERSION: Final = "v1alpha1"
TORCHRUN_QUEUE_KIND: Final = "TorchrunQueue"
TORCHRUN_QUEUES: Final = "torchrunqueues"
TORCHRUN_JOBS: Final = "torchrunjobs"
TORCHRUN_NAMESPACE: Final = "torchrun-system"
# The controller's Deployment, service account and role, and the value of app.kubernetes.io/name on its pods.
TORCHRUN_CONTROLLER: Final = "torchrun-controller"
TORCHRUN_LABEL_JOB: Final = "torchrun-job-name"  # on all objects of a TorchrunJob
TORCHRUN_WORKER_CONTAINER: Final = "torchrun"
# In a bucket, below its prefix: <this>/<namespace>/<digest>.tar.zst
TORCHRUN_ARCHIVES: Final = "workspaces"
# In the same bucket: <this>/<namespace>/<uid of the job>/attempt-<number>/node-<number>.log
TORCHRUN_LOGS: Final = "logs"

# Priority classes. A worker preempts only placeholders. Ordinary pods have priority 0. A worker with a higher priority
# would preempt them before the launcher can prevent it. Warm pods keep the nodes of a pool without a job.
WORKER_PRIORITY_CLASS: Final = "trainyard-worker"
WORKER_PRIORITY: Final = 0
PLACEHOLDER_PRIORITY_CLASS: Final = "trainyard-placeholder"
PLACEHOLDER_PRIORITY: Final = -100
WARM_PRIORITY_CLASS: Final = "trainyard-warm"
WARM_PRIORITY: Final = -200

# A run must be over this long before the end of a capacity block. EC2 begins to terminate the instances 30 minutes
# before the end, those of UltraServers 60 minutes
# (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-capacity-blocks.html). Karpenter begins to drain the nodes 10
# minutes earlier (https://karpenter.sh/docs/tasks/odcrs/): it launches no more, deletes empty nodes, and taints the
# others. Running workers have do-not-disrupt and are evicted some minutes later (components/documents/pool.py); a run
# should not plan with these minutes. Karpenter 1.14.1 drains UltraServers 40 minutes before the end, too; the value
# here is the one of its documentation.
CAPACITY_BLOCK_DRAIN_SECONDS: Final = 2400
ULTRASERVER_DRAIN_SECONDS: Final = 4200

# Environment of the launcher.
ENV_REQUEST: Final = "TRAINYARD_REQUEST"  # JSON, see launcher/request.py
ENV_MIN_NODES: Final = "MIN_NODES"  # this and the next one override the request
ENV_MAX_NODES: Final = "MAX_NODES"
ENV_POD_NAME: Final = "POD_NAME"  # downward API: metadata.name, .namespace and .uid
ENV_POD_NAMESPACE: Final = "POD_NAMESPACE"
ENV_POD_UID: Final = "POD_UID"
ENV_JOB_NAME: Final = "JOB_NAME"  # downward API: the label batch.kubernetes.io/job-name

# Environment of a worker, set by the launcher.
ENV_EXPECTED_NODES: Final = "TRAINYARD_EXPECTED_NODES"  # in a static world
ENV_PROCESSES_PER_NODE: Final = "TRAINYARD_PROCESSES_PER_NODE"
ENV_RUN_ID: Final = "TRAINYARD_RUN_ID"
ENV_RESTART: Final = "TRAINYARD_RESTART"  # the number of restarts before it

# Environment of a worker, set by the program.
ENV_DEVICE: Final = "TRAINYARD_DEVICE"  # cuda | cpu
# s3://bucket/prefix, where the trainer writes the files below.
ENV_MODEL_URI: Final = "TRAINYARD_MODEL_URI"
# s3://bucket/prefix or a directory; checkpoints go to <this>/<run>/. Unset: no checkpoints.
ENV_CHECKPOINT_URI: Final = "TRAINYARD_CHECKPOINT_URI"
ENV_DATA: Final = "TRAINYARD_DATA"  # digits | corpus | a path of IDX files or of tokens
ENV_METRICS_PORT: Final = "TRAINYARD_METRICS_PORT"  # where rank 0 serves metrics
ENV_REGION: Final = "AWS_REGION"
# The git revision of the trainer's image, "" if the build did not know it. The program sets it on the workers,
# because an image that a stack builds must not change only because of the revision.
ENV_REVISION: Final = "TRAINYARD_REVISION"

# Files of a trained model, below ENV_MODEL_URI: two in <run>/, and then LATEST_FILE, which names the run. So a reader
# of LATEST_FILE finds a complete model.
MODEL_FILE: Final = "model.pt"
METADATA_FILE: Final = "metadata.json"
LATEST_FILE: Final = "latest.json"

# Environment of a node check.
ENV_NODE_CHECK: Final = "TRAINYARD_NODE_CHECK"  # JSON: instanceType, resource, devices, efa, lustre
ENV_FABRIC_CHECK: Final = "TRAINYARD_FABRIC_CHECK"  # JSON: instanceType, gpus, efa, gigabits
ENV_NODE: Final = "TRAINYARD_NODE"  # downward API: spec.nodeName

# Metrics. A PodMonitor names the port by its name; launchers, workers and the controller have the same.
METRICS_PORT_NAME: Final = "metrics"
METRICS_PATH: Final = "/metrics"
METRICS_PORT: Final = 9464  # of the launcher and the torchrun controller
TRAINER_METRICS_PORT: Final = 9465
# The metrics that the status of a TorchrunJob shows, of our trainer or of any script.
TRAINER_PROGRESS: Final = {
    "step": "trainyard_trainer_step",
    "loss": "trainyard_trainer_loss",
    "samplesPerSecond": "trainyard_trainer_samples_per_second",
    "tokensPerSecond": "trainyard_trainer_tokens_per_second",
    "checkpointStep": "trainyard_trainer_checkpoint_last_step",
    "checkpointTime": "trainyard_trainer_checkpoint_last_timestamp_seconds",
}

# The options of the trainer in this repository (`training.args`). Each takes a value.
TRAINER_OPTIONS: Final = (
    "--epochs", "--steps", "--batch-size", "--micro-batch-size", "--data", "--model", "--workload",
    "--sequence-length", "--learning-rate", "--warmup-steps", "--weight-decay", "--gradient-clip", "--seed",
    "--precision", "--compile", "--parallel", "--bucket-megabytes", "--log-every", "--evaluate-every",
    "--metrics-directory", "--metrics-port", "--checkpoint-uri", "--checkpoint-every", "--checkpoint-keep",
    "--owner", "--notice-file", "--timeout-seconds", "--start-timeout-seconds", "--device", "--model-uri",
    "--run-id", "--expected-nodes", "--processes-per-node", "--restart",
)  # fmt: skip

# Exit codes of the launcher.
EXIT_SUCCEEDED: Final = 0
EXIT_BAD_REQUEST: Final = 2  # the request, MIN_NODES or MAX_NODES is wrong; nothing was created
EXIT_BELOW_MINIMUM: Final = 10  # fewer than MIN_NODES nodes at the deadline; nothing (more) was submitted
EXIT_IMPOSSIBLE: Final = (
    11  # waiting can't help: limit below MIN_NODES, no pool or priority class, name taken
)
EXIT_TRAINING_FAILED: Final = 12  # maxRestarts are used up, or a restart can't help
EXIT_API_ERROR: Final = 13  # the Kubernetes API refused, or was unreachable for long
EXIT_STOPPED: Final = 14  # SIGTERM or SIGINT; the placeholders were removed
# Another launcher holds the run's Lease; nothing was done. Not final: FailJob ends every pod of a Job, and the other
# launcher may be one of them (on a lost node that still reaches the API), so the Job's backoff tries again.
EXIT_ALREADY_RUNNING: Final = 15
# The podFailurePolicy of the launcher's Job has FailJob for these; after any other code its next pod starts.
LAUNCHER_FINAL_EXIT_CODES: Final = (
    EXIT_BAD_REQUEST, EXIT_BELOW_MINIMUM, EXIT_IMPOSSIBLE, EXIT_TRAINING_FAILED,
)  # fmt: skip
LAUNCHER_BACKOFF_LIMIT: Final = 3

# Exit codes of the trainer that other programs handle. docs/trainer.md lists all of them.
WORKER_EXIT_CONFIGURATION: Final = 2  # wrong settings; a run that diverged had some, too
WORKER_EXIT_WORLD_SIZE: Final = 20  # the world differs from the one that the launcher counted
WORKER_EXIT_STOPPED: Final = 24  # by SIGTERM, SIGINT or a notice; the next attempt resumes
WORKER_EXIT_HUNG: Final = 25  # no process made progress for longer than the timeout
# A worker with one of these codes is not restarted. 126 and 127 are a shell's codes for a command that is not
# executable or not found. Any other failure may not happen again.
WORKER_FINAL_EXIT_CODES: Final = (WORKER_EXIT_CONFIGURATION, WORKER_EXIT_WORLD_SIZE, 126, 127)

# The time of a worker after SIGTERM. torchrun kills its processes after the seconds in this variable (torch 2.15,
# LaunchConfig in torch/distributed/launcher/api.py; earlier versions after 30). The pod's grace period is longer by the
# margin. Even with the maximum, the pods are gone before the launcher stops waiting for them.
SHUTDOWN_VARIABLE: Final = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
SHUTDOWN_SECONDS: Final = 30
SHUTDOWN_MAX_SECONDS: Final = 540
SHUTDOWN_MARGIN_SECONDS: Final = 15

# The Lease launch-<run>: one launcher acts for a run. The duration is that of client-go's leader election
# (k8s.io/client-go v0.35.4, tools/leaderelection); it is renewed three times in this time.
LEASE_SECONDS: Final = 15
LEASE_RENEW_SECONDS: Final = 5

# The shape of a run's world: the counted number of nodes, or one that torchrun may reduce to MIN_NODES.
SHAPE_STATIC: Final = "static"
SHAPE_ELASTIC: Final = "elastic"

# States of the launcher, in its log and its metrics.
STATE_WAITING: Final = "waiting"
STATE_HOLDING: Final = "holding"
STATE_PAUSING: Final = "pausing"
STATE_SUBMITTING: Final = "submitting"
STATE_FOLLOWING: Final = "following"
STATE_SUSPENDED: Final = "suspended"
STATE_RESTARTING: Final = "restarting"
STATE_SUCCEEDED: Final = "succeeded"
STATE_FAILED: Final = "failed"
