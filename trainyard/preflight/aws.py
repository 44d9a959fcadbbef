"""Read an AWS account. `Aws.call` and `Aws.items` distinguish a missing permission from a missing resource."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import boto3
from botocore import exceptions
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

T = TypeVar("T")
# Error codes for a missing permission (each service's "Common Errors"; EC2: UnauthorizedOperation).
DENIED: Final = frozenset({
    "AccessDenied", "AccessDeniedException", "AuthorizationError", "Client.UnauthorizedOperation", "Forbidden", "403",
    "UnauthorizedOperation",
})  # fmt: skip
# Error codes for missing, wrong or expired credentials. No other call will succeed either
# (https://docs.aws.amazon.com/IAM/latest/APIReference/CommonErrors.html). EC2 uses AuthFailure for other errors, too.
BAD_CREDENTIALS: Final = frozenset({
    "ExpiredToken", "ExpiredTokenException", "IncompleteSignature", "InvalidAccessKeyId", "InvalidClientTokenId",
    "InvalidSignatureException", "InvalidToken", "MissingAuthenticationToken", "RequestExpired",
    "SignatureDoesNotMatch", "UnrecognizedClientException",
})  # fmt: skip
NO_CREDENTIALS: Final = (
    exceptions.ConfigNotFound, exceptions.CredentialRetrievalError, exceptions.InvalidConfigError,
    exceptions.NoAuthTokenError, exceptions.NoCredentialsError, exceptions.PartialCredentialsError,
    exceptions.ProfileNotFound, exceptions.SSOError, exceptions.TokenRetrievalError,
)  # fmt: skip
UNREACHABLE: Final = (exceptions.ConnectionError, exceptions.HTTPClientError)
# IAM's prefix where it differs from the signing name (Service Authorization Reference).
PREFIXES: Final = {"tagging": "tag"}
# Permissions whose name differs from the operation's.
PERMISSIONS: Final = {"s3:HeadBucket": "s3:ListBucket", "s3:ListBuckets": "s3:ListAllMyBuckets"}
RUNNING: Final = {"Name": "instance-state-name", "Values": ["pending", "running"]}


class Denied(Exception):
    """A check is not possible. `permission` is the missing one, such as ec2:DescribeSubnets."""

    def __init__(self, permission: str) -> None:
        super().__init__(permission)
        self.permission = permission


class Aws:
    """The account of a profile in ~/.aws/config, or of the environment.

    It caches each answer, so that checks with the same data need one call. `now` is the time of the checks.
    """

    def __init__(
        self, region: str, session: Any = None, profile: str | None = None, now: datetime | None = None
    ) -> None:
        self.region = region
        self.now = now or datetime.now(UTC)
        self._session = session or boto3.session.Session(region_name=region, profile_name=profile)
        self._clients: dict[str, Any] = {}
        self._answers: dict[str, Any] = {}
        self._unreachable: dict[str, BotoCoreError] = {}

    def signing(self) -> Any:
        """Return a session of the region with these credentials, to sign requests other than a client's."""
        if self._session.region_name == self.region:
            return self._session
        return boto3.session.Session(region_name=self.region)

    def client(self, service: str) -> Any:
        """Return the client of a service."""
        if service not in self._clients:
            config = Config(retries={"mode": "standard", "total_max_attempts": 5})
            self._clients[service] = self._session.client(service, region_name=self.region, config=config)
        return self._clients[service]

    def call(
        self, service: str, method: str, *, missing: tuple[str, ...] = (), **arguments: Any
    ) -> dict[str, Any] | None:
        """Return the answer of one call; None if the error code is one of `missing`.

        Raises:
            Denied: The caller lacks the permission.
            ClientError: AWS refused for another reason.
            BotoCoreError: No credentials, no connection, an invalid parameter.
        """

        def read(client: Any) -> Any:
            return getattr(client, method)(**arguments)

        answer: dict[str, Any] | None = self._ask(service, method, "", arguments, missing, read)
        return answer

    def items(
        self, service: str, method: str, key: str, *, missing: tuple[str, ...] = (), **arguments: Any
    ) -> list[Any]:
        """Return the entries under `key` of all pages; none if the error code is one of `missing`. Raise as `call`."""

        def read(client: Any) -> list[Any]:
            if client.can_paginate(method):
                pages = client.get_paginator(method).paginate(**arguments)
            else:
                pages = [getattr(client, method)(**arguments)]
            return [entry for page in pages for entry in page.get(key) or []]

        return list(self._ask(service, method, key, arguments, missing, read) or [])

    def _ask(
        self,
        service: str,
        method: str,
        key: str,
        arguments: Mapping[str, Any],
        missing: tuple[str, ...],
        read: Callable[[Any], Any],
    ) -> Any:
        question = f"{service} {method} {key} {missing} {sorted(arguments.items())}"
        if question in self._answers:
            return self._answers[question]
        # The client tries five times. Once is enough for a service that can't be reached.
        if service in self._unreachable:
            raise self._unreachable[service]
        client = self.client(service)
        try:
            answer = read(client)
        except ClientError as error:
            code = error.response["Error"]["Code"]
            if code in DENIED and code not in missing:
                raise Denied(permission(client, method)) from error
            if code not in missing:
                raise
            answer = None
        except UNREACHABLE as error:
            self._unreachable[service] = error
            raise
        self._answers[question] = answer
        return answer


@dataclass(kw_only=True)
class Attempts:
    """The questions to the account that were not answered.

    Attributes:
        denied: Name and missing permission of each question that the caller may not ask.
        failed: Name and error of each question that AWS did not answer for another reason.
    """

    denied: list[tuple[str, str]] = field(default_factory=list)
    failed: list[tuple[str, str]] = field(default_factory=list)

    def attempt(self, name: str, ask: Callable[[], list[T]]) -> list[T] | None:
        """Return the answer of `ask`; None without one. Raise errors of bad credentials: every call has them."""
        try:
            return ask()
        except Denied as denied:
            self.denied.append((name, denied.permission))
        except (BotoCoreError, ClientError) as error:
            if has_bad_credentials(error):
                raise
            self.failed.append((name, error_line(error)))
        return None

    def unanswered(self) -> list[str]:
        """Return a line of output for each question without an answer."""
        return [
            *(f"not checked: {name}: needs {permission}" for name, permission in self.denied),
            *(f"not checked: {name}: {error}" for name, error in self.failed),
        ]


def permission(client: Any, method: str) -> str:
    """Return the permission that a method of a client needs, such as ec2:DescribeSubnets."""
    service = client.meta.service_model.signing_name
    name = f"{PREFIXES.get(service, service)}:{client.meta.method_to_api_mapping[method]}"
    return PERMISSIONS.get(name, name)


def has_bad_credentials(error: BotoCoreError | ClientError) -> bool:
    """Return whether an error means that the credentials are missing or invalid, so that every call fails."""
    if isinstance(error, ClientError):
        return error.response["Error"]["Code"] in BAD_CREDENTIALS
    return isinstance(error, NO_CREDENTIALS)


def error_line(error: BotoCoreError | ClientError) -> str:
    """Return an error in one line: its code and its message."""
    text = f"{type(error).__name__} {error}"
    if isinstance(error, ClientError):
        text = f"{error.response['Error']['Code']} {error.response['Error'].get('Message', '')}"
    return " ".join(text.split())


def tags_of(resource: Mapping[str, Any], *, key: str = "Tags") -> dict[str, str]:
    """Return the tags of a resource in an answer: a list of key and value in each service's spelling, or a mapping."""
    tags = resource.get(key) or []
    if isinstance(tags, Mapping):
        return {str(name): str(value) for name, value in tags.items()}
    return {
        str(tag.get("Key", tag.get("key", tag.get("TagKey")))): str(
            tag.get("Value", tag.get("value", tag.get("TagValue", "")))
        )
        for tag in tags
    }


def has(tags: Mapping[str, str], expected: Mapping[str, str]) -> bool:
    """Return whether all expected tags exist with exactly these values."""
    return all(tags.get(name) == value for name, value in expected.items())


def by_tags(tags: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return EC2's filters for exactly these tags. A `*` in a value would be a wildcard, so it is escaped."""
    return [
        filter_by(f"tag:{name}", value.replace("\\", "\\\\").replace("*", "\\*").replace("?", "\\?"))
        for name, value in tags.items()
    ]


def filter_by(name: str, *values: str) -> dict[str, Any]:
    """Return one filter of EC2."""
    return {"Name": name, "Values": list(values)}


def instances(aws: Aws, *filters: dict[str, Any]) -> list[dict[str, Any]]:
    """Return EC2 instances."""
    found = aws.items("ec2", "describe_instances", "Reservations", Filters=list(filters))
    return [instance for reservation in found for instance in reservation["Instances"]]


def account_id(aws: Aws) -> str:
    """Return the id of the caller's account."""
    return caller_arn(aws).split(":")[4]


def caller_arn(aws: Aws) -> str:
    """Return the ARN of the caller."""
    return str((aws.call("sts", "get_caller_identity") or {})["Arn"])
