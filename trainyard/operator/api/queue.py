"""The spec of a TorchrunQueue. `parse_queue` reads it."""

from __future__ import annotations

from itertools import combinations
from typing import Any, ClassVar, Final

from trainyard.k8s.quantity import Amount
from trainyard.operator import names as n
from trainyard.operator.api.fields import (
    ApiObject,
    Field,
    JsonObject,
    Rule,
    array,
    boolean,
    bucket_prefix,
    choice,
    directory,
    integer,
    kubernetes_object,
    label_map,
    label_value,
    object_name,
    pattern,
    quantity,
    section,
    string,
)

WORKSPACE: Final = "workspace"
DATASETS: Final = "datasets"
CHECKPOINTS: Final = "checkpoints"
VOLUMES: Final = (WORKSPACE, DATASETS, CHECKPOINTS)
WORKING_DIRECTORY: Final = "/app"
READ_WRITE_ONCE: Final = "ReadWriteOnce"
READ_WRITE_MANY: Final = "ReadWriteMany"
READ_ONLY_MANY: Final = "ReadOnlyMany"
NEVER: Final = "Never"
ON_FAILURE: Final = "OnFailure"
RESTART_POLICIES: Final = (NEVER, ON_FAILURE)
MAX_RESTARTS: Final = 100
DEFAULT_RESTARTS: Final = 3


def ttl_field(absent: str) -> Any:
    """Return ttlSecondsAfterFinished of a job or of jobDefaults."""
    return integer(
        "How long after its end a TorchrunJob is removed, with all it made but retained volumes.",
        unit="seconds",
        absent=absent,
    )


def deadline_field(absent: str) -> Any:
    """Return activeDeadlineSeconds of a job or of jobDefaults."""
    return integer(
        "How long after its first start a job is ended as Failed, DeadlineExceeded.",
        minimum=1,
        unit="seconds",
        absent=absent,
    )


def restart_policy_field(**more: Any) -> Any:
    """Return restartPolicy of a job or of jobDefaults."""
    return choice("Whether all workers are started anew after one of them failed.", RESTART_POLICIES, **more)


def max_restarts_field(**more: Any) -> Any:
    """Return maxRestarts of a job or of jobDefaults."""
    about = "How often all workers are started anew, with OnFailure, before the job is Failed."
    return integer(about, maximum=MAX_RESTARTS, **more)


def _mount_path(example: str, **more: Any) -> Any:
    return directory("Directory of the volume in the workers.", example, **more)


# What this program reads of a PodSpec. The API server checks the rest in a dry run.
def _objects(**shape: Any) -> Any:
    return array("", kubernetes_object("", shape), maximum=0)


_NAME: Final = string("", minimum=1, maximum=0, required=True)
_USER: Final = kubernetes_object("", {"runAsUser": integer("")})
_NODE_AFFINITY: Final = {
    "requiredDuringSchedulingIgnoredDuringExecution": kubernetes_object(
        "", {"nodeSelectorTerms": _objects(matchExpressions=_objects())}
    )
}
_CONTAINERS: Final = _objects(
    name=_NAME,
    env=_objects(name=_NAME),
    volumeMounts=_objects(mountPath=_NAME),
    resources=kubernetes_object("", {"requests": kubernetes_object(""), "limits": kubernetes_object("")}),
    securityContext=_USER,
)
_POD_SPEC: Final = {
    "containers": _CONTAINERS,
    "initContainers": _CONTAINERS,
    "volumes": _objects(name=_NAME),
    "imagePullSecrets": _objects(),
    "tolerations": _objects(key=string("", maximum=0)),
    "nodeSelector": label_map(""),
    "securityContext": _USER,
    "affinity": kubernetes_object("", {"nodeAffinity": kubernetes_object("", _NODE_AFFINITY)}),
}


class NodeResources(ApiObject):
    """What a worker asks for of its node."""

    gpus: int = integer("GPUs of a node; 0 for a queue of CPU jobs.", maximum=64, default=0)
    cpus: Amount = quantity("Processors of a node, with fractions.", "96 or 7500m", required=True)
    memory: Amount = quantity("Memory of a node.", "512Gi", unit="bytes", required=True)
    gpu_type: str = label_value(
        "Type of the GPUs, such as h100-80gb: only nodes with GPUs of this type are used.", absent="any"
    )
    rules = (
        Rule(
            cel="!has(self.gpuType) || self.gpus > 0",
            message="gpuType is the type of GPUs: gpus must be above 0 where it is given",
            path=".gpuType",
            complete=True,
        ),
    )


class PodMetadata(ApiObject):
    """Labels and annotations of the pods."""

    labels: dict[str, str] = label_map("Labels of the pods.", absent="none")
    annotations: dict[str, str] = label_map("Annotations of the pods.", longest=65536, absent="none")


class Affinity(ApiObject):
    """Affinity of the pods (https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/)."""

    node_affinity: JsonObject = kubernetes_object(
        "Nodes that the pods are drawn to.", _NODE_AFFINITY, absent="none"
    )
    pod_affinity: JsonObject = kubernetes_object("Pods that the pods are drawn to.", absent="none")
    pod_anti_affinity: JsonObject = kubernetes_object("Pods that the pods keep away from.", absent="none")


class Toleration(ApiObject):
    """A taint that the pods bear (https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/)."""

    # Types and rules: k8s.io/api v0.35.4, core/v1/types.go; kubernetes 1.35.4, pkg/apis/core/validation/validation.go,
    # ValidateTolerations. Without these rules, the error appears only when a job starts.
    key: str = string("Key of the taint.", maximum=317, absent="every key")
    operator: str = choice("Whether the taint's value counts.", ("Exists", "Equal"), absent="Equal")
    value: str = string("Value of the taint, with operator Equal.", maximum=63, absent="the empty one")
    effect: str = choice(
        "Effect of the taint.", ("NoSchedule", "PreferNoSchedule", "NoExecute"), absent="every effect"
    )
    toleration_seconds: int | None = integer(
        "How long a pod stays on a node with this taint of effect NoExecute; negative values count as 0.",
        minimum=-(2**31),
        unit="seconds",
        int64=True,
        absent="for ever",
    )
    rules = (
        Rule(
            cel="has(self.key) && self.key != '' || has(self.operator) && self.operator == 'Exists'",
            message="scheduling.tolerations: operator must be Exists where no key is given",
            path=".operator",
        ),
        Rule(
            cel="!(has(self.operator) && self.operator == 'Exists' && has(self.value) && self.value != '')",
            message="scheduling.tolerations: operator Exists takes no value",
            path=".value",
        ),
        Rule(
            cel="!has(self.tolerationSeconds) || has(self.effect) && self.effect == 'NoExecute'",
            message="scheduling.tolerations: tolerationSeconds needs effect NoExecute",
            path=".tolerationSeconds",
        ),
    )


class PodTemplate(ApiObject):
    """The PodTemplateSpec of the workers' pods. Its container `torchrun` is the worker. Other fields of the queue and
    the job override it."""

    metadata: PodMetadata = section(PodMetadata, absent="none")
    spec: JsonObject = kubernetes_object(
        "A PodSpec (https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/). Condition "
        "PodTemplateValid has the result of a dry run.",
        _POD_SPEC,
        absent="none",
    )


class Volume(ApiObject):
    """A volume of the jobs."""

    name: ClassVar[str]
    enabled: bool = boolean("Whether jobs have this volume.", default=False)
    size: Amount | None = quantity("Size of the volume.", "100Gi", unit="bytes", absent="sizePerGPU says it")
    size_per_gpu: Amount | None = quantity(
        "Size of the volume for each GPU of the job.", "10Gi", unit="bytes", absent="size says it"
    )
    storage_class: str = object_name("Class of the volume.", absent="the cluster's default class")
    access_mode: str = choice(
        "Who may mount the volume: with ReadWriteOnce one node alone.",
        (READ_WRITE_ONCE, READ_WRITE_MANY, READ_ONLY_MANY),
        absent="ReadWriteMany for classes of fsx.csi.aws.com and efs.csi.aws.com, else ReadWriteOnce",
    )
    existing_claim: str = object_name(
        "A claim of the job's namespace that is used as it is, instead of a new one.",
        absent="each job gets a claim of its own",
    )
    retain: bool = boolean(
        "Whether the claim outlives its job; a change holds for claims that are made after it.", default=False
    )
    mount_path: str = _mount_path(WORKING_DIRECTORY, absent="workingDir")
    rules = (
        Rule(
            cel="!(has(self.size) && has(self.sizePerGPU))",
            check=lambda self: not (self.enabled and self.size and self.size_per_gpu),
            message="{path}: size and sizePerGPU exclude each other; give one of them",
            path=".sizePerGPU",
        ),
        Rule(
            cel="!has(self.existingClaim) || !(has(self.size) || has(self.sizePerGPU) || has(self.storageClass))",
            # A job may name a storage class for the claims of another queue.
            check=lambda self: (
                not (self.enabled and self.existing_claim and (self.size or self.size_per_gpu))
            ),
            message="{path}: existingClaim is used as it is; leave out size, sizePerGPU and storageClass",
            path=".existingClaim",
        ),
        Rule(
            cel="!self.enabled || has(self.size) || has(self.sizePerGPU) || has(self.existingClaim)",
            check=lambda self: not self.enabled or self.size or self.size_per_gpu or self.existing_claim,
            message="{path} is enabled: give size, sizePerGPU or existingClaim",
            path=".enabled",
            complete=True,
        ),
    )


class WorkspaceVolume(Volume):
    """The submitted directory, unpacked in a directory of the claim that is named by the job's uid. A job without a
    workspace mounts the whole claim, an existing one read-only."""

    name = WORKSPACE
    bucket: str = bucket_prefix(
        "Bucket and prefix of the archives, which are below workspaces/<namespace>.",
        absent="a pod of the job holds the archive",
    )


class DatasetsVolume(Volume):
    """Data to train on, mounted read-only. Jobs share what is in the claim that existingClaim names; a claim of the
    job's own is empty, and its workers can't write there."""

    name = DATASETS
    mount_path: str = _mount_path("/datasets", default="/datasets")


class CheckpointsVolume(Volume):
    """Checkpoints, which all workers read and write."""

    name = CHECKPOINTS
    mount_path: str = _mount_path("/checkpoints", default="/checkpoints")


class Storage(ApiObject):
    """Volumes of the jobs."""

    workspace: WorkspaceVolume = section(WorkspaceVolume, absent="no such volume")
    datasets: DatasetsVolume = section(DatasetsVolume, absent="no such volume")
    checkpoints: CheckpointsVolume = section(CheckpointsVolume, absent="no such volume")
    shm_size_per_gpu: Amount | None = quantity(
        "Shared memory at /dev/shm for each GPU of a node; it counts as memory.",
        "8Gi",
        unit="bytes",
        absent="the container runtime's own, mostly 64 MiB",
    )


class Scheduling(ApiObject):
    """Where and in which order the workers' pods are placed."""

    scheduler: str = object_name(
        f"The scheduler of the pods; with {n.KAI_SCHEDULER} all workers of a job start together or none.",
        absent="the cluster's default scheduler",
    )
    priority_class_name: str = object_name("PriorityClass of the pods.", absent="the cluster's default")
    node_selector: dict[str, str] = label_map("Labels that a node must have.", absent="none")
    affinity: JsonObject = section(Affinity, parsed=False, empty={}, absent="none")
    tolerations: tuple[JsonObject, ...] = array(
        "Taints that the pods bear.", Toleration, maximum=32, absent="none"
    )
    pool: str = object_name(
        "A NodePool of Karpenter: its machines are asked for and counted before the workers start.",
        maximum=63,
        absent="the pods wait for whatever nodes there are",
    )


class Networking(ApiObject):
    """How the workers find and reach each other."""

    port: int = integer(
        "Port of the rendezvous on the first worker.",
        minimum=1024,
        maximum=65535,
        default=n.RENDEZVOUS_PORT,
    )
    interface: str = pattern(
        "Network interfaces of NCCL and gloo as NCCL_SOCKET_IFNAME takes them: a prefix, or with = an exact name, or "
        "with ^ those to leave out (https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html).",
        r"^(\^|=|\^=)?[A-Za-z0-9._:-]+(,[A-Za-z0-9._:-]+)*$",
        "names of interfaces as NCCL_SOCKET_IFNAME takes them, such as eth0, =eth0 or ^lo",
        maximum=63,
        absent="NCCL and gloo choose",
    )


class JobDefaults(ApiObject):
    """What holds for jobs that do not say it themselves."""

    ttl_seconds_after_finished: int | None = ttl_field("a finished job is never removed")
    active_deadline_seconds: int | None = deadline_field("none")
    restart_policy: str = restart_policy_field(default=ON_FAILURE)
    max_restarts: int = max_restarts_field(default=DEFAULT_RESTARTS)


def _mount_paths_differ(one: str, other: str) -> Rule:
    def path(volume: str) -> str:
        if volume == WORKSPACE:  # it has no default of its own
            return "self.storage.workspace.?mountPath.orValue(self.workingDir)"
        return f"self.storage.{volume}.mountPath"

    used = " && ".join(f"has(self.storage.{each}) && self.storage.{each}.enabled" for each in (one, other))
    return Rule(
        cel=f"!has(self.storage) || !({used}) || {path(one)} != {path(other)}",
        message=f"storage.{one} and storage.{other} must have different mountPaths",
        path=f".storage.{other}.mountPath",
        complete=True,
    )


class QueueSpec(ApiObject):
    """How the jobs of this queue are made."""

    kai_queue: str = object_name(
        "Name of the queue of KAI Scheduler that the jobs' pods join; it is made where it is missing.",
        maximum=63,
        absent="none is made or joined",
    )
    parent_kai_queue: str = object_name(
        "The queue of KAI Scheduler above kaiQueue.", maximum=63, default=n.KAI_PARENT_QUEUE
    )
    node_resources: NodeResources = section(NodeResources, required=True)
    image: str = pattern(
        "Image of the workers' container.",
        r"^[^\s]+$",
        "an image reference without spaces, such as registry.example.com/team/pytorch:2.9",
        maximum=1024,
        required=True,
    )
    working_dir: str = directory(
        "Directory that the command runs in; the workspace is mounted there. If storage.workspace.mountPath is another "
        "place, and this is /app, a job with a workspace runs there.",
        WORKING_DIRECTORY,
        default=WORKING_DIRECTORY,
    )
    pod_template: PodTemplate = section(PodTemplate, absent="none")
    storage: Storage = section(Storage, absent="no volumes")
    scheduling: Scheduling = section(Scheduling, absent="none of it")
    networking: Networking = section(Networking, default={}, absent="each field's own")
    job_defaults: JobDefaults = section(JobDefaults, default={}, absent="each field's own")
    rules = tuple(_mount_paths_differ(one, other) for one, other in combinations(VOLUMES, 2))

    @property
    def volumes(self) -> dict[str, Volume]:
        """The enabled volumes by name."""
        found: dict[str, Volume] = {name: getattr(self.storage, name) for name in VOLUMES}
        return {name: each for name, each in found.items() if each.enabled}

    @property
    def bucket(self) -> str:
        """Bucket and prefix of workspaces and logs."""
        return self.storage.workspace.bucket.rstrip("/")


QUEUE: Final[Field] = section(QueueSpec).at("")


def parse_queue(spec: Any, path: str = "spec") -> tuple[QueueSpec | None, tuple[str, ...]]:
    """Return the spec of a queue, or None and a line for each invalid field."""
    problems: list[str] = []
    parsed = QueueSpec.parse(spec, path, problems)
    workspace = parsed.storage.workspace
    workspace.mount_path = workspace.mount_path or parsed.working_dir
    return (None, tuple(problems)) if problems else (parsed, ())
