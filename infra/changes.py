"""Refuse changes of settings that a running stack can't change.

Each field of the models names the effect of another value: it is applied *in place*, it *replaces* a resource, or it is
refused, because the setting is *fixed* after the first `up`. `components.fixed_settings` records `fixed_values` in the
state, and refuses other ones in `pulumi preview` and `pulumi up`. `make up`, `make preview` and `make preflight`
compare them with the state first. Their entry point is `find_refused_changes`, which also refuses values that can't
shrink.

The tables in local/plugins say which inputs of a resource force a replacement; tests compare them with the official
providers. A Kubernetes provider with another endpoint or certificate authority replaces all of its objects
(pulumi/pulumi-kubernetes#2771, DiffConfig).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, astuple
from typing import Any, Final

from components.documents.lustre import PERSISTENT_1
from components.documents.setting_changes import find_changes
from infra.settings import Cluster, Lustre, Settings, Training
from infra.settings.fields import key_of
from infra.settings.training import TrainingSection
from trainyard.k8s.names import BACKEND_PYTORCHJOB

BACKEND_KEY: Final = "trainyard:training.backend"
FIXED_SETTINGS_TYPE: Final = "pulumi-python:dynamic/settings:Fixed"
STARTED_RUN_TYPE: Final = "pulumi-python:dynamic/settings:StartedRun"
FILE_SYSTEM_TYPE: Final = "aws:fsx/lustreFileSystem:LustreFileSystem"
CLUSTER_TYPE: Final = "aws:eks/cluster:Cluster"


def fixed_values(settings: Settings) -> dict[str, Any]:
    """Return the value of each setting that is fixed in this stack, by its full key.

    The models also mark these settings as fixed (`changedLater`). A setting can be fixed in some stacks only: those
    that create the VPC, the cluster or the file system, or those that use an existing one.
    """
    found = {f"trainyard:{path}": value for path, value in _network_values(settings).items()}
    found |= {f"trainyard:cluster.{key}": value for key, value in _cluster_values(settings.cluster).items()}
    if lustre := settings.storage.lustre:
        found |= {f"trainyard:storage.lustre.{key}": value for key, value in _lustre_values(lustre).items()}
    return {"aws:region": settings.region, **found}


def _network_values(settings: Settings) -> dict[str, Any]:
    network, existing, lustre = settings.network, settings.network.existing, settings.storage.lustre
    is_new_cluster = settings.cluster.existing is None
    values: dict[str, Any] = {
        "network.vpcId": existing.vpc_id if existing else "",
        "network.private": network.private,
    }
    if existing is None:
        return values | {"network.cidr": network.cidr, "network.zones": list(network.zones)}
    if is_new_cluster:
        # EKS accepts no subnets in further zones (https://docs.aws.amazon.com/eks/latest/userguide/network-reqs.html).
        values["network.privateSubnetIds"] = existing.private_subnet_ids
        values["network.publicSubnetIds"] = existing.public_subnet_ids
    elif lustre is not None and lustre.existing is None:
        # Pools on an existing cluster accept other subnets, the stack's file system does not.
        values["network.privateSubnetIds"] = {lustre.zone: existing.private_subnet_ids.get(lustre.zone, "")}
    return values


def _cluster_values(cluster: Cluster) -> dict[str, Any]:
    values = {"accountId": cluster.account_id, "existing": cluster.existing is not None}
    if cluster.existing is None:
        return {**values, "name": cluster.name}
    return {
        **values,
        "existing.name": cluster.name,
        "existing.endpoint": cluster.existing.endpoint,
        "existing.certificateAuthority": cluster.existing.certificate_authority,
    }


def _lustre_values(lustre: Lustre) -> dict[str, Any]:
    """Return the values of a file system. The ids are "" for one that the stack creates."""
    values: dict[str, Any] = {"existing": lustre.existing is not None}
    for name in ("file_system_id", "dns_name", "mount_name"):
        values[f"existing.{key_of(name)}"] = getattr(lustre.existing, name, "")
    if lustre.existing is not None:
        return values
    for name in ("deployment_type", "storage_type", "drive_cache", "throughput", "zone", "efa"):
        values[key_of(name)] = getattr(lustre, name)
    # The link of PERSISTENT_1 is an input of the file system. Others use a separate association.
    if lustre.deployment_type == PERSISTENT_1:
        values["s3.bucket"] = (lustre.s3.bucket if lustre.s3 else None) or ""
        values["s3.prefix"] = lustre.s3.prefix if lustre.s3 else ""
    return values


def run_values(settings: Settings, training: Training) -> dict[str, Any]:
    """Return the settings that a run receives at its start, by key. `infra.stack` adds the images that it builds."""
    first, *others = training.candidates
    lustre = settings.storage.lustre
    # The size of a worker on a node of the first pool, with its defaults.
    chosen = {
        **dict(training),
        **asdict(first.size),
        "capacity_deadline_seconds": first.capacity_deadline_seconds,
        "fallback_pools": [
            [each.pool.name, each.capacity_deadline_seconds, *astuple(each.size)] for each in others
        ],
        "active_deadline_seconds": training.active_deadline_seconds or 0,
        "args": list(training.args),
        "secrets": training.secret_keys,
    }
    return {
        "trainyard:images.placeholder": settings.images.placeholder,
        "trainyard:storage.prefix": settings.storage.prefix,
        "trainyard:storage.lustre.mountPath": lustre.mount_path if lustre else "",
        **{
            f"trainyard:training.{key_of(name)}": chosen[name]
            for name in TrainingSection.model_fields
            if name != "run_id"
        },
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
    """Refuse a version to which EKS does not update the cluster."""
    problem = update_problem(current, configured) if current is not None else ""
    if not problem:
        return {}
    return {"trainyard:cluster.version": f"is '{configured}', but the cluster has '{current}'. {problem}"}


def update_problem(current: str, version: str) -> str:
    """Return why EKS does not update a cluster from one version to another, "" if it does.

    Source: https://docs.aws.amazon.com/eks/latest/userguide/update-cluster.html, "Detailed considerations".
    """
    running, wanted = ([int(part) for part in each.split(".")[:2]] for each in (current, version))
    following = [running[0], running[1] + 1]
    if wanted in (running, following):
        return ""
    if wanted < running:
        return f"EKS has no downgrade. It must be {current}"
    return f"EKS updates by one minor version at a time. It must be {following[0]}.{following[1]} first"
