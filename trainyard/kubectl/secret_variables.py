"""Read variables of a job from Secrets, and warn of credentials in plain text. Pure, except for `check`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from trainyard.kubectl.cluster import Cluster
from trainyard.kubectl.errors import REFUSED, USAGE, PluginError
from trainyard.kubectl.progress import say

JsonObject = dict[str, Any]
# Valid names of a Secret and of its keys (https://kubernetes.io/docs/concepts/configuration/secret/).
_SECRET: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_KEY: Final = re.compile(r"[-._a-zA-Z0-9]{1,253}")
_SECRET_MAX_LENGTH: Final = 253
# infra/credential_names.py has the same patterns.
_CREDENTIAL: Final = re.compile(
    r"(^|_)(SECRET|PASSWORD|PASSWD|PASSPHRASE|TOKEN|PAT|CREDENTIALS?|(ACCESS|PRIVATE|API|SECRET)_?KEY)(_|$)|PASSWORD$",
    re.IGNORECASE,
)
_PLACE: Final = re.compile(r"_(FILE|PATH|DIR|URI|URL)$", re.IGNORECASE)
_SHOWN: Final = 60


def parse_reference(text: str) -> tuple[str, str, str]:
    """Parse NAME[=SECRET/KEY], and return the variable, the Secret and its key.

    The variable alone gives both names: HF_TOKEN is the key HF_TOKEN of the Secret `hf-token`.

    Raises:
        PluginError: The Secret or key is not a valid name.
    """
    name, equals, place = text.partition("=")
    secret, _, key = place.partition("/")
    if not equals:
        secret, key = name.lower().replace("_", "-"), name
    if len(secret) > _SECRET_MAX_LENGTH or not _SECRET.fullmatch(secret):
        raise PluginError(
            USAGE,
            f"--secret: {text[:_SHOWN]!r}: {secret[:_SHOWN]!r} is not the name of a Secret. It must be "
            "NAME or NAME=SECRET/KEY, the Secret of lower-case letters, digits, '-' and '.'",
        )
    if not _KEY.fullmatch(key):
        raise PluginError(
            USAGE,
            f"--secret: {text[:_SHOWN]!r}: {key[:_SHOWN]!r} is not a key of a Secret. It must be "
            "NAME or NAME=SECRET/KEY, the key of letters, digits, '-', '_' and '.'",
        )
    return name, secret, key


def env_variable(name: str, secret: str, key: str) -> JsonObject:
    """Return an entry of `spec.env` with a reference to a Secret."""
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}


def is_credential_name(name: str) -> bool:
    """Return whether a variable of this name holds a credential."""
    return bool(_CREDENTIAL.search(name)) and not _PLACE.search(name)


def find_plain_credentials(variables: Iterable[JsonObject]) -> list[str]:
    """Return the names of variables with a plain value that look like credentials."""
    return [str(each["name"]) for each in variables if each.get("value") and is_credential_name(each["name"])]


def warn(variables: Iterable[JsonObject]) -> None:
    """Warn of credentials in plain text in the job, and say how to use a Secret instead."""
    for name in find_plain_credentials(variables):
        secret = name.lower().replace("_", "-")
        say(
            f"--env: {name}: is stored in plain text, and all users who can read jobs can see it. Use a Secret "
            f"and --secret {name} (key {name} of Secret {secret})"
        )


def check(cluster: Cluster, variables: Iterable[JsonObject]) -> None:
    """Check that the Secrets in the job, and their keys, exist. Print no values.

    If the user may not read Secrets, print that they are not checked.

    Raises:
        PluginError: A Secret or a key is missing.
    """
    for each in variables:
        found = (each.get("valueFrom") or {}).get("secretKeyRef")
        if not found:
            continue
        name, secret, key = each["name"], found["name"], found["key"]
        try:
            existing = cluster.secret(secret)
        except PluginError as error:
            if error.code != REFUSED:
                raise
            say(
                f"--secret: {name}: not checked, because you may not read Secrets in namespace {cluster.namespace}. "
                f"Workers wait until Secret {secret} has the key {key}"
            )
            continue
        if existing is None:
            command = cluster.command(f"create secret generic {secret} --from-literal {key}=VALUE", "")
            raise PluginError(
                USAGE,
                f"--secret: {name}: Secret {secret} does not exist in namespace {cluster.namespace}. Create it: "
                f"{command.strip()}",
            )
        keys = sorted(existing.get("data") or {})
        if key not in keys:
            raise PluginError(
                USAGE,
                f"--secret: {name}: Secret {secret} has no key {key}. It must be one of: {', '.join(keys) or 'none'}",
            )
