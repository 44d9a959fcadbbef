"""The keys of a stack file and what no setting may be: a secret. Part of `infra.settings`."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any, Final

from infra.reading import Problems, hint, type_name

# What is further from the project's name is a provider's namespace, such as aws or kubernetes.
NEAR: Final = 0.75
# How a stack file writes an encrypted value (https://www.pulumi.com/docs/iac/concepts/secrets/).
ENCRYPTED: Final = "secure"
PLAIN: Final = (
    "settings stand in plain text in what they make, Jobs and outputs among it; it must not be here, but in a"
    " Kubernetes Secret that pods of your own read"
)


def check(problems: Problems, config: Mapping[Any, Any], project: str, known: tuple[str, ...]) -> None:
    """Note every key that is meant for the project and would not be read."""
    for key in config:
        if not isinstance(key, str):
            shown = "null" if key is None else str(key).lower() if isinstance(key, bool) else str(key)
            problems.add(f"{project}:{shown}", f"has a key that is {type_name(key)}; it must be a text")
            continue
        namespace, colon, name = key.partition(":")
        if not colon:
            near = "" if key in known else hint(key, known)
            problems.add(key, f"has no namespace; it must be {project}:{key}{near}")
        elif namespace != project and _near(namespace, project):
            problems.add(key, f"'{namespace}' is nobody's namespace; it must be {project}:{name}")


def _near(word: str, project: str) -> bool:
    return difflib.SequenceMatcher(None, word.strip().lower(), project).ratio() >= NEAR


def secret(problems: Problems, path: str, value: object, secrets: frozenset[str]) -> bool:
    """Whether a section holds a secret, which is noted with the place; the engine tells the section alone."""
    places = list(_encrypted(path, value))
    for place in places:
        problems.add(place, f"is a secret, and {PLAIN}")
    if not places and path in secrets:
        problems.add(path, f"holds a secret, and {PLAIN}")
    return bool(places) or path in secrets


def _encrypted(path: str, value: object) -> Iterator[str]:
    if isinstance(value, Mapping):
        if set(value) == {ENCRYPTED} and isinstance(value[ENCRYPTED], str):
            yield path
            return
        for key, entry in value.items():
            yield from _encrypted(f"{path}.{key}", entry)
    elif isinstance(value, list):
        for index, entry in enumerate(value):
            yield from _encrypted(f"{path}[{index}]", entry)
