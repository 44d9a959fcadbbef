"""Rules for what may reach pods over the network.

Network policies add up: each only ever lets more in, so that one open policy opens what another one closes
(https://kubernetes.io/docs/concepts/services-networking/network-policies/).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from infra.policies.kubernetes import NAMESPACE
from infra.policies.model import Resource, Rules, Stack, at, rows
from infra.policies.security_groups import MOST_PORTS, anywhere

RULES: Final = Rules()

NETWORK_POLICY: Final = "kubernetes:networking.k8s.io/v1:NetworkPolicy"
ADDON: Final = "aws:eks/addon:Addon"
INGRESS: Final = "Ingress"
ALL_PORTS: Final = 65536


@RULES.rule(
    "namespace-closed", "CKV2_K8S_6", "CIS EKS 4.3.2", "CIS EKS 5.4.4", types=[NAMESPACE], whole_stack=True
)
def namespace_closed(resource: Resource, stack: Stack) -> Iterator[str]:
    """Pods of a namespace let in only what a network policy names."""
    name = resource.at("metadata", "name")
    for policy in stack.of(NETWORK_POLICY):
        everything = policy.has("spec") and not policy.at("spec", "podSelector", default={})
        kinds = policy.at("spec", "policyTypes") or [INGRESS]
        inside = policy.at("metadata", "namespace") == name
        if inside and everything and INGRESS in kinds and not policy.at("spec", "ingress"):
            return
    yield "no NetworkPolicy refuses what comes into its pods by default; there must be one"


@RULES.rule(
    "network-policy-names-who", "CKV2_K8S_6", "CIS EKS 4.3.2", "CIS EKS 5.4.4", types=[NETWORK_POLICY]
)
def network_policy_names_who(resource: Resource, _stack: Stack) -> Iterator[str]:
    """A network policy lets in those it names, or everybody on the few ports that it names."""
    if INGRESS not in (resource.known("spec", "policyTypes") or [INGRESS]):
        return
    for index, rule in enumerate(rows(resource.known("spec", "ingress"))):
        peers = rows(at(rule, "from"))
        if (not peers or any(_everybody(peer) for peer in peers)) and _ports(rule) > MOST_PORTS:
            yield f"spec.ingress[{index}] lets everybody in; it must name peers by labels or ranges, or a few ports"


@RULES.rule("network-policies-enforced", "CIS EKS 4.3.1", types=[ADDON])
def network_policies_enforced(resource: Resource, _stack: Stack) -> Iterator[str]:
    """The VPC CNI enforces network policies, which it does only when told."""
    if resource.at("addonName") != "vpc-cni":
        return
    text = resource.at("configurationValues", default="{}")
    try:
        values = json.loads(text)
    except json.JSONDecodeError:
        values = None
    if not isinstance(values, dict):
        yield f"configurationValues is {text}; it must be a JSON object"
        return
    # The add-on's schema has a text here: https://docs.aws.amazon.com/eks/latest/userguide/cni-network-policy-configure.html
    if str(values.get("enableNetworkPolicy")).lower() != "true":
        yield 'configurationValues.enableNetworkPolicy is not "true"; it must be'


def _everybody(peer: Any) -> bool:
    """Whether a peer is every pod of the cluster, or every address."""
    if at(peer, "ipBlock") is not None:
        return anywhere(str(at(peer, "ipBlock", "cidr")))
    # A selector of no labels selects all; without one of namespaces, those of pods are about the policy's own.
    whole_cluster = at(peer, "namespaceSelector") == {} and not at(peer, "podSelector")
    return whole_cluster or not peer


def _ports(rule: Any) -> int:
    """How many ports a rule opens, at most."""
    listed = rows(at(rule, "ports"))
    if not listed:
        return ALL_PORTS
    count = 0
    for each in listed:
        first, last = at(each, "port"), at(each, "endPort")
        # A name is one port.
        count += ALL_PORTS if first is None else last - first + 1 if last is not None else 1
    return count
