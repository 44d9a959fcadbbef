"""Rules for the EKS cluster, its nodes, and Karpenter's objects and queue."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

from trainyard.policies.iam_documents import grants, tls_denials
from trainyard.policies.model import Resource, Stack, at, rows, rule
from trainyard.policies.network import NODE_CLASS, NODE_GROUP, is_public
from trainyard.policies.storage import BUCKET

CLUSTER: Final = "aws:eks/cluster:Cluster"
ADDON: Final = "aws:eks/addon:Addon"
CONFIG_MAP: Final = "kubernetes:core/v1:ConfigMap"
LOG_GROUP: Final = "aws:cloudwatch/logGroup:LogGroup"
TEMPLATE: Final = "aws:ec2/launchTemplate:LaunchTemplate"
NODE_POOL: Final = "kubernetes:karpenter.sh/v1:NodePool"
QUEUE: Final = "aws:sqs/queue:Queue"
QUEUE_POLICY: Final = "aws:sqs/queuePolicy:QueuePolicy"
SENDERS: Final = ("events.amazonaws.com", "sqs.amazonaws.com")


@rule("cluster-endpoint", CLUSTER, why="checkov refuses 0.0.0.0/0 alone, and requires no private endpoint")
def cluster_endpoint(resource: Resource, _stack: Stack) -> Iterator[str]:
    """The API server has a private endpoint, and a public one only for known ranges."""
    if not resource.at("vpcConfig", "endpointPrivateAccess", default=False):
        yield "vpcConfig.endpointPrivateAccess: is not true. Set it to true."
    # EKS defaults to a public endpoint for every address.
    if not resource.at("vpcConfig", "endpointPublicAccess", default=True):
        return
    ranges = resource.resolved("vpcConfig", "publicAccessCidrs", default=[])
    if not ranges:
        yield "vpcConfig.endpointPublicAccess is on without publicAccessCidrs; it must be false, or have ranges"
    for block in ranges:
        if is_public(str(block)):
            yield f"vpcConfig.publicAccessCidrs has {block}; it must name ranges of one organisation"


@rule("cluster-access", CLUSTER, CONFIG_MAP, why="EKS makes the creator an administrator by default")
def cluster_access(resource: Resource, _stack: Stack) -> Iterator[str]:
    """Only access entries give access to the cluster, and its creator has none."""
    if resource.type == CLUSTER:
        mode = resource.at("accessConfig", "authenticationMode")
        if mode != "API":
            yield f"accessConfig.authenticationMode is {mode or 'missing'}; it must be API"
        if resource.at("accessConfig", "bootstrapClusterCreatorAdminPermissions", default=True):
            yield "accessConfig.bootstrapClusterCreatorAdminPermissions: is not false. Set it to false."
    elif resource.at("metadata", "name") == "aws-auth":
        yield "metadata.name is aws-auth, which gives access beside the access entries; it must not exist"


@rule(
    "cluster-log-group",
    CLUSTER,
    why="EKS would create it without key and retention; `destroy` would leave it",
)
def cluster_log_group(resource: Resource, stack: Stack) -> Iterator[str]:
    """The log group of the control plane is a resource of the stack."""
    name = f"/aws/eks/{resource.at('name', default='')}/cluster"
    if name not in [group.at("name") for group in stack.of(LOG_GROUP)]:
        yield f"no LogGroup has the name {name}; there must be one"


@rule("cluster-deletion-protected", CLUSTER, why="checkov does not read deletionProtection")
def cluster_deletion_protected(resource: Resource, stack: Stack) -> Iterator[str]:
    """A stack that keeps its data also protects its cluster from deletion."""
    kept = [bucket.name for bucket in stack.of(BUCKET) if not bucket.at("forceDestroy", default=False)]
    if kept and not resource.at("deletionProtection", default=False):
        yield f"deletionProtection: is not true although bucket {kept[0]} is kept. Set it to true."


@rule("network-policies-enforced", ADDON, why="the VPC CNI ignores NetworkPolicies by default")
def network_policies_enforced(resource: Resource, _stack: Stack) -> Iterator[str]:
    """The VPC CNI enforces NetworkPolicies."""
    if resource.at("addonName") != "vpc-cni":
        return
    values = json.loads(resource.at("configurationValues", default="{}"))
    # The add-on's schema has a string here: https://docs.aws.amazon.com/eks/latest/userguide/cni-network-policy-configure.html
    if str(at(values, "enableNetworkPolicy")).lower() != "true":
        yield 'configurationValues.enableNetworkPolicy: is not "true". Set it to "true".'


@rule(
    "node-access-closed",
    NODE_GROUP,
    TEMPLATE,
    NODE_CLASS,
    why="checkov reads no EC2NodeClass, and no key of a template",
)
def node_access_closed(resource: Resource, _stack: Stack) -> Iterator[str]:
    """Nodes have no SSH key or public address, and pods can't reach their metadata service."""
    for name in ("remoteAccess", "keyName"):
        if resource.has(name):
            yield f"{name}: is set. Remove it."
    if resource.type == NODE_GROUP and not resource.has("launchTemplate"):
        yield "launchTemplate is missing, and EKS's own lets pods reach the metadata service; it must name one"
    if resource.type == NODE_CLASS:
        if resource.at("spec", "associatePublicIPAddress", default=False):
            yield "spec.associatePublicIPAddress is true; it must be false"
        for name, value in (("httpTokens", "required"), ("httpPutResponseHopLimit", 1)):
            found = resource.at("spec", "metadataOptions", name)
            if found != value:
                yield f"spec.metadataOptions.{name} is {found or 'missing'}; it must be {value}"


@rule("node-disks-encrypted", TEMPLATE, NODE_CLASS, why="CKV_AWS_8 reads neither of these types")
def node_disks_encrypted(resource: Resource, _stack: Stack) -> Iterator[str]:
    """The disks of nodes are encrypted."""
    name = "spec.blockDeviceMappings" if resource.type == NODE_CLASS else "blockDeviceMappings"
    mappings = rows(resource.at(*name.split(".")))
    if not mappings:
        yield f"{name} is missing, which leaves it to the image; it must set ebs.encrypted"
    for index, mapping in enumerate(mappings):
        # A launch template of the AWS provider has a string here.
        if str(at(mapping, "ebs", "encrypted")).lower() != "true":
            yield f"{name}[{index}].ebs.encrypted: is not true. Set it to true."


@rule("node-image-pinned", NODE_CLASS, why="with `@latest`, Karpenter replaces nodes that run jobs")
def node_image_pinned(resource: Resource, _stack: Stack) -> Iterator[str]:
    """The image of Karpenter's nodes is one version."""
    terms = rows(resource.at("spec", "amiSelectorTerms"))
    if not terms:
        yield "spec.amiSelectorTerms is missing; it must name an alias with a version, or an id"
    for index, term in enumerate(terms):
        alias = at(term, "alias")
        if at(term, "id") is None and "@v" not in str(alias):
            yield f"spec.amiSelectorTerms[{index}] is {alias or 'no alias'}; it must be like al2023@v20260724, or an id"


@rule("pool-limited", NODE_POOL, why="the CRD accepts no limits, and Karpenter was seen to exceed `nodes`")
def pool_limited(resource: Resource, _stack: Stack) -> Iterator[str]:
    """A NodePool has a limit of devices or CPUs."""
    if not set(resource.resolved("spec", "limits", default={})) - {"nodes"}:
        yield "spec.limits has no devices and no cpu; it must have one of them"


@rule("pool-keeps-busy-nodes", NODE_POOL, why="by default, Karpenter replaces nodes that run jobs")
def pool_keeps_busy_nodes(resource: Resource, _stack: Stack) -> Iterator[str]:
    """Karpenter removes only empty nodes, and none because of its age."""
    for path, value in (
        ("spec.disruption.consolidationPolicy", "WhenEmpty"),
        ("spec.template.spec.expireAfter", "Never"),
    ):
        found = resource.at(*path.split("."))
        if found != value:
            yield f"{path} is {found or 'missing'}; it must be {value}"


@rule("queue-closed", QUEUE, why="checkov refuses `*` alone; a false message drains a node")
def queue_closed(resource: Resource, stack: Stack) -> Iterator[str]:
    """Only named EventBridge rules can send to the interruption queue, over TLS."""
    found = stack.pointing(resource, QUEUE_POLICY, "queueUrl")
    if not found:
        yield "it has no QueuePolicy; there must be one"
    for policy in found:
        for statement in grants(policy):
            where = f"{policy.name} {statement}"
            for who in (*statement.principals("Service"), *statement.principals("AWS")):
                if who not in SENDERS:
                    yield f"{where} allows {who}; it must be {' or '.join(SENDERS)}"
            if not any(key.lower() == "aws:sourcearn" for _, key, _ in statement.conditions):
                yield f"{where} allows every rule; it must name rules by aws:SourceArn"
        if not any(tls_denials(policy)):
            yield f"{policy.name} allows requests without TLS; it must deny aws:SecureTransport false"
