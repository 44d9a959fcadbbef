"""Build the pod that prints archived logs. `kubectl torchrun logs` creates it if a worker's pod is gone. Pure.

The pod runs with the service account of the job's queue, which may read the logs. So the user needs no permissions in
AWS, but the permission to create pods in the namespace. With that, a user can use this service account anyway.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from launcher.manifests import pod_security
from trainyard.k8s import names
from trainyard.operator.core import names as n
from trainyard.operator.core.children import owner_reference
from trainyard.operator.core.pods import pull_secrets
from trainyard.operator.core.queue_spec import QueueSpec
from trainyard.operator.core.reading import JsonObject

NAME: Final = "torchrun-log-reader"
CONTAINER: Final = "logs"
# The pod ends within seconds. If the plugin does not delete it, the job's deletion does.
SECONDS: Final = 120
_RESOURCES: Final = {"cpu": "50m", "memory": "128Mi"}


def log_reader(
    job: Mapping[str, Any], queue: QueueSpec, image: str, words: Sequence[str], suffix: str
) -> JsonObject:
    """Return the pod's manifest.

    Args:
        job: The TorchrunJob from the API server.
        queue: The spec of its queue, with the job's overrides.
        image: The image of trainyard.workspace.
        words: The arguments of `python -m trainyard.workspace`.
        suffix: The end of the pod's name.
    """
    meta, template = job["metadata"], queue.template_spec
    worker: Mapping[str, Any] = next(
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
            # Without the job's label: the controller would delete the pod with the job's other pods.
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
            # No tolerations of the queue, and a preference for other nodes: it must not launch or keep a pool's node.
            "affinity": {
                "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [_OUTSIDE_POOLS]}
            },
            "securityContext": pod_security(),
            "containers": [
                {
                    "name": CONTAINER,
                    "image": image,
                    "command": ["python", "-m", "trainyard.workspace", *words],
                    "env": [each for each in worker.get("env") or [] if str(each["name"]).startswith("AWS_")],
                    "resources": {"requests": _RESOURCES, "limits": {"memory": _RESOURCES["memory"]}},
                    "securityContext": security,
                }
            ],
        },
    }


_OUTSIDE_POOLS: Final = {
    "weight": 100,
    "preference": {"matchExpressions": [{"key": names.LABEL_NODEPOOL, "operator": "DoesNotExist"}]},
}
