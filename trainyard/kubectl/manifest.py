"""A TorchrunJob of the words that were given. Pure, but for the random ending of a name that nobody gave."""

from __future__ import annotations

import argparse
import re
import secrets
import shlex
from collections.abc import Mapping
from typing import Any, Final

from trainyard.kubectl import secret_variables
from trainyard.kubectl.errors import USAGE, PluginError
from trainyard.kubectl.names import sendable
from trainyard.operator import names as n
from trainyard.operator.command import literally, unclosed
from trainyard.workspace.archive import Archive

JsonObject = dict[str, Any]
# RFC 1035's label, as Kubernetes wants of a Service's name.
_NAME: Final = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
# What the API server takes for a variable's name (trainyard/operator/api/environment.py) ...
VARIABLE: Final = re.compile(r"[A-Za-z_][-._A-Za-z0-9]*")
VARIABLE_MAX_LENGTH: Final = 253
# ... and what every shell passes on of it: dash, which is many images' sh, leaves out all other names.
_OF_A_SHELL: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Of a command, and of a variable's value (trainyard/operator/api).
TEXT_MAX_LENGTH: Final = 32768
_ENDING: Final = "bcdfghjklmnpqrstvwxz2456789"
_ENDING_LENGTH: Final = 5
_SHOWN: Final = 60


def job(
    options: argparse.Namespace, namespace: str, directory: str, environment: Mapping[str, str]
) -> JsonObject:
    """The job without its workspace. Raises PluginError that names the flag."""
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
    """`spec.workspace` for this archive."""
    found: JsonObject = {"digest": archive.digest, "sizeBytes": archive.size}
    if url:
        found["url"] = url
    return found


def checked_name(flag: str, name: str) -> str:
    """The name, if a job can have it."""
    if len(name) > n.JOB_NAME_MAX_LENGTH:
        raise PluginError(
            USAGE,
            f"{flag}: {name[:_SHOWN]}... has {len(name)} characters; a job's name has at most {n.JOB_NAME_MAX_LENGTH}",
        )
    if not _NAME.fullmatch(name):
        raise PluginError(
            USAGE, f"{flag}: {name!r} should have a-z, 0-9 and -, begin with a letter and not end with -"
        )
    return name


def left_out(job: JsonObject) -> list[str]:
    """The variables of the job that not every shell passes on to the command."""
    names = [str(each["name"]) for each in job["spec"].get("env", ())]
    return [name for name in names if not _OF_A_SHELL.fullmatch(name)]


def new_name(directory: str) -> str:
    """A name after this directory, which nobody else has."""
    stem = re.sub(r"[^a-z0-9]+", "-", directory.lower()).strip("-")
    stem = stem if stem[:1].isalpha() else f"job-{stem}".rstrip("-")
    stem = stem[: n.JOB_NAME_MAX_LENGTH - _ENDING_LENGTH - 1].rstrip("-")
    return f"{stem}-" + "".join(secrets.choice(_ENDING) for _ in range(_ENDING_LENGTH))


def _command(words: list[str]) -> str:
    """One word is a command line as it is; several are those that the shell made of one."""
    command = words[0] if len(words) == 1 else shlex.join(words)
    if not command.strip():
        raise PluginError(USAGE, 'command: is empty; give one in quotes, such as "python train.py"')
    _check_length("command", "a command", command)
    if why := unclosed(command):
        raise PluginError(USAGE, f"command: {command[:_SHOWN]!r}: {why}; close the quotation")
    return _sendable("command", command)


def _elastic(options: argparse.Namespace) -> JsonObject:
    if options.min is None and options.max is None:
        if options.nodes and options.gpus % options.nodes:
            raise PluginError(
                USAGE,
                f"--nodes: {options.nodes} does not divide --gpus {options.gpus}; each node has the same number",
            )
        return {}
    if options.min is None or options.max is None:
        missing, given = ("--min", "--max") if options.min is None else ("--max", "--min")
        raise PluginError(USAGE, f"{missing}: is missing beside {given}; an elastic job needs both")
    if options.nodes is not None:
        raise PluginError(USAGE, "--nodes: excludes --min and --max; give a fixed size or a range")
    if options.min > options.max:
        raise PluginError(USAGE, f"--min: {options.min} is above --max {options.max}")
    if options.gpus % options.max:
        raise PluginError(
            USAGE,
            f"--max: {options.max} does not divide --gpus {options.gpus}, which are those of --max nodes",
        )
    return {"minNodes": options.min, "maxNodes": options.max}


def _variables(given: list[str], environment: Mapping[str, str]) -> list[JsonObject]:
    values: dict[str, str] = {}
    for each in given:
        name, equals, value = each.partition("=")
        _check_variable(name)
        if not equals:
            if name not in environment:
                raise PluginError(USAGE, f"--env: {name} is not set here; give {name}=VALUE")
            value = literally(environment[name])
        _check_length(f"--env: {name}", "a value", value)
        values[name] = _sendable(f"--env: {name}", value)
    return [{"name": name, "value": value} for name, value in values.items()]


def _secrets(options: argparse.Namespace) -> list[JsonObject]:
    names = {each.partition("=")[0] for each in options.env}
    found: dict[str, JsonObject] = {}
    for each in options.secret:
        name, secret, key = secret_variables.parse_reference(each)
        _check_variable(name, "--secret")
        if name in names:
            raise PluginError(USAGE, f"--secret: {name} is given by --env, too; give one of them")
        found[name] = secret_variables.env_variable(name, secret, key)
    return list(found.values())


def _check_length(what: str, kind: str, word: str) -> None:
    if len(word) > TEXT_MAX_LENGTH:
        raise PluginError(USAGE, f"{what}: has {len(word)} characters; {kind} has at most {TEXT_MAX_LENGTH}")


def _check_variable(name: str, flag: str = "--env") -> None:
    if not name:
        value = "VALUE" if flag == "--env" else "SECRET/KEY"
        raise PluginError(USAGE, f"{flag}: a name should stand before the equals sign: NAME={value}, or NAME")
    if len(name) > VARIABLE_MAX_LENGTH:
        raise PluginError(
            USAGE,
            f"{flag}: the name {name[:_SHOWN]}... has {len(name)} characters; a variable's has at most "
            f"{VARIABLE_MAX_LENGTH}",
        )
    if not VARIABLE.fullmatch(name):
        raise PluginError(
            USAGE,
            f"{flag}: the name {name[:_SHOWN]!r} should have letters (A-Z, a-z), digits, '_', '-' and '.', and no "
            "digit, '-' or '.' first",
        )


def _sendable(what: str, word: str) -> str:
    try:
        return sendable(word)
    except ValueError as error:
        raise PluginError(USAGE, f"{what}: {error}") from None
