"""Archive the log of a worker in the bucket, with a limit, and print it by attempt and node."""

from __future__ import annotations

import io
import json
import threading
from pathlib import Path

import pytest

from tests.unit.workspace.archives import until
from trainyard.operator.names import log_url, logs_prefix
from trainyard.workspace import logs
from trainyard.workspace.errors import NotThere, WorkspaceError
from trainyard.workspace.logs import archive_log, print_logs, read_log, trim

BELOW = logs_prefix("s3://b/torchrun/", "team", "u1")


class Objects:
    """A bucket in memory; `refuses` the next puts."""

    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}
        self.refuses = 0
        self.puts = 0

    def put(self, url: str, data: bytes) -> None:
        self.puts += 1
        if self.refuses:
            self.refuses -= 1
            raise WorkspaceError("bucket: AccessDenied")
        self.held[url] = data

    def get(self, url: str, limit: int) -> bytes:
        return self.held[url][:limit]

    def names(self, url: str) -> list[str]:
        return [each.removeprefix(f"{url}/") for each in self.held if each.startswith(f"{url}/")]


def lines(count: int) -> bytes:
    return b"".join(b"line %d\n" % number for number in range(count))


def test_read_log_of_a_short_log_is_complete(tmp_path: Path) -> None:
    file = tmp_path / "worker.log"
    file.write_bytes(lines(1000))
    trim(file)
    assert read_log(file) == lines(1000)


def test_read_log_of_a_long_log_has_head_and_tail(tmp_path: Path) -> None:
    """Also after its middle was freed, and while the worker continues."""
    file, head, tail = tmp_path / "worker.log", 100_000, 200_000
    whole = lines(200_000)
    with file.open("ab", buffering=0) as writer:
        for begin in range(0, len(whole), 500_000):
            writer.write(whole[begin : begin + 500_000])
            trim(file, head, tail)
    assert file.stat().st_size == len(whole)
    assert file.stat().st_blocks * 512 < 320_000, "the missing part uses no disk space"
    found = read_log(file, head, tail)
    assert len(found) <= head + tail + 100
    first, mark, last = found.partition(b"[... ")
    left, _, last = last.partition(b" bytes of this log are missing ...]\n")
    assert mark
    assert whole.startswith(first)
    assert first.endswith(b"\n")
    assert whole.endswith(last)
    assert last.startswith(b"line ")
    assert len(first) + int(left) + len(last) == len(whole)


def test_archive_log_uploads_growth_and_the_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A repeated error is logged once, and the upload is tried again."""
    file, objects, stopping = tmp_path / "worker.log", Objects(), threading.Event()
    url = log_url(BELOW, 2, "1")
    assert url == "s3://b/torchrun/logs/team/u1/attempt-2/node-1.log"
    objects.refuses = 3
    words = (file, url, objects, stopping)
    thread = threading.Thread(target=archive_log, args=words, kwargs={"every": 0.005})
    thread.start()
    file.write_bytes(b"one\n")
    until(lambda: objects.held.get(url) == b"one\n")
    puts = objects.puts
    assert puts == 4
    assert len([each for each in caplog.messages if "AccessDenied" in each]) == 1
    stopping.wait(0.05)
    assert objects.puts == puts, "an unchanged log is not sent again"
    with file.open("ab") as writer:
        writer.write(b"two\n")
    stopping.set()
    thread.join()
    assert objects.held[url] == b"one\ntwo\n"


def test_archive_log_without_a_log_uploads_nothing(tmp_path: Path) -> None:
    stopping, objects = threading.Event(), Objects()
    stopping.set()
    archive_log(tmp_path / "none", "s3://b/k", objects, stopping)
    assert objects.held == {}


def printed(objects: Objects, attempt: str, node: int | None) -> list[tuple[int, int, bytes]]:
    out = io.BytesIO()
    print_logs(BELOW, attempt, node, objects, out)
    out.seek(0)
    found = []
    while head := out.readline():
        known = json.loads(head)
        found.append((known["attempt"], known["node"], out.read(known["bytes"])))
    return found


def test_print_logs_selects_attempt_and_node(monkeypatch: pytest.MonkeyPatch) -> None:
    objects = Objects()
    for attempt, node, text in ((0, "0", b"a"), (0, "1", b"b\n"), (10, "0", b"c\n"), (2, "1", b"{}\n")):
        objects.held[log_url(BELOW, attempt, node)] = text
    objects.held[f"{BELOW}/attempt-0/other"] = b"no log"
    assert printed(objects, "0", 1) == [(0, 1, b"b\n")]
    assert printed(objects, "0", None) == [(0, 0, b"a\n"), (0, 1, b"b\n")]
    assert printed(objects, "last", None) == [(10, 0, b"c\n")]
    assert printed(objects, "last", 1) == [(2, 1, b"{}\n")], "the last attempt with a log of this node"
    with pytest.raises(NotThere, match=r"no log of this attempt and node. It has attempt 0 node 0"):
        printed(objects, "3", 0)
    monkeypatch.setattr(logs, "MAX_PRINTED_BYTES", 40)
    objects.held[log_url(BELOW, 0, "0")] = lines(100)
    ((_, _, first), (_, _, second)) = printed(objects, "0", None)
    assert first.endswith(b"bytes of this log are missing ...]\n" + lines(100)[-20:])
    assert second == b"b\n"
