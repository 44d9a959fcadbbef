"""Read and check the request of a run: TRAINYARD_REQUEST, MIN_NODES and MAX_NODES.

The entry point is `parse_request()`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from launcher import validation
from launcher.validation import Reader
from trainyard.k8s import names, quantity

_SHAPE = re.compile(f"{names.SHAPE_STATIC}|{names.SHAPE_ELASTIC}")
_BACKEND = re.compile(f"{names.BACKEND_PYTORCHJOB}|{names.BACKEND_TRAINJOB}")

# Karpenter does not try an offering for three minutes after EC2 refused it, so an earlier retry is useless
# (github.com/aws/karpenter-provider-aws v1.14.1, UnavailableOfferingsTTL in pkg/cache/cache.go).
MIN_RETRY_SECONDS = 180
MIN_NODE_START_SECONDS = 60
GPU_RESOURCE = "nvidia.com/gpu"


class RequestError(ValueError):
    """The request is invalid. The message has one line per error, each with its path."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


@dataclass(frozen=True, kw_only=True)
class Block:
    """A capacity block. Times are in seconds since the epoch.

    Attributes:
        reclaimed_at: When Karpenter starts to drain its nodes, before EC2 terminates them
            (`names.CAPACITY_BLOCK_DRAIN_SECONDS`).
        on_demand_fallback: Whether nodes are launched on demand while the block can't be used.
        begins: When the first node can be launched; None if it is not known.
    """

    ends: float
    reclaimed_at: float
    on_demand_fallback: bool
    begins: float | None = None


@dataclass(frozen=True, kw_only=True)
class Pool:
    """The nodes that a run may use. All have one instance type and are in one zone.

    Attributes:
        per_node: The amount of `resource` on a node.
        max_nodes: The maximum from the settings.
        block: The capacity block of the nodes, if any.
    """

    name: str
    instance_type: str
    zone: str
    resource: str
    per_node: int
    max_nodes: int
    efa_per_node: int
    node_selector: Mapping[str, str]
    tolerations: tuple[Mapping[str, Any], ...]
    block: Block | None = None


@dataclass(frozen=True, kw_only=True)
class Placeholder:
    """The pod that holds a node until a worker preempts it."""

    image: str
    priority_class: str


@dataclass(frozen=True, kw_only=True)
class Worker:
    """The pod that trains. `cpu`, `memory` and `shared_memory` are Kubernetes quantities.

    Attributes:
        mounts: The mount path of each PersistentVolumeClaim.
        writes: The directories in these volumes that are created if they are missing, writable for every pod.
        secrets: The `<Secret>/<key>` of each environment variable.
    """

    image: str
    service_account: str
    priority_class: str
    processes_per_node: int
    cpu: str
    memory: str
    shared_memory: str
    env: Mapping[str, str]
    args: tuple[str, ...]
    command: tuple[str, ...] | None
    mounts: Mapping[str, str]
    writes: tuple[str, ...] = ()
    secrets: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Fallback:
    """A pool to use if the pools before it have fewer than MIN nodes, its worker, and its deadline."""

    pool: Pool
    worker: Worker
    deadline_seconds: int


@dataclass(frozen=True, kw_only=True)
class Request:
    """One run. Durations are in seconds.

    Attributes:
        pool: The pool of the first candidate. `worker` and `deadline_seconds` also belong to this candidate.
        node_start_seconds: After this time, a node that can't run a worker is released.
        attempts: The maximum number of attempts. Each tries every candidate once.
        retry_seconds: The minimum pause between attempts.
        max_restarts: How often the run restarts after a failure.
        shape: The shape of the world: static or elastic.
        active_deadline_seconds: The limit for all training jobs of the run together.
        fallbacks: The other candidates.
        backend: The kind of the training job: pytorchjob or trainjob.
    """

    run_id: str
    namespace: str
    pool: Pool
    min_nodes: int
    max_nodes: int
    deadline_seconds: int
    hold_seconds: int
    node_start_seconds: int
    attempts: int
    retry_seconds: int
    max_restarts: int
    shape: str
    active_deadline_seconds: int | None
    placeholder: Placeholder
    worker: Worker
    fallbacks: tuple[Fallback, ...]
    backend: str = names.BACKEND_PYTORCHJOB

    @property
    def candidates(self) -> int:
        """The number of candidate pools."""
        return 1 + len(self.fallbacks)

    def candidate(self, index: int) -> Request:
        """Return this request with the pool, worker and deadline of the candidate `index`."""
        if index == 0:
            return self
        fallback = self.fallbacks[index - 1]
        return replace(self, **vars(fallback))

    @property
    def lease(self) -> str:
        """The name of the Lease that the launcher of this run holds."""
        return f"{names.LAUNCHER_JOB_PREFIX}{self.run_id}"

    @property
    def training_job(self) -> str:
        """The name of the training job."""
        return f"{names.TRAINING_JOB_PREFIX}{self.run_id}"

    def placeholder_name(self, index: int) -> str:
        """Return the name of the placeholder pod with this index, from 0 to below `max_nodes`."""
        return f"{names.PLACEHOLDER_PREFIX}{self.run_id}-{index}"

    @property
    def resources(self) -> dict[str, str]:
        """The resources of a worker, and so of its placeholder."""
        resources = {"cpu": self.worker.cpu, "memory": self.worker.memory}
        resources[self.pool.resource] = str(self.pool.per_node)
        if self.pool.efa_per_node:
            resources[names.EFA_RESOURCE] = str(self.pool.efa_per_node)
        return resources


def parse_request(environment: Mapping[str, str]) -> Request:
    """Return the request in this process environment. Raises RequestError with all errors together."""
    problems: list[str] = []
    text = environment.get(names.ENV_REQUEST)
    if not text:
        raise RequestError([f"{names.ENV_REQUEST} is not set; it must be the request of a run as JSON"])
    try:
        document = json.loads(text)
    # RecursionError: deeply nested lists.
    except (ValueError, RecursionError) as error:
        raise RequestError([f"{names.ENV_REQUEST} is no JSON: {error}"]) from None
    top = Reader(document, names.ENV_REQUEST, problems)
    lowest, highest = top.number("minNodes", 1), top.number("maxNodes", 1)
    lowest = _override(environment, names.ENV_MIN_NODES, lowest, problems)
    highest = _override(environment, names.ENV_MAX_NODES, highest, problems)
    if lowest > highest:
        problems.append(
            f"{names.ENV_MIN_NODES} is {lowest} and {names.ENV_MAX_NODES} is {highest}; it must be MIN <= MAX"
        )
    active = top.raw("activeDeadlineSeconds")
    request = Request(
        run_id=_run_id(top, environment, problems),
        namespace=top.text("namespace", "a DNS label", validation.LABEL, validation.LABEL_LENGTH),
        pool=_pool(top.section("pool")),
        min_nodes=lowest,
        max_nodes=highest,
        deadline_seconds=top.number("capacityDeadlineSeconds", 1),
        hold_seconds=top.number("holdSeconds", 0),
        node_start_seconds=top.number("nodeStartSeconds", MIN_NODE_START_SECONDS),
        attempts=top.number("attempts", 1),
        retry_seconds=top.number("retrySeconds", MIN_RETRY_SECONDS),
        max_restarts=top.number("maxRestarts", 0),
        shape=top.text("shape", f"{names.SHAPE_STATIC} or {names.SHAPE_ELASTIC}", _SHAPE),
        active_deadline_seconds=None if active is None else top.number("activeDeadlineSeconds", 1),
        placeholder=_placeholder(top.section("placeholder")),
        worker=_worker(top.section("worker")),
        fallbacks=tuple(_fallback(reader) for reader in top.items("fallbacks")),
        backend=_backend(top),
    )
    top.finish()
    problems += _contradictions(request, top.place, problems)
    if problems:
        raise RequestError(problems)
    return request


def _contradictions(request: Request, top: str, earlier: list[str]) -> list[str]:
    """Return the contradictions between values. Skip values with an `earlier` error."""
    found: list[str] = []
    pools: list[str] = []
    if request.backend == names.BACKEND_TRAINJOB and request.shape == names.SHAPE_ELASTIC:
        found.append(
            f"{top}.shape is {names.SHAPE_ELASTIC}; it must be {names.SHAPE_STATIC} with backend {request.backend},"
            " because Kubeflow Trainer has no elastic jobs"
        )
    for index in range(request.candidates):
        candidate = request.candidate(index)
        place = top if index == 0 else f"{top}.fallbacks[{index - 1}]"
        pool = candidate.pool
        if pool.resource == "cpu" and quantity.parse(candidate.worker.cpu) != pool.per_node:
            found.append(
                f"{place}.worker.cpu is {candidate.worker.cpu}; it must be pool.perNode "
                f"({pool.per_node}) in a pool that is counted by its CPUs"
            )
        processes = candidate.worker.processes_per_node
        on_gpus = candidate.worker.env.get(names.ENV_DEVICE) == "cuda"
        known = not any(problem.startswith(f"{place}.pool.perNode is ") for problem in earlier)
        if on_gpus and known and pool.resource == GPU_RESOURCE and processes > pool.per_node:
            found.append(
                f"{place}.worker.processesPerNode is {processes}; it must be at most pool.perNode "
                f"({pool.per_node}), which is how many GPUs {pool.instance_type} has"
            )
        worker = candidate.worker
        if quantity.parse(worker.shared_memory) > quantity.parse(worker.memory):
            found.append(
                f"{place}.worker.sharedMemory is {worker.shared_memory}; it must be at most memory"
                f" ({worker.memory}), of which it is a part"
            )
        if pool.name and pool.name in pools:
            found.append(
                f"{place}.pool.name is {json.dumps(pool.name)}; it must be a pool that no candidate before names"
            )
        pools.append(pool.name)
    return found


def _override(environment: Mapping[str, str], name: str, value: int, problems: list[str]) -> int:
    text = environment.get(name, "").strip()
    if not text:
        return value
    if not re.fullmatch(r"[0-9]{1,6}", text) or int(text) < 1:
        problems.append(f"{name} is {_short(text)}; it must be a whole number from 1 to 999999")
        return value
    return int(text)


def _backend(top: Reader) -> str:
    """Return the backend. A request without one means pytorchjob."""
    if top.raw("backend") is None:
        return names.BACKEND_PYTORCHJOB
    return top.text("backend", f"{names.BACKEND_PYTORCHJOB} or {names.BACKEND_TRAINJOB}", _BACKEND)


def _short(text: str) -> str:
    """Return at most 100 characters of a value for a message."""
    return repr(text) if len(text) <= 100 else f"{text[:100]!r}..."


def _run_id(top: Reader, environment: Mapping[str, str], problems: list[str]) -> str:
    value, place, prefix = top.raw("runId"), f"{top.place}.runId", ""
    shown = value
    if value is None:
        job, place = environment.get(names.ENV_JOB_NAME, ""), names.ENV_JOB_NAME
        if not job.startswith(names.LAUNCHER_JOB_PREFIX):
            problems.append(
                f"{place} is {job!r}; it must be {names.LAUNCHER_JOB_PREFIX}<run>, as the request names no run"
            )
            return ""
        value, shown, prefix = (
            job.removeprefix(names.LAUNCHER_JOB_PREFIX),
            job,
            f"{names.LAUNCHER_JOB_PREFIX} and ",
        )
    if (
        not isinstance(value, str)
        or not validation.LABEL.fullmatch(value)
        or len(value) > names.RUN_ID_MAX_LENGTH
    ):
        problems.append(
            f"{place} is {shown!r}; it must be {prefix}at most {names.RUN_ID_MAX_LENGTH} lower-case letters, digits "
            "and dashes, beginning and ending with a letter or digit"
        )
        return ""
    return value


def _pool(reader: Reader) -> Pool:
    tolerations = reader.raw("tolerations")
    if not isinstance(tolerations, list) or not all(map(validation.is_toleration, tolerations)):
        reader.wrong(
            "tolerations",
            "a list of tolerations, each with strings for key, operator, value and effect as in a pod",
        )
        tolerations = []
    pool = Pool(
        name=reader.text("name", "a DNS label", validation.LABEL, validation.LABEL_LENGTH),
        instance_type=reader.text("instanceType", "the value of a label", validation.LABEL_VALUE),
        zone=reader.text("zone", "the value of a label", validation.LABEL_VALUE),
        resource=reader.text(
            "resource", "the name of a resource, for instance nvidia.com/gpu", validation.RESOURCE
        ),
        per_node=reader.number("perNode", 1),
        max_nodes=reader.number("maxNodes", 1),
        efa_per_node=reader.number("efaPerNode", 0),
        node_selector=reader.table("nodeSelector"),
        tolerations=tuple(tolerations),
        block=None if reader.raw("block") is None else _block(reader.section("block")),
    )
    if pool.node_selector.get(names.LABEL_NODEPOOL) != pool.name:
        reader.wrong("nodeSelector", f"one with {names.LABEL_NODEPOOL}: {pool.name}")
    elif not validation.is_selector(pool.node_selector):
        reader.wrong("nodeSelector", "labels of nodes, with keys and values of up to 63 characters")
    reader.finish()
    return pool


def _block(reader: Reader) -> Block:
    ends = reader.moment("ends")
    begins = reader.moment("begins") if reader.raw("begins") is not None else None
    if begins is not None and begins >= ends > 0:
        reader.wrong("begins", "a time before the block's end")
    block = Block(
        begins=begins,
        ends=ends,
        reclaimed_at=ends - reader.number("takenBackSeconds", 0),
        on_demand_fallback=reader.flag("onDemandFallback"),
    )
    reader.finish()
    return block


def _fallback(reader: Reader) -> Fallback:
    fallback = Fallback(
        pool=_pool(reader.section("pool")),
        worker=_worker(reader.section("worker")),
        deadline_seconds=reader.number("capacityDeadlineSeconds", 1),
    )
    reader.finish()
    return fallback


def _placeholder(reader: Reader) -> Placeholder:
    placeholder = Placeholder(
        image=reader.image("image"),
        priority_class=reader.name("priorityClassName"),
    )
    reader.finish()
    return placeholder


def _worker(reader: Reader) -> Worker:
    command = reader.raw("command")
    env = reader.table("env")
    for name in env:
        if not validation.ENV_NAME.fullmatch(name):
            reader.problems.append(f"{reader.place}.env has {name!r}; it must be letters, digits and _")
    stops = env.get(names.SHUTDOWN_VARIABLE, "1")
    if not (re.fullmatch(r"[0-9]{1,6}", stops) and 1 <= int(stops) <= names.SHUTDOWN_MAX_SECONDS):
        reader.problems.append(
            f"{reader.place}.env.{names.SHUTDOWN_VARIABLE} is {_short(stops)}; "
            f"it must be a whole number of seconds from 1 to {names.SHUTDOWN_MAX_SECONDS}"
        )
    secrets = reader.table("secrets") if "secrets" in reader.values else {}
    for name, place in secrets.items():
        secret, _, key = place.partition("/")
        if not validation.ENV_NAME.fullmatch(name) or name in env:
            reader.problems.append(
                f"{reader.place}.secrets has {name!r}; it must be letters, digits and _, and no name of env"
            )
        if not (validation.NAME.fullmatch(secret) and re.fullmatch(r"[-._A-Za-z0-9]+", key)):
            reader.problems.append(
                f"{reader.place}.secrets.{name} is {_short(place)}; it must be the name of a Secret, / and its key"
            )
    mounts = validation.read_mounts(reader)
    worker = Worker(
        image=reader.image("image"),
        service_account=reader.name("serviceAccountName"),
        priority_class=reader.name("priorityClassName"),
        processes_per_node=reader.number("processesPerNode", 1),
        cpu=reader.amount("cpu"),
        memory=reader.amount("memory"),
        shared_memory=reader.amount("sharedMemory"),
        env=env,
        args=reader.texts("args"),
        command=None if command is None else reader.texts("command"),
        mounts=mounts,
        writes=validation.read_writes(reader, mounts),
        secrets=secrets,
    )
    reader.finish()
    return worker
