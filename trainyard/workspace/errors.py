"""What goes wrong with a workspace, each as one line that says where, what it is, and what would be right."""

from __future__ import annotations


class WorkspaceError(Exception):
    """No second try heals it: a bad directory, a damaged or malicious archive, a bucket that refuses."""


class Refused(WorkspaceError):
    """The archive itself is wrong: wherever it is put, it is refused again."""


class NotThere(Exception):
    """The archive, or whoever has it, is not there yet or can't be reached now; a later try may find it."""
