"""Errors of workspaces, each with a message of one line, and how messages show sizes."""

from __future__ import annotations


class WorkspaceError(Exception):
    """A retry does not help: a bad directory, a damaged or malicious archive, a bucket that refuses the request."""


class Refused(WorkspaceError):
    """The archive itself is invalid: every worker refuses it."""


class Damaged(WorkspaceError):
    """The archive has another digest. Another download may be complete."""


class NotThere(Exception):
    """The archive or its source does not exist yet, or can't be reached now. A retry may help."""


def format_size(size: float) -> str:
    """Return a number of bytes with a unit, in powers of 1024."""
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
