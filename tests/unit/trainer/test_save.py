"""Where a model goes, and what is there afterwards."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from trainer.contract import Exit, TrainerError
from trainer.save import save

pytestmark = pytest.mark.unit


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
