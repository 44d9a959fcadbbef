"""Rules for IAM: who may take a role, and what the roles of the trainer and of Karpenter may do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, Final

from trainyard.k8s.names import (
    KARPENTER_NAMESPACE,
    TORCHRUN_ARCHIVES,
    TRAINER_SERVICE_ACCOUNT,
    TRAINING_NAMESPACE,
)
from trainyard.policies.bounds import asks_for_tags, has_wildcard, refers_to_parts_of_a_launch
from trainyard.policies.documents import (
    ATTACHMENT,
    POLICY_ATTACHMENT,
    ROLE,
    STANDING,
    actions,
    anybody,
    attached_by_itself,
    attached_elsewhere,
    conditions,
    covers,
    grants,
    label,
    policies_of,
    principals,
    service_accounts,
    targets,
)
from trainyard.policies.model import Resource, Rules, Stack
from trainyard.policies.nodes import NODE_POLICIES
from trainyard.policies.permissions import DELETING
from trainyard.policies.pods import TORCHRUN_QUEUE

RULES: Final = Rules()

TRAINER: Final = f"system:serviceaccount:{TRAINING_NAMESPACE}:{TRAINER_SERVICE_ACCOUNT}"
KARPENTER: Final = f"system:serviceaccount:{KARPENTER_NAMESPACE}:karpenter"
AUDIENCE: Final = "sts.amazonaws.com"
# https://docs.aws.amazon.com/eks/latest/userguide/cluster-iam-role.html; those of nodes stand with the nodes' rules.
AWS_POLICIES: Final = ("AmazonEKSClusterPolicy", *NODE_POLICIES)

READING: Final = ("Describe", "Get", "List")
# The tag that Karpenter puts on what it makes for a cluster, in lower case like every key of a condition here.
OWNED: Final = "kubernetes.io/cluster/"
# Without these the finalizer of an EC2NodeClass never clears.
FINALIZER: Final = (
    "iam:ListInstanceProfiles",
    "iam:GetInstanceProfile",
    "iam:RemoveRoleFromInstanceProfile",
    "iam:DeleteInstanceProfile",
)
# What a training may do with objects: nothing that deletes but checkpoints.
OBJECT_ACTIONS: Final = (
    "s3:AbortMultipartUpload",
    "s3:GetObject",
    "s3:ListMultipartUploadParts",
    "s3:PutObject",
)
TRAINER_ACTIONS: Final = (
    *OBJECT_ACTIONS,
    DELETING,
    "s3:ListBucket",
    "kms:Decrypt",
    "kms:GenerateDataKey",
)


@RULES.rule("identities-are-roles", "CKV_AWS_273", "CKV_AWS_40", "CKV2_AWS_22", types=[ROLE, *STANDING])
def identities_are_roles(resource: Resource, _stack: Stack) -> Iterator[str]:
    """Whoever acts takes a role for a while: no users, no groups, no keys that last."""
    if resource.type != ROLE:
        yield f"a {resource.type.rpartition(':')[2]} is or serves an identity that lasts; it must be a role"


@RULES.rule("role-rights-are-resources", types=[ROLE, POLICY_ATTACHMENT])
def role_rights_are_resources(resource: Resource, _stack: Stack) -> Iterator[str]:
    """A role's policies are resources beside it, each of which the other rules judge."""
    if resource.type == POLICY_ATTACHMENT:
        yield "it takes the policy from whoever else has it; it must be a RolePolicyAttachment"
        return
    for name in ("inlinePolicies", "managedPolicyArns"):
        if resource.has(name) and resource.properties[name] != []:
            yield f"{name} is set; its policies must be Policy resources with a RolePolicyAttachment each"


@RULES.rule("trust-one-service-account", "CIS EKS 4.1.5", "CIS EKS 5.2.1", types=[ROLE])
def trust_one_service_account(resource: Resource, _stack: Stack) -> Iterator[str]:
    """A role for the cluster's OIDC provider is for one service account and one audience, compared for equality."""
    for statement in grants(resource, "assumeRolePolicy"):
        if not principals(statement, "Federated"):
            continue
        found = conditions(statement)
        equal = {
            key.rpartition(":")[2]: values for operator, key, values in found if operator == "StringEquals"
        }
        subjects = equal.get("sub", [])
        if len(subjects) != 1 or not subjects[0].startswith("system:serviceaccount:") or "*" in subjects[0]:
            yield (
                f"assumeRolePolicy {label(statement)} names {', '.join(subjects) or 'no subject'}; StringEquals must"
                " name one system:serviceaccount:<namespace>:<name>"
            )
        if equal.get("aud") != [AUDIENCE]:
            yield f"assumeRolePolicy {label(statement)} does not compare the audience; it must be {AUDIENCE}"
        for operator, key, _ in found:
            if "Like" in operator:
                yield f"assumeRolePolicy {label(statement)} compares {key} by {operator}; it must be StringEquals"


@RULES.rule("one-role-per-service-account", "CIS EKS 4.1.5", types=[ROLE], whole_stack=True)
def one_role_per_service_account(resource: Resource, stack: Stack) -> Iterator[str]:
    """No two roles are for the same service account."""
    for subject in service_accounts(resource):
        for other in stack.of(ROLE):
            if other.urn < resource.urn and subject in service_accounts(other):
                yield f"assumeRolePolicy names {subject} as role {other.name} does; it must have one role"


@RULES.rule("workspaces-not-written-by-pods", types=[TORCHRUN_QUEUE], whole_stack=True)
def workspaces_not_written_by_pods(resource: Resource, stack: Stack) -> Iterator[str]:
    """Refuse a queue whose service account can write the workspaces of its jobs."""
    place = resource.at("spec", "storage", "workspace", "bucket")
    account = resource.at("spec", "podTemplate", "spec", "serviceAccountName")
    namespace = resource.at("metadata", "namespace")
    if place is None or account is None:
        return
    subject = f"system:serviceaccount:{namespace}:{account}"
    archive = f"{str(place).removeprefix('s3://').rstrip('/')}/{TORCHRUN_ARCHIVES}/{namespace}/0"
    for role in stack.of(ROLE):
        if subject not in service_accounts(role):
            continue
        for policy in policies_of(role, stack):
            for statement in grants(policy):
                places = [each.partition(":::")[2] or each for each in targets(statement)]
                reached = any(fnmatchcase(archive, each) for each in places)
                if covers(statement, "s3:PutObject") and reached:
                    yield (
                        f"spec.podTemplate.spec.serviceAccountName is {account}, whose {policy.name} allows it to write"
                        f" {place}; its role must not have s3:PutObject there"
                    )


@RULES.rule("trust-not-anybody", "CKV_AWS_60", "CKV_AWS_61", types=[ROLE])
def trust_not_anybody(resource: Resource, _stack: Stack) -> Iterator[str]:
    """Nobody but a named service, provider or role takes a role."""
    for statement in grants(resource, "assumeRolePolicy"):
        for who in anybody(statement):
            yield f"assumeRolePolicy lets {who} in; it must name a service, a provider or one role"
        for principal in principals(statement, "AWS"):
            if not has_wildcard(principal) and ":role/" not in principal:
                yield f"assumeRolePolicy lets {principal} in; it must name a service, a provider or one role"


@RULES.rule("role-no-full-access", "CKV_AWS_274", "CKV2_AWS_56", "CIS EKS 5.1.3", types=[ATTACHMENT])
def role_no_full_access(resource: Resource, _stack: Stack) -> Iterator[str]:
    """Of AWS' own policies roles have those that EKS asks for; most others grant more than anybody needs."""
    if not resource.has("policyArn"):
        return
    arn = str(resource.at("policyArn"))
    name = arn.rpartition("/")[2]
    if ":iam::aws:policy/" in arn and name not in AWS_POLICIES:
        yield f"policyArn is {name}; it must be a policy of the actions that are needed"


@RULES.rule("trainer-role-narrow", "CKV_AWS_290", "CKV_AWS_355", types=[ROLE], whole_stack=True)
def trainer_role_narrow(resource: Resource, stack: Stack) -> Iterator[str]:
    """The trainer reads and writes under a prefix of one bucket with one key, and deletes checkpoints alone."""
    if TRAINER not in service_accounts(resource):
        return
    yield from _unread(resource, stack)
    for policy in policies_of(resource, stack):
        for statement in grants(policy):
            where = f"policy {policy.name} {label(statement)}"
            for action in actions(statement):
                if action not in TRAINER_ACTIONS:
                    yield f"{where} allows {action}; it must be one of {', '.join(TRAINER_ACTIONS)}"
            if any(covers(statement, action) for action in (*OBJECT_ACTIONS, DELETING)):
                for target in targets(statement):
                    if not _under_a_prefix(target.partition(":::")[2].partition("/")[2]):
                        yield f"{where} reaches {target}; it must end in /<prefix>/*"
            if covers(statement, "s3:ListBucket") and not _lists_a_prefix(statement):
                yield f"{where} lists the whole bucket; it must have a condition StringLike s3:prefix that names one"
            if covers(statement, "kms:Decrypt") and any(
                has_wildcard(target) for target in targets(statement)
            ):
                yield f"{where} uses every key; it must name one"


@RULES.rule("karpenter-changes-its-own", "CKV_AWS_289", "CKV_AWS_290", types=[ROLE], whole_stack=True)
def karpenter_changes_its_own(resource: Resource, stack: Stack) -> Iterator[str]:
    """Karpenter changes only what carries this cluster's tags."""
    if KARPENTER not in service_accounts(resource):
        return
    yield from _unread(resource, stack)
    for policy in policies_of(resource, stack):
        for statement in grants(policy):
            if not _bounded(statement):
                yield (
                    f"policy {policy.name} {label(statement)} changes what it does not name; it must have a condition"
                    f" StringEquals on aws:ResourceTag/{OWNED}<cluster> or aws:RequestTag/{OWNED}<cluster>"
                )


@RULES.rule("karpenter-can-finish", types=[ROLE], whole_stack=True)
def karpenter_can_finish(resource: Resource, stack: Stack) -> Iterator[str]:
    """Karpenter may do what the finalizer of its node classes needs, or `destroy` waits for ever."""
    if KARPENTER not in service_accounts(resource):
        return
    allowed = [statement for policy in policies_of(resource, stack) for statement in grants(policy)]
    missing = [action for action in FINALIZER if not any(covers(statement, action) for statement in allowed)]
    if missing:
        yield f"its policies lack {', '.join(missing)}; they must allow them"


def _unread(role: Resource, stack: Stack) -> Iterator[str]:
    """The policies of a role that no rule can read."""
    for name in (*attached_by_itself(role), *attached_elsewhere(role, stack)):
        yield f"policy {name} has no document in the stack; it must be a Policy resource of its own"


def _bounded(statement: Mapping[str, Any]) -> bool:
    """Whether a statement reads, names its resources, asks for the cluster's tag, or refers to parts of a launch."""
    if all(action.partition(":")[2].startswith(READING) for action in actions(statement)):
        return True
    if not any(has_wildcard(target) for target in targets(statement)):
        return True
    return asks_for_tags(statement, OWNED) or refers_to_parts_of_a_launch(statement)


def _under_a_prefix(path: str) -> bool:
    """Whether a path of a bucket, with wildcards, begins with a directory that has a name."""
    first, separator, _ = path.partition("/")
    return bool(first and separator) and not has_wildcard(first)


def _lists_a_prefix(statement: Mapping[str, Any]) -> bool:
    """Whether a statement lists what is under named prefixes alone."""
    found = [
        values
        for operator, key, values in conditions(statement)
        if operator in ("StringEquals", "StringLike") and key.lower() == "s3:prefix"
    ]
    return any(
        values and all(value.strip("/") and not has_wildcard(value.partition("/")[0]) for value in values)
        for values in found
    )
