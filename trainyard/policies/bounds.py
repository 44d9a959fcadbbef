"""How far a statement of an IAM policy reaches: its targets, and the conditions that bound them. Pure.

Conditions add up, so that one that bounds is enough; but only an operator that compares for equality does: a negated
one (StringNotEquals, Null) lets in all that it does not name, and one with IfExists or ForAllValues what lacks the key.
https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_elements_condition_operators.html
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, Final

from trainyard.policies.documents import actions, conditions, targets

# arn:partition:service:region:account:resource
ARN_PARTS: Final = 6
TAGS: Final = ("aws:resourcetag/", "aws:requesttag/")
# A tag can be put on what is just being made, and on nothing else.
WHEN_IT_IS_MADE: Final = "ec2:createaction"
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


def has_wildcard(text: str) -> bool:
    """Whether a text stands for several."""
    return "*" in text or "?" in text


def matches(action: str, patterns: Iterable[str]) -> bool:
    """Whether an action is one of these; case counts for nothing in actions."""
    return any(fnmatchcase(action.lower(), pattern.lower()) for pattern in patterns)


def is_everything(target: str) -> bool:
    """Whether a target is everything, or everything of a service, however it is written."""
    parts = target.split(":", ARN_PARTS - 1)
    if len(parts) < ARN_PARTS:
        return has_wildcard(target)
    return has_wildcard(parts[2]) or has_wildcard(re.split("[/:]", parts[5])[0])


def is_whole_kind(target: str) -> bool:
    """Whether a target is everything of one kind, such as every role. A bucket is no kind."""
    parts = target.split(":", ARN_PARTS - 1)
    if len(parts) < ARN_PARTS or parts[2] == "s3":
        return False
    _, *name = re.split("[/:]", parts[5], maxsplit=1)
    return bool(name) and not name[0].strip("*?/:")


def equal(statement: Mapping[str, Any], key: str) -> list[str]:
    """The values of which a condition key, whose case counts for nothing, must have one; none where it need not."""
    return [
        value
        for operator, name, values in conditions(statement)
        if operator == "StringEquals" and name.lower() == key.lower()
        for value in values
    ]


def asks_for_tags(statement: Mapping[str, Any], *prefixes: str) -> bool:
    """Whether a statement is bound to a tag that has one value; `prefixes` are the tags' names' beginnings."""
    wanted = tuple(f"{kind}{prefix}" for kind in TAGS for prefix in prefixes or ("",))
    return any(
        operator == "StringEquals" and key.lower().startswith(wanted)
        for operator, key, _ in conditions(statement)
    )


def is_bounded(statement: Mapping[str, Any]) -> bool:
    """Whether what a statement reaches of a kind is bounded by tags, or by what a launch may refer to."""
    if asks_for_tags(statement) or equal(statement, WHEN_IT_IS_MADE):
        return True
    return refers_to_parts_of_a_launch(statement)


def refers_to_parts_of_a_launch(statement: Mapping[str, Any]) -> bool:
    """Whether a statement lets a launch refer to what it does not make."""
    kinds = {target.rpartition(":")[2].partition("/")[0] for target in targets(statement)}
    return set(actions(statement)) <= set(LAUNCHING) and kinds <= set(REFERRED_TO_IN_A_LAUNCH)
