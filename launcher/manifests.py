"""The Kubernetes objects of a run: placeholder pods, the PyTorchJob, Events. Pure.

`add_mark` marks placeholders, so that a NodeClaim names the run for which Karpenter created it. In Kubernetes, only
Events name the pods of a NodeClaim. If the launcher trusted Events, anybody who may write Events could make it delete a
NodeClaim. So each placeholder carries a mark: its node affinity requires that the node lacks a label whose key belongs
to the run.

- Karpenter copies the requirement to `spec.requirements` of the NodeClaim (sigs.k8s.io/karpenter v1.14.1, CanAdd in
  pkg/controllers/provisioning/scheduling/nodeclaim.go and ToNodeClaim in nodeclaimtemplate.go).
- It accepts `DoesNotExist` for a label that the NodePool does not know (Compatible in pkg/scheduling/requirements.go).
- No node has the label, and Karpenter adds it to none (Requirement.Any in pkg/scheduling/requirement.go). So the
  requirement excludes no node.

Only Karpenter and administrators write NodeClaims.

Containers whose numeric user has no entry in the image's /etc/passwd get HOME and a user name.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from launcher.request import Request, Worker
from launcher.validation import SHARED_MEMORY, SHARED_MEMORY_VOLUME
from trainyard.k8s import names

JsonObject = dict[str, Any]

# A deletion with a grace period of 0 removes the pod from the API before the kubelet has ended it, and the kubelet then
# refuses the worker that takes its place, as the GPUs are still given away. The pause process ends at once anyway.
PLACEHOLDER_GRACE_SECONDS = 1
# A placeholder on a node that does not answer holds nothing. Kubernetes' own default is 300 s.
LOST_NODE_SECONDS = 30
# Under a directory that is not root's own, one is made by the training's user, if by anybody.
OPEN = """for place in "$@"; do
  [ -d "$place" ] || mkdir -p "$place" || echo "$place is left to the user $0" >&2
  [ ! -d "$place" ] || [ "$(stat -c %u "$place")" != 0 ] || chmod 1777 "$place"
done
"""


@dataclass(frozen=True, kw_only=True)
class Owner:
    """The launcher's Job."""

    name: str
    uid: str


def stamp(now: float, timespec: str = "seconds") -> str:
    """Seconds since the epoch as Kubernetes writes a time."""
    return datetime.fromtimestamp(now, UTC).isoformat(timespec=timespec).replace("+00:00", "Z")


def owner_reference(owner: Owner) -> JsonObject:
    """What makes an object go when the launcher's Job is deleted."""
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": owner.name,
        "uid": owner.uid,
        "controller": False,
        "blockOwnerDeletion": False,
    }


def labels(request: Request, role: str) -> dict[str, str]:
    """The labels of everything that a launcher makes."""
    return {names.LABEL_RUN: request.run_id, names.LABEL_ROLE: role, names.LABEL_MANAGED_BY: names.MANAGED_BY}


def pod_security() -> JsonObject:
    """Return the securityContext of the pods of our own images: Pod Security Standard "restricted"."""
    return {
        "runAsNonRoot": True,
        "runAsUser": names.POD_USER,
        "runAsGroup": names.POD_USER,
        "fsGroup": names.POD_USER,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _container_security() -> JsonObject:
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def _resources(request: Request) -> JsonObject:
    """Requests equal limits, so that a pod is Guaranteed and a worker fits where its placeholder did."""
    return {"requests": request.resources, "limits": request.resources}


def _placement(request: Request) -> JsonObject:
    return {
        "nodeSelector": dict(request.pool.node_selector),
        "tolerations": [dict(toleration) for toleration in request.pool.tolerations],
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": pod_security(),
    }


def placeholder(request: Request, index: int, owner: Owner, wait: str) -> JsonObject:
    """The pod that makes Karpenter buy one node and holds it until a worker displaces it.

    It asks for exactly what a worker asks for. `wait` is the attempt and candidate that it is made in. Owned by the
    launcher's Job, so that Kubernetes deletes it with the Job. The NodeClaim that Karpenter creates for it carries the
    mark of the run.
    """
    spec = _placement(request)
    spec["affinity"] = {"nodeAffinity": add_mark({}, mark(request.namespace, request.run_id))}
    spec["tolerations"] += [
        {
            "key": f"node.kubernetes.io/{state}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": LOST_NODE_SECONDS,
        }
        for state in ("not-ready", "unreachable")
    ]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": request.placeholder_name(index),
            "namespace": request.namespace,
            "labels": {**labels(request, names.ROLE_PLACEHOLDER), names.LABEL_ATTEMPT: wait},
            "annotations": {names.DO_NOT_DISRUPT: "true"},
            "ownerReferences": [owner_reference(owner)],
        },
        "spec": {
            **spec,
            "priorityClassName": request.placeholder.priority_class,
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": PLACEHOLDER_GRACE_SECONDS,
            "containers": [
                {
                    "name": "hold",
                    "image": request.placeholder.image,
                    "resources": _resources(request),
                    "securityContext": {**_container_security(), "readOnlyRootFilesystem": True},
                }
            ],
        },
    }


def training_job(request: Request, nodes: int, reason: str, restart: int = 0) -> JsonObject:
    """The PyTorchJob for exactly this many nodes: one Master and Workers for the rest, or Workers alone if elastic.

    `restart` is how many trainings of the run came before this one. It has no owner: a training goes on, and its record
    stays, when the launcher's Job is deleted. The restart policy is Never, since the operator restarts single pods,
    while the others of a static world wait for the lost one in vain: the launcher begins the whole gang anew. Nor is
    there a `backoffLimit`, at which the operator would delete the pods, and with them their logs and exit codes
    (github.com/kubeflow/training-operator v1.9.4, ReconcileJobs in pkg/controller.v1/common/job.go). Finished pods are
    kept for their logs; the launcher removes what still runs after a failure.
    """
    replicas: JsonObject = {"Master": _replica(request, nodes, 1, restart, leads=True)}
    if nodes > 1:
        replicas["Worker"] = _replica(request, nodes, nodes - 1, restart, leads=False)
    elastic: JsonObject = {}
    if request.shape == names.SHAPE_ELASTIC:
        # Which of them has rank 0 torchrun's agents find out.
        replicas = {"Worker": _replica(request, nodes, nodes, restart, leads=True)}
        elastic = {"elasticPolicy": _elastic(request, nodes, restart)}
    run_policy: JsonObject = {"cleanPodPolicy": "None"}
    if request.active_deadline_seconds is not None:
        run_policy["activeDeadlineSeconds"] = request.active_deadline_seconds
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {
            "name": request.training_job,
            "namespace": request.namespace,
            "labels": labels(request, names.ROLE_WORKER),
            "annotations": {
                names.ANNOTATION_NODES: str(nodes),
                names.ANNOTATION_REASON: reason,
                names.ANNOTATION_RESTART: str(restart),
            },
        },
        "spec": {
            # `auto` would make WORLD_SIZE count nodes instead of processes (kubeflow/trainer#1790).
            "nprocPerNode": str(request.worker.processes_per_node),
            **elastic,
            "runPolicy": run_policy,
            "pytorchReplicaSpecs": replicas,
        },
    }


def _elastic(request: Request, nodes: int, restart: int) -> JsonObject:
    """What lets torchrun's agents go on with fewer workers, or with those whose processes failed, by themselves.

    There are no `metrics`: with them the operator makes an autoscaler that sizes the job by its load
    (github.com/kubeflow/training-operator v1.9.4, pkg/controller.v1/pytorch/hpa.go).
    """
    return {
        "minReplicas": min(request.min_nodes, nodes),
        "maxReplicas": nodes,
        "maxRestarts": request.max_restarts,
        "rdzvBackend": "c10d",
        "rdzvId": _rendezvous(request, restart),
    }


def _rendezvous(request: Request, restart: int) -> str:
    """torchrun's --rdzv-id, else `none` for every job.

    The names of the pods, and so the address of the rendezvous, are those of the training before: a process that
    outlived it finds another id there than its own, and stays out.
    """
    return f"{request.run_id}-{restart}"


def _rendezvous_environment(request: Request, nodes: int, restart: int) -> dict[str, str]:
    """What workers are told of the others; the rest comes from the operator."""
    if request.shape == names.SHAPE_ELASTIC:
        # After a change of the members the survivors would look for the store of an agent that is gone
        # (pytorch/pytorch, torch/distributed/elastic/rendezvous/dynamic_rendezvous.py).
        return {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    return {names.ENV_EXPECTED_NODES: str(nodes), "PET_RDZV_ID": _rendezvous(request, restart)}


def _replica(request: Request, nodes: int, replicas: int, restart: int, *, leads: bool) -> JsonObject:
    """`leads` says whether rank 0, which serves the metrics, may be in such a pod."""
    worker = request.worker
    port = _metrics_port(worker) if leads else None
    env = {
        # EFA's huge pages are neither used nor asked for (`hugepages-2Mi`). For Karpenter no type has any, so that it
        # would buy nothing for a pod that asks (github.com/aws/karpenter-provider-aws v1.14.1, computeCapacity in
        # pkg/providers/instancetype/types.go; issue 3315). And with them a fork, as data loaders make it, may find no
        # memory; without them EFA is a little slower (github.com/aws/aws-ofi-nccl, doc/efa-env-var.md).
        **({"FI_EFA_USE_HUGE_PAGE": "0"} if request.pool.efa_per_node else {}),
        **VARIABLES,
        **worker.env,
        names.ENV_PROCESSES_PER_NODE: str(worker.processes_per_node),
        names.ENV_RUN_ID: request.run_id,
        names.ENV_RESTART: str(restart),
        **_rendezvous_environment(request, nodes, restart),
    }
    container: JsonObject = {
        "name": names.TRAINING_CONTAINER,
        "image": worker.image,
        "args": list(worker.args),
        "env": [
            *({"name": name, "value": value} for name, value in env.items()),
            *(_secret_variable(name, place) for name, place in worker.secrets.items()),
        ],
        "resources": _resources(request),
        "securityContext": _container_security(),
        # The launcher reports the error line in its reason.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": SHARED_MEMORY_VOLUME, "mountPath": SHARED_MEMORY}],
    }
    if worker.command is not None:
        container["command"] = list(worker.command)
    if port is not None:
        container["ports"] = [{"name": names.METRICS_PORT_NAME, "containerPort": port, "protocol": "TCP"}]
    shared = [{"name": claim, "mountPath": path} for claim, path in worker.mounts.items()]
    container["volumeMounts"] += shared
    return {
        "replicas": replicas,
        "restartPolicy": "Never",
        "template": {
            "metadata": {
                "labels": {
                    **labels(request, names.ROLE_WORKER),
                    names.LABEL_TRAINING_JOB: request.training_job,
                },
                "annotations": {
                    names.DO_NOT_DISRUPT: "true",
                    **(_scrape_annotations(port) if port is not None else {}),
                },
            },
            "spec": {
                **_placement(request),
                "serviceAccountName": worker.service_account,
                "priorityClassName": worker.priority_class,
                "terminationGracePeriodSeconds": _grace_seconds(worker),
                **({"initContainers": [_open_volumes(request, shared)]} if worker.writes else {}),
                "containers": [container],
                # Data loaders and NCCL exchange data through /dev/shm, of which containers get 64 MiB by default.
                "volumes": [
                    {
                        "name": SHARED_MEMORY_VOLUME,
                        "emptyDir": {"medium": "Memory", "sizeLimit": worker.shared_memory},
                    },
                    *(
                        {"name": claim, "persistentVolumeClaim": {"claimName": claim}}
                        for claim in worker.mounts
                    ),
                ],
            },
        },
    }


def _secret_variable(name: str, place: str) -> JsonObject:
    """Return a variable with the value of `<Secret>/<key>` in the workers' namespace."""
    secret, _, key = place.partition("/")
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}


def _metrics_port(worker: Worker) -> int | None:
    """Where rank 0 is told to serve metrics; None where it is told nothing, or no port."""
    told = worker.env.get(names.ENV_METRICS_PORT, "")
    return int(told) if re.fullmatch(r"[1-9][0-9]{0,4}", told) and int(told) < 65536 else None


def _scrape_annotations(port: int) -> dict[str, str]:
    """What Prometheus' chart goes by as it comes; no standard (prometheus-community/helm-charts@005bec2)."""
    return {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(port),
        "prometheus.io/path": names.METRICS_PATH,
    }


def _grace_seconds(worker: Worker) -> int:
    """Seconds from a worker's SIGTERM to its SIGKILL: what torchrun leaves its processes, and some for its own end."""
    return (
        int(worker.env.get(names.SHUTDOWN_VARIABLE, names.SHUTDOWN_SECONDS)) + names.SHUTDOWN_MARGIN_SECONDS
    )


def _open_volumes(request: Request, shared: list[JsonObject]) -> JsonObject:
    """What lets the pod's user write to directories of shared volumes: it makes those that are missing, as root.

    The root of a new volume belongs to root, too. Everyone may then make files there and remove none but their own, as
    in /tmp. A directory that is somebody else's is left as it is, so that the container needs no capability.
    """
    small = {"cpu": "100m", "memory": "64Mi"}
    return {
        "name": "open-volumes",
        "image": request.worker.image,
        "command": ["sh", "-c", OPEN, str(names.POD_USER), *request.worker.writes],
        "resources": {"requests": small, "limits": small},
        "securityContext": {
            **_container_security(),
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": False,
            "runAsUser": 0,
            "runAsGroup": 0,
        },
        "volumeMounts": shared,
    }


def event(request: Request, owner: Owner, *, now: float, kind: str, reason: str, message: str) -> JsonObject:
    """A v1 Event on the launcher's Job. `kind` is Normal or Warning; messages may have 1024 characters."""
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{owner.name}.{int(now * 1e6):x}", "namespace": request.namespace},
        "involvedObject": {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "name": owner.name,
            "namespace": request.namespace,
            "uid": owner.uid,
        },
        "type": kind,
        "reason": reason,
        "message": message[:1000],
        "source": {"component": names.MANAGED_BY},
        "reportingComponent": names.MANAGED_BY,
        "firstTimestamp": stamp(now),
        "lastTimestamp": stamp(now),
        "count": 1,
    }


# A container runtime reads HOME from the image's /etc/passwd, uses `/` for an unlisted user, and never sets USER (runc,
# libcontainer/init_linux.go). Then the user can't create `~/.cache`, and `getpass.getuser()` raises an error. The cache
# of torch.compile needs both.
VARIABLES: Final = {"HOME": "/tmp", "USER": "trainer", "LOGNAME": "trainer"}  # noqa: S108 the container's own


def user_variables(pod: Mapping[str, Any], container: Mapping[str, Any]) -> dict[str, str]:
    """Return HOME, USER and LOGNAME for a container with a numeric user; {} for root and for the image's own user.

    Args:
        pod: The pod's `spec`.
        container: The container in this `spec`.
    """
    security = {**(pod.get("securityContext") or {}), **(container.get("securityContext") or {})}
    return dict(VARIABLES) if security.get("runAsUser") else {}


_DOMAIN: Final = "hold.trainyard.dev/"
_OPERATOR: Final = "DoesNotExist"
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"


def mark(namespace: str, run_id: str) -> str:
    """Return the label key that marks the placeholders of this run."""
    return _DOMAIN + hashlib.sha256(f"{namespace}/{run_id}".encode()).hexdigest()[:32]


def add_mark(affinity: Mapping[str, Any], key: str) -> JsonObject:
    """Return this nodeAffinity with the mark added.

    The terms are alternatives, so each gets the mark. An empty term matches no node and stays empty.
    """
    own = {"key": key, "operator": _OPERATOR}
    required = affinity.get(_REQUIRED) or {}
    terms = [
        {**each, "matchExpressions": [*(each.get("matchExpressions") or []), own]}
        if any(each.values())
        else each
        for each in required.get("nodeSelectorTerms") or []
    ]
    return {
        **affinity,
        _REQUIRED: {**required, "nodeSelectorTerms": terms or [{"matchExpressions": [own]}]},
    }


def read_marks(claim: Mapping[str, Any]) -> frozenset[str]:
    """Return the marks in this NodeClaim: one for each run whose placeholders Karpenter created it for."""
    requirements = (claim.get("spec") or {}).get("requirements") or ()
    return frozenset(
        each["key"]
        for each in requirements
        if each.get("operator") == _OPERATOR and str(each.get("key")).startswith(_DOMAIN)
    )
