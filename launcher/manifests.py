"""The Kubernetes objects of a run: placeholder pods, the template of workers, Events. Pure.

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

from launcher.request import NodeRequest, Request
from trainyard.k8s import names

JsonObject = dict[str, Any]

# With a grace period of 0, the API server removes the pod before the kubelet has ended it. Then the kubelet refuses the
# worker on this node, because its GPUs are still allocated. The pause process ends at once anyway.
PLACEHOLDER_GRACE_SECONDS = 1
# The toleration of not-ready and unreachable nodes. Kubernetes' default is 300 s.
LOST_NODE_SECONDS: Final = 30
LOST_NODE_TAINTS: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 (not a temporary file)
# The other volumes of a worker have the names of their claims.
_SHARED_MEMORY_VOLUME = "shared-memory"
# Root without capabilities can't create a directory below that of another user. Then the training may create it.
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
    """Return a time in seconds since the epoch in the format of Kubernetes."""
    return datetime.fromtimestamp(now, UTC).isoformat(timespec=timespec).replace("+00:00", "Z")


def owner_reference(owner: Owner) -> JsonObject:
    """Return the ownerReference with which Kubernetes deletes an object together with the launcher's Job."""
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": owner.name,
        "uid": owner.uid,
        "controller": False,
        "blockOwnerDeletion": False,
    }


def labels(request: NodeRequest, role: str) -> dict[str, str]:
    """Return the labels of every object that a launcher creates."""
    return {names.LABEL_RUN: request.run_id, names.LABEL_ROLE: role, names.LABEL_MANAGED_BY: names.MANAGED_BY}


def pod_security() -> JsonObject:
    """Return the securityContext of pods with our own images: Pod Security Standard "restricted"."""
    return {
        "runAsNonRoot": True,
        "runAsUser": names.POD_USER,
        "runAsGroup": names.POD_USER,
        "fsGroup": names.POD_USER,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security() -> JsonObject:
    """Return the securityContext of a container without privileges."""
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def _resources(request: NodeRequest) -> JsonObject:
    """Return equal requests and limits: pods are Guaranteed, and a worker fits in the place of its placeholder."""
    return {"requests": request.resources, "limits": request.resources}


def _placement(request: NodeRequest) -> JsonObject:
    return {
        "nodeSelector": dict(request.pool.node_selector),
        "tolerations": [dict(toleration) for toleration in request.pool.tolerations],
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": pod_security(),
    }


def lost_node_toleration(key: str) -> JsonObject:
    """Return the toleration of one of LOST_NODE_TAINTS."""
    return {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": LOST_NODE_SECONDS}


def placeholder(request: NodeRequest, index: int, owner: Owner, wait: str) -> JsonObject:
    """Return a placeholder: Karpenter launches a node for it, and it keeps the node until a worker preempts it.

    It has the resources of a worker. The launcher's Job owns it, so that Kubernetes deletes it with the Job. The
    NodeClaim that Karpenter creates for it carries the mark of the run.

    Args:
        wait: The label of the wait (`Progress.label`).
    """
    spec = _placement(request)
    spec["affinity"] = {"nodeAffinity": add_mark({}, mark(request.namespace, request.run_id))}
    spec["tolerations"] += map(lost_node_toleration, LOST_NODE_TAINTS)
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
                    "securityContext": {**container_security(), "readOnlyRootFilesystem": True},
                }
            ],
        },
    }


def training_metadata(request: Request, nodes: int, reason: str, restart: int) -> JsonObject:
    """Return the metadata of the training job. It has no owner: the job continues without the launcher's Job.

    Args:
        restart: How many training jobs the run had before.
    """
    return {
        "name": request.training_job,
        "namespace": request.namespace,
        "labels": labels(request, names.ROLE_WORKER),
        "annotations": {
            names.ANNOTATION_NODES: str(nodes),
            names.ANNOTATION_REASON: reason,
            names.ANNOTATION_RESTART: str(restart),
        },
    }


def rendezvous_id(request: Request, restart: int) -> str:
    """Return torchrun's --rdzv-id, which is the same for every job by default.

    After a restart, pods have the same names, so the rendezvous has the same address. Another id excludes processes of
    the old job.
    """
    return f"{request.run_id}-{restart}"


def worker_template(
    request: Request, restart: int, rendezvous: Mapping[str, str], *, container_name: str, leads: bool
) -> JsonObject:
    """Return the pod template of workers.

    Args:
        restart: How many training jobs the run had before.
        rendezvous: The variables for the rendezvous that the operator does not set.
        container_name: The name that the operator requires.
        leads: Whether one of the pods may have rank 0, which serves the metrics.
    """
    worker = request.worker
    env = {
        # EFA's huge pages are not used, and `hugepages-2Mi` is not requested. For Karpenter no instance type has any,
        # so it would launch no node for such a pod (github.com/aws/karpenter-provider-aws v1.14.1, computeCapacity in
        # pkg/providers/instancetype/types.go; issue 3315). With huge pages, a fork of a data loader may run out of
        # memory. Without them, EFA is a little slower (github.com/aws/aws-ofi-nccl, doc/efa-env-var.md).
        **({"FI_EFA_USE_HUGE_PAGE": "0"} if request.pool.efa_per_node else {}),
        **VARIABLES,
        **worker.env,
        names.ENV_PROCESSES_PER_NODE: str(worker.processes_per_node),
        names.ENV_RUN_ID: request.run_id,
        names.ENV_RESTART: str(restart),
        **rendezvous,
    }
    container: JsonObject = {
        "name": container_name,
        "image": worker.image,
        "args": list(worker.args),
        "env": [
            *({"name": name, "value": value} for name, value in env.items()),
            *(_secret_variable(name, place) for name, place in worker.secrets.items()),
        ],
        "resources": _resources(request),
        "securityContext": container_security(),
        # The launcher reports the error line in its reason.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": _SHARED_MEMORY_VOLUME, "mountPath": _SHARED_MEMORY}],
    }
    if worker.command is not None:
        container["command"] = list(worker.command)
    annotations = {names.DO_NOT_DISRUPT: "true"}
    if leads and (port := worker.env.get(names.ENV_METRICS_PORT)):
        container["ports"] = [
            {"name": names.METRICS_PORT_NAME, "containerPort": int(port), "protocol": "TCP"}
        ]
        # Prometheus' chart uses these annotations by default (prometheus-community/helm-charts@005bec2).
        annotations |= {
            "prometheus.io/scrape": "true",
            "prometheus.io/port": port,
            "prometheus.io/path": names.METRICS_PATH,
        }
    shared = [{"name": claim, "mountPath": path} for claim, path in worker.mounts.items()]
    container["volumeMounts"] += shared
    return {
        "metadata": {
            "labels": {
                **labels(request, names.ROLE_WORKER),
                names.LABEL_TRAINING_JOB: request.training_job,
            },
            "annotations": annotations,
        },
        "spec": {
            **_placement(request),
            "serviceAccountName": worker.service_account,
            "priorityClassName": worker.priority_class,
            "terminationGracePeriodSeconds": grace_seconds(worker.env),
            **({"initContainers": [_open_volumes(request, shared)]} if worker.writes else {}),
            "containers": [container],
            # Data loaders and NCCL exchange data through /dev/shm, which has 64 MiB by default.
            "volumes": [
                {
                    "name": _SHARED_MEMORY_VOLUME,
                    "emptyDir": {"medium": "Memory", "sizeLimit": worker.shared_memory},
                },
                *({"name": claim, "persistentVolumeClaim": {"claimName": claim}} for claim in worker.mounts),
            ],
        },
    }


def _secret_variable(name: str, place: str) -> JsonObject:
    """Return a variable with the value of `<Secret>/<key>` in the workers' namespace."""
    secret, _, key = place.partition("/")
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}


def grace_seconds(env: Mapping[str, str]) -> int:
    """Return the termination grace period in seconds: torchrun's timeout for its processes, and a margin."""
    timeout = env.get(names.SHUTDOWN_VARIABLE, "")
    is_number = re.fullmatch("[0-9]{1,5}", timeout)
    return (int(timeout) if is_number else names.SHUTDOWN_SECONDS) + names.SHUTDOWN_MARGIN_SECONDS


def _open_volumes(request: Request, shared: list[JsonObject]) -> JsonObject:
    """Return the init container that creates, as root, the directories in shared volumes that workers write to.

    Directories of root, such as the root of a new volume, get the mode of /tmp: every user may create files there and
    delete only their own. Directories of other users are not changed, so the container needs no capability.
    """
    small = {"cpu": "100m", "memory": "64Mi"}
    return {
        "name": "open-volumes",
        "image": request.worker.image,
        "command": ["sh", "-c", OPEN, str(names.POD_USER), *request.worker.writes],
        "resources": {"requests": small, "limits": small},
        "securityContext": {
            **container_security(),
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": False,
            "runAsUser": 0,
            "runAsGroup": 0,
        },
        "volumeMounts": shared,
    }


def event(request: Request, owner: Owner, *, now: float, kind: str, reason: str, message: str) -> JsonObject:
    """Return a v1 Event on the launcher's Job. `kind` is Normal or Warning.

    Messages may have 1024 characters. A longer one keeps its end, which says what the run used.
    """
    if len(message) > 1000:
        message = f"{message[:895]} ... {message[-100:]}"
    metadata = {"name": owner.name, "namespace": request.namespace, "uid": owner.uid}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata}
    return build_event(job, names.MANAGED_BY, now=now, kind=kind, reason=reason, message=message)


def build_event(
    item: JsonObject, component: str, *, now: float, kind: str, reason: str, message: str
) -> JsonObject:
    """Return a v1 Event on this object."""
    meta = item["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{meta['name']}.{int(now * 1e6):x}", "namespace": meta["namespace"]},
        "involvedObject": {
            "apiVersion": item["apiVersion"],
            "kind": item["kind"],
            "name": meta["name"],
            "namespace": meta["namespace"],
            "uid": meta["uid"],
        },
        "type": kind,
        "reason": reason,
        "message": message,
        "source": {"component": component},
        "reportingComponent": component,
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


def mark(namespace: str, run_id: str) -> str:
    """Return the label key that marks the placeholders of this run."""
    return _DOMAIN + hashlib.sha256(f"{namespace}/{run_id}".encode()).hexdigest()[:32]


def add_mark(affinity: Mapping[str, Any], key: str) -> JsonObject:
    """Return this nodeAffinity with the mark added.

    The terms are alternatives, so each one gets the mark. An empty term matches no node and stays empty.
    """
    own = {"key": key, "operator": _OPERATOR}
    required = affinity.get(REQUIRED) or {}
    terms = [
        {**each, "matchExpressions": [*(each.get("matchExpressions") or []), own]}
        if any(each.values())
        else each
        for each in required.get("nodeSelectorTerms") or []
    ]
    return {
        **affinity,
        REQUIRED: {**required, "nodeSelectorTerms": terms or [{"matchExpressions": [own]}]},
    }


def read_marks(claim: Mapping[str, Any]) -> frozenset[str]:
    """Return the marks in this NodeClaim: one for each run whose placeholders Karpenter created it for."""
    requirements = (claim.get("spec") or {}).get("requirements") or ()
    return frozenset(
        each["key"]
        for each in requirements
        if each.get("operator") == _OPERATOR and str(each.get("key")).startswith(_DOMAIN)
    )
