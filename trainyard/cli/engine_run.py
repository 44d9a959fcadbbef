"""Run the engine so that the end of the command that shows it does not end the engine halfway.

A killed engine leaves things in the account that its state does not name. So it runs in a session of its own and
writes to a file, which the command reads: Ctrl-C asks it to stop in order, and when the command is killed it goes on.
What a killed engine leaves running is ended.
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
    """A person stopped the command, and the engine has ended in order; one line."""


def watched(
    words: Sequence[str],
    directory: Path,
    environment: Mapping[str, str],
    log: Path,
    record: Path | None,
    show: Callable[[str], None],
    stop: Callable[[], bool] = lambda: False,
) -> int:
    """Run a command and pass every line of its output to `show`; its exit code.

    `record` says, while it runs, which session is its own. Of an earlier one it names nothing is left running. Without
    a record nothing is ended.
    The first interrupt is passed on and the command's end awaited; the second makes it end at once. `stop` is called
    again and again; once it says so, the command is asked to stop, too.

    Raises:
        Interrupted: it was interrupted and has ended.
        OSError: it can't be started, or the log or the record not be written.
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
    """SIGINT for the engine alone: it ends its plugins itself."""
    if process.poll() is None:
        os.kill(process.pid, signal.SIGINT)


class _Lines:
    """Whole lines of a file that grows; the last one also without its end when nothing more comes."""

    def __init__(self, source: IO[str]) -> None:
        self._source = source
        self._part = ""

    def complete(self) -> list[str]:
        """The lines that have been finished since the last call."""
        *whole, self._part = (self._part + self._source.read()).split("\n")
        return whole
