"""Section `training` of a stack file: the run, the size of its workers, and its fallback pools.

The launcher's request is made of these values (`components.documents.launch`), and its reader relies on their checks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Final

from pydantic import GetJsonSchemaHandler
from pydantic_core import CoreSchema

from components.documents import checkpoints as checkpoint_places
from components.documents.launch import Candidate, WorkerSize
from components.documents.pool import GPU, NEURON, Pool
from infra.settings.fields import NEXT_RUN, REQUIRED, AsTuple, Choice, Model, Text, WholeNumber, setting
from infra.settings.formats import Bytes, Cores, VariableName, VariableValue
from infra.settings.pools import PoolEntry, PoolName, find_pool
from infra.settings.problems import Section, sections
from trainyard.k8s import quantity
from trainyard.k8s.names import (
    BACKEND_PYTORCHJOB,
    BACKEND_TRAINJOB,
    ENV_REGION,
    RUN_ID_MAX_LENGTH,
    SHUTDOWN_MAX_SECONDS,
    SHUTDOWN_VARIABLE,
)

PATH: Final = "trainyard:training"
CUDA: Final = "cuda"
DEVICES: Final = (CUDA, "cpu")
# The data sets in the trainer's image (trainer/workloads).
DATA_SETS: Final = ("digits", "corpus")
STATIC, ELASTIC = "static", "elastic"
SHARED_MEMORY: Final = "8Gi"
OWN: Final = "TRAINYARD_"
# https://kubernetes.io/docs/concepts/configuration/secret/#restriction-names-data
_OBJECT_NAME: Final = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
_REFERENCE: Final = (
    rf"(?P<name>[A-Za-z_][A-Za-z0-9_]*)(=(?P<secret>{_OBJECT_NAME})(/(?P<key>[-._A-Za-z0-9]+))?)?"
)
_REFERENCE_MUST_BE: Final = "NAME or NAME=SECRET/KEY, such as HF_TOKEN or HF_TOKEN=hub/token"
# Variables that the training operator, torchrun and its workers set
# (https://docs.pytorch.org/docs/stable/elastic/run.html; kubeflow/training-operator@v1.9.4, pkg/controller.v1/pytorch).
RENDEZVOUS: Final = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK"),
    *("ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT"),
)
RENDEZVOUS_PREFIXES: Final = ("PET_", "TORCHELASTIC_")
# The SDKs look for these before the service account's role, or take that role from them
# (https://docs.aws.amazon.com/sdkref/latest/guide/standardized-credentials.html).
CREDENTIALS: Final = (
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_SECURITY_TOKEN"),
    *("AWS_ROLE_ARN", "AWS_ROLE_SESSION_NAME", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_PROFILE"),
    *("AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"),
)
RunId = Annotated[
    str,
    Text(
        f"lower case letters, digits and hyphens, at most {RUN_ID_MAX_LENGTH}",
        rf"[a-z0-9]([-a-z0-9]{{0,{RUN_ID_MAX_LENGTH - 2}}}[a-z0-9])?",
    ),
]
Arguments = Annotated[tuple[Annotated[str, Text("a text (numbers in quotes)", r"[^\0]*")], ...], AsTuple]
SecretReferences = Annotated[tuple[Annotated[str, Text(_REFERENCE_MUST_BE, _REFERENCE)], ...], AsTuple]


class Fallback(Model):
    """An entry of `training.fallbackPools`: the name of a pool, or a mapping."""

    entries: ClassVar[str] = "names or mappings"
    entry: ClassVar[str] = "a pool's name or a mapping"

    @classmethod
    def to_mapping(cls, data: Any) -> Any:
        """Return a mapping, also for an entry that is only the name of a pool."""
        return super().to_mapping({"pool": data} if isinstance(data, str) else data)

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"anyOf": [{"type": "string"}, handler(schema)]}

    pool: PoolName = setting(REQUIRED, NEXT_RUN, example="reserved")
    """The pool's name. An entry may be the name alone."""
    capacity_deadline_seconds: WholeNumber | None = setting(
        None, NEXT_RUN, example=600, unit="seconds", default_text="the training's", ge=1
    )
    """The time to wait for the minimum of nodes in this pool."""
    processes_per_node: WholeNumber | None = setting(
        None,
        NEXT_RUN,
        example=8,
        default_text=(
            "the training's for the same type, or with `device: cpu` and a value there; else the node's GPUs or 1"
        ),
        ge=1,
    )
    """Worker processes per node in this pool."""
    cpu: Cores | None = setting(
        None, NEXT_RUN, example="80", default_text="the training's for the same type, else 85 % of the node's"
    )
    """Cores that a worker requests in this pool."""
    memory: Bytes | None = setting(
        None,
        NEXT_RUN,
        example="800Gi",
        default_text="the training's for the same type, else 75 % of the node's",
    )
    """Memory that a worker requests in this pool."""
    shared_memory: Bytes | None = setting(None, NEXT_RUN, example="64Gi", default_text="the training's")
    """Size of a worker's /dev/shm in this pool."""


Fallbacks = Annotated[tuple[Fallback, ...], AsTuple]


class TrainingSection(Model):
    """The section `training`."""

    pool: PoolName = setting(REQUIRED, NEXT_RUN, example="large")
    """The pool to train on."""
    run_id: RunId | None = setting(None, "in place, starts the next run", example="r1")
    """The name of the run. Another name starts another run; the Job and model of the earlier run stay. Without a
    name, `up` starts no run.
    """
    min_nodes: WholeNumber = setting(REQUIRED, NEXT_RUN, example=2, unit="nodes", ge=1)
    """The minimum number of nodes. With fewer nodes at the deadline, the run tries the next of `fallbackPools`, then
    the next of `attempts`, and then fails.
    """
    max_nodes: WholeNumber = setting(REQUIRED, NEXT_RUN, example=16, unit="nodes", ge=1)
    """The maximum number of nodes."""
    device: Annotated[str, Choice(DEVICES)] = setting(CUDA, NEXT_RUN, example="cuda")
    """The workers' device. Workers with `cuda` fail on nodes without GPUs."""
    processes_per_node: WholeNumber | None = setting(
        None, NEXT_RUN, example=8, default_text="the node's GPUs, else 1", ge=1
    )
    """Worker processes per node."""
    cpu: Cores | None = setting(None, NEXT_RUN, example="80", default_text="85 % of the node's")
    """Cores that a worker requests on this instance type. A fallback of another type has its own default. Without
    accelerators, the default is the only valid value.
    """
    memory: Bytes | None = setting(None, NEXT_RUN, example="800Gi", default_text="75 % of the node's")
    """Memory that a worker requests on this instance type. A fallback of another type has its own default."""
    shared_memory: Bytes | None = setting(None, NEXT_RUN, example="64Gi", default_text="8Gi")
    """Size of a worker's /dev/shm, which is a part of its memory."""
    capacity_deadline_seconds: WholeNumber = setting(1200, NEXT_RUN, example=1200, unit="seconds", ge=10)
    """The time to wait for the minimum of nodes in `pool`."""
    fallback_pools: Fallbacks = setting(
        (),
        NEXT_RUN,
        example=[
            {
                "pool": "reserved",
                "capacityDeadlineSeconds": 600,
                "processesPerNode": 8,
                "cpu": "80",
                "memory": "800Gi",
                "sharedMemory": "64Gi",
            }
        ],
    )
    """Pools to try in this order if `pool` does not have the minimum by its deadline, for instance with another zone,
    type or purchase. Each must support `device` and the trainer's image, and allow `minNodes` nodes. A run never uses
    nodes of two pools.
    """
    hold_seconds: WholeNumber = setting(60, NEXT_RUN, example=60, unit="seconds", ge=0)
    """The time to wait for more nodes after the minimum, as long as more may start."""
    node_start_seconds: WholeNumber = setting(900, NEXT_RUN, example=900, unit="seconds", ge=60)
    """The time limit for a new node to become usable: registered, initialized, and with all of its devices. After
    this time, the launcher deletes it, and Karpenter launches another one. A shorter deadline takes precedence.
    """
    attempts: WholeNumber = setting(1, NEXT_RUN, example=3, ge=1)
    """How often to try `pool` and all of `fallbackPools` before the run fails. The longest wait is the sum of their
    `capacityDeadlineSeconds` for each attempt, plus `retrySeconds` and up to a fifth more between attempts.
    """
    retry_seconds: WholeNumber = setting(240, NEXT_RUN, example=240, unit="seconds", ge=180)
    """The pause between two attempts, plus up to a fifth at random. The run holds no node in the pause. Karpenter
    does not retry within three minutes after EC2 refused a launch.
    """
    max_restarts: WholeNumber = setting(3, NEXT_RUN, example=3, ge=0)
    """How often a failed run restarts, each time on the available nodes from `minNodes` to `maxNodes`. Configuration
    errors never cause a restart. 0: the first failure ends the run. See docs/restarts.md.
    """
    shape: Annotated[str, Choice((STATIC, ELASTIC))] = setting(STATIC, NEXT_RUN, example="static")
    """`static`: the world has a fixed size, and each lost worker causes a restart. `elastic`: torchrun's agents may
    continue with at least `minNodes` nodes.
    """
    backend: Annotated[str, Choice((BACKEND_PYTORCHJOB, BACKEND_TRAINJOB))] = setting(
        BACKEND_PYTORCHJOB,
        f"{NEXT_RUN}; deletes the operator and the jobs of the other kind",
        example="pytorchjob",
    )
    """The kind of the training job: a PyTorchJob of Kubeflow's training operator, or a TrainJob of Kubeflow Trainer,
    its successor. The stack installs only the one that the run needs. `trainjob` needs `shape: static`. See
    docs/deploying.md.
    """
    active_deadline_seconds: WholeNumber | None = setting(
        None, NEXT_RUN, example=14400, unit="seconds", ge=60
    )
    """The time limit of the run with all of its restarts, without the wait for nodes."""
    data: Annotated[str, Text("digits, corpus, or the path of a directory")] = setting(
        "digits", NEXT_RUN, example="digits"
    )
    """`digits`, `corpus`, or the absolute path of a directory (docs/workloads.md). It is not checked for a custom image
    (`images.trainer`).
    """
    checkpoints: Annotated[str, Choice(checkpoint_places.PLACES)] = setting(
        checkpoint_places.S3, NEXT_RUN, example="s3"
    )
    """The place of the checkpoints, with a directory per run: `s3` (`checkpoints/<runId>/` in the stack's bucket),
    `lustre` (the same on the file system; on an existing one below `trainyard/<stack>/`) or `none`. A restarted run
    continues from the newest one: docs/checkpoints.md.
    """
    args: Arguments = setting((), NEXT_RUN, example=["--epochs", "10"])
    """Options of the trainer (`trainer/config.py`), each followed by its value. They are not checked for a custom
    image (`images.trainer`). With a file system, the options for metrics precede them: docs/training-metrics.md.
    """
    env: dict[VariableName, VariableValue] = setting({}, NEXT_RUN, example={"NCCL_DEBUG": "WARN"})
    """Further environment variables of the workers, in plain text. AWS credentials and variables of the rendezvous
    are refused. `up` and `preview` warn of names that look like other credentials; put those into `secrets`.
    """
    secrets: SecretReferences = setting((), NEXT_RUN, example=["HF_TOKEN", "WANDB_API_KEY=wandb/key"])
    """Environment variables of the workers from Kubernetes Secrets of the namespace `training`: `NAME`, or
    `NAME=SECRET/KEY`. `HF_TOKEN` alone is the key `HF_TOKEN` of the Secret `hf-token`. If a Secret is missing, the
    workers wait, and the launcher names it.
    """


Worker = Section[TrainingSection] | Section[Fallback]


class Training(TrainingSection):
    """One training run. Without `run_id` the stack starts no run; the manifest in its outputs starts one.

    `candidates` are the pools for the run in the order in which the launcher tries them: `pool`, then `fallbackPools`.
    `secret_keys` are the variables of `secrets`, each with `<Secret>/<key>`.
    """

    candidates: tuple[Candidate, ...]
    secret_keys: dict[str, str]


def check_training(section: Section[TrainingSection], pools: list[PoolEntry]) -> Training:
    """Check the run against its pools, and set the sizes of its workers."""
    values = section.values
    entry = _usable_pool(section, pools)
    pool = entry.sized if entry else None
    if section.ok("minNodes", "maxNodes") and values.min_nodes > values.max_nodes:
        section.reject(
            "minNodes", f"{values.min_nodes} is more than maxNodes; it must be at most {values.max_nodes}"
        )
    _check_ceiling(section, entry)
    if pool and values.device == CUDA and section.ok("device") and pool.resource != GPU:
        section.reject("device", f"cuda needs GPUs and {pool.instance_type} has none; it must be cpu")
    if section.ok("backend", "shape") and values.backend == BACKEND_TRAINJOB and values.shape == ELASTIC:
        section.reject(
            "shape",
            f"is {ELASTIC}, and backend is {BACKEND_TRAINJOB}, which has no elastic jobs; it must be {STATIC}, or"
            f" backend must be {BACKEND_PYTORCHJOB}",
        )
    # With an invalid device, the pools are not checked.
    device = values.device if section.ok("device") else ""
    size = check_size(section, pool, device, size_of_type(pool))
    first = (
        Candidate(pool=entry.pool, size=size, capacity_deadline_seconds=values.capacity_deadline_seconds)
        if entry
        else None
    )
    candidates = (*([first] if first else []), *_check_fallbacks(section, pools, first, pool, device))
    _check_environment(section)
    secrets = _check_secrets(section)
    # With an error, a size may be no quantity.
    if not section.problems.about(PATH):
        candidates = tuple(replace(each, size=_within_memory(each.size)) for each in candidates)
    return Training.model_construct(**dict(values), candidates=candidates, secret_keys=secrets)


def _usable_pool(section: Worker, pools: list[PoolEntry]) -> PoolEntry | None:
    """Return the pool that `pool` names, if the trainer can use it."""
    found = find_pool(section, pools)
    if found is None or found.sized is None or found.sized.resource != NEURON:
        return found
    # The trainer supports CUDA and CPUs. Users can run their own Neuron jobs on the pool.
    section.reject(
        "pool",
        f"'{found.pool.name}' has {found.pool.instance_type}, whose Neuron devices the trainer can't use; it must be"
        " a pool with NVIDIA GPUs or without accelerators. A stack without training creates its pools, too",
    )
    return None


def _check_ceiling(section: Section[TrainingSection], entry: PoolEntry | None) -> None:
    """Check that the minimum is within the pool's `maxNodes`. The launcher lowers a maximum above it."""
    least, most = section.values.min_nodes, entry.max_nodes if entry else None
    if entry and most is not None and section.ok("minNodes") and least > most:
        section.reject(
            "minNodes",
            f"{least} is more than the pool '{entry.pool.name}' may have; it must be at most {most}, its maxNodes",
        )


def _check_fallbacks(
    run: Section[TrainingSection],
    pools: list[PoolEntry],
    first: Candidate | None,
    sized: Pool | None,
    device: str,
) -> list[Candidate]:
    """Return the fallbacks in their order, without those with an unknown pool.

    Args:
        run: The section of the run.
        pools: The stack file's pools.
        first: The first candidate, None if its pool is unknown.
        sized: The first candidate's pool, None if its instance type is invalid.
        device: The device, "" if it is invalid.
    """
    found: list[Candidate] = []
    places = {first.pool.name: run.at("pool")} if first else {}
    for section in sections(run.problems, run.at("fallbackPools"), run.values.fallback_pools):
        entry = _usable_pool(section, pools)
        pool = entry.sized if entry else None
        name = entry.pool.name if entry else ""
        if name in places:
            section.reject("pool", f"'{name}' is {places[name]} already; it must be another pool")
        elif entry:
            places[name] = section.path
            _check_fallback_pool(section, entry, device, run)
        default = size_of_type(pool)
        if pool and first and sized:
            same = device != CUDA and run.has("processesPerNode")
            default = size_of_fallback(pool, sized, first.size, same_processes=same)
        size = check_size(section, pool, device, default)
        if entry:
            deadline = section.values.capacity_deadline_seconds or run.values.capacity_deadline_seconds
            found.append(Candidate(pool=entry.pool, size=size, capacity_deadline_seconds=deadline))
    return found


def _check_fallback_pool(
    section: Section[Fallback], entry: PoolEntry, device: str, run: Section[TrainingSection]
) -> None:
    """Check a fallback pool against the requirements of the run. `storage.lustre` checks the zone of all pools."""
    pool, most, least = entry.pool, entry.max_nodes, run.values.min_nodes
    if device == CUDA and entry.sized and pool.resource != GPU:
        section.reject(
            "pool",
            f"'{pool.name}' is of {pool.instance_type}, which has no GPUs, and device is cuda; it must be a pool"
            " with GPUs",
        )
    if most is not None and run.ok("minNodes") and most < least:
        section.reject(
            "pool",
            f"'{pool.name}' may have at most {most} nodes, fewer than minNodes ({least}); it must be a"
            f" pool whose maxNodes is at least {least}",
        )


def size_of_type(pool: Pool | None) -> WorkerSize:
    """Return the default size of a worker on a node of the pool. `None` stands for an unknown pool."""
    return WorkerSize(
        processes_per_node=(pool.accelerators if pool else 0) or 1,
        cpu=pool.worker_cpu if pool else "1",
        memory=pool.worker_memory if pool else "1Gi",
        shared_memory=SHARED_MEMORY,
    )


def size_of_fallback(pool: Pool, first: Pool, size: WorkerSize, *, same_processes: bool) -> WorkerSize:
    """Return the default size of a worker on a node of a fallback.

    `size` is the size on a node of the `first` pool. Another instance type has other cores, memory and GPUs.
    `same_processes` says that the number of processes was set, and so does not depend on GPUs.
    """
    if pool.instance_type == first.instance_type:
        return size
    own = replace(size_of_type(pool), shared_memory=size.shared_memory)
    return replace(own, processes_per_node=size.processes_per_node) if same_processes else own


def check_size(section: Worker, pool: Pool | None, device: str, default: WorkerSize) -> WorkerSize:
    """Return the size of a worker on a node of the pool. Report values that exceed the instance type."""
    values = section.values
    processes = values.processes_per_node
    if processes and pool and device == CUDA and pool.accelerators and processes > pool.accelerators:
        section.reject(
            "processesPerNode",
            f"{processes} is more than the GPUs of {pool.instance_type}; it must be at most {pool.accelerators}",
        )
    size = WorkerSize(
        processes_per_node=processes or default.processes_per_node,
        cpu=values.cpu or default.cpu,
        memory=values.memory or default.memory,
        shared_memory=values.shared_memory or default.shared_memory,
    )
    if pool and values.cpu:
        _check_cpu(section, pool, size.cpu)
    if pool and values.memory and quantity.parse(size.memory) >= pool.memory_gib * 2**30:
        section.reject(
            "memory",
            f"'{size.memory}' leaves nothing of the {pool.memory_gib} GiB of {pool.instance_type} to the system; it"
            f" must be less, such as '{pool.worker_memory}'",
        )
    if section.ok("memory", "sharedMemory") and (pool or values.memory):
        _check_shared_memory(section, size)
    # Fallbacks inherit the value, and must not report the same error.
    return size if section.ok("sharedMemory") else replace(size, shared_memory=default.shared_memory)


def _within_memory(size: WorkerSize) -> WorkerSize:
    """Return the size with /dev/shm limited to the worker's memory, because the default may be larger."""
    if quantity.parse(size.shared_memory) <= quantity.parse(size.memory):
        return size
    return replace(size, shared_memory=size.memory)


def _check_cpu(section: Worker, pool: Pool, cpu: str) -> None:
    if not pool.accelerators and quantity.parse(cpu) != quantity.parse(pool.worker_cpu):
        # The launcher counts such nodes by the cores that a worker requests (`components.documents.pool.request`).
        section.reject(
            "cpu",
            f"'{cpu}' is not what nodes of {pool.instance_type} are counted by; it must be '{pool.worker_cpu}',"
            " or left out",
        )
    elif quantity.parse(cpu) >= pool.vcpus:
        section.reject(
            "cpu",
            f"'{cpu}' leaves nothing of the {pool.vcpus} cores of {pool.instance_type} to the system; it must be"
            f" less, such as '{pool.worker_cpu}'",
        )


def _check_shared_memory(section: Worker, size: WorkerSize) -> None:
    """Check /dev/shm, which counts towards the worker's limit, its memory.

    https://kubernetes.io/docs/concepts/storage/volumes/#emptydir
    `_within_memory` lowers a default that is too large.
    """
    is_set = section.values.shared_memory is not None
    is_default = not is_set and size.shared_memory == SHARED_MEMORY
    if not is_default and quantity.parse(size.shared_memory) > quantity.parse(size.memory):
        section.reject(
            "sharedMemory",
            f"'{size.shared_memory}'{'' if is_set else ', as the training has it,'} is more than the worker's memory,"
            f" of which it is a part; it must be at most '{size.memory}'",
        )


def _check_environment(section: Section[TrainingSection]) -> None:
    env = section.values.env
    for name in env:
        if problem := _reserved(name):
            section.reject(f"env.{name}", problem)
    stops = env.get(SHUTDOWN_VARIABLE, "1")
    if not (stops.isascii() and stops.isdecimal() and 1 <= int(stops) <= SHUTDOWN_MAX_SECONDS):
        section.reject(
            f"env.{SHUTDOWN_VARIABLE}",
            f"is {stops!r}; it must be a whole number of seconds from 1 to {SHUTDOWN_MAX_SECONDS}",
        )


def _check_secrets(section: Section[TrainingSection]) -> dict[str, str]:
    """Return the variables of the workers from Secrets, each as `<Secret>/<key>`.

    NAME alone is the key NAME of the Secret with that name, as in `kubectl torchrun submit --secret`.
    """
    found: dict[str, str] = {}
    env: Mapping[str, str] = section.values.env
    for index, entry in enumerate(section.values.secrets):
        match = re.fullmatch(_REFERENCE, entry)
        if match is None:  # reported by the model
            continue
        name, key = match["name"], match["key"]
        secret = match["secret"] or name.lower().replace("_", "-")
        place = f"secrets[{index}]"
        if problem := _reserved(name):
            section.reject(place, f"{name} {problem}")
        elif name in env:
            section.reject(place, f"{name} is also in env; it must be in one of them")
        elif name in found:
            section.reject(place, f"{name} is listed twice; each variable must be unique")
        elif not re.fullmatch(_OBJECT_NAME, secret):
            section.reject(place, f"{entry} is not the name of a Secret; it must be {_REFERENCE_MUST_BE}")
        found[name] = f"{secret}/{key or name}"
    return found


def _reserved(name: str) -> str | None:
    if name == ENV_REGION or name.startswith(OWN):
        return "is set by the stack itself; it must be another name"
    if name in RENDEZVOUS or name.startswith(RENDEZVOUS_PREFIXES):
        return "is set for each worker, so that they find each other; it must be left out"
    if name in CREDENTIALS:
        return (
            "is for credentials, and workers have those of their service account's role; it must be left out"
        )
    return None
