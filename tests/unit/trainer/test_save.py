"""Where a model goes, and what is there afterwards."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from trainer.contract import Exit, TrainerError
from trainer.save import Bucket, Directory, destination, save

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("s3://models", Bucket("models", "")),
        ("s3://models/a/b/", Bucket("models", "a/b")),
        ("file:///data/models", Directory(Path("/data/models"))),
        ("file:///data/my%20models", Directory(Path("/data/my models"))),
        ("/data/models", Directory(Path("/data/models"))),
        ("models", Directory(Path("models"))),
    ],
)
def test_a_destination_is_a_bucket_or_a_directory(uri: str, expected: Bucket | Directory) -> None:
    assert destination(uri) == expected


@pytest.mark.parametrize("uri", ["s3:///x", "s3://Models/x", "s3://ab", "file://host/x", "gs://bucket/x", ""])
def test_anything_else_is_refused_with_the_value(uri: str) -> None:
    with pytest.raises(ValueError, match=f"'{uri}'"):
        destination(uri)


def test_objects_are_named_under_prefix_and_run() -> None:
    assert Bucket("models", "a/b").uri("r1/model.pt") == "s3://models/a/b/r1/model.pt"
    assert Bucket("models", "").uri("r1/model.pt") == "s3://models/r1/model.pt"


def test_model_and_metadata_are_written_and_nothing_else(tmp_path: Path) -> None:
    saved = save(f"file://{tmp_path}", "r1", b"weights", {"worldSize": 2})
    assert saved == str(tmp_path / "r1" / "model.pt")
    assert sorted(path.name for path in (tmp_path / "r1").iterdir()) == ["metadata.json", "model.pt"]
    metadata = json.loads((tmp_path / "r1" / "metadata.json").read_text())
    assert metadata["worldSize"] == 2
    digest = hashlib.sha256(b"weights").hexdigest()
    assert metadata["model"] == {"uri": saved, "bytes": 7, "sha256": digest}


def test_a_second_save_replaces_the_first(tmp_path: Path) -> None:
    for model in (b"first", b"second"):
        save(str(tmp_path), "r1", model, {"worldSize": 1})
    assert (tmp_path / "r1" / "model.pt").read_bytes() == b"second"
    assert len(list((tmp_path / "r1").iterdir())) == 2


def test_a_place_that_cannot_be_written_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(TrainerError, match=f"cannot save {tmp_path}/file/r1/model.pt: ") as caught:
        save(str(tmp_path / "file"), "r1", b"weights", {"worldSize": 1})
    assert caught.value.code == Exit.SAVE
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
