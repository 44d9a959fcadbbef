"""A valid stack file and changes to it, for tests of the settings."""

from __future__ import annotations

import copy
import json
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from infra.settings import Settings, SettingsError, read
from tests.shipped import config_of

ROOT = Path(__file__).resolve().parents[3]
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)

POOL = {"name": "small", "instanceType": "g5.12xlarge", "zone": "us-west-2b", "maxNodes": 4}
BASE: dict[str, Any] = {
    "aws:region": "us-west-2",
    "trainyard:cluster": {
        "administrators": ["arn:aws:iam::123456789012:role/platform"],
        "publicAccessCidrs": ["203.0.113.0/24"],
    },
    "trainyard:pools": [POOL],
}
GIVEN_VPC = {
    "vpcId": "vpc-0123456789abcdef0",
    "privateSubnetIds": {
        "us-west-2a": "subnet-0a23456789abcdef0",
        "us-west-2b": "subnet-0b23456789abcdef0",
    },
}
GIVEN_CLUSTER = {
    "name": "research",
    "endpoint": "https://AB.gr7.us-west-2.eks.amazonaws.com",
    "certificateAuthority": "LS0tLS1CRUdJTg==",
    "oidcProviderArn": "arn:aws:iam::123456789012:oidc-provider/oidc.eks.us-west-2.amazonaws.com/id/AB",
    "oidcIssuer": "https://oidc.eks.us-west-2.amazonaws.com/id/AB",
    "securityGroupId": "sg-0123456789abcdef0",
}
EXISTING_LUSTRE = {
    "fileSystemId": "fs-0123456789abcdef0",
    "dnsName": "fs-0123456789abcdef0.fsx.us-west-2.amazonaws.com",
    "mountName": "abcdefgh",
}


def stack_file(name: str) -> dict[str, Any]:
    """Return the configuration of a shipped stack file; the caller may change it."""
    return copy.deepcopy(_parsed(name))


@cache
def _parsed(name: str) -> dict[str, Any]:
    return config_of(name)


def with_(change: dict[str, Any]) -> dict[str, Any]:
    """Return the base with changed sections, keys without `trainyard:`; a mapping is merged into the base's."""
    config = copy.deepcopy(BASE)
    for key, value in change.items():
        path = f"trainyard:{key}"
        merge = isinstance(value, dict) and isinstance(config.get(path), dict)
        config[path] = {**config[path], **value} if merge else value
    return config


def with_existing_cluster(**change: Any) -> dict[str, Any]:
    """Return the base with an existing VPC and cluster; `change` is merged into the section of the cluster."""
    config = with_({"network": GIVEN_VPC})
    config["trainyard:cluster"] = {"existing": GIVEN_CLUSTER, **change}
    return config


def changed(config: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Return a configuration with one setting changed, such as `pools.0.name`; None removes it."""
    result = copy.deepcopy(config)
    *parents, last = f"trainyard:{path}".split(".")
    place: Any = result
    for key in parents:
        place = place[int(key)] if isinstance(place, list) else place.setdefault(key, {})
    if value is None:
        del place[last]
    else:
        place[int(last) if isinstance(place, list) else last] = value
    return result


def with_pool(**change: Any) -> dict[str, Any]:
    """Return the base with its pool changed."""
    return with_({"pools": [{**POOL, **change}]})


def settings(config: dict[str, Any]) -> Settings:
    """Read the settings from strings, as the engine passes them."""
    passed = {key: value if isinstance(value, str) else json.dumps(value) for key, value in config.items()}
    return read("test", passed, NOW)


def error_lines(config: dict[str, Any]) -> list[str]:
    """Return the error lines of a stack file; none if it is valid."""
    try:
        settings(config)
    except SettingsError as error:
        return error.lines
    return []


def mistakes(config: dict[str, Any]) -> list[str]:
    """Return the error lines of an invalid stack file."""
    lines = error_lines(config)
    assert lines, "the stack file is valid"
    return lines
