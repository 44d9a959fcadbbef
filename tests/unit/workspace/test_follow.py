"""The worker's side: downloads, retries, restored sync pods, and log lines."""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
import socket
from pathlib import Path

import pytest
import zstandard

from tests.unit.workspace.archives import following, packed, pointing, received, serving, started, until
from trainyard.workspace import sync_pod
from trainyard.workspace.archive import Archive, digest_of
from trainyard.workspace.errors import WorkspaceError
from trainyard.workspace.sidecar import PodSource, fetch, log_applied
from trainyard.workspace.sync_pod import Pointer, Store


class Counting:
    """A source of one archive, which counts the looks and the downloads."""

    pod = None

    def __init__(self, archive: Archive, error: Exception | None = None) -> None:
        self.packed, self.error = archive, error
        self.asked = self.looks = 0

    def archive(self, pointer: Pointer, into: Path) -> None:
        self.asked += 1
        if self.error is not None:
            raise self.error
        shutil.copyfile(self.packed.file, into)

    def current(self) -> Pointer:
        self.looks += 1
        return Pointer(self.packed.digest, self.packed.size)


def refused(tmp_path: Path) -> Archive:
    data = zstandard.ZstdCompressor().compress(b"no tar" * 200)
    file = tmp_path / "refused"
    file.write_bytes(data)
    return Archive(file, digest_of(file), len(data), 0, 0)


def test_follow_after_a_failure_fetches_less_often(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    good = packed(tmp_path / "in", a="1")
    full = OSError(28, "No space left on device")
    for source, most in ((Counting(refused(tmp_path)), 1), (Counting(good, full), 8)):
        caplog.clear()
        into = tmp_path / f"into{most}"
        with following(source, into):
            until(lambda source=source: source.looks > 20)
        assert 1 <= source.asked <= most
        (reported,) = caplog.messages
        assert "download-" not in reported
    why = f"workspace: can't write in {into}: No space left on device"
    assert reported == f"{why}; the workspace is unchanged"


def test_fetch_on_a_full_disk_fails_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive, store = packed(tmp_path / "in", a=os.urandom(2_000_000).hex()), Store(tmp_path / "store")
    received(store, archive)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with serving(store) as address:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, limit[1]))
        try:
            with pytest.raises(WorkspaceError, match=r"workspace: can't write in .*/app: File too large"):
                fetch(PodSource(pointing(tmp_path / "archive", archive), address), tmp_path / "app")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
            signal.signal(signal.SIGXFSZ, ignored)


def test_follow_reports_files_moved_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    into = tmp_path / "app"
    into.mkdir()
    (into / "a").write_text("the job's")
    source = Counting(packed(tmp_path / "in", a="1"))
    log_applied(source.packed.digest, fetch(source, into))
    assert re.search(r"\.torchrun-workspace/kept-\w+/a: the job's file was moved here", caplog.text)


def test_fetch_restores_removed_files(tmp_path: Path) -> None:
    into, source = tmp_path / "app", Counting(packed(tmp_path / "in", a="1", b="1"))
    assert fetch(source, into).put == 2
    (into / "a").unlink()
    assert fetch(source, into).put == 1
    assert (into / "a").read_text() == "1"
    assert fetch(source, into).put == 0
    assert source.asked == 2


def test_follow_does_not_restore_removed_files(tmp_path: Path) -> None:
    into, source = tmp_path / "app", Counting(packed(tmp_path / "in", a="1"))
    fetch(source, into)
    (into / "a").unlink()
    with following(source, into):
        until(lambda: source.looks > 5)
    assert source.asked == 1
    assert not (into / "a").exists()


def test_follow_restores_a_lost_sync_pod(tmp_path: Path) -> None:
    archive, into = packed(tmp_path / "in", a="1"), tmp_path / "app"
    before, after = Store(tmp_path / "before"), Store(tmp_path / "after")
    received(before, archive)
    named = pointing(tmp_path / "archive", archive)
    with serving(before) as address:
        fetch(PodSource(named, address), into)
    expected = Pointer(archive.digest, archive.size)
    with serving(after, expected=expected) as address:
        source = PodSource(named, address)
        assert source.pod is not None
        with archive.file.open("rb") as other:
            assert not source.pod.upload("sha256:" + "b" * 64, other), "only what it expects"
        with following(source, into):
            until(lambda: after.current() == expected)
        assert not source.pod.needs(archive.digest)
    assert after.archive(archive.digest).read_bytes() == archive.file.read_bytes()


def test_server_closes_an_upload_that_takes_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync_pod, "RECEIVE_SECONDS", 0.2)
    archive, store = packed(tmp_path / "in", a="1"), Store(tmp_path / "store")
    with serving(store, expected=Pointer(archive.digest, archive.size)) as address:
        host, _, port = address.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port)), 10) as slow:
            name = archive.digest.removeprefix("sha256:")
            slow.sendall(f"PUT /archives/{name} HTTP/1.1\r\nContent-Length: {archive.size}\r\n\r\nx".encode())
            assert store.last_write() == 0.0, "a PUT must not keep an abandoned job"
            while slow.recv(2**16):
                pass
        pod = PodSource(pointing(tmp_path / "archive", archive), address).pod
        assert pod is not None
        until(lambda: pod.needs(archive.digest))


@pytest.mark.parametrize("link", [True, False])
def test_follow_does_not_upload_a_changed_archive(tmp_path: Path, link: bool) -> None:
    archive, into = packed(tmp_path / "in", a="1"), tmp_path / "app"
    before, after = Store(tmp_path / "before"), Store(tmp_path / "after")
    received(before, archive)
    named = pointing(tmp_path / "archive", archive)
    with serving(before) as address:
        fetch(PodSource(named, address), into)
    kept = into / ".torchrun-workspace" / "archive"
    kept.unlink()
    kept.symlink_to(archive.file) if link else kept.write_bytes(b"x" * archive.size)
    with serving(after, expected=Pointer(archive.digest, archive.size)) as address:
        source, asked = PodSource(named, address), []
        assert source.pod is not None
        needs = source.pod.needs
        source.pod.needs = lambda digest: asked.append(1) or needs(digest)  # type: ignore[method-assign, func-returns-value]
        source.pod.upload = lambda *_: pytest.fail("it was sent")  # type: ignore[method-assign]
        with following(source, into):
            until(lambda: len(asked) > 1)
    assert after.current() is None


def test_serve_copies_from_another_job_or_gives_up(tmp_path: Path) -> None:
    archive, there = packed(tmp_path / "in", a="1"), Store(tmp_path / "there")
    received(there, archive)
    words = ("serve", "--address", "127.0.0.1", "--port", "0", "--expect", archive.digest)
    words += ("--size", str(archive.size), "--give-up-seconds", "0.5", "--root")
    with serving(there) as address, started(*words, str(tmp_path / "copy"), "--nearby", address) as process:
        until(lambda: Store(tmp_path / "copy").current() == there.current())
        process.terminate()
        assert process.wait() == 0
    with started(*words, str(tmp_path / "none")) as process:
        assert process.wait() == 3
        assert process.stderr is not None
        assert process.stderr.read().splitlines()[-1] == "no byte of the workspace arrived for 0.5 s"
