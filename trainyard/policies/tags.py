"""Rules for tags, which bills and the search for leftovers use."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from components.documents.tags import is_reserved, stack_tags
from trainyard.policies.cluster import ADDON, TEMPLATE
from trainyard.policies.model import Resource, Stack, at, resolved, rows, rule
from trainyard.policies.network import NODE_CLASS

# All types of a stack with the argument `tags`; a test reads the SDK.
TAGGABLE: Final = (
    "aws:cloudwatch/eventRule:EventRule",
    "aws:cloudwatch/logGroup:LogGroup",
    "aws:ec2/defaultSecurityGroup:DefaultSecurityGroup",
    "aws:ec2/eip:Eip",
    "aws:ec2/flowLog:FlowLog",
    "aws:ec2/internetGateway:InternetGateway",
    TEMPLATE,
    "aws:ec2/natGateway:NatGateway",
    "aws:ec2/placementGroup:PlacementGroup",
    "aws:ec2/routeTable:RouteTable",
    "aws:ec2/securityGroup:SecurityGroup",
    "aws:ec2/subnet:Subnet",
    "aws:ec2/vpc:Vpc",
    "aws:ec2/vpcEndpoint:VpcEndpoint",
    "aws:ecr/repository:Repository",
    "aws:eks/accessEntry:AccessEntry",
    ADDON,
    "aws:eks/cluster:Cluster",
    "aws:eks/nodeGroup:NodeGroup",
    "aws:fsx/dataRepositoryAssociation:DataRepositoryAssociation",
    "aws:fsx/lustreFileSystem:LustreFileSystem",
    "aws:iam/instanceProfile:InstanceProfile",
    "aws:iam/openIdConnectProvider:OpenIdConnectProvider",
    "aws:iam/policy:Policy",
    "aws:iam/role:Role",
    "aws:kms/key:Key",
    "aws:s3/bucket:Bucket",
    "aws:sqs/queue:Queue",
    "aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule",
    "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule",
)
# What an instance of the template consists of.
INSTANCE_PARTS: Final = ("instance", "volume", "network-interface")
# The tags that mark a resource as a stack's.
MARKS: Final = tuple(stack_tags("", ""))
# Add-on -> the path to the tags of what it creates in AWS.
CREATING_ADDONS: Final = {
    "aws-ebs-csi-driver": ("controller", "extraVolumeTags"),
    "vpc-cni": ("env", "ADDITIONAL_ENI_TAGS"),
}


def _is_chosen(key: str) -> bool:
    return key in MARKS or not is_reserved(key)


def _tags_of(resource: Resource) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield each place with tags, and the tags there."""
    if resource.type == NODE_CLASS:
        yield "spec.tags", resource.resolved("spec", "tags", default={})
        return
    yield "tags", resource.resolved("tags", default={})
    if resource.type == TEMPLATE:
        specified = {
            at(row, "resourceType"): resolved(at(row, "tags", default={}), "tagSpecifications.tags")
            for row in rows(resource.at("tagSpecifications"))
        }
        for part in INSTANCE_PARTS:
            yield f"tagSpecifications of {part}", specified.get(part, {})
    path = CREATING_ADDONS.get(resource.at("addonName", default="")) if resource.type == ADDON else None
    if path:
        found = at(json.loads(resource.at("configurationValues", default="{}")), *path, default={})
        yield f"configurationValues {'.'.join(path)}", json.loads(found) if isinstance(found, str) else found


@rule("tags-complete", *TAGGABLE, NODE_CLASS, why="checkov knows no stack and no setting of ours")
def tags_complete(resource: Resource, stack: Stack) -> Iterator[str]:
    """A resource, and what nodes and add-ons create for it, has the tags of the stack and of `trainyard:tags`."""
    required: dict[str, Any] = {}
    for each in stack.of(*TAGGABLE, NODE_CLASS):
        for _, tags in _tags_of(each):
            required |= {key: value for key, value in tags.items() if _is_chosen(key)}
    for place, tags in _tags_of(resource):
        for key in (*MARKS, *sorted(required.keys() - set(MARKS))):
            if key not in tags:
                yield f"{place} lacks {key}; it must have the tags of all resources of the stack"
            elif tags[key] != required[key]:
                yield f"{place}.{key} is '{tags[key]}'; it must be the same for all resources of the stack"
