"""The records of a run as lines of a file, `<directory>/<run>.jsonl`. Every training of the run appends to it."""

from __future__ import annotations

import os
from pathlib import Path

from trainer.metrics.record import Record, to_line


class RecordFile:
    """One open file. Each record is there whole or not at all, whenever the process is killed or the disk is full.

    Records are handed to the kernel at once and not synced: they outlive the process, and the last seconds of them may
    not outlive the machine.
    """

    name = "records"

    def __init__(self, directory: Path, run: str) -> None:
        """Opens or makes the file, and its directory. Raises OSError."""
        directory.mkdir(parents=True, exist_ok=True)
        self.path = directory / f"{run}.jsonl"
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            self._end_torn_line()
        except OSError:
            os.close(self._file)
            raise

    def _end_torn_line(self) -> None:
        """A machine that was lost may have left half a line: it must not swallow the next one."""
        size = os.fstat(self._file).st_size
        if size and os.pread(self._file, 1, size - 1) != b"\n":
            self._append(b"\n")

    def write(self, record: Record) -> None:
        """Append one line. Raises OSError; the file is then as it was."""
        self._append(to_line(record).encode())

    def _append(self, data: bytes) -> None:
        before = os.fstat(self._file).st_size
        done = 0
        try:
            while done < len(data):
                done += os.write(self._file, data[done:])
        except OSError:
            if done:
                os.ftruncate(self._file, before)
            raise

    def close(self) -> None:
        """Closes the file; a second time does nothing."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
