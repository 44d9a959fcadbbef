"""Define what a changed setting does to a running stack; `infra.meanings` describes the same keys.

A change is applied *in place*, *replaces* a resource, or is refused because the setting is *fixed* after the first
`up`. A fixed setting has a function here that returns its value. `components.fixed_settings` records these values in
the state and refuses other ones in `pulumi preview` and `pulumi up`. `make up`, `make preview` and `make preflight`
compare them with the state first: `find_refused_changes` is their entry point, and also refuses values that can't
shrink.

The tables in local/plugins say which inputs of a resource force a replacement; tests compare them with the official
providers. A Kubernetes provider with another endpoint or certificate authority replaces all of its objects
(pulumi/pulumi-kubernetes#2771, DiffConfig).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from components.documents.launch import Candidate
from components.documents.lustre import PERSISTENT_1
from components.documents.setting_changes import find_changes
from infra.model import ExistingCluster, Lustre, Settings, Training

Value = Callable[[Settings], Any]


@dataclass(frozen=True, kw_only=True)
class Change:
    """The effect of another value.

    `value` returns the value of a fixed setting, or None in stacks where the setting is not fixed.
    """

    text: str
    value: Value | None = None


def in_place(note: str = "") -> Change:
    """Describe a setting that the next `up` changes in place."""
    return Change(text=f"in place{f', {note}' if note else ''}")


def replaces(resource: str) -> Change:
    """Describe a setting whose change makes the next `up` replace a resource."""
    return Change(text=f"replaces {resource}")


def fixed(value: Value, note: str = "") -> Change:
    """Describe a setting that is fixed after the first `up`."""
    return Change(text=f"fixed{f', {note}' if note else ''}", value=value)


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


NEW_NODES: Final = "for new nodes"
NEXT_RUN: Final = "for the next `runId`"
NEXT_JOB: Final = "for the next job"

CHANGES: Final[dict[str, Change]] = {
    "network.cidr": fixed(_if_vpc_is_created(lambda s: s.network.cidr), "if the stack creates the VPC"),
    "network.zones": fixed(_if_vpc_is_created(lambda s: list(s.network.zones)), "with their order"),
    "network.natPerZone": in_place(),
    "network.vpcId": fixed(lambda s: s.network.existing.vpc_id if s.network.existing else ""),
    "network.privateSubnetIds": fixed(
        _private_subnets, "except on an existing cluster, in zones without a file system of the stack"
    ),
    "network.publicSubnetIds": fixed(_public_subnets, "if the stack creates the cluster"),
    "network.workerSecurityGroupId": in_place(NEW_NODES),
    "network.private": fixed(lambda s: s.network.private),
    "network.interfaceEndpoints": in_place(),
    "network.flowLogs": in_place("`false` deletes the logs"),
    "network.flowLogRetentionDays": in_place(),
    "cluster.existing": fixed(lambda s: s.cluster.existing is not None),
    "cluster.existing.name": fixed(lambda s: s.cluster.name if s.cluster.existing else None),
    "cluster.existing.endpoint": fixed(_existing_cluster_value(lambda x: x.endpoint)),
    "cluster.existing.certificateAuthority": fixed(
        _existing_cluster_value(lambda x: x.certificate_authority)
    ),
    "cluster.existing.oidcProviderArn": in_place("in the same account"),
    "cluster.existing.oidcIssuer": in_place(),
    "cluster.existing.securityGroupId": in_place(NEW_NODES),
    "cluster.name": fixed(_if_cluster_is_created(lambda s: s.cluster.name)),
    "cluster.accountId": fixed(lambda s: s.cluster.account_id),
    "cluster.version": in_place("to the next minor version"),
    "cluster.administrators": in_place(),
    "cluster.publicAccessCidrs": in_place(),
    "cluster.deployFrom": in_place(),
    "cluster.systemNodes": in_place(),
    "cluster.systemNodes.instanceType": replaces("the system nodes"),
    "cluster.systemNodes.count": in_place(),
    "cluster.karpenterReplicas": in_place(),
    "cluster.nodeRepair": in_place(),
    "cluster.addonVersions": in_place(),
    "cluster.volumeKey": replaces("the system nodes"),
    "cluster.ami": in_place(NEW_NODES),
    "cluster.logRetentionDays": in_place(),
    "cluster.lateLogSeconds": in_place(),
    "pools[].name": replaces("the pool"),
    "pools[].instanceType": in_place(NEW_NODES),
    "pools[].zone": in_place(NEW_NODES),
    "pools[].maxNodes": in_place(),
    "pools[].warmNodes": in_place(),
    "pools[].efa": in_place(NEW_NODES),
    "pools[].purchase": in_place(NEW_NODES),
    "pools[].capacityReservationIds": in_place(NEW_NODES),
    "pools[].rootVolumeGiB": in_place(NEW_NODES),
    "pools[].dataSnapshotId": in_place(NEW_NODES),
    "pools[].dataVolumeGiB": in_place(NEW_NODES),
    "pools[].idleSeconds": in_place(),
    "pools[].reservationType": in_place(NEW_NODES),
    "pools[].reservationBegins": in_place(),
    "pools[].reservationEnds": in_place(),
    "pools[].onDemandFallback": in_place(NEW_NODES),
    "pools[].placementGroup": replaces("the group of the stack, which must be empty"),
    "pools[].placementGroupOfReservation": in_place(NEW_NODES),
    "images.build": in_place(NEXT_RUN),
    "images.launcher": in_place(NEXT_RUN),
    "images.trainer": in_place(NEXT_RUN),
    "images.placeholder": in_place(NEXT_RUN),
    "images.trainingOperator": in_place(),
    "images.devicePlugin": in_place(),
    "images.efaDevicePlugin": in_place(),
    "images.neuronDevicePlugin": in_place(),
    "images.kubectlDelivery": in_place(),
    "images.debug": replaces("the pod"),
    "images.baseImages": in_place(NEXT_RUN),
    "images.baseImages.launcher": in_place(NEXT_RUN),
    "images.baseImages.trainer": in_place(NEXT_RUN),
    "images.packageIndex": in_place(NEXT_RUN),
    "images.debianMirror": in_place(NEXT_RUN),
    "images.efaInstaller": in_place(NEXT_RUN),
    "images.mirror": in_place(),
    "storage.prefix": in_place(NEXT_RUN),
    "storage.keepOldVersionsDays": in_place(),
    "storage.keepJobLogsDays": in_place(),
    "storage.lustre": in_place("removal deletes the stack's file system with its data"),
    "storage.lustre.existing": fixed(
        lambda s: s.storage.lustre.existing is not None if s.storage.lustre else None
    ),
    "storage.lustre.existing.fileSystemId": fixed(_existing_lustre_value("file_system_id")),
    "storage.lustre.existing.dnsName": fixed(_existing_lustre_value("dns_name")),
    "storage.lustre.existing.mountName": fixed(_existing_lustre_value("mount_name")),
    "storage.lustre.deploymentType": fixed(_created_lustre_value(lambda x: x.deployment_type)),
    "storage.lustre.storageType": fixed(_created_lustre_value(lambda x: x.storage_type)),
    "storage.lustre.driveCache": fixed(_created_lustre_value(lambda x: x.drive_cache)),
    "storage.lustre.capacityGiB": in_place("a smaller value is refused"),
    "storage.lustre.throughput": fixed(_created_lustre_value(lambda x: x.throughput)),
    "storage.lustre.metadataIops": in_place("a smaller value is refused"),
    "storage.lustre.s3": replaces("the link; fixed with PERSISTENT_1"),
    "storage.lustre.s3.bucket": Change(
        text="replaces the link; fixed with PERSISTENT_1", value=_persistent_1_link_value("bucket")
    ),
    "storage.lustre.s3.prefix": Change(
        text="replaces the link; fixed with PERSISTENT_1", value=_persistent_1_link_value("prefix")
    ),
    "storage.lustre.s3.path": replaces("the link"),
    "storage.lustre.zone": fixed(_created_lustre_value(lambda x: x.zone)),
    "storage.lustre.compression": in_place(),
    "storage.lustre.mountPath": in_place(NEXT_RUN),
    "storage.lustre.efa": fixed(_created_lustre_value(lambda x: x.efa)),
    "storage.lustre.backupDays": in_place(),
    "training.pool": in_place(NEXT_RUN),
    "training.runId": in_place("starts the next run"),
    "training.minNodes": in_place(NEXT_RUN),
    "training.maxNodes": in_place(NEXT_RUN),
    "training.device": in_place(NEXT_RUN),
    "training.processesPerNode": in_place(NEXT_RUN),
    "training.capacityDeadlineSeconds": in_place(NEXT_RUN),
    "training.fallbackPools": in_place(NEXT_RUN),
    "training.fallbackPools[].pool": in_place(NEXT_RUN),
    "training.fallbackPools[].capacityDeadlineSeconds": in_place(NEXT_RUN),
    "training.fallbackPools[].processesPerNode": in_place(NEXT_RUN),
    "training.fallbackPools[].cpu": in_place(NEXT_RUN),
    "training.fallbackPools[].memory": in_place(NEXT_RUN),
    "training.fallbackPools[].sharedMemory": in_place(NEXT_RUN),
    "training.holdSeconds": in_place(NEXT_RUN),
    "training.nodeStartSeconds": in_place(NEXT_RUN),
    "training.attempts": in_place(NEXT_RUN),
    "training.retrySeconds": in_place(NEXT_RUN),
    "training.maxRestarts": in_place(NEXT_RUN),
    "training.shape": in_place(NEXT_RUN),
    "training.activeDeadlineSeconds": in_place(NEXT_RUN),
    "training.data": in_place(NEXT_RUN),
    "training.checkpoints": in_place(NEXT_RUN),
    "training.args": in_place(NEXT_RUN),
    "training.env": in_place(NEXT_RUN),
    "training.secrets": in_place(NEXT_RUN),
    "training.cpu": in_place(NEXT_RUN),
    "training.memory": in_place(NEXT_RUN),
    "training.sharedMemory": in_place(NEXT_RUN),
    "queues[].name": replaces("the queue"),
    "queues[].namespace": replaces("the queue"),
    "queues[].pool": in_place(NEXT_JOB),
    "queues[].image": in_place(NEXT_JOB),
    "queues[].nodeResources": in_place(NEXT_JOB),
    "queues[].nodeResources.gpus": in_place(NEXT_JOB),
    "queues[].nodeResources.cpus": in_place(NEXT_JOB),
    "queues[].nodeResources.memory": in_place(NEXT_JOB),
    "queues[].storage": in_place(NEXT_JOB),
    "queues[].storage.workspace": in_place(NEXT_JOB),
    "queues[].storage.workspace.bucket": in_place(NEXT_JOB),
    "queues[].storage.workspace.size": in_place(NEXT_JOB),
    "queues[].storage.workspace.sizePerGPU": in_place(NEXT_JOB),
    "queues[].storage.workspace.storageClass": in_place(NEXT_JOB),
    "queues[].storage.datasets": in_place(NEXT_JOB),
    "queues[].storage.datasets.existingClaim": in_place(NEXT_JOB),
    "queues[].storage.checkpoints": in_place(NEXT_JOB),
    "queues[].storage.checkpoints.size": in_place(NEXT_JOB),
    "queues[].storage.checkpoints.sizePerGPU": in_place(NEXT_JOB),
    "queues[].storage.checkpoints.existingClaim": in_place(NEXT_JOB),
    "queues[].storage.checkpoints.storageClass": in_place(NEXT_JOB),
    "queues[].storage.checkpoints.retain": in_place(NEXT_JOB),
    "queues[].storage.shmSizePerGPU": in_place(NEXT_JOB),
    "queues[].scheduling": in_place(NEXT_JOB),
    "queues[].scheduling.priorityClassName": in_place(NEXT_JOB),
    "queues[].serviceAccount": in_place(NEXT_JOB),
    "queues[].jobDefaults": in_place(NEXT_JOB),
    "queues[].jobDefaults.ttlSecondsAfterFinished": in_place(NEXT_JOB),
    "queues[].jobDefaults.activeDeadlineSeconds": in_place(NEXT_JOB),
    "queues[].jobDefaults.restartPolicy": in_place(NEXT_JOB),
    "queues[].jobDefaults.maxRestarts": in_place(NEXT_JOB),
    "serviceAccounts[].name": replaces("the service account and its role"),
    "serviceAccounts[].namespace": replaces("the service account"),
    "serviceAccounts[].bucket": in_place(),
    "serviceAccounts[].access": in_place(),
    "debugPod": in_place(),
    "nodeCheck": in_place(),
    "mpi": in_place(),
    "sources.karpenterChart": in_place(),
    "sources.karpenterCrdChart": in_place(),
    "sources.trainingOperator": in_place(),
    "protectData": in_place(),
}
FIXED_SETTINGS_TYPE: Final = "pulumi-python:dynamic/settings:Fixed"
STARTED_RUN_TYPE: Final = "pulumi-python:dynamic/settings:StartedRun"
FILE_SYSTEM_TYPE: Final = "aws:fsx/lustreFileSystem:LustreFileSystem"
CLUSTER_TYPE: Final = "aws:eks/cluster:Cluster"


def fixed_values(settings: Settings) -> dict[str, Any]:
    """Return the value of each setting that is fixed in this stack, by its full key."""
    found: dict[str, Any] = {"aws:region": settings.region}
    for path, change in CHANGES.items():
        value = change.value(settings) if change.value else None
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


def _refuse_version(configured: str, current: str | None) -> dict[str, str]:
    """Refuse each version but the present and the next minor one.

    EKS accepts no other (https://docs.aws.amazon.com/eks/latest/userguide/update-cluster.html).
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
