"""Read IAM policy documents for rules: statements, principals, and the scope of a statement. Pure.

https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_grammar.html
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, Final

from trainyard.policies.model import Resource, Stack, rows

POLICY: Final = "aws:iam/policy:Policy"
ROLE: Final = "aws:iam/role:Role"
ROLE_POLICY: Final = "aws:iam/rolePolicy:RolePolicy"
ATTACHMENT: Final = "aws:iam/rolePolicyAttachment:RolePolicyAttachment"

PRINCIPALS: Final = ("AWS", "CanonicalUser", "Federated", "Service")
# arn:partition:service:region:account:resource
ARN_PARTS: Final = 6
TAG_KEYS: Final = ("aws:resourcetag/", "aws:requesttag/")
# A launch refers to these resources and creates none of them. They don't have the tags of the cluster.
LAUNCH_REFERENCES: Final = frozenset(
    ("image", "snapshot", "security-group", "subnet", "capacity-reservation", "placement-group")
)
LAUNCH_ACTIONS: Final = frozenset(("ec2:RunInstances", "ec2:CreateFleet"))
WITHOUT_TLS: Final = ("Bool", "aws:SecureTransport", ["false"])


class Statement:
    """A statement of a policy document.

    Attributes:
        actions, targets: The values of Action and Resource.
        conditions: Operator, key and values of each condition.
    """

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self.fields = dict(fields)
        self.actions = [str(each) for each in rows(self.fields.get("Action"))]
        self.targets = [str(each) for each in rows(self.fields.get("Resource"))]
        self.conditions = [
            (str(operator), str(key), [str(value) for value in rows(values)])
            for operator, keys in (self.fields.get("Condition") or {}).items()
            for key, values in keys.items()
        ]

    def __str__(self) -> str:
        return str(self.fields.get("Sid") or ", ".join(self.actions) or "a statement")

    def principals(self, kind: str) -> list[str]:
        """Return the principals of a kind (AWS, Service, Federated). A bare `*` is of kind AWS."""
        principal = self.fields.get("Principal")
        if principal == "*":
            return ["*"] if kind == "AWS" else []
        return [str(each) for each in rows((principal or {}).get(kind))]

    def covers(self, *actions: str) -> bool:
        """Return whether one of these actions is included."""
        return any(matches(action, self.actions) for action in actions)

    def required(self, key: str) -> list[str]:
        """Return the values that a condition key must equal; none if it may have any value.

        Only StringEquals limits a key: negated operators admit all other values, and those with IfExists or
        ForAllValues admit requests without the key. IAM ignores the case of keys.
        https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_elements_condition_operators.html
        """
        return [
            value
            for operator, name, values in self.conditions
            if operator == "StringEquals" and name.lower() == key.lower()
            for value in values
        ]

    def requires_tag(self, prefix: str = "") -> bool:
        """Return whether one value of a tag is required, whose key has this prefix (lower case)."""
        keys = tuple(f"{kind}{prefix}" for kind in TAG_KEYS)
        return any(
            operator == "StringEquals" and key.lower().startswith(keys)
            for operator, key, _ in self.conditions
        )

    def is_launch_reference(self) -> bool:
        """Return whether it only allows a launch to refer to resources that the launch does not create."""
        kinds = {target.rpartition(":")[2].partition("/")[0] for target in self.targets}
        return LAUNCH_ACTIONS.issuperset(self.actions) and kinds <= LAUNCH_REFERENCES


def statements(resource: Resource, name: str = "policy") -> list[Statement]:
    """Return the statements of the document in a property; none if the property is not set.

    Raises:
        Undecided: the document is unknown.
        AttributeError, KeyError, TypeError, ValueError: it is not a policy document.
    """
    document = resource.resolved(name)
    if document is None:
        return []
    parsed = json.loads(document) if isinstance(document, str) else document
    return [Statement(each) for each in rows(parsed["Statement"])]


def grants(resource: Resource, name: str = "policy") -> Iterator[Statement]:
    """Return the statements that allow something; Raises as `statements`."""
    return (each for each in statements(resource, name) if each.fields.get("Effect") == "Allow")


def tls_denials(resource: Resource) -> Iterator[Statement]:
    """Return the statements of `policy` that deny everybody requests without TLS; Raises as `statements`."""
    for each in statements(resource):
        is_denied = each.fields.get("Effect") == "Deny" and "*" in each.principals("AWS")
        if is_denied and WITHOUT_TLS in each.conditions:
            yield each


def has_wildcard(text: str) -> bool:
    """Return whether a pattern matches more than itself."""
    return "*" in text or "?" in text


def matches(action: str, patterns: Iterable[str]) -> bool:
    """Return whether an action matches a pattern. IAM ignores the case of actions."""
    return any(fnmatchcase(action.lower(), pattern.lower()) for pattern in patterns)


def is_everything(target: str) -> bool:
    """Return whether a target is every resource, or every resource of a service."""
    parts = target.split(":", ARN_PARTS - 1)
    if len(parts) < ARN_PARTS:
        return has_wildcard(target)
    return has_wildcard(parts[2]) or has_wildcard(re.split("[/:]", parts[5])[0])


def is_whole_kind(target: str) -> bool:
    """Return whether a target is every resource of one kind, such as every role. A bucket is not a kind."""
    parts = target.split(":", ARN_PARTS - 1)
    if len(parts) < ARN_PARTS or parts[2] == "s3":
        return False
    _, *name = re.split("[/:]", parts[5], maxsplit=1)
    return bool(name) and not name[0].strip("*?/:")


def service_accounts(role: Resource) -> list[str]:
    """Return the subjects (system:serviceaccount:<namespace>:<name>) in a role's trust policy."""
    return [
        value
        for statement in grants(role, "assumeRolePolicy")
        for _, key, values in statement.conditions
        if key.endswith(":sub")
        for value in values
    ]


def policies_of(role: Resource, stack: Stack) -> list[Resource]:
    """Return the policy resources of a role: inline ones and attached ones."""
    attached = [
        policy
        for attachment in stack.pointing(role, ATTACHMENT, "role")
        for policy in stack.sources(attachment, "policyArn", POLICY)
    ]
    return [*stack.pointing(role, ROLE_POLICY, "role"), *attached]


def foreign_policies(role: Resource, stack: Stack) -> list[str]:
    """Return the names of the attached policies of a role whose document no resource of the stack has."""
    return [
        str(attachment.at("policyArn", default="?")).rpartition("/")[2]
        for attachment in stack.pointing(role, ATTACHMENT, "role")
        if not stack.sources(attachment, "policyArn", POLICY)
    ]
