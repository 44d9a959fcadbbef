"""What is made for a job and for a queue, as Kubernetes objects. Pure.

https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/job-v1/ for the Job; for KAI's kinds
github.com/kai-scheduler/KAI-Scheduler v0.17.0, pkg/apis/scheduling/v2 and v2alpha2, and docs/batch/README.md.
"""

from __future__ import annotations

import hashlib
import json
from typing import Final

from launcher.manifests import pod_security
from trainyard.k8s import names
from trainyard.k8s.quantity import in_words
from trainyard.operator.core import names as n
from trainyard.operator.core import pods
from trainyard.operator.core.affinity import REQUIRED
from trainyard.operator.core.pods import Making, worker
from trainyard.operator.core.reading import JsonObject
from trainyard.operator.core.storage import Claim

# Sync pods idle most of the time, and many of them share the few system nodes.
_SYNC_REQUESTS: Final = {"cpu": "10m", "memory": "64Mi"}
_SYNC_LIMITS: Final = {"cpu": "1", "memory": "256Mi"}
_MEBI: Final = 2**20
# Of the sync pod: what `sync` brings later may be larger than what the job began with.
_LEAST_ARCHIVE: Final = 2**30
# The terms are alternatives. Each node of Karpenter has the label of its NodePool, so Karpenter launches no node for a
# pod that excludes the label (https://karpenter.sh/docs/concepts/scheduling/#node-affinity).
_OUTSIDE_POOLS: Final = {
    "nodeAffinity": {
        REQUIRED: {
            "nodeSelectorTerms": [
                {"matchExpressions": [{"key": names.LABEL_NODEPOOL, "operator": "DoesNotExist"}]},
                {"matchExpressions": [{"key": n.LABEL_SYNC_PODS, "operator": "In", "values": ["true"]}]},
            ]
        }
    }
}


def owner_reference(name: str, uid: str) -> JsonObject:
    """What makes an object go with its TorchrunJob."""
    return {
        "apiVersion": n.API_VERSION,
        "kind": n.JOB_KIND,
        "name": name,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }


def made_of(spec: JsonObject) -> str:
    """A digest of a spec as it is made, by which what was made of another one is known: the API fills in more."""
    text = json.dumps(spec, sort_keys=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _object(
    making: Making, version: str, kind: str, name: str, labels: dict[str, str], *, owned: bool = True
) -> JsonObject:
    owner = {"ownerReferences": [owner_reference(making.name, making.uid)]} if owned else {}
    metadata = {"name": name, "namespace": making.namespace, "labels": labels, **owner}
    return {"apiVersion": version, "kind": kind, "metadata": metadata}


def service(making: Making) -> JsonObject:
    """Gives each pod a name in the DNS, before it is ready, since workers meet while they start."""
    return {
        **_object(making, "v1", "Service", making.name, making.labels),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {n.LABEL_JOB: making.name},
            "ports": [{"name": "rendezvous", "port": making.settings.port, "protocol": "TCP"}],
        },
    }


def jobs(making: Making) -> list[JsonObject]:
    """The attempt's Indexed Job, or one for each node where each mounts claims of its own.

    Suspended at first: its pods may start once the status says that this Job is the attempt's.
    """
    if making.storage.each_node_its_own:
        return [_job(making, node) for node in range(making.size.nodes)]
    return [_job(making, None)]


def _job(making: Making, node: int | None) -> JsonObject:
    size, attempt, workspace = making.size, making.attempt, making.spec.workspace
    name = n.node_job(making.name, attempt, node or 0)
    made = _object(making, "batch/v1", "Job", name, making.attempt_labels)
    gang = {n.ANNOTATION_SKIP_POD_GROUPER: "true"} if making.settings.gang else {}
    pods = 1 if node is not None else size.nodes
    spec: JsonObject = {
        "completionMode": "Indexed",
        "completions": pods,
        "parallelism": pods,
        "backoffLimit": 0,
        "suspend": True,
        "template": worker(making, node),
    }
    if size.elastic and node is None:
        # torchrun's agents end together; workers that never got a node are not waited for. Where each node has a Job of
        # its own, `observe.Children.trained` counts these.
        spec["successPolicy"] = {"rules": [{"succeededCount": size.least}]}
    made["metadata"]["annotations"] = {
        n.ANNOTATION_SIZE: making.spec.size_key,
        n.ANNOTATION_WORKSPACE: workspace.digest if workspace is not None else "",
        n.ANNOTATION_PARTS: str(size.nodes if node is not None else 1),
        n.ANNOTATION_MADE_OF: made_of(spec),
        **gang,
    }
    return {**made, "spec": spec}


def claim(making: Making, claim: Claim) -> JsonObject:
    """A PersistentVolumeClaim; a retained one is owned by nobody."""
    made = _object(making, "v1", "PersistentVolumeClaim", claim.name, making.labels, owned=not claim.retain)
    spec: JsonObject = {
        "accessModes": [claim.access_mode],
        "resources": {"requests": {"storage": in_words(claim.size)}},
        **({"storageClassName": claim.storage_class} if claim.storage_class else {}),
    }
    return {**made, "spec": spec}


def sync_pod(making: Making) -> JsonObject:
    """Return the pod that holds the archive of a workspace without a bucket and serves it to the workers.

    It is ready when it has an archive. It has no tolerations of the pool, no claim, and no protection from disruption,
    so it neither launches nor keeps a node of a pool.
    """
    security = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    placed = making.settings.queue
    name = n.sync_pod(making.name)
    size = making.spec.workspace.size_bytes if making.spec.workspace is not None else 0
    most = max(_LEAST_ARCHIVE, 2 * size)
    # There are two for as long as the next one comes in.
    requests = {**_SYNC_REQUESTS, "ephemeral-storage": _storage(2 * size)}
    return {
        **_object(making, "v1", "Pod", name, making.labels),
        "spec": {
            **pods.pull_secrets(placed),
            "affinity": _OUTSIDE_POOLS,
            # Without a pool it may share a node with workers, which could preempt it.
            **(
                {"priorityClassName": placed.priority_class}
                if placed.priority_class and not placed.pool
                else {}
            ),
            "hostname": name,
            "subdomain": making.name,
            "restartPolicy": "Always",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 5,
            "tolerations": [] if placed.pool else list(placed.tolerations),
            "securityContext": pod_security(),
            "containers": [
                {
                    "name": n.SYNC_CONTAINER,
                    "image": making.cluster.tools_image,
                    "command": _serve_command(making),
                    "ports": [{"name": "sync", "containerPort": n.SYNC_PORT}],
                    "readinessProbe": {
                        "httpGet": {"path": "/current", "port": n.SYNC_PORT},
                        "periodSeconds": 1,
                    },
                    "env": [{"name": n.ENV_SYNC_MOST, "value": str(most)}],
                    "resources": {"requests": requests, "limits": _SYNC_LIMITS},
                    "securityContext": security,
                    "volumeMounts": [
                        {"name": "archives", "mountPath": n.SYNC_DIRECTORY},
                        {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108  (in the container)
                    ],
                }
            ],
            "volumes": [
                {"name": "archives", "emptyDir": {"sizeLimit": _storage(2 * most)}},
                {"name": "tmp", "emptyDir": {"sizeLimit": "64Mi"}},
            ],
        },
    }


def _serve_command(making: Making) -> list[str]:
    """Return the sync pod's command, with the sources of the archive and the timeout."""
    workspace = making.spec.workspace
    command = ["python", "-m", "trainyard.workspace", "serve"]
    if workspace is None:
        return command
    command += ["--expect", workspace.digest, "--size", str(workspace.size_bytes)]
    command += [word for address in making.nearby for word in ("--nearby", address)]
    return command if making.has_started else [*command, "--give-up-seconds", str(n.SYNC_ABANDONED_SECONDS)]


def _storage(size: int) -> str:
    return in_words((size // _MEBI + 1) * _MEBI)


def pod_group(making: Making) -> JsonObject:
    """KAI's gang: all workers of the attempt, of an elastic one as few as it runs with, start together or none."""
    queue = making.settings.queue
    name = n.attempt_name(making.name, making.attempt)
    spec: JsonObject = {
        "minMember": making.size.least,
        "queue": queue.kai_queue or n.KAI_DEFAULT_QUEUE,
        # KAI 0.16.2 to 0.17.0 count a succeeded worker as missing and evict the others after 60 s
        # (kai-scheduler/KAI-Scheduler#1968). The controller handles lost workers itself. Older definitions drop the
        # field.
        "stalenessGracePeriod": n.KAI_NEVER_STALE,
    }
    if queue.priority_class:
        spec["priorityClassName"] = queue.priority_class
    version = f"{n.KAI_GROUP}/{n.KAI_POD_GROUP_VERSION}"
    made = _object(making, version, "PodGroup", name, making.attempt_labels)
    made["metadata"]["annotations"] = {n.ANNOTATION_MADE_OF: made_of(spec)}
    return {**made, "spec": spec}


def kai_queue(name: str, parent: str, namespace: str, owner: str) -> JsonObject:
    """KAI's Queue of a TorchrunQueue, without limits of its own; cluster-scoped, so that labels say whose it is.

    What is unset there is 0: no quota, and nothing above it. -1 is no limit.
    """
    unlimited = {"quota": 0, "limit": -1, "overQuotaWeight": 1}
    return {
        "apiVersion": f"{n.KAI_GROUP}/{n.KAI_QUEUE_VERSION}",
        "kind": "Queue",
        "metadata": {
            "name": name,
            "labels": {
                n.LABEL_QUEUE_NAMESPACE: namespace,
                n.LABEL_QUEUE_NAME: owner,
                n.LABEL_MANAGED_BY: n.MANAGED_BY,
            },
        },
        "spec": {
            "parentQueue": parent,
            "resources": {kind: dict(unlimited) for kind in ("cpu", "gpu", "memory")},
        },
    }
