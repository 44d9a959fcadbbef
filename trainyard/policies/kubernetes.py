"""Rules for what is around pods in the cluster: namespaces, rights, volumes, charts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from trainyard.policies.model import Resource, Rules, Stack, Undecided, at, known, rows
from trainyard.policies.pods import BINDINGS, SERVICE_ACCOUNT, SERVICE_ACCOUNT_PATCH, TEMPLATES

RULES: Final = Rules()

NAMESPACE: Final = "kubernetes:core/v1:Namespace"
ROLE: Final = "kubernetes:rbac.authorization.k8s.io/v1:Role"
CLUSTER_ROLE: Final = "kubernetes:rbac.authorization.k8s.io/v1:ClusterRole"
STORAGE_CLASS: Final = "kubernetes:storage.k8s.io/v1:StorageClass"
PERSISTENT_VOLUME: Final = "kubernetes:core/v1:PersistentVolume"
# What else a persistent volume can be on a machine, or on a server that no rule knows; those of other clouds need none.
OTHER_VOLUMES: Final = frozenset({"hostPath", "local", "nfs", "iscsi", "fc", "flexVolume"})
RELEASE: Final = "kubernetes:helm.sh/v3:Release"
# What runs or holds something. A Role is where the objects are that it grants: the cluster's Events are in `default`.
HELD_IN_NAMESPACES: Final = (
    *TEMPLATES,
    SERVICE_ACCOUNT,
    "kubernetes:core/v1:ConfigMap",
    "kubernetes:core/v1:PersistentVolumeClaim",
    "kubernetes:core/v1:Secret",
    "kubernetes:core/v1:Service",
)
DEFAULT_CLASS: Final = "storageclass.kubernetes.io/is-default-class"
ENFORCE: Final = "pod-security.kubernetes.io/enforce"
# Subresources by which one gets into a pod, or past the API server (`*/exec` means that of every resource).
WAYS_IN: Final = ("attach", "ephemeralcontainers", "exec", "portforward", "proxy")
WIDENING_VERBS: Final = ("bind", "escalate", "impersonate")
# Kubernetes' own roles that read secrets and change what they like, in the cluster or in a namespace
# (https://kubernetes.io/docs/reference/access-authn-authz/rbac/#user-facing-roles).
WIDE_ROLES: Final = ("cluster-admin", "admin", "edit")
# Groups and a user that everybody is, and the group that no role bounds.
EVERYBODY: Final = (
    "system:anonymous",
    "system:authenticated",
    "system:masters",
    "system:serviceaccounts",
    "system:unauthenticated",
)
# Every service account of one namespace, also those that come later.
ACCOUNTS_OF_A_NAMESPACE: Final = "system:serviceaccounts:"
# As what user a service account is known, followed by its namespace and name.
ACCOUNT_AS_A_USER: Final = "system:serviceaccount:"
# The second one is that of EKS Auto Mode. `kubernetes.io/aws-ebs` was part of Kubernetes until 1.27
# (https://kubernetes.io/docs/concepts/storage/volumes/#awselasticblockstore).
EBS_DRIVERS: Final = ("ebs.csi.aws.com", "ebs.csi.eks.amazonaws.com")
# FSx encrypts all that it stores, and what is made of EFS is a directory of a file system that is there
# (https://docs.aws.amazon.com/fsx/latest/LustreGuide/encryption-at-rest.html).
FILE_DRIVERS: Final = ("fsx.csi.aws.com", "efs.csi.aws.com")


@RULES.rule("namespace-of-its-own", "CKV_K8S_21", "CIS EKS 4.5.1", "CIS EKS 4.5.2", types=HELD_IN_NAMESPACES)
def namespace_of_its_own(resource: Resource, _stack: Stack) -> Iterator[str]:
    """Nothing lies in the namespace `default`."""
    namespace = resource.at("metadata", "namespace", default="default")
    if namespace == "default":
        yield "metadata.namespace is default; it must be a namespace of its own"


@RULES.rule("namespace-restricted", "CIS EKS 4.2.1", "CIS EKS 4.2.5", types=[NAMESPACE])
def namespace_restricted(resource: Resource, _stack: Stack) -> Iterator[str]:
    """Namespaces refuse pods that do not keep to the restricted standard."""
    level = resource.at("metadata", "labels", ENFORCE)
    if level != "restricted":
        yield f"metadata.labels.{ENFORCE} is {level or 'missing'}; it must be restricted"


@RULES.rule("namespace-not-privileged", "CIS EKS 4.2.1", "CIS EKS 4.2.2", types=[NAMESPACE])
def namespace_not_privileged(resource: Resource, _stack: Stack) -> Iterator[str]:
    """No namespace lets pods onto the machine; a waiver of the restricted standard is none of this one."""
    level = resource.at("metadata", "labels", ENFORCE)
    if level not in ("baseline", "restricted"):
        yield f"metadata.labels.{ENFORCE} is {level or 'missing'}; it must be restricted, or baseline with a reason"


@RULES.rule(
    "namespace-default-account",
    "CKV_K8S_41",
    "CKV_K8S_42",
    "CIS EKS 4.1.5",
    types=[NAMESPACE],
    whole_stack=True,
)
def namespace_default_account(resource: Resource, stack: Stack) -> Iterator[str]:
    """Pods that name no service account get no token for the cluster's API."""
    name = resource.at("metadata", "name")
    for account in stack.of(SERVICE_ACCOUNT_PATCH):
        named = (account.at("metadata", "namespace"), account.at("metadata", "name"))
        if named == (name, "default") and account.at("automountServiceAccountToken", default=True) is False:
            return
    yield "its service account default has a token for pods; automountServiceAccountToken must be false there"


@RULES.rule(
    "rights-listed",
    *(
        "CKV_K8S_49",
        "CKV_K8S_155",
        "CKV_K8S_156",
        "CKV_K8S_157",
        "CKV_K8S_158",
        "CIS EKS 4.1.3",
        "CIS EKS 4.1.8",
    ),
    types=[ROLE, CLUSTER_ROLE],
)
def rights_listed(resource: Resource, _stack: Stack) -> Iterator[str]:
    """Roles name each verb and resource, and none that widens somebody's rights."""
    if resource.has("aggregationRule"):
        yield "aggregationRule takes the rules of other roles, which may be any; it must list its rules"
    for index, rule in enumerate(rows(resource.known("rules"))):
        for name in ("verbs", "resources", "apiGroups", "nonResourceURLs"):
            for each in rows(at(rule, name)):
                if "*" in str(each):
                    yield f"rules[{index}].{name} has {each}; it must name each"
        for verb in WIDENING_VERBS:
            if verb in rows(at(rule, "verbs")):
                yield f"rules[{index}].verbs has {verb}; it must not"


@RULES.rule("rights-no-secrets", "CKV2_K8S_5", "CIS EKS 4.1.2", types=[ROLE, CLUSTER_ROLE])
def rights_no_secrets(resource: Resource, _stack: Stack) -> Iterator[str]:
    """Roles read no Secret that they do not name, and make no tokens of service accounts."""
    for index, rule in enumerate(rows(resource.known("rules"))):
        reads = {"get", "list", "watch", "*"} & set(rows(at(rule, "verbs")))
        if "secrets" in rows(at(rule, "resources")) and reads and not rows(at(rule, "resourceNames")):
            yield f"rules[{index}] reads all secrets; it must have resourceNames"
        for each in rows(at(rule, "resources")):
            if str(each).endswith("/token"):
                yield f"rules[{index}].resources has {each}, which makes tokens; it must not"


@RULES.rule("rights-no-exec", "CKV2_K8S_2", "CKV2_K8S_3", "CIS EKS 4.1.4", types=[ROLE, CLUSTER_ROLE])
def rights_no_exec(resource: Resource, _stack: Stack) -> Iterator[str]:
    """Roles start no commands in pods, put no containers into them, and make no way to them or to nodes."""
    for index, rule in enumerate(rows(resource.known("rules"))):
        for each in rows(at(rule, "resources")):
            if str(each).rpartition("/")[2] in WAYS_IN:
                yield f"rules[{index}].resources has {each}; it must not"


@RULES.rule("binding-narrow", "CKV_K8S_42", "CIS EKS 4.1.1", "CIS EKS 4.1.5", types=BINDINGS)
def binding_narrow(resource: Resource, _stack: Stack) -> Iterator[str]:
    """Rights are bound by roles whose rules are listed, and to somebody in particular."""
    role = resource.at("roleRef", "name")
    if role in WIDE_ROLES:
        yield f"roleRef.name is {role}; it must be a role of the verbs and resources that are needed"
    for index, subject in enumerate(rows(resource.at("subjects"))):
        name = at(subject, "name")
        everybody = name in EVERYBODY or str(name).startswith(ACCOUNTS_OF_A_NAMESPACE)
        if everybody and at(subject, "kind") != "ServiceAccount":
            yield f"subjects[{index}].name is {name}; it must be a service account, or a group of one's own"
        if _is_default_account(at(subject, "kind"), str(name)):
            yield f"subjects[{index}].name is {name}, which pods have that name none; it must be one of their own"


def _is_default_account(kind: str, name: str) -> bool:
    """Whether a subject is the account `default` of a namespace, by itself or by the user's name that it has."""
    if kind == "ServiceAccount":
        return name == "default"
    return kind == "User" and name.startswith(ACCOUNT_AS_A_USER) and name.endswith(":default")


@RULES.rule("volumes-encrypted", "CKV_AWS_3", types=[STORAGE_CLASS])
def volumes_encrypted(resource: Resource, _stack: Stack) -> Iterator[str]:
    """Volumes are made by AWS's drivers, and those of EBS are encrypted."""
    provisioner = resource.at("provisioner")
    if provisioner not in (*EBS_DRIVERS, *FILE_DRIVERS):
        drivers = ", ".join((*EBS_DRIVERS, *FILE_DRIVERS))
        yield f"provisioner is {provisioner or 'missing'}; it must be one of {drivers}"
    if provisioner in FILE_DRIVERS:
        return
    if str(resource.at("parameters", "encrypted")).lower() != "true":
        yield 'parameters.encrypted is not "true"; it must be'


@RULES.rule("volume-off-the-host", "CIS EKS 4.2.2", types=[PERSISTENT_VOLUME])
def volume_off_the_host(resource: Resource, _stack: Stack) -> Iterator[str]:
    """A persistent volume is what a driver makes of a service of AWS, and no directory of a machine or a server."""
    for kind in sorted((resource.at("spec", default={})).keys() & OTHER_VOLUMES):
        yield f"spec.{kind} is set; it must be csi"
    if not resource.has("spec", "csi"):
        yield "spec.csi is missing; it must name the driver"


@RULES.rule("chart-pinned", "CIS EKS 5.1.4", types=[RELEASE])
def chart_pinned(resource: Resource, _stack: Stack) -> Iterator[str]:
    """Charts of a registry have one version."""
    chart = str(resource.at("chart", default=""))
    if "://" not in chart and not resource.has("repositoryOpts", "repo"):
        return
    version = str(resource.at("version", default=""))
    if not version[:1].isdigit() or version.count(".") != 2:
        yield f"version is {version or 'missing'}; it must be one version such as 1.14.1"


@RULES.rule("chart-images-by-digest", "CKV_K8S_43", "CIS EKS 5.1.4", types=[RELEASE])
def chart_images_by_digest(resource: Resource, _stack: Stack) -> Iterator[str]:
    """An image that the program gives to a chart is named by its digest; the chart's own come with its version.

    Where only the repository is given, a mirror's, tag and digest stay the chart's.
    """
    for path, image in _images(resource.properties.get("values"), "values"):
        own = {"tag", "digest"} & image.keys()
        if own and not image.get("digest") and "@sha256:" not in str(image.get("tag", "")):
            yield f"{path} has no digest; it must have one"


def _images(value: object, path: str) -> Iterator[tuple[str, dict[str, object]]]:
    """Every mapping under a key `image` that says which one."""
    if not isinstance(value, dict):
        if value is not None and not isinstance(value, str | bool | int | float | list):
            raise Undecided(path)
        return
    for key, entry in value.items():
        if key == "image" and isinstance(entry, dict) and ("repository" in entry or "tag" in entry):
            yield f"{path}.{key}", known(entry, f"{path}.{key}")
        elif isinstance(entry, dict):
            yield from _images(entry, f"{path}.{key}")
