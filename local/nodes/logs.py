"""The output of containers: one file per run, and when which part of it was written."""

from __future__ import annotations

import asyncio
import bisect
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

from local.nodes.times import nano_timestamp

CHUNK = 1 << 16
FOLLOW_SECONDS = 0.3


@dataclass
class Clock:
    """Sizes of one log file over time; programs write to it themselves, so times are as fine as it is looked at."""

    path: Path
    times: list[float] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)

    def look(self, now: float) -> None:
        """Note the present size if it has changed."""
        try:
            size = self.path.stat().st_size
        except FileNotFoundError:
            return
        if not self.sizes or size > self.sizes[-1]:
            self.times.append(now)
            self.sizes.append(size)

    def written_at(self, offset: int) -> float:
        """When the byte at an offset was there first; the file's own time for what was never looked at."""
        index = bisect.bisect_right(self.sizes, offset)
        return self.times[index] if index < len(self.times) else self.path.stat().st_mtime

    def offset_at(self, time: float) -> int:
        """The size of the file at a time."""
        index = bisect.bisect_left(self.times, time)
        return self.sizes[index - 1] if index else 0


def tail_offset(path: Path, lines: int) -> int:
    """Where the last `lines` lines of a file begin."""
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
    """What `kubectl logs` asks for."""

    follow: bool = False
    tail: int | None = None
    since: float | None = None
    timestamps: bool = False
    limit: int | None = None


def stamped(data: bytes, offset: int, clock: Clock, *, within: bool) -> bytes:
    """Each line with the time it was written; `within` one that has its time already, it goes on without."""
    found = []
    for line in _lines(data):
        if not within:
            found.append(nano_timestamp(clock.written_at(offset)).encode() + b" ")
        found.append(line)
        offset += len(line)
        within = False
    return b"".join(found)


def _lines(data: bytes) -> list[bytes]:
    """As a container runtime ends them: a bar of progress, with its carriage returns, is one."""
    *whole, rest = data.split(b"\n")
    return [*(each + b"\n" for each in whole), *([rest] if rest else [])]


async def read(clock: Clock, wanted: Request, running: asyncio.Event) -> AsyncIterator[bytes]:
    """The bytes of a log; with `follow`, until `running` is cleared and everything was given."""
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
                # A line of many blocks is shown in parts: nobody knows how long it gets.
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
