"""The only account of the local cloud, and its deployer: an IAM user with all permissions."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

ACCOUNT_ID = "123456789012"
PARTITION = "aws"
DEPLOYER = "deployer"
DEPLOYER_ARN = f"arn:aws:iam::{ACCOUNT_ID}:user/{DEPLOYER}"


def prepare_environment(environment: MutableMapping[str, str]) -> None:
    """Set the environment variables that moto reads at import. Call it before the first import of moto."""
    environment["MOTO_ACCOUNT_ID"] = ACCOUNT_ID
    # 1299 images that nobody uses here take seconds to load. local.aws.images creates those that clients request.
    environment["MOTO_EC2_LOAD_DEFAULT_AMIS"] = "false"
    # AmazonEKSClusterPolicy and other managed policies, with their real documents.
    environment["MOTO_IAM_LOAD_MANAGED_POLICIES"] = "true"
    # An instance type that EC2 does not have is an error, as on AWS.
    environment["MOTO_EC2_ENABLE_INSTANCE_TYPE_VALIDATION"] = "true"
    environment["MOTO_DISABLE_GLOBAL_CORS"] = "true"


def create_deployer() -> Any:
    """Create the user `deployer` with AdministratorAccess, and return moto's access key of it."""
    from moto.iam.models import iam_backends

    iam = iam_backends[ACCOUNT_ID][PARTITION]
    iam.create_user("us-east-1", DEPLOYER, "/")
    iam.attach_user_policy("arn:aws:iam::aws:policy/AdministratorAccess", DEPLOYER)
    return iam.create_access_key(DEPLOYER)
