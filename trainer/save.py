"""What a finished training leaves: the model, its metadata beside it, and a pointer to it, in a bucket or a directory.

    <model URI>/<run id>/model.pt         what `torch.load(..., weights_only=True)` reads
    <model URI>/<run id>/metadata.json    how it came about
    <model URI>/latest.json               which model was saved last; written after the other two

The model is written to a file of this machine and sent from there, so that it may be of any size: S3 takes 5 GB in one
request, and up to 10 000 parts (docs.aws.amazon.com/AmazonS3/latest/userguide/qfacts.html).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from trainer import contract
from trainer.contract import Exit, TrainerError
from trainer.scratch import folder
from trainer.stores import BYTES, StoreError, destination
from trainer.stores.protocol import Hashed, of_system

if TYPE_CHECKING:
    from torch import Tensor

JSON = "application/json"


def probe(uri: str, run_id: str) -> str:
    """Find out before a training whether its model can be written, and leave nothing. Returns the model's URI to be.

    Raises TrainerError.
    """
    store, path = destination(uri), f"{run_id}/{contract.MODEL_FILE}"
    try:
        store.probe(path)
    except StoreError as error:
        told = f"model_uri: {error}; expected a place that this training can write to"
        raise TrainerError(Exit.SAVE, told) from error
    return store.uri(path)


def save(
    uri: str,
    run_id: str,
    weights: Mapping[str, Tensor],
    metadata: Mapping[str, Any],
    scratch: Path | None = None,
) -> str:
    """Write the model, its metadata and the pointer, in this order. Returns the model's URI; raises TrainerError.

    `metadata` is what `trainer.train.describe` gives. `scratch` is a directory of this machine with room for the model,
    by default the one for temporary files; nothing stays there.
    """
    store = destination(uri)
    path = f"{run_id}/{contract.MODEL_FILE}"
    try:
        with _folder(scratch) as made:
            file = made / contract.MODEL_FILE
            size, digest = _write(file, weights)
            store.send(file, path, BYTES, {"sha256": digest, **notes(run_id, metadata)})
        model = {"uri": store.uri(path), "bytes": size, "sha256": digest}
        described = {**metadata, "model": model}
        store.put(f"{run_id}/{contract.METADATA_FILE}", _json(described), JSON, {"run-id": run_id})
        # Relative to the pointer, too: a copy of all of it elsewhere is as good.
        pointer = {"runId": run_id, "createdAt": metadata["createdAt"], "model": {"path": path, **model}}
        store.put(contract.LATEST_FILE, _json(pointer), JSON, {"run-id": run_id})
    except StoreError as error:
        raise TrainerError(Exit.SAVE, str(error)) from error
    return store.uri(path)


def notes(run_id: str, metadata: Mapping[str, Any]) -> dict[str, str]:
    """What S3 keeps beside the model itself, so that a copy of it alone still says what it is."""
    found = {
        "run-id": run_id,
        "world-size": metadata["worldSize"],
        "steps": metadata["steps"],
        "data-sha256": metadata["data"]["sha256"],
        "revision": metadata.get("revision"),
    }
    return {name: str(value) for name, value in found.items() if value is not None}


def _write(file: Path, weights: Mapping[str, Tensor]) -> tuple[int, str]:
    """Tensors on the CPU and nothing else. Returns their file's bytes and SHA-256; raises StoreError."""
    import torch

    try:
        with file.open("wb") as raw:
            stream = Hashed(raw)
            try:
                tensors = {name: tensor.detach().cpu() for name, tensor in weights.items()}
                torch.save(tensors, cast("IO[bytes]", stream))
            except (OSError, RuntimeError) as error:
                if stream.error is None:
                    raise
                raise stream.error from error
    except OSError as error:
        raise of_system("keep the model in", str(file.parent), error) from error
    return stream.count, stream.hash.hexdigest()


@contextmanager
def _folder(scratch: Path | None) -> Iterator[Path]:
    try:
        made = folder(scratch, "model")
    except OSError as error:
        raise of_system("keep the model in", str(scratch or "a temporary directory"), error) from error
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _json(document: Mapping[str, Any]) -> bytes:
    return (json.dumps(document, indent=2, sort_keys=True) + "\n").encode()
