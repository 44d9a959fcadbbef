"""Rules for what may reach pods over the network.

Network policies add up: each only ever lets more in, so that one open policy opens what another one closes
(https://kubernetes.io/docs/concepts/services-networking/network-policies/).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from trainyard.policies.kubernetes import NAMESPACE
from trainyard.policies.model import Resource, Rules, Stack, at, rows
from trainyard.policies.security_groups import anywhere

RULES: Final = Rules()

NETWORK_POLICY: Final = "kubernetes:networking.k8s.io/v1:NetworkPolicy"
ADDON: Final = "aws:eks/addon:Addon"
SERVICE: Final = "kubernetes:core/v1:Service"
INGRESS: Final = "Ingress"
ALL_PORTS: Final = 65536
# What one component serves to everybody, such as a webhook and its metrics.
FEW_PORTS: Final = 8
# Every namespace has this label (https://kubernetes.io/docs/reference/labels-annotations-taints/).
NAME_LABEL: Final = "kubernetes.io/metadata.name"
# EKS's own controller goes by the first alone, and makes a public load balancer without it. By the second goes the AWS
# Load Balancer Controller, which takes over Services with a class or with the type `external` alone
# (https://kubernetes-sigs.github.io/aws-load-balancer-controller/latest/guide/service/nlb/).
INTERNAL: Final = "service.beta.kubernetes.io/aws-load-balancer-internal"
SCHEME: Final = "service.beta.kubernetes.io/aws-load-balancer-scheme"
TYPE: Final = "service.beta.kubernetes.io/aws-load-balancer-type"


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
    """A network policy lets in those it names, or everybody on the few ports that it names.

    Pods of every namespace are everybody, whatever their labels: who may make pods anywhere gives them the labels.
    """
    if INGRESS not in (resource.known("spec", "policyTypes") or [INGRESS]):
        return
    for index, rule in enumerate(rows(resource.known("spec", "ingress"))):
        peers = rows(at(rule, "from"))
        if (not peers or any(_everybody(peer) for peer in peers)) and _ports(rule) > FEW_PORTS:
            yield (
                f"spec.ingress[{index}] lets everybody in; it must name namespaces by labels, pods of its own or"
                f" ranges, or at most {FEW_PORTS} ports"
            )


@RULES.rule("service-not-public", "AVD-AWS-0053", "CIS EKS 5.4.3", types=[SERVICE])
def service_not_public(resource: Resource, _stack: Stack) -> Iterator[str]:
    """No Service is reached from the internet, or takes the traffic of an address that is not its own."""
    if resource.at("spec", "externalIPs"):
        yield "spec.externalIPs has addresses, whose traffic it takes from others; it must be left out"
    if resource.at("spec", "type") != "LoadBalancer":
        return
    notes = {name: resource.at("metadata", "annotations", name) for name in (INTERNAL, SCHEME, TYPE)}
    handed_over = resource.has("spec", "loadBalancerClass") or notes[TYPE] == "external"
    named = INTERNAL if notes[SCHEME] is None or not handed_over else SCHEME
    for name, wanted in ((INTERNAL, "true"), (SCHEME, "internal")):
        if notes[name] != wanted and (notes[name] is not None or name == named):
            yield f"metadata.annotations.{name} is {notes[name] or 'missing'}; it must be {wanted}, or type ClusterIP"


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
    # Without a selector of namespaces, the one of pods is about the policy's own.
    return not peer or _every_namespace(at(peer, "namespaceSelector"))


def _every_namespace(selector: Any) -> bool:
    """Whether a selector selects all namespaces: of no labels, of one that all have, or of others than some."""
    if selector is None or at(selector, "matchLabels"):
        return False
    return all(
        at(each, "operator") in ("NotIn", "DoesNotExist")
        or (at(each, "operator") == "Exists" and at(each, "key") == NAME_LABEL)
        for each in rows(at(selector, "matchExpressions"))
    )


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
