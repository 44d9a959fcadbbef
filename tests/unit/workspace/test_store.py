"""Archives in a sync pod and in S3: uploads, downloads, damage, and clear errors."""

from __future__ import annotations

import io
import logging
import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.workspace.archives import (
    following,
    packed,
    pointing,
    receive,
    received,
    serving,
    until,
)
from trainyard.operator import names
from trainyard.operator.names import archive_prefix
from trainyard.workspace.bucket import Bucket, archive_url, parse_url
from trainyard.workspace.errors import WorkspaceError
from trainyard.workspace.place import placed
from trainyard.workspace.sidecar import PodSource, fetch
from trainyard.workspace.sync_pod import Pointer, Store

if TYPE_CHECKING:
    from tests.unit.emulator import Cloud

NONE = "sha256:" + "0" * 64


def test_receive_continues_a_broken_upload(tmp_path: Path) -> None:
    archive = packed(tmp_path / "in", a=os.urandom(400_000).hex())
    store, data, reported = Store(tmp_path / "store"), archive.file.read_bytes(), []
    for done, end in ((0, 0), (0, 1000), (1000, 300_000)):
        with pytest.raises(WorkspaceError, match=f"ended after {end} of {archive.size} bytes"):
            store.receive(archive.digest, archive.size, io.BytesIO(data[done:end]).read, reported.append)
        assert not store.archive(archive.digest).exists()
    store.receive(archive.digest, archive.size, io.BytesIO(data[300_000:]).read, reported.append)
    assert reported == [0, 0, 1000, 300_000]
    assert store.archive(archive.digest).read_bytes() == data
    store.receive(archive.digest, archive.size, io.BytesIO(b"").read, reported.append)
    assert reported[-1] == archive.size


def test_receive_of_one_archive_twice_at_once_succeeds(tmp_path: Path) -> None:
    archive = packed(tmp_path / "in", a=os.urandom(400_000).hex())
    store, data, reported = Store(tmp_path / "store"), archive.file.read_bytes(), []
    first = io.BytesIO(data)

    def read(size: int) -> bytes:
        if first.tell() and len(reported) == 1:
            store.receive(archive.digest, archive.size, io.BytesIO(data).read, reported.append)
        return first.read(min(size, 200_000))

    store.receive(archive.digest, archive.size, read, reported.append)
    assert reported == [0, 0]
    assert [path.read_bytes() for path in (tmp_path / "store").iterdir()] == [data]


def test_receiving_keeps_the_new_and_the_named_archive(tmp_path: Path) -> None:
    one, two, three = (packed(tmp_path / str(i), a=os.urandom(400_000).hex()) for i in range(3))
    root = tmp_path / "store"
    store = Store(root)

    def archives_left() -> list[str]:
        return [each.digest for each in (one, two, three) if store.archive(each.digest).exists()]

    assert receive(root, one) == (0, "")
    (root / f"{'0' * 64}.part").write_text("what a broken connection left")
    assert receive(root, two, keep=one.digest) == (0, "")
    assert archives_left() == [one.digest, two.digest], "the job still names the first one"
    with store.archive(one.digest).open("rb") as file:
        assert receive(root, three, keep=two.digest) == (0, "")
        assert file.read() == one.file.read_bytes()
    assert archives_left() == [two.digest, three.digest]
    left = {"lock", "current", *(store.archive(each).name for each in archives_left())}
    assert {path.name for path in root.iterdir()} == left
    # Nothing is removed during another upload.
    with store.receiving(one.digest):
        store.receive(one.digest, one.size, one.file.open("rb").read)
        assert receive(root, two) == (0, "")
    assert archives_left() == [one.digest, two.digest, three.digest]


def test_receiving_removes_other_partial_files(tmp_path: Path) -> None:
    """The pod has space for two archives."""
    archives = [packed(tmp_path / str(i), a=os.urandom(200_000).hex()) for i in range(3)]
    first, *broken = archives
    root = tmp_path / "store"
    store = Store(root)
    assert receive(root, first) == (0, "")
    for each in broken:
        with pytest.raises(WorkspaceError, match="ended after 1000 of"), store.receiving(each.digest):
            store.receive(each.digest, each.size, io.BytesIO(each.file.read_bytes()[:1000]).read)
    last = broken[-1]
    with pytest.raises(WorkspaceError, match="ended after 1000 of"), store.receiving(last.digest):
        store.receive(last.digest, last.size, io.BytesIO(b"").read)
    left = {"current", "lock", store.archive(first.digest).name, store._part(last.digest).name}
    assert {path.name for path in root.iterdir()} == left


def test_receive_above_the_limit_is_refused_at_once(tmp_path: Path) -> None:
    archive, most = packed(tmp_path / "in", a="1"), {names.ENV_SYNC_MOST: "10"}
    said = f"size: {archive.size} bytes, and the limit of this job's sync pod is 10; submit another job\n"
    assert receive(tmp_path / "store", archive, most) == (1, said)
    assert receive(tmp_path / "store", archive, {names.ENV_SYNC_MOST: str(archive.size)}) == (0, "")


def test_fetch_of_a_removed_archive_takes_the_newly_named_one(tmp_path: Path) -> None:
    one, two = packed(tmp_path / "1", a="1"), packed(tmp_path / "2", a="2")
    store, into, named = Store(tmp_path / "store"), tmp_path / "app", tmp_path / "archive"
    received(store, two)
    pointing(named, one)
    with serving(store) as address:
        source = PodSource(named, address)
        with pytest.raises(WorkspaceError, match=r"did not arrive within 0 s"):
            fetch(source, into, wait=0)
        assert fetch(source, into, sleep=lambda _: str(pointing(named, two))).put == 1
        assert placed(into).digest == two.digest
        assert fetch(source, into).put == 0
    with pytest.raises(WorkspaceError, match=r"did not arrive within 0 s: .*can't be reached"):
        fetch(source, tmp_path / "other", wait=0)


def test_receive_names_an_unwritable_directory(tmp_path: Path) -> None:
    archive = packed(tmp_path / "in", a="1")
    (tmp_path / "file").write_text("")
    with pytest.raises(WorkspaceError, match=r"upload: can't write .*/file/.*: File exists"):
        received(Store(tmp_path / "file"), archive)


def test_receive_of_another_digest_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    with pytest.raises(WorkspaceError, match=r"digest is sha256:.* and must be"):
        store.receive(NONE, 3, io.BytesIO(b"abc").read)
    assert list((tmp_path / "store").iterdir()) == []
    for digest in ("", "sha256:../../x", "md5:00"):
        with pytest.raises(WorkspaceError, match="64 hexadecimal digits"):
            store.receive(digest, 3, io.BytesIO(b"abc").read)


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"digest": "x", "size": 1, "url": ""}'])
def test_pointer_broken_is_refused(data: bytes) -> None:
    with pytest.raises(WorkspaceError):
        Pointer.from_json(data)


def test_fetch_gets_the_sent_archive(tmp_path: Path) -> None:
    archive, store, into = packed(tmp_path / "in", a="1"), Store(tmp_path / "store"), tmp_path / "app"
    named = pointing(tmp_path / "archive", archive)
    with serving(store) as address:
        with pytest.raises(WorkspaceError, match=r"did not arrive within 0 s: .* does not exist yet"):
            fetch(PodSource(named, address), into, wait=0)
        received(store, archive)
        assert fetch(PodSource(named, address), into).put == 1
        assert (into / "a").read_text() == "1"
        control = {path.name for path in (into / ".torchrun-workspace").iterdir()}
        assert control == {"archive", "lock", "state.json"}
        assert fetch(PodSource(named, "http://127.0.0.1:1"), into).put == 0  # without a request
    with pytest.raises(WorkspaceError, match=r"--archive: can't read .*none: No such file"):
        fetch(PodSource(tmp_path / "none", address), into)
    with pytest.raises(WorkspaceError, match="--sync: is missing"):
        fetch(PodSource(named), tmp_path / "other")


@pytest.mark.parametrize("address", ["127.0.0.1", "[::1]"])
def test_sync_pod_serves_both_ip_families(tmp_path: Path, address: str) -> None:
    archive, store = packed(tmp_path / "in", a="1"), Store(tmp_path / "store")
    named = pointing(tmp_path / "archive", archive)
    received(store, archive)
    with serving(store, address="") as url:
        port = url.rpartition(":")[2]
        assert fetch(PodSource(named, f"http://{address}:{port}"), tmp_path / "app", wait=0).put == 1


def test_fetch_of_a_damaged_archive_applies_nothing(tmp_path: Path) -> None:
    archive, store, into = packed(tmp_path / "in", a="1"), Store(tmp_path / "store"), tmp_path / "app"
    received(store, archive)
    data = bytearray(archive.file.read_bytes())
    data[-1] ^= 1
    store.archive(archive.digest).write_bytes(data)
    waits: list[float] = []
    source = pointing(tmp_path / "archive", archive)
    with serving(store) as address:
        with pytest.raises(WorkspaceError, match=r"digest is .* \(at each of 3 tries\)"):
            fetch(PodSource(source, address), into, sleep=waits.append)
        store.archive(archive.digest).write_bytes(bytes(data) + b"more")
        with pytest.raises(WorkspaceError, match=f"more than the {archive.size} bytes"):
            fetch(PodSource(source, address), into)
    assert len(waits) == 2
    assert not (into / "a").exists()


def test_follow_on_one_volume_applies_each_archive_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    store, into = Store(tmp_path / "store"), tmp_path / "app"
    one, two = packed(tmp_path / "1", a="1", b="1"), packed(tmp_path / "2", a="2")
    received(store, one)
    named = pointing(tmp_path / "archive", one)
    with serving(store) as address:
        port = int(address.rpartition(":")[2])
        followers = ExitStack()
        for _ in range(4):
            followers.enter_context(following(PodSource(named, address), into))
        until(lambda: placed(into).digest == one.digest)
        (into / "log").write_text("the job's")
    with followers:
        pointing(tmp_path / "draft", two).replace(named)
        until(lambda: "can't be reached" in caplog.text)
        with serving(store, port):
            received(store, two)
            until(lambda: placed(into).digest == two.digest)
    files = {path.name: path.read_text() for path in into.iterdir() if path.is_file()}
    assert files == {"a": "2", "log": "the job's"}
    assert len([line for line in caplog.messages if "1 put, 1 removed" in line]) == 1
    assert f"{two.digest} was sent to 127.0.0.1, " in caplog.text, "the log says who has which archive"


@pytest.fixture
def bucket(deployer: Cloud, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("AWS_REGION", "us-west-2")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-west-2")
    s3 = deployer.client("s3")
    s3.create_bucket(Bucket="code", CreateBucketConfiguration={"LocationConstraint": "us-west-2"})
    return s3


def test_send_of_an_existing_object_sends_nothing(bucket: Any, tmp_path: Path) -> None:
    archive, into = packed(tmp_path / "in", a="1"), tmp_path / "app"
    url, reported = archive_url("s3://code/team/", "research", archive.digest), []
    assert url == f"s3://code/team/workspaces/research/{archive.digest[7:]}.tar.zst"
    assert Bucket().send(archive, url, lambda done, total: reported.append((done, total))) is True
    assert reported[-1] == (archive.size, archive.size)
    before = bucket.head_object(Bucket="code", Key=parse_url(url)[1])["LastModified"]
    reported.clear()
    assert Bucket().send(archive, url, lambda done, total: reported.append((done, total))) is False
    assert reported == []
    assert bucket.head_object(Bucket="code", Key=parse_url(url)[1])["LastModified"] == before
    assert fetch(PodSource(pointing(tmp_path / "archive", archive, url)), into).put == 1
    assert archive_prefix(url) == "s3://code/team"


def test_fetch_refuses_objects_of_others(
    bucket: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """At the URL of the archive, also after a restart. The live test has pointers (test_torchrun_queue.py)."""
    good, evil = packed(tmp_path / "1", a="good"), packed(tmp_path / "2", a="evil")
    url = archive_url("s3://code", "research", good.digest)
    Bucket().send(good, url)
    named, into = pointing(tmp_path / "archive", good, url), tmp_path / "app"
    fetch(PodSource(named), into)
    looks: list[int] = []
    source = PodSource(named)
    current = source.current
    source.current = lambda: looks.append(1) or current()  # type: ignore[method-assign, func-returns-value]
    bucket.put_object(Bucket="code", Key=parse_url(url)[1], Body=evil.file.read_bytes())
    with following(source, into):
        until(lambda: len(looks) > 5)
    assert (into / "a").read_text() == "good"
    with pytest.raises(WorkspaceError, match=r"has \d+ bytes, and spec.workspace.sizeBytes is \d+|digest is"):
        fetch(PodSource(named), tmp_path / "restarted", sleep=lambda _: None)
    assert not (tmp_path / "restarted" / "a").exists()
    assert evil.digest not in caplog.text.replace(f"digest is {evil.digest}", "")


def test_send_replaces_a_damaged_object(bucket: Any, tmp_path: Path) -> None:
    archive = packed(tmp_path / "in", a="1")
    url = archive_url("s3://code", "research", archive.digest)
    assert archive_prefix(url) == "s3://code"
    key, data = parse_url(url)[1], bytearray(archive.file.read_bytes())
    data[-1] ^= 1
    bucket.put_object(Bucket="code", Key=key, Body=bytes(data), ChecksumAlgorithm="SHA256")
    source = PodSource(pointing(tmp_path / "archive", archive, url))
    with pytest.raises(WorkspaceError, match=r"digest is .* \(at each of 3 tries\)"):
        fetch(source, tmp_path / "app", sleep=lambda _seconds: None)
    assert Bucket().send(archive, url) is True
    assert fetch(source, tmp_path / "app").put == 1


def test_send_refused_by_s3_has_one_line(
    bucket: Any, cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = packed(tmp_path / "in", a="1")
    url = archive_url("s3://code", "research", archive.digest)
    with pytest.raises(WorkspaceError, match=r"^bucket: nobodys does not exist; name an existing one[^\n]*$"):
        Bucket().send(archive, archive_url("s3://nobodys", "research", archive.digest))
    key = cloud.session("guest", {"Effect": "Allow", "Action": "s3:GetBucketLocation", "Resource": "*"})
    with pytest.raises(WorkspaceError, match=r"^bucket: .* PutObject is refused .*need s3:GetObject[^\n]*$"):
        Bucket(cloud.client("s3", key)).send(archive, url)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(WorkspaceError, match="no AWS credentials were found"):
        Bucket().send(archive, url)
    with pytest.raises(WorkspaceError, match="must be s3://bucket/prefix"):
        archive_url("https://code", "research", archive.digest)
