"""Rules for IAM: who may take a role, and what a policy may grant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, Final

from components.shared.contract import KARPENTER_NAMESPACE, TRAINER_SERVICE_ACCOUNT, TRAINING_NAMESPACE
from infra.policies.documents import (
    ATTACHMENT,
    POLICY,
    POLICY_ATTACHMENT,
    ROLE,
    ROLE_POLICY,
    STANDING,
    actions,
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
from infra.policies.model import Resource, Rules, Stack

RULES: Final = Rules()

TRAINER: Final = f"system:serviceaccount:{TRAINING_NAMESPACE}:{TRAINER_SERVICE_ACCOUNT}"
KARPENTER: Final = f"system:serviceaccount:{KARPENTER_NAMESPACE}:karpenter"
AUDIENCE: Final = "sts.amazonaws.com"

# Actions that no resource can be named for; those of a region are to be bound to it. Service Authorization Reference,
# https://docs.aws.amazon.com/service-authorization/latest/reference/, 2026-11.
REGIONAL: Final = (
    "ec2:Describe*",
    "fsx:Describe*",
    "ecr:GetAuthorizationToken",
    "logs:DescribeLogGroups",
    "sts:GetCallerIdentity",
)
# The price list and IAM have no region of ours. Karpenter publishes its second one so, too.
WORLDWIDE: Final = ("pricing:GetProducts", "iam:ListInstanceProfiles")
READING: Final = ("Describe", "Get", "List")
# What a launch only refers to has no tags of ours; what it makes has.
REFERRED_TO_IN_A_LAUNCH: Final = (
    "image",
    "snapshot",
    "security-group",
    "subnet",
    "capacity-reservation",
    "placement-group",
)
LAUNCHING: Final = ("ec2:RunInstances", "ec2:CreateFleet")
TAGS: Final = ("aws:ResourceTag/", "aws:RequestTag/")
# Without these the finalizer of an EC2NodeClass never clears.
FINALIZER: Final = (
    "iam:ListInstanceProfiles",
    "iam:GetInstanceProfile",
    "iam:RemoveRoleFromInstanceProfile",
    "iam:DeleteInstanceProfile",
)
# What a training may do with objects: nothing that deletes.
OBJECT_ACTIONS: Final = (
    "s3:AbortMultipartUpload",
    "s3:GetObject",
    "s3:ListMultipartUploadParts",
    "s3:PutObject",
)
TRAINER_ACTIONS: Final = (*OBJECT_ACTIONS, "s3:ListBucket", "kms:Decrypt", "kms:GenerateDataKey")


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


@RULES.rule("trust-not-anybody", "CKV_AWS_60", "CKV_AWS_61", types=[ROLE])
def trust_not_anybody(resource: Resource, _stack: Stack) -> Iterator[str]:
    """Nobody but a named service or provider takes a role."""
    for statement in grants(resource, "assumeRolePolicy"):
        for principal in principals(statement, "AWS"):
            if principal == "*" or principal.endswith(":root") or principal.isdigit():
                yield f"assumeRolePolicy lets {principal} in; it must name a service, a provider or one role"


@RULES.rule("role-no-full-access", "CKV_AWS_274", "CKV2_AWS_56", "CIS EKS 5.1.3", types=[ATTACHMENT])
def role_no_full_access(resource: Resource, _stack: Stack) -> Iterator[str]:
    """No role has one of AWS' policies that grant everything of a service."""
    if not resource.has("policyArn"):
        return
    name = str(resource.at("policyArn")).rpartition("/")[2]
    if name.endswith(("FullAccess", "AdministratorAccess", "PowerUserAccess")):
        yield f"policyArn is {name}; it must be a policy of the actions that are needed"


@RULES.rule(
    "iam-no-wildcard-action",
    "CKV_AWS_62",
    "CKV_AWS_63",
    "CKV_AWS_286",
    "CKV_AWS_287",
    types=[POLICY, ROLE_POLICY],
)
def iam_no_wildcard_action(resource: Resource, _stack: Stack) -> Iterator[str]:
    """Policies name each action."""
    for statement in grants(resource):
        if "NotAction" in statement:
            yield f"policy {label(statement)} has NotAction; it must name what is allowed"
        for action in actions(statement):
            if "*" in action or "?" in action:
                yield f"policy {label(statement)} allows {action}; it must name each action"


@RULES.rule(
    "iam-no-wildcard-resource",
    *("CKV_AWS_288", "CKV_AWS_289", "CKV_AWS_290", "CKV_AWS_355", "CKV2_AWS_40"),
    types=[POLICY, ROLE_POLICY],
)
def iam_no_wildcard_resource(resource: Resource, _stack: Stack) -> Iterator[str]:
    """Only actions that no resource can be named for are allowed on all, and in the stack's region alone."""
    for statement in grants(resource):
        if "NotResource" in statement:
            yield f"policy {label(statement)} has NotResource; it must name the resources"
        if "*" not in targets(statement):
            continue
        in_region = any(
            key == "aws:RequestedRegion" and op == "StringEquals" for op, key, _ in conditions(statement)
        )
        for action in actions(statement):
            if _matches(action, WORLDWIDE):
                continue
            if not _matches(action, REGIONAL):
                yield f"policy {label(statement)} allows {action} on *; it must name resources"
            elif not in_region:
                yield (
                    f"policy {label(statement)} allows {action} on * in every region; it must have a condition"
                    " StringEquals aws:RequestedRegion"
                )


@RULES.rule("pass-role-bounded", "CKV_AWS_286", "CKV_AWS_289", types=[POLICY, ROLE_POLICY])
def pass_role_bounded(resource: Resource, _stack: Stack) -> Iterator[str]:
    """Roles are passed on by name and to EC2 alone."""
    for statement in grants(resource):
        if not covers(statement, "iam:PassRole"):
            continue
        if any("*" in target for target in targets(statement)):
            yield f"policy {label(statement)} passes {', '.join(targets(statement))}; it must name the role"
        services = [
            value
            for _, key, values in conditions(statement)
            if key == "iam:PassedToService"
            for value in values
        ]
        if not services or any(not service.startswith("ec2.amazonaws.com") for service in services):
            who = ", ".join(services) or "any service"
            yield f"policy {label(statement)} passes a role to {who}; it must be ec2.amazonaws.com"


@RULES.rule("no-delete-of-data", "CKV_AWS_288", types=[POLICY, ROLE_POLICY])
def no_delete_of_data(resource: Resource, _stack: Stack) -> Iterator[str]:
    """No role deletes objects, changes a bucket, or reaches buckets that are not named."""
    for statement in grants(resource):
        wanted = [action for action in actions(statement) if action.lower().startswith("s3:")]
        for action in wanted:
            verb = action.partition(":")[2]
            if verb.startswith(("Delete", "PutBucket", "PutLifecycle", "PutEncryption")):
                yield f"policy {label(statement)} allows {action}; data is removed by the bucket's lifecycle alone"
        for target in targets(statement) if wanted else ():
            if "*" in target.partition(":::")[2].partition("/")[0] or target == "*":
                yield f"policy {label(statement)} reaches {target}; it must name the bucket"


@RULES.rule("trainer-role-narrow", "CKV_AWS_290", "CKV_AWS_355", types=[ROLE], whole_stack=True)
def trainer_role_narrow(resource: Resource, stack: Stack) -> Iterator[str]:
    """The trainer reads and writes under one prefix of one bucket with one key, and nothing else."""
    if TRAINER not in service_accounts(resource):
        return
    yield from _unread(resource, stack)
    for policy in policies_of(resource, stack):
        for statement in grants(policy):
            where = f"policy {policy.name} {label(statement)}"
            for action in actions(statement):
                if action not in TRAINER_ACTIONS:
                    yield f"{where} allows {action}; it must be one of {', '.join(TRAINER_ACTIONS)}"
            if any(covers(statement, action) for action in OBJECT_ACTIONS):
                for target in targets(statement):
                    if target.partition(":::")[2].count("/") < 2:
                        yield f"{where} reaches {target}; it must end in /<prefix>/*"
            if covers(statement, "s3:ListBucket") and "s3:prefix" not in [
                key for _, key, _ in conditions(statement)
            ]:
                yield f"{where} lists the whole bucket; it must have a condition on s3:prefix"
            if covers(statement, "kms:Decrypt") and any("*" in target for target in targets(statement)):
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
                    " on aws:ResourceTag or aws:RequestTag"
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


def _matches(action: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(action, pattern) for pattern in patterns)


def _bounded(statement: Mapping[str, Any]) -> bool:
    """Whether a statement reads alone, names its resources, asks for tags, or refers to parts of a launch."""
    if all(action.partition(":")[2].startswith(READING) for action in actions(statement)):
        return True
    if not any("*" in target for target in targets(statement)):
        return True
    if any(key.startswith(TAGS) for _, key, _ in conditions(statement)):
        return True
    kinds = [target.rpartition(":")[2].partition("/")[0] for target in targets(statement)]
    return set(actions(statement)) <= set(LAUNCHING) and set(kinds) <= set(REFERRED_TO_IN_A_LAUNCH)
