"""The pod that prints archived logs: `kubectl torchrun logs` makes it where a worker's own pod is gone. Pure.

Whoever reads logs this way needs no rights in AWS: the pod has the service account of the job's queue, which may read
them. It takes the right to create pods in the namespace, with which anybody can use that service account anyway.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from launcher.core import contract as c
from launcher.core.torchrun import names as n
from launcher.core.torchrun.children import owner_reference
from launcher.core.torchrun.pods import pull_secrets
from launcher.core.torchrun.queue_spec import QueueSpec
from launcher.core.torchrun.reading import JsonObject

NAME: Final = "torchrun-log-reader"
CONTAINER: Final = "logs"
# It ends within seconds; one that nobody waits for any more goes with its job.
SECONDS: Final = 120
_RESOURCES: Final = {"cpu": "50m", "memory": "128Mi"}


def log_reader(
    job: Mapping[str, Any], queue: QueueSpec, image: str, words: Sequence[str], suffix: str
) -> JsonObject:
    """Return the pod.

    Args:
        job: The TorchrunJob, as the API has it.
        queue: Its queue, with the job's overrides.
        image: The image of launcher.workspace.
        words: What follows `python -m launcher.workspace`.
        suffix: The end of its name.
    """
    meta, template = job["metadata"], queue.template_spec
    own: Mapping[str, Any] = next(
        (each for each in template.get("containers") or [] if each["name"] == n.WORKER_CONTAINER), {}
    )
    account = template.get("serviceAccountName")
    security = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            # Not the job's label: its controller would remove the pod with the job's others.
            "name": f"{meta['name']}-logs-{suffix}",
            "namespace": meta["namespace"],
            "labels": {"app.kubernetes.io/name": NAME},
            "ownerReferences": [{**owner_reference(meta["name"], meta["uid"]), "controller": False}],
        },
        "spec": {
            **pull_secrets(queue),
            **({"serviceAccountName": account} if account else {}),
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "restartPolicy": "Never",
            "activeDeadlineSeconds": SECONDS,
            "terminationGracePeriodSeconds": 0,
            # Without the queue's tolerations, and rather elsewhere: no node of a pool is bought or kept for it.
            "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [_ELSEWHERE]}},
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": c.POD_USER,
                "runAsGroup": c.POD_USER,
                "fsGroup": c.POD_USER,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                {
                    "name": CONTAINER,
                    "image": image,
                    "command": ["python", "-m", "launcher.workspace", *words],
                    "env": [each for each in own.get("env") or [] if str(each["name"]).startswith("AWS_")],
                    "resources": {"requests": _RESOURCES, "limits": {"memory": _RESOURCES["memory"]}},
                    "securityContext": security,
                }
            ],
        },
    }


_ELSEWHERE: Final = {
    "weight": 100,
    "preference": {"matchExpressions": [{"key": c.LABEL_NODEPOOL, "operator": "DoesNotExist"}]},
}
