"""What the trainer's role lets its stores do in the emulated S3, where it keeps models and where checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from components.documents import checkpoints, iam
from tests.unit.emulator import REGION, Cloud
from trainer.stores import PART_BYTES, StoreError, destination

pytestmark = [pytest.mark.emulator, pytest.mark.usefixtures("over_http")]

BUCKET = "models"
PLACE = f"s3://{BUCKET}/{checkpoints.PREFIX}/r1"


@pytest.fixture
def trainer(deployer: Cloud, monkeypatch: pytest.MonkeyPatch) -> Cloud:
    """The environment of a worker: credentials of the trainer's role, as the program makes it."""
    policy = iam.model_writer(
        bucket_arn=f"arn:aws:s3:::{BUCKET}",
        prefix="models",
        key_arn=f"arn:aws:kms:{REGION}:123456789012:key/k",
        checkpoints=checkpoints.PREFIX,
    )
    given = deployer.session("trainer", *policy["Statement"])
    deployer.client("s3").create_bucket(
        Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION}
    )
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", given["AccessKeyId"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", given["SecretAccessKey"])
    monkeypatch.setenv("AWS_SESSION_TOKEN", given["SessionToken"])
    monkeypatch.setenv("AWS_REGION", REGION)
    return deployer


def keys(cloud: Cloud) -> list[str]:
    listed: list[dict[str, Any]] = cloud.client("s3").list_objects_v2(Bucket=BUCKET).get("Contents", [])
    return [each["Key"] for each in listed]


def test_checkpoints_are_listed_read_written_in_parts_and_deleted(trainer: Cloud, tmp_path: Path) -> None:
    store = destination(PLACE)
    assert store.list("step-") == {}
    large = tmp_path / "large"
    large.write_bytes(bytes(2 * PART_BYTES + 1))
    store.send(large, "step-1/data")
    assert store.put_if_absent("owners/1.json", b"{}")
    assert not store.put_if_absent("owners/1.json", b"{}")
    assert store.list("step-") == {"step-1/data": 2 * PART_BYTES + 1}
    assert store.read("owners/1.json") == b"{}"
    store.delete(["step-1/data", "owners/1.json"])
    assert keys(trainer) == []


def test_models_are_written_and_never_deleted(trainer: Cloud) -> None:
    store = destination(f"s3://{BUCKET}/models")
    store.put("r1/model.pt", b"x")
    with pytest.raises(StoreError, match="AccessDenied"):
        store.delete(["r1/model.pt"])
    assert keys(trainer) == ["models/r1/model.pt"]


def test_bucket_policy_about_tls_denies_nothing_and_one_about_all_denies(trainer: Cloud) -> None:
    store, s3 = destination(PLACE), trainer.client("s3")
    store.put("a", b"x")
    everything = {
        "Effect": "Deny",
        "Principal": "*",
        "Action": "s3:*",
        "Resource": f"arn:aws:s3:::{BUCKET}/*",
    }
    tls = {**everything, "Condition": {"Bool": {"aws:SecureTransport": "false"}}}
    s3.put_bucket_policy(Bucket=BUCKET, Policy=json.dumps({"Statement": [tls]}))
    assert store.read("a") == b"x"
    s3.put_bucket_policy(Bucket=BUCKET, Policy=json.dumps({"Statement": [tls, everything]}))
    with pytest.raises(StoreError):
        store.read("a")


def test_of_a_list_of_deletions_each_is_judged_by_itself(trainer: Cloud) -> None:
    whole = destination(f"s3://{BUCKET}")
    for key in ("models/a&b", "checkpoints/c", "checkpoints/d"):
        whole.put(key, b"x")
    with pytest.raises(StoreError, match=r"cannot delete s3://models/models/a&b: AccessDenied"):
        whole.delete(["checkpoints/c", "models/a&b", "checkpoints/d"])
    assert keys(trainer) == ["models/a&b"]


def test_what_is_elsewhere_in_the_bucket_is_neither_seen_nor_written(trainer: Cloud) -> None:
    elsewhere = destination(f"s3://{BUCKET}/data")
    with pytest.raises(StoreError, match="AccessDenied"):
        elsewhere.put("x", b"x")
    with pytest.raises(StoreError, match="AccessDenied"):
        elsewhere.list("")


def versions(s3: Any) -> list[tuple[str, str]]:
    found = s3.list_object_versions(Bucket=BUCKET)
    both = [*found.get("Versions", []), *found.get("DeleteMarkers", [])]
    return [(each["Key"], each["VersionId"]) for each in both]


def test_a_role_that_may_delete_objects_may_delete_no_version_of_them(trainer: Cloud) -> None:
    s3 = trainer.client("s3")
    s3.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})
    store = destination(PLACE)
    store.put("step-1/data", b"x")
    store.delete(["step-1/data"])
    assert store.list("step-") == {}
    assert len(versions(s3)) == 2, "the version that was deleted, and the marker"
    client = store._client  # type: ignore[union-attr]
    wanted = [{"Key": key, "VersionId": version} for key, version in versions(s3)]
    answer = client.delete_objects(Bucket=BUCKET, Delete={"Objects": wanted})
    assert [each["Code"] for each in answer["Errors"]] == ["AccessDenied", "AccessDenied"]
    assert len(versions(s3)) == 2


def test_versions_are_deleted_one_by_one_also_where_no_more_are_kept(cloud: Cloud) -> None:
    s3 = cloud.client("s3")
    s3.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION})
    for status in ("Enabled", "Suspended"):
        if status == "Suspended":
            s3.put_object(Bucket=BUCKET, Key="a", Body=b"1")
            s3.put_object(Bucket=BUCKET, Key="a", Body=b"2")
            s3.delete_object(Bucket=BUCKET, Key="a")
        s3.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": status})
    for left in (2, 1, 0):
        key, version = versions(s3)[-1]
        s3.delete_objects(Bucket=BUCKET, Delete={"Objects": [{"Key": key, "VersionId": version}]})
        assert len(versions(s3)) == left
    s3.delete_bucket(Bucket=BUCKET)


@pytest.mark.parametrize("page", [1, 2, 3, 5])
def test_a_bucket_of_many_pages_is_emptied_page_by_page(cloud: Cloud, page: int) -> None:
    s3 = cloud.client("s3")
    s3.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION})
    s3.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})
    for key in ("a", "b", "c"):
        for body in (b"1", b"2"):
            s3.put_object(Bucket=BUCKET, Key=key, Body=body)
        s3.delete_object(Bucket=BUCKET, Key=key)
    marker: dict[str, str] = {}
    while True:
        listed = s3.list_object_versions(Bucket=BUCKET, MaxKeys=page, **marker)
        found = [*listed.get("Versions", []), *listed.get("DeleteMarkers", [])]
        assert 0 < len(found) <= page
        objects = [{"Key": each["Key"], "VersionId": each["VersionId"]} for each in found]
        s3.delete_objects(Bucket=BUCKET, Delete={"Objects": objects})
        if not listed["IsTruncated"]:
            break
        marker = {"KeyMarker": listed["NextKeyMarker"], "VersionIdMarker": listed["NextVersionIdMarker"]}
    s3.delete_bucket(Bucket=BUCKET)
