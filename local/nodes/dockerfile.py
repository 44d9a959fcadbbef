"""Parse how the image of a Dockerfile runs. `parse` is the entry point. Pure.

It reads USER, WORKDIR, ENV, ENTRYPOINT, CMD and users of one stage. Of RUN, it reads only `useradd --uid`. It builds
nothing. Reference: docs.docker.com/reference/dockerfile.
"""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass, field, replace

ESCAPED = "\0"
VARIABLE = re.compile(r"\\\$|\$(?:(\w+)|\{(\w+)(?::([-+])([^}]*))?\})")


@dataclass(frozen=True)
class Image:
    """How an image runs.

    `workdir` is absolute, `user` is the text of USER: `user[:group]`, names or numbers. `users` are the created users
    with their IDs.
    """

    workdir: str = "/"
    user: str = ""
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    users: dict[str, int] = field(default_factory=dict)


def instructions(text: str) -> list[tuple[str, str]]:
    """Return (INSTRUCTION, rest) pairs, without comments, and with continued lines joined."""
    found = []
    pending = ""
    for line in text.splitlines():
        if line.lstrip().startswith("#") or (not line.strip() and not pending):
            continue
        pending += line.rstrip()
        if pending.endswith("\\"):
            pending = pending[:-1]
            continue
        word, _, rest = pending.strip().partition(" ")
        found.append((word.upper(), rest.strip()))
        pending = ""
    return found


def parse_command(rest: str) -> tuple[str, ...]:
    """Return a command: its JSON form, or `/bin/sh -c` with its shell form."""
    if rest.startswith("["):
        try:
            return tuple(str(word) for word in json.loads(rest))
        except ValueError as error:
            raise ValueError(f"{rest!r} is not a JSON list of strings: {error}") from error
    return ("/bin/sh", "-c", rest)


def substituted(text: str, variables: dict[str, str]) -> str:
    """Replace `$NAME`, `${NAME}`, `${NAME:-default}` and `${NAME:+other}`."""

    def value(match: re.Match[str]) -> str:
        if match[0] == "\\$":
            return "$"
        known = variables.get(match[1] or match[2], "")
        if match[3] == "-":
            return known or match[4]
        if match[3] == "+":
            return match[4] if known else ""
        return known

    return VARIABLE.sub(value, text)


def assignments(rest: str, variables: dict[str, str]) -> dict[str, str]:
    """Return the pairs of ENV, in the form `NAME=value ...` or the old form `NAME value`."""
    first, _, remainder = rest.partition(" ")
    if "=" not in first:
        return {first: substituted(remainder.strip(), variables)}
    # shlex removes the backslash of an escaped dollar sign, so a marker distinguishes it from a plain one.
    pairs = (word.partition("=") for word in shlex.split(rest.replace("\\$", ESCAPED)))
    return {name: substituted(value, variables).replace(ESCAPED, "$") for name, _, value in pairs}


def parse_users(command: str) -> dict[str, int]:
    """Return the users that a shell command creates with `useradd --uid NUMBER ... NAME` (useradd(8): name last)."""
    found = re.finditer(
        r"\buseradd\b[^;&|]*?(?:--uid[ =]|-u ?)(\d+)[^;&|]*?(\w[\w.-]*)\s*(?=[;&|]|$)", command
    )
    return {match[2]: int(match[1]) for match in found}


def parse(text: str, target: str | None = None) -> Image:
    """Return the image of the stage `target` (name or number), by default of the last stage.

    Raises:
        ValueError: The stage does not exist, or a command is malformed.
    """
    stages: dict[str, Image] = {}
    current = Image()
    arguments: dict[str, str] = {}
    count = 0
    names: list[str] = []
    for word, rest in instructions(text):
        variables = arguments | current.environment
        if word == "FROM":
            parts = [part for part in substituted(rest, variables).split() if not part.startswith("--")]
            current = stages.get(parts[0], Image())
            alias = [parts[2]] if len(parts) == 3 and parts[1].lower() == "as" else []
            names = [str(count), *alias]
            count += 1
        elif word == "ARG":
            name, _, default = rest.partition("=")
            arguments[name] = substituted(default.strip("\"'"), variables)
        elif word == "ENV":
            current = replace(current, environment=current.environment | assignments(rest, variables))
        elif word == "WORKDIR":
            path = substituted(rest.strip("\"'"), variables)
            base = "" if path.startswith("/") else current.workdir.rstrip("/") + "/"
            current = replace(current, workdir=base + path)
        elif word == "USER":
            current = replace(current, user=substituted(rest, variables).strip("\"'"))
        elif word == "RUN":
            current = replace(current, users=current.users | parse_users(rest))
        elif word == "ENTRYPOINT":
            current = replace(current, entrypoint=parse_command(rest), command=())
        elif word == "CMD":
            current = replace(current, command=parse_command(rest))
        stages |= dict.fromkeys(names, current)
    if not names:
        raise ValueError("the Dockerfile has no FROM")
    if target and target not in stages:
        raise ValueError(f"the Dockerfile has no stage {target!r}; its last one is {names[-1]!r}")
    return stages[target] if target else current
