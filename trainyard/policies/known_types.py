"""Deny by default: what no rule judges must be said to need none, or it is a violation."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Final

from trainyard.policies import (
    cluster,
    identity,
    interruptions,
    karpenter,
    kubernetes,
    network,
    nodes,
    permissions,
    pod_network,
    pods,
    principals,
    readable,
    registry,
    security_groups,
    storage,
)
from trainyard.policies.model import Resource, Rules, Stack

RULES: Final = Rules()

AREAS: Final = (
    network,
    security_groups,
    cluster,
    nodes,
    identity,
    permissions,
    principals,
    storage,
    registry,
    interruptions,
    karpenter,
    kubernetes,
    pod_network,
    pods,
    readable,
)
JUDGED: Final = frozenset(type_ for area in AREAS for rule in area.RULES.all for type_ in rule.types)
# What lets nobody in and keeps nothing by itself, and what rules of others look at (`Stack.pointing`).
NOTHING_TO_JUDGE: Final = frozenset(
    {
        "aws:cloudwatch/eventRule:EventRule",
        "aws:cloudwatch/eventTarget:EventTarget",
        # The address of a NAT gateway. What machines have is judged by their subnets and templates.
        "aws:ec2/eip:Eip",
        "aws:ec2/flowLog:FlowLog",
        "aws:ec2/internetGateway:InternetGateway",
        "aws:ec2/natGateway:NatGateway",
        "aws:ec2/placementGroup:PlacementGroup",
        "aws:ec2/route:Route",
        "aws:ec2/routeTableAssociation:RouteTableAssociation",
        "aws:ec2/vpcEndpoint:VpcEndpoint",
        "aws:ecr/lifecyclePolicy:LifecyclePolicy",
        "aws:fsx/dataRepositoryAssociation:DataRepositoryAssociation",
        # Its role is judged, which is all that it gives.
        "aws:iam/instanceProfile:InstanceProfile",
        "aws:iam/openIdConnectProvider:OpenIdConnectProvider",
        "aws:kms/alias:Alias",
        "aws:s3/bucketLifecycleConfiguration:BucketLifecycleConfiguration",
        "aws:s3/bucketOwnershipControls:BucketOwnershipControls",
        "aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock",
        "aws:s3/bucketServerSideEncryptionConfiguration:BucketServerSideEncryptionConfiguration",
        "aws:s3/bucketVersioning:BucketVersioning",
        # An image that is built and pushed; the repositories are judged.
        "docker-build:index:Image",
        # They only refuse requests.
        "kubernetes:admissionregistration.k8s.io/v1:ValidatingAdmissionPolicy",
        "kubernetes:admissionregistration.k8s.io/v1:ValidatingAdmissionPolicyBinding",
        "kubernetes:admissionregistration.k8s.io/v1:ValidatingWebhookConfiguration",
        "kubernetes:apiextensions.k8s.io/v1:CustomResourceDefinition",
        # It takes the token from an account that is there; namespace-default-account looks for it.
        "kubernetes:core/v1:ServiceAccountPatch",
        "kubernetes:policy/v1:PodDisruptionBudget",
        "kubernetes:scheduling.k8s.io/v1:PriorityClass",
        # Ends machines and objects before their cluster goes (components/drain.py).
        "pulumi-python:dynamic/drain:Drain",
        "pulumi-python:dynamic/drain:Remains",
        # Records in the state (components/fixed_settings.py).
        "pulumi-python:dynamic/settings:Fixed",
        "pulumi-python:dynamic/settings:StartedRun",
    }
)
# Components only hold others, and providers make nothing.
HOLDERS: Final = ("eks:index:*", "pulumi:providers:*", "pulumi:pulumi:Stack", "trainyard:*:*")


@RULES.rule("type-is-judged", every_type=True)
def type_is_judged(resource: Resource, _stack: Stack) -> Iterator[str]:
    """Each type of resource is judged by some rule, or known to need none."""
    if resource.type in JUDGED or resource.type in NOTHING_TO_JUDGE:
        return
    if not any(fnmatchcase(resource.type, pattern) for pattern in HOLDERS):
        yield "no rule judges this type; it must have one, or be listed as having nothing to judge (known_types.py)"
