"""The registry of all rules, and the rules that make resources visible to the other rules."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Final

from trainyard.policies import cluster, iam, kubernetes, network, pods, storage, tags
from trainyard.policies.iam_documents import ROLE
from trainyard.policies.model import Resource, Rule, Stack, rule

AREAS: Final = (iam, network, cluster, storage, kubernetes, pods, tags)
# Types without a rule of ours: checkov checks them, other rules read them as part of another resource, or they give
# nobody access and store nothing.
WITHOUT_RULE: Final = frozenset(
    {
        "aws:cloudwatch/eventTarget:EventTarget",
        "aws:ec2/route:Route",
        "aws:ec2/routeTableAssociation:RouteTableAssociation",
        "aws:ecr/lifecyclePolicy:LifecyclePolicy",
        "aws:kms/alias:Alias",
        "aws:s3/bucketLifecycleConfiguration:BucketLifecycleConfiguration",
        "aws:s3/bucketOwnershipControls:BucketOwnershipControls",
        "aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock",
        "aws:s3/bucketServerSideEncryptionConfiguration:BucketServerSideEncryptionConfiguration",
        "aws:s3/bucketVersioning:BucketVersioning",
        "docker-build:index:Image",
        "kubernetes:admissionregistration.k8s.io/v1:MutatingWebhookConfiguration",
        "kubernetes:admissionregistration.k8s.io/v1:ValidatingAdmissionPolicy",
        "kubernetes:admissionregistration.k8s.io/v1:ValidatingAdmissionPolicyBinding",
        "kubernetes:admissionregistration.k8s.io/v1:ValidatingWebhookConfiguration",
        "kubernetes:apiextensions.k8s.io/v1:CustomResourceDefinition",
        "kubernetes:core/v1:PersistentVolumeClaim",
        "kubernetes:core/v1:Secret",
        "kubernetes:core/v1:ServiceAccount",
        "kubernetes:core/v1:ServiceAccountPatch",
        "kubernetes:helm.sh/v3:Release",
        "kubernetes:policy/v1:PodDisruptionBudget",
        "kubernetes:scheduling.k8s.io/v1:PriorityClass",
        "pulumi-python:dynamic/drain:Drain",
        "pulumi-python:dynamic/drain:Remains",
        "pulumi-python:dynamic/settings:Fixed",
        "pulumi-python:dynamic/settings:StartedRun",
    }
)
# Components and providers.
CONTAINERS: Final = ("eks:index:*", "pulumi:providers:*", "pulumi:pulumi:Stack", "trainyard:*:*")
# The properties of each type for which there are resources, which the other rules read.
INLINE: Final = {
    "aws:ec2/routeTable:RouteTable": ("routes",),
    network.GROUP: ("ingress", "egress"),
    ROLE: ("inlinePolicies", "managedPolicyArns"),
}


@rule("no-inline-parts", *INLINE, why="the other rules read these resources only")
def no_inline_parts(resource: Resource, _stack: Stack) -> Iterator[str]:
    """Routes, rules of security groups, and policies of roles are resources of their own."""
    for name in INLINE[resource.type]:
        if resource.has(name) and resource.properties[name] != []:
            yield f"{name} is set; its parts must be resources"


@rule("type-listed", why="an IAM user or an instance would pass all other rules")
def type_listed(resource: Resource, _stack: Stack) -> Iterator[str]:
    """Every type of resource has a rule, or is listed as one without."""
    if resource.type in WITHOUT_RULE or any(resource.type in each.types for each in ALL):
        return
    if not any(fnmatchcase(resource.type, pattern) for pattern in CONTAINERS):
        yield "no rule is about this type; it must have one, or be listed in trainyard/policies/rules.py"


ALL: Final[tuple[Rule, ...]] = (
    *(each for area in AREAS for each in vars(area).values() if isinstance(each, Rule)),
    no_inline_parts,
    type_listed,
)
