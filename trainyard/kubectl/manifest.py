"""Build a TorchrunJob from the arguments of `submit`, also its variables from Secrets. The entry point is `job`.

Pure, except for `check_secrets` and the random suffix of a default name.
"""

from __future__ import annotations

import argparse
import re
import secrets
import shlex
from collections.abc import Iterable, Mapping
from typing import Any, Final

from trainyard.kubectl.cli import utf8
from trainyard.kubectl.cluster import Cluster
from trainyard.kubectl.output import REFUSED, USAGE, PluginError, say
from trainyard.operator import names as n
from trainyard.operator.command import literally, unclosed
from trainyard.workspace.archive import Archive

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
# A label of RFC 1035, as the name of a Service must be.
_NAME: Final = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
# The names of variables that the API server accepts (trainyard/operator/api/job.py).
VARIABLE: Final = re.compile(r"[A-Za-z_][-._A-Za-z0-9]*")
VARIABLE_MAX_LENGTH: Final = 253
# The names that every shell passes on. dash, which is sh in many images, drops all others.
_OF_A_SHELL: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# The limit of a command and of a variable's value (trainyard/operator/api).
TEXT_MAX_LENGTH: Final = 32768
_ENDING: Final = "bcdfghjklmnpqrstvwxz2456789"
_ENDING_LENGTH: Final = 5


def job(
    options: argparse.Namespace, namespace: str, directory: str, environment: Mapping[str, str]
) -> JsonObject:
    """Return the job without its workspace. Raise PluginError with the name of the flag."""
    spec: JsonObject = {
        "jobQueue": options.queue,
        "numGPUs": options.gpus,
        "command": _command(options.command),
    }
    if options.launcher is not None:
        spec["launcher"] = options.launcher
    if options.nodes is not None:
        spec["numNodes"] = options.nodes
    if elastic := _elastic(options):
        spec["elastic"] = elastic
    if variables := [*_variables(options.env, environment), *_secrets(options)]:
        spec["env"] = variables
    name = options.name if options.name is not None else new_name(directory)
    return {
        "apiVersion": n.API_VERSION,
        "kind": n.JOB_KIND,
        "metadata": {"name": checked_name("--name", name), "namespace": namespace},
        "spec": spec,
    }


def workspace(archive: Archive, url: str) -> JsonObject:
    """Return `spec.workspace` for this archive."""
    found: JsonObject = {"digest": archive.digest, "sizeBytes": archive.size}
    if url:
        found["url"] = url
    return found


def checked_name(flag: str, name: str) -> str:
    """Return the name if a job can have it. Raise PluginError."""
    if len(name) > n.JOB_NAME_MAX_LENGTH:
        limit = f"a job's name must have at most {n.JOB_NAME_MAX_LENGTH}"
        raise PluginError(USAGE, f"{flag}: {name[:_SHOWN]}... has {len(name)} characters; {limit}")
    if not _NAME.fullmatch(name):
        raise PluginError(
            USAGE, f"{flag}: {name!r} must be a-z, 0-9 and -, start with a letter and not end with -"
        )
    return name


def dropped_by_shells(variables: Iterable[JsonObject]) -> list[str]:
    """Return the names of variables that some shells do not pass on to the command."""
    return [name for name in (str(each["name"]) for each in variables) if not _OF_A_SHELL.fullmatch(name)]


def new_name(directory: str) -> str:
    """Return a unique name from the name of the directory."""
    stem = re.sub(r"[^a-z0-9]+", "-", directory.lower()).strip("-")
    stem = stem if stem[:1].isalpha() else f"job-{stem}".rstrip("-")
    stem = stem[: n.JOB_NAME_MAX_LENGTH - _ENDING_LENGTH - 1].rstrip("-")
    return f"{stem}-" + "".join(secrets.choice(_ENDING) for _ in range(_ENDING_LENGTH))


def _command(words: list[str]) -> str:
    """Return the command line: one word is a whole line, several were split by the shell."""
    command = words[0] if len(words) == 1 else shlex.join(words)
    if not command.strip():
        raise PluginError(USAGE, 'command: is empty; give one in quotes, such as "python train.py"')
    _check_text("command", "a command", command)
    if why := unclosed(command):
        raise PluginError(USAGE, f"command: {command[:_SHOWN]!r}: {why}; close the quotation")
    return command


def _elastic(options: argparse.Namespace) -> JsonObject:
    if options.min is None and options.max is None:
        if options.nodes and options.gpus % options.nodes:
            why = f"does not divide --gpus {options.gpus}; each node has the same number"
            raise PluginError(USAGE, f"--nodes: {options.nodes} {why}")
        return {}
    if options.min is None or options.max is None:
        missing = "--min" if options.min is None else "--max"
        raise PluginError(USAGE, f"{missing}: is missing; an elastic job needs --min and --max")
    if options.nodes is not None:
        raise PluginError(USAGE, "--nodes: excludes --min and --max; give a fixed size or a range")
    if options.min > options.max:
        raise PluginError(USAGE, f"--min: {options.min} is above --max {options.max}")
    if options.gpus % options.max:
        why = f"does not divide --gpus {options.gpus}, the GPUs of --max nodes"
        raise PluginError(USAGE, f"--max: {options.max} {why}")
    return {"minNodes": options.min, "maxNodes": options.max}


def _variables(arguments: list[str], environment: Mapping[str, str]) -> list[JsonObject]:
    values: dict[str, str] = {}
    for each in arguments:
        name, equals, value = each.partition("=")
        _check_variable(name)
        if not equals:
            if name not in environment:
                raise PluginError(USAGE, f"--env: {name} is not set here; give {name}=VALUE")
            value = literally(environment[name])
        _check_text(f"--env: {name}", "a value", value)
        values[name] = value
    return [{"name": name, "value": value} for name, value in values.items()]


def _secrets(options: argparse.Namespace) -> list[JsonObject]:
    names = {each.partition("=")[0] for each in options.env}
    found: dict[str, JsonObject] = {}
    for each in options.secret:
        name, secret, key = parse_reference(each)
        _check_variable(name, "--secret")
        if name in names:
            raise PluginError(USAGE, f"--secret: {name} is also set by --env; use one of them")
        found[name] = {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}
    return list(found.values())


def _check_text(place: str, kind: str, text: str) -> None:
    if len(text) > TEXT_MAX_LENGTH:
        limit = f"{kind} must have at most {TEXT_MAX_LENGTH}"
        raise PluginError(USAGE, f"{place}: has {len(text)} characters; {limit}")
    try:
        utf8(text)
    except ValueError as error:
        raise PluginError(USAGE, f"{place}: {error}") from None


def _check_variable(name: str, flag: str = "--env") -> None:
    problem = ""
    if not name:
        value = "VALUE" if flag == "--env" else "SECRET/KEY"
        problem = f"a name must precede the equals sign: NAME={value}, or NAME"
    elif len(name) > VARIABLE_MAX_LENGTH:
        limit = f"the name of a variable must have at most {VARIABLE_MAX_LENGTH}"
        problem = f"the name {name[:_SHOWN]}... has {len(name)} characters; {limit}"
    elif not VARIABLE.fullmatch(name):
        rule = "letters (A-Z, a-z), digits, '_', '-' and '.', and not start with a digit, '-' or '.'"
        problem = f"the name {name[:_SHOWN]!r} must have {rule}"
    if problem:
        raise PluginError(USAGE, f"{flag}: {problem}")


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
    problem = ""
    if len(secret) > _SECRET_MAX_LENGTH or not _SECRET.fullmatch(secret):
        rule = "the Secret of lower-case letters, digits, '-' and '.'"
        problem = (
            f"{secret[:_SHOWN]!r} is not the name of a Secret. It must be NAME or NAME=SECRET/KEY, {rule}"
        )
    elif not _KEY.fullmatch(key):
        rule = "the key of letters, digits, '-', '_' and '.'"
        problem = f"{key[:_SHOWN]!r} is not a key of a Secret. It must be NAME or NAME=SECRET/KEY, {rule}"
    if problem:
        raise PluginError(USAGE, f"--secret: {text[:_SHOWN]!r}: {problem}")
    return name, secret, key


def is_credential_name(name: str) -> bool:
    """Return whether a variable of this name holds a credential."""
    return bool(_CREDENTIAL.search(name)) and not _PLACE.search(name)


def warn_of_credentials(variables: Iterable[JsonObject]) -> None:
    """Warn of credentials in plain text in the job, and say how to use a Secret instead."""
    for name in (each["name"] for each in variables if each.get("value")):
        if not is_credential_name(name):
            continue
        secret = name.lower().replace("_", "-")
        say(
            f"--env: {name}: is stored in plain text, and all users who can read jobs can see it. Use a Secret "
            f"and --secret {name} (key {name} of Secret {secret})"
        )


def check_secrets(cluster: Cluster, variables: Iterable[JsonObject]) -> None:
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
