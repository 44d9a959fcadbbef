"""Keep programs on the local cloud away from real AWS accounts.

`cloud_environment` returns the variables to set, `refuse_foreign` refuses others.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from local.home import Home, local_command, program_command, read_record

# All variables from which AWS SDKs read credentials:
# https://docs.aws.amazon.com/sdkref/latest/guide/settings-reference.html
CREDENTIALS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_SECURITY_TOKEN",
    "AWS_PROFILE",
    "AWS_DEFAULT_PROFILE",
    "AWS_ROLE_ARN",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
    "AWS_CONFIG_FILE",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_CREDENTIAL_FILE",
)
# Variables with a URL that SDKs would call.
ENDPOINT_PREFIX = "AWS_ENDPOINT_URL"
OTHER_ENDPOINTS = ("AWS_EC2_METADATA_SERVICE_ENDPOINT",)
# If true, SDKs ignore AWS_ENDPOINT_URL and call AWS itself.
IGNORE_ENDPOINTS = "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS"


class ForeignCloudError(RuntimeError):
    """The environment points to an AWS account, or away from this machine. The message is one line."""


class NotRunningError(RuntimeError):
    """No local cloud is running."""


def is_loopback(address: str) -> bool:
    """Return whether a URL certainly points to this machine: http(s) with `localhost` or a loopback IP."""
    try:
        parts = urlsplit(address)
        host, _ = parts.hostname, parts.port
        if parts.scheme not in ("http", "https") or host is None:
            return False
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def objections(environment: Mapping[str, str], own: Mapping[str, str]) -> list[str]:
    """Return what in `environment` does not belong to the local cloud, one short clause each.

    The clauses never contain the values of credentials. `own` is the local cloud's own environment.
    """
    found = []
    for name, value in sorted(environment.items()):
        if not value or value == own.get(name):
            continue
        if name.startswith(ENDPOINT_PREFIX) or name in OTHER_ENDPOINTS:
            if not is_loopback(value):
                found.append(f"{name} is {value}, not an address of this machine")
        elif name == IGNORE_ENDPOINTS:
            if value.lower() == "true":
                found.append(f"{name} is true, so that AWS itself would be called")
        elif name in CREDENTIALS and value != os.devnull:
            found.append(f"{name} is set")
    return found


def refuse_foreign(environment: Mapping[str, str], home: Home | None = None) -> None:
    """Refuse an environment with another AWS endpoint or with credentials of another account.

    The local cloud's own credentials come from the record that `TRAINYARD_LOCAL_CLOUD` names, otherwise from the home.

    Raises:
        ForeignCloudError: The message lists everything found and what to do.
    """
    found = objections(environment, _own(environment, home))
    if found:
        names = " ".join(sorted({clause.split()[0] for clause in found}))
        raise ForeignCloudError(
            f"refused, the local cloud uses no AWS account: {'; '.join(found)}; run `unset {names}` first"
        )


def cloud_environment(home: Home) -> dict[str, str]:
    """Return the variables with which AWS SDKs, plugins and tools call only the running local cloud.

    Raises:
        NotRunningError: There is no record of a running cloud, or it is damaged.
    """
    start = program_command(home, "up")
    if not home.cloud_file.exists():
        raise NotRunningError(
            f"no local cloud is running ({home.cloud_file} is missing); `{start}` starts it"
        )
    record = _read(home.cloud_file)
    # Commands on stacks read these three.
    if record is None or not _has_texts(record, ("generation", "accountId", "deployerArn")):
        stop = local_command(home, "down")
        raise NotRunningError(
            f"{home.cloud_file}: is damaged. `{stop}` ends the local cloud, then `{start}` starts it"
        )
    # Not the user's own ~/.kube/cache: it would keep a directory per API server, which nothing removes.
    return {**_environment(home.cloud_file, record), "KUBECACHEDIR": str(home.kube_cache)}


def endpoints(region: str, endpoint: str) -> dict[str, str]:
    """Return region and endpoints, so that AWS calls stay on this machine. There are no credentials in it."""
    return {
        "AWS_REGION": region,
        "AWS_DEFAULT_REGION": region,
        "AWS_ENDPOINT_URL": endpoint,
        # The Go SDK resolves web identities before it reads AWS_ENDPOINT_URL, so STS has its own variable.
        "AWS_ENDPOINT_URL_STS": endpoint,
        "AWS_ENDPOINT_URL_PRICING": endpoint,
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def _environment(file: Path, record: Mapping[str, Any]) -> dict[str, str]:
    return {
        "TRAINYARD_LOCAL_CLOUD": str(file),
        **endpoints(str(record["region"]), str(record["awsEndpoint"])),
        IGNORE_ENDPOINTS: "false",
        "AWS_ACCESS_KEY_ID": str(record["accessKeyId"]),
        "AWS_SECRET_ACCESS_KEY": str(record["secretAccessKey"]),
        "TRAINYARD_EMULATOR_TOKEN": str(record.get("emulatorToken", "")),
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        # All addresses are on this machine, so requests must not go to a proxy of the environment.
        "NO_PROXY": "*",
        "no_proxy": "*",
    }


def _read(file: Path) -> dict[str, Any] | None:
    """Return the record of a running cloud; None if the file is missing or damaged."""
    record = read_record(file) or {}
    return record if _has_texts(record, ("region", "awsEndpoint", "accessKeyId", "secretAccessKey")) else None


def _has_texts(record: Mapping[str, Any], keys: Iterable[str]) -> bool:
    return all(isinstance(record.get(key), str) for key in keys)


def _own(environment: Mapping[str, str], home: Home | None) -> dict[str, str]:
    """Return the variables of the local cloud that `environment` names or the home has, {} if there is none."""
    named = environment.get("TRAINYARD_LOCAL_CLOUD")
    file = Path(named) if named else (home or Home(environment=environment)).cloud_file
    record = _read(file)
    if record is None and named and file.exists():
        raise ForeignCloudError(f"TRAINYARD_LOCAL_CLOUD: {named!r} must be run/cloud.json of a local cloud")
    return {} if record is None else _environment(file, record)
