"""Checks of the pools' nodes and of the network between them, started by a user before a run.

Each check is a suspended CronJob. `kubectl create job --from=cronjob/check-<pool>` checks one node of the pool,
`make check-nodes` each node. `make check-fabric` creates a Job of the CronJob `fabric-<pool>` with as many pods as
nodes (`trainyard/cli/pool_checks.py`). A pod requests the devices that a worker requests, so it sees what a worker
would see.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import pulumi
import pulumi_kubernetes as k8s

from trainyard.k8s import names

from .documents import JsonObject, pods
from .documents.pool import GPU, NEURON, Pool

# torch's default port of the store of the first process.
PORT: Final = 29500
_INDEX: Final = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
_FABRIC_LABELS: Final = {names.LABEL_ROLE: names.ROLE_FABRIC_CHECK}
# A pod that finds no free node in this time ends. A check takes seconds; the pull of a large image takes minutes.
DEADLINE_SECONDS: Final = 900
KEPT_SECONDS: Final = 3600
# Any schedule is valid: a suspended CronJob never starts.
NEVER: Final = "0 0 1 1 *"


@dataclass(frozen=True, kw_only=True)
class NodeCheckArgs:
    """The pools to check."""

    pools: tuple[Pool, ...]
    image: pulumi.Input[str]
    """The trainer's image."""
    mounts: Mapping[str, str]
    """The directories of volumes in pods, by claim."""
    after: list[pulumi.Resource]


class NodeCheck(pulumi.ComponentResource):
    """The checks of the pools' nodes.

    Creates the suspended CronJob `check-<pool>` in the namespace `training` for each pool.

    It never starts by itself and costs nothing. A Job that is created from it runs on an existing, free node, and
    checks what a worker needs: devices and their driver, EFA interfaces, the mount of the file system. Karpenter
    launches no node for it.

        kubectl create job --from=cronjob/check-small check-1 -n training && kubectl logs -f job/check-1 -n training
    """

    def __init__(self, name: str, args: NodeCheckArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:training:NodeCheck", name, None, opts)
        for pool in args.pools:
            k8s.batch.v1.CronJob(
                name_of(pool),
                metadata={"name": name_of(pool), "namespace": names.TRAINING_NAMESPACE},
                spec=cron_spec(pool, args.image, args.mounts),
                opts=pulumi.ResourceOptions(parent=self, depends_on=args.after),
            )
        self.register_outputs({"pools": [pool.name for pool in args.pools]})


@dataclass(frozen=True, kw_only=True)
class FabricCheckArgs:
    """The pools to check."""

    pools: tuple[Pool, ...]
    image: pulumi.Input[str]
    """The trainer's image."""
    after: list[pulumi.Resource]


class FabricCheck(pulumi.ComponentResource):
    """The checks of the network between the pools' nodes.

    Creates the suspended CronJob `fabric-<pool>` in the namespace `training` for each pool, and a Service and a
    NetworkPolicy for the pods of all checks.

    Pools of Neuron devices get no CronJob, because NCCL does not use them. A CronJob never starts by itself and costs
    nothing while no Job of it runs. Karpenter launches no node for it.
    """

    def __init__(self, name: str, args: FabricCheckArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:training:FabricCheck", name, None, opts)
        options = pulumi.ResourceOptions(parent=self, depends_on=args.after)
        metadata = {"name": names.FABRIC_CHECK_SERVICE, "namespace": names.TRAINING_NAMESPACE}
        k8s.core.v1.Service(
            names.FABRIC_CHECK_SERVICE,
            metadata=metadata,
            # Without a cluster IP, so that DNS has a name of each pod, also before it is ready.
            spec={"clusterIP": "None", "publishNotReadyAddresses": True, "selector": _FABRIC_LABELS},
            opts=options,
        )
        k8s.networking.v1.NetworkPolicy(
            names.FABRIC_CHECK_SERVICE,
            metadata=metadata,
            spec=pods.jobs_from({"matchLabels": _FABRIC_LABELS}, {"matchLabels": _FABRIC_LABELS}),
            opts=options,
        )
        for pool in (each for each in args.pools if each.resource != NEURON):
            k8s.batch.v1.CronJob(
                fabric_name_of(pool),
                metadata={"name": fabric_name_of(pool), "namespace": names.TRAINING_NAMESPACE},
                spec=fabric_cron_spec(pool, args.image),
                opts=options,
            )
        self.register_outputs({"pools": [pool.name for pool in args.pools]})


def name_of(pool: Pool) -> str:
    """Return the name of the pool's CronJob, in the training namespace."""
    return f"{names.NODE_CHECK_PREFIX}{pool.name}"


def labels(pool: Pool) -> dict[str, str]:
    """Return the labels that identify the checks of a pool."""
    return {names.LABEL_ROLE: names.ROLE_CHECK, names.LABEL_POOL: pool.name}


def expectation(pool: Pool, mounts: Mapping[str, str]) -> JsonObject:
    """Return what a node of the pool must have, from the table of instance types. `mounts`: claim to directory."""
    return {
        "instanceType": pool.instance_type,
        "resource": pool.resource,
        "devices": pool.accelerators,
        "efa": pool.efa,
        "lustre": next(iter(mounts.values()), None),
    }


def cron_spec(pool: Pool, image: Any, mounts: Mapping[str, str]) -> JsonObject:
    """Return the `spec` of the CronJob. `image` is the trainer's, which may be the output of another resource."""
    return suspended_cron(labels(pool), _pod(pool, image, mounts))


def suspended_cron(labels: Mapping[str, str], pod: JsonObject) -> JsonObject:
    """Return the `spec` of a CronJob that never starts by itself, whose Job runs this pod once."""
    return {
        "schedule": NEVER,
        "suspend": True,
        "concurrencyPolicy": "Allow",
        "jobTemplate": {
            "metadata": {"labels": dict(labels)},
            "spec": {
                # A retry on the same node would hide its problem.
                "backoffLimit": 0,
                "activeDeadlineSeconds": DEADLINE_SECONDS,
                "ttlSecondsAfterFinished": KEPT_SECONDS,
                "template": {
                    "metadata": {"labels": dict(labels), "annotations": {names.DO_NOT_DISRUPT: "true"}},
                    "spec": pod,
                },
            },
        },
    }


def _pod(pool: Pool, image: Any, mounts: Mapping[str, str]) -> JsonObject:
    volumes = [
        {"name": claim, "persistentVolumeClaim": {"claimName": claim, "readOnly": True}} for claim in mounts
    ]
    parts: JsonObject = {
        "command": ["python", "-m", "trainer.node_check"],
        "env": [
            {"name": names.ENV_NODE_CHECK, "value": json.dumps(expectation(pool, mounts), sort_keys=True)}
        ],
    }
    if mounts:
        parts["volumeMounts"] = [
            {"name": claim, "mountPath": path, "readOnly": True} for claim, path in mounts.items()
        ]
    return {**check_pod(pool, image, "1Gi", parts), **({"volumes": volumes} if volumes else {})}


def check_pod(pool: Pool, image: Any, memory: str, parts: JsonObject) -> JsonObject:
    """Return the `spec` of a pod that checks a node of the pool. It requests the devices that a worker requests.

    Args:
        pool: The pool.
        image: The trainer's image.
        memory: The limit of its memory.
        parts: Further fields of its container. `env` also gets the name of the node.
    """
    devices = {pool.resource: str(pool.accelerators)} if pool.accelerators else {}
    if pool.efa:
        devices[names.EFA_RESOURCE] = str(pool.efa)
    node: JsonObject = {"name": names.ENV_NODE, "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
    container: JsonObject = {
        "name": "check",
        "image": image,
        "resources": {
            "requests": {"cpu": "100m", "memory": "256Mi", **devices},
            "limits": {"memory": memory, **devices},
        },
        "securityContext": pods.container(),
        **parts,
        "env": [*parts["env"], node],
    }
    return {
        "restartPolicy": "Never",
        # It preempts nothing, and a worker can preempt it.
        "priorityClassName": names.PLACEHOLDER_PRIORITY_CLASS,
        # Karpenter launches no node for a pod that requires a label which only Karpenter itself sets later
        # (sigs.k8s.io/karpenter v1.14.1, pkg/scheduling/requirements.go, Compatible).
        "nodeSelector": {names.LABEL_NODEPOOL: pool.name, names.LABEL_INITIALIZED: "true"},
        "tolerations": pool.tolerations,
        **pods.helper_spec(),
        "containers": [container],
    }


def fabric_name_of(pool: Pool) -> str:
    """Return the name of the pool's CronJob, in the training namespace."""
    return f"{names.FABRIC_CHECK_PREFIX}{pool.name}"


def fabric_cron_spec(pool: Pool, image: Any) -> JsonObject:
    """Return the `spec` of the CronJob. `image` is the trainer's, which may be the output of another resource."""
    labels = {**_FABRIC_LABELS, names.LABEL_POOL: pool.name}
    spec = suspended_cron(labels, _fabric_pod(pool, image, labels))
    spec["jobTemplate"]["spec"] |= {"completionMode": "Indexed", "completions": 1, "parallelism": 1}
    return spec


def _fabric_pod(pool: Pool, image: Any, labels: JsonObject) -> JsonObject:
    gpus = pool.accelerators if pool.resource == GPU else 0
    required = {
        "instanceType": pool.instance_type,
        "gpus": gpus,
        "efa": pool.efa,
        "gigabits": pool.gigabits,
    }
    directories = {"tmp": "/tmp", "shared-memory": "/dev/shm"}  # noqa: S108 - paths in the pod
    parts: JsonObject = {
        "command": ["python", "-m", "trainer.fabric_check"],
        "env": [
            {"name": names.ENV_FABRIC_CHECK, "value": json.dumps(required, sort_keys=True)},
            # torchrun reads its options from these (docs.pytorch.org/docs/stable/elastic/run.html). The command line
            # replaces the number of nodes and the address of the first one.
            {"name": "PET_NODE_RANK", "valueFrom": {"fieldRef": {"fieldPath": _INDEX}}},
            {"name": "PET_NNODES", "value": "1"},
            {"name": "PET_MASTER_ADDR", "value": "localhost"},
            {"name": "PET_MASTER_PORT", "value": str(PORT)},
            {"name": "PET_NPROC_PER_NODE", "value": str(gpus or 1)},
        ],
        "volumeMounts": [{"name": name, "mountPath": path} for name, path in directories.items()],
    }
    other = {"labelSelector": {"matchLabels": labels}, "topologyKey": "kubernetes.io/hostname"}
    return {
        **check_pod(pool, image, "32Gi", parts),
        "subdomain": names.FABRIC_CHECK_SERVICE,
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [other]}},
        "volumes": [
            {"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}},
            # NCCL exchanges data through /dev/shm, which has 64 MiB by default.
            {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": "2Gi"}},
        ],
    }
