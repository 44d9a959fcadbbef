"""Rules for what a policy may grant, whoever has it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from components.documents import checkpoints
from trainyard.policies.bounds import equal, has_wildcard, is_bounded, is_everything, is_whole_kind, matches
from trainyard.policies.documents import (
    POLICY,
    ROLE_POLICY,
    actions,
    conditions,
    covers,
    grants,
    label,
    targets,
)
from trainyard.policies.model import Resource, Rules, Stack

RULES: Final = Rules()

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
# Says nothing but names.
HARMLESS_ON_A_KIND: Final = ("iam:GetInstanceProfile",)
# What a role of ours may do with IAM: nothing by which it could get more rights than it has.
IAM_ACTIONS: Final = (
    "iam:AddRoleToInstanceProfile",
    "iam:CreateInstanceProfile",
    "iam:DeleteInstanceProfile",
    "iam:Get*",
    "iam:List*",
    "iam:PassRole",
    "iam:RemoveRoleFromInstanceProfile",
    "iam:TagInstanceProfile",
    "iam:UntagInstanceProfile",
)
PASSED_TO: Final = ("ec2.amazonaws.com", "ec2.amazonaws.com.cn")
# What a role of ours may do with what keeps data, by service: nothing that deletes or opens it, or ends its key.
# Checkpoints are deleted all the time, of which a run keeps the newest; the bucket keeps versions.
DELETING: Final = "s3:DeleteObject"
DATA_ACTIONS: Final = {
    "s3": ("s3:AbortMultipartUpload", DELETING, "s3:Get*", "s3:List*", "s3:PutObject"),
    "fsx": ("fsx:Describe*", "fsx:List*"),
    "ecr": ("ecr:BatchCheck*", "ecr:BatchGet*", "ecr:Describe*", "ecr:Get*", "ecr:List*"),
    "kms": (
        "kms:CreateGrant",
        "kms:Decrypt",
        "kms:Describe*",
        "kms:Encrypt",
        "kms:GenerateDataKey*",
        "kms:Get*",
        "kms:List*",
        "kms:ReEncrypt*",
    ),
}
# A grant that a service of AWS makes for what it does for us, such as attaching a volume.
OF_A_SERVICE: Final = ("Bool", "kms:GrantIsForAWSResource", ["true"])


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
            if has_wildcard(action):
                yield f"policy {label(statement)} allows {action}; it must name each action"


@RULES.rule(
    "iam-no-wildcard-resource",
    *("CKV_AWS_288", "CKV_AWS_289", "CKV_AWS_290", "CKV_AWS_355", "CKV2_AWS_40"),
    types=[POLICY, ROLE_POLICY],
)
def iam_no_wildcard_resource(resource: Resource, _stack: Stack) -> Iterator[str]:
    """Only actions that no resource can be named for are allowed on all, and in the stack's region alone."""
    for statement in grants(resource):
        where = f"policy {label(statement)}"
        if "NotResource" in statement:
            yield f"{where} has NotResource; it must name the resources"
        elif not targets(statement):
            yield f"{where} has no Resource; it must name the resources"
        anonymous = [each for each in actions(statement) if not matches(each, (*REGIONAL, *WORLDWIDE))]
        for target in targets(statement):
            if is_everything(target):
                for action in anonymous:
                    yield f"{where} allows {action} on {target}; it must name resources"
                if equal(statement, "aws:RequestedRegion"):
                    continue
                for action in actions(statement):
                    if matches(action, REGIONAL):
                        yield (
                            f"{where} allows {action} on {target} in every region; it must have a condition"
                            " StringEquals aws:RequestedRegion"
                        )
            elif is_whole_kind(target) and not is_bounded(statement):
                for action in anonymous:
                    if not matches(action, HARMLESS_ON_A_KIND):
                        yield (
                            f"{where} allows {action} on {target}; it must name resources, or have a condition"
                            " StringEquals on aws:ResourceTag or aws:RequestTag"
                        )


@RULES.rule("pass-role-bounded", "CKV_AWS_286", "CKV_AWS_289", types=[POLICY, ROLE_POLICY])
def pass_role_bounded(resource: Resource, _stack: Stack) -> Iterator[str]:
    """Roles are passed on by name and to EC2 alone."""
    for statement in grants(resource):
        if not covers(statement, "iam:PassRole"):
            continue
        if any(has_wildcard(target) for target in targets(statement)):
            yield f"policy {label(statement)} passes {', '.join(targets(statement))}; it must name the role"
        services = equal(statement, "iam:PassedToService")
        if not services or set(services) - set(PASSED_TO):
            who = ", ".join(services) or "any service"
            yield (
                f"policy {label(statement)} passes a role to {who}; StringEquals iam:PassedToService must be"
                " ec2.amazonaws.com"
            )


@RULES.rule("iam-no-escalation", "CKV_AWS_286", "CKV_AWS_289", "CKV2_AWS_40", types=[POLICY, ROLE_POLICY])
def iam_no_escalation(resource: Resource, _stack: Stack) -> Iterator[str]:
    """No role changes rights of others or its own, and none takes another role that is not named."""
    for statement in grants(resource):
        for action in actions(statement):
            if action.lower().startswith("iam:") and not matches(action, IAM_ACTIONS):
                yield f"policy {label(statement)} allows {action}, which gives rights; it must not"
            if matches(action, ["sts:AssumeRole*"]) and any(
                has_wildcard(each) for each in targets(statement)
            ):
                yield f"policy {label(statement)} takes {', '.join(targets(statement))}; it must name the role"


@RULES.rule("no-delete-of-data", "CKV_AWS_288", types=[POLICY, ROLE_POLICY])
def no_delete_of_data(resource: Resource, _stack: Stack) -> Iterator[str]:
    """No role deletes data but checkpoints, opens what keeps it, ends a key, or reaches buckets that are not named."""
    for statement in grants(resource):
        where = f"policy {label(statement)}"
        wanted = [(action, action.lower().partition(":")[0]) for action in actions(statement)]
        for action, service in wanted:
            if not matches(action, DATA_ACTIONS.get(service, ["*"])):
                yield f"{where} allows {action}; of {service} it must have {', '.join(DATA_ACTIONS[service])} alone"
        if covers(statement, "kms:CreateGrant") and OF_A_SERVICE not in conditions(statement):
            yield f"{where} lets a key be granted on; it must have a condition Bool kms:GrantIsForAWSResource true"
        for target in targets(statement) if "s3" in [service for _, service in wanted] else ():
            if is_everything(target) or has_wildcard(target.partition(":::")[2].partition("/")[0]):
                yield f"{where} reaches {target}; it must name the bucket"
            elif covers(statement, DELETING) and not _of_checkpoints(target):
                yield f"{where} deletes {target}; it must end in /{checkpoints.PREFIX}/*"


def _of_checkpoints(target: str) -> bool:
    """Whether an ARN, with wildcards, is of objects of a bucket that are checkpoints."""
    return target.partition(":::")[2].partition("/")[2].startswith(f"{checkpoints.PREFIX}/")
