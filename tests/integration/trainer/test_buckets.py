"""A bucket as a store, behind a proxy that injects faults: 503, delays, expired credentials, broken transfers."""

from __future__ import annotations

import hashlib
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.integration.trainer.s3_proxy import Fault, S3Proxy
from trainer import stores as module
from trainer.checkpoint.owner import Owner
from trainer.contract import Exit, TrainerError
from trainer.save import probe, save
from trainer.stores import Bucket, PlaceError, StoreError

pytestmark = pytest.mark.trainer

BUCKET = "of-stores"


@pytest.fixture
def store(proxy: S3Proxy, request: pytest.FixtureRequest) -> Bucket:
    return Bucket("of-stores", f"runs/{request.function.__name__}")


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Upload files in parts of 5 MiB, the minimum of S3."""
    monkeypatch.setattr(module, "PART_BYTES", 5 * 2**20)


def test_bucket_lists_and_reads_put_objects(store: Bucket) -> None:
    assert store.list() == {}
    store.put("step-1/a", b"four", notes={"run-id": "r1"})
    store.put("step-1/.metadata", b"x")
    assert store.list("step-") == {"step-1/a": 4, "step-1/.metadata": 1}
    assert store.read("step-1/a") == b"four"
    store.delete(["step-1/a", "step-1/none"])
    assert store.list() == {"step-1/.metadata": 1}


def test_bucket_of_several_pages_is_listed_and_deleted(
    store: Bucket, proxy: S3Proxy, s3: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "5")
    monkeypatch.setattr(module, "MAX_KEYS", 5)
    names = [f"{number:05}" for number in range(12)]
    for name in names:
        s3.put_object(Bucket="of-stores", Key=f"{store.prefix}/{name}", Body=b"")
    assert list(store.list()) == names
    assert proxy.count("GET") == 3
    store.delete(names)
    assert proxy.count("POST") == 3
    assert store.list() == {}


def test_large_file_is_sent_in_parts_with_checksums(
    store: Bucket, proxy: S3Proxy, s3: Any, tmp_path: Path, parts: None
) -> None:
    body = os.urandom(12 * 2**20 + 1)
    (tmp_path / "in").write_bytes(body)
    store.send(tmp_path / "in", "large")
    assert proxy.count("PUT .*partNumber") == 3
    store.fetch("large", tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == body
    assert "ChecksumSHA256" in s3.head_object(
        Bucket="of-stores", Key=f"{store.prefix}/large", ChecksumMode="ENABLED"
    )


@pytest.mark.parametrize("stage", ["partNumber=2", r"POST .*uploadId", r"POST .*\?uploads"])
def test_failed_upload_leaves_no_object_and_no_parts(
    store: Bucket, proxy: S3Proxy, s3: Any, tmp_path: Path, parts: None, stage: str
) -> None:
    (tmp_path / "in").write_bytes(bytes(11 * 2**20))
    proxy.faults.append(Fault(stage, times=99, status=403, code="AccessDenied"))
    with pytest.raises(StoreError, match=r"cannot save s3://of-stores/.*/large: .*AccessDenied"):
        store.send(tmp_path / "in", "large")
    assert store.list() == {}
    assert "Uploads" not in s3.list_multipart_uploads(Bucket="of-stores", Prefix=store.prefix)


def test_busy_s3_is_retried(store: Bucket, proxy: S3Proxy) -> None:
    proxy.faults.append(Fault("PUT", times=2, status=503, code="SlowDown"))
    store.put("a", b"x")
    assert proxy.count("PUT") == 3
    proxy.faults.append(Fault("GET", times=2, status=503, code="SlowDown"))
    assert store.list() == {"a": 1}


def test_s3_that_stays_busy_fails_after_bounded_attempts(store: Bucket, proxy: S3Proxy) -> None:
    proxy.faults.append(Fault("GET", times=99, status=503, code="SlowDown"))
    with pytest.raises(StoreError, match=r"cannot list s3://of-stores/runs/.*SlowDown"):
        store.list()
    assert proxy.count("GET") == module.ATTEMPTS


def test_expired_credentials_fail_with_their_code(store: Bucket, proxy: S3Proxy) -> None:
    proxy.faults.append(Fault(".", times=99, status=400, code="ExpiredToken"))
    for act in (lambda: store.list(), lambda: store.read("a"), lambda: store.put("a", b"")):
        with pytest.raises(StoreError, match="ExpiredToken"):
            act()


def test_missing_credentials_fail_with_a_message(store: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    with pytest.raises(StoreError, match="Unable to locate credentials"):
        store.list()


def test_absent_bucket_raises_place_error(proxy: S3Proxy) -> None:
    for act in (lambda: Bucket("absent", "x").list(), lambda: Bucket("absent", "x").put("a", b"")):
        with pytest.raises(PlaceError, match=r"s3://absent/x.*NoSuchBucket"):
            act()


def test_interrupted_download_is_retried(store: Bucket, proxy: S3Proxy, tmp_path: Path) -> None:
    body = os.urandom(2**20)
    store.put("a", body)
    proxy.faults.append(Fault("GET", cut=1000))
    store.fetch("a", tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == body
    proxy.faults.append(Fault("GET", times=99, cut=1000))
    with pytest.raises(StoreError, match=r"cannot read s3://of-stores/.*/a"):
        store.read("a")


def test_slow_s3_fails_after_the_timeout(
    store: Bucket, proxy: S3Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "READ_SECONDS", 0.3)
    monkeypatch.setattr(module, "ATTEMPTS", 2)
    proxy.faults.append(Fault("GET", times=99, delay=1.0))
    with pytest.raises(StoreError, match=r"[Tt]ime"):
        store.list()


def test_put_if_absent_with_a_lost_response_succeeds_once(store: Bucket, proxy: S3Proxy) -> None:
    assert store.put_if_absent("owners/1", b"one")
    assert not store.put_if_absent("owners/1", b"two")
    assert store.read("owners/1") == b"one"
    proxy.faults.append(Fault("PUT", lose=True))
    own = Owner(Bucket(store.name, f"{store.prefix}/other"), "token", "r1")
    own.claim()
    assert own.generation == 1


METADATA = {
    "createdAt": "2026-08-05T12:00:00+00:00",
    "worldSize": 2,
    "steps": 7,
    "data": {"sha256": "d" * 64},
}


def test_model_of_several_parts_is_saved_before_its_pointer(
    store: Bucket, proxy: S3Proxy, s3: Any, parts: None, tmp_path: Path
) -> None:
    weights = {"w": torch.randn(3 * 2**20), "b": torch.randn(10)}  # 12 MiB
    saved = save(store.uri(""), "r1", weights, {**METADATA, "revision": "0123abc"}, tmp_path)
    assert saved == store.uri("r1/model.pt")
    assert proxy.count(r"PUT .*/r1/model\.pt\?.*partNumber=") == 3
    assert proxy.count(r"PUT .*/r1/model\.pt$") == 0
    assert proxy.seen[-1].endswith("/latest.json")
    assert "metadata.json" in proxy.seen[-2]
    pointer = json.loads(store.read("latest.json"))
    assert pointer["runId"] == "r1"
    body = store.read(pointer["model"]["path"])
    digest = hashlib.sha256(body).hexdigest()
    assert pointer["model"] == {"path": "r1/model.pt", "uri": saved, "bytes": len(body), "sha256": digest}
    head = s3.head_object(Bucket=store.name, Key=f"{store.prefix}/r1/model.pt", ChecksumMode="ENABLED")
    assert head["Metadata"] == {
        "run-id": "r1",
        "world-size": "2",
        "steps": "7",
        "data-sha256": "d" * 64,
        "revision": "0123abc",
        "sha256": digest,
    }
    assert head["ContentType"] == "application/octet-stream"
    back = torch.load(io.BytesIO(body), weights_only=True)
    assert all(torch.equal(back[name], each) for name, each in weights.items())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("on", ["PUT .*partNumber=2", "PUT .*metadata.json", "PUT .*latest.json"])
def test_refused_model_leaves_the_old_pointer_and_no_parts(
    store: Bucket, proxy: S3Proxy, s3: Any, parts: None, tmp_path: Path, on: str
) -> None:
    place = Bucket(store.name, f"{store.prefix}/{len(on)}")
    save(place.uri(""), "r1", {"w": torch.zeros(3)}, METADATA, tmp_path)
    before = place.read("latest.json")
    proxy.faults.append(Fault(on, times=99, status=403, code="AccessDenied"))
    with pytest.raises(TrainerError, match=r"^cannot save s3://of-stores/.*AccessDenied") as caught:
        save(place.uri(""), "r2", {"w": torch.randn(3 * 2**20)}, METADATA, tmp_path)
    assert caught.value.code == Exit.SAVE
    assert "\n" not in str(caught.value)
    assert place.read("latest.json") == before
    assert "Uploads" not in s3.list_multipart_uploads(Bucket=store.name)
    assert list(tmp_path.iterdir()) == []


def open_uploads(s3: Any, bucket: str) -> list[str]:
    """Return the keys of unfinished multipart uploads."""
    return [each["Key"] for each in s3.list_multipart_uploads(Bucket=bucket).get("Uploads", [])]


def test_probe_leaves_no_object_and_no_upload(store: Bucket, proxy: S3Proxy, s3: Any) -> None:
    assert probe(store.uri(""), "r1") == store.uri("r1/model.pt")
    assert [each.split()[0] for each in proxy.seen] == ["POST", "DELETE"]
    proxy.faults.append(Fault("DELETE", lose=True))
    probe(store.uri(""), "r1")
    assert proxy.count("DELETE") == 3
    assert store.list() == {}
    assert open_uploads(s3, store.name) == []


@pytest.mark.parametrize(
    ("bucket", "on", "code"),
    [
        ("absent", "", "NoSuchBucket"),
        ("of-stores", "POST .*uploads", "AccessDenied"),
        ("of-stores", "DELETE .*uploadId", "AccessDenied"),
        ("of-stores", ".", "ExpiredToken"),
    ],
)
def test_probe_of_unusable_bucket_fails_in_one_line(
    proxy: S3Proxy, s3: Any, bucket: str, on: str, code: str
) -> None:
    if on:
        proxy.faults.append(Fault(on, times=99, status=403, code=code))
    message = rf"^model_uri: cannot save s3://{bucket}/probed/r1/model\.pt: .*{code}.*\. Use a place that .* can write"
    with pytest.raises(TrainerError, match=message) as caught:
        probe(f"s3://{bucket}/probed", "r1")
    # No restart makes the bucket.
    assert caught.value.code == (Exit.CONFIGURATION if bucket == "absent" else Exit.SAVE)
    assert "\n" not in str(caught.value)
    assert proxy.count("PUT") == 0
    for key in open_uploads(s3, "of-stores"):  # the fault keeps the probe from aborting its own upload
        assert on.startswith("DELETE")
        for each in s3.list_multipart_uploads(Bucket="of-stores")["Uploads"]:
            s3.abort_multipart_upload(Bucket="of-stores", Key=key, UploadId=each["UploadId"])
