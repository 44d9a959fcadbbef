"""The table of all resources that the plugin serves, by token."""

from __future__ import annotations

from collections.abc import Mapping

from local.plugins.aws import ec2, eks, fsx, iam, services, storage
from local.plugins.aws.resource import Resource

HANDLERS: Mapping[str, Resource] = {
    row.token: row for module in (ec2, eks, fsx, iam, services, storage) for row in module.ROWS
}
