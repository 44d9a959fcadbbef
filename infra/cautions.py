"""What a stack may do and whoever deploys it should know: lines for `up` and `preview`. Pure: the day is passed in."""

from __future__ import annotations

from datetime import date

from components.documents import checkpoints, user_data
from components.documents.pool import GPU, SPOT
from infra import support
from infra.credential_names import is_credential_name
from infra.settings import Settings, Training
from infra.settings.training import STATIC


def lines(settings: Settings, today: date) -> list[str]:
    """A line for each, with the key that it is about."""
    return [
        *_end_of_version(settings, today),
        *_spot(settings),
        *_lustre_over_efa(settings),
        *_plain_credentials(settings),
        *_idle_gpus(settings),
    ]


def _end_of_version(settings: Settings, today: date) -> list[str]:
    """Only of a cluster that the stack makes: a given one's version is its owner's."""
    return [] if settings.cluster.existing else support.warnings(settings.cluster.version, today)


def _spot(settings: Settings) -> list[str]:
    """A world of a fixed size begins anew without one of its workers (`launcher.manifests`)."""
    training = settings.training
    if training is None or training.max_nodes == 1:
        return []
    return [
        f"trainyard:pools[{settings.pools.index(candidate.pool)}].purchase is spot, and up to {training.max_nodes}"
        f" machines train together: each one that EC2 takes back {_taken_back(training)}; on-demand and reserved"
        " machines stay"
        for candidate in training.candidates
        if candidate.pool.purchase == SPOT
    ]


def _taken_back(training: Training) -> str:
    """What a machine that is taken back costs the run; an elastic world does not count those that it can spare."""
    if training.shape == STATIC and not training.max_restarts:
        return "ends the run, since training.maxRestarts is 0"
    kept = training.checkpoints != checkpoints.NONE
    begins = "the newest checkpoint" if kept else "the first step, since training.checkpoints is none"
    anew = f"makes all of them begin anew from {begins}"
    if training.shape != STATIC:
        return anew
    times = "once" if training.max_restarts == 1 else f"{training.max_restarts} times"
    return f"{anew}, {times} at most (training.maxRestarts), and the next one ends the run"


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
    """Warn of queues without GPUs on pools of GPU nodes: their jobs buy such nodes all the same."""
    return [
        f"trainyard:queues[{index}].nodeResources.gpus is 0, and each node of pool {queue.pool.name} has"
        f" {queue.pool.accelerators} GPUs, which idle while a job of {queue.name} has the node. Use a pool of a type"
        " without GPUs"
        for index, queue in enumerate(settings.queues)
        if queue.gpus == 0 and queue.pool.accelerators and queue.pool.resource == GPU
    ]


def _lustre_over_efa(settings: Settings) -> list[str]:
    """FSx tells nobody what a client uses: a mount begins with TCP, and stays with it where EFA is not set up."""
    lustre, key = settings.storage.lustre, "trainyard:storage.lustre.efa"
    if lustre is None or not lustre.efa:
        return []
    over_tcp = [
        f"{pool.name} ({pool.instance_type})"
        for pool in settings.pools
        if not user_data.interfaces(pool.instance_type, pool.efa)
    ]
    found = [
        f"{key} is experimental: machines set up their Lustre client for EFA when they first start, and what fails"
        " there is left to TCP; on a machine, `lnetctl net show -v` counts what went over which (docs/decisions/0015)"
    ]
    if over_tcp:
        families = ", ".join(user_data.FAMILIES)
        found.append(
            f"{key}: the file system has EFA, and the machines of {', '.join(over_tcp)} reach it over TCP; FSx takes"
            f" EFA from {families} with efa other than none"
        )
    return found
