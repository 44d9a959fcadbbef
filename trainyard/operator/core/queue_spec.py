"""The spec of a TorchrunQueue as values, out of what the API has. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from trainyard.k8s.quantity import Amount
from trainyard.operator import names as n
from trainyard.operator.core.reading import Fields, JsonObject

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
MOST_RESTARTS: Final = 100
DEFAULT_RESTARTS: Final = 3
_ABSOLUTE: Final = r"/[^:]+"


@dataclass(frozen=True, kw_only=True)
class Volume:
    """One of a queue's volumes. Sizes are bytes; either `size`, `size_per_gpu` or `existing_claim` is given."""

    name: str
    mount_path: str
    size: Amount | None = None
    size_per_gpu: Amount | None = None
    storage_class: str = ""
    access_mode: str = ""
    existing_claim: str = ""
    retain: bool = False


@dataclass(frozen=True, kw_only=True)
class JobDefaults:
    """What holds for jobs that do not say it themselves. Times are seconds."""

    time_to_live: int | None
    deadline: int | None
    restart_policy: str
    max_restarts: int


@dataclass(frozen=True, kw_only=True)
class QueueSpec:
    """How jobs are made. cpus are processors, memory and shared memory bytes, of a node and of a GPU."""

    kai_queue: str
    parent_kai_queue: str
    gpus: int
    cpus: Amount
    memory: Amount
    gpu_type: str
    image: str
    working_directory: str
    template_labels: Mapping[str, str]
    template_annotations: Mapping[str, str]
    template_spec: JsonObject
    volumes: Mapping[str, Volume]
    bucket: str
    shared_memory_per_gpu: Amount | None
    scheduler: str
    priority_class: str
    node_selector: Mapping[str, str]
    affinity: JsonObject
    tolerations: tuple[JsonObject, ...]
    pool: str
    port: int
    interface: str
    job_defaults: JobDefaults


def parse(spec: Any, place: str = "spec") -> tuple[QueueSpec | None, tuple[str, ...]]:
    """The spec, or None and what is wrong with it, a line for each field."""
    problems: list[str] = []
    fields = Fields(spec, place, problems)
    resources, storage = fields.part("nodeResources"), fields.part("storage")
    template, scheduling = fields.part("podTemplate"), fields.part("scheduling")
    metadata, networking = template.part("metadata"), fields.part("networking")
    working_directory = fields.words(
        "workingDir", WORKING_DIRECTORY, _ABSOLUTE, "an absolute path without ':'"
    )
    for needed in ("cpus", "memory"):
        if not resources.has(needed):
            resources.wrong(needed, "a quantity above 0")
    parsed = QueueSpec(
        kai_queue=fields.words("kaiQueue"),
        parent_kai_queue=fields.words("parentKaiQueue", n.KAI_PARENT_QUEUE),
        gpus=resources.whole("gpus", 0, most=64),
        cpus=resources.size("cpus") or 1,
        memory=resources.size("memory") or 1,
        gpu_type=resources.words("gpuType"),
        image=fields.text("image", "an image reference"),
        working_directory=working_directory,
        template_labels=metadata.map("labels"),
        template_annotations=metadata.map("annotations"),
        template_spec=_pod_spec(template),
        volumes=_volumes(storage, working_directory),
        bucket=storage.part(WORKSPACE)
        .words("bucket", "", r"s3://[^\s]+", "s3://bucket or s3://bucket/prefix")
        .rstrip("/"),
        shared_memory_per_gpu=storage.size("shmSizePerGPU"),
        scheduler=scheduling.words("scheduler"),
        priority_class=scheduling.words("priorityClassName"),
        node_selector=scheduling.map("nodeSelector"),
        affinity=_affinity(scheduling),
        tolerations=_tolerations(scheduling),
        pool=scheduling.words("pool"),
        port=networking.whole("port", n.RENDEZVOUS_PORT, least=1024, most=65535),
        interface=networking.words("interface"),
        job_defaults=_job_defaults(fields.part("jobDefaults")),
    )
    return (None, tuple(problems)) if problems else (parsed, ())


def _job_defaults(fields: Fields) -> JobDefaults:
    return JobDefaults(
        time_to_live=fields.whole_or_none("ttlSecondsAfterFinished"),
        deadline=fields.whole_or_none("activeDeadlineSeconds", least=1),
        restart_policy=fields.one_of("restartPolicy", (NEVER, ON_FAILURE), ON_FAILURE),
        max_restarts=fields.whole("maxRestarts", DEFAULT_RESTARTS, most=MOST_RESTARTS),
    )


def _volumes(storage: Fields, working_directory: str) -> dict[str, Volume]:
    paths = {WORKSPACE: working_directory, DATASETS: "/datasets", CHECKPOINTS: "/checkpoints"}
    volumes = {name: _volume(storage.part(name), name, paths[name]) for name in VOLUMES}
    return {name: volume for name, volume in volumes.items() if volume is not None}


def _volume(fields: Fields, name: str, default_path: str) -> Volume | None:
    """The volume, None where jobs have none; its fields are read all the same."""
    enabled = fields.yes("enabled")
    volume = Volume(
        name=name,
        size=fields.size("size"),
        size_per_gpu=fields.size("sizePerGPU"),
        storage_class=fields.words("storageClass"),
        access_mode=fields.one_of("accessMode", (READ_WRITE_ONCE, READ_WRITE_MANY, READ_ONLY_MANY)),
        existing_claim=fields.words("existingClaim"),
        retain=fields.yes("retain"),
        mount_path=fields.words("mountPath", default_path, _ABSOLUTE, "an absolute path without ':'"),
    )
    said = [key for key in ("size", "sizePerGPU", "existingClaim") if fields.has(key)]
    if enabled and len(said) != 1:
        fields.problems.append(
            f"{fields.place} has {' and '.join(said) or 'no size'}; it must be one of size, sizePerGPU and "
            "existingClaim"
        )
    return volume if enabled else None


def _pod_spec(template: Fields) -> JsonObject:
    """The pod's spec; of its form is read what this program adds to, the API server judges the rest in a dry run."""
    spec = template.part("spec")
    for key in ("containers", "initContainers"):
        for container in _each(spec, key, "name"):
            _each(container, "env", "name")
            _each(container, "volumeMounts", "mountPath")
            resources = container.part("resources")
            for part in ("requests", "limits"):
                resources.anything(part)
            security = container.part("securityContext")
            security.whole_or_none("runAsUser")
    _each(spec, "volumes", "name")
    spec.objects("imagePullSecrets")
    _tolerations(spec)
    spec.map("nodeSelector")
    spec.part("securityContext").whole_or_none("runAsUser")
    _affinity(spec)
    return dict(spec.values)


def _each(fields: Fields, key: str, needed: str = "") -> list[Fields]:
    """Readers of a list's objects, of which each needs this text."""
    found = [
        Fields(each, f"{fields.place}.{key}[{index}]", fields.problems)
        for index, each in enumerate(fields.objects(key))
    ]
    for each in found:
        if needed:
            each.text(needed)
    return found


def _tolerations(fields: Fields) -> tuple[JsonObject, ...]:
    for each in _each(fields, "tolerations"):
        if each.values.get("key") != "":
            each.words("key")
    return fields.objects("tolerations")


def _affinity(fields: Fields) -> JsonObject:
    node = fields.part("affinity").part("nodeAffinity")
    required = node.part("requiredDuringSchedulingIgnoredDuringExecution")
    for term in _each(required, "nodeSelectorTerms"):
        term.objects("matchExpressions")
    return fields.anything("affinity")
