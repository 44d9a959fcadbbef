"""The rules that concern several sections of a stack file. `check` is the entry point."""

from __future__ import annotations

from typing import Final

from components.documents import checkpoints, efa, eks, instance_types, versions, vpc
from components.documents.pool import CAPACITY_BLOCK
from components.documents.torchrun_queue import BUCKET_PREFIX, Queue
from infra.settings import trainer_options
from infra.settings.cluster import VPC, Cluster
from infra.settings.fields import hint, shown
from infra.settings.model import Settings
from infra.settings.network import Network
from infra.settings.pools import PoolEntry
from infra.settings.problems import Problems
from infra.settings.storage import Storage
from infra.settings.training import CUDA, DATA_SETS

# The largest uses of addresses in a message.
MAXIMUM_SHOWN: Final = 4


def check(
    problems: Problems,
    settings: Settings,
    pools: list[PoolEntry],
    queues: tuple[Queue | None, ...],
    *,
    accepts_ended: bool,
) -> None:
    """Report settings that contradict each other. Invalid settings are skipped.

    Args:
        problems: The errors so far.
        settings: The settings.
        pools: The pools in the order of the stack file.
        queues: The queues in the order of the stack file, None for a queue with an unknown pool.
        accepts_ended: The caller deploys nothing, so no run starts.
    """
    _check_network(problems, settings)
    _check_kernels(problems, settings)
    _check_arguments(problems, settings)
    _check_checkpoints(problems, settings)
    _check_network_plugin(problems, settings)
    _check_file_system_driver(problems, settings)
    _check_workspaces(problems, settings)
    _check_linked_workspaces(problems, settings)
    _check_queue_kernels(problems, settings, queues)
    if not accepts_ended:
        _check_block_ends(problems, settings, pools)


def _check_network(problems: Problems, settings: Settings) -> None:
    network, cluster = settings.network, settings.cluster
    is_valid = not problems.about("trainyard:network") and not problems.about("trainyard:cluster.systemNodes")
    if is_valid and network.existing is None and network.cidr is not None:
        _check_addresses(problems, settings)
    no_mirror = settings.images.mirror is None and not problems.about("trainyard:images.mirror")
    if network.private and no_mirror:
        problems.add(
            "trainyard:network.private",
            "is true, so that no public registry is reached, and images.mirror is missing;"
            " it must name the registry that holds the third-party images",
        )
    is_from_vpc = cluster.deploy_from == VPC and cluster.existing is None
    has_no_range = network.cidr is None and not problems.about("trainyard:network.cidr")
    if is_from_vpc and network.existing and has_no_range:
        problems.add(
            "trainyard:network.cidr",
            "is missing; cluster.deployFrom: vpc lets the range that you deploy from reach the API, and must know it",
        )


def _check_block_ends(problems: Problems, settings: Settings, pools: list[PoolEntry]) -> None:
    """Check that a run on a capacity block has its end. The launcher gets the end only from the stack file."""
    training = settings.training
    if training is None or training.run_id is None:
        return
    for index, entry in enumerate(pools):
        pool = entry.pool
        if not entry.has("purchase", "capacityReservationIds", "reservationType", "reservationEnds"):
            continue
        is_used = any(candidate.pool is pool for candidate in training.candidates)
        if is_used and pool.reservation_type == CAPACITY_BLOCK and pool.reservation_ends is None:
            ids = " ".join(pool.capacity_reservation_ids)
            problems.add(
                f"trainyard:pools[{index}].reservationEnds",
                "is missing, and training.runId starts a run, which has to know when its capacity block ends; it must"
                " be the end (of several: the first one), in quotes, which this prints: aws ec2"
                f" describe-capacity-reservations --capacity-reservation-ids {ids}"
                " --query 'CapacityReservations[].EndDate'",
            )


def _check_kernels(problems: Problems, settings: Settings) -> None:
    """Check the GPU types: the torch in the image that the stack builds has no kernels for older GPUs."""
    training = settings.training
    wrong = problems.about("trainyard:training.device")
    if training is None or wrong or training.device != CUDA or settings.images.trainer is not None:
        return
    old = []
    for candidate in training.candidates:
        facts = instance_types.TYPES.get(candidate.pool.instance_type)
        if facts is not None and not instance_types.torch_serves(facts):
            old.append(f"the {facts.accelerator} of {facts.name} (pool '{candidate.pool.name}')")
    if not old or problems.about("trainyard:images.trainer"):
        return
    problems.add(
        "trainyard:images.trainer",
        f"is missing; the image that is built has a torch for CUDA {instance_types.TORCH_CUDA}, which has no kernels"
        f" for {' and '.join(old)}; it must be one that has, such as the target v100 of trainer/Dockerfile"
        " (docs/images.md), or training must be left out, or be on other pools",
    )


def _check_queue_kernels(problems: Problems, settings: Settings, queues: tuple[Queue | None, ...]) -> None:
    """Check the GPU types of queues whose workers use the stack's trainer image, as `_check_kernels` does."""
    if settings.images.trainer is not None or problems.about("trainyard:images.trainer"):
        return
    for index, queue in enumerate(queues):
        path = f"trainyard:queues[{index}]"
        facts = instance_types.TYPES.get(queue.pool.instance_type) if queue else None
        if queue is None or facts is None or problems.about(f"{path}.image"):
            continue
        if queue.image is None and queue.gpus and not instance_types.torch_serves(facts):
            problems.add(
                f"{path}.image",
                f"is missing; the image that is built has a torch for CUDA {instance_types.TORCH_CUDA}, which has no"
                f" kernels for the {facts.accelerator} of {facts.name}; it must be one that has, or images.trainer must"
                " be given, such as the target v100 of trainer/Dockerfile (docs/images.md)",
            )


def _check_workspaces(problems: Problems, settings: Settings) -> None:
    """Check that models of runs and workspaces of jobs have different prefixes in the stack's bucket."""
    prefix = settings.storage.prefix
    inside = prefix.split("/")[0] == BUCKET_PREFIX
    if problems.about("trainyard:storage.prefix"):
        return
    if inside and any(queue.own_bucket for queue in settings.queues):
        problems.add(
            "trainyard:storage.prefix",
            f"'{prefix}' is where workspaces of torchrun jobs go; it must be another one, such as models, or no queue"
            " may have storage.workspace.bucket: models",
        )


def _check_linked_workspaces(problems: Problems, settings: Settings) -> None:
    """Refuse a file system that makes the workspaces and logs of torchrun jobs visible to all pods."""
    path = "trainyard:storage.lustre"
    link = settings.storage.lustre.s3 if settings.storage.lustre else None
    if link is None or problems.about(path):
        return
    buckets = {queue.bucket for queue in settings.queues if queue.fetches}
    if link.bucket in buckets and link.prefix.split("/")[0] in ("", BUCKET_PREFIX):
        problems.add(
            f"{path}.s3.prefix",
            f"'{link.prefix}' contains the workspaces and logs of torchrun jobs, which all pods could read; it must be"
            " another prefix, such as data",
        )


def _check_arguments(problems: Problems, settings: Settings) -> None:
    """Check the data and the arguments of this repository's trainer. Those of another image are unknown."""
    given = settings.images.trainer is not None or problems.about("trainyard:images.trainer")
    if settings.training is None or given:
        return
    data = settings.training.data
    if data not in DATA_SETS and not data.startswith("/") and not problems.about("trainyard:training.data"):
        near = hint(data, DATA_SETS)
        problems.add(
            "trainyard:training.data",
            f"{shown(data)} is unknown to the trainer{near}; it must be {' or '.join(DATA_SETS)}, or the absolute path"
            " of a directory, or images.trainer must be given",
        )
    if problems.about("trainyard:training.args"):
        return
    for index, problem in trainer_options.wrong(settings.training.args):
        problems.add(f"trainyard:training.args[{index}]", problem)


def _check_checkpoints(problems: Problems, settings: Settings) -> None:
    """Check that the stack has a file system if checkpoints are kept there."""
    training = settings.training
    if training is None or training.checkpoints != checkpoints.LUSTRE or settings.storage.lustre is not None:
        return
    if not problems.about("trainyard:storage.lustre"):
        problems.add(
            "trainyard:training.checkpoints",
            f"is {checkpoints.LUSTRE}, and there is no file system; it must be {checkpoints.S3} or {checkpoints.NONE},"
            " or storage.lustre must be given",
        )


def _check_network_plugin(problems: Problems, settings: Settings) -> None:
    """Check the pinned version of the VPC CNI, if any. The preflight checks the version of an existing cluster."""
    if settings.cluster.existing is not None:
        return
    version = settings.cluster.addon_versions.get("vpc-cni")
    with_efa = [pool.name for pool in settings.pools if pool.efa]
    if version and with_efa and (problem := efa.cni_problem(version)):
        problems.add(
            "trainyard:cluster.addonVersions.vpc-cni",
            f"'{version}' {problem}, or the efa of {', '.join(with_efa)} must be none",
        )


def _check_file_system_driver(problems: Problems, settings: Settings) -> None:
    """Refuse a version of the FSx CSI driver without a file system: the stack then does not create the driver."""
    if settings.cluster.existing is not None or problems.about("trainyard:storage.lustre"):
        return
    if versions.FSX_ADDON in settings.cluster.addon_versions and settings.storage.lustre is None:
        problems.add(
            f"trainyard:cluster.addonVersions.{versions.FSX_ADDON}",
            "is given, and the stack has no file system; leave it out, or set storage.lustre",
        )


def needed_addresses(settings: Settings) -> dict[str, dict[str, int]]:
    """Return the number of addresses that a stack may use in the private subnet of each zone, by their use."""
    network, cluster = settings.network, settings.cluster
    own_cluster = cluster.existing is None
    found: dict[str, dict[str, int]] = {}
    for zone in network.zones:
        takers = {}
        for pool in settings.pools:
            if pool.zone == zone:
                each = pool.addresses(own_cni=own_cluster)
                name = f"{pool.name} ({pool.max_nodes} x {pool.instance_type}, {each} each)"
                takers[name] = pool.max_nodes * each
        if own_cluster:
            takers["control plane"] = eks.CONTROL_PLANE
            takers["system nodes"] = _system(cluster, len(network.zones))
        if endpoints := _endpoints(network, settings.storage):
            takers["endpoints"] = endpoints
        lustre = settings.storage.lustre
        if lustre and lustre.existing is None and lustre.zone == zone:
            takers["file system"] = eks.of_file_system(lustre.capacity_gib)
        found[zone] = takers
    return found


def _system(cluster: Cluster, zones: int) -> int:
    """Return the maximum number of addresses of system nodes in one zone."""
    facts = instance_types.TYPES[cluster.system_nodes.instance_type]
    nodes = -(-cluster.system_nodes.count // zones) + eks.SPARE_IN_A_ZONE
    network = eks.NodeNetwork(interfaces=facts.interfaces, addresses=facts.addresses, pods=eks.SYSTEM_PODS)
    return nodes * network.address_count


def _endpoints(network: Network, storage: Storage) -> int:
    if not network.private:
        return len(network.interface_endpoints)
    return len(
        vpc.private_endpoints(file_system=storage.lustre is not None, more=network.interface_endpoints)
    )


def _check_addresses(problems: Problems, settings: Settings) -> None:
    network = settings.network
    layout = vpc.subnets(network.cidr or "", len(network.zones))
    blocks = dict(zip(network.zones, layout.private, strict=True))
    for zone, takers in needed_addresses(settings).items():
        free, taken = eks.usable_addresses(blocks[zone]), sum(takers.values())
        if taken > free:
            largest = sorted(takers.items(), key=lambda each: each[1], reverse=True)[:MAXIMUM_SHOWN]
            uses = [f"{name}: {count}" for name, count in largest]
            if rest := taken - sum(count for _, count in largest):
                uses.append(f"{len(takers) - len(largest)} others: {rest}")
            problems.add(
                "trainyard:network.cidr",
                f"{network.cidr} gives {zone} {free} addresses, and {taken} may be taken ({', '.join(uses)});"
                " it must be a larger range, or the pools must have fewer nodes",
            )
