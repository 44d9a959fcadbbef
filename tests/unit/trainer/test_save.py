"""Where a model goes, what is there afterwards, and that the pointer to it comes last."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from trainer import save as module
from trainer.contract import Exit, TrainerError
from trainer.save import notes, save
from trainer.stores import Directory, StoreError

pytestmark = pytest.mark.long


CREATED = "2026-08-05T12:00:00+00:00"
METADATA: dict[str, Any] = {
    "createdAt": CREATED,
    "worldSize": 2,
    "steps": 460,
    "data": {"source": "digits", "sha256": "d" * 64},
}


def weights(seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {"first.weight": torch.randn(300, 40, generator=generator), "count": torch.tensor(3)}


def loaded(file: Path) -> dict[str, Tensor]:
    found: dict[str, Tensor] = torch.load(file, weights_only=True)
    return found


def test_saved_model_loads_bitwise_with_metadata_and_pointer(
    tmp_path: Path,
) -> None:
    uri, scratch = f"file://{tmp_path}/models", tmp_path / "scratch"
    scratch.mkdir()
    saved = save(uri, "r1", weights(), METADATA, scratch)
    place = tmp_path / "models"
    assert saved == str(place / "r1" / "model.pt")
    files = sorted(str(path.relative_to(place)) for path in place.rglob("*") if path.is_file())
    assert files == ["latest.json", "r1/metadata.json", "r1/model.pt"]
    assert list(scratch.iterdir()) == []
    back = loaded(Path(saved))
    assert back.keys() == weights().keys()
    assert all(torch.equal(back[name], each) for name, each in weights().items())
    body = Path(saved).read_bytes()
    model = {"uri": saved, "bytes": len(body), "sha256": hashlib.sha256(body).hexdigest()}
    assert json.loads((place / "r1" / "metadata.json").read_text()) == {**METADATA, "model": model}
    pointer = json.loads((place / "latest.json").read_text())
    assert pointer == {"runId": "r1", "createdAt": CREATED, "model": {"path": "r1/model.pt", **model}}
    assert (place / pointer["model"]["path"]).read_bytes() == body


def test_second_save_replaces_model_and_pointer(tmp_path: Path) -> None:
    for run, seed in (("r1", 0), ("r1", 1), ("r2", 2)):
        save(str(tmp_path), run, weights(seed), METADATA)
    assert torch.equal(loaded(tmp_path / "r1" / "model.pt")["first.weight"], weights(1)["first.weight"])
    assert json.loads((tmp_path / "latest.json").read_text())["runId"] == "r2"
    assert len(list((tmp_path / "r1").iterdir())) == 2


@pytest.mark.parametrize("fails", ["r2/model.pt", "r2/metadata.json", "latest.json"])
def test_failed_save_keeps_the_earlier_model_and_pointer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    save(str(tmp_path), "r1", weights(), METADATA)
    write = Directory._write

    def broken(self: Directory, path: str, source: Any, *, replace: bool) -> bool:
        if path == fails:
            raise StoreError(f"cannot save {self.uri(path)}: No space left on device")
        return write(self, path, source, replace=replace)

    monkeypatch.setattr(Directory, "_write", broken)
    with pytest.raises(TrainerError, match=f"^cannot save {tmp_path}/{fails}: No space left") as caught:
        save(str(tmp_path), "r2", weights(1), METADATA)
    assert caught.value.code == Exit.SAVE
    model = json.loads((tmp_path / "latest.json").read_text())["model"]
    assert model["path"] == "r1/model.pt"
    assert hashlib.sha256((tmp_path / "r1" / "model.pt").read_bytes()).hexdigest() == model["sha256"]


def test_save_to_unwritable_place_names_it_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(TrainerError, match=f"cannot save {tmp_path}/file/r1/model.pt: ") as caught:
        save(str(tmp_path / "file"), "r1", weights(), METADATA)
    assert caught.value.code == Exit.CONFIGURATION
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_save_on_a_full_disk_fails_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """/dev/full is a file on a full disk (man 4 full)."""
    write = module._write
    monkeypatch.setattr(module, "_write", lambda _file, each: write(Path("/dev/full"), each))
    with pytest.raises(
        TrainerError, match=r"^cannot write the model to /dev: No space left on device$"
    ) as caught:
        save(str(tmp_path), "r1", weights(), METADATA)
    assert caught.value.code == Exit.SAVE
    assert list(tmp_path.iterdir()) == []


def test_save_names_the_cause_of_a_torch_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(io.FileIO):
        """A disk with one bad place."""

        def write(self, piece: Any) -> int:
            if memoryview(piece).nbytes > 10_000:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return super().write(piece)

    monkeypatch.setattr(io, "FileIO", Broken)
    with pytest.raises(
        TrainerError,
        match=f"^cannot write the model to {tmp_path}/trainyard-model-.*: {os.strerror(errno.EIO)}$",
    ):
        save(str(tmp_path / "models"), "r1", weights(), METADATA, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_save_without_scratch_directory_names_it(tmp_path: Path) -> None:
    with pytest.raises(TrainerError, match=f"^cannot write the model to {tmp_path}/absent: No such file"):
        save(str(tmp_path), "r1", weights(), METADATA, tmp_path / "absent")
    assert list(tmp_path.iterdir()) == []


def test_what_s3_keeps_beside_the_model_says_what_it_is() -> None:
    known = {"run-id": "r1", "world-size": "2", "steps": "460", "data-sha256": "d" * 64}
    assert notes("r1", METADATA) == known
    assert notes("r1", {**METADATA, "revision": "abc"}) == {**known, "revision": "abc"}
