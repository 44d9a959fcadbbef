"""The settings of one job: the spec of its queue with the overrides of the job.

Objects are merged. Lists and single values replace those of the queue.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainyard.operator import names as n
from trainyard.operator.api.fields import JsonObject
from trainyard.operator.api.job import C10D, ETCD, JobSpec
from trainyard.operator.api.permissions import check_pod_template
from trainyard.operator.api.queue import NEVER, VOLUMES, PodTemplate, QueueSpec, parse_queue

# The ways to give the size of a volume. A way that the job uses removes the queue's.
_SIZES = ("size", "sizePerGPU", "existingClaim")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of an attempt in addition to the spec of the job. Times are in seconds."""

    queue: QueueSpec  # with the job's overrides
    max_restarts: int  # 0 with restartPolicy Never
    deadline: int | None
    time_to_live: int | None
    port: int
    rendezvous: str  # the backend
    substituted: str  # the requested backend, if another one is used
    node_gpus: int  # the GPUs of a worker in the queue, or in the overrides if these are more

    @property
    def gang(self) -> bool:
        """Return whether KAI Scheduler places the pods."""
        return self.queue.scheduling.scheduler == n.KAI_SCHEDULER


def resolve(queue: Any, job: JobSpec) -> tuple[Settings | None, tuple[str, ...]]:
    """Return the settings of a job in a queue with this JSON spec, or None and the errors."""
    spec, problems = parse_queue(merge(queue, job.overrides), "the queue's spec with spec.overrides")
    if spec is None:
        return None, problems
    queue_gpus, pool = _get(queue, "nodeResources", "gpus"), spec.scheduling.pool
    own_gpus = queue_gpus if isinstance(queue_gpus, int) else 0
    no_gpus = not job.num_gpus and not spec.node_resources.gpus
    if no_gpus and own_gpus and pool and pool == _get(queue, "scheduling", "pool"):
        return None, (
            f"spec.overrides.nodeResources.gpus is 0, and nodes of pool {pool} have GPUs, which would be paid for "
            "and idle; use a queue on a pool without GPUs",
        )
    return combine(spec, job, own_gpus), ()


def combine(spec: QueueSpec, job: JobSpec, queue_gpus: int) -> Settings:
    """Return the settings of a job in a queue whose spec has its overrides. `queue_gpus` is without them."""
    defaults, meeting = spec.job_defaults, job.distributed
    policy = job.restart_policy or defaults.restart_policy
    restarts = defaults.max_restarts if job.max_restarts is None else job.max_restarts
    deadline, time_to_live = job.active_deadline_seconds, job.ttl_seconds_after_finished
    substituted = meeting.rdzv_backend in ETCD and not meeting.rdzv_endpoint
    return Settings(
        queue=spec,
        max_restarts=0 if policy == NEVER else restarts,
        deadline=defaults.active_deadline_seconds if deadline is None else deadline,
        time_to_live=defaults.ttl_seconds_after_finished if time_to_live is None else time_to_live,
        port=meeting.port or spec.networking.port,
        rendezvous=C10D if substituted else meeting.rdzv_backend,
        substituted=meeting.rdzv_backend if substituted else "",
        node_gpus=max(spec.node_resources.gpus, queue_gpus),
    )


def merge(queue: Any, overrides: Any) -> Any:
    """Return the JSON spec of a queue with the overrides of a job. A null overrides nothing."""
    if not isinstance(queue, Mapping) or not isinstance(overrides, Mapping):
        return queue if overrides is None else overrides
    merged = _merge(queue, overrides)
    for name in VOLUMES:
        volume, over = _get(merged, "storage", name), _get(overrides, "storage", name)
        if isinstance(volume, dict) and isinstance(over, Mapping):
            merged["storage"][name] = _without_other_sizes(volume, over)
    return merged


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> JsonObject:
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            merged[key] = _merge(old, value)
        elif value is not None:
            merged[key] = value
    return merged


def _without_other_sizes(volume: Mapping[str, Any], over: Mapping[str, Any]) -> JsonObject:
    given = [key for key in _SIZES if over.get(key) is not None]
    removed = {key for key in _SIZES if given and key not in given}
    if "existingClaim" in given:
        removed |= {key for key in ("storageClass", "accessMode") if over.get(key) is None}
    return {key: value for key, value in volume.items() if key not in removed}


def _get(value: Any, *path: str) -> Any:
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def own_template(job: JobSpec) -> list[str]:
    """Return the errors of the job's pod template. The status of the queue has those of the queue's template."""
    template = PodTemplate.parse(job.overrides.get("podTemplate") or {}, "", [])
    return check_pod_template(template, "spec.overrides", workspace=job.workspace is not None)
