"""Rules for pods, in every resource that has a pod template.

checkov checks the rest of a pod, and the API server what Pod Security Standards forbid in the namespaces of the stack
(`namespace-restricted`): https://kubernetes.io/docs/concepts/security/pod-security-standards/.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from components.documents.torchrun_queue import OPENING
from infra.credential_names import is_credential_name
from trainyard.k8s.names import (
    TORCHRUN_GROUP,
    TORCHRUN_QUEUE_KIND,
    TORCHRUN_VERSION,
    TORCHRUN_WORKER_CONTAINER,
)
from trainyard.policies.model import Resource, Stack, at, resolved, rows, rule

TORCHRUN_QUEUE: Final = f"kubernetes:{TORCHRUN_GROUP}/{TORCHRUN_VERSION}:{TORCHRUN_QUEUE_KIND}"
# Where the pod's `spec` is in each type; `*` is every key.
TEMPLATES: Final[Mapping[str, tuple[str, ...]]] = {
    "kubernetes:core/v1:Pod": ("spec",),
    "kubernetes:apps/v1:Deployment": ("spec", "template", "spec"),
    "kubernetes:apps/v1:DaemonSet": ("spec", "template", "spec"),
    "kubernetes:apps/v1:StatefulSet": ("spec", "template", "spec"),
    "kubernetes:batch/v1:Job": ("spec", "template", "spec"),
    "kubernetes:batch/v1:CronJob": ("spec", "jobTemplate", "spec", "template", "spec"),
    "kubernetes:kubeflow.org/v1:PyTorchJob": ("spec", "pytorchReplicaSpecs", "*", "template", "spec"),
    TORCHRUN_QUEUE: ("spec", "podTemplate", "spec"),
}
SERVICE_ACCOUNT: Final = "kubernetes:core/v1:ServiceAccount"
# Changes the service account `default`, which Kubernetes creates.
SERVICE_ACCOUNT_PATCH: Final = "kubernetes:core/v1:ServiceAccountPatch"
PERSISTENT_VOLUME: Final = "kubernetes:core/v1:PersistentVolume"
BINDINGS: Final = (
    "kubernetes:rbac.authorization.k8s.io/v1:RoleBinding",
    "kubernetes:rbac.authorization.k8s.io/v1:ClusterRoleBinding",
)
# The volumes of the Pod Security Standard `restricted`.
VOLUMES: Final = frozenset(
    [
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "persistentVolumeClaim",
        "projected",
        "secret",
    ]
)
# Sources of a persistent volume on a node, or on a server without access control that we know.
HOST_VOLUMES: Final = frozenset({"hostPath", "local", "nfs", "iscsi", "fc", "flexVolume"})
# https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_identifiers.html#identifiers-unique-ids
ACCESS_KEY: Final = re.compile(r"\b(AKIA|ASIA)[A-Z0-9]{16}\b")


def pods(resource: Resource) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Return path and `spec` of each pod template of a resource.

    Raises:
        Undecided: it is unknown.
    """
    if resource.type == TORCHRUN_QUEUE:
        yield ".".join(TEMPLATES[TORCHRUN_QUEUE]), _torchrun_worker(resource)
    else:
        yield from _walk(resource.properties, TEMPLATES[resource.type], ())


def _walk(
    value: Any, path: tuple[str, ...], done: tuple[str, ...]
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if not path:
        if isinstance(value, Mapping):
            yield ".".join(done), value
        return
    for key in list(value or ()) if path[0] == "*" else path[:1]:
        yield from _walk(at(value, key), path[1:], (*done, key))


def _torchrun_worker(queue: Resource) -> Mapping[str, Any]:
    """Return the pod that the controller creates for a queue. Image and size override the template."""
    template = queue.at("spec", "podTemplate", "spec", default={})
    listed = {at(each, "name"): each for each in rows(at(template, "containers"))}
    own: Mapping[str, Any] = listed.pop(TORCHRUN_WORKER_CONTAINER, {})
    size = queue.at("spec", "nodeResources", default={})
    amount = {
        "cpu": at(size, "cpus"),
        "memory": at(size, "memory"),
        "nvidia.com/gpu": at(size, "gpus", default=0),
    }
    resources = at(own, "resources", default={})
    worker = {
        **own,
        "name": TORCHRUN_WORKER_CONTAINER,
        "image": queue.at("spec", default={}).get("image"),  # may be unknown before it is built
        "resources": {kind: {**at(resources, kind, default={}), **amount} for kind in ("requests", "limits")},
    }
    return {"automountServiceAccountToken": False, **template, "containers": [worker, *listed.values()]}


def containers(resource: Resource) -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
    """Return path, container and pod for each container and init container."""
    for path, pod in pods(resource):
        for name in ("initContainers", "containers"):
            for container in rows(at(pod, name)):
                yield f"{path}.{name}[{at(container, 'name', default='?')}]", container, pod


@rule("pod-groups", *TEMPLATES, why="neither checkov nor Pod Security Standards check groups")
def pod_groups(resource: Resource, _stack: Stack) -> Iterator[str]:
    """No process is in the group of root."""
    for path, container, pod in containers(resource):
        # The container that opens a file system must be its owner (docs/decisions/0009).
        if resource.type == TORCHRUN_QUEUE and path.endswith(f".initContainers[{OPENING}]"):
            continue
        inherited = at(pod, "securityContext", "runAsGroup")
        # https://kubernetes.io/docs/tasks/configure-pod-container/security-context/
        group = at(container, "securityContext", "runAsGroup", default=inherited)
        if not group:
            yield f"{path}.securityContext.runAsGroup is {group}; it must be set, here or on the pod, and not 0"
    for path, pod in pods(resource):
        for name in ("fsGroup", "supplementalGroups"):
            if 0 in resolved(rows(at(pod, "securityContext", name)), name):
                yield f"{path}.securityContext.{name} has 0; it must not"


@rule(
    "volumes-off-the-host",
    *TEMPLATES,
    PERSISTENT_VOLUME,
    why="Pod Security Standards don't apply in kube-system",
)
def volumes_off_the_host(resource: Resource, _stack: Stack) -> Iterator[str]:
    """Pods and persistent volumes have no files of nodes or of servers outside of AWS."""
    if resource.type == PERSISTENT_VOLUME:
        for kind in sorted(resource.at("spec", default={}).keys() & HOST_VOLUMES):
            yield f"spec.{kind} is set; it must be csi"
        return
    for path, pod in pods(resource):
        for volume in rows(at(pod, "volumes")):
            name = at(volume, "name")
            kinds = [each for each in volume if each != "name" and volume[each] is not None]
            for kind in sorted(set(kinds) - VOLUMES):
                yield f"{path}.volumes[{name}] is {kind}; it must be one of {', '.join(sorted(VOLUMES))}"


@rule("pod-no-credentials", *TEMPLATES, why="CKV_K8S_35 refuses Secrets, not plain text")
def pod_no_credentials(resource: Resource, _stack: Stack) -> Iterator[str]:
    """No variable of a container has a credential in plain text."""
    for path, container, _ in containers(resource):
        for entry in rows(at(container, "env")):
            # An unknown value is set, and it is no access key that the program has in plain text.
            name, value = str(at(entry, "name", default="")), entry.get("value")
            if (value and is_credential_name(name)) or (isinstance(value, str) and ACCESS_KEY.search(value)):
                yield f"{path}.env[{name}] is a credential in plain text; it must be a file or an IAM role"


@rule("pod-token-needed", *TEMPLATES, why="CKV_K8S_38 refuses every token, needed or not")
def pod_token_needed(resource: Resource, stack: Stack) -> Iterator[str]:
    """Only pods whose service account has permissions in the cluster get its token."""
    namespace = resource.at("metadata", "namespace", default="default")
    for path, pod in pods(resource):
        account = at(pod, "serviceAccountName", default="default")
        mounts = at(pod, "automountServiceAccountToken")
        if mounts is None:
            mounts = _account_mounts(namespace, account, stack)
        if mounts and not _is_bound(namespace, account, stack):
            yield (
                f"{path}.automountServiceAccountToken is not false, and service account {account} has no permissions;"
                " it must be false, on the pod or its service account"
            )


def _is_bound(namespace: str, account: str, stack: Stack) -> bool:
    subject = ("ServiceAccount", namespace, account)
    return any(
        (at(each, "kind"), at(each, "namespace"), at(each, "name")) == subject
        for binding in stack.of(*BINDINGS)
        for each in rows(binding.at("subjects"))
    )


def _account_mounts(namespace: str, account: str, stack: Stack) -> bool:
    for each in stack.of(SERVICE_ACCOUNT, SERVICE_ACCOUNT_PATCH):
        metadata = each.at("metadata", default={})
        if (at(metadata, "namespace", default="default"), at(metadata, "name")) == (namespace, account):
            return bool(each.at("automountServiceAccountToken", default=True))
    return True
