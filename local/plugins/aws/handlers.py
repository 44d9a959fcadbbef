"""All handlers, by resource token."""

from __future__ import annotations

from collections.abc import Mapping

from local.plugins.aws import (
    ec2_endpoints,
    ec2_more,
    ec2_network,
    ec2_routes,
    ec2_security,
    ec2_security_rules,
    eks,
    eks_access,
    fsx,
    iam,
    iam_oidc,
    kms_grants,
    messaging,
    registry,
    s3,
    s3_settings,
)
from local.plugins.aws.resource import Handler, served

MODULES = (
    ec2_endpoints,
    ec2_more,
    ec2_network,
    ec2_routes,
    ec2_security,
    ec2_security_rules,
    eks,
    eks_access,
    fsx,
    iam,
    iam_oidc,
    kms_grants,
    messaging,
    registry,
    s3,
    s3_settings,
)

# Importing a module registers its handlers.
HANDLERS: Mapping[str, Handler] = served()
