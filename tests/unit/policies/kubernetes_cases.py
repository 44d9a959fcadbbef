"""Fixtures of the rules for namespaces, RBAC and network access."""

from __future__ import annotations

from typing import Any

from components.documents import pods as policies
from tests.unit.policies.building import Cases, made
from trainyard.policies import kubernetes as k
from trainyard.policies import pods as p
from trainyard.policies.model import Resource


def role(verbs: list[str], resources: list[str], **more: Any) -> Resource:
    return made(k.ROLES[0], rules=[{"apiGroups": [""], "verbs": verbs, "resources": resources, **more}])


def namespace(level: str | None = None) -> Resource:
    return made(k.NAMESPACE, metadata={"name": "training", "labels": {k.ENFORCE: level} if level else {}})


def network_policy(where: str = "training", **spec: Any) -> Resource:
    return made(k.NETWORK_POLICY, metadata={"namespace": where, "name": "n"}, spec=spec)


def let_in(*sources: dict[str, Any], **rule: Any) -> tuple[Resource, Resource]:
    """A network policy beside one that closes the namespace."""
    opened = network_policy(
        podSelector={}, ingress=[{**({"from": list(sources)} if sources else {}), **rule}]
    )
    return opened, made(k.NETWORK_POLICY, "closed", **network_policy(podSelector={}).properties)


def default_account(automount: bool, where: str = "training", name: str = "default") -> Resource:
    metadata = {"name": name, "namespace": where}
    return made(p.SERVICE_ACCOUNT_PATCH, metadata=metadata, automountServiceAccountToken=automount)


def binding(name: str, role: str = "reader", kind: str = "ServiceAccount", scope: int = 0) -> Resource:
    """A binding of a namespace; `scope` 1: of the whole cluster."""
    subject = {"kind": kind, "name": name, "namespace": "training"}
    return made(p.BINDINGS[scope], subjects=[subject], roleRef={"kind": "ClusterRole", "name": role})


CASES: dict[str, Cases] = {
    "namespace-restricted": Cases(
        rejects=[namespace(), namespace("baseline"), namespace("privileged")],
        accepts=[namespace("restricted")],
    ),
    "namespace-not-privileged": Cases(
        rejects=[namespace(), namespace("privileged")],
        accepts=[namespace("baseline"), namespace("restricted")],
    ),
    "namespace-default-account": Cases(
        rejects=[
            (namespace(),),
            (namespace(), default_account(True)),
            (namespace(), default_account(False, where="elsewhere")),
            (namespace(), default_account(False, name="trainer")),
        ],
        accepts=[(namespace(), default_account(False))],
    ),
    "namespace-closed": Cases(
        rejects=[
            (namespace(),),
            (namespace(), network_policy("elsewhere", podSelector={}, policyTypes=["Ingress"])),
            (namespace(), network_policy(podSelector={"matchLabels": {"a": "b"}}, policyTypes=["Ingress"])),
            (namespace(), network_policy(podSelector={}, policyTypes=["Egress"])),
            (namespace(), network_policy(podSelector={}, ingress=[{}])),
        ],
        accepts=[(namespace(), network_policy(podSelector={}, policyTypes=["Ingress"]))],
    ),
    "network-policy-peers": Cases(
        rejects=[
            let_in(),
            let_in({}),
            let_in(ports=[]),
            network_policy(podSelector={}, policyTypes=[], ingress=[{}]),
            let_in(**{"from": []}),
            let_in({"ipBlock": {"cidr": "0.0.0.0/0"}}),
            let_in({"podSelector": {"matchLabels": {"a": "b"}}}, {"ipBlock": {"cidr": "::/0"}}),
            let_in({"ipBlock": {"cidr": "128.0.0.0/1"}}),
            let_in({"namespaceSelector": {}}),
            let_in({"namespaceSelector": {}, "podSelector": {}}),
            let_in(ports=[{"protocol": "TCP"}]),
            # A label of its pods binds nobody of another namespace.
            let_in({"namespaceSelector": {}, "podSelector": {"matchLabels": {"a": "b"}}}),
            let_in({"namespaceSelector": {}, "podSelector": policies.JOB_PODS}),
            let_in({"namespaceSelector": {"matchLabels": {}, "matchExpressions": []}}),
            # matchExpressions can select every namespace.
            let_in({"namespaceSelector": {"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]}}),
            let_in(ports=[{"port": port} for port in range(9)]),
            let_in(ports=[{"port": 1, "endPort": 65535}]),
        ],
        accepts=[
            network_policy(**policies.deny_ingress()),
            network_policy(**policies.jobs_from(policies.JOB_PODS)),
            network_policy(**policies.port_open({"a": "b"}, 9443)),
            network_policy(**policies.scraped({"a": "b"}, 9464, {"c": "d"})),
            let_in({"podSelector": {}}),
            let_in({"ipBlock": {"cidr": "10.0.0.0/16"}}),
            let_in({"namespaceSelector": {"matchLabels": {"team": "a"}}}),
            let_in({"namespaceSelector": {}}, ports=[{"port": "metrics"}]),
            let_in(ports=[{"port": port} for port in range(8)]),
            network_policy(podSelector={}, policyTypes=["Egress"], ingress=[{}]),
        ],
    ),
    "service-internal": Cases(
        rejects=[
            made(k.SERVICE, spec={"type": "LoadBalancer"}),
            made(k.SERVICE, spec={"type": "ClusterIP", "externalIPs": ["203.0.113.1"]}),
        ],
        accepts=[made(k.SERVICE, spec={}), made(k.SERVICE, spec={"type": "ClusterIP"})],
    ),
    "rights-no-escalation": Cases(
        rejects=[
            role(["bind"], ["roles"]),
            role(["escalate"], ["roles"]),
            role(["impersonate"], ["users"]),
            role(["*"], ["pods"]),
            role(["get"], ["*"]),
            made(
                k.ROLES[1],
                rules=[
                    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]},
                    {"apiGroups": ["*"], "resources": ["pods"], "verbs": ["get"]},
                ],
            ),
            role(["get"], [], nonResourceURLs=["/metrics/*"]),
            made(k.ROLES[1], aggregationRule={"clusterRoleSelectors": [{"matchLabels": {}}]}),
        ],
        accepts=[role(["get", "list"], ["pods"])],
    ),
    "rights-no-secrets": Cases(
        rejects=[
            role(["get"], ["secrets"]),
            role(["list"], ["pods", "secrets"]),
            role(["create"], ["serviceaccounts/token"]),
            role(["create"], ["*/token"]),
        ],
        accepts=[
            role(["get"], ["secrets"], resourceNames=["one"]),
            role(["create"], ["secrets"]),
            role(["get"], ["pods"]),
        ],
    ),
    "rights-no-exec": Cases(
        rejects=[
            role(["create"], ["pods/exec"]),
            role(["get"], ["nodes/proxy"]),
            role(["create"], ["*/exec"]),
            role(["get"], ["*/proxy"]),
            role(["get"], ["services/proxy"]),
            role(["create"], ["pods/portforward"]),
            role(["patch"], ["pods/ephemeralcontainers"]),
        ],
        accepts=[role(["get"], ["pods", "pods/log"])],
    ),
    "binding-narrow": Cases(
        rejects=[
            binding("launcher", "cluster-admin", scope=1),
            *(binding("launcher", role) for role in k.WIDE_ROLES),
            binding("system:masters", kind="Group", scope=1),
            binding("system:anonymous", kind="User", scope=1),
            binding("system:serviceaccounts", kind="Group"),
            binding("system:serviceaccounts:default", kind="Group", scope=1),
            binding("system:authenticated", kind="Group", scope=1),
            binding("system:unauthenticated", kind="Group"),
            binding("system:serviceaccount:training:default", kind="User"),
            binding("default"),
        ],
        accepts=[
            binding("system:serviceaccount:training:launcher", kind="User"),
            binding("default", kind="Group"),
            binding("launcher"),
            binding("launcher", scope=1),
            binding("platform-team", kind="Group"),
            binding("team:default", kind="User"),
        ],
    ),
}
