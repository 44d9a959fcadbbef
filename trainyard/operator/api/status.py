"""The statuses of a TorchrunJob and a TorchrunQueue. `fit_status` makes a status valid, whatever a pod has reported.

If the API server refuses a status, it refuses it at each later reconcile, too. Then the controller can't record a
deadline, a suspension or the end of the job.
"""

from __future__ import annotations

import itertools
from typing import Any, Final

from launcher.errors import strip_control_characters
from trainyard.operator import names as n
from trainyard.operator.api import fields as f
from trainyard.operator.api.fields import ApiObject, Field, JsonObject

_OBSERVED_GENERATION: Final = f.integer(
    "The metadata.generation of the spec that this describes.", int64=True
)


class ConditionSchema(ApiObject):
    """An observed condition."""

    # As Condition of k8s.io/apimachinery v0.35.4, meta/v1/types.go.
    type: str = f.string("Type of the condition.", minimum=1, maximum=316, required=True)
    status: str = f.choice("Status of the condition.", ("True", "False", "Unknown"), required=True)
    observed_generation: int = _OBSERVED_GENERATION
    last_transition_time: str = f.time("The last change of `status`.", required=True)
    reason: str = f.string("The reason, in CamelCase.", minimum=1, maximum=1024, required=True)
    message: str = f.string("Details of the reason.", maximum=32768, required=True)


class LastRestart(ApiObject):
    """The last failure that restarted all workers. It is missing if no worker has failed."""

    attempt: int = f.integer("Number of the attempt that ended.")
    time: str = f.time("Time of the decision.")
    message: str = f.string("The failed worker and the cause.", maximum=32768)


class FirstFailure(ApiObject):
    """The first failure of the last failed attempt, which caused the others. It is missing if a worker was lost, or if
    none failed."""

    attempt: int = f.integer("Number of the attempt.", required=True)
    node_rank: int = f.integer("Node rank of the worker in the attempt, from 0.")
    rank: int = f.integer("Global rank of the failed process, if torchrun reports it.")
    pod: str = f.string("Name of the worker's pod.", maximum=253, required=True)
    node: str = f.string("Name of the Kubernetes node.", maximum=253)
    exit_code: int = f.integer("Exit code of the process; 128 plus the number of a signal.", maximum=255)
    reason: str = f.string("Reason from Kubernetes, such as OOMKilled.", maximum=1024)
    meaning: str = f.string("Meaning of the exit code, such as SIGKILL.", maximum=1024)
    time: str = f.time("Time of the failure.")
    error: str = f.string("The line of the worker's output with the error.", maximum=1024)
    log_tail: str = f.string("The last lines of its output, up to 4 KiB.", maximum=4096)


class Attempt(ApiObject):
    """An unsuccessful attempt."""

    attempt: int = f.integer("Number of the attempt.", required=True)
    end_time: str = f.time("Time of its end.")
    reason: str = f.string("Reason for its end, in CamelCase.", maximum=1024, required=True)
    message: str = f.string("Details of the reason.", maximum=1024)


class Workers(ApiObject):
    """The number of pods of this attempt."""

    active: int = f.integer("Pods that have not ended.")
    ready: int = f.integer("Active pods that are ready.")
    succeeded: int = f.integer("Pods that succeeded.")
    failed: int = f.integer("Pods that failed.")


class Progress(ApiObject):
    """The progress of the training, from the trainer of the first worker. It is missing if the script reports none."""

    step: int = f.integer("Completed steps.", int64=True)
    loss: float = f.number("Loss of the last step.")
    throughput: float = f.number("Throughput for each second, in `unit`.")
    unit: str = f.string("Unit of `throughput`, such as tokens/s.", maximum=63)
    checkpoint_step: int = f.integer("Step of the last complete checkpoint.", int64=True)
    checkpoint_time: str = f.time("Time of the last complete checkpoint.")
    unreadable: str = f.string(
        "Why the first worker's progress can't be read. The other fields have earlier values.", maximum=1024
    )


class Cost(ApiObject):
    """Node-hours and cost of all attempts. A node counts while it runs a placeholder or a worker."""

    node_hours: float = f.number("Total node-hours.")
    idle_node_hours: float = f.number("Node-hours without a worker.")
    unpriced_node_hours: float = f.number(
        "Node-hours that `usd` does not include, because no price is known."
    )
    usd: float = f.number("Estimated cost in USD, by Karpenter's prices. It is missing if no price is known.")


class Capacity(ApiObject):
    """The wait for nodes of scheduling.pool. It is missing while the job has its nodes."""

    since: str = f.time("Start of the current try.")
    tries: int = f.integer("Number of the current or next try.")
    enough_since: str = f.time("Time since when the job has its minimum number of nodes.")
    retry_time: str = f.time("Start of the next try. Until then, the job holds no nodes.")


class Logs(ApiObject):
    """The archive of the workers' logs, with objects attempt-<number>/node-<number>.log. Jobs of a queue without a
    bucket have none."""

    url: str = f.string("Bucket and prefix.", maximum=2048)
    image: str = f.string("Image of the pod with which `kubectl torchrun logs` reads them.", maximum=1024)


class JobStatusSchema(ApiObject):
    """The observed state of the job. Only the controller writes it."""

    observed_generation: int = _OBSERVED_GENERATION
    phase: str = f.choice(
        f"Phase of the job. {' and '.join(n.FINAL_PHASES)} are final, even if its objects change.", n.PHASES
    )
    reason: str = f.string("Reason for the phase, in CamelCase.", maximum=1024)
    message: str = f.string("Details of the reason.", maximum=32768)
    conditions: list[ConditionSchema] = f.array(
        f"Conditions: {', '.join(n.JOB_CONDITIONS)}.", ConditionSchema, maximum=16, key="type"
    )
    attempt: int = f.integer("Number of the current or last attempt, from 0.")
    restarts: int = f.integer("How often all workers restarted after a failure.")
    last_restart: LastRestart = f.section(LastRestart)
    first_failure: FirstFailure = f.section(FirstFailure)
    attempts: list[Attempt] = f.array("The last unsuccessful attempts, the newest last.", Attempt, maximum=8)
    nodes: int = f.integer("Nodes of this attempt.")
    gpus_per_node: int = f.integer("GPUs of each node of this attempt.")
    gpus: int = f.integer("GPUs of this attempt.")
    selector: str = f.string("Label selector of the job's pods, for the scale subresource.", maximum=1024)
    workers: Workers = f.section(Workers)
    progress: Progress = f.section(Progress)
    start_time: str = f.time("Start of the first Job or worker.")
    completion_time: str = f.time("End of the job.")
    exit_code: int = f.integer("Exit code of the job: that of the first failed worker, else 0.", maximum=255)
    capacity: Capacity = f.section(Capacity)
    cost: Cost = f.section(Cost)
    logs: Logs = f.section(Logs)
    workspace_digest: str = f.string("Digest of the workers' workspace.", maximum=80)


class JobCounts(ApiObject):
    """The number of jobs of this queue."""

    active: int = f.integer("Jobs with workers.")
    pending: int = f.integer("Jobs that wait.")


class Taint(ApiObject):
    """A taint."""

    key: str = f.string("Its key.", maximum=317)
    value: str = f.string("Its value.", maximum=63)
    effect: str = f.string("Its effect.", maximum=63)


class Pool(ApiObject):
    """The Karpenter pool of scheduling.pool. `submit` refuses jobs that never fit its limits."""

    name: str = f.string("Name of the NodePool.", maximum=253)
    found: bool = f.boolean("Whether the NodePool exists.")
    declared: bool = f.boolean("Whether the NodePool declares the resources of a node, as in a stack.")
    max_nodes: int = f.integer("Maximum number of nodes within its limits, if known.")
    limits: dict[str, str] = f.mapping("Its limits, by resource.", f.string("A quantity.", maximum=63))
    node_resources: dict[str, str] = f.mapping(
        "Resources of one of its nodes, if the NodePool declares them.", f.string("A quantity.", maximum=63)
    )
    taints: list[Taint] = f.array("The taints of its nodes.", Taint, maximum=64)
    reservations: int = f.integer("Active capacity reservations; only of a pool that uses reservations only.")


class KaiLimit(ApiObject):
    """Missing if no queue has a limit."""

    queue: str = f.string("Name of KAI's queue with this limit.", maximum=253)
    limit: float = f.number("Its limit. The queue of KAI has another unit.")


class KaiLimits(ApiObject):
    """The lowest limits of this queue and those above it."""

    gpu: KaiLimit = f.section(KaiLimit, unit="GPUs")
    cpu: KaiLimit = f.section(KaiLimit, unit="cores")
    memory: KaiLimit = f.section(KaiLimit, unit="bytes")


class KaiQueueStatus(ApiObject):
    """KAI Scheduler's queue of the gangs. `submit` refuses jobs that it can never admit."""

    name: str = f.string("Name of KAI's queue.", maximum=253)
    limits: KaiLimits = f.section(KaiLimits)


class QueueStatusSchema(ApiObject):
    """The observed state of the queue. Only the controller writes it."""

    observed_generation: int = _OBSERVED_GENERATION
    conditions: list[ConditionSchema] = f.array(
        f"Conditions: {', '.join(n.QUEUE_CONDITIONS)}.", ConditionSchema, maximum=16, key="type"
    )
    jobs: JobCounts = f.section(JobCounts)
    pool: Pool = f.section(Pool)
    kai: KaiQueueStatus = f.section(KaiQueueStatus)


JOB_STATUS: Final[Field] = f.section(JobStatusSchema)
QUEUE_STATUS: Final[Field] = f.section(QueueStatusSchema)
_STATUS: Final = {n.JOB_KIND: JOB_STATUS, n.QUEUE_KIND: QUEUE_STATUS}


def fit_status(kind: str, status: JsonObject) -> JsonObject:
    """Return the status of a job or queue without values that its schema does not allow. Long strings are truncated."""
    fitted = _fit(status, _STATUS[kind])
    return fitted if isinstance(fitted, dict) else {}


def _fit(value: Any, field: Field) -> Any:
    """Return the value as the field allows it; None if it is invalid."""
    checks = field.checks
    if checks["type"] == "object" and isinstance(value, dict):
        known = {key: child for key in value if (child := field.fields.get(key, field.value)) is not None}
        fitted = {
            key: found for key, child in known.items() if (found := _fit(value[key], child)) is not None
        }
        if any(child.required and name not in fitted for name, child in field.fields.items()):
            return None
        return dict(itertools.islice(fitted.items(), checks.get("maxProperties")))
    if field.item is not None and isinstance(value, list):
        fitted_items = (_fit(entry, field.item) for entry in value)
        return [entry for entry in fitted_items if entry is not None][-checks["maxItems"] :]
    if isinstance(value, str) and "enum" not in checks and "format" not in checks:
        # A pod's output may not be UTF-8.
        value = strip_control_characters(value.encode(errors="replace").decode())[: checks.get("maxLength")]
    return value if field.valid(value) else None
