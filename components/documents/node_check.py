"""The check of a pool's machines: a CronJob that never starts by itself. Pure: no Pulumi.

`kubectl create job --from=cronjob/check-<pool>` checks one machine of the pool, `make check-nodes` each of them. The
pod asks for what a worker asks for in devices, so that it sees what a worker would see.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from components.documents import restricted
from components.documents.pool import Pool
from trainyard.k8s import names

JsonObject = dict[str, Any]

# A pod that finds no free machine in this time ends; a check takes seconds, a large image minutes.
DEADLINE_SECONDS: Final = 900
KEPT_SECONDS: Final = 3600
# Any time will do: a suspended CronJob never starts.
NEVER: Final = "0 0 1 1 *"


def name_of(pool: Pool) -> str:
    """The name of the pool's CronJob, in the training namespace."""
    return f"{names.NODE_CHECK_PREFIX}{pool.name}"


def labels(pool: Pool) -> dict[str, str]:
    """What tells the checks of a pool from everything else."""
    return {names.LABEL_ROLE: names.ROLE_CHECK, names.LABEL_POOL: pool.name}


def expectation(pool: Pool, mounts: Mapping[str, str]) -> JsonObject:
    """What a machine of the pool must have, from the table of instance types; `mounts`: claim to directory."""
    return {
        "instanceType": pool.instance_type,
        "resource": pool.resource,
        "devices": pool.accelerators,
        "efa": pool.efa,
        "lustre": next(iter(mounts.values()), None),
    }


def cron_spec(pool: Pool, image: Any, mounts: Mapping[str, str]) -> JsonObject:
    """The `spec` of the CronJob. `image` is the trainer's, which may be the output of another resource."""
    return {
        "schedule": NEVER,
        "suspend": True,
        "concurrencyPolicy": "Allow",
        "jobTemplate": {
            "metadata": {"labels": labels(pool)},
            "spec": {
                # Another try on the same machine would hide what was wrong with it.
                "backoffLimit": 0,
                "activeDeadlineSeconds": DEADLINE_SECONDS,
                "ttlSecondsAfterFinished": KEPT_SECONDS,
                "template": {
                    "metadata": {"labels": labels(pool), "annotations": {names.DO_NOT_DISRUPT: "true"}},
                    "spec": _pod(pool, image, mounts),
                },
            },
        },
    }


def _pod(pool: Pool, image: Any, mounts: Mapping[str, str]) -> JsonObject:
    devices = {pool.resource: str(pool.accelerators)} if pool.accelerators else {}
    if pool.efa:
        devices[names.EFA_RESOURCE] = str(pool.efa)
    environment: list[JsonObject] = [
        {"name": names.ENV_NODE_CHECK, "value": json.dumps(expectation(pool, mounts), sort_keys=True)},
        {"name": names.ENV_NODE, "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
    ]
    container: JsonObject = {
        "name": "check",
        "image": image,
        "command": ["python", "-m", "trainer.node_check"],
        "env": environment,
        "resources": {
            "requests": {"cpu": "100m", "memory": "256Mi", **devices},
            "limits": {"memory": "1Gi", **devices},
        },
        "securityContext": restricted.container(),
    }
    volumes = []
    if mounts:
        container["volumeMounts"] = [
            {"name": claim, "mountPath": path, "readOnly": True} for claim, path in mounts.items()
        ]
        volumes = [
            {"name": claim, "persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
            for claim in mounts
        ]
    return {
        "restartPolicy": "Never",
        # It displaces nothing, and makes room for a worker.
        "priorityClassName": names.PLACEHOLDER_PRIORITY_CLASS,
        # Karpenter buys no machine for a pod that asks for a label which only Karpenter itself sets later on
        # (sigs.k8s.io/karpenter v1.14.1, pkg/scheduling/requirements.go, Compatible).
        "nodeSelector": {names.LABEL_NODEPOOL: pool.name, names.LABEL_INITIALIZED: "true"},
        "tolerations": pool.tolerations,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 1,
        "securityContext": restricted.pod(),
        "containers": [container],
        **({"volumes": volumes} if volumes else {}),
    }
