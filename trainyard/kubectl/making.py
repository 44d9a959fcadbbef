"""A job is made once, whatever becomes of the answers, and taken back where it is of no use."""

from __future__ import annotations

import secrets
import time
from typing import Any, Final

from trainyard.kubectl.cluster import Cluster
from trainyard.kubectl.exits import UNAVAILABLE, USAGE, PluginError
from trainyard.kubectl.screen import say
from trainyard.operator.core import gang_queue, job_spec, pool_limits
from trainyard.operator.core import names as n
from trainyard.operator.core.distribution import Refused, distribute
from trainyard.operator.core.queues import build_trial
from trainyard.operator.core.resolve import resolve
from trainyard.operator.core.storage import Cluster as Facts

JsonObject = dict[str, Any]
# Another job of this name may be like ours in everything but this.
MARK: Final = f"{n.GROUP}/submitted-as"
_MARK_BYTES: Final = 16


def fits(job: JsonObject, queue: JsonObject) -> None:
    """Refuse a job that the controller would refuse, or that the pool or KAI's queue can never fit.

    The API server checks the schema. In an invalid queue, the job waits.

    Raises:
        PluginError: The job would never start.
    """
    spec, _ = job_spec.parse(job["spec"])
    settings = resolve(queue.get("spec"), spec)[0] if spec is not None else None
    if spec is None or settings is None:
        return
    try:
        size = distribute(spec, settings.queue)
    except Refused as refusal:
        raise PluginError(USAGE, f"queue {spec.queue}: {refusal}") from None
    trial = build_trial(job["metadata"]["namespace"], spec, settings, size, Facts(tools_image=""))
    status = queue.get("status")
    if why := pool_limits.rejection_reason(status, trial, time.time()) or gang_queue.rejection_reason(
        status, trial
    ):
        raise PluginError(USAGE, f"queue {spec.queue}: {why}")
    if why := pool_limits.reservation_warning(status, settings.queue.pool):
        say(f"queue {spec.queue}: {why}; the job waits until there is one")


def judge(cluster: Cluster, job: JsonObject) -> None:
    """The API server's word on the job, which is not made. Raises PluginError."""
    if cluster.create(job, dry_run=True) is None:
        raise _taken(cluster, job["metadata"]["name"])


def mark(job: JsonObject) -> None:
    """Puts a random mark on the job, by which it is known again."""
    job["metadata"].setdefault("annotations", {})[MARK] = secrets.token_hex(_MARK_BYTES)


def make(cluster: Cluster, job: JsonObject) -> JsonObject:
    """Makes a job that is marked; nothing is left of it where nobody knows whether it was made. Raises PluginError."""
    try:
        return cluster.create(job) or _there(cluster, job)
    except (PluginError, KeyboardInterrupt) as error:
        if isinstance(error, KeyboardInterrupt) or error.code == UNAVAILABLE:
            _undo(cluster, job)
        raise


def take_back(cluster: Cluster, job: JsonObject, why: str, lack: str) -> None:
    """Deletes the job. Where that fails, it is told, and what went wrong before stays the reason of the end."""
    name = job["metadata"]["name"]
    try:
        cluster.delete(name, job["metadata"]["uid"])
    except (PluginError, KeyboardInterrupt) as error:
        reason = str(error) or "interrupted"
        say(f"job {name} is left, {lack}: {reason}; remove it: {cluster.command('torchrun cancel', name)}")
    else:
        say(f"job {name} is deleted again: {why}")


def _there(cluster: Cluster, job: JsonObject) -> JsonObject:
    """The job of this name, if the API server made it of a request whose answer was lost."""
    name = job["metadata"]["name"]
    found = cluster.find_job(name)
    if found is None or not _is_ours(found, job):
        raise _taken(cluster, name)
    return found


def _undo(cluster: Cluster, job: JsonObject) -> None:
    """Takes the job back if it is there; another one of its name is left alone."""
    name = job["metadata"]["name"]
    try:
        found = cluster.find_job(name)
    except (PluginError, KeyboardInterrupt):
        found = None
    if found is None:  # a request may still be on its way
        say(f"job {name} may be there by now: {cluster.command('torchrun cancel', name)}")
    elif _is_ours(found, job):
        take_back(
            cluster, found, "the answer that it was made never came", "and nobody said that it was made"
        )


def _is_ours(found: JsonObject, job: JsonObject) -> bool:
    return bool(found["metadata"].get("annotations", {}).get(MARK) == job["metadata"]["annotations"][MARK])


def _taken(cluster: Cluster, name: str) -> PluginError:
    return PluginError(
        USAGE, f"--name: there is a job {name} in namespace {cluster.namespace}; give another name"
    )
