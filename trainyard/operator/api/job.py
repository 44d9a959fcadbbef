"""The spec of a TorchrunJob. `parse_job` reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from trainyard.operator.api import fields as f
from trainyard.operator.api.fields import FORBIDDEN, ApiObject, Field, Form, JsonObject, Rule, parse_time
from trainyard.operator.api.permissions import restricted_fields
from trainyard.operator.api.queue import QUEUE, JobDefaults

# Of spec.launcher: torchrun starts the command once for each GPU, or nothing does.
TORCHRUN: Final = "torchrun"
NO_LAUNCHER: Final = "none"
NCCL: Final = "nccl"
GLOO: Final = "gloo"
C10D: Final = "c10d"
STATIC: Final = "static"
ETCD_V2: Final = "etcd-v2"
ETCD: Final = ("etcd", ETCD_V2)
MAX_GPUS: Final = 65536
MAX_NODES: Final = 4096
# Fields that the pods have from their start.
FIXED: Final = (
    "jobQueue", "numGPUs", "command", "args", "launcher", "env", "distributed", "overrides", "persistCheckpoints",
)  # fmt: skip
_SOURCES: Final = ("configMapKeyRef", "secretKeyRef", "fieldRef", "resourceFieldRef")
_OTHER: Final[JsonObject] = {"optional": True, "absent": "another source"}


class KeySelector(ApiObject):
    """A key of a ConfigMap or Secret in the namespace of the job."""

    name: str = f.string("Name of the object.", f.OBJECT_NAME, required=True)
    key: str = f.string("The key.", minimum=1, maximum=253, required=True)
    optional: bool = f.boolean("Whether the job also starts without the key.", absent="false")


class FieldSelector(ApiObject):
    """A field of the pod."""

    api_version: str = f.string("The API version of the path.", maximum=63, absent="v1")
    field_path: str = f.string("Its path, such as status.podIP.", minimum=1, maximum=1024, required=True)


class ResourceSelector(ApiObject):
    """A request or limit of a container."""

    container_name: str = f.string("The container.", maximum=63, absent="the worker")
    resource: str = f.string("The resource, such as limits.memory.", minimum=1, maximum=317, required=True)
    divisor: str = f.quantity("The unit of the value.", "1Mi", absent="1")


class EnvVarSource(ApiObject):
    """The source of the value."""

    config_map_key_ref: KeySelector = f.section(KeySelector, description="A key of a ConfigMap.", **_OTHER)
    secret_key_ref: KeySelector = f.section(KeySelector, description="A key of a Secret.", **_OTHER)
    field_ref: FieldSelector = f.section(FieldSelector, **_OTHER)
    resource_field_ref: ResourceSelector = f.section(ResourceSelector, **_OTHER)
    rules = (
        Rule(
            cel=" + ".join(f"(has(self.{source}) ? 1 : 0)" for source in _SOURCES) + " == 1",
            message=f"{{path}} must have exactly one of {', '.join(_SOURCES)}",
        ),
    )


class EnvVar(ApiObject):
    """An environment variable."""

    # As EnvVar of k8s.io/api v0.35.4, core/v1/types.go.
    name: str = f.string(
        "Name of the variable.",
        Form(r"^[A-Za-z_][-._A-Za-z0-9]*$", "letters, digits, '_', '-' and '.', no digit first", 253),
        required=True,
    )
    value: str = f.string("The value.", maximum=32768, absent="empty")
    value_from: EnvVarSource = f.section(EnvVarSource, optional=True, absent="`value`")
    rules = (
        Rule(
            cel="!(has(self.value) && self.value != '' && has(self.valueFrom))",
            message="{path}: value and valueFrom exclude each other; give one of them",
            path=".valueFrom",
        ),
    )


class Workspace(ApiObject):
    """The submitted directory. `kubectl torchrun` sends it, and each worker has it at the workingDir of the queue.
    Running workers receive a new one."""

    digest: str = f.string(
        "Digest of the archive, a tar.zst. Workers refuse any other archive.",
        Form(r"^sha256:[0-9a-f]{64}$", "sha256: and 64 hexadecimal digits", 80),
        required=True,
    )
    size_bytes: int = f.integer(
        "Size of the archive. Workers refuse an archive of another size.",
        minimum=1, unit="bytes", int64=True, required=True,
    )  # fmt: skip
    url: str = f.string(
        "The archive in S3.", f.BUCKET_OBJECT, absent="the sync pod of the job has the archive"
    )
    restart_on_sync: bool = f.boolean("Whether a new archive restarts the workers.", default=False)


class Distributed(ApiObject):
    """How the processes find each other and communicate."""

    backend: str = f.choice(
        "The backend of torch.distributed. The script reads it from TORCHRUN_BACKEND, because torchrun has no option "
        "for it.",
        (NCCL, GLOO),
        absent="nccl with GPUs, gloo without",
    )
    rdzv_backend: str = f.choice(
        "The rendezvous backend of torchrun. etcd and etcd-v2 without rdzvEndpoint become c10d, as condition "
        "RendezvousSubstituted reports. c10d needs no other service.",
        (C10D, *ETCD, STATIC),
        default=C10D,
    )
    rdzv_endpoint: str = f.string(
        "The rendezvous endpoint, such as the host and port of etcd.", f.ENDPOINT, absent="the first worker"
    )
    port: int | None = f.integer(
        "Port of the rendezvous on the first worker.",
        minimum=1024, maximum=65535, absent="networking.port of the queue",
    )  # fmt: skip


class Elastic(ApiObject):
    """The range of nodes. The job runs with as many of them as are available. A new range restarts the workers, which
    does not count as a restart."""

    min_nodes: int = f.integer("The minimum number of nodes.", minimum=1, maximum=MAX_NODES, required=True)
    max_nodes: int = f.integer(
        "The maximum number of nodes. numGPUs is the GPUs of this number of nodes.",
        minimum=1, maximum=MAX_NODES, required=True,
    )  # fmt: skip
    rules = (
        Rule(
            cel="self.minNodes <= self.maxNodes",
            message="{path}.minNodes must not be above {path}.maxNodes",
            path=".minNodes",
        ),
    )


def _fixed(name: str) -> Rule:
    """Return a rule of the whole spec. A field's own rule is not evaluated when the field is added or removed."""
    return Rule(
        cel=f"has(self.{name}) == has(oldSelf.{name}) && (!has(self.{name}) || self.{name} == oldSelf.{name})",
        message=f"{name} can't be changed; create a new TorchrunJob",
        path=f".{name}",
        reason=FORBIDDEN,
    )


def _from_queue(name: str) -> Any:
    """Return a field of jobDefaults without its default, because the queue's default applies."""
    return JobDefaults.fields[name].partial(f"jobDefaults.{name} of the queue")


def _overrides() -> Any:
    """Return all fields of the queue. So a job with other values does not need another queue."""
    no_parent = Rule(
        cel="!has(self.parentKaiQueue)",
        message="parentKaiQueue is a field of TorchrunQueues: a job joins an existing queue of KAI Scheduler",
        path=".parentKaiQueue",
        reason=FORBIDDEN,
    )
    queue = QUEUE.partial("that of the queue")
    return replace(
        queue,
        description="Differences from the queue: objects are merged, lists and single values replace those of the "
        "queue. A job creates no queue of KAI Scheduler: its kaiQueue must exist, and it has no parentKaiQueue.",
        absent="none",
        rules=(*queue.rules, no_parent),
        model=None,
        empty={},
    )


class JobSpec(ApiObject):
    """The training, its size and its queue."""

    job_queue: str = f.string(
        "The TorchrunQueue of the job, in its namespace. The job waits until it exists.", f.OBJECT_NAME, required=True
    )  # fmt: skip
    num_gpus: int = f.integer(
        "The GPUs of all workers together; 0 for a job on CPUs, whose size is numNodes.",
        maximum=MAX_GPUS, required=True,
    )  # fmt: skip
    num_nodes: int | None = f.integer(
        "The number of nodes, each with the same number of GPUs. A new value restarts the workers, which does not "
        "count as a restart.",
        minimum=1,
        maximum=MAX_NODES,
        absent="the fewest nodes that have the GPUs; 1 for a job on CPUs",
    )
    command: str = f.string(
        "The command, in the syntax of a POSIX shell. launcher defines how often it runs.",
        Form(r"\S", "a command, such as python train.py", 32768),
        required=True,
    )
    args: tuple[str, ...] = f.array(
        "Arguments that are added to the command as they are.",
        f.string("An argument.", maximum=32768), maximum=256, absent="none",
    )  # fmt: skip
    launcher: str = f.choice(
        "What starts the processes: torchrun starts the command once for each GPU. With none, the command runs once on "
        "each node and starts its own processes.",
        (TORCHRUN, NO_LAUNCHER),
        absent="torchrun for Python programs; none for a command with a launcher or an unknown program",
    )
    env: tuple[JsonObject, ...] = f.array(
        "Environment variables of the processes.", EnvVar, maximum=256, key="name", absent="only those of torchrun"
    )  # fmt: skip
    workspace: Workspace | None = f.section(Workspace, optional=True, absent="only the files of the image")
    distributed: Distributed = f.section(Distributed, default={}, absent="the default of each field")
    elastic: Elastic | None = f.section(Elastic, optional=True, absent="a fixed number of nodes")
    suspend: bool = f.boolean(
        "Whether the job has no workers for now. Its volumes and its status stay.", default=False
    )
    ttl_seconds_after_finished: int | None = _from_queue("ttlSecondsAfterFinished")
    active_deadline_seconds: int | None = _from_queue("activeDeadlineSeconds")
    restart_policy: str = _from_queue("restartPolicy")
    max_restarts: int | None = _from_queue("maxRestarts")
    persist_checkpoints: bool = f.boolean(
        "Whether the claim with the checkpoints stays when the job is deleted.", default=False
    )
    overrides: JsonObject = _overrides()
    # Fields that need further permissions (permissions.py).
    restricted_fields: tuple[str, ...] = ()
    rules = (
        *map(_fixed, FIXED),
        # If a size is below 1, its minimum reports it. No rule may divide by it.
        Rule(
            cel="!has(self.numNodes) || self.numNodes < 1 || self.numGPUs % self.numNodes == 0",
            message="numNodes must divide numGPUs: each node has the same number of GPUs",
            path=".numNodes",
        ),
        Rule(
            cel="!(has(self.numNodes) && has(self.elastic))",
            message="numNodes and elastic exclude each other; give numNodes, or elastic.minNodes and elastic.maxNodes",
            path=".numNodes",
        ),
        Rule(
            cel="!has(self.elastic) || self.elastic.maxNodes < 1 || self.numGPUs % self.elastic.maxNodes == 0",
            message="elastic.maxNodes must divide numGPUs, which is the GPUs of maxNodes nodes",
            path=".elastic.maxNodes",
        ),
        Rule(
            cel="!(has(self.distributed.backend) && self.distributed.backend == 'nccl' && self.numGPUs == 0)",
            message="distributed.backend nccl needs GPUs and numGPUs is 0; use gloo on CPUs",
            path=".distributed.backend",
        ),
        Rule(
            cel="!(has(self.elastic) && self.distributed.rdzvBackend == 'static')",
            message="distributed.rdzvBackend static needs a fixed number of nodes; elastic needs c10d, etcd or etcd-v2",
            path=".distributed.rdzvBackend",
        ),
    )

    @property
    def backend(self) -> str:
        """The backend of torch.distributed."""
        return self.distributed.backend or (NCCL if self.num_gpus else GLOO)

    @property
    def has_sync_pod(self) -> bool:
        """Whether a sync pod keeps the workspace, because it is in no bucket."""
        return self.workspace is not None and not self.workspace.url

    @property
    def literal_variables(self) -> dict[str, str]:
        """The environment variables with literal values."""
        return {str(var["name"]): str(var["value"]) for var in self.env if var.get("value") is not None}

    @property
    def size_key(self) -> str:
        """Return the requested size as text. Another size requires another attempt."""
        if self.elastic is not None:
            return f"{self.elastic.min_nodes}:{self.elastic.max_nodes}"
        return "auto" if self.num_nodes is None else str(self.num_nodes)


JOB: Final[Field] = f.section(JobSpec).at("")


class Meta(ApiObject):
    """The metadata of an object."""

    name: str = f.string("", minimum=1, required=True)
    namespace: str = f.string("")
    uid: str = f.string("")
    generation: int = f.integer("", default=0)
    deletion_timestamp: str = f.string("")
    finalizers: tuple[str, ...] = f.array("", f.string(""), maximum=0)
    creation_timestamp: str = f.string("")

    @property
    def deleting(self) -> bool:
        """Whether the object is being deleted."""
        return bool(self.deletion_timestamp)

    @property
    def created(self) -> float:
        """Seconds since the epoch, 0 if unknown."""
        return parse_time(self.creation_timestamp) or 0.0


def parse_metadata(item: Mapping[str, Any]) -> Meta:
    """Return the metadata of an object, which the API server has checked."""
    return Meta.parse(item.get("metadata"), "metadata", [])


def read_job(spec: Any) -> tuple[JobSpec, tuple[str, ...]]:
    """Return the spec of a job with defaults for invalid fields, and a line for each invalid field."""
    problems: list[str] = []
    parsed = JobSpec.parse(spec, "spec", problems)
    parsed.restricted_fields = restricted_fields(spec)
    return parsed, tuple(problems)


def parse_job(spec: Any) -> tuple[JobSpec | None, tuple[str, ...]]:
    """Return the spec of a job, or None and a line for each invalid field."""
    parsed, problems = read_job(spec)
    return (None, problems) if problems else (parsed, ())
