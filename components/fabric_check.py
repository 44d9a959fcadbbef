"""The check of a pool's network, started by a user before a run: `make check-fabric`.

Each pool has a suspended CronJob whose Job runs `trainer.fabric_check` on one node. The command line creates the Job
with as many pods as nodes (`trainyard/cli/pool_checks.py`). Each pod requests the devices that a worker requests.
"""

from __future__ import annotations

import json
from typing import Any, Final

import pulumi
import pulumi_kubernetes as k8s

from trainyard.k8s import names

from .documents import pods
from .documents.pool import GPU, NEURON, Pool
from .node_check import NodeCheckArgs, check_pod, suspended_cron

JsonObject = dict[str, Any]

# torch's default port of the store of the first process.
PORT: Final = 29500
_INDEX: Final = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
_LABELS: Final = {names.LABEL_ROLE: names.ROLE_FABRIC_CHECK}


class FabricCheck(pulumi.ComponentResource):
    """The checks of the network between the pools' nodes.

    Creates the suspended CronJob `fabric-<pool>` in the namespace `training` for each pool, and a Service and a
    NetworkPolicy for the pods of all checks.

    Its arguments are `NodeCheckArgs`, of which it ignores `mounts`. Pools of Neuron devices get no CronJob, because
    NCCL does not use them. A CronJob never starts by itself and costs nothing while no Job of it runs. Karpenter
    launches no node for it.
    """

    def __init__(self, name: str, args: NodeCheckArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:training:FabricCheck", name, None, opts)
        options = pulumi.ResourceOptions(parent=self, depends_on=args.after)
        metadata = {"name": names.FABRIC_CHECK_SERVICE, "namespace": names.TRAINING_NAMESPACE}
        k8s.core.v1.Service(names.FABRIC_CHECK_SERVICE, metadata=metadata, spec=service_spec(), opts=options)
        k8s.networking.v1.NetworkPolicy(
            names.FABRIC_CHECK_SERVICE,
            metadata=metadata,
            spec=pods.jobs_from({"matchLabels": _LABELS}, {"matchLabels": _LABELS}),
            opts=options,
        )
        for pool in (each for each in args.pools if each.resource != NEURON):
            k8s.batch.v1.CronJob(
                name_of(pool),
                metadata={"name": name_of(pool), "namespace": names.TRAINING_NAMESPACE},
                spec=cron_spec(pool, args.image),
                opts=options,
            )
        self.register_outputs({"pools": [pool.name for pool in args.pools]})


def name_of(pool: Pool) -> str:
    """Return the name of the pool's CronJob, in the training namespace."""
    return f"{names.FABRIC_CHECK_PREFIX}{pool.name}"


def service_spec() -> JsonObject:
    """Return the `spec` of the headless Service, which gives the pods DNS names before they are ready."""
    return {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": _LABELS}


def cron_spec(pool: Pool, image: Any) -> JsonObject:
    """Return the `spec` of the CronJob. `image` is the trainer's, which may be the output of another resource."""
    labels = {**_LABELS, names.LABEL_POOL: pool.name}
    spec = suspended_cron(labels, _pod(pool, image, labels))
    spec["jobTemplate"]["spec"] |= {"completionMode": "Indexed", "completions": 1, "parallelism": 1}
    return spec


def _pod(pool: Pool, image: Any, labels: JsonObject) -> JsonObject:
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
