"""An archive is copied from the sync pod of another job, if that is quick."""

from __future__ import annotations

import io
import logging
import os
import socket
import threading
import time
from pathlib import Path

import pytest

from tests.unit.workspace.archives import packed, receive, received, serving
from trainyard.workspace import sync_pod
from trainyard.workspace.errors import WorkspaceError
from trainyard.workspace.sync_pod import Store


def test_receive_from_nearby_takes_a_complete_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(sync_pod, "_NEARBY_SECONDS", 0.1)
    archive = packed(tmp_path / "in", a=os.urandom(400_000).hex())
    data = archive.file.read_bytes()
    good, damaged, short, empty = (Store(tmp_path / name) for name in ("good", "damaged", "short", "empty"))
    for store in (good, damaged, short):
        received(store, archive)
    damaged.archive(archive.digest).write_bytes(data[:-1] + b"x")
    short.archive(archive.digest).write_bytes(data[:1000])
    silent = socket.create_server(("127.0.0.1", 0))
    with silent, serving(damaged) as a, serving(short) as b, serving(empty) as c, serving(good) as d:
        nobody = f"http://127.0.0.1:{silent.getsockname()[1]}"
        root = tmp_path / "store"
        for address in (a, b, c, "http://none.invalid:8080", nobody):
            reported: list[int] = []
            store = Store(root)
            assert not sync_pod.copy_from_nearby(store, archive.digest, archive.size, [address]), address
            assert not list(root.glob("*")), "a later upload must not continue it"
            with pytest.raises(WorkspaceError, match="ended after 0"):
                store.receive(archive.digest, archive.size, io.BytesIO(b"").read, reported.append)
            assert reported == [0]
            store._part(archive.digest).unlink()
        monkeypatch.setattr(sync_pod, "_NEARBY_SECONDS", 0.5)
        caplog.clear()
        assert receive(root, archive, nearby=(a, nobody, d)) == (0, "")
        lines = [line for line in caplog.messages if "copied from" in line]
        assert f"{archive.digest} is not copied from {a}: upload: digest is sha256:" in lines[0]
        assert f"{archive.digest} is not copied from {nobody}: sync pod: {nobody} can't be rea" in lines[1]
        assert lines[2:] == [f"{archive.digest} was copied from {d}, {archive.size} bytes"]
    assert Store(root).archive(archive.digest).read_bytes() == data


@pytest.mark.long
def test_copy_from_a_slow_pod_gives_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It sends a byte now and then. The test above has one that sends nothing."""
    caplog.set_level(logging.INFO)
    archive = packed(tmp_path / "in", a=os.urandom(400_000).hex())
    data, going = archive.file.read_bytes(), threading.Event()
    monkeypatch.setattr(sync_pod, "_MAX_COPY_SECONDS", 0.3)
    monkeypatch.setattr(sync_pod, "_NEARBY_SECONDS", 0.3)
    slow = socket.create_server(("127.0.0.1", 0))

    def drip() -> None:
        connection, _ = slow.accept()
        connection.recv(2**16)
        connection.sendall(f"HTTP/1.1 200 OK\r\nContent-Length: {len(data)}\r\n\r\n".encode())
        for byte in data[:600]:
            if going.wait(0.02):
                break
            connection.sendall(bytes([byte]))
        going.wait()
        connection.close()

    thread = threading.Thread(target=drip)
    thread.start()
    began, root = time.monotonic(), tmp_path / "store"
    try:
        address = f"http://127.0.0.1:{slow.getsockname()[1]}"
        assert not sync_pod.copy_from_nearby(Store(root), archive.digest, archive.size, [address])
        assert 0.3 <= time.monotonic() - began < 10
        (line,) = caplog.messages
        assert line.startswith(f"{archive.digest} is not copied from {address}: ")
        assert line.endswith("it is too slow")
    finally:
        going.set()
        thread.join()
        slow.close()
    assert not list(root.iterdir())
