"""The AWS session of a configured provider: cached clients, error classes of the API, waits with a limit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from local.plugins.sdk import split_names

T = TypeVar("T")

# Error codes that mean "this does not exist" and do not end in NotFound. A KMS key is in no valid state while it is
# pending deletion.
_GONE = split_names(
    "404 AWS.SimpleQueueService.NonExistentQueue BackupNotFound DataRepositoryAssociationNotFound "
    "FileSystemNotFound KMSInvalidStateException NatGatewayNotFound NoSuchBucket NoSuchBucketPolicy NoSuchEntity "
    "NoSuchKey NoSuchLifecycleConfiguration NoSuchPublicAccessBlockConfiguration InvalidPlacementGroup.Unknown "
    "OwnershipControlsNotFoundError QueueDoesNotExist ServerSideEncryptionConfigurationNotFoundError"
)
# Codes that mean "something that is being deleted still uses this". A retry can succeed.
_BUSY = split_names(
    "DeleteConflict DependencyViolation InvalidIPAddress.InUse InvalidPlacementGroup.InUse "
    "OperationAborted ResourceInUseException"
)


def error_code(error: Exception) -> str:
    """Return the AWS error code of a botocore `ClientError`; empty for any other exception."""
    response = getattr(error, "response", None)
    if not isinstance(response, Mapping):
        return ""
    return str(response.get("Error", {}).get("Code", ""))


def is_gone(error: Exception) -> bool:
    """Return whether the API's error means that the resource does not exist."""
    code = error_code(error)
    return code in _GONE or code.endswith((".NotFound", "NotFoundException", "NotFoundFault"))


class Cloud:
    """One region of one account. Thread-safe: botocore clients are, and they are created once."""

    def __init__(self, region: str) -> None:
        self.region = region
        self._lock = threading.Lock()
        self._clients: dict[str, Any] = {}
        self._session: Any = None
        self._account: str | None = None

    def client(self, service: str) -> Any:
        """Return the boto3 client of a service, such as `ec2`. Endpoint and credentials come from the environment."""
        with self._lock:
            if service not in self._clients:
                # Imported here: botocore takes a third of a second, and most previews never need it.
                from botocore.config import Config
                from botocore.session import Session

                if self._session is None:
                    self._session = Session()
                config = Config(
                    retries={"mode": "standard", "max_attempts": 5},
                    max_pool_connections=32,
                    # Buckets as paths: `bucket.127.0.0.1` is not a host name.
                    s3={"addressing_style": "path"},
                )
                self._clients[service] = self._session.create_client(
                    service, region_name=self.region, config=config
                )
            return self._clients[service]

    def call(self, service: str, operation: str) -> Callable[..., Any]:
        """Return an operation, such as `describe_vpcs`."""
        found: Callable[..., Any] = getattr(self.client(service), operation)
        return found

    def input_shape(self, service: str, operation: str) -> Any:
        """Return botocore's shape of an operation's arguments."""
        meta = self.client(service).meta
        return meta.service_model.operation_model(meta.method_to_api_mapping[operation]).input_shape

    @property
    def account(self) -> str:
        """The account id of the credentials, from one call (sts:GetCallerIdentity)."""
        if self._account is None:
            self._account = str(self.client("sts").get_caller_identity()["Account"])
        return self._account

    @property
    def partition(self) -> str:
        """The partition of the region: `aws`, `aws-cn` or `aws-us-gov`."""
        return partition_of(self.region)

    def arn(self, service: str, resource: str) -> str:
        """Return an ARN of this account and region."""
        return f"arn:{self.partition}:{service}:{self.region}:{self.account}:{resource}"


def partition_of(region: str) -> str:
    """Return the partition of a region, as in the AWS General Reference."""
    if region.startswith("cn-"):
        return "aws-cn"
    return "aws-us-gov" if region.startswith("us-gov-") else "aws"


def dns_suffix_of(region: str) -> str:
    """Return the DNS suffix of the services of a region."""
    return "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"


def wait_until(what: str, ready: Callable[[], bool], seconds: float = 300.0) -> None:
    """Poll `ready` with growing intervals (0.1 s to 2 s).

    Raises:
        TimeoutError: `ready` is still false after `seconds`. The message names `what`.
    """
    deadline = time.monotonic() + seconds
    pause = 0.1
    while not ready():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not reached within {seconds:.0f} s")
        time.sleep(pause)
        pause = min(pause * 1.5, 2.0)


def retry_busy(call: Callable[[], T], seconds: float = 300.0) -> T:
    """Call until the API no longer reports that the resource is in use. After `seconds`, raise the last error."""
    deadline = time.monotonic() + seconds
    pause = 0.2
    while True:
        try:
            return call()
        except Exception as error:
            if error_code(error) not in _BUSY or time.monotonic() > deadline:
                raise
        time.sleep(pause)
        pause = min(pause * 1.5, 5.0)
