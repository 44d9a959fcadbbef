"""Build a TorchrunJob from the arguments of `submit`, also its variables from Secrets. The entry point is `job`.

Pure, except for `check_secrets` and the random suffix of a default name. The API server checks the rest of the job,
such as the lengths of texts.
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
# Valid names of a Secret and of its keys (https://kubernetes.io/docs/concepts/configuration/secret/).
_SECRET: Final = re.compile(rf"(?!.{{254}}){n.RFC1123_SUBDOMAIN}")
_KEY: Final = re.compile(r"[-._a-zA-Z0-9]{1,253}")
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
# The names that every shell passes on. dash, which is sh in many images, drops all others.
_OF_A_SHELL: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ENDING: Final = "bcdfghjklmnpqrstvwxz2456789"
_ENDING_LENGTH: Final = 5


def job(options: argparse.Namespace, namespace: str, directory: str) -> JsonObject:
    """Return the job without its workspace. Raise PluginError with the name of the flag."""
    optional = {
        "launcher": options.launcher,
        "numNodes": options.nodes,
        "elastic": _elastic(options),
        "env": [*_variables(options), *_secrets(options)],
    }
    return {
        "apiVersion": n.API_VERSION,
        "kind": n.JOB_KIND,
        "metadata": {"name": _name(options, directory), "namespace": namespace},
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


def _name(options: argparse.Namespace, directory: str) -> str:
    name = options.name
    if name is None:  # unique, from the name of the directory
        stem = re.sub(r"[^a-z0-9]+", "-", directory.lower()).strip("-")
        stem = stem if stem[:1].isalpha() else f"job-{stem}".rstrip("-")
        stem = stem[: n.JOB_NAME_MAX_LENGTH - _ENDING_LENGTH - 1].rstrip("-")
        name = f"{stem}-" + "".join(secrets.choice(_ENDING) for _ in range(_ENDING_LENGTH))
    if len(name) > n.JOB_NAME_MAX_LENGTH:
        limit = f"a job's name must have at most {n.JOB_NAME_MAX_LENGTH}"
        raise PluginError(USAGE, f"--name: {name[:_SHOWN]}... has {len(name)} characters; {limit}")
    if not _NAME.fullmatch(name):
        rule = "must be a-z, 0-9 and -, start with a letter and not end with -"
        raise PluginError(USAGE, f"--name: {name!r} {rule}")
    return str(name)


def _command(words: list[str]) -> str:
    """Return the command line: one word is a whole line, several were split by the shell."""
    command = words[0] if len(words) == 1 else shlex.join(words)
    if not command.strip():
        raise PluginError(USAGE, 'command: is empty; give one in quotes, such as "python train.py"')
    _check_text("command", command)
    if why := unclosed(command):
        raise PluginError(USAGE, f"command: {command[:_SHOWN]!r}: {why}; close the quotation")
    return command


def _elastic(options: argparse.Namespace) -> JsonObject:
    gpus, nodes, minimum, maximum = options.gpus, options.nodes, options.min, options.max
    problem = ""
    if minimum is None and maximum is None:
        if nodes and gpus % nodes:
            problem = f"--nodes: {nodes} does not divide --gpus {gpus}; each node has the same number"
    elif minimum is None or maximum is None:
        missing = "--min" if minimum is None else "--max"
        problem = f"{missing}: is missing; an elastic job needs --min and --max"
    elif nodes is not None:
        problem = "--nodes: excludes --min and --max; give a fixed size or a range"
    elif minimum > maximum:
        problem = f"--min: {minimum} is above --max {maximum}"
    elif gpus % maximum:
        problem = f"--max: {maximum} does not divide --gpus {gpus}, the GPUs of --max nodes"
    if problem:
        raise PluginError(USAGE, problem)
    return {"minNodes": minimum, "maxNodes": maximum} if minimum else {}


def _variables(options: argparse.Namespace) -> list[JsonObject]:
    values: dict[str, str] = {}
    for word in options.env:
        name, equals, value = word.partition("=")
        _check_variable("--env", name, "VALUE")
        if not equals:
            if name not in options.environment:
                raise PluginError(USAGE, f"--env: {name} is not set here; give {name}=VALUE")
            value = literally(options.environment[name])
        _check_text(f"--env: {name}", value)
        values[name] = value
    return [{"name": name, "value": value} for name, value in values.items()]


def _secrets(options: argparse.Namespace) -> list[JsonObject]:
    names = {word.partition("=")[0] for word in options.env}
    found: dict[str, JsonObject] = {}
    for word in options.secret:
        name, secret, key = parse_reference(word)
        _check_variable("--secret", name, "SECRET/KEY")
        if name in names:
            raise PluginError(USAGE, f"--secret: {name} is also set by --env; use one of them")
        found[name] = {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}
    return list(found.values())


def _check_text(place: str, text: str) -> None:
    try:
        utf8(text)
    except ValueError as error:
        raise PluginError(USAGE, f"{place}: {error}") from None


def _check_variable(flag: str, name: str, value: str) -> None:
    problem = ""
    if not name:
        problem = f"a name must precede the equals sign: NAME={value}, or NAME"
    elif not VARIABLE.fullmatch(name):
        rule = "letters (A-Z, a-z), digits, '_', '-' and '.', and not start with a digit, '-' or '.'"
        problem = f"the name {name[:_SHOWN]!r} must have {rule}"
    if problem:
        raise PluginError(USAGE, f"{flag}: {problem}")


def parse_reference(text: str) -> tuple[str, str, str]:
    """Parse NAME[=SECRET/KEY], and return the variable, the Secret and its key.

    The variable alone gives both names: HF_TOKEN is the key HF_TOKEN of the Secret `hf-token`.
    """
    name, equals, place = text.partition("=")
    secret, _, key = place.partition("/") if equals else (_secret_name(name), "", name)
    problem = ""
    if not _SECRET.fullmatch(secret):
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


def _secret_name(variable: str) -> str:
    return variable.lower().replace("_", "-")


def is_credential_name(name: str) -> bool:
    """Return whether a variable of this name holds a credential."""
    return bool(_CREDENTIAL.search(name)) and not _PLACE.search(name)


def warn_of_variables(variables: Iterable[JsonObject]) -> None:
    """Warn of credentials in plain text in the job, and of names that some shells do not pass on."""
    dropped = [var["name"] for var in variables if not _OF_A_SHELL.fullmatch(var["name"])]
    for name in (var["name"] for var in variables if var.get("value")):
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
    for var in variables:
        if "valueFrom" not in var:
            continue
        reference = var["valueFrom"]["secretKeyRef"]
        name, secret, key = var["name"], reference["name"], reference["key"]
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
