from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from local.nodes import logs
from local.nodes.container import read_end
from local.nodes.kubelet import log_request
from local.nodes.logs import Clock, Request


def read(clock: Clock, wanted: Request) -> bytes:
    async def collect() -> bytes:
        return b"".join([data async for data in logs.read(clock, wanted, asyncio.Event())])

    return asyncio.run(collect())


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    found = Clock(tmp_path / "0.log")
    found.path.write_bytes(b"one\ntwo\n")
    found.record(1000.0)
    with found.path.open("ab") as file:
        file.write(b"three\nfour")
    found.record(2000.0)
    return found


WHOLE = b"one\ntwo\nthree\nfour"


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (Request(), WHOLE),
        (Request(limit=5), b"one\nt"),
        (Request(tail=0), b""),
        (Request(tail=1), b"four"),
        (Request(tail=2), b"three\nfour"),
        (Request(tail=9), WHOLE),
        (Request(since=500.0), WHOLE),
        (Request(since=1000.0), WHOLE),
        (Request(since=1500.0), b"three\nfour"),
        (Request(since=2500.0), b""),
    ],
)
def test_logs_have_the_requested_part(clock: Clock, request_: Request, expected: bytes) -> None:
    assert read(clock, request_) == expected


def test_logs_tail_reads_across_blocks(tmp_path: Path) -> None:
    long = Clock(tmp_path / "0.log")
    long.path.write_bytes(b"x" * 70000 + b"\n" + b"y" * 70000 + b"\nend\n")
    assert read(long, Request(tail=2)) == b"y" * 70000 + b"\nend\n"


def test_logs_timestamps_are_before_each_line(clock: Clock) -> None:
    lines = read(clock, Request(timestamps=True)).splitlines()
    assert lines[0] == b"1970-01-01T00:16:40.000000000Z one"
    assert lines[2] == b"1970-01-01T00:33:20.000000000Z three"


LONG = b"x" * (3 * logs.CHUNK + 5)


def following(path: Path, wanted: Request, *later: bytes) -> bytes:
    """What is shown of a log that goes on with each of these, when the ones before were read."""
    growing, rest = Clock(path), list(later)
    running = asyncio.Event()
    running.set()

    async def write(_: float) -> None:
        if not rest:
            running.clear()
            return
        with path.open("ab") as file:
            file.write(rest.pop(0))

    async def follow() -> bytes:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(asyncio, "sleep", write)
            return b"".join([data async for data in logs.read(growing, wanted, running)])

    return asyncio.run(follow())


def test_logs_line_of_many_blocks_has_one_timestamp(tmp_path: Path) -> None:
    """A container runtime cuts it into parts, and `kubectl logs` shows one line."""
    long = Clock(tmp_path / "0.log")
    long.path.write_bytes(b"first\n" + LONG + b"\nlast\n" + LONG)
    lines = read(long, Request(timestamps=True)).split(b"\n")
    assert [each.partition(b"Z ")[2] for each in lines] == [b"first", LONG, b"last", LONG]


def test_logs_line_after_a_full_block_has_its_timestamp(tmp_path: Path) -> None:
    long = Clock(tmp_path / "0.log")
    long.path.write_bytes(b"x" * (logs.CHUNK - 1) + b"\nlast\n")
    assert [len(each.partition(b"Z ")[2]) for each in read(long, Request(timestamps=True)).splitlines()] == [
        logs.CHUNK - 1,
        4,
    ]


def test_logs_followed_long_line_has_one_timestamp(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    path.write_bytes(b"first\n" + LONG)
    shown = following(path, Request(follow=True, timestamps=True), LONG, b"end\nne", b"xt\nopen")
    texts = [each.partition(b"Z ")[2] for each in shown.split(b"\n")]
    assert texts == [b"first", LONG + LONG + b"end", b"next", b"open"]


def test_logs_progress_bar_is_one_line(tmp_path: Path) -> None:
    """Programs restart a line with a carriage return. A runtime ends a line only at a line feed."""
    bar = Clock(tmp_path / "0.log")
    bar.path.write_bytes(b" 10%\r 20%\r\nend\n")
    shown = read(bar, Request(timestamps=True)).split(b"\n")
    assert [each.partition(b"Z ")[2] for each in shown] == [b" 10%\r 20%\r", b"end", b""]


def test_logs_long_line_is_read_in_parts(tmp_path: Path) -> None:
    long = Clock(tmp_path / "0.log")
    long.path.write_bytes(LONG)

    async def largest() -> int:
        parts = logs.read(long, Request(timestamps=True), asyncio.Event())
        return max([len(each) async for each in parts])

    assert asyncio.run(largest()) < logs.CHUNK + 64


def test_logs_of_silent_run_are_empty(tmp_path: Path) -> None:
    assert read(Clock(tmp_path / "none.log"), Request()) == b""


def test_logs_follow_ends_with_the_container(tmp_path: Path) -> None:
    growing = Clock(tmp_path / "new" / "0.log")

    async def follow() -> bytes:
        running = asyncio.Event()
        running.set()
        found = b""
        async for data in logs.read(growing, Request(follow=True), running):
            found += data
            with growing.path.open("ab") as file:
                file.write(b"last\n")
            running.clear()
            if found.endswith(b"last\n"):
                break
        return found

    growing.path.parent.mkdir()
    growing.path.write_bytes(b"first\n")
    assert asyncio.run(follow()) == b"first\nlast\n"


def test_log_request_parses_the_options_of_kubectl() -> None:
    query = {"follow": "true", "tailLines": "5", "sinceSeconds": "10", "timestamps": "true"}
    assert log_request(query, 100.0) == Request(follow=True, tail=5, since=90.0, timestamps=True)
    assert log_request({"sinceTime": "1970-01-01T00:01:00Z"}, 100.0) == Request(since=60.0)
    with pytest.raises(ValueError, match="five"):
        log_request({"tailLines": "five"}, 100.0)


def test_read_end_of_large_file_returns_its_end(tmp_path: Path) -> None:
    """A container chooses the size of its termination log."""
    file = tmp_path / "termination-log"
    with file.open("wb") as opened:
        opened.truncate(1 << 40)
        opened.seek(0, 2)
        opened.write(b"last")
    assert read_end(file, 4) == "last"
    file.write_bytes(b"all")
    assert read_end(file, 4096) == "all"
