"""The changes of an object that need a replacement. Pure.

The table (`force_new`) has the properties for which the official plugin replaces without a request. For all others, a
dry run asks the API server. A refusal that calls a field immutable means a replacement here; the official plugin fails.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from local.plugins.kubernetes.client import ApiError
from local.plugins.kubernetes.force_new import ALWAYS, TABLE

_IMMUTABLE = re.compile(
    r"immutable|may not be changed|cannot be changed|updates to .* are forbidden", re.IGNORECASE
)


def patterns(api_version: str, kind: str) -> tuple[str, ...]:
    """Return the table's property paths for a kind of object: `spec.template`, with `[*]` for any list position."""
    return (*ALWAYS, *TABLE.get((api_version, kind), ()))


def find_replacements(inputs: Mapping[str, Any], changed: Iterable[str]) -> list[str]:
    """Return the changed property paths that the table replaces."""
    found = patterns(str(inputs.get("apiVersion")), str(inputs.get("kind")))
    return [path for path in changed if any(_covers(pattern, path) for pattern in found)]


def refused_replacements(error: ApiError, changed: Iterable[str]) -> list[str] | None:
    """Return the changed paths that the API server calls immutable; None for a refusal for another reason."""
    if error.code != 422 or not _IMMUTABLE.search(str(error)):
        return None
    fields = [re.sub(r"\[[^\]]*\]", "", field) for field in error.fields()]
    paths = list(changed)
    hit = [
        path
        for path in paths
        if any(_covers(field, _plain(path)) or _covers(_plain(path), field) for field in fields)
    ]
    return hit or [path for path in paths if not path.startswith("metadata.")] or paths


def _covers(pattern: str, path: str) -> bool:
    expression = re.escape(pattern).replace(r"\[\*\]", r"\[\d+\]")
    return re.match(rf"{expression}(?=$|[.\[])", path) is not None


def _plain(path: str) -> str:
    return re.sub(r"\[[^\]]*\]", "", path)
