"""What a pod of a service account may do in AWS: a session of its role, by a token of the account."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import boto3
from botocore.exceptions import ClientError

ROLE_ANNOTATION = "eks.amazonaws.com/role-arn"
AUDIENCE = "sts.amazonaws.com"
DENIED = ("AccessDenied", "AccessDeniedException", "UnauthorizedOperation")


def assumed(client: Callable[[str], Any], role: str, token: str, service: str) -> Any:
    """A client of `service` with the credentials that STS gives a role for a service account's token.

    `client` makes clients of the account by the service's name. Raises ClientError where STS refuses the token.
    """
    sts = client("sts")
    given = sts.assume_role_with_web_identity(
        RoleArn=role, RoleSessionName="probe", WebIdentityToken=token.strip()
    )["Credentials"]
    return boto3.client(
        service,
        region_name=sts.meta.region_name,
        endpoint_url=sts.meta.endpoint_url,
        aws_access_key_id=given["AccessKeyId"],
        aws_secret_access_key=given["SecretAccessKey"],
        aws_session_token=given["SessionToken"],
    )


def is_denied(call: Callable[[], object]) -> bool:
    """Whether a call is refused for want of rights; another refusal is raised."""
    try:
        call()
    except ClientError as error:
        if error.response["Error"]["Code"] in DENIED:
            return True
        raise
    return False
