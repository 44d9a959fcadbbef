"""Property paths as the engine writes them: `spec.template`, `tags["a.b"]`, `steps[0].x`, `steps[*]`. Pure.

github.com/pulumi/pulumi, sdk/go/common/resource/properties_path.go.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

# A position or any of them, a quoted key, a plain one (`*` is any).
_STEP = re.compile(r'\[(\d+|\*)\]|\["((?:[^"\\]|\\.)*)"\]|\.?([^.\[\]]+)')


def covers(pattern: str, path: str) -> bool:
    """Whether the path is the pattern, or lies below it. `[*]` in a pattern is any position."""
    wanted, found = _steps(pattern), _steps(path)
    return len(wanted) <= len(found) and all(
        each in ("*", step) for each, step in zip(wanted, found, strict=False)
    )


def without(value: Mapping[str, Any], paths: Iterable[str]) -> dict[str, Any]:
    """The same without what the paths cover. Positions in a list stay: what is taken out there is None."""
    found: Any = value
    for path in paths:
        found = _without(found, _steps(path))
    return dict(found)


def _steps(path: str) -> list[str]:
    return [
        position or plain or re.sub(r"\\(.)", r"\1", quoted)
        for position, quoted, plain in _STEP.findall(path)
    ]


def _without(value: Any, steps: list[str]) -> Any:
    step, *rest = steps
    if isinstance(value, Mapping):
        hit = {key for key in value if step in ("*", key)}
        if not rest:
            return {key: entry for key, entry in value.items() if key not in hit}
        return {key: _without(entry, rest) if key in hit else entry for key, entry in value.items()}
    if isinstance(value, list):
        return [
            entry if step not in ("*", str(index)) else _without(entry, rest) if rest else None
            for index, entry in enumerate(value)
        ]
    return value
