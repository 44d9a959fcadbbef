"""Read the request of a run: TRAINYARD_REQUEST, MIN_NODES, MAX_NODES and JOB_NAME. Entry point: `parse_request()`.

The stack writes the request from settings that it has checked (infra/settings), so the reader checks only types. The
fields of `Request` are its schema: a field `min_nodes` is read from `minNodes`.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from datetime import datetime
from types import UnionType
from typing import Any, NewType, Union, get_args, get_origin, get_type_hints

from trainyard.k8s import names

# Karpenter does not try an offering for three minutes after EC2 refused it, so an earlier retry is useless
# (github.com/aws/karpenter-provider-aws v1.14.1, UnavailableOfferingsTTL in pkg/cache/cache.go).
MIN_RETRY_SECONDS = 180
_RUN_ID = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")

Quantity = NewType("Quantity", str)
"""A Kubernetes quantity, such as 4, 1500m or 2Gi."""
Moment = NewType("Moment", float)
"""Seconds since the epoch. In JSON, a time in ISO format with its zone."""


class RequestError(ValueError):
    """The request is invalid. The message has one line per error, each with its path."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


def _named(key: str) -> Any:
    """Declare a field whose key in JSON is not the field's name."""
    return field(metadata={"key": key})


@dataclass(frozen=True, kw_only=True)
class Block:
    """A capacity block.

    Attributes:
        taken_back_seconds: How long before its end Karpenter starts to drain its nodes
            (`names.CAPACITY_BLOCK_DRAIN_SECONDS`).
        on_demand_fallback: Whether nodes are launched on demand while the block can't be used.
        begins: When the first node can be launched; None if it is not known.
    """

    ends: Moment
    taken_back_seconds: int
    on_demand_fallback: bool
    begins: Moment | None = None

    @property
    def reclaimed_at(self) -> float:
        """When Karpenter starts to drain its nodes, in seconds since the epoch."""
        return self.ends - self.taken_back_seconds


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
    tolerations: tuple[Mapping[str, str], ...]
    block: Block | None = None


@dataclass(frozen=True, kw_only=True)
class Placeholder:
    """The pod that holds a node until a worker preempts it."""

    image: str
    priority_class: str = _named("priorityClassName")


@dataclass(frozen=True, kw_only=True)
class Worker:
    """The pod that trains.

    Attributes:
        mounts: The mount path of each PersistentVolumeClaim.
        writes: The directories in these volumes that are created if they are missing, writable for every pod.
        secrets: The `<Secret>/<key>` of each environment variable.
    """

    image: str
    service_account: str = _named("serviceAccountName")
    priority_class: str = _named("priorityClassName")
    processes_per_node: int
    cpu: Quantity
    memory: Quantity
    shared_memory: Quantity
    env: Mapping[str, str]
    args: tuple[str, ...]
    command: tuple[str, ...] | None
    mounts: Mapping[str, str] = field(default_factory=dict)
    writes: tuple[str, ...] = ()
    secrets: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Fallback:
    """A pool to use if the pools before it have fewer than MIN nodes, its worker, and its deadline."""

    pool: Pool
    worker: Worker
    deadline_seconds: int = _named("capacityDeadlineSeconds")


@dataclass(frozen=True, kw_only=True)
class NodeRequest(ABC):
    """The nodes that a run or a TorchrunJob needs. Durations are in seconds.

    Attributes:
        node_start_seconds: After this time, a node that can't run a worker is released.
        active_deadline_seconds: The limit for all training jobs of the run together.
    """

    run_id: str
    namespace: str
    pool: Pool
    min_nodes: int
    max_nodes: int
    deadline_seconds: int = _named("capacityDeadlineSeconds")
    hold_seconds: int
    node_start_seconds: int
    active_deadline_seconds: int | None
    placeholder: Placeholder

    @abstractmethod
    def placeholder_name(self, index: int) -> str:
        """Return the name of the placeholder pod with this index, from 0 to below `max_nodes`."""

    @property
    @abstractmethod
    def resources(self) -> dict[str, str]:
        """The resources of a worker, and so of its placeholder."""


@dataclass(frozen=True, kw_only=True)
class Request(NodeRequest):
    """One run. Its pool, its worker and `deadline_seconds` are those of the first candidate.

    Attributes:
        attempts: The maximum number of attempts. Each tries every candidate once.
        retry_seconds: The minimum pause between attempts.
        max_restarts: How often the run restarts after a failure.
        shape: The shape of the world: static or elastic.
        fallbacks: The other candidates.
        backend: The kind of the training job: pytorchjob or trainjob.
    """

    attempts: int
    retry_seconds: int
    max_restarts: int
    shape: str
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
        return f"{names.PLACEHOLDER_PREFIX}{self.run_id}-{index}"

    @property
    def resources(self) -> dict[str, str]:
        resources: dict[str, str] = {"cpu": self.worker.cpu, "memory": self.worker.memory}
        resources[self.pool.resource] = str(self.pool.per_node)
        if self.pool.efa_per_node:
            resources[names.EFA_RESOURCE] = str(self.pool.efa_per_node)
        return resources


def parse_request(environment: Mapping[str, str]) -> Request:
    """Return the request in this process environment. Raises RequestError with all errors together."""
    text = environment.get(names.ENV_REQUEST)
    if not text:
        raise RequestError([f"{names.ENV_REQUEST} is not set; it must be the request of a run as JSON"])
    try:
        document = json.loads(text)
    # RecursionError: deeply nested lists.
    except (ValueError, RecursionError) as error:
        raise RequestError([f"{names.ENV_REQUEST} is no JSON: {error}"]) from None
    problems: list[str] = []
    if isinstance(document, dict):
        for key, name in (("minNodes", names.ENV_MIN_NODES), ("maxNodes", names.ENV_MAX_NODES)):
            document[key] = _override(environment, name, document.get(key), problems)
        document["runId"] = _run_id(document.get("runId"), environment, problems)
    if problems:
        raise RequestError(problems)
    request: Request = _read(Request, document, names.ENV_REQUEST)
    if request.min_nodes > request.max_nodes:
        raise RequestError(
            [
                f"{names.ENV_MIN_NODES} is {request.min_nodes} and {names.ENV_MAX_NODES} is {request.max_nodes}; "
                "it must be MIN <= MAX"
            ]
        )
    return request


def _override(environment: Mapping[str, str], name: str, value: object, problems: list[str]) -> object:
    text = environment.get(name, "").strip()
    if not text:
        return value
    if not re.fullmatch(r"[0-9]{1,6}", text) or int(text) < 1:
        problems.append(f"{name} is {text[:100]!r}; it must be a whole number from 1 to 999999")
        return value
    return int(text)


def _run_id(value: object, environment: Mapping[str, str], problems: list[str]) -> object:
    """Return the run id. A request without one is named after the launcher's Job."""
    place, prefix = f"{names.ENV_REQUEST}.runId", ""
    shown = value
    if value is None:
        place, prefix = names.ENV_JOB_NAME, names.LAUNCHER_JOB_PREFIX
        shown = environment.get(names.ENV_JOB_NAME, "")
        value = shown.removeprefix(prefix) if shown.startswith(prefix) else ""
    if isinstance(value, str) and _RUN_ID.fullmatch(value) and len(value) <= names.RUN_ID_MAX_LENGTH:
        return value
    problems.append(
        f"{place} is {shown!r}; it must be {prefix and f'{prefix} and '}at most {names.RUN_ID_MAX_LENGTH} lower-case"
        " letters, digits and dashes, beginning and ending with a letter or digit"
    )
    return ""


def _read(kind: Any, value: object, place: str) -> Any:
    """Return the JSON value as this kind. Raises RequestError."""
    if get_origin(kind) in (Union, UnionType):  # X | None
        return None if value is None else _read(get_args(kind)[0], value, place)
    if get_origin(kind) is tuple and isinstance(value, list):
        return tuple(_read(get_args(kind)[0], each, f"{place}[{n}]") for n, each in enumerate(value))
    if get_origin(kind) is Mapping and isinstance(value, dict):
        return {key: _read(str, each, f"{place}.{key}") for key, each in value.items()}
    if is_dataclass(kind) and isinstance(value, dict):
        return _read_object(kind, dict(value), place)
    if kind is Moment and isinstance(value, str):
        with suppress(ValueError):
            return datetime.fromisoformat(value).timestamp()
    if type(value) is (str if kind is Quantity else kind):
        return value
    raise _wrong(f"{place} is {json.dumps(value)[:200]}")


def _read_object(kind: Any, left: dict[str, object], place: str) -> Any:
    hints, found = get_type_hints(kind), {}
    for each in fields(kind):
        key = each.metadata.get("key") or re.sub("_([a-z])", lambda part: part[1].upper(), each.name)
        if key in left:
            found[each.name] = _read(hints[each.name], left.pop(key), f"{place}.{key}")
        elif each.default is MISSING and each.default_factory is MISSING:
            raise _wrong(f"{place}.{key} is missing")
    if left:
        raise _wrong(f"{place}.{min(left)} is not known")
    return kind(**found)


def _wrong(problem: str) -> RequestError:
    return RequestError([f"{problem}; the request must be that of the present stack"])
