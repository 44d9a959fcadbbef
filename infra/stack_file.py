"""Read the settings of a stack from its file, without the Pulumi engine."""

from __future__ import annotations

from pathlib import Path

from infra import settings
from infra.settings import Settings
from trainyard import stack_files


def load(stack: str, file: Path | None = None, *, takes_ended: bool = False) -> Settings:
    """Return the checked settings of a stack.

    Args:
        stack: The stack's name.
        file: The stack file (default: the one that `stack_files.find` finds).
        takes_ended: Accept a reservation that has ended, for callers that deploy nothing.

    Raises:
        trainyard.stack_files.StackFileError: There is no such file, or it is no stack file.
        infra.settings.SettingsError: With all errors in it.
    """
    document = stack_files.read(file or stack_files.find(stack))
    return settings.read(stack, document["config"], takes_ended=takes_ended)
