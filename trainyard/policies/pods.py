"""Rules for pods, wherever a resource has a template of some (Pod Security Standards, restricted, and a little more).

https://kubernetes.io/docs/concepts/security/pod-security-standards/
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from components.documents.torchrun_queue import OPENING
from infra.credential_names import is_credential_name
from trainyard.k8s.names import (
    EFA_RESOURCE,
    TORCHRUN_GROUP,
    TORCHRUN_QUEUE_KIND,
    TORCHRUN_VERSION,
    TORCHRUN_WORKER_CONTAINER,
)
from trainyard.policies.model import Resource, Rules, Stack, at, known, rows

RULES: Final = Rules()

DEPLOYMENT: Final = "kubernetes:apps/v1:Deployment"
TORCHRUN_QUEUE: Final = f"kubernetes:{TORCHRUN_GROUP}/{TORCHRUN_VERSION}:{TORCHRUN_QUEUE_KIND}"
# Where the pod's `spec` lies in each type; `*` stands for every key.
TEMPLATES: Final[Mapping[str, tuple[str, ...]]] = {
    "kubernetes:core/v1:Pod": ("spec",),
    DEPLOYMENT: ("spec", "template", "spec"),
    "kubernetes:apps/v1:DaemonSet": ("spec", "template", "spec"),
    "kubernetes:apps/v1:StatefulSet": ("spec", "template", "spec"),
    "kubernetes:batch/v1:Job": ("spec", "template", "spec"),
    "kubernetes:batch/v1:CronJob": ("spec", "jobTemplate", "spec", "template", "spec"),
    "kubernetes:kubeflow.org/v1:PyTorchJob": ("spec", "pytorchReplicaSpecs", "*", "template", "spec"),
    "kubernetes:kubeflow.org/v1:MPIJob": ("spec", "mpiReplicaSpecs", "*", "template", "spec"),
    TORCHRUN_QUEUE: ("spec", "podTemplate", "spec"),
}
LEAST_UID: Final = 10000
SERVICE_ACCOUNT: Final = "kubernetes:core/v1:ServiceAccount"
# The account `default`, which is there already.
SERVICE_ACCOUNT_PATCH: Final = "kubernetes:core/v1:ServiceAccountPatch"
BINDINGS: Final = (
    "kubernetes:rbac.authorization.k8s.io/v1:RoleBinding",
    "kubernetes:rbac.authorization.k8s.io/v1:ClusterRoleBinding",
)
# https://kubernetes.io/docs/concepts/security/pod-security-standards/: volumes of `restricted`, the rest of `baseline`.
VOLUMES: Final = frozenset(
    {
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "persistentVolumeClaim",
        "projected",
        "secret",
    }
)
APP_ARMOR: Final = ("RuntimeDefault", "Localhost")
APP_ARMOR_ANNOTATION: Final = "container.apparmor.security.beta.kubernetes.io/"
SELINUX_TYPES: Final = ("", "container_t", "container_init_t", "container_kvm_t", "container_engine_t")
SAFE_SYSCTLS: Final = (
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ping_group_range",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_syncookies",
)
# Words of the name of a variable that holds a secret, or the path of a file that does.
# https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_identifiers.html#identifiers-unique-ids
ACCESS_KEY: Final = re.compile(r"\b(AKIA|ASIA)[A-Z0-9]{16}\b")
# Devices, of which a container can't ask for less than it may use.
DEVICES: Final = ("nvidia.com/gpu", EFA_RESOURCE, "aws.amazon.com/neuron")


def pods(resource: Resource) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Path and `spec` of each pod template of a resource.

    Raises:
        Undecided: it is not known.
    """
    if resource.type == TORCHRUN_QUEUE:
        yield ".".join(TEMPLATES[TORCHRUN_QUEUE]), _torchrun_worker(resource)
    else:
        yield from _walk(resource.properties, TEMPLATES[resource.type], ())


def _torchrun_worker(queue: Resource) -> Mapping[str, Any]:
    """A worker as the controller makes it of a queue: image and size go over the template (trainyard/operator)."""
    template = queue.at("spec", "podTemplate", "spec", default={})
    listed = rows(at(template, "containers"))
    own: Mapping[str, Any] = next(
        (each for each in listed if at(each, "name") == TORCHRUN_WORKER_CONTAINER), {}
    )
    size = queue.at("spec", "nodeResources", default={})
    asked = {"cpu": at(size, "cpus"), "memory": at(size, "memory"), DEVICES[0]: at(size, "gpus", default=0)}
    resources = at(own, "resources", default={})
    worker = {
        **own,
        "name": TORCHRUN_WORKER_CONTAINER,
        # Not looked at yet: it may be known only once it is built.
        "image": queue.at("spec", default={}).get("image"),
        "resources": {kind: {**at(resources, kind, default={}), **asked} for kind in ("requests", "limits")},
    }
    others = [each for each in listed if at(each, "name") != TORCHRUN_WORKER_CONTAINER]
    return {"automountServiceAccountToken": False, **template, "containers": [worker, *others]}


def containers(resource: Resource) -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
    """Path, the container and its pod, for each container; those that run first, and those put in later, among them."""
    for path, pod in pods(resource):
        for name in ("initContainers", "containers", "ephemeralContainers"):
            for container in rows(at(pod, name)):
                yield f"{path}.{name}[{at(container, 'name', default='?')}]", container, pod


@RULES.rule("pod-not-root", "CKV_K8S_23", "CKV_K8S_29", "CKV_K8S_40", "CIS EKS 4.2.5", types=TEMPLATES)
def pod_not_root(resource: Resource, _stack: Stack) -> Iterator[str]:
    """Nothing runs as root, nor as a user that the machine may have, too."""
    for path, container, pod in containers(resource):
        # What opens a file system has to be its owner, and can be nothing more (docs/decisions/0009).
        if resource.type == TORCHRUN_QUEUE and path.endswith(f".initContainers[{OPENING}]"):
            continue
        if _security(container, pod, "runAsNonRoot") is not True:
            yield f"{path}.securityContext.runAsNonRoot is not true; it must be, here or on the pod"
        user = _security(container, pod, "runAsUser")
        if user is None or user < LEAST_UID:
            yield f"{path}.securityContext.runAsUser is {user}; it must be at least {LEAST_UID}, here or on the pod"
        # Where none is named it is root's: https://kubernetes.io/docs/tasks/configure-pod-container/security-context/
        group = _security(container, pod, "runAsGroup")
        if not group:
            yield f"{path}.securityContext.runAsGroup is {group}; it must be another than root's 0, here or on the pod"
    for path, pod in pods(resource):
        for name in ("fsGroup", "supplementalGroups"):
            if 0 in known(rows(at(pod, "securityContext", name)), name):
                yield f"{path}.securityContext.{name} has root's 0; it must not"


@RULES.rule(
    "pod-no-escalation",
    *("CKV_K8S_16", "CKV_K8S_20", "CKV_K8S_30", "CIS EKS 4.2.1", "CIS EKS 4.2.5"),
    types=TEMPLATES,
)
def pod_no_escalation(resource: Resource, _stack: Stack) -> Iterator[str]:
    """No process gets more rights than its container began with."""
    for path, container, _ in containers(resource):
        if at(container, "securityContext", "privileged", default=False):
            yield f"{path}.securityContext.privileged is true; it must be false"
        if at(container, "securityContext", "allowPrivilegeEscalation", default=True):
            yield f"{path}.securityContext.allowPrivilegeEscalation is not false; it must be"


@RULES.rule("pod-no-capabilities", "CKV_K8S_25", "CKV_K8S_28", "CKV_K8S_37", types=TEMPLATES)
def pod_no_capabilities(resource: Resource, _stack: Stack) -> Iterator[str]:
    """Containers have none of root's capabilities."""
    for path, container, _ in containers(resource):
        found = at(container, "securityContext", "capabilities", default={})
        if "ALL" not in known(at(found, "drop", default=[]), "drop"):
            yield f"{path}.securityContext.capabilities.drop lacks ALL; it must have it"
        for each in known(at(found, "add", default=[]), "add"):
            yield f"{path}.securityContext.capabilities.add has {each}; it must be empty"


@RULES.rule("pod-seccomp", "CKV_K8S_31", types=TEMPLATES)
def pod_seccomp(resource: Resource, _stack: Stack) -> Iterator[str]:
    """System calls are filtered by the runtime's own profile."""
    for path, container, pod in containers(resource):
        kind = at(_security(container, pod, "seccompProfile"), "type")
        if kind != "RuntimeDefault":
            yield f"{path}.securityContext.seccompProfile.type is {kind}; it must be RuntimeDefault, here or on the pod"


@RULES.rule("pod-confined", types=TEMPLATES)
def pod_confined(resource: Resource, _stack: Stack) -> Iterator[str]:
    """What the runtime keeps from containers stays kept: paths of /proc, AppArmor, SELinux, the kernel's settings."""
    for path, container, pod in containers(resource):
        mount = at(container, "securityContext", "procMount", default="Default")
        if mount != "Default":
            yield f"{path}.securityContext.procMount is {mount}; it must be Default"
        profile = at(_security(container, pod, "appArmorProfile"), "type", default=APP_ARMOR[0])
        if profile not in APP_ARMOR:
            yield f"{path}.securityContext.appArmorProfile.type is {profile}; it must be {' or '.join(APP_ARMOR)}"
        labels = known(_security(container, pod, "seLinuxOptions") or {}, "seLinuxOptions")
        if labels.get("user") or labels.get("role") or labels.get("type", "") not in SELINUX_TYPES:
            wanted = ", ".join(each for each in SELINUX_TYPES if each)
            yield f"{path}.securityContext.seLinuxOptions has another identity; it must have at most a type of {wanted}"
    for path, template in _walk(resource.properties, TEMPLATES[resource.type][:-1], ()):
        for name, value in known(at(template, "metadata", "annotations", default={}), "annotations").items():
            if name.startswith(APP_ARMOR_ANNOTATION) and value == "unconfined":
                yield f"{path}.metadata.annotations.{name} is unconfined; it must not be there"
        for index, each in enumerate(rows(at(template, "spec", "securityContext", "sysctls"))):
            if at(each, "name") not in SAFE_SYSCTLS:
                yield (
                    f"{path}.spec.securityContext.sysctls[{index}] is {at(each, 'name')}; it must be one of those that"
                    " Pod Security Standards call safe"
                )


# People's own code runs in the workers of a queue, and writes where it likes: caches of libraries, temporary files.
@RULES.rule("pod-read-only-root", "CKV_K8S_22", types=[each for each in TEMPLATES if each != TORCHRUN_QUEUE])
def pod_read_only_root(resource: Resource, _stack: Stack) -> Iterator[str]:
    """Containers write to volumes alone."""
    for path, container, _ in containers(resource):
        if not at(container, "securityContext", "readOnlyRootFilesystem", default=False):
            yield f"{path}.securityContext.readOnlyRootFilesystem is not true; it must be"


@RULES.rule(
    "pod-off-the-host",
    "CKV_K8S_17",
    "CKV_K8S_18",
    "CKV_K8S_19",
    "CIS EKS 4.2.2",
    "CIS EKS 4.2.4",
    types=TEMPLATES,
)
def pod_off_the_host(resource: Resource, _stack: Stack) -> Iterator[str]:
    """Pods see neither the machine's processes, nor its network, nor its files, nor those of a server."""
    for path, pod in pods(resource):
        for name in ("hostPID", "hostIPC", "hostNetwork"):
            if at(pod, name, default=False):
                yield f"{path}.{name} is true; it must be false"
        for volume in rows(at(pod, "volumes")):
            name, wanted = at(volume, "name"), ", ".join(sorted(VOLUMES))
            for kind in sorted(
                each for each in volume.keys() - {"name"} - VOLUMES if volume[each] is not None
            ):
                yield f"{path}.volumes[{name}] is a {kind}; it must be one of {wanted}"
    for path, container, _ in containers(resource):
        for port in rows(at(container, "ports")):
            if at(port, "hostPort", default=0):
                yield f"{path}.ports has hostPort {at(port, 'hostPort')}, a port of the machine; it must have none"


@RULES.rule("pod-resources", "CKV_K8S_10", "CKV_K8S_11", "CKV_K8S_12", "CKV_K8S_13", types=TEMPLATES)
def pod_resources(resource: Resource, _stack: Stack) -> Iterator[str]:
    """Containers say what they need, and take no more memory than they say."""
    for path, container, _ in containers(resource):
        requests = at(container, "resources", "requests", default={})
        limits = at(container, "resources", "limits", default={})
        # What is limited and not requested is requested at its limit.
        for name in ("cpu", "memory"):
            if at(requests, name, default=at(limits, name)) is None:
                yield f"{path}.resources.requests.{name} is missing; it must be set"
        if at(limits, "memory") is None:
            yield f"{path}.resources.limits.memory is missing; it must be set"
        for device in DEVICES:
            if at(requests, device, default=at(limits, device)) != at(limits, device):
                yield f"{path}.resources.requests.{device} is not the limit; both must be the same"


@RULES.rule("pod-memory-volumes-bounded", types=TEMPLATES)
def pod_memory_volumes_bounded(resource: Resource, _stack: Stack) -> Iterator[str]:
    """A volume in memory, such as the one at /dev/shm, has a limit; what lies in it is memory of the machine."""
    for path, pod in pods(resource):
        for volume in rows(at(pod, "volumes")):
            kept = at(volume, "emptyDir", default={})
            if at(kept, "medium") == "Memory" and at(kept, "sizeLimit") is None:
                yield f"{path}.volumes[{at(volume, 'name')}].emptyDir.sizeLimit is missing; it must be set"


@RULES.rule("deployment-probed", "CKV_K8S_8", "CKV_K8S_9", types=[DEPLOYMENT])
def deployment_probed(resource: Resource, _stack: Stack) -> Iterator[str]:
    """What runs for ever is asked whether it lives and whether it is ready."""
    for path, pod in pods(resource):
        for container in rows(at(pod, "containers")):
            for probe in ("livenessProbe", "readinessProbe"):
                if at(container, probe) is None:
                    yield f"{path}.containers[{at(container, 'name')}].{probe} is missing; it must be set"


@RULES.rule("pod-image-by-digest", "CKV_K8S_14", "CKV_K8S_43", "CIS EKS 5.1.4", types=TEMPLATES)
def pod_image_by_digest(resource: Resource, _stack: Stack) -> Iterator[str]:
    """Images are named by what they hold, not by a tag that can move."""
    for path, container, _ in containers(resource):
        image = str(at(container, "image", default=""))
        if "@sha256:" not in image:
            yield f"{path}.image is {image or 'missing'}; it must be <registry>/<name>@sha256:<digest>"


@RULES.rule("pod-no-secrets-in-environment", "CKV_K8S_35", "CIS EKS 4.4.1", types=TEMPLATES)
def pod_no_secrets_in_environment(resource: Resource, _stack: Stack) -> Iterator[str]:
    """Secrets come as files, or are not needed because of the service account's role."""
    for path, container, _ in containers(resource):
        for entry in rows(at(container, "env")):
            name, value = str(at(entry, "name", default="")), entry.get("value")
            if (value and is_credential_name(name)) or (isinstance(value, str) and ACCESS_KEY.search(value)):
                yield f"{path}.env[{name}] has a secret in plain text; it must be a file or an IAM role"
            if at(entry, "valueFrom", "secretKeyRef") is not None:
                yield f"{path}.env[{at(entry, 'name')}] is from a Secret; it must be a file or an IAM role"
        for entry in rows(at(container, "envFrom")):
            if at(entry, "secretRef") is not None:
                yield f"{path}.envFrom has a Secret; it must be a file or an IAM role"


@RULES.rule(
    "pod-token-where-needed",
    *("CKV_K8S_38", "CKV_K8S_41", "CKV_K8S_42", "CIS EKS 4.1.5", "CIS EKS 4.1.6"),
    types=TEMPLATES,
    whole_stack=True,
)
def pod_token_where_needed(resource: Resource, stack: Stack) -> Iterator[str]:
    """Only a pod whose service account has rights in the cluster gets a token for its API."""
    namespace = resource.at("metadata", "namespace", default="default")
    for path, pod in pods(resource):
        account = at(pod, "serviceAccountName", default="default")
        if _bound(namespace, account, stack):
            continue
        mounts = at(pod, "automountServiceAccountToken")
        if mounts is None:
            mounts = _account_mounts(namespace, account, stack)
        if mounts:
            yield (
                f"{path}.automountServiceAccountToken is not false and service account {account} has no rights here;"
                " it must be false, on the pod or on its account"
            )


def _walk(
    value: Any, path: tuple[str, ...], done: tuple[str, ...]
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if not path:
        if isinstance(value, Mapping):
            yield ".".join(done), value
    elif path[0] == "*":
        for key in value if isinstance(value, Mapping) else ():
            yield from _walk(at(value, key), path[1:], (*done, key))
    else:
        yield from _walk(at(value, path[0]), path[1:], (*done, path[0]))


def _security(container: Mapping[str, Any], pod: Mapping[str, Any], name: str) -> Any:
    """A field that a container has from its pod where it has none of its own."""
    return at(container, "securityContext", name, default=at(pod, "securityContext", name))


def _bound(namespace: str, account: str, stack: Stack) -> bool:
    for binding in stack.of(*BINDINGS):
        for subject in rows(binding.at("subjects")):
            named = (at(subject, "kind"), at(subject, "namespace"), at(subject, "name"))
            if named == ("ServiceAccount", namespace, account):
                return True
    return False


def _account_mounts(namespace: str, account: str, stack: Stack) -> bool:
    for each in stack.of(SERVICE_ACCOUNT, SERVICE_ACCOUNT_PATCH):
        metadata = each.at("metadata", default={})
        if (at(metadata, "namespace", default="default"), at(metadata, "name")) == (namespace, account):
            return bool(each.at("automountServiceAccountToken", default=True))
    return True
