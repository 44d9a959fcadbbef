"""Rules for the machines of the managed node groups: metadata, disks, ways in, their role."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from trainyard.policies.documents import ATTACHMENT, ROLE, attached_by_itself, grants, policies_of, principals
from trainyard.policies.model import Resource, Rules, Stack, at, rows
from trainyard.policies.network import NODE_GROUP

RULES: Final = Rules()

TEMPLATE: Final = "aws:ec2/launchTemplate:LaunchTemplate"
NODE_POLICIES: Final = (
    "AmazonEKSWorkerNodePolicy",
    "AmazonEKS_CNI_Policy",
    "AmazonEC2ContainerRegistryPullOnly",
    "AmazonEC2ContainerRegistryReadOnly",
)


def metadata_faults(options: Any, prefix: str) -> Iterator[str]:
    """What is wrong with the metadata options of a launch template or an EC2NodeClass."""
    tokens = at(options, "httpTokens")
    if tokens != "required":
        yield f"{prefix}.httpTokens is {tokens or 'missing'}; it must be required"
    hops = at(options, "httpPutResponseHopLimit")
    if hops != 1:
        yield f"{prefix}.httpPutResponseHopLimit is {hops or 'missing'}; it must be 1, which ends before the pods"


@RULES.rule(
    "node-metadata-closed", "CKV_AWS_79", "CKV_AWS_341", "AVD-AWS-0130", "CIS EKS 5.2.1", types=[TEMPLATE]
)
def node_metadata_closed(resource: Resource, _stack: Stack) -> Iterator[str]:
    """Pods get no credentials of the machine: metadata by session alone, and one hop."""
    yield from metadata_faults(resource.at("metadataOptions"), "metadataOptions")


@RULES.rule("node-group-has-template", "CKV_AWS_341", "CIS EKS 5.2.1", types=[NODE_GROUP])
def node_group_has_template(resource: Resource, _stack: Stack) -> Iterator[str]:
    """Node groups use a launch template; EKS' own lets metadata pass two hops."""
    if not resource.has("launchTemplate"):
        yield "launchTemplate is missing; it must name one with metadataOptions and encrypted disks"


@RULES.rule("node-no-remote-access", "CKV_AWS_100", types=[NODE_GROUP, TEMPLATE])
def node_no_remote_access(resource: Resource, _stack: Stack) -> Iterator[str]:
    """No key lets anybody log in to a node."""
    for name in ("remoteAccess", "keyName"):
        if resource.has(name):
            yield f"{name} is set; it must not be"


@RULES.rule("node-disks-encrypted", "CKV_AWS_8", types=[TEMPLATE])
def node_disks_encrypted(resource: Resource, _stack: Stack) -> Iterator[str]:
    """Disks of nodes are encrypted."""
    mappings = rows(resource.at("blockDeviceMappings"))
    if not mappings:
        yield "blockDeviceMappings is missing, so that the image decides; it must set ebs.encrypted"
    for index, mapping in enumerate(mappings):
        # The provider has a text here.
        if at(mapping, "ebs") is not None and str(at(mapping, "ebs", "encrypted")).lower() != "true":
            yield f"blockDeviceMappings[{index}].ebs.encrypted is not true; it must be"


@RULES.rule("node-disks-key", types=[TEMPLATE])
def node_disks_key(resource: Resource, _stack: Stack) -> Iterator[str]:
    """Disks of nodes are encrypted with a key of ours."""
    for index, mapping in enumerate(rows(resource.at("blockDeviceMappings"))):
        ebs = at(mapping, "ebs", default={})
        if ebs and ebs.get("kmsKeyId") is None:
            yield f"blockDeviceMappings[{index}].ebs.kmsKeyId is missing; it must name a KMS key"


@RULES.rule(
    "node-role-least", "CKV_AWS_274", "CIS EKS 5.1.3", "CIS EKS 5.2.1", types=[ROLE], whole_stack=True
)
def node_role_least(resource: Resource, stack: Stack) -> Iterator[str]:
    """A machine's role has the policies that a node needs, and nothing of ours."""
    if not any("ec2.amazonaws.com" in principals(s, "Service") for s in grants(resource, "assumeRolePolicy")):
        return
    for attachment in stack.pointing(resource, ATTACHMENT, "role"):
        name = str(attachment.at("policyArn", default="")).rpartition("/")[2]
        if name not in NODE_POLICIES:
            yield f"policy {name} is attached by {attachment.name}; it must be one of {', '.join(NODE_POLICIES)}"
    for name in (*attached_by_itself(resource), *(policy.name for policy in policies_of(resource, stack))):
        yield f"policy {name} is its own; what pods need must go to roles of service accounts"
