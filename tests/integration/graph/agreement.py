"""Whether what `up` left is what its preview said, in the form of recordings. If not, they say nothing of stacks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tests.integration.graph.model import UNKNOWN
from tests.integration.graph.recordings import Recording


def contradictions(foreseen: Recording, made: Recording) -> list[str]:
    """Where a state is not what its preview said, as far as that knew it; a line each.

    `foreseen` is recorded of the stack file's first preview, `made` of its state after `up`. A provider that is not
    known in a preview adds its defaults only later, and default providers are not in a preview: neither counts.
    """
    here, there = ({urn for urn in each if not _is_default(urn)} for each in (foreseen, made))
    return [
        *(f"only in the preview: {_short(urn)}" for urn in sorted(here - there)),
        *(f"only in the state: {_short(urn)}" for urn in sorted(there - here)),
        *(
            f"{_short(urn)}: {line}"
            for urn in sorted(here & there)
            for line in _differences(_comparable(foreseen[urn]), made[urn], "")
        ),
    ]


def _is_default(urn: str) -> bool:
    _, _, kind, name = urn.split("::", 3)
    return kind.startswith("pulumi:providers:") and name.startswith("default")


def _comparable(each: Mapping[str, Any]) -> dict[str, Any]:
    """Without what matters only to the engine that moves a resource to another URN."""
    return {key: entry for key, entry in each.items() if key != "aliases"}


def _short(urn: str) -> str:
    return urn.split("::", 2)[2]


def _differences(seen: Any, real: Any, path: str) -> Iterator[str]:
    if UNKNOWN in (seen, real):
        return
    if isinstance(seen, Mapping) and isinstance(real, Mapping):
        for key, entry in seen.items():
            yield from _differences(entry, real.get(key), f"{path}.{key}" if path else str(key))
    elif isinstance(seen, list) and isinstance(real, list) and len(seen) == len(real):
        for index, entry in enumerate(seen):
            yield from _differences(entry, real[index], f"{path}[{index}]")
    elif seen != real:
        yield f"{path} is {json.dumps(real)}, and the preview said {json.dumps(seen)}"
