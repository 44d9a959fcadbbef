"""Rules for the environment of pods in the cluster: namespaces, RBAC, network access."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from trainyard.policies.model import Resource, Stack, at, rows, rule
from trainyard.policies.network import is_public
from trainyard.policies.pods import BINDINGS, SERVICE_ACCOUNT_PATCH

NAMESPACE: Final = "kubernetes:core/v1:Namespace"
SERVICE: Final = "kubernetes:core/v1:Service"
NETWORK_POLICY: Final = "kubernetes:networking.k8s.io/v1:NetworkPolicy"
ROLES: Final = (
    "kubernetes:rbac.authorization.k8s.io/v1:Role",
    "kubernetes:rbac.authorization.k8s.io/v1:ClusterRole",
)
RELEASE: Final = "kubernetes:helm.sh/v3:Release"
ENFORCE: Final = "pod-security.kubernetes.io/enforce"
# Subresources that give access to a pod, or to a node past the API server's own checks.
ACCESS_SUBRESOURCES: Final = ("attach", "ephemeralcontainers", "exec", "portforward", "proxy")
ESCALATION_VERBS: Final = ("bind", "escalate", "impersonate")
# Roles of Kubernetes that read secrets and change most objects
# (https://kubernetes.io/docs/reference/access-authn-authz/rbac/#user-facing-roles).
WIDE_ROLES: Final = ("cluster-admin", "admin", "edit")
# Groups and a user that are everybody, and the group of administrators.
EVERYBODY: Final = (
    "system:anonymous",
    "system:authenticated",
    "system:masters",
    "system:serviceaccounts",
    "system:unauthenticated",
)
NAMESPACE_ACCOUNTS: Final = "system:serviceaccounts:"  # + a namespace: the group of its service accounts
ACCOUNT_USER: Final = "system:serviceaccount:"  # + a namespace and a name: the user of a service account
# What one component serves to everybody, such as a webhook and its metrics.
FEW_PORTS: Final = 8


@rule("namespace-restricted", NAMESPACE, why="the API server checks pods only in namespaces with this label")
def namespace_restricted(resource: Resource, _stack: Stack) -> Iterator[str]:
    """Namespaces enforce the Pod Security Standard `restricted`."""
    level = resource.at("metadata", "labels", ENFORCE)
    if level != "restricted":
        yield f"metadata.labels.{ENFORCE} is {level or 'missing'}; it must be restricted"


@rule("namespace-not-privileged", NAMESPACE, why="a waiver of `restricted` must not allow `privileged`")
def namespace_not_privileged(resource: Resource, _stack: Stack) -> Iterator[str]:
    """Namespaces enforce at least the Pod Security Standard `baseline`."""
    level = resource.at("metadata", "labels", ENFORCE)
    if level not in ("baseline", "restricted"):
        yield f"metadata.labels.{ENFORCE} is {level or 'missing'}; it must be restricted, or baseline with a waiver"


@rule("namespace-default-account", NAMESPACE, why="CKV_K8S_41 does not see it, because Kubernetes creates it")
def namespace_default_account(resource: Resource, stack: Stack) -> Iterator[str]:
    """The service account `default` of a namespace gives pods no token."""
    name = resource.at("metadata", "name")
    for account in stack.of(SERVICE_ACCOUNT_PATCH):
        place = (account.at("metadata", "namespace"), account.at("metadata", "name"))
        if place == (name, "default") and account.at("automountServiceAccountToken", default=True) is False:
            return
    yield "its service account default gives pods a token; automountServiceAccountToken must be false there"


@rule("namespace-closed", NAMESPACE, why="checkov checks the pods of the stack, not those of users")
def namespace_closed(resource: Resource, stack: Stack) -> Iterator[str]:
    """A NetworkPolicy denies all inbound traffic to a namespace by default."""
    name = resource.at("metadata", "name")
    for policy in stack.of(NETWORK_POLICY):
        is_about_all = (
            policy.at("metadata", "namespace") == name
            and not policy.at("spec", "podSelector", default={})
            and _is_inbound(policy)
        )
        if is_about_all and not policy.at("spec", "ingress"):
            return
    yield "no NetworkPolicy denies inbound traffic to its pods by default; there must be one"


@rule("network-policy-peers", NETWORK_POLICY, why="policies add up; checkov only counts them")
def network_policy_peers(resource: Resource, _stack: Stack) -> Iterator[str]:
    """A NetworkPolicy names its peers, or allows everybody to a few ports.

    Pods of every namespace are everybody, whatever their labels: any user can label pods.
    """
    for index, each in enumerate(rows(resource.resolved("spec", "ingress")) if _is_inbound(resource) else ()):
        peers = rows(at(each, "from"))
        if (not peers or any(map(_is_everybody, peers))) and not _has_few_ports(each):
            yield (
                f"spec.ingress[{index}] allows everybody; it must name namespaces by labels, pods of its own namespace,"
                f" or ranges, or at most {FEW_PORTS} ports"
            )


def _is_inbound(policy: Resource) -> bool:
    return "Ingress" in (policy.resolved("spec", "policyTypes") or ["Ingress"])


def _is_everybody(peer: Any) -> bool:
    """Return whether a peer is every pod of the cluster, or the internet."""
    if at(peer, "ipBlock") is not None:
        return is_public(str(at(peer, "ipBlock", "cidr")))
    # Without a namespaceSelector, podSelector is about the policy's own namespace.
    has_selector = at(peer, "namespaceSelector") is not None
    return not at(peer, "namespaceSelector", "matchLabels") if has_selector else not peer


def _has_few_ports(ingress: Any) -> bool:
    ports = rows(at(ingress, "ports"))
    return 0 < len(ports) <= FEW_PORTS and all(
        at(each, "port") is not None and at(each, "endPort") is None for each in ports
    )


@rule("service-internal", SERVICE, why="checkov does not read the types of Services")
def service_internal(resource: Resource, _stack: Stack) -> Iterator[str]:
    """A Service has no load balancer, and no address outside of the cluster."""
    if resource.at("spec", "externalIPs"):
        yield "spec.externalIPs: is set, and takes the traffic of these addresses. Remove it."
    if resource.at("spec", "type") == "LoadBalancer":
        yield "spec.type is LoadBalancer; it must be ClusterIP"


@rule("rights-no-escalation", *ROLES, why="CKV_K8S_49 reads a role's first rule only")
def rights_no_escalation(resource: Resource, _stack: Stack) -> Iterator[str]:
    """Roles list their permissions without wildcards, and none that gives its holder more of them."""
    if resource.has("aggregationRule"):
        yield "aggregationRule adds the rules of other roles; it must list its rules"
    for index, each in enumerate(rows(resource.resolved("rules"))):
        for name in ("verbs", "resources", "apiGroups", "nonResourceURLs"):
            for value in rows(at(each, name)):
                if "*" in str(value):
                    yield f"rules[{index}].{name} has {value}; it must list each"
        for verb in sorted(set(ESCALATION_VERBS) & set(rows(at(each, "verbs")))):
            yield f"rules[{index}].verbs has {verb}; it must not"


@rule("rights-no-secrets", *ROLES, why="CKV2_K8S_5 needs a binding in the same stack")
def rights_no_secrets(resource: Resource, _stack: Stack) -> Iterator[str]:
    """Roles read no Secrets except by name, and create no tokens of service accounts."""
    for index, each in enumerate(rows(resource.resolved("rules"))):
        reads = {"get", "list", "watch", "*"} & set(rows(at(each, "verbs")))
        if "secrets" in rows(at(each, "resources")) and reads and not rows(at(each, "resourceNames")):
            yield f"rules[{index}] reads all Secrets; it must have resourceNames"
        for name in rows(at(each, "resources")):
            if str(name).endswith("/token"):
                yield f"rules[{index}].resources has {name}, which creates tokens; it must not"


@rule("rights-no-exec", *ROLES, why="CKV2_K8S_2 and CKV2_K8S_3 need a binding in the same stack")
def rights_no_exec(resource: Resource, _stack: Stack) -> Iterator[str]:
    """Roles give no access to the inside of pods, or to nodes."""
    for index, each in enumerate(rows(resource.resolved("rules"))):
        for name in rows(at(each, "resources")):
            if str(name).rpartition("/")[2] in ACCESS_SUBRESOURCES:
                yield f"rules[{index}].resources has {name}; it must not"


@rule("binding-narrow", *BINDINGS, why="checkov only refuses the service account `default` (CKV_K8S_42)")
def binding_narrow(resource: Resource, _stack: Stack) -> Iterator[str]:
    """Bindings give a role whose permissions are listed to subjects that are not everybody."""
    role = resource.at("roleRef", "name")
    if role in WIDE_ROLES:
        yield f"roleRef.name is {role}; it must be a role with the needed permissions"
    for index, subject in enumerate(rows(resource.at("subjects"))):
        name = str(at(subject, "name"))
        if name in EVERYBODY or name.startswith(NAMESPACE_ACCOUNTS):
            yield f"subjects[{index}].name is {name}; it must be a service account, or a group of your own"
        is_account = at(subject, "kind") == "ServiceAccount" and name == "default"
        if is_account or (name.startswith(ACCOUNT_USER) and name.endswith(":default")):
            yield f"subjects[{index}].name is {name}, the account of pods that name none; it must be another one"
