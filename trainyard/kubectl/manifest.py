"""Build a TorchrunJob from the arguments of `submit`, also its variables from Secrets. The entry point is `job`.

Pure, except for `check_secrets` and the random suffix of a default name. The API server checks the fields, such as the
name and the size.
"""

from __future__ import annotations

import argparse
import re
import secrets
import shlex
from collections.abc import Iterable
from typing import Any, Final

from trainyard.kubectl.cli import utf8
from trainyard.kubectl.cluster import Cluster
from trainyard.kubectl.output import REFUSED, USAGE, PluginError, say
from trainyard.operator import names as n
from trainyard.operator.command import literally, unclosed
from trainyard.workspace.archive import Archive

JsonObject = dict[str, Any]
# The characters in names of Secrets and their keys (https://kubernetes.io/docs/concepts/configuration/secret/).
_REFERENCE: Final = re.compile(r"([-.a-z0-9]+)/([-._a-zA-Z0-9]+)")
# infra/credential_names.py has the same patterns.
_CREDENTIAL: Final = re.compile(
    r"(^|_)(SECRET|PASSWORD|PASSWD|PASSPHRASE|TOKEN|PAT|CREDENTIALS?|(ACCESS|PRIVATE|API|SECRET)_?KEY)(_|$)|PASSWORD$",
    re.IGNORECASE,
)
_PLACE: Final = re.compile(r"_(FILE|PATH|DIR|URI|URL)$", re.IGNORECASE)
_SHOWN: Final = 60
# The names that every shell passes on. dash, which is sh in many images, drops all others.
_OF_A_SHELL: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ENDING: Final = "bcdfghjklmnpqrstvwxz2456789"
_ENDING_LENGTH: Final = 5


def job(options: argparse.Namespace, namespace: str, directory: str) -> JsonObject:
    """Return the job without its workspace. Raise PluginError with the name of the flag."""
    name = _default_name(directory) if options.name is None else options.name
    limits = {"minNodes": options.min, "maxNodes": options.max}
    optional = {
        "launcher": options.launcher,
        "numNodes": options.nodes,
        "elastic": {key: value for key, value in limits.items() if value},
        "env": [*_variables(options), *_secrets(options)],
    }
    return {
        "apiVersion": n.API_VERSION,
        "kind": n.JOB_KIND,
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "jobQueue": options.queue,
            "numGPUs": options.gpus,
            "command": _command(options.command),
            **{key: value for key, value in optional.items() if value},
        },
    }


def workspace(archive: Archive, url: str) -> JsonObject:
    """Return `spec.workspace` for this archive."""
    return {"digest": archive.digest, "sizeBytes": archive.size, **({"url": url} if url else {})}


def _default_name(directory: str) -> str:
    """Return a unique name, a label of RFC 1035 as the name of a Service must be."""
    stem = re.sub(r"[^a-z0-9]+", "-", directory.lower()).strip("-")
    stem = stem if stem[:1].isalpha() else f"job-{stem}".rstrip("-")
    stem = stem[: n.JOB_NAME_MAX_LENGTH - _ENDING_LENGTH - 1].rstrip("-")
    return f"{stem}-" + "".join(secrets.choice(_ENDING) for _ in range(_ENDING_LENGTH))


def _command(words: list[str]) -> str:
    """Return the command line: one word is a whole line, several were split by the shell."""
    command = words[0] if len(words) == 1 else shlex.join(words)
    _check_text("command", command)
    if why := unclosed(command):
        raise PluginError(USAGE, f"command: {command[:_SHOWN]!r}: {why}; close the quotation")
    return command


def _variables(options: argparse.Namespace) -> list[JsonObject]:
    values: dict[str, str] = {}
    for each in options.env:
        name, equals, value = each.partition("=")
        if not equals:
            if name not in options.environment:
                raise PluginError(USAGE, f"--env: {name} is not set here; give {name}=VALUE")
            value = literally(options.environment[name])
        _check_text(f"--env: {name}", value)
        values[name] = value
    return [{"name": name, "value": value} for name, value in values.items()]


def _secrets(options: argparse.Namespace) -> list[JsonObject]:
    names = {each.partition("=")[0] for each in options.env}
    found: dict[str, JsonObject] = {}
    for each in options.secret:
        name, secret, key = _parse_reference(each)
        if name in names:
            raise PluginError(USAGE, f"--secret: {name} is also set by --env; use one of them")
        found[name] = {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}
    return list(found.values())


def _check_text(place: str, text: str) -> None:
    try:
        utf8(text)
    except ValueError as error:
        raise PluginError(USAGE, f"{place}: {error}") from None


def _parse_reference(text: str) -> tuple[str, str, str]:
    """Parse NAME[=SECRET/KEY], and return the variable, the Secret and its key.

    The variable alone gives both names: HF_TOKEN is the key HF_TOKEN of the Secret `hf-token`.
    """
    name, equals, place = text.partition("=")
    found = _REFERENCE.fullmatch(place if equals else f"{_secret_name(name)}/{name}")
    if not found:
        rule = "the Secret of lower-case letters, digits, '-' and '.', the key of letters, digits, '-', '_' and '.'"
        raise PluginError(USAGE, f"--secret: {text[:_SHOWN]!r} must be NAME or NAME=SECRET/KEY, {rule}")
    return name, found[1], found[2]


def _secret_name(variable: str) -> str:
    return variable.lower().replace("_", "-")


def is_credential_name(name: str) -> bool:
    """Return whether a variable of this name holds a credential."""
    return bool(_CREDENTIAL.search(name)) and not _PLACE.search(name)


def warn_of_variables(variables: Iterable[JsonObject]) -> None:
    """Warn of credentials in plain text in the job, and of names that some shells do not pass on."""
    dropped = [each["name"] for each in variables if not _OF_A_SHELL.fullmatch(each["name"])]
    for name in (each["name"] for each in variables if each.get("value")):
        if is_credential_name(name):
            say(
                f"--env: {name}: is stored in plain text, and all users who can read jobs can see it. Use a Secret "
                f"and --secret {name} (key {name} of Secret {_secret_name(name)})"
            )
    if dropped:
        say(
            f"--env: {', '.join(dropped)}: some shells, such as dash, do not pass on names with characters other than "
            "letters, digits and '_'. Workers start with the sh of the image"
        )


def check_secrets(cluster: Cluster, variables: Iterable[JsonObject]) -> None:
    """Check that the Secrets in the job, and their keys, exist. Print no values.

    If the user may not read Secrets, print that they are not checked.
    """
    where = f"in namespace {cluster.namespace}"
    for each in variables:
        if "valueFrom" not in each:
            continue
        reference = each["valueFrom"]["secretKeyRef"]
        name, secret, key = each["name"], reference["name"], reference["key"]
        try:
            found = cluster.find("secrets", secret)
        except PluginError as error:
            if error.code != REFUSED:
                raise
            say(
                f"--secret: {name}: not checked, because you may not read Secrets {where}. "
                f"Workers wait until Secret {secret} has the key {key}"
            )
            continue
        if found is None:
            command = cluster.command(f"create secret generic {secret} --from-literal {key}=VALUE", "")
            problem = f"Secret {secret} does not exist {where}. Create it: {command.strip()}"
            raise PluginError(USAGE, f"--secret: {name}: {problem}")
        keys = sorted(found.get("data") or {})
        if key not in keys:
            problem = f"Secret {secret} has no key {key}. It must be one of: {', '.join(keys) or 'none'}"
            raise PluginError(USAGE, f"--secret: {name}: {problem}")
