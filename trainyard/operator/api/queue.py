"""The spec of a TorchrunQueue. `parse_queue` reads it."""

from __future__ import annotations

from itertools import combinations
from typing import Any, ClassVar, Final

from trainyard.k8s.quantity import Amount
from trainyard.operator import names as n
from trainyard.operator.api import fields as f
from trainyard.operator.api.fields import ApiObject, Field, Form, JsonObject, Rule

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
MAX_RESTARTS: Final = 100
_DOCS: Final = "https://kubernetes.io/docs/concepts/scheduling-eviction"


def _objects(**shape: Any) -> Any:
    return f.array("", f.kubernetes_object("", shape), maximum=0)


def _mount_path(directory: str, **more: Any) -> Any:
    return f.string("Directory of the volume in the workers.", f.directory(directory), **more)


# The part of a PodSpec that this program reads. The API server checks the rest in a dry run.
_ITEM_NAME: Final = f.string("", minimum=1, required=True)
_SECURITY_CONTEXT: Final = f.kubernetes_object("", {"runAsUser": f.integer("")})
_NODE_SELECTOR: Final = f.kubernetes_object("", {"nodeSelectorTerms": _objects(matchExpressions=_objects())})
_NODE_AFFINITY: Final = {"requiredDuringSchedulingIgnoredDuringExecution": _NODE_SELECTOR}
_CONTAINERS: Final = _objects(
    name=_ITEM_NAME,
    env=_objects(name=_ITEM_NAME),
    volumeMounts=_objects(mountPath=_ITEM_NAME),
    resources=f.kubernetes_object(
        "", {"requests": f.kubernetes_object(""), "limits": f.kubernetes_object("")}
    ),
    securityContext=_SECURITY_CONTEXT,
)
_POD_SPEC: Final = {
    "containers": _CONTAINERS,
    "initContainers": _CONTAINERS,
    "volumes": _objects(name=_ITEM_NAME),
    "imagePullSecrets": _objects(),
    "tolerations": _objects(key=f.string("")),
    "nodeSelector": f.label_map(""),
    "securityContext": _SECURITY_CONTEXT,
    "affinity": f.kubernetes_object("", {"nodeAffinity": f.kubernetes_object("", _NODE_AFFINITY)}),
}


class NodeResources(ApiObject):
    """The resources that a worker requests of its node."""

    gpus: int = f.integer("GPUs of a node; 0 for a queue of CPU jobs.", maximum=64, default=0)
    cpus: Amount = f.quantity("CPU cores of a node, with fractions.", "96 or 7500m", required=True)
    memory: Amount = f.quantity("Memory of a node.", "512Gi", unit="bytes", required=True)
    gpu_type: str = f.string(
        "Type of the GPUs, such as h100-80gb. The workers run only on nodes with it.", f.LABEL_VALUE, absent="any"
    )  # fmt: skip
    rules = (
        Rule(
            cel="!has(self.gpuType) || self.gpus > 0",
            message="gpuType is the type of GPUs: gpus must be above 0 with a gpuType",
            path=".gpuType",
            complete=True,
        ),
    )


class PodMetadata(ApiObject):
    """Labels and annotations of the pods."""

    labels: dict[str, str] = f.label_map("Labels of the pods.", absent="none")
    annotations: dict[str, str] = f.label_map("Annotations of the pods.", longest=65536, absent="none")


class PodTemplate(ApiObject):
    """The PodTemplateSpec of the workers' pods. Its container `torchrun` is the worker. Other fields of the queue and
    the job override it."""

    metadata: PodMetadata = f.section(PodMetadata, absent="none")
    spec: JsonObject = f.kubernetes_object(
        "A PodSpec (https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/). Condition "
        "PodTemplateValid has the result of a dry run.",
        _POD_SPEC,
        absent="none",
    )


class Volume(ApiObject):
    """A volume of the jobs."""

    name: ClassVar[str]
    enabled: bool = f.boolean("Whether jobs have this volume.", default=False)
    size: Amount | None = f.quantity(
        "Size of the volume.", "100Gi", unit="bytes", absent="that of sizePerGPU"
    )
    size_per_gpu: Amount | None = f.quantity(
        "Size of the volume for each GPU of the job.", "10Gi", unit="bytes", absent="that of size"
    )
    storage_class: str = f.string(
        "StorageClass of the volume.", f.OBJECT_NAME, absent="the default class of the cluster"
    )
    access_mode: str = f.choice(
        "The access mode of the volume. With ReadWriteOnce, only one node can mount it.",
        (READ_WRITE_ONCE, READ_WRITE_MANY, READ_ONLY_MANY),
        absent="ReadWriteMany for classes of fsx.csi.aws.com and efs.csi.aws.com, else ReadWriteOnce",
    )
    existing_claim: str = f.string(
        "An existing claim in the namespace of the job, used instead of a new one.",
        f.OBJECT_NAME,
        absent="a new claim for each job",
    )
    retain: bool = f.boolean(
        "Whether the claim stays when its job is deleted. A change applies to new claims.", default=False
    )
    mount_path: str = _mount_path(WORKING_DIRECTORY, absent="workingDir")
    rules = (
        Rule(
            cel="!(has(self.size) && has(self.sizePerGPU))",
            message="{path}: size and sizePerGPU exclude each other; give one of them",
            path=".sizePerGPU",
        ),
        Rule(
            cel="!has(self.existingClaim) || !(has(self.size) || has(self.sizePerGPU) || has(self.storageClass))",
            message="{path}: existingClaim is used unchanged; remove size, sizePerGPU and storageClass",
            path=".existingClaim",
        ),
        Rule(
            cel="!self.enabled || has(self.size) || has(self.sizePerGPU) || has(self.existingClaim)",
            check=lambda self: not self.enabled or self.size or self.size_per_gpu or self.existing_claim,
            message="{path} is enabled: give size, sizePerGPU or existingClaim",
            path=".enabled",
            complete=True,
        ),
    )  # fmt: skip


class WorkspaceVolume(Volume):
    """The submitted directory, unpacked in a directory of the claim with the name of the job's uid. A job without a
    workspace mounts the whole claim; an existing claim is then read-only."""

    name = WORKSPACE
    bucket: str = f.string(
        "Bucket and prefix of the archives, which are below workspaces/<namespace>.",
        f.BUCKET_PREFIX,
        absent="a pod of the job has the archive",
    )


class DatasetsVolume(Volume):
    """Data to train on, mounted read-only. Jobs share the claim of existingClaim. Without it, each job has an empty
    claim, and its workers can't write there."""

    name = DATASETS
    mount_path: str = _mount_path("/datasets", default="/datasets")


class CheckpointsVolume(Volume):
    """Checkpoints, which all workers read and write."""

    name = CHECKPOINTS
    mount_path: str = _mount_path("/checkpoints", default="/checkpoints")


class Storage(ApiObject):
    """Volumes of the jobs."""

    workspace: WorkspaceVolume = f.section(WorkspaceVolume, absent="no such volume")
    datasets: DatasetsVolume = f.section(DatasetsVolume, absent="no such volume")
    checkpoints: CheckpointsVolume = f.section(CheckpointsVolume, absent="no such volume")
    shm_size_per_gpu: Amount | None = f.quantity(
        "Shared memory at /dev/shm for each GPU of a node. It counts as memory.",
        "8Gi",
        unit="bytes",
        absent="that of the container runtime, mostly 64 MiB",
    )


class Affinity(ApiObject):
    __doc__ = f"Affinity of the pods ({_DOCS}/assign-pod-node/)."

    node_affinity: JsonObject = f.kubernetes_object("As in a PodSpec.", _NODE_AFFINITY, absent="none")
    pod_affinity: JsonObject = f.kubernetes_object("As in a PodSpec.", absent="none")
    pod_anti_affinity: JsonObject = f.kubernetes_object("As in a PodSpec.", absent="none")


class Toleration(ApiObject):
    __doc__ = f"A toleration of the pods ({_DOCS}/taint-and-toleration/)."

    # Types and rules: k8s.io/api v0.35.4, core/v1/types.go; kubernetes 1.35.4, pkg/apis/core/validation/validation.go,
    # ValidateTolerations. Without these rules, the error appears only when a job starts.
    key: str = f.string("Key of the taint.", maximum=317, absent="all keys")
    operator: str = f.choice("How the value of the taint is compared.", ("Exists", "Equal"), absent="Equal")
    value: str = f.string("Value of the taint, with operator Equal.", maximum=63, absent="empty")
    effect: str = f.choice(
        "Effect of the taint.", ("NoSchedule", "PreferNoSchedule", "NoExecute"), absent="all effects"
    )
    toleration_seconds: int | None = f.integer(
        "How long a pod stays on a node with this taint and effect NoExecute; negative values count as 0.",
        minimum=-(2**31),
        unit="seconds",
        int64=True,
        absent="forever",
    )
    rules = (
        Rule(
            cel="has(self.key) && self.key != '' || has(self.operator) && self.operator == 'Exists'",
            message="{path}: operator must be Exists without a key",
            path=".operator",
        ),
        Rule(
            cel="!(has(self.operator) && self.operator == 'Exists' && has(self.value) && self.value != '')",
            message="{path}: value must be empty with operator Exists",
            path=".value",
        ),
        Rule(
            cel="!has(self.tolerationSeconds) || has(self.effect) && self.effect == 'NoExecute'",
            message="{path}: effect must be NoExecute with tolerationSeconds",
            path=".tolerationSeconds",
        ),
    )


class Scheduling(ApiObject):
    """Where and in which order the pods of the workers are scheduled."""

    scheduler: str = f.string(
        f"The scheduler of the pods. With {n.KAI_SCHEDULER}, all workers of a job start together or none.",
        f.OBJECT_NAME,
        absent="the default scheduler of the cluster",
    )
    priority_class_name: str = f.string(
        "PriorityClass of the pods.", f.OBJECT_NAME, absent="the default of the cluster"
    )
    node_selector: dict[str, str] = f.label_map("Labels that a node must have.", absent="none")
    affinity: JsonObject = f.section(Affinity, parsed=False, empty={}, absent="none")
    tolerations: tuple[JsonObject, ...] = f.array(
        "Tolerations of the pods.", Toleration, maximum=32, absent="none"
    )
    pool: str = f.string(
        "A NodePool of Karpenter. The controller requests and counts its nodes before the workers start.",
        f.OBJECT_NAME,
        maximum=63,
        absent="the pods wait for any nodes",
    )


class Networking(ApiObject):
    """The network between the workers."""

    port: int = f.integer(
        "Port of the rendezvous on the first worker.", minimum=1024, maximum=65535, default=n.RENDEZVOUS_PORT
    )
    interface: str = f.string(
        "Network interfaces of NCCL and gloo, in the form of NCCL_SOCKET_IFNAME: a prefix, exact names after =, or "
        "excluded names after ^ (https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html).",
        Form(
            r"^(\^|=|\^=)?[A-Za-z0-9._:-]+(,[A-Za-z0-9._:-]+)*$",
            "names of interfaces in the form of NCCL_SOCKET_IFNAME, such as eth0, =eth0 or ^lo",
            63,
        ),
        absent="the choice of NCCL and gloo",
    )


class JobDefaults(ApiObject):
    """Values for jobs that do not set them."""

    ttl_seconds_after_finished: int | None = f.integer(
        "The time from the end of a job to its deletion with all its objects, except retained volumes.",
        unit="seconds",
        absent="a finished job is never deleted",
    )
    active_deadline_seconds: int | None = f.integer(
        "The maximum time from the first start of a job. Then it is Failed with reason DeadlineExceeded.",
        minimum=1,
        unit="seconds",
        absent="none",
    )
    restart_policy: str = f.choice(
        "Whether all workers restart if one of them fails.", (NEVER, ON_FAILURE), default=ON_FAILURE
    )
    max_restarts: int = f.integer(
        "How often all workers restart, with OnFailure, before the job is Failed.",
        maximum=MAX_RESTARTS,
        default=3,
    )


def _mount_paths_differ(one: str, other: str) -> Rule:
    paths = {name: f"self.storage.{name}.mountPath" for name in VOLUMES}
    paths[WORKSPACE] = "self.storage.workspace.?mountPath.orValue(self.workingDir)"
    used = " && ".join(f"has(self.storage.{name}) && self.storage.{name}.enabled" for name in (one, other))
    return Rule(
        cel=f"!has(self.storage) || !({used}) || {paths[one]} != {paths[other]}",
        message=f"storage.{one} and storage.{other} must have different mountPaths",
        path=f".storage.{other}.mountPath",
        complete=True,
    )


class QueueSpec(ApiObject):
    """How the jobs of this queue are created."""

    kai_queue: str = f.string(
        "The queue of KAI Scheduler for the pods of the jobs. The controller creates it if it does not exist.",
        f.OBJECT_NAME,
        maximum=63,
        absent="no queue of KAI Scheduler",
    )
    parent_kai_queue: str = f.string(
        "The parent of kaiQueue in KAI Scheduler.", f.OBJECT_NAME, maximum=63, default=n.KAI_PARENT_QUEUE
    )
    node_resources: NodeResources = f.section(NodeResources, required=True)
    image: str = f.string(
        "Image of the workers.",
        Form(
            r"^[^\s]+$",
            "an image reference without spaces, such as registry.example.com/team/pytorch:2.9",
            1024,
        ),
        required=True,
    )
    working_dir: str = f.string(
        "Working directory of the command, where the workspace is mounted. If it is /app, a job with a workspace runs "
        "in the mountPath of storage.workspace.",
        f.directory(WORKING_DIRECTORY),
        default=WORKING_DIRECTORY,
    )
    pod_template: PodTemplate = f.section(PodTemplate, absent="none")
    storage: Storage = f.section(Storage, absent="no volumes")
    scheduling: Scheduling = f.section(Scheduling, absent="the default of each field")
    networking: Networking = f.section(Networking, default={}, absent="the default of each field")
    job_defaults: JobDefaults = f.section(JobDefaults, default={}, absent="the default of each field")
    rules = tuple(_mount_paths_differ(one, other) for one, other in combinations(VOLUMES, 2))

    @property
    def volumes(self) -> dict[str, Volume]:
        """The enabled volumes by name."""
        found: list[Volume] = [getattr(self.storage, name) for name in VOLUMES]
        return {volume.name: volume for volume in found if volume.enabled}

    @property
    def workspace_directory(self) -> str:
        """The directory of the workspace in a worker."""
        volume = self.volumes.get(WORKSPACE)
        return volume.mount_path if volume is not None else self.working_dir

    @property
    def command_directory(self) -> str:
        """The working directory of a command with a workspace."""
        return self.workspace_directory if self.working_dir == WORKING_DIRECTORY else self.working_dir

    @property
    def bucket(self) -> str:
        """Bucket and prefix of workspaces and logs."""
        return self.storage.workspace.bucket.rstrip("/")


QUEUE: Final[Field] = f.section(QueueSpec).at("")


def parse_queue(spec: Any, path: str = "spec") -> tuple[QueueSpec | None, tuple[str, ...]]:
    """Return the spec of a queue, or None and a line for each invalid field."""
    problems: list[str] = []
    parsed = QueueSpec.parse(spec, path, problems)
    workspace = parsed.storage.workspace
    workspace.mount_path = workspace.mount_path or parsed.working_dir
    return (None, tuple(problems)) if problems else (parsed, ())
