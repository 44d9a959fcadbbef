"""Exit codes of the plugin, and `PluginError`, which has one of them and a message of one line."""

from __future__ import annotations

from typing import Final

PROGRAM: Final = "kubectl torchrun"
VERSION: Final = "0.1.0"  # as in pyproject.toml, which a single file does not have
DONE: Final = 0
JOB_FAILED: Final = 1  # with an unknown exit code
# As in BSD's sysexits.h. A training ends with none of them.
USAGE: Final = 64
WORKSPACE: Final = 65
NOT_FOUND: Final = 66
UNAVAILABLE: Final = 69
OUTPUT: Final = 74
REMOVED: Final = 75  # a followed job, whose end was not seen
REFUSED: Final = 77
NO_KUBECONFIG: Final = 78
INTERRUPTED: Final = 130


class PluginError(Exception):
    """A message for the user, and the exit code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
