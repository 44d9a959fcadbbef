"""The stack files of the project."""

from __future__ import annotations

from typing import Any

from trainyard import stack_files

# Stack files that tests write begin so, and git ignores them.
OF_TESTS = "zz-"


def shipped() -> list[str]:
    """Return the names of the stack files of the project."""
    return [name for name in stack_files.names() if not name.startswith(OF_TESTS)]


def config_of(stack: str) -> dict[str, Any]:
    """Return the unchanged settings of a stack file."""
    config: dict[str, Any] = stack_files.read(stack_files.find(stack))["config"]
    return config
