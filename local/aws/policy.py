"""Evaluation of IAM policy documents.

https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_evaluation-logic.html

It is pure: it takes documents and a request, and returns a decision. Evaluated condition operators: String* and Arn*
(with `ForAllValues:`, `ForAnyValue:` and `IfExists`), Bool and Null. Evaluated condition keys: those in `DERIVED_KEYS`.
A statement with another key neither allows nor denies, and the decision names the key.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

# Condition keys that `local.aws.permissions` derives from a request. A final slash means every tag key.
DERIVED_KEYS = (
    "aws:requestedregion",
    "aws:requesttag/",
    "aws:resourcetag/",
    "ec2:resourcetag/",
    "iam:resourcetag/",
    "aws:tagkeys",
    "aws:principalarn",
    "aws:principalaccount",
    "aws:principaltype",
    "aws:resourceaccount",
    # The local endpoint is plain HTTP on loopback. It counts as secure, so that the usual "deny plain HTTP" statement
    # behaves as on AWS, where every SDK call uses TLS.
    "aws:securetransport",
    "ec2:createaction",
    "ec2:instancetype",
    "iam:passedtoservice",
    "s3:prefix",
    "eks:clustername",
)


@dataclass(frozen=True)
class Request:
    """A request to evaluate.

    Attributes:
        resource: An ARN, "*" for an action without resource-level permissions, or None if the request does not show the
            resource. With None, every `Resource` element matches.
        context: Condition keys in lower case, with their values.
    """

    action: str
    resource: str | None
    context: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Decision:
    """The result of an evaluation.

    `explicit` is true if a Deny statement decided. `unknown_keys` are condition keys that were not evaluated.
    """

    allowed: bool
    explicit: bool = False
    unknown_keys: frozenset[str] = frozenset()


def as_list(value: Any) -> list[Any]:
    """Return an element of a policy as a list. IAM writes lists of one element without brackets."""
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


@functools.lru_cache(maxsize=4096)
def _glob(pattern: str) -> re.Pattern[str]:
    parts = (".*" if c == "*" else "." if c == "?" else re.escape(c) for c in pattern)
    return re.compile("".join(parts), re.DOTALL)


def like(pattern: str, value: str) -> bool:
    """Return whether a text matches a pattern with the wildcards * and ? of IAM."""
    return _glob(pattern).fullmatch(value) is not None


def evaluate(documents: Iterable[Mapping[str, Any]], request: Request) -> Decision:
    """Decide as IAM does for identity-based policies: an explicit Deny wins, then any Allow, else implicit deny."""
    allowed = False
    unknown: set[str] = set()
    for document in documents:
        for statement in as_list(document.get("Statement")):
            if not statement_applies(statement, request, unknown):
                continue
            if statement.get("Effect") == "Deny":
                return Decision(False, explicit=True, unknown_keys=frozenset(unknown))
            allowed = allowed or statement.get("Effect") == "Allow"
    return Decision(allowed, unknown_keys=frozenset(unknown))


def evaluate_for(document: Any, kind: str, principals: Iterable[str], request: Request) -> Decision:
    """Decide as `evaluate` by the statements of a resource-based policy that name one of the principals.

    https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_elements_principal.html

    Args:
        document: The policy, also as JSON; None or "" for none.
        kind: The kind of the principals: AWS, Service or Federated. "*" names all but Federated ones.
        principals: The names by which a statement may name the caller. A statement with NotPrincipal names nobody here.
        request: The request. In a trust policy and a key policy, it has no resource.
    """
    parsed = json.loads(document or "{}") if isinstance(document, str | None) else document
    wanted = {*principals} if kind == "Federated" else {"*", *principals}

    def applies(statement: Mapping[str, Any]) -> bool:
        named = statement.get("Principal") or {}
        if not isinstance(named, Mapping):  # "*" is short for {"AWS": "*"}
            named = {"AWS": named}
        everyone = "*" in wanted and "*" in as_list(named.get("AWS"))
        return everyone or not wanted.isdisjoint(as_list(named.get(kind)))

    return evaluate([{"Statement": list(filter(applies, as_list(parsed.get("Statement"))))}], request)


def statement_applies(statement: Mapping[str, Any], request: Request, unknown: set[str]) -> bool:
    """Return whether a statement's action, resource and conditions match. Add unknown keys to `unknown`."""
    action = request.action.lower()
    if "NotAction" in statement:
        if any(like(str(p).lower(), action) for p in as_list(statement["NotAction"])):
            return False
    elif not any(like(str(p).lower(), action) for p in as_list(statement.get("Action"))):
        return False
    if request.resource is not None:
        if "NotResource" in statement:
            if any(like(str(p), request.resource) for p in as_list(statement["NotResource"])):
                return False
        elif "Resource" in statement and not any(
            like(str(p), request.resource) for p in as_list(statement["Resource"])
        ):
            return False
    return conditions_hold(statement.get("Condition") or {}, request.context, unknown)


def conditions_hold(
    conditions: Mapping[str, Mapping[str, Any]], context: Mapping[str, tuple[str, ...]], unknown: set[str]
) -> bool:
    """Return whether every operator and every key of a Condition element holds."""
    for operator, keys in conditions.items():
        for key, expected in keys.items():
            name = key.lower()
            if name not in context and not _derived(name):
                unknown.add(key)
                return False
            if not _holds(operator, tuple(str(e) for e in as_list(expected)), context.get(name)):
                return False
    return True


def _derived(name: str) -> bool:
    return any(name == known or (known.endswith("/") and name.startswith(known)) for known in DERIVED_KEYS)


def _holds(operator: str, expected: tuple[str, ...], actual: tuple[str, ...] | None) -> bool:
    quantifier, _, base = operator.rpartition(":")
    if_exists = base.endswith("IfExists")
    base = base.removesuffix("IfExists")
    if base == "Null":
        return (actual is None) == (expected[0].lower() == "true")
    compare = _OPERATORS.get(base)
    if compare is None:
        return False  # an operator that is not evaluated grants nothing
    negated = "Not" in base
    if actual is None or (quantifier == "ForAllValues" and not actual):
        return if_exists or quantifier == "ForAllValues" or (negated and quantifier != "ForAnyValue")

    def one(value: str) -> bool:
        # A negated operator holds when no listed value matches, any other when one does.
        return (
            all(compare(e, value) for e in expected) if negated else any(compare(e, value) for e in expected)
        )

    return all(one(v) for v in actual) if quantifier != "ForAnyValue" else any(one(v) for v in actual)


_OPERATORS: dict[str, Callable[[str, str], bool]] = {
    "StringEquals": lambda e, v: e == v,
    "StringNotEquals": lambda e, v: e != v,
    "StringEqualsIgnoreCase": lambda e, v: e.lower() == v.lower(),
    "StringNotEqualsIgnoreCase": lambda e, v: e.lower() != v.lower(),
    "StringLike": like,
    "StringNotLike": lambda e, v: not like(e, v),
    "ArnEquals": like,
    "ArnLike": like,
    "ArnNotEquals": lambda e, v: not like(e, v),
    "ArnNotLike": lambda e, v: not like(e, v),
    "Bool": lambda e, v: e.lower() == v.lower(),
}
