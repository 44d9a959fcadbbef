"""How the plugin ends: 0, the job's own code with --follow, or one of these with one line that says why."""

from __future__ import annotations

from typing import Final

PROGRAM: Final = "kubectl torchrun"
VERSION: Final = "0.1.0"  # that of pyproject.toml, which a single file does not have
DONE: Final = 0
JOB_FAILED: Final = 1  # and nobody knows its exit code
# BSD's sysexits.h, which programs use for the same; a training ends with none of them.
USAGE: Final = 64
WORKSPACE: Final = 65
NOT_FOUND: Final = 66
UNAVAILABLE: Final = 69
OUTPUT: Final = 74
REMOVED: Final = 75  # the job that was followed, and nobody saw its end
REFUSED: Final = 77
NO_KUBECONFIG: Final = 78
INTERRUPTED: Final = 130


class PluginError(Exception):
    """One line for a person, and the exit code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
