"""What AWS services may do: assume a role, use a key. The stack's trust and key policies decide."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from moto.iam.models import iam_backends

from local.aws.account import ACCOUNT_ID, PARTITION
from local.aws.identity import policy_documents
from local.aws.policy import Request, as_list, evaluate, like, statement_applies

Context = Mapping[str, tuple[str, ...]]


def _names(statement: dict[str, Any], service: str) -> bool:
    principal = statement.get("Principal")
    if principal == "*":
        return True
    services = as_list(principal.get("Service")) if isinstance(principal, dict) else []
    return any(like(str(name), service) for name in services)


def lets_service(document: Any, service: str, action: str, context: Context) -> bool:
    """Return whether a trust or key policy allows a service an action: an explicit Deny wins, then any Allow."""
    parsed = json.loads(document) if isinstance(document, str) else document
    effects = {
        statement.get("Effect")
        for statement in as_list(parsed.get("Statement"))
        if _names(statement, service) and statement_applies(statement, Request(action, None, context))
    }
    return "Allow" in effects and "Deny" not in effects


def role_for(arn: str | None) -> Any | None:
    """Return the role of an ARN, or None."""
    roles = iam_backends[ACCOUNT_ID][PARTITION].roles.values()
    return next((role for role in roles if role.arn == arn), None)


def role_grants(role: Any, action: str, resource: str, context: Context | None = None) -> bool:
    """Return whether the role's own policies grant an action on a resource."""
    return evaluate(policy_documents(role), Request(action, resource, context or {})).allowed
