"""Keep the state of a stack complete when the disk becomes full.

After each step, the engine writes its whole state, with ten attempts in half a minute. An attempt without space
leaves half a file (pulumi, pkg/backend/diy/state.go; gocloud.dev, blob/fileblob). So this reserves space, frees it
for the last write when the disk is full, and asks the engine to stop.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import time
from pathlib import Path
from typing import Any

from local.home import parse_record, read_record, write_atomically

RESERVE_BYTES = 32 << 20
FULL_BYTES = 1_000_000
# Whatever fills the disk may still be at it; within the engine's half minute of tries.
FULL_SECONDS = 2.0
KEEP_SECONDS = 1.0


class WholeState:
    """The state file of one stack, with its reserved space and a copy of the last complete state."""

    def __init__(self, state_file: Path, directory: Path, stack: str) -> None:
        self._state_file = state_file
        self._copy = directory / f"{stack}.kept.json"
        self._reserve = directory / f"{stack}.reserve"
        self._copied_at = 0.0
        self._full_since: float | None = None
        self.disk_was_full = False

    def begin(self) -> None:
        """Reserve the space before the engine runs.

        Raises:
            OSError: The disk is already full.
        """
        self.disk_was_full = False
        self._full_since = None
        with self._reserve.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, RESERVE_BYTES)

    def must_stop(self) -> bool:
        """Return whether the engine must stop because the disk is full. Call this repeatedly while it runs."""
        now = time.monotonic()
        full = self._is_full()
        self._full_since = (self._full_since or now) if full else None
        # What fails for that says something else: the API server, for one, that it is too slow.
        self.disk_was_full = self.disk_was_full or full
        if self._full_since is not None and now - self._full_since >= FULL_SECONDS:
            self.end()
        elif now - self._copied_at >= KEEP_SECONDS:
            self._copied_at = now
            self._keep()
        return not self._reserve.exists()

    def end(self) -> None:
        """Free the space."""
        self._reserve.unlink(missing_ok=True)

    def _is_full(self) -> bool:
        if shutil.disk_usage(self._reserve.parent).free >= FULL_BYTES:
            return False
        # What is left may be kept for root, which may be who asks.
        probe = self._reserve.with_suffix(".probe")
        try:
            with probe.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, FULL_BYTES)
        except OSError:
            return True
        finally:
            probe.unlink(missing_ok=True)
        return False

    def _keep(self) -> None:
        # A full disk, or a file that is cut off, leaves the last copy.
        with contextlib.suppress(OSError, ValueError):
            text = self._state_file.read_text()
            if _checkpoint(parse_record(text)) is not None:
                write_atomically(self._copy, text, 0o600)

    def restore(self) -> bool:
        """Restore the copy if the state is damaged, and return whether it was.

        Raises:
            FileNotFoundError: There is no complete copy.
        """
        if not self._state_file.exists() or read_checkpoint(self._state_file) is not None:
            return False
        if read_checkpoint(self._copy) is None:
            raise FileNotFoundError(errno.ENOENT, "there is no complete copy of the state", str(self._copy))
        write_atomically(self._state_file, self._copy.read_text(), 0o600)
        return True

    def forget(self) -> None:
        """Remove the copy."""
        self._copy.unlink(missing_ok=True)


def read_checkpoint(state_file: Path) -> dict[str, Any] | None:
    """Return the engine's checkpoint of a stack, or None if its state file is missing or damaged."""
    return _checkpoint(read_record(state_file))


def _checkpoint(state: dict[str, Any] | None) -> dict[str, Any] | None:
    checkpoint = (state or {}).get("checkpoint")
    return checkpoint if isinstance(checkpoint, dict) else None
