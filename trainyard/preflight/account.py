"""Asking an AWS account: one way to call, which tells a missing permission from a missing thing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import boto3
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConfigNotFound,
    ConnectionError,
    CredentialRetrievalError,
    HTTPClientError,
    InvalidConfigError,
    NoAuthTokenError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
    SSOError,
    TokenRetrievalError,
)

# What services answer to a caller without the permission (each one's "Common Errors"; EC2: UnauthorizedOperation).
DENIED: Final = frozenset(
    {
        "AccessDenied",
        "AccessDeniedException",
        "AuthorizationError",
        "Client.UnauthorizedOperation",
        "Forbidden",
        "403",
        "UnauthorizedOperation",
    }
)
# IAM's prefix where it is not the name that requests are signed for (Service Authorization Reference).
PREFIXES: Final = {"tagging": "tag"}
# Permissions that are not called as their operation.
PERMISSIONS: Final = {
    "s3:HeadBucket": "s3:ListBucket",
    "s3:ListBuckets": "s3:ListAllMyBuckets",
    "s3:GetBucketTagging": "s3:GetBucketTagging",
}


# What every service answers to credentials that are none, or have ended: no other question will be answered either
# (https://docs.aws.amazon.com/IAM/latest/APIReference/CommonErrors.html). EC2 says AuthFailure of other things, too.
BAD_CREDENTIALS: Final = frozenset(
    {
        "ExpiredToken",
        "ExpiredTokenException",
        "IncompleteSignature",
        "InvalidAccessKeyId",
        "InvalidClientTokenId",
        "InvalidSignatureException",
        "InvalidToken",
        "MissingAuthenticationToken",
        "RequestExpired",
        "SignatureDoesNotMatch",
        "UnrecognizedClientException",
    }
)

NO_CREDENTIALS: Final = (
    ConfigNotFound,
    CredentialRetrievalError,
    InvalidConfigError,
    NoAuthTokenError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
    SSOError,
    TokenRetrievalError,
)

UNREACHED: Final = (ConnectionError, HTTPClientError)


class Denied(Exception):
    """The caller may not ask; `permission` is what it lacks, such as ec2:DescribeSubnets."""

    def __init__(self, permission: str) -> None:
        super().__init__(permission)
        self.permission = permission


class Account:
    """The account of a profile in ~/.aws/config, or of the environment."""

    def __init__(self, region: str, session: Any = None, profile: str | None = None) -> None:
        self.region = region
        self._session = session or boto3.session.Session(region_name=region, profile_name=profile)
        self._clients: dict[str, Any] = {}
        self._unreachable: dict[str, BotoCoreError] = {}

    def signing(self) -> Any:
        """A session of the region with these credentials, to sign what is no call of a client."""
        return (
            self._session
            if self._session.region_name == self.region
            else boto3.session.Session(region_name=self.region)
        )

    def client(self, service: str) -> Any:
        """The client of a service; made once."""
        if service not in self._clients:
            settings = Config(retries={"mode": "standard", "total_max_attempts": 5})
            self._clients[service] = self._session.client(service, region_name=self.region, config=settings)
        return self._clients[service]

    def call(
        self, service: str, method: str, *, missing: tuple[str, ...] = (), **arguments: Any
    ) -> dict[str, Any] | None:
        """One call's answer; None where the error's code is one of `missing`.

        Raises:
            Denied: the caller lacks the permission.
            ClientError: AWS refused for another reason.
            BotoCoreError: no credentials, no connection, a wrong parameter.
        """
        client = self._reachable(service)
        try:
            answer: dict[str, Any] = getattr(client, method)(**arguments)
        except ClientError as error:
            if error.response["Error"]["Code"] in missing:
                return None
            raise _told(error, client, method) from error
        except UNREACHED as error:
            self._unreachable[service] = error
            raise
        return answer

    def items(
        self, service: str, method: str, key: str, *, missing: tuple[str, ...] = (), **arguments: Any
    ) -> list[dict[str, Any]]:
        """The entries under `key` of all pages; none where the error's code is one of `missing`.

        Raises:
            Denied: the caller lacks the permission.
            ClientError: AWS refused for another reason.
            BotoCoreError: no credentials, no connection, a wrong parameter.
        """
        client = self._reachable(service)
        if not client.can_paginate(method):
            answer = self.call(service, method, missing=missing, **arguments)
            return list((answer or {}).get(key) or [])
        try:
            pages = client.get_paginator(method).paginate(**arguments)
            return [entry for page in pages for entry in page.get(key) or []]
        except ClientError as error:
            if error.response["Error"]["Code"] in missing:
                return []
            raise _told(error, client, method) from error
        except UNREACHED as error:
            self._unreachable[service] = error
            raise

    def _reachable(self, service: str) -> Any:
        """The client, unless the service was not reached before: five attempts of each question would take long."""
        if service in self._unreachable:
            raise self._unreachable[service]
        return self.client(service)


def permission(client: Any, method: str) -> str:
    """The permission that a method of a client needs, such as ec2:DescribeSubnets."""
    signed = client.meta.service_model.signing_name
    named = f"{PREFIXES.get(signed, signed)}:{client.meta.method_to_api_mapping[method]}"
    return PERMISSIONS.get(named, named)


def without_credentials(error: BotoCoreError | ClientError) -> bool:
    """Whether an error says that there are no credentials, or none that are good: then nothing can be asked at all."""
    if isinstance(error, ClientError):
        return error.response["Error"]["Code"] in BAD_CREDENTIALS
    return isinstance(error, NO_CREDENTIALS)


def said(error: BotoCoreError | ClientError) -> str:
    """An error in one line: its code and what AWS says."""
    if isinstance(error, ClientError):
        told = error.response["Error"]
        words = f"{told['Code']} {told.get('Message', '')}"
    else:
        words = f"{type(error).__name__} {error}"
    return " ".join(words.split())


def _told(error: Any, client: Any, method: str) -> Exception:
    refused: Exception = error
    return Denied(permission(client, method)) if error.response["Error"]["Code"] in DENIED else refused


def tags_of(resource: Mapping[str, Any], *, key: str = "Tags") -> dict[str, str]:
    """The tags of an answer's entry: a list of Key and Value (either case) or a mapping."""
    tags = resource.get(key) or []
    if isinstance(tags, Mapping):
        return {str(name): str(value) for name, value in tags.items()}
    return {
        str(tag.get("Key", tag.get("key", tag.get("TagKey")))): str(
            tag.get("Value", tag.get("value", tag.get("TagValue", "")))
        )
        for tag in tags
    }


def has(tags: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    """Whether all of the wanted tags are there, exactly."""
    return all(tags.get(name) == value for name, value in wanted.items())


def by_tags(tags: Mapping[str, str]) -> list[dict[str, Any]]:
    """EC2's filters for exactly these tags. A `*` in a value would be a wildcard, so that it is escaped."""
    return [
        {
            "Name": f"tag:{name}",
            "Values": [value.replace("\\", "\\\\").replace("*", "\\*").replace("?", "\\?")],
        }
        for name, value in tags.items()
    ]
