"""Read the logs of containers: one file per run, with the time of each part. `read` is the entry point."""

from __future__ import annotations

import asyncio
import bisect
import io
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

from local.nodes.api import nano_timestamp

CHUNK = 1 << 16
FOLLOW_SECONDS = 0.3


@dataclass
class Clock:
    """Sizes of one log file over time.

    Programs write to the file directly, so the times are only as precise as the interval of the checks.
    """

    path: Path
    times: list[float] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)

    def record(self, now: float) -> None:
        """Record the current size if it has changed."""
        try:
            size = self.path.stat().st_size
        except FileNotFoundError:
            return
        if not self.sizes or size > self.sizes[-1]:
            self.times.append(now)
            self.sizes.append(size)

    def written_at(self, offset: int) -> float:
        """Return when the byte at an offset was written. For bytes after the last check, it is the file's mtime."""
        index = bisect.bisect_right(self.sizes, offset)
        return self.times[index] if index < len(self.times) else self.path.stat().st_mtime

    def offset_at(self, time: float) -> int:
        """Return the size of the file at a time."""
        index = bisect.bisect_left(self.times, time)
        return self.sizes[index - 1] if index else 0


def tail_offset(path: Path, lines: int) -> int:
    size = path.stat().st_size
    if lines <= 0:
        return size
    with path.open("rb") as file:
        position, wanted = size, lines + 1
        while position > 0:
            start = max(0, position - CHUNK)
            file.seek(start)
            block = file.read(position - start)
            if position == size and not block.endswith(b"\n"):
                wanted -= 1
            for index in range(len(block) - 1, -1, -1):
                if block[index] == 10:
                    wanted -= 1
                    if wanted == 0:
                        return start + index + 1
            position = start
    return 0


@dataclass(frozen=True)
class Request:
    """The options of `kubectl logs`."""

    follow: bool = False
    tail: int | None = None
    since: float | None = None
    timestamps: bool = False
    limit: int | None = None


def stamped(data: bytes, offset: int, clock: Clock, *, within: bool) -> bytes:
    """Return the data with the time before each line.

    Args:
        within: Whether the data begins inside a line that already has its time.
    """
    found = []
    # Lines end at line feeds only, as in container runtimes. A progress bar with carriage returns is one line.
    for line in io.BytesIO(data):
        if not within:
            found.append(nano_timestamp(clock.written_at(offset)).encode() + b" ")
        found.append(line)
        offset += len(line)
        within = False
    return b"".join(found)


async def read(clock: Clock, wanted: Request, running: asyncio.Event) -> AsyncIterator[bytes]:
    """Yield the bytes of a log. With `follow`, until `running` is cleared and everything was yielded."""
    if not clock.path.exists():
        if not wanted.follow:
            return
        clock.path.parent.mkdir(parents=True, exist_ok=True)
        clock.path.touch()
    offset = 0 if wanted.tail is None else tail_offset(clock.path, wanted.tail)
    if wanted.since is not None:
        offset = max(offset, clock.offset_at(wanted.since))
    left, within = wanted.limit, False
    with clock.path.open("rb") as file:
        file.seek(offset)
        while True:
            live = wanted.follow and running.is_set()
            data = file.read(CHUNK)
            if wanted.timestamps and data and not data.endswith(b"\n") and (live or len(data) == CHUNK):
                # A line of many blocks is sent in parts, because its length is unknown.
                whole = data.rfind(b"\n") + 1 or (len(data) if len(data) == CHUNK else 0)
                file.seek(whole - len(data), 1)
                data = data[:whole]
            if data:
                shown = stamped(data, offset, clock, within=within) if wanted.timestamps else data
                offset, within = offset + len(data), not data.endswith(b"\n")
                shown = shown if left is None else shown[:left]
                left = None if left is None else left - len(shown)
                yield shown
                if left == 0:
                    return
            elif not live:
                return
            else:
                await asyncio.sleep(FOLLOW_SECONDS)
