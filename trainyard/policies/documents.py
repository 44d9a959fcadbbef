"""IAM policy documents as rules read them. Pure.

https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_grammar.html
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, Final

from trainyard.policies.document_form import PRINCIPALS, faults, parsed
from trainyard.policies.model import Resource, Stack

JsonObject = dict[str, Any]

POLICY: Final = "aws:iam/policy:Policy"
ROLE: Final = "aws:iam/role:Role"
ROLE_POLICY: Final = "aws:iam/rolePolicy:RolePolicy"
ATTACHMENT: Final = "aws:iam/rolePolicyAttachment:RolePolicyAttachment"
# What lasts and signs by itself, and what gives it rights.
STANDING: Final = (
    "aws:iam/accessKey:AccessKey",
    "aws:iam/group:Group",
    "aws:iam/groupMembership:GroupMembership",
    "aws:iam/groupPolicy:GroupPolicy",
    "aws:iam/groupPolicyAttachment:GroupPolicyAttachment",
    "aws:iam/serviceSpecificCredential:ServiceSpecificCredential",
    "aws:iam/signingCertificate:SigningCertificate",
    "aws:iam/sshKey:SshKey",
    "aws:iam/user:User",
    "aws:iam/userGroupMembership:UserGroupMembership",
    "aws:iam/userLoginProfile:UserLoginProfile",
    "aws:iam/userPolicy:UserPolicy",
    "aws:iam/userPolicyAttachment:UserPolicyAttachment",
)
# Attaches to users, groups and roles, and takes the policy from all others of the account.
POLICY_ATTACHMENT: Final = "aws:iam/policyAttachment:PolicyAttachment"


def listed(value: Any) -> list[Any]:
    """One value or a list of them, as a list."""
    if value is None:
        return []
    return list(value) if isinstance(value, list) else [value]


def statements(resource: Resource, name: str) -> list[JsonObject]:
    """The statements of the document in a property; none where it has none, or one that can't be read.

    Raises:
        Undecided: the document is not known.
    """
    document = parsed(resource.known(name))
    if any(faults(document)):
        return []  # policy-document-readable tells it
    return [dict(each) for each in listed(document["Statement"])]


def grants(resource: Resource, name: str = "policy") -> Iterator[JsonObject]:
    """The statements that allow something."""
    return (each for each in statements(resource, name) if each.get("Effect") == "Allow")


def actions(statement: Mapping[str, Any]) -> list[str]:
    """The actions of a statement."""
    return [str(each) for each in listed(statement.get("Action"))]


def targets(statement: Mapping[str, Any]) -> list[str]:
    """The resources of a statement."""
    return [str(each) for each in listed(statement.get("Resource"))]


def conditions(statement: Mapping[str, Any]) -> list[tuple[str, str, list[str]]]:
    """Operator, key and values of each condition."""
    found = []
    for operator, keys in (statement.get("Condition") or {}).items():
        for key, values in keys.items():
            found.append((str(operator), str(key), [str(value) for value in listed(values)]))
    return found


def principals(statement: Mapping[str, Any], kind: str) -> list[str]:
    """The principals of a kind (AWS, Service, Federated); `*` for anybody is one of kind AWS."""
    principal = statement.get("Principal")
    if principal == "*":
        return ["*"] if kind == "AWS" else []
    return [str(each) for each in listed((principal or {}).get(kind))]


def anybody(statement: Mapping[str, Any]) -> list[str]:
    """Those of a statement's principals who are nobody in particular."""
    found = [
        each for kind in PRINCIPALS for each in principals(statement, kind) if "*" in each or "?" in each
    ]
    return [*found, *(["everybody but some"] if "NotPrincipal" in statement else [])]


def covers(statement: Mapping[str, Any], action: str) -> bool:
    """Whether a statement's actions include this one; case counts for nothing in them."""
    return any(fnmatchcase(action.lower(), pattern.lower()) for pattern in actions(statement))


def label(statement: Mapping[str, Any]) -> str:
    """How a message names a statement."""
    return str(statement.get("Sid") or ", ".join(actions(statement)) or "a statement")


def service_accounts(role: Resource) -> list[str]:
    """The subjects (system:serviceaccount:<namespace>:<name>) that a role's trust names.

    Raises:
        Undecided: the trust is not known.
    """
    return [
        value
        for statement in grants(role, "assumeRolePolicy")
        for _, key, values in conditions(statement)
        if key.endswith(":sub")
        for value in values
    ]


def policies_of(role: Resource, stack: Stack) -> list[Resource]:
    """The policy resources of a role: inline ones and those that are attached."""
    inline = stack.pointing(role, ROLE_POLICY, "role")
    attached = [
        policy
        for attachment in stack.pointing(role, ATTACHMENT, "role")
        for policy in stack.sources(attachment, "policyArn", POLICY)
    ]
    return [*inline, *attached]


def attached_elsewhere(role: Resource, stack: Stack) -> list[str]:
    """Names of the policies of a role whose documents no resource of the stack has: AWS' own, and given ones.

    Raises:
        Undecided: which one it is is not known.
    """
    return [
        _policy_name(attachment.at("policyArn", default="?"))
        for attachment in stack.pointing(role, ATTACHMENT, "role")
        if not stack.sources(attachment, "policyArn", POLICY)
    ]


def attached_by_itself(role: Resource) -> list[str]:
    """Names of the policies that a role resource itself has: inline ones, and those in its list of attached ones.

    Raises:
        Undecided: they are not known.
    """
    inline = [str(each.get("name") or "inline") for each in role.known("inlinePolicies", default=[])]
    return [*inline, *(_policy_name(each) for each in role.known("managedPolicyArns", default=[]))]


def _policy_name(arn: Any) -> str:
    return str(arn).rpartition("/")[2]
