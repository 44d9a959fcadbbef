"""Rules for IAM: who may assume a role, and what a role may do."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Final

from components.documents import checkpoints
from trainyard.k8s.names import (
    KARPENTER_NAMESPACE,
    TORCHRUN_ARCHIVES,
    TRAINER_SERVICE_ACCOUNT,
    TRAINING_NAMESPACE,
)
from trainyard.policies.iam_documents import (
    ATTACHMENT,
    POLICY,
    PRINCIPALS,
    ROLE,
    ROLE_POLICY,
    Statement,
    foreign_policies,
    grants,
    has_wildcard,
    is_everything,
    is_whole_kind,
    matches,
    policies_of,
    service_accounts,
)
from trainyard.policies.model import Resource, Stack, rule
from trainyard.policies.pods import TORCHRUN_QUEUE

PROVIDER: Final = "pulumi:providers:aws"
# The property of each type that has a document with principals.
DOCUMENTS: Final = {
    "aws:kms/key:Key": "policy",
    "aws:s3/bucketPolicy:BucketPolicy": "policy",
    "aws:sqs/queuePolicy:QueuePolicy": "policy",
    ROLE: "assumeRolePolicy",
}
# The property of each type that has one principal.
NAMED: Final = {
    "aws:eks/accessEntry:AccessEntry": "principalArn",
    "aws:eks/accessPolicyAssociation:AccessPolicyAssociation": "principalArn",
    "aws:kms/grant:Grant": "granteePrincipal",
}
ACCOUNT: Final = re.compile(r"arn:[^:]*:[^:]*:[^:]*:([^:]*):|(\d+)$")
TRAINER: Final = f"system:serviceaccount:{TRAINING_NAMESPACE}:{TRAINER_SERVICE_ACCOUNT}"
KARPENTER: Final = f"system:serviceaccount:{KARPENTER_NAMESPACE}:karpenter"
AUDIENCE: Final = "sts.amazonaws.com"
NODE_POLICIES: Final = (
    "AmazonEKSWorkerNodePolicy",
    "AmazonEKS_CNI_Policy",
    "AmazonEC2ContainerRegistryPullOnly",
    "AmazonEC2ContainerRegistryReadOnly",
)
# https://docs.aws.amazon.com/eks/latest/userguide/cluster-iam-role.html
AWS_POLICIES: Final = ("AmazonEKSClusterPolicy", *NODE_POLICIES)

# Actions that can't be limited to resources; the regional ones must be limited to a region. Service Authorization
# Reference, https://docs.aws.amazon.com/service-authorization/latest/reference/, 2026-11.
REGIONAL: Final = (
    "ec2:Describe*",
    "fsx:Describe*",
    "ecr:GetAuthorizationToken",
    "logs:DescribeLogGroups",
    "sts:GetCallerIdentity",
)
# The price list and IAM have no region. Karpenter's own policy has the second one in the same form.
GLOBAL: Final = ("pricing:GetProducts", "iam:ListInstanceProfiles")
# Returns names only.
HARMLESS_ON_A_KIND: Final = ("iam:GetInstanceProfile",)
PASSED_TO: Final = ("ec2.amazonaws.com", "ec2.amazonaws.com.cn")
# Runs delete old checkpoints; the bucket keeps versions.
DELETE_OBJECT: Final = "s3:DeleteObject"
# What a role may do with these services. IAM: nothing that gives a role more permissions. The others store data:
# nothing that deletes data, shares it, or ends its key.
ACTIONS: Final = {
    "iam": (
        "AddRoleToInstanceProfile CreateInstanceProfile DeleteInstanceProfile Get* List* PassRole"
        " RemoveRoleFromInstanceProfile TagInstanceProfile UntagInstanceProfile"
    ),
    "s3": "AbortMultipartUpload DeleteObject Get* List* PutObject",
    "fsx": "Describe* List*",
    "ecr": "BatchCheck* BatchGet* Describe* Get* List*",
    "kms": "CreateGrant Decrypt Describe* Encrypt GenerateDataKey* Get* List* ReEncrypt*",
}
# A grant that an AWS service makes on behalf of the role, for example to attach a volume.
AWS_GRANT: Final = ("Bool", "kms:GrantIsForAWSResource", ["true"])
OBJECT_ACTIONS: Final = (
    "s3:AbortMultipartUpload",
    DELETE_OBJECT,
    "s3:GetObject",
    "s3:ListMultipartUploadParts",
    "s3:PutObject",
)
UNDER_A_PREFIX: Final = re.compile(r"arn:[^/]*:::[^/]+/[^/*?]+/")
TRAINER_ACTIONS: Final = (*OBJECT_ACTIONS, "s3:ListBucket", "kms:Decrypt", "kms:GenerateDataKey")
READ_PREFIXES: Final = ("Describe", "Get", "List")
# The tag that Karpenter puts on what it creates for a cluster.
CLUSTER_TAG: Final = "kubernetes.io/cluster/"


@rule(
    "principals-named",
    *DOCUMENTS,
    *NAMED,
    why="checkov finds a bare `*`, not NotPrincipal, patterns or other accounts",
)
def principals_named(resource: Resource, stack: Stack) -> Iterator[str]:
    """Documents and access entries name each principal, and none of another account."""
    if resource.type in NAMED:
        name = NAMED[resource.type]
        found = [str(resource.at(name, default=""))]
    else:
        name, found = DOCUMENTS[resource.type], []
        for statement in grants(resource, name):
            found += [each for kind in PRINCIPALS for each in statement.principals(kind)]
            if "NotPrincipal" in statement.fields:
                yield f"{name} {statement} has NotPrincipal; it must name who is allowed"
    for principal in found:
        account = ACCOUNT.match(principal)
        if has_wildcard(principal):
            yield f"{name} allows {principal}; it must name services, providers, accounts or roles"
        elif account and (account[1] or account[2] or "") not in own_accounts(stack):
            yield f"{name} allows {principal}; it must be of an account in allowedAccountIds of the stack's provider"


def own_accounts(stack: Stack) -> frozenset[str]:
    """Return the accounts that the stack's AWS providers may use.

    Raises:
        Undecided: they are unknown.
    """
    found: set[str] = set()
    for provider in stack.of(PROVIDER):
        # The engine stores the lists of a provider as JSON.
        listed = provider.resolved("allowedAccountIds", default=[])
        found.update(map(str, json.loads(listed) if isinstance(listed, str) else listed))
    return frozenset(found)


@rule("trust-one-subject", ROLE, why="checkov does not read the subject and audience of OIDC trusts")
def trust_one_subject(resource: Resource, _stack: Stack) -> Iterator[str]:
    """A trust policy allows one service account, services, or roles by name."""
    for statement in grants(resource, "assumeRolePolicy"):
        where = f"assumeRolePolicy {statement}"
        for principal in statement.principals("AWS"):
            if ":role/" not in principal:
                yield f"{where} allows {principal}; it must name a service, a provider or a role"
        if not statement.principals("Federated"):
            continue
        equal = {
            key.rpartition(":")[2]: values
            for operator, key, values in statement.conditions
            if operator == "StringEquals"
        }
        subjects = equal.get("sub", [])
        if len(subjects) != 1 or not subjects[0].startswith("system:serviceaccount:") or "*" in subjects[0]:
            yield (
                f"{where} allows {', '.join(subjects) or 'any subject'}; StringEquals must name one"
                " system:serviceaccount:<namespace>:<name>"
            )
        if equal.get("aud") != [AUDIENCE]:
            yield f"{where} allows any audience; StringEquals must name {AUDIENCE}"


@rule("aws-policies-listed", ATTACHMENT, why="checkov refuses AdministratorAccess and IAMFullAccess alone")
def aws_policies_listed(resource: Resource, _stack: Stack) -> Iterator[str]:
    """Only the AWS managed policies that EKS requires are attached; others grant more than a role needs."""
    if resource.has("policyArn"):
        arn = str(resource.at("policyArn"))
        name = arn.rpartition("/")[2]
        if ":iam::aws:policy/" in arn and name not in AWS_POLICIES:
            yield f"policyArn is {name}; it must be one of {', '.join(AWS_POLICIES)}, or a policy of the stack"


@rule("node-role-narrow", ROLE, why="pods that reach the metadata service have these permissions")
def node_role_narrow(resource: Resource, stack: Stack) -> Iterator[str]:
    """The role of nodes has only the policies that EKS nodes need."""
    if not any("ec2.amazonaws.com" in s.principals("Service") for s in grants(resource, "assumeRolePolicy")):
        return
    own = [policy.name for policy in policies_of(resource, stack)]
    for name in (*foreign_policies(resource, stack), *own):
        if name not in NODE_POLICIES:
            yield f"it has policy {name}; it must be one of {', '.join(NODE_POLICIES)}, or of a service account's role"


@rule(
    "iam-actions-listed",
    POLICY,
    ROLE_POLICY,
    why="checkov refuses `*` and a few actions, not s3:* or kms:PutKeyPolicy",
)
def iam_actions_listed(resource: Resource, _stack: Stack) -> Iterator[str]:
    """Policies name each action, and none that gives more permissions, deletes or shares data, or ends a key."""
    for statement in grants(resource):
        where = f"policy {statement}"
        if "NotAction" in statement.fields:
            yield f"{where} has NotAction; it must name what is allowed"
        for action in statement.actions:
            service, _, name = action.partition(":")
            allowed = ACTIONS.get(service.lower(), "*")
            if has_wildcard(action):
                yield f"{where} allows {action}; it must name each action"
            elif not matches(name, allowed.split()):
                yield f"{where} allows {action}; of {service} it must be one of {allowed}"


@rule(
    "iam-resources-named",
    POLICY,
    ROLE_POLICY,
    why="checkov refuses `*` for some actions, not every role or volume",
)
def iam_resources_named(resource: Resource, _stack: Stack) -> Iterator[str]:
    """Policies name resources, tags or, for actions that can't be limited to resources, the region."""
    for statement in grants(resource):
        where = f"policy {statement}"
        if not statement.targets:
            yield f"{where} has no Resource; it must name the resources"
        limited = [each for each in statement.actions if not matches(each, (*REGIONAL, *GLOBAL))]
        regional = [each for each in statement.actions if matches(each, REGIONAL)]
        has_region = bool(statement.required("aws:RequestedRegion"))
        bounded = (
            statement.requires_tag()
            or statement.required("ec2:CreateAction")
            or statement.is_launch_reference()
        )
        for target in statement.targets:
            if is_everything(target):
                for action in limited:
                    yield f"{where} allows {action} on {target}; it must name resources"
                for action in () if has_region else regional:
                    yield f"{where} allows {action} in every region; it must have StringEquals aws:RequestedRegion"
            elif is_whole_kind(target) and not bounded:
                for action in limited:
                    if not matches(action, HARMLESS_ON_A_KIND):
                        yield (
                            f"{where} allows {action} on {target}; it must name resources, or have StringEquals"
                            " aws:ResourceTag or aws:RequestTag"
                        )


@rule("iam-roles-named", POLICY, ROLE_POLICY, why="checkov has no check of who assumes or passes which role")
def iam_roles_named(resource: Resource, _stack: Stack) -> Iterator[str]:
    """Policies name the roles to assume and to pass, and pass roles to EC2 only."""
    for statement in grants(resource):
        where = f"policy {statement}"
        passes = statement.covers("iam:PassRole")
        assumes = any(matches(action, ["sts:AssumeRole*"]) for action in statement.actions)
        for target in filter(has_wildcard, statement.targets if passes or assumes else ()):
            yield f"{where} {'passes' if passes else 'assumes'} {target}; it must name the role"
        services = statement.required("iam:PassedToService")
        if passes and (not services or set(services) - set(PASSED_TO)):
            who = ", ".join(services) or "any service"
            yield f"{where} passes a role to {who}; StringEquals iam:PassedToService must be {PASSED_TO[0]}"


@rule("iam-data-kept", POLICY, ROLE_POLICY, why="checkov has no check of who deletes objects or shares keys")
def iam_data_kept(resource: Resource, _stack: Stack) -> Iterator[str]:
    """Policies name each bucket, delete only checkpoints, and share keys only with AWS services."""
    for statement in grants(resource):
        where = f"policy {statement}"
        if statement.covers("kms:CreateGrant") and AWS_GRANT not in statement.conditions:
            yield f"{where} allows kms:CreateGrant to anybody; it must have Bool kms:GrantIsForAWSResource true"
        for target in statement.targets if any(matches(each, ["s3:*"]) for each in statement.actions) else ():
            path = target.partition(":::")[2].partition("/")[2]
            if is_everything(target):
                yield f"{where} allows {target}; it must name the bucket"
            elif statement.covers(DELETE_OBJECT) and not path.startswith(f"{checkpoints.PREFIX}/"):
                yield f"{where} deletes {target}; it must end in /{checkpoints.PREFIX}/*"


@rule("trainer-role-narrow", ROLE, why="our claim that training code can use one prefix of one bucket")
def trainer_role_narrow(resource: Resource, stack: Stack) -> Iterator[str]:
    """The trainer's role reads and writes under a prefix of a bucket with one key, and deletes only checkpoints."""
    if TRAINER not in service_accounts(resource):
        return
    for where, statement in _role_statements(resource, stack):
        if statement is None:
            yield where
            continue
        for action in statement.actions:
            if action not in TRAINER_ACTIONS:
                yield f"{where} allows {action}; it must be one of {', '.join(TRAINER_ACTIONS)}"
        for target in statement.targets if statement.covers(*OBJECT_ACTIONS) else ():
            if not UNDER_A_PREFIX.match(target):
                yield f"{where} allows {target}; it must end in /<prefix>/*"
        if statement.covers("s3:ListBucket") and not _lists_a_prefix(statement):
            yield f"{where} lists the whole bucket; StringLike s3:prefix must name a prefix"
        if statement.covers("kms:Decrypt") and any(map(has_wildcard, statement.targets)):
            yield f"{where} decrypts with every key; it must name one"


@rule("karpenter-changes-its-own", ROLE, why="our claim that Karpenter can't change what others own")
def karpenter_changes_its_own(resource: Resource, stack: Stack) -> Iterator[str]:
    """Karpenter changes only resources that have the tag of this cluster."""
    if KARPENTER not in service_accounts(resource):
        return
    for where, statement in _role_statements(resource, stack):
        if statement is None:
            yield where
            continue
        reads = all(action.partition(":")[2].startswith(READ_PREFIXES) for action in statement.actions)
        patterns = any(map(has_wildcard, statement.targets))
        if patterns and not (reads or statement.requires_tag(CLUSTER_TAG) or statement.is_launch_reference()):
            yield (
                f"{where} changes {', '.join(statement.targets)}; it must have StringEquals"
                f" aws:ResourceTag/{CLUSTER_TAG}<cluster> or aws:RequestTag/{CLUSTER_TAG}<cluster>"
            )


@rule(
    "workspaces-not-written-by-pods",
    TORCHRUN_QUEUE,
    why="our claim that jobs can't replace each other's code",
)
def workspaces_not_written_by_pods(resource: Resource, stack: Stack) -> Iterator[str]:
    """The service account of a queue can't write the workspaces of its jobs."""
    place = resource.at("spec", "storage", "workspace", "bucket")
    account = resource.at("spec", "podTemplate", "spec", "serviceAccountName")
    namespace = resource.at("metadata", "namespace")
    if place is None:
        return
    subject = f"system:serviceaccount:{namespace}:{account}"
    archive = f"{str(place).removeprefix('s3://').rstrip('/')}/{TORCHRUN_ARCHIVES}/{namespace}/0"
    for role in stack.of(ROLE):
        for policy in policies_of(role, stack) if subject in service_accounts(role) else ():
            for statement in grants(policy):
                places = [each.partition(":::")[2] or each for each in statement.targets]
                if statement.covers("s3:PutObject") and any(fnmatchcase(archive, each) for each in places):
                    yield (
                        f"spec.podTemplate.spec.serviceAccountName is {account}, which may write {place} by"
                        f" {policy.name}; its role must not have s3:PutObject there"
                    )


def _role_statements(role: Resource, stack: Stack) -> Iterator[tuple[str, Statement | None]]:
    """Return name and statement for each grant of a role; a message and None for a policy without a document."""
    for name in foreign_policies(role, stack):
        yield f"policy {name} has no document in the stack; it must be a Policy resource", None
    for policy in policies_of(role, stack):
        for statement in grants(policy):
            yield f"policy {policy.name} {statement}", statement


def _lists_a_prefix(statement: Statement) -> bool:
    """Return whether a statement only lists objects under named prefixes."""
    found = [
        values
        for operator, key, values in statement.conditions
        if operator in ("StringEquals", "StringLike") and key.lower() == "s3:prefix"
    ]
    return any(
        values and all(value.strip("/") and not has_wildcard(value.partition("/")[0]) for value in values)
        for values in found
    )
