"""The statuses of a TorchrunJob and a TorchrunQueue. `fit_status` makes a status valid, whatever a pod has reported.

If the API server refuses a status, it refuses it at each later reconcile, too. Then the controller can't record a
deadline, a suspension or the end of the job.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, Final

from launcher.errors import strip_control_characters
from trainyard.operator import names as n
from trainyard.operator.api.fields import (
    ApiObject,
    Field,
    JsonObject,
    array,
    boolean,
    choice,
    integer,
    mapping,
    number,
    parse_time,
    section,
    string,
    time,
)


def _observed_generation() -> Any:
    return integer("The metadata.generation of the spec that this is about.", int64=True)


class Condition(ApiObject):
    """One thing that is so, is not so, or is not known."""

    # As Condition of k8s.io/apimachinery v0.35.4, meta/v1/types.go.
    type: str = string("What it is about.", minimum=1, maximum=316, required=True)
    status: str = choice("Whether it is so.", ("True", "False", "Unknown"), required=True)
    observed_generation: int = _observed_generation()
    last_transition_time: str = time("When `status` last changed.", required=True)
    reason: str = string("Why, as one word for programs.", minimum=1, maximum=1024, required=True)
    message: str = string("Why, for people.", maximum=32768, required=True)


def _conditions(types: Sequence[str]) -> Any:
    return array(f"What is so: {', '.join(types)}.", Condition, maximum=16, key="type")


class LastRestart(ApiObject):
    """The worker that failed last, for which all were started anew; there is none while none failed."""

    attempt: int = integer("Number of the attempt that was ended.")
    time: str = time("When that was decided.")
    message: str = string("Which one, and why.", maximum=32768)


class FirstFailure(ApiObject):
    """The first failure of the last failed attempt, which caused the others. It is missing if a worker was lost, or if
    none failed."""

    attempt: int = integer("Number of the attempt.", required=True)
    node_rank: int = integer("Node rank of the worker in the attempt, from 0.")
    rank: int = integer("Global rank of the failed process, if torchrun reports it.")
    pod: str = string("Name of the worker's pod.", maximum=253, required=True)
    node: str = string("Name of the Kubernetes node.", maximum=253)
    exit_code: int = integer("Exit code of the process; 128 plus the number of a signal.", maximum=255)
    reason: str = string("Reason from Kubernetes, such as OOMKilled.", maximum=1024)
    meaning: str = string("Meaning of the exit code, such as SIGKILL.", maximum=1024)
    time: str = time("Time of the failure.")
    error: str = string("The line of the worker's output with the error.", maximum=1024)
    log_tail: str = string("The last lines of its output, up to 4 KiB.", maximum=4096)


class Attempt(ApiObject):
    """An unsuccessful attempt."""

    attempt: int = integer("Number of the attempt.", required=True)
    end_time: str = time("Time of its end.")
    reason: str = string("Reason for its end, in CamelCase.", maximum=1024, required=True)
    message: str = string("Details of the reason.", maximum=1024)


class Workers(ApiObject):
    """Pods of this attempt."""

    active: int = integer("Those that are not over yet.")
    ready: int = integer("Of these, those that are ready.")
    succeeded: int = integer("Those that ended well.")
    failed: int = integer("Those that failed.")


class Progress(ApiObject):
    """How far the training is, as the trainer of its first worker tells it; a script that tells nothing has none."""

    step: int = integer("Steps done.", int64=True)
    loss: float = number("Loss of the last step.")
    throughput: float = number("What is trained in a second, in `unit`.")
    unit: str = string("What `throughput` counts, such as tokens/s.", maximum=63)
    checkpoint_step: int = integer("Step of the last whole checkpoint.", int64=True)
    checkpoint_time: str = time("When the last whole checkpoint was written.")
    unreadable: str = string(
        "Why the first worker's progress can't be read. The other fields have earlier values.", maximum=1024
    )


class Capacity(ApiObject):
    """The wait for nodes of scheduling.pool; there is none while the job has its nodes."""

    since: str = time("When this try to get nodes began.")
    tries: int = integer("How many tries there have been, with this one or the next.")
    enough_since: str = time("Since when there are as many nodes as the job needs at least.")
    retry_time: str = time("When the next try begins; nothing is held until then.")


class Logs(ApiObject):
    """The archive of the workers' logs, with objects attempt-<number>/node-<number>.log. Jobs of a queue without a
    bucket have none."""

    url: str = string("Bucket and prefix.", maximum=2048)
    image: str = string("Image of the pod with which `kubectl torchrun logs` reads them.", maximum=1024)


class JobStatus(ApiObject):
    """What the controller saw of the job; written by it alone."""

    observed_generation: int = _observed_generation()
    phase: str = choice(
        f"Where the job is. It stays {' or '.join(n.FINAL_PHASES)}, whatever becomes of its objects.",
        n.PHASES,
    )
    reason: str = string("Why it is there, as one word for programs.", maximum=1024)
    message: str = string("Why it is there, for people.", maximum=32768)
    conditions: list[Condition] = _conditions(n.JOB_CONDITIONS)
    attempt: int = integer("Number of the attempt that runs, or ran last, from 0.")
    restarts: int = integer("How often all workers were started anew after one of them failed.")
    last_restart: LastRestart = section(LastRestart)
    first_failure: FirstFailure = section(FirstFailure)
    attempts: list[Attempt] = array("The last unsuccessful attempts, the newest last.", Attempt, maximum=8)
    nodes: int = integer("Nodes of this attempt.")
    gpus_per_node: int = integer("GPUs of each node of this attempt.")
    gpus: int = integer("GPUs of this attempt.")
    selector: str = string("Selects the job's pods; the scale subresource shows it.", maximum=1024)
    workers: Workers = section(Workers)
    progress: Progress = section(Progress)
    start_time: str = time("When the job's first Job or worker began.")
    completion_time: str = time("When it came to its end.")
    exit_code: int = integer(
        "Exit code of the job: that of the worker that failed first, else 0.", maximum=255
    )
    capacity: Capacity = section(Capacity)
    logs: Logs = section(Logs)
    workspace_digest: str = string("Digest of the workspace that the workers have.", maximum=80)


class JobCounts(ApiObject):
    """How many jobs name this queue."""

    active: int = integer("Those that have workers.")
    pending: int = integer("Those that wait.")


class Taint(ApiObject):
    """A taint."""

    key: str = string("Its key.", maximum=317)
    value: str = string("Its value.", maximum=63)
    effect: str = string("Its effect.", maximum=63)


class Pool(ApiObject):
    """The Karpenter pool of scheduling.pool. `submit` refuses jobs that never fit its limits."""

    name: str = string("Name of the NodePool.", maximum=253)
    found: bool = boolean("Whether the NodePool exists.")
    declared: bool = boolean("Whether the NodePool declares the resources of a node, as in a stack.")
    max_nodes: int = integer("Maximum number of nodes within its limits, if known.")
    limits: dict[str, str] = mapping(
        "Its limits, by resource.", string("A quantity.", maximum=63), maximum=64
    )
    node_resources: dict[str, str] = mapping(
        "Resources of one of its nodes.", string("A quantity.", maximum=63), maximum=64
    )
    taints: list[Taint] = array("The taints of its nodes.", Taint, maximum=64)
    reservations: int = integer("Active capacity reservations; only of a pool that uses reservations only.")


class KaiLimit(ApiObject):
    """Missing if no queue has a limit."""

    queue: str = string("Name of KAI's queue with this limit.", maximum=253)
    limit: float = number("Its limit. The queue of KAI has another unit.")


class KaiLimits(ApiObject):
    """The lowest limits of this queue and those above it."""

    gpu: KaiLimit = section(KaiLimit, unit="GPUs")
    cpu: KaiLimit = section(KaiLimit, unit="cores")
    memory: KaiLimit = section(KaiLimit, unit="bytes")


class KaiQueue(ApiObject):
    """KAI Scheduler's queue of the gangs. `submit` refuses jobs that it can never admit."""

    name: str = string("Name of KAI's queue.", maximum=253)
    limits: KaiLimits = section(KaiLimits)


class QueueStatus(ApiObject):
    """What the controller saw of the queue; written by it alone."""

    observed_generation: int = _observed_generation()
    conditions: list[Condition] = _conditions(n.QUEUE_CONDITIONS)
    jobs: JobCounts = section(JobCounts)
    pool: Pool = section(Pool)
    kai: KaiQueue = section(KaiQueue)


JOB_STATUS: Final[Field] = section(JobStatus)
QUEUE_STATUS: Final[Field] = section(QueueStatus)
_STATUS: Final = {n.JOB_KIND: JOB_STATUS, n.QUEUE_KIND: QUEUE_STATUS}


def fit_status(kind: str, status: JsonObject) -> JsonObject:
    """Return the status of a job or queue without values that its schema does not allow. Long strings are truncated."""
    fitted = _fit(status, _STATUS[kind])
    return fitted if isinstance(fitted, dict) else {}


def _fit(value: Any, field: Field) -> Any:
    """Return the value as the field allows it; None if it is invalid."""
    checks = field.checks
    if field.item is not None or field.value is not None or field.fields:
        return _fit_container(value, field)
    if checks["type"] == "string":
        return _fit_string(value, checks) if isinstance(value, str) else None
    if checks["type"] == "boolean":
        return value if isinstance(value, bool) else None
    if not isinstance(value, int if checks["type"] == "integer" else int | float) or isinstance(value, bool):
        return None
    inside = checks.get("minimum", -math.inf) <= value <= checks.get("maximum", math.inf)
    return value if inside and math.isfinite(value) else None


def _fit_container(value: Any, field: Field) -> Any:
    if field.item is not None:
        entries = [_fit(each, field.item) for each in value] if isinstance(value, list) else []
        fitted = [each for each in entries if each is not None]
        return fitted[-field.checks["maxItems"] :] if isinstance(value, list) else None
    if not isinstance(value, dict):
        return None
    known = {key: field.fields.get(key, field.value) for key in value}
    fields = {key: _fit(value[key], each) for key, each in known.items() if each is not None}
    fields = {key: each for key, each in fields.items() if each is not None}
    if any(each.required and name not in fields for name, each in field.fields.items()):
        return None
    return dict(itertools.islice(fields.items(), field.checks.get("maxProperties")))


def _fit_string(value: str, checks: Any) -> str | None:
    if checks.get("format") == "date-time":
        return value if parse_time(value) is not None else None
    if "enum" in checks:
        return value if value in checks["enum"] else None
    return strip_control_characters(value)[: checks["maxLength"]]
