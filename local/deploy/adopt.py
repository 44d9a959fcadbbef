"""Ids of what a killed engine was creating, so that the next run takes it over and does not make it twice.

The engine notes a creation before it begins (a pending operation). What has been made by then is in the account, but
its id is not in the state; a second creation would fail on the name, or leave the first behind.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import boto3

# Types whose id is one of their inputs (the AWS provider's documentation, "Import" of each).
BY_INPUT = {
    "aws:cloudwatch/eventRule:EventRule": "name",
    "aws:cloudwatch/logGroup:LogGroup": "name",
    "aws:ecr/repository:Repository": "name",
    "aws:eks/cluster:Cluster": "name",
    "aws:iam/instanceProfile:InstanceProfile": "name",
    "aws:iam/role:Role": "name",
    "aws:kms/alias:Alias": "name",
    "aws:s3/bucket:Bucket": "bucket",
}
# Types whose id is several of their inputs, and what joins them (the same pages).
BY_INPUTS = {
    "aws:eks/accessEntry:AccessEntry": (":", ("clusterName", "principalArn")),
    "aws:eks/accessPolicyAssociation:AccessPolicyAssociation": (
        "#",
        ("clusterName", "principalArn", "policyArn"),
    ),
    "aws:eks/addon:Addon": (":", ("clusterName", "addonName")),
    "aws:eks/nodeGroup:NodeGroup": (":", ("clusterName", "nodeGroupName")),
    "aws:iam/rolePolicy:RolePolicy": (":", ("role", "name")),
}
# Types that EC2 gives ids to: the id is found by the tags, all of which must be there. The kind is told by the id's
# prefix, since emulators differ from EC2 in what they call it as the `resource-type` of DescribeTags.
EC2_PREFIX = {
    "aws:ec2/eip:Eip": "eipalloc-",
    "aws:ec2/flowLog:FlowLog": "fl-",
    "aws:ec2/internetGateway:InternetGateway": "igw-",
    "aws:ec2/launchTemplate:LaunchTemplate": "lt-",
    "aws:ec2/natGateway:NatGateway": "nat-",
    "aws:ec2/routeTable:RouteTable": "rtb-",
    "aws:ec2/securityGroup:SecurityGroup": "sg-",
    "aws:ec2/subnet:Subnet": "subnet-",
    "aws:ec2/vpc:Vpc": "vpc-",
    "aws:ec2/vpcEndpoint:VpcEndpoint": "vpce-",
    "aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule": "sgr-",
    "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule": "sgr-",
}


def pending_creations(deployment: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Resources of the state's pending creations."""
    operations: Sequence[Mapping[str, Any]] = deployment.get("pending_operations") or []
    return [each["resource"] for each in operations if each["type"] == "creating"]


def identities(deployment: Mapping[str, Any], account: str, region: str) -> Iterator[tuple[str, str]]:
    """(URN, id) of every pending creation that left something in the account, as far as its id can be found.

    The account is the one that the AWS variables of the environment lead to.
    """
    known = {resource.get("id") for resource in deployment.get("resources") or []}
    for resource in pending_creations(deployment):
        kind, inputs = resource["type"], resource.get("inputs") or {}
        found: str | None = None
        if kind in BY_INPUT:
            found = inputs.get(BY_INPUT[kind])
        elif kind in BY_INPUTS:
            found = _joined(inputs, *BY_INPUTS[kind])
        elif kind == "aws:iam/policy:Policy" and "name" in inputs:
            found = f"arn:aws:iam::{account}:policy{inputs.get('path') or '/'}{inputs['name']}"
        elif kind in EC2_PREFIX and inputs.get("tags"):
            tagged = _by_tags(region, EC2_PREFIX[kind], inputs["tags"])
            found = min(tagged - known, default=None)
        if found and found not in known:
            yield resource["urn"], found


def with_adopted(exported: Mapping[str, Any], found: Mapping[str, str]) -> dict[str, Any]:
    """A state as `pulumi stack export` writes it, in which the pending creations of `found` are resources.

    They come last, after everything that they depend on. A refresh then reads their outputs.
    """
    deployment = dict(exported["deployment"])
    operations = deployment.get("pending_operations") or []
    made = [
        {
            **each["resource"],
            "id": found[each["resource"]["urn"]],
            "outputs": each["resource"].get("inputs") or {},
        }
        for each in operations
        if each["type"] == "creating" and each["resource"]["urn"] in found
    ]
    deployment["resources"] = [*(deployment.get("resources") or []), *made]
    deployment["pending_operations"] = [each for each in operations if each["resource"]["urn"] not in found]
    return {**exported, "deployment": deployment}


def _joined(inputs: Mapping[str, Any], by: str, keys: Sequence[str]) -> str | None:
    """The inputs as one id; None where one is missing."""
    values = [inputs.get(key) for key in keys]
    return by.join(str(value) for value in values) if all(values) else None


def _by_tags(region: str, prefix: str, tags: Mapping[str, str]) -> set[str]:
    """Ids with the prefix that carry all of the tags (EC2 DescribeTags)."""
    ec2 = boto3.client("ec2", region_name=region)
    found: set[str] | None = None
    for key, value in tags.items():
        filters = [
            {"Name": "key", "Values": [key]},
            {"Name": "value", "Values": [value]},
        ]
        pages = ec2.get_paginator("describe_tags").paginate(Filters=filters)
        ids = {str(tag["ResourceId"]) for page in pages for tag in page["Tags"]}
        here = {each for each in ids if each.startswith(prefix)}
        found = here if found is None else found & here
    return found or set()
