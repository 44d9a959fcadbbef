"""What a launcher is asked to do: TRAINYARD_REQUEST, MIN_NODES and MAX_NODES, checked and frozen."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from launcher.core import contract as c
from launcher.core import quantity

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# A tag after the last slash, or a digest: without either a node runs whatever `latest` is on that day.
_PINNED_IMAGE = re.compile(r"\S+(@sha256:[0-9a-f]{64}|:[A-Za-z0-9_][A-Za-z0-9._-]{0,127})")


class RequestError(ValueError):
    """A request that is wrong; the message has one line per mistake, each with its place."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


@dataclass(frozen=True, kw_only=True)
class Block:
    """A capacity block: when it ends and from when its machines are taken back, in seconds since the epoch.

    Karpenter begins it by a drain, before EC2 ends them (contract.yaml, `capacityBlocks`).
    With `on_demand_fallback` machines are bought on demand once it has ended.
    """

    ends: float
    taken_back: float
    on_demand_fallback: bool


@dataclass(frozen=True, kw_only=True)
class Pool:
    """The nodes that a run may use: all of one instance type, in one zone.

    `per_node` is the full number of `resource` on such a node, `max_nodes` the ceiling that the settings give. `block`
    is the capacity block that they are of, if any.
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
    """The pod that holds a node until a worker takes its place."""

    image: str
    priority_class: str


@dataclass(frozen=True, kw_only=True)
class Worker:
    """The pod that trains.

    `cpu`, `memory` and `shared_memory` are Kubernetes quantities. `mounts` maps the claim of a shared volume to the
    directory where the pod sees it.
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


@dataclass(frozen=True, kw_only=True)
class Request:
    """One run. Durations are in seconds."""

    run_id: str
    namespace: str
    pool: Pool
    min_nodes: int
    max_nodes: int
    deadline_seconds: int
    hold_seconds: int
    active_deadline_seconds: int | None
    placeholder: Placeholder
    worker: Worker

    @property
    def training_job(self) -> str:
        """Name of the PyTorchJob."""
        return f"{c.TRAINING_JOB_PREFIX}{self.run_id}"

    def placeholder_name(self, index: int) -> str:
        """Name of the placeholder pod with this index, from 0 to below `max_nodes`."""
        return f"{c.PLACEHOLDER_PREFIX}{self.run_id}-{index}"

    @property
    def resources(self) -> dict[str, str]:
        """What a worker, and so its placeholder, asks of a node."""
        wanted = {"cpu": self.worker.cpu, "memory": self.worker.memory}
        wanted[self.pool.resource] = str(self.pool.per_node)
        if self.pool.efa_per_node:
            wanted[c.EFA_RESOURCE] = str(self.pool.efa_per_node)
        return wanted


class _Reader:
    """Takes typed values out of a JSON object and gathers what is wrong with them."""

    def __init__(self, values: Any, place: str, problems: list[str]) -> None:
        self.place, self.problems = place, problems
        self.values: dict[str, Any] = values if isinstance(values, dict) else {}
        self.taken: set[str] = set()
        if not isinstance(values, dict):
            problems.append(f"{place} is {_kind(values)}; right would be an object")

    def wrong(self, key: str, right: str) -> None:
        value = json.dumps(self.values[key]) if key in self.values else "missing"
        self.problems.append(f"{self.place}.{key} is {value}; right would be {right}")

    def raw(self, key: str) -> Any:
        self.taken.add(key)
        return self.values.get(key)

    def text(self, key: str, right: str = "a text", pattern: re.Pattern[str] | None = None) -> str:
        value = self.raw(key)
        if not isinstance(value, str) or not value or (pattern is not None and not pattern.fullmatch(value)):
            self.wrong(key, right)
            return ""
        return value

    def number(self, key: str, least: int, optional: bool = False) -> int:
        value = self.raw(key)
        if value is None and optional:
            return least
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            self.wrong(key, f"a whole number of at least {least}")
            return least
        return value

    def amount(self, key: str) -> str:
        value = self.raw(key)
        try:
            if isinstance(value, (str, int)) and not isinstance(value, bool) and quantity.parse(value) > 0:
                return str(value)
        except ValueError:
            pass  # reported below, with the place
        self.wrong(key, "a quantity above 0, for instance 4, 1500m or 2Gi")
        return "1"

    def moment(self, key: str) -> float:
        """Seconds since the epoch of a time with its zone."""
        value = self.raw(key)
        try:
            parsed = datetime.fromisoformat(value) if isinstance(value, str) else None
        except ValueError:
            parsed = None
        if parsed is None or parsed.tzinfo is None:
            self.wrong(key, "a time with its zone, for instance 2027-01-31T11:30:00Z")
            return 0.0
        return parsed.timestamp()

    def flag(self, key: str) -> bool:
        value = self.raw(key)
        if not isinstance(value, bool):
            self.wrong(key, "true or false")
        return value is True

    def texts(self, key: str) -> tuple[str, ...]:
        value = self.raw(key)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            self.wrong(key, "a list of texts")
            return ()
        return tuple(value)

    def table(self, key: str) -> dict[str, str]:
        value = self.raw(key)
        if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
            self.wrong(key, "an object of texts")
            return {}
        return dict(value)

    def section(self, key: str) -> _Reader:
        return _Reader(self.raw(key), f"{self.place}.{key}", self.problems)

    def finish(self) -> None:
        for key in sorted(set(self.values) - self.taken):
            self.problems.append(
                f"{self.place}.{key} is not known; right would be one of {sorted(self.taken)}"
            )


def _kind(value: Any) -> str:
    return "missing" if value is None else f"{json.dumps(value)[:40]}"


def parse_request(environment: Mapping[str, str]) -> Request:
    """The request in this process environment. Raises RequestError with every mistake at once."""
    problems: list[str] = []
    text = environment.get(c.ENV_REQUEST)
    if not text:
        raise RequestError([f"{c.ENV_REQUEST} is not set; right would be the request of a run as JSON"])
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise RequestError([f"{c.ENV_REQUEST} is no JSON: {error}"]) from None
    top = _Reader(document, c.ENV_REQUEST, problems)
    lowest, highest = top.number("minNodes", 1), top.number("maxNodes", 1)
    lowest = _override(environment, c.ENV_MIN_NODES, lowest, problems)
    highest = _override(environment, c.ENV_MAX_NODES, highest, problems)
    if lowest > highest:
        problems.append(
            f"{c.ENV_MIN_NODES} is {lowest} and {c.ENV_MAX_NODES} is {highest}; right would be MIN <= MAX"
        )
    active = top.raw("activeDeadlineSeconds")
    request = Request(
        run_id=_run_id(top, environment, problems),
        namespace=top.text("namespace", "a DNS label", _LABEL),
        pool=_pool(top.section("pool")),
        min_nodes=lowest,
        max_nodes=highest,
        deadline_seconds=top.number("capacityDeadlineSeconds", 1),
        hold_seconds=top.number("holdSeconds", 0),
        active_deadline_seconds=None if active is None else top.number("activeDeadlineSeconds", 1),
        placeholder=_placeholder(top.section("placeholder")),
        worker=_worker(top.section("worker")),
    )
    top.finish()
    if request.pool.resource == "cpu" and quantity.parse(request.worker.cpu) != request.pool.per_node:
        problems.append(
            f"{top.place}.worker.cpu is {request.worker.cpu}; right would be pool.perNode "
            f"({request.pool.per_node}) in a pool that is counted by its CPUs"
        )
    if problems:
        raise RequestError(problems)
    return request


def _override(environment: Mapping[str, str], name: str, value: int, problems: list[str]) -> int:
    text = environment.get(name, "").strip()
    if not text:
        return value
    if not re.fullmatch(r"[0-9]{1,6}", text) or int(text) < 1:
        problems.append(f"{name} is {text!r}; right would be a whole number of at least 1")
        return value
    return int(text)


def _run_id(top: _Reader, environment: Mapping[str, str], problems: list[str]) -> str:
    value, place = top.raw("runId"), f"{top.place}.runId"
    if value is None:
        job, place = environment.get(c.ENV_JOB_NAME, ""), c.ENV_JOB_NAME
        if not job.startswith(c.LAUNCHER_JOB_PREFIX):
            problems.append(
                f"{place} is {job!r}; right would be {c.LAUNCHER_JOB_PREFIX}<run>, as the request names no run"
            )
            return ""
        value = job.removeprefix(c.LAUNCHER_JOB_PREFIX)
    if not isinstance(value, str) or not _LABEL.fullmatch(value) or len(value) > c.RUN_ID_MAX_LENGTH:
        problems.append(
            f"{place} is {value!r}; right would be at most {c.RUN_ID_MAX_LENGTH} lower-case letters, digits "
            "and dashes, beginning and ending with a letter or digit"
        )
        return ""
    return value


def _pool(reader: _Reader) -> Pool:
    tolerations = reader.raw("tolerations")
    if not isinstance(tolerations, list) or not all(isinstance(item, dict) for item in tolerations):
        reader.wrong("tolerations", "a list of tolerations")
        tolerations = []
    pool = Pool(
        name=reader.text("name", "a DNS label", _LABEL),
        instance_type=reader.text("instanceType"),
        zone=reader.text("zone"),
        resource=reader.text("resource", "the name of a resource, for instance nvidia.com/gpu"),
        per_node=reader.number("perNode", 1),
        max_nodes=reader.number("maxNodes", 1),
        efa_per_node=reader.number("efaPerNode", 0),
        node_selector=reader.table("nodeSelector"),
        tolerations=tuple(tolerations),
        block=None if reader.raw("block") is None else _block(reader.section("block")),
    )
    if pool.node_selector.get(c.LABEL_NODEPOOL) != pool.name:
        reader.wrong("nodeSelector", f"one with {c.LABEL_NODEPOOL}: {pool.name}")
    reader.finish()
    return pool


def _block(reader: _Reader) -> Block:
    ends = reader.moment("ends")
    block = Block(
        ends=ends,
        taken_back=ends - reader.number("takenBackSeconds", 0),
        on_demand_fallback=reader.flag("onDemandFallback"),
    )
    reader.finish()
    return block


def _placeholder(reader: _Reader) -> Placeholder:
    placeholder = Placeholder(
        image=reader.text("image", "an image with a tag or digest", _PINNED_IMAGE),
        priority_class=reader.text("priorityClassName"),
    )
    reader.finish()
    return placeholder


def _worker(reader: _Reader) -> Worker:
    command = reader.raw("command")
    env = reader.table("env")
    for name in env:
        if not _ENV_NAME.fullmatch(name):
            reader.problems.append(f"{reader.place}.env has {name!r}; right would be letters, digits and _")
    mounts = reader.table("mounts") if "mounts" in reader.values else {}
    for claim, path in mounts.items():
        if not path.startswith("/"):
            reader.problems.append(
                f"{reader.place}.mounts.{claim} is {path!r}; right would be an absolute path"
            )
    worker = Worker(
        image=reader.text("image", "an image with a tag or digest", _PINNED_IMAGE),
        service_account=reader.text("serviceAccountName"),
        priority_class=reader.text("priorityClassName"),
        processes_per_node=reader.number("processesPerNode", 1),
        cpu=reader.amount("cpu"),
        memory=reader.amount("memory"),
        shared_memory=reader.amount("sharedMemory"),
        env=env,
        args=reader.texts("args"),
        command=None if command is None else reader.texts("command"),
        mounts=mounts,
    )
    reader.finish()
    return worker
