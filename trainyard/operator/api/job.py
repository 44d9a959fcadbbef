"""The spec of a TorchrunJob. `parse_job` reads it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from trainyard.operator import names as n
from trainyard.operator.api.fields import (
    FORBIDDEN,
    ApiObject,
    Field,
    JsonObject,
    Rule,
    array,
    boolean,
    bucket_object,
    choice,
    endpoint,
    integer,
    object_name,
    parse_time,
    pattern,
    quantity,
    section,
    string,
)
from trainyard.operator.api.permissions import restricted_fields
from trainyard.operator.api.queue import (
    QUEUE,
    deadline_field,
    max_restarts_field,
    restart_policy_field,
    ttl_field,
)

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
# The pods have these fields from their start.
FIXED: Final = (
    "jobQueue",
    "numGPUs",
    "command",
    "args",
    "launcher",
    "env",
    "distributed",
    "overrides",
    "persistCheckpoints",
)
_NAME: Final = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_SOURCES: Final = ("configMapKeyRef", "secretKeyRef", "fieldRef", "resourceFieldRef")


class KeySelector(ApiObject):
    """A key of a ConfigMap or Secret."""

    name: str = object_name("Name of the object.", required=True)
    key: str = string("The key.", minimum=1, maximum=253, required=True)
    optional: bool = boolean("Whether the job starts without it, too.", absent="false")


class FieldSelector(ApiObject):
    """A field of the pod."""

    api_version: str = string("The version of the path.", maximum=63, absent="v1")
    field_path: str = string("Its path, such as status.podIP.", minimum=1, maximum=1024, required=True)


class ResourceSelector(ApiObject):
    """A request or limit of a container."""

    container_name: str = string("The container.", maximum=63, absent="the workers'")
    resource: str = string("The resource, such as limits.memory.", minimum=1, maximum=317, required=True)
    divisor: str = quantity("The unit that it is told in.", "1Mi", absent="1")


class EnvVarSource(ApiObject):
    """Where its value comes from."""

    config_map_key_ref: KeySelector = section(
        KeySelector,
        description="A key of a ConfigMap of the job's namespace.",
        optional=True,
        absent="another source",
    )
    secret_key_ref: KeySelector = section(
        KeySelector,
        description="A key of a Secret of the job's namespace.",
        optional=True,
        absent="another source",
    )
    field_ref: FieldSelector = section(FieldSelector, optional=True, absent="another source")
    resource_field_ref: ResourceSelector = section(ResourceSelector, optional=True, absent="another source")
    rules = (
        Rule(
            cel=" + ".join(f"(has(self.{each}) ? 1 : 0)" for each in _SOURCES) + " == 1",
            message=f"{{path}} must have exactly one of {', '.join(_SOURCES)}",
        ),
    )


class EnvVar(ApiObject):
    """One variable."""

    # As EnvVar of k8s.io/api v0.35.4, core/v1/types.go.
    name: str = pattern(
        "Name of the variable.",
        r"^[A-Za-z_][-._A-Za-z0-9]*$",
        "letters, digits, '_', '-' and '.', no digit first",
        maximum=253,
        required=True,
    )
    value: str = string("Its value.", maximum=32768, absent="empty")
    value_from: EnvVarSource = section(EnvVarSource, optional=True, absent="`value` holds it")
    rules = (
        Rule(
            cel="!(has(self.value) && self.value != '' && has(self.valueFrom))",
            message="{path}: value and valueFrom exclude each other; give one of them",
            path=".valueFrom",
        ),
    )


class Workspace(ApiObject):
    """The directory that is mounted at the queue's workingDir in every worker, as `kubectl torchrun` sent it. A new one
    is brought to the running workers."""

    digest: str = pattern(
        "Digest of the archive, a tar.zst. Workers refuse any other archive.",
        r"^sha256:[0-9a-f]{64}$",
        "sha256: and 64 hexadecimal digits",
        maximum=80,
        required=True,
    )
    size_bytes: int = integer(
        "Size of the archive. Workers refuse an archive of another size.",
        minimum=1,
        unit="bytes",
        int64=True,
        required=True,
    )
    url: str = bucket_object("Where the archive is in S3.", absent="it comes through the job's sync pod")
    restart_on_sync: bool = boolean(
        "Whether the workers are started anew when a new archive has come.", default=False
    )


class Distributed(ApiObject):
    """How the processes find each other and exchange."""

    backend: str = choice(
        "What the processes exchange through: the script reads it from TORCHRUN_BACKEND, torchrun takes none.",
        (NCCL, GLOO),
        absent="nccl with GPUs, gloo without",
    )
    rdzv_backend: str = choice(
        "How the workers meet. etcd and etcd-v2 without rdzvEndpoint become c10d, which condition "
        "RendezvousSubstituted says; c10d needs no other service.",
        (C10D, *ETCD, STATIC),
        default=C10D,
    )
    rdzv_endpoint: str = endpoint(
        "Where the workers meet: an etcd's host and port, for instance.", absent="the first worker"
    )
    port: int | None = integer(
        "Port of the rendezvous on the first worker.",
        minimum=1024,
        maximum=65535,
        absent="the queue's networking.port",
    )


class Elastic(ApiObject):
    """The job runs with any number of nodes in this range, with as many as there are. A new range starts the workers
    anew, which is not counted as a restart."""

    min_nodes: int = integer(
        "The fewest nodes that the job runs with.", minimum=1, maximum=MAX_NODES, required=True
    )
    max_nodes: int = integer(
        "The most nodes; numGPUs is then the GPUs of all of these.",
        minimum=1,
        maximum=MAX_NODES,
        required=True,
    )
    rules = (
        Rule(
            cel="self.minNodes <= self.maxNodes",
            check=lambda self: self.min_nodes <= self.max_nodes,
            message="{path}.minNodes must not be above {path}.maxNodes",
            path=".minNodes",
        ),
    )


def _fixed(name: str) -> Rule:
    """Return a rule of the whole spec: a rule of the field is not evaluated when the field is added or removed."""
    return Rule(
        cel=f"has(self.{name}) == has(oldSelf.{name}) && (!has(self.{name}) || self.{name} == oldSelf.{name})",
        message=f"{name} can't be changed; make a new TorchrunJob",
        path=f".{name}",
        reason=FORBIDDEN,
    )


def _overrides() -> Any:
    """Return all fields of the queue, so that a job that differs needs no queue of its own."""
    queue = QUEUE.partial("the queue's")
    no_parent = Rule(
        cel="!has(self.parentKaiQueue)",
        message="parentKaiQueue is a field of TorchrunQueues: a job joins an existing queue of KAI Scheduler",
        path=".parentKaiQueue",
        reason=FORBIDDEN,
    )
    return Field(
        description="What is different from the queue: objects are merged with the queue's, lists and single values "
        "replace it. A job makes no queue of KAI Scheduler: its kaiQueue is one that is there, and it has no "
        "parentKaiQueue.",
        holds="object",
        form="an object",
        checks={"type": "object"},
        absent="nothing",
        fields=queue.fields,
        rules=(*queue.rules, no_parent),
        valid=lambda value: isinstance(value, dict),
        empty={},
    )


class JobSpec(ApiObject):
    """What is trained, on how many GPUs, in which queue."""

    job_queue: str = object_name(
        "The TorchrunQueue of the job's namespace that says how it is made; a job waits for one that is not there yet.",
        required=True,
    )
    num_gpus: int = integer(
        "GPUs of all workers together; 0 for a job on CPUs, whose size numNodes says.",
        maximum=MAX_GPUS,
        required=True,
    )
    num_nodes: int | None = integer(
        "Nodes that the GPUs are spread over, the same number on each; of a job on CPUs, its nodes. A new value starts "
        "the workers anew, which is not counted as a restart.",
        minimum=1,
        maximum=MAX_NODES,
        absent="one node if the GPUs fit, else the fewest; of a job on CPUs 1",
    )
    command: str = pattern(
        "The command, in the syntax of a POSIX shell; launcher defines how often it runs.",
        r"\S",
        "a command, such as python train.py",
        maximum=32768,
        required=True,
    )
    args: tuple[str, ...] = array(
        "Words that follow the command as they are.",
        string("One word.", maximum=32768),
        maximum=256,
        absent="none",
    )
    launcher: str = choice(
        "What starts the processes: torchrun starts the command once for each GPU. With none, the command runs once on "
        "each node and starts its own processes.",
        (TORCHRUN, NO_LAUNCHER),
        absent="torchrun for Python programs; none for a command with a launcher or an unknown program",
    )
    env: tuple[JsonObject, ...] = array(
        "Environment of the processes.", EnvVar, maximum=256, key="name", absent="none but torchrun's"
    )
    workspace: Workspace | None = section(Workspace, optional=True, absent="no workspace: what the image has")
    distributed: Distributed = section(Distributed, default={}, absent="each field's own")
    elastic: Elastic | None = section(Elastic, optional=True, absent="the number of nodes is fixed")
    suspend: bool = boolean(
        "Whether the job has no workers for now; its volumes and its status stay.", default=False
    )
    # These have no defaults, which would hide those of the queue.
    ttl_seconds_after_finished: int | None = ttl_field("the queue's jobDefaults.ttlSecondsAfterFinished")
    active_deadline_seconds: int | None = deadline_field("the queue's jobDefaults.activeDeadlineSeconds")
    restart_policy: str = restart_policy_field(absent="the queue's jobDefaults.restartPolicy")
    max_restarts: int | None = max_restarts_field(absent="the queue's jobDefaults.maxRestarts")
    persist_checkpoints: bool = boolean(
        "Whether the claim with the checkpoints outlives the job.", default=False
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
            check=lambda self: self.num_nodes is None or self.elastic is None,
            message="numNodes and elastic exclude each other: elastic.minNodes and elastic.maxNodes say the size",
            path=".numNodes",
        ),
        Rule(
            cel="!has(self.elastic) || self.elastic.maxNodes < 1 || self.numGPUs % self.elastic.maxNodes == 0",
            message="elastic.maxNodes must divide numGPUs, which are the GPUs of maxNodes nodes",
            path=".elastic.maxNodes",
        ),
        Rule(
            cel="!(has(self.distributed.backend) && self.distributed.backend == 'nccl' && self.numGPUs == 0)",
            check=lambda self: self.distributed.backend != NCCL or self.num_gpus > 0,
            message="distributed.backend nccl needs GPUs and numGPUs is 0; gloo runs on CPUs",
            path=".distributed.backend",
        ),
        Rule(
            cel="!(has(self.elastic) && self.distributed.rdzvBackend == 'static')",
            check=lambda self: self.elastic is None or self.distributed.rdzv_backend != STATIC,
            message="distributed.rdzvBackend static needs a fixed number of nodes; elastic needs c10d, etcd or etcd-v2",
            path=".distributed.rdzvBackend",
        ),
    )

    @property
    def backend(self) -> str:
        """The backend of torch.distributed."""
        return self.distributed.backend or (NCCL if self.num_gpus else GLOO)

    @property
    def size_key(self) -> str:
        """The requested size as text. A job with another size needs another attempt."""
        if self.elastic is not None:
            return f"{self.elastic.min_nodes}:{self.elastic.max_nodes}"
        return "auto" if self.num_nodes is None else str(self.num_nodes)


JOB: Final[Field] = section(JobSpec).at("")


class Meta(ApiObject):
    """The metadata of an object."""

    name: str = string("Its name.", minimum=1, maximum=253, required=True)
    namespace: str = string("Its namespace.", maximum=63)
    uid: str = string("Its uid.", maximum=63)
    resource_version: str = string("Its version.", maximum=63)
    generation: int = integer("The generation of its spec.", int64=True, default=0)
    deletion_timestamp: str = string("The time of its deletion.", maximum=40)
    finalizers: tuple[str, ...] = array("Its finalizers.", string("One of them.", maximum=316), maximum=64)
    creation_timestamp: str = string("The time of its creation.", maximum=40)

    @property
    def deleting(self) -> bool:
        """Whether the object is being deleted."""
        return bool(self.deletion_timestamp)

    @property
    def created(self) -> float:
        """Seconds since the epoch, 0 if unknown."""
        return parse_time(self.creation_timestamp) or 0.0


def parse_metadata(item: Mapping[str, Any], problems: list[str]) -> Meta:
    """Return the metadata of an object."""
    return Meta.parse(item.get("metadata"), "metadata", problems)


def check_name(name: str, problems: list[str]) -> None:
    """Append a problem if the name of a job is no name of a Service. Other names begin with it."""
    if len(name) > n.JOB_NAME_MAX_LENGTH or not _NAME.fullmatch(name):
        problems.append(
            f"metadata.name is {name[:60]!r}; it must be at most {n.JOB_NAME_MAX_LENGTH} lower-case letters, "
            "digits and '-', a letter first and no '-' at the end"
        )


def read_job(spec: Any) -> tuple[JobSpec, tuple[str, ...]]:
    """Return what could be read of a job's spec, with defaults for the rest, and a line for each invalid field."""
    problems: list[str] = []
    parsed = JobSpec.parse(spec, "spec", problems)
    parsed.restricted_fields = restricted_fields(spec)
    return parsed, tuple(problems)


def parse_job(spec: Any) -> tuple[JobSpec | None, tuple[str, ...]]:
    """Return the spec of a job, or None and a line for each invalid field."""
    parsed, problems = read_job(spec)
    return (None, problems) if problems else (parsed, ())
