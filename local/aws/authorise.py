"""Authorization: sessions and users can do only what their policies allow. Unknown access keys are refused.

moto has its own access control, but it ignores conditions, knows one resource per action and answers every service in
IAM's XML. This module asks `local.aws.permissions` for all permissions that a call needs, and answers in the service's
protocol.
"""

from __future__ import annotations

import contextlib
import json
import logging
from typing import Any

from moto.core import errors
from moto.core.authorization import ActionAuthenticatorMixin
from moto.core.responses import ActionResult, BaseResponse
from moto.s3.exceptions import S3AccessDeniedError, S3InvalidAccessKeyIdError

from local.aws import (
    faults,
    idempotency,
    identity,
    keys,
    permissions,
    serial,
    static_answers,
)
from local.aws.account import ACCOUNT_ID
from local.aws.calls import calls
from local.aws.errors import ApiError
from local.aws.policy import Request, evaluate

log = logging.getLogger(__name__)

# Calls that AWS accepts without a signature, or from everyone (STS User Guide).
OPEN_ACTIONS = {"sts:AssumeRoleWithWebIdentity", "sts:GetCallerIdentity"}
JSON_SERVICES = {
    "eks", "ssm", "sqs", "ecr", "fsx", "kms", "logs", "events", "pricing", "dynamodb", "secretsmanager",
}  # fmt: skip
COMMON_CODES = (
    "AccessDenied",
    "AccessDeniedException",
    "InvalidClientTokenId",
    "MissingAuthenticationToken",
    "UnrecognizedClientException",
    "UnsupportedOperation",
)


class Refused(Exception):
    """A call is not allowed. It has the service's error code, the message and the HTTP status."""

    def __init__(self, code: str, message: str, status: int) -> None:
        super().__init__(message)
        self.code, self.message, self.status = code, message, status


def caller(service: str, headers: Any, query: dict[str, Any]) -> identity.Identity:
    """Return the identity of a signed request.

    Raises:
        Refused: The request is not authentic. It has the service's code.
    """
    key_id = identity.access_key_id(headers, query)
    if key_id is None:
        raise Refused("MissingAuthenticationToken", "The request is not signed.", 403)
    try:
        return identity.find(key_id)
    except identity.UnknownKey:
        code = (
            "AuthFailure"
            if service == "ec2"
            else "UnrecognizedClientException"
            if service in JSON_SERVICES
            else "InvalidClientTokenId"
        )
        message = f"The access key {key_id} is not one of this local cloud's, or its session has ended."
        raise Refused(code, message, 401 if service == "ec2" else 403) from None


def check(who: identity.Identity, service: str, requests: list[Request]) -> None:
    """Raise Refused for the first permission that the policies of the role or user do not grant."""
    documents = identity.documents(who)
    session = json.loads(who.session_policy) if who.session_policy else None
    for request in requests:
        context = {
            "aws:principalarn": (who.principal_arn,),
            "aws:principalaccount": (ACCOUNT_ID,),
            "aws:principaltype": ("User" if who.role is None else "AssumedRole",),
            "aws:securetransport": ("true",),
            **request.context,
        }
        full = Request(request.action, request.resource, context)
        decision = evaluate(documents, full)
        if decision.allowed and session is not None:
            decision = evaluate([session], full)
        if who.role is not None:
            calls.add(who.role.name, request.action, decision.allowed, documents)
        if decision.allowed:
            continue
        reason = (
            "with an explicit deny in an identity-based policy"
            if decision.explicit
            else f"because no identity-based policy allows the {request.action} action"
        )
        if decision.unknown_keys:
            reason += f" (condition keys not evaluated locally: {', '.join(sorted(decision.unknown_keys))})"
        message = (
            f"User: {who.arn} is not authorized to perform: {request.action} "
            f"on resource: {request.resource or '*'} {reason}"
        )
        log.warning("denied %s", message)
        if service == "ec2":
            raise Refused(
                "UnauthorizedOperation", f"You are not authorized to perform this operation. {message}", 403
            )
        if service in JSON_SERVICES:
            raise Refused("AccessDeniedException", message, 400)
        raise Refused("AccessDenied", message, 403)


def check_s3(response: Any, action: str | None, bucket_name: str | None, key_name: str | None) -> None:
    """Raise Refused unless the caller of a request of S3 may do the action; with None, unless the caller exists."""
    who = caller("s3", response.headers, response.querystring)
    if action is not None:
        check(who, "s3", permissions.s3(response, action, bucket_name, key_name))


def error_response(response: Any, code: str, message: str, status: int) -> Any:
    """Return an error in the protocol of the service that `response` belongs to."""
    _, headers, body = response.serialized(ActionResult(ApiError(code, message)))
    headers["status"] = str(status)
    return status, headers, body


def install() -> None:
    """Authorize every call before moto runs it."""
    # Every service returns these codes although its model does not list them. moto would log a warning for each.
    errors.COMMON_ERROR_CODES.extend(COMMON_CODES)
    act = BaseResponse.call_action

    def call_action(self: Any) -> Any:
        service, action = self.service_name, self._get_action()
        name = f"{service}:{action}"
        try:
            if name not in OPEN_ACTIONS:
                who = caller(service, self.headers, self.querystring)
                identity.calling.set(who)
                check(who, service, permissions.needed(self, service, action))
        except Refused as refused:
            return error_response(self, refused.code, refused.message, refused.status)
        fault = faults.plan().api_fault(name)
        if fault is not None:
            return error_response(self, fault.code, fault.message, fault.status)
        is_serial = service in serial.SERVICES and name not in static_answers.STATIC_ACTIONS
        try:
            with serial.lock if is_serial else contextlib.nullcontext():
                return idempotency.once(self, service, lambda: static_answers.answer(self, name, act))
        except ApiError as error:
            return error_response(self, error.code, error.message, 400)
        except NotImplementedError as error:
            # Not a 500: SDKs would retry the call for minutes before they report it.
            log.warning("not supported: %s: %s", name, error)
            text = f"The local cloud does not have {name}: {error}"
            return error_response(self, "UnsupportedOperation", text, 400)
        except (LookupError, StopIteration, ValueError, AttributeError, TypeError) as error:
            # Nor is a request that can't be read. AWS checks members that the local cloud's own callers always send.
            log.exception("not understood: %s", name)
            text = f"The local cloud can't answer this {name}: {type(error).__name__}: {error}. See its log aws.log"
            return error_response(self, "ValidationError", text, 400)

    BaseResponse.call_action = call_action

    # S3 does not use call_action. Its methods call this hook when the action and the key are known.
    def authorise_s3(self: Any, bucket_name: str | None = None, key_name: str | None = None) -> None:
        action = self.data.get("Action", "ListAllMyBuckets")
        action = action[0] if isinstance(action, list) else action
        # DeleteObjects checks each object separately (`s3_deletions`). Here only the caller must be known.
        by_object = action == "DeleteObject" and key_name is None
        try:
            check_s3(self, None if by_object else action, bucket_name, key_name)
        except Refused as refused:
            if refused.code == "InvalidClientTokenId":
                raise S3InvalidAccessKeyIdError() from None
            denied = S3AccessDeniedError()
            denied.message = refused.message
            raise denied from None
        keys.check_object(self, bucket_name, key_name)

    ActionAuthenticatorMixin._authenticate_and_authorize_s3_action = authorise_s3
