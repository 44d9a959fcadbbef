"""Read the request of a run: TRAINYARD_REQUEST, MIN_NODES, MAX_NODES and JOB_NAME. Entry point: `parse_request()`.

The stack writes the request from settings that it has checked (infra/settings), so the reader checks only types and
limits. The fields of `Request` are its schema: a field `min_nodes` is read from `minNodes`.
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

from trainyard.k8s import names, quantity

# Karpenter does not try an offering for three minutes after EC2 refused it, so an earlier retry is useless
# (github.com/aws/karpenter-provider-aws v1.14.1, UnavailableOfferingsTTL in pkg/cache/cache.go).
MIN_RETRY_SECONDS = 180
MIN_NODE_START_SECONDS = 60
# The limit of all whole numbers, as of Kubernetes' int32.
MAX_NUMBER = 2**31 - 1
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


def count_of(number: int, singular: str, plural: str = "") -> str:
    """Return a number with its noun, such as 1 node or 2 nodes."""
    return f"{number} {singular if number == 1 else plural or f'{singular}s'}"


def _at_least(minimum: int, key: str = "") -> Any:
    """Declare a whole number with a minimum, and a `key` in JSON if it is not the field's name."""
    return field(metadata={"minimum": minimum, "key": key})


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
    taken_back_seconds: int = _at_least(0)
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
    per_node: int = _at_least(1)
    max_nodes: int = _at_least(1)
    efa_per_node: int = _at_least(0)
    node_selector: Mapping[str, str]
    tolerations: tuple[Mapping[str, str], ...]
    block: Block | None = None


@dataclass(frozen=True, kw_only=True)
class Placeholder:
    """The pod that holds a node until a worker preempts it."""

    image: str
    priority_class: str = field(metadata={"key": "priorityClassName"})


@dataclass(frozen=True, kw_only=True)
class Worker:
    """The pod that trains.

    Attributes:
        mounts: The mount path of each PersistentVolumeClaim.
        writes: The directories in these volumes that are created if they are missing, writable for every pod.
        secrets: The `<Secret>/<key>` of each environment variable.
    """

    image: str
    service_account: str = field(metadata={"key": "serviceAccountName"})
    priority_class: str = field(metadata={"key": "priorityClassName"})
    processes_per_node: int = _at_least(1)
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
    deadline_seconds: int = _at_least(1, "capacityDeadlineSeconds")


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
    min_nodes: int = _at_least(1)
    max_nodes: int = _at_least(1)
    deadline_seconds: int = _at_least(1, "capacityDeadlineSeconds")
    hold_seconds: int = _at_least(0)
    node_start_seconds: int = _at_least(MIN_NODE_START_SECONDS)
    active_deadline_seconds: int | None = _at_least(1)
    placeholder: Placeholder

    @abstractmethod
    def placeholder_name(self, index: int) -> str:
        """Return the name of the placeholder pod with this index, from 0 to below `max_nodes`."""

    def describe_need(self) -> str:
        """Return the minimum of this request, for a message."""
        return count_of(self.min_nodes, "node is needed", "nodes are needed")

    def describe_amount(self, nodes: int) -> str:
        """Return the size of a request for this number of nodes, for a message."""
        return count_of(nodes, "node")

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

    attempts: int = _at_least(1)
    retry_seconds: int = _at_least(MIN_RETRY_SECONDS)
    max_restarts: int = _at_least(0)
    shape: str
    worker: Worker
    fallbacks: tuple[Fallback, ...]
    backend: str = names.BACKEND_PYTORCHJOB

    @property
    def candidate_count(self) -> int:
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
    except ValueError as error:
        raise RequestError([f"{names.ENV_REQUEST} is not JSON: {error}"]) from None
    problems: list[str] = []
    if isinstance(document, dict):
        for key, name in (("minNodes", names.ENV_MIN_NODES), ("maxNodes", names.ENV_MAX_NODES)):
            document[key] = _override(environment, name, document.get(key), problems)
        document["runId"] = _run_id(document.get("runId"), environment, problems)
    request: Request = _read(Request, document, names.ENV_REQUEST, problems)
    if problems:
        raise RequestError(problems)
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


_CHOICES = {
    "shape": (names.SHAPE_STATIC, names.SHAPE_ELASTIC),
    "backend": (names.BACKEND_PYTORCHJOB, names.BACKEND_TRAINJOB),
}


def _read(kind: Any, value: object, place: str, problems: list[str], **limits: Any) -> Any:
    """Return the JSON value as this kind. Add a line for each error below `place`, and return None for such a value."""
    if get_origin(kind) in (Union, UnionType):  # X | None
        return None if value is None else _read(get_args(kind)[0], value, place, problems, **limits)
    if is_dataclass(kind):
        if isinstance(value, dict):
            return _read_object(kind, value, place, problems)
        expected = "an object"
    elif get_origin(kind) is tuple:
        if isinstance(value, list):
            items = enumerate(value)
            return tuple(_read(get_args(kind)[0], each, f"{place}[{n}]", problems) for n, each in items)
        expected = "a list"
    elif get_origin(kind) is Mapping:
        if isinstance(value, dict):
            return {key: _read(str, each, f"{place}.{key}", problems) for key, each in value.items()}
        expected = "an object"
    else:
        try:
            return _scalar(kind, value, **limits)
        except ValueError as error:
            expected = str(error)
    problems.append(f"{place} is {json.dumps(value)[:200]}; it must be {expected}")
    return None


def _read_object(kind: Any, value: dict[str, object], place: str, problems: list[str]) -> Any:
    hints, found, left = get_type_hints(kind), {}, dict(value)
    keys = []
    for each in fields(kind):
        key = each.metadata.get("key") or re.sub("_([a-z])", lambda part: part[1].upper(), each.name)
        keys.append(key)
        if key in left:
            limits = {"minimum": each.metadata.get("minimum", 0), "choices": _CHOICES.get(each.name)}
            found[each.name] = _read(hints[each.name], left.pop(key), f"{place}.{key}", problems, **limits)
        elif each.default is MISSING and each.default_factory is MISSING:
            problems.append(f"{place}.{key} is missing")
    problems += [f"{place}.{key} is not known; it must be one of {sorted(keys)}" for key in sorted(left)]
    return None if problems else kind(**found)


def _scalar(kind: Any, value: object, minimum: int = 0, choices: tuple[str, ...] | None = None) -> object:
    """Return the value if it is of this kind. Raises ValueError with what it must be."""
    if kind is bool:
        if isinstance(value, bool):
            return value
        raise ValueError("true or false")
    if kind is int:
        if type(value) is int and minimum <= value <= MAX_NUMBER:  # not a bool
            return value
        raise ValueError(f"a whole number from {minimum} to {MAX_NUMBER}")
    if kind is Moment:
        with suppress(ValueError):
            moment = datetime.fromisoformat(str(value))
            if moment.tzinfo is not None:
                return moment.timestamp()
        raise ValueError("a time with its zone, for instance 2027-01-31T11:30:00Z")
    if not isinstance(value, str) or (choices and value not in choices):
        raise ValueError(" or ".join(choices) if choices else "a text")
    if kind is Quantity:
        try:
            quantity.parse(value)
        except ValueError:
            raise ValueError("a quantity, for instance 4, 1500m or 2Gi") from None
    return value
