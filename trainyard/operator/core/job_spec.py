"""A TorchrunJob as values, out of what the API has. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from trainyard.operator import names as n
from trainyard.operator.core.permissions import restricted_fields
from trainyard.operator.core.queue_spec import MOST_RESTARTS, NEVER, ON_FAILURE
from trainyard.operator.core.reading import MOST_EXACT, Fields, JsonObject, parse_time

# Of spec.launcher: torchrun starts the command once for each GPU, or nothing does.
TORCHRUN: Final = "torchrun"
NO_LAUNCHER: Final = "none"
NCCL: Final = "nccl"
GLOO: Final = "gloo"
C10D: Final = "c10d"
STATIC: Final = "static"
ETCD_V2: Final = "etcd-v2"
ETCD: Final = ("etcd", ETCD_V2)
MOST_GPUS: Final = 65536
MOST_NODES: Final = 4096
_NAME: Final = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_DIGEST: Final = r"sha256:[0-9a-f]{64}"


@dataclass(frozen=True, kw_only=True)
class Workspace:
    """The submitted directory. `url` is where the archive is in S3; without it, it comes through the sync pod."""

    digest: str
    size_bytes: int
    url: str
    restart_on_sync: bool


@dataclass(frozen=True, kw_only=True)
class Elastic:
    """Bounds of the number of nodes."""

    least: int
    most: int


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """The spec of a job. None and empty values mean the queue's default. Times are in seconds.

    `restricted_fields` are the fields that need further permissions (trainyard/operator/core/permissions.py).
    """

    queue: str
    gpus: int
    nodes: int | None
    command: str
    args: tuple[str, ...]
    launcher: str  # "" for what is detected
    env: tuple[JsonObject, ...]
    workspace: Workspace | None
    backend: str
    rendezvous: str
    endpoint: str
    port: int | None
    elastic: Elastic | None
    suspend: bool
    time_to_live: int | None
    deadline: int | None
    restart_policy: str
    max_restarts: int | None
    persist_checkpoints: bool
    overrides: JsonObject
    restricted_fields: tuple[str, ...] = ()

    @property
    def size_key(self) -> str:
        """The size that is asked for, as a text: another one is another attempt."""
        if self.elastic is not None:
            return f"{self.elastic.least}:{self.elastic.most}"
        return "auto" if self.nodes is None else str(self.nodes)


@dataclass(frozen=True, kw_only=True)
class Meta:
    """The metadata of an object. `created` is in seconds since the epoch, 0 if it is not known."""

    name: str
    namespace: str
    uid: str
    version: str
    generation: int
    deleting: bool
    finalizers: tuple[str, ...] = ()
    created: float = 0.0


def meta(item: Mapping[str, Any], problems: list[str]) -> Meta:
    """The object's metadata."""
    fields = Fields(item.get("metadata"), "metadata", problems)
    return Meta(
        name=fields.text("name"),
        namespace=fields.words("namespace"),
        uid=fields.words("uid"),
        version=fields.words("resourceVersion"),
        generation=fields.whole("generation", 0),
        deleting=fields.has("deletionTimestamp"),
        finalizers=fields.strings("finalizers"),
        created=parse_time(fields.raw("creationTimestamp")) or 0.0,
    )


def check_name(name: str, problems: list[str]) -> None:
    """The name is also that of a Service, and the beginning of others."""
    if len(name) > n.JOB_NAME_MAX_LENGTH or not _NAME.fullmatch(name):
        problems.append(
            f"metadata.name is {name[:60]!r}; it must be at most {n.JOB_NAME_MAX_LENGTH} lower-case letters, "
            "digits and '-', a letter first and no '-' at the end"
        )


def parse(spec: Any) -> tuple[JobSpec | None, tuple[str, ...]]:
    """The spec, or None and what is wrong with it, a line for each field."""
    parsed, problems = read(spec)
    return (None, problems) if problems else (parsed, ())


def read(spec: Any) -> tuple[JobSpec, tuple[str, ...]]:
    """What of the spec can be read, the rest as if it were not said, and what is wrong, a line for each field."""
    problems: list[str] = []
    fields = Fields(spec, "spec", problems)
    distributed = fields.part("distributed")
    if not fields.has("numGPUs"):
        fields.wrong("numGPUs", "a whole number, 0 for a job on CPUs")
    gpus = fields.whole("numGPUs", 0, most=MOST_GPUS)
    backend = distributed.one_of("backend", (NCCL, GLOO), NCCL if gpus else GLOO)
    rendezvous = distributed.one_of("rdzvBackend", (C10D, *ETCD, STATIC), C10D)
    elastic = _elastic(fields)
    nodes = fields.whole_or_none("numNodes", least=1, most=MOST_NODES)
    if backend == NCCL and not gpus:
        distributed.wrong("backend", "gloo, as numGPUs is 0")
    if elastic is not None and rendezvous == STATIC:
        distributed.wrong("rdzvBackend", "c10d, etcd or etcd-v2 for an elastic job")
    if elastic is not None and nodes is not None:
        fields.wrong("numNodes", "missing, as elastic says the size")
    parsed = JobSpec(
        queue=fields.text("jobQueue", "the name of a TorchrunQueue"),
        gpus=gpus,
        nodes=nodes,
        command=fields.text("command", "a command, such as python train.py", re.compile(r"(?s).*\S.*")),
        args=fields.strings("args"),
        launcher=fields.one_of("launcher", (TORCHRUN, NO_LAUNCHER)),
        env=_environment(fields),
        workspace=_workspace(fields),
        backend=backend,
        rendezvous=rendezvous,
        endpoint=distributed.words("rdzvEndpoint"),
        port=distributed.whole_or_none("port", least=1024, most=65535),
        elastic=elastic,
        suspend=fields.yes("suspend"),
        time_to_live=fields.whole_or_none("ttlSecondsAfterFinished"),
        deadline=fields.whole_or_none("activeDeadlineSeconds", least=1),
        restart_policy=fields.one_of("restartPolicy", (NEVER, ON_FAILURE)),
        max_restarts=fields.whole_or_none("maxRestarts", most=MOST_RESTARTS),
        persist_checkpoints=fields.yes("persistCheckpoints"),
        overrides=fields.anything("overrides"),
        restricted_fields=restricted_fields(spec),
    )
    return parsed, tuple(problems)


def _environment(fields: Fields) -> tuple[JsonObject, ...]:
    variables = fields.objects("env")
    for index, each in enumerate(variables):
        Fields(each, f"{fields.place}.env[{index}]", fields.problems).text("name", "the variable's name")
    return variables


def _workspace(fields: Fields) -> Workspace | None:
    if not fields.has("workspace"):
        return None
    part = fields.part("workspace")
    return Workspace(
        digest=part.text("digest", "sha256: and 64 hexadecimal digits", re.compile(_DIGEST)),
        size_bytes=part.needed("sizeBytes", least=1, most=MOST_EXACT),
        url=part.words("url", "", r"s3://[^/\s]+/\S+", "s3://bucket/key"),
        restart_on_sync=part.yes("restartOnSync"),
    )


def _elastic(fields: Fields) -> Elastic | None:
    if not fields.has("elastic"):
        return None
    part = fields.part("elastic")
    least, most = (part.needed(key, least=1, most=MOST_NODES) for key in ("minNodes", "maxNodes"))
    elastic = Elastic(least=least, most=most)
    if elastic.least > elastic.most:
        part.wrong("minNodes", f"at most elastic.maxNodes, which is {elastic.most}")
    return elastic
