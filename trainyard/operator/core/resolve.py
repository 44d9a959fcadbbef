"""What holds for one job: its queue's spec with the job's overrides in it. Pure.

Objects merge; lists and single values replace.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainyard.operator import names as n
from trainyard.operator.core import queue_spec
from trainyard.operator.core.job_spec import C10D, ETCD, JobSpec
from trainyard.operator.core.permissions import check_pod_template
from trainyard.operator.core.queue_spec import NEVER, VOLUMES, QueueSpec
from trainyard.operator.core.reading import JsonObject

# A volume's size is said in one of these ways; one that a job says takes the queue's other ways away.
_SIZES = ("size", "sizePerGPU", "existingClaim")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that an attempt is made of, beside the job's own spec."""

    queue: QueueSpec
    max_restarts: int
    deadline: int | None
    time_to_live: int | None
    port: int
    rendezvous: str
    substituted: str  # the rendezvous backend that was asked for, where another one is used
    node_gpus: int  # as the queue has them for a worker, whatever the job overrides

    @property
    def gang(self) -> bool:
        """Whether KAI Scheduler places the pods."""
        return self.queue.scheduler == n.KAI_SCHEDULER


def merged(queue: Any, overrides: Any) -> Any:
    """The queue's raw spec with a job's raw overrides in it; neither is changed. A null is no value."""
    if not isinstance(queue, Mapping) or not isinstance(overrides, Mapping):
        return queue if overrides is None else overrides
    result = _merge(queue, overrides)
    storage, over = result.get("storage"), overrides.get("storage")
    if isinstance(storage, dict) and isinstance(over, Mapping):
        for name in VOLUMES:
            if isinstance(storage.get(name), dict) and isinstance(over.get(name), Mapping):
                storage[name] = _one_size(storage[name], over[name])
    return result


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> JsonObject:
    result = dict(below)
    for key, value in above.items():
        old = result.get(key)
        if value is None:
            continue
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        result[key] = _merge(old, value) if both else value  # type: ignore[arg-type]
    return result


def _one_size(volume: Mapping[str, Any], over: Mapping[str, Any]) -> JsonObject:
    said = [key for key in _SIZES if over.get(key) is not None]
    gone = {key for key in _SIZES if said and key not in said}
    if "existingClaim" in said:
        gone |= {key for key in ("storageClass", "accessMode") if over.get(key) is None}
    return {key: value for key, value in volume.items() if key not in gone}


def resolve(queue: Any, job: JobSpec) -> tuple[Settings | None, tuple[str, ...]]:
    """The settings of this job in a queue with this raw spec, or None and what is wrong."""
    spec, problems = queue_spec.parse(merged(queue, job.overrides), "the queue's spec with spec.overrides")
    if spec is None:
        return None, problems
    own_gpus = _queue_gpus(queue)
    if not job.gpus and own_gpus and not spec.gpus and spec.pool and spec.pool == _queue_pool(queue):
        return None, (
            f"spec.overrides.nodeResources.gpus is 0, and nodes of pool {spec.pool} have GPUs, which would be paid for "
            "and idle; use a queue on a pool without GPUs",
        )
    defaults = spec.job_defaults
    policy = job.restart_policy or defaults.restart_policy
    most = defaults.max_restarts if job.max_restarts is None else job.max_restarts
    substituted = job.rendezvous in ETCD and not job.endpoint
    return Settings(
        queue=spec,
        max_restarts=0 if policy == NEVER else most,
        deadline=defaults.deadline if job.deadline is None else job.deadline,
        time_to_live=defaults.time_to_live if job.time_to_live is None else job.time_to_live,
        port=job.port or spec.port,
        rendezvous=C10D if substituted else job.rendezvous,
        substituted=job.rendezvous if substituted else "",
        node_gpus=max(spec.gpus, own_gpus),
    ), ()


def _queue_gpus(queue: Any) -> int:
    resources = queue.get("nodeResources") if isinstance(queue, Mapping) else None
    found = resources.get("gpus") if isinstance(resources, Mapping) else None
    return found if isinstance(found, int) else 0


def _queue_pool(queue: Any) -> Any:
    scheduling = queue.get("scheduling") if isinstance(queue, Mapping) else None
    return scheduling.get("pool") if isinstance(scheduling, Mapping) else None


def own_template(queue: Any, job: JobSpec, spec: QueueSpec) -> tuple[str, ...]:
    """What of the job's own pod template is to have another name or place; its queue's is told of the queue."""
    if not isinstance(job.overrides, Mapping) or job.overrides.get("podTemplate") is None:
        return ()
    below, _ = queue_spec.parse(merged(queue, {**job.overrides, "podTemplate": None}))
    place, sent = "spec.overrides", job.workspace is not None
    known = [] if below is None else check_pod_template(below, place, workspace=sent)
    return tuple(each for each in check_pod_template(spec, place, workspace=sent) if each not in known)
