"""The identity of a caller: an IAM user, a role's session, or an AWS service that a trust or key policy allows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from moto.core.utils import utcnow
from moto.iam.models import iam_backends
from moto.sts.models import sts_backends

from local.aws.account import ACCOUNT_ID, PARTITION
from local.aws.policy import Request, evaluate, evaluate_for


@dataclass(frozen=True)
class Identity:
    """A caller. `arn` is that of GetCallerIdentity; `role` is moto's role of a session, or `user` is moto's user."""

    arn: str
    user_id: str
    access_key_id: str
    secret_access_key: str
    role: Any = None
    user: Any = None
    session_policy: str | None = None

    @property
    def principal_arn(self) -> str:
        """The user's ARN, or the role's for a session, as an EKS access entry names it."""
        return str(self.role.arn) if self.role is not None else self.arn


calling: ContextVar[Identity | None] = ContextVar("calling", default=None)
"""Who makes the call that this thread answers."""


class UnknownKey(Exception):
    """The access key does not exist, or its session has expired."""


def access_key_id(headers: Any, query: dict[str, Any]) -> str | None:
    """Return the access key that signed a request, from the Authorization header or query; None if unsigned."""
    authorization = headers.get("Authorization", "")
    if "Credential=" in authorization:
        return str(authorization.split("Credential=", 1)[1].split("/", 1)[0])
    credential = query.get("X-Amz-Credential")
    if credential:
        text = credential[0] if isinstance(credential, list) else credential
        return str(text).split("/", 1)[0]
    return None


def find(key_id: str) -> Identity:
    """Return the identity of an access key.

    Raises:
        UnknownKey: The key does not exist, or its session has expired.
    """
    iam = iam_backends[ACCOUNT_ID][PARTITION]
    key = iam.access_keys.get(key_id)
    if key is not None and key.user_name is not None and key.status == "Active":
        user = iam.get_user(key.user_name)
        return Identity(user.arn, user.id, key_id, key.secret_access_key, user=user)
    session = sts_backends[ACCOUNT_ID][PARTITION].get_assumed_role_from_access_key(key_id)
    if session is None or session.expiration < utcnow():
        raise UnknownKey(key_id)
    role = role_for(session.role_arn)
    if role is None:  # the role was deleted after it had been assumed
        raise UnknownKey(key_id)
    return Identity(
        session.arn,
        session.user_id,
        key_id,
        session.secret_access_key,
        role=role,
        session_policy=session.policy,
    )


def policy_documents(principal: Any) -> list[dict[str, Any]]:
    """Return the documents of the inline and attached policies of a role, a group, or a user."""
    documents = [json.loads(text) for text in list(principal.policies.values())]
    for policy in list(principal.managed_policies.values()):
        version = next(v for v in policy.versions if v.is_default)
        documents.append(json.loads(version.document))
    return documents


def documents(who: Identity) -> list[dict[str, Any]]:
    """Return the documents that apply to a role's session, or to a user and the groups of the user."""
    if who.role is not None:
        return policy_documents(who.role)
    groups = list(iam_backends[ACCOUNT_ID][PARTITION].groups.values())
    own = [who.user, *(group for group in groups if who.user in group.users)]
    return [document for each in own for document in policy_documents(each)]


Context = Mapping[str, tuple[str, ...]]


def lets_service(document: Any, service: str, action: str, context: Context) -> bool:
    """Return whether a trust or key policy allows a service an action."""
    return evaluate_for(document, "Service", [service], Request(action, None, context)).allowed


def role_for(arn: str | None) -> Any | None:
    """Return the role of an ARN, or None."""
    roles = list(iam_backends[ACCOUNT_ID][PARTITION].roles.values())
    return next((role for role in roles if role.arn == arn), None)


def role_grants(role: Any, action: str, resource: str, context: Context | None = None) -> bool:
    """Return whether the role's own policies grant an action on a resource."""
    return evaluate(policy_documents(role), Request(action, resource, context or {})).allowed
