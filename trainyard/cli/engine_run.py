"""Run the engine so that it continues when the command that shows its output is killed.

A killed engine leaves resources in the account that are not in its state. So it runs in its own session and writes to
a file, which the command reads. Ctrl-C asks it to stop in order. Processes that a killed engine left are ended.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from trainyard.cli.engine_session import MARK, end_recorded, started

POLL_SECONDS = 0.1


class Interrupted(Exception):
    """A user stopped the command, and the engine has ended in order."""


def run_command(
    words: Sequence[str],
    directory: Path,
    environment: Mapping[str, str],
    log: Path,
    record: Path | None,
    show: Callable[[str], None],
    stop: Callable[[], bool] = lambda: False,
) -> int:
    """Run a command, pass each line of its output to `show`, and return its exit code.

    The first interrupt is forwarded, and this waits for the end of the command. A second one ends it at once.

    Args:
        record: The file that names the session of the command while it runs. Processes of an earlier
            record are ended. Without it, none are ended.
        stop: Called repeatedly. If it returns true, the command is asked to stop.

    Raises:
        Interrupted: The command was interrupted and has ended.
        OSError: It can't be started, or the log or the record can't be written.
    """
    if record is not None:
        end_recorded(record)
    mark = uuid.uuid4().hex
    with log.open("w") as sink, log.open(errors="replace") as source:
        process = subprocess.Popen(
            words,
            cwd=directory,
            env={**environment, MARK: mark},
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        session = started(process.pid, mark)
        try:
            if record is not None:
                session.save(record)
        except BaseException:
            process.kill()
            process.wait()
            session.end()
            raise
        interrupts, stopping = 0, False
        lines = _Lines(source)
        while True:
            try:
                ended = process.poll() is not None
                for line in lines.complete():
                    show(line)
                if ended:
                    break
                if stop() and not stopping:
                    stopping = True
                    _interrupt(process)
                time.sleep(POLL_SECONDS)
            except KeyboardInterrupt:
                interrupts += 1
                if interrupts == 1:
                    show(f"stopping {words[0]} {words[1]} in order; once more stops it at once")
                _interrupt(process)
    if record is not None:
        end_recorded(record)
    if interrupts:
        raise Interrupted(f"{words[0]} {words[1]} was stopped")
    return process.returncode


def _interrupt(process: subprocess.Popen[bytes]) -> None:
    """Send SIGINT to the engine only: it ends its plugins itself."""
    if process.poll() is None:
        os.kill(process.pid, signal.SIGINT)


class _Lines:
    """Reads the complete lines of a growing file, and at its end also an incomplete one."""

    def __init__(self, source: IO[str]) -> None:
        self._source = source
        self._part = ""

    def complete(self) -> list[str]:
        """Return the lines that were completed since the last call."""
        *whole, self._part = (self._part + self._source.read()).split("\n")
        return whole
