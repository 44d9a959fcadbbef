"""Refuse changes of settings that a running stack can't change.

Each field of the models names the effect of another value: it is applied *in place*, it *replaces* a resource, or it is
refused, because the setting is *fixed* after the first `up`. `components.fixed_settings` records the values of `FIXED`
in the state, and refuses other ones in `pulumi preview` and `pulumi up`. `make up`, `make preview` and `make preflight`
compare them with the state first. Their entry point is `find_refused_changes`, which also refuses values that can't
shrink.

The tables in local/plugins say which inputs of a resource force a replacement; tests compare them with the official
providers. A Kubernetes provider with another endpoint or certificate authority replaces all of its objects
(pulumi/pulumi-kubernetes#2771, DiffConfig).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from components.documents.launch import Candidate
from components.documents.lustre import PERSISTENT_1
from components.documents.setting_changes import find_changes
from infra.settings import ExistingCluster, Lustre, Settings, Training
from trainyard.k8s.names import BACKEND_PYTORCHJOB

Value = Callable[[Settings], Any]


def _if_vpc_is_created(get: Value) -> Value:
    return lambda settings: get(settings) if settings.network.existing is None else None


def _if_cluster_is_created(get: Value) -> Value:
    return lambda settings: get(settings) if settings.cluster.existing is None else None


def _existing_cluster_value(get: Callable[[ExistingCluster], Any]) -> Value:
    return lambda settings: get(settings.cluster.existing) if settings.cluster.existing is not None else None


def _created_lustre_value(get: Callable[[Lustre], Any]) -> Value:
    def value(settings: Settings) -> Any:
        lustre = settings.storage.lustre
        return get(lustre) if lustre is not None and lustre.existing is None else None

    return value


def _existing_lustre_value(name: str) -> Value:
    """Return "" for a file system that the stack creates, so that it can't become an existing one or the reverse."""

    def value(settings: Settings) -> Any:
        lustre = settings.storage.lustre
        return None if lustre is None else getattr(lustre.existing, name, "")

    return value


def _persistent_1_link_value(name: str) -> Value:
    """Fix the link of PERSISTENT_1, where it is an input of the file system. Others use a separate association."""
    return _created_lustre_value(
        lambda lustre: (
            getattr(lustre.link, name, None) or "" if lustre.deployment_type == PERSISTENT_1 else None
        )
    )


def _private_subnets(settings: Settings) -> Any:
    """Fix the subnets of the node group and of the stack's file system. Pools on an existing cluster accept others."""
    existing, lustre = settings.network.existing, settings.storage.lustre
    if existing is None or settings.cluster.existing is None:
        return existing.private_subnet_ids if existing else None
    if lustre is None or lustre.existing is not None:
        return None
    return {lustre.zone: existing.private_subnet_ids.get(lustre.zone, "")}


def _public_subnets(settings: Settings) -> Any:
    """Fix the subnets of the cluster.

    EKS accepts no subnets in further zones (https://docs.aws.amazon.com/eks/latest/userguide/network-reqs.html).
    """
    existing = settings.network.existing
    return existing.public_subnet_ids if existing and settings.cluster.existing is None else None


# The fixed settings, each with the function that returns its value, or None in stacks where it is not fixed. The models
# also mark them as fixed (`changedLater`).
FIXED: Final[dict[str, Value]] = {
    "network.cidr": _if_vpc_is_created(lambda s: s.network.cidr),
    "network.zones": _if_vpc_is_created(lambda s: list(s.network.zones)),
    "network.vpcId": lambda s: s.network.existing.vpc_id if s.network.existing else "",
    "network.privateSubnetIds": _private_subnets,
    "network.publicSubnetIds": _public_subnets,
    "network.private": lambda s: s.network.private,
    "cluster.existing": lambda s: s.cluster.existing is not None,
    "cluster.existing.name": lambda s: s.cluster.name if s.cluster.existing else None,
    "cluster.existing.endpoint": _existing_cluster_value(lambda x: x.endpoint),
    "cluster.existing.certificateAuthority": _existing_cluster_value(lambda x: x.certificate_authority),
    "cluster.name": _if_cluster_is_created(lambda s: s.cluster.name),
    "cluster.accountId": lambda s: s.cluster.account_id,
    "storage.lustre.existing": lambda s: s.storage.lustre.existing is not None if s.storage.lustre else None,
    "storage.lustre.existing.fileSystemId": _existing_lustre_value("file_system_id"),
    "storage.lustre.existing.dnsName": _existing_lustre_value("dns_name"),
    "storage.lustre.existing.mountName": _existing_lustre_value("mount_name"),
    "storage.lustre.deploymentType": _created_lustre_value(lambda x: x.deployment_type),
    "storage.lustre.storageType": _created_lustre_value(lambda x: x.storage_type),
    "storage.lustre.driveCache": _created_lustre_value(lambda x: x.drive_cache),
    "storage.lustre.throughput": _created_lustre_value(lambda x: x.throughput),
    "storage.lustre.s3.bucket": _persistent_1_link_value("bucket"),
    "storage.lustre.s3.prefix": _persistent_1_link_value("prefix"),
    "storage.lustre.zone": _created_lustre_value(lambda x: x.zone),
    "storage.lustre.efa": _created_lustre_value(lambda x: x.efa),
}
BACKEND_KEY: Final = "trainyard:training.backend"
FIXED_SETTINGS_TYPE: Final = "pulumi-python:dynamic/settings:Fixed"
STARTED_RUN_TYPE: Final = "pulumi-python:dynamic/settings:StartedRun"
FILE_SYSTEM_TYPE: Final = "aws:fsx/lustreFileSystem:LustreFileSystem"
CLUSTER_TYPE: Final = "aws:eks/cluster:Cluster"


def fixed_values(settings: Settings) -> dict[str, Any]:
    """Return the value of each setting that is fixed in this stack, by its full key."""
    found: dict[str, Any] = {"aws:region": settings.region}
    for path, get in FIXED.items():
        value = get(settings)
        if value is not None:
            found[f"trainyard:{path}"] = value
    return found


def run_values(settings: Settings, training: Training) -> dict[str, Any]:
    """Return the settings that a run receives at its start, by key. `infra.stack` adds the images that it builds."""
    first, *others = training.candidates
    lustre = settings.storage.lustre

    def size(candidate: Candidate) -> list[Any]:
        taken = candidate.size
        return [taken.processes_per_node, taken.cpu, taken.memory, taken.shared_memory]

    beside = {
        "trainyard:images.placeholder": settings.images.placeholder,
        "trainyard:storage.prefix": settings.storage.prefix,
        "trainyard:storage.lustre.mountPath": lustre.mount_path if lustre else "",
    }
    return beside | {
        f"trainyard:training.{key}": value
        for key, value in {
            "pool": first.pool.name,
            "processesPerNode": first.size.processes_per_node,
            "cpu": first.size.cpu,
            "memory": first.size.memory,
            "sharedMemory": first.size.shared_memory,
            "capacityDeadlineSeconds": first.capacity_deadline_seconds,
            "fallbackPools": [
                [each.pool.name, each.capacity_deadline_seconds, *size(each)] for each in others
            ],
            "minNodes": training.min_nodes,
            "maxNodes": training.max_nodes,
            "device": training.device,
            "holdSeconds": training.hold_seconds,
            "nodeStartSeconds": training.node_start_seconds,
            "attempts": training.attempts,
            "retrySeconds": training.retry_seconds,
            "maxRestarts": training.max_restarts,
            "shape": training.shape,
            "backend": training.backend,
            "activeDeadlineSeconds": training.active_deadline_seconds or 0,
            "data": training.data,
            "checkpoints": training.checkpoints,
            "args": list(training.args),
            "env": training.env,
            "secrets": training.secrets,
        }.items()
    }


def find_refused_changes(settings: Settings, deployment: Mapping[str, Any]) -> dict[str, str]:
    """Return an error message for each setting that the stack's state does not allow, by key.

    Args:
        settings: The settings of the next `up`.
        deployment: The exported state. It may be empty, or the state of a failed `up`.
    """
    resources = deployment.get("resources") or []
    found: dict[str, str] = {}
    for each in resources:
        inputs = each.get("inputs") or {}
        if each["type"] == FIXED_SETTINGS_TYPE:
            found |= find_changes(inputs.get("values") or {}, fixed_values(settings))
        elif each["type"] == FILE_SYSTEM_TYPE:
            found |= _refuse_smaller(settings.storage.lustre, inputs)
        elif each["type"] == STARTED_RUN_TYPE:
            found |= _refuse_backend(settings.training, inputs)
        elif each["type"] == CLUSTER_TYPE and settings.cluster.existing is None:
            found |= _refuse_version(settings.cluster.version, inputs.get("version"))
    return found


def _refuse_smaller(configured: Lustre | None, inputs: Mapping[str, Any]) -> dict[str, str]:
    """Refuse a smaller file system: the provider would replace it, and the data would be lost."""
    if configured is None or configured.existing is not None:
        return {}
    current = {
        "capacityGiB": (inputs.get("storageCapacity") or 0, configured.capacity_gib),
        # With 0, FSx chooses the value itself. It accepts 0 again only if the value does not become smaller.
        "metadataIops": (
            (inputs.get("metadataConfiguration") or {}).get("iops") or 0,
            configured.metadata_iops,
        ),
    }
    return {
        f"trainyard:storage.lustre.{key}": (
            f"is {now}, but the file system has {int(before)} and can't shrink. Set it to at least {int(before)}, or"
            " create another stack"
        )
        for key, (before, now) in current.items()
        if now < before
    }


def _refuse_backend(training: Training | None, inputs: Mapping[str, Any]) -> dict[str, str]:
    """Refuse another backend for a started run: without its operator, its job is deleted and its launcher fails."""
    if training is None or training.run_id is None or inputs.get("runId") != training.run_id:
        return {}
    # An earlier version of the program had only one backend, and did not record it.
    before = (inputs.get("values") or {}).get(BACKEND_KEY, BACKEND_PYTORCHJOB)
    if training.backend == before:
        return {}
    return {
        BACKEND_KEY: (
            f"is '{training.backend}', but run {training.run_id} was started with '{before}', and would lose its"
            " operator and its job. When it has ended, set trainyard:training.runId to another name, too"
        )
    }


def _refuse_version(configured: str, current: str | None) -> dict[str, str]:
    """Refuse all versions except the present one and the next minor one.

    EKS accepts no others (https://docs.aws.amazon.com/eks/latest/userguide/update-cluster.html).
    """
    if current is None or current == configured:
        return {}
    major, minor = (int(part) for part in str(current).split("."))
    if tuple(int(part) for part in configured.split(".")) == (major, minor + 1):
        return {}
    lower = tuple(int(part) for part in configured.split(".")) < (major, minor)
    rule = "EKS has no downgrades" if lower else "EKS updates by one minor version at a time"
    valid = current if lower else f"{major}.{minor + 1}"
    return {
        "trainyard:cluster.version": f"is '{configured}', but the cluster has '{current}'; {rule}. Set it to '{valid}'"
    }
