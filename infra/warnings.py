"""Warnings of `up` and `preview`: valid settings that the deployer should know about. Pure: the day is passed in."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Final

from components.documents import checkpoints, user_data
from components.documents.pool import GPU, SPOT
from infra.credential_names import is_credential_name
from infra.settings import Settings, Training
from infra.settings.training import STATIC

# Version -> the day that standard support ends, UTC. EKS user guide, latest/ug/versioning/kubernetes-versions.adoc;
# `aws eks describe-cluster-versions` prints it. There is no warning for 1.36: its day is not known yet (2026-11-21).
STANDARD_SUPPORT_ENDS: Final[dict[str, date | None]] = {
    "1.34": date(2026, 12, 2),
    "1.35": date(2027, 3, 27),
    "1.36": None,
}
WARN_BEFORE: Final = timedelta(days=90)


def find_warnings(settings: Settings, today: date) -> list[str]:
    """Return a line for each warning, with its key."""
    return [
        # An existing cluster has another owner.
        *([] if settings.cluster.existing else end_of_support(settings.cluster.version, today)),
        *_spot(settings),
        *_lustre_over_efa(settings),
        *_plain_credentials(settings),
        *_idle_gpus(settings),
    ]


def end_of_support(version: str, today: date) -> list[str]:
    """Return a warning if standard support of a Kubernetes version ends soon, or has ended.

    The clusters have the upgrade policy STANDARD, so that EKS itself upgrades them at the end
    (https://docs.aws.amazon.com/eks/latest/userguide/disable-extended-support.html).
    """
    end = STANDARD_SUPPORT_ENDS[version]
    if end is None or today < end - WARN_BEFORE:
        return []
    newer = [each for each in STANDARD_SUPPORT_ENDS if _number(each) > _number(version)]
    when = (
        f"ended on {end}: EKS upgrades this cluster's control plane at a time of its own choice"
        if today >= end
        else f"ends on {end}, in {(end - today).days} days; EKS then upgrades the control plane by itself"
    )
    advice = (
        f"; set trainyard:cluster.version to {' or '.join(newer)}, one minor version at a time"
        if newer
        else ""
    )
    return [f"Kubernetes {version}: standard support {when}{advice}"]


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _spot(settings: Settings) -> list[str]:
    """Warn of a run on several Spot nodes: the loss of one node restarts all workers."""
    training = settings.training
    if training is None or training.max_nodes == 1:
        return []
    return [
        f"trainyard:pools[{settings.pools.index(candidate.pool)}].purchase is spot, and the run uses up to"
        f" {training.max_nodes} nodes: each Spot interruption {_effect_of_interruption(training)}. On-demand and"
        " reserved nodes are not interrupted"
        for candidate in training.candidates
        if candidate.pool.purchase == SPOT
    ]


def _effect_of_interruption(training: Training) -> str:
    """Return the effect of a Spot interruption on the run. An elastic run does not count those that it survives."""
    if training.shape == STATIC and not training.max_restarts:
        return "ends the run, because training.maxRestarts is 0"
    has_checkpoints = training.checkpoints != checkpoints.NONE
    start = (
        "the newest checkpoint" if has_checkpoints else "the first step, because training.checkpoints is none"
    )
    effect = f"restarts all workers from {start}"
    if training.shape != STATIC:
        return effect
    times = "once" if training.max_restarts == 1 else f"{training.max_restarts} times"
    return f"{effect}, {times} at most (training.maxRestarts), and the next one ends the run"


def _plain_credentials(settings: Settings) -> list[str]:
    """Warn of credentials in `training.env`: all users who can read Pods and Jobs can see its values."""
    training = settings.training
    names = [] if training is None else [name for name in training.env if is_credential_name(name)]
    return [
        f"trainyard:training.env.{name} looks like a credential, but is stored in plain text in the stack file, in the"
        " state and in Pods. Put it into a Secret in namespace training, and use training.secrets"
        for name in names
    ]


def _idle_gpus(settings: Settings) -> list[str]:
    """Warn of queues without GPUs on pools of GPU nodes: their jobs occupy GPU nodes."""
    return [
        f"trainyard:queues[{index}].nodeResources.gpus is 0, and each node of pool {queue.pool.name} has"
        f" {queue.pool.accelerators} GPUs, which idle while a job of {queue.name} has the node. Use a pool of a type"
        " without GPUs"
        for index, queue in enumerate(settings.queues)
        if queue.gpus == 0 and queue.pool.accelerators and queue.pool.resource == GPU
    ]


def _lustre_over_efa(settings: Settings) -> list[str]:
    """Warn of EFA for the file system: a client without EFA uses TCP, and FSx does not report it."""
    lustre, key = settings.storage.lustre, "trainyard:storage.lustre.efa"
    if lustre is None or not lustre.efa:
        return []
    over_tcp = [
        f"{pool.name} ({pool.instance_type})"
        for pool in settings.pools
        if not user_data.interfaces(pool.instance_type, pool.efa)
    ]
    found = [
        f"{key} is experimental: nodes configure their Lustre client for EFA at their first start, and use TCP if that"
        " fails; on a node, `lnetctl net show -v` counts the traffic of both (docs/decisions/0015)"
    ]
    if over_tcp:
        families = ", ".join(user_data.FAMILIES)
        found.append(
            f"{key}: the file system has EFA, and the nodes of {', '.join(over_tcp)} reach it over TCP; FSx supports"
            f" EFA from {families} with efa other than none"
        )
    return found
