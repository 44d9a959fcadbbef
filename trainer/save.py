"""Save the finished model, its metadata and a pointer to it, in a bucket or a directory. The entry point is `save`.

    <model URI>/<run id>/model.pt         for `torch.load(..., weights_only=True)`
    <model URI>/<run id>/metadata.json    its data, settings and results
    <model URI>/latest.json               the model that was saved last; written after the other two

The model is written to a local file first and uploaded from there, so that it may have any size: S3 accepts 5 GB in one
request, and up to 10,000 parts (docs.aws.amazon.com/AmazonS3/latest/userguide/qfacts.html).
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
from trainer.stores.protocol import Hashed, from_os_error

if TYPE_CHECKING:
    from torch import Tensor

JSON = "application/json"


def probe(uri: str, run_id: str) -> str:
    """Check before the training that its model can be written. Return the URI of the model.

    Raises:
        TrainerError: It can't be written.
    """
    store, path = destination(uri), f"{run_id}/{contract.MODEL_FILE}"
    try:
        store.probe(path)
    except StoreError as error:
        message = f"model_uri: {error}. Use a place that this run can write to"
        raise TrainerError(Exit.SAVE, message) from error
    return store.uri(path)


def save(
    uri: str,
    run_id: str,
    weights: Mapping[str, Tensor],
    metadata: Mapping[str, Any],
    scratch: Path | None = None,
) -> str:
    """Write the model, its metadata and the pointer, in this order. Return the URI of the model.

    Args:
        uri: The model URI.
        run_id: The run.
        weights: The tensors of the model by name.
        metadata: The result of `trainer.train.describe`.
        scratch: A local directory with room for the model; by default the one for temporary files.

    Raises:
        TrainerError: It can't be written.
    """
    store = destination(uri)
    path = f"{run_id}/{contract.MODEL_FILE}"
    try:
        with _folder(scratch) as made:
            file = made / contract.MODEL_FILE
            size, digest = _write(file, weights)
            store.send(file, path, BYTES, {"sha256": digest, **notes(run_id, metadata)})
        model = {"uri": store.uri(path), "bytes": size, "sha256": digest}
        store.put(
            f"{run_id}/{contract.METADATA_FILE}",
            _json({**metadata, "model": model}),
            JSON,
            {"run-id": run_id},
        )
        # The path is relative to the pointer, so that a copy of the whole directory works.
        pointer = {"runId": run_id, "createdAt": metadata["createdAt"], "model": {"path": path, **model}}
        store.put(contract.LATEST_FILE, _json(pointer), JSON, {"run-id": run_id})
    except StoreError as error:
        raise TrainerError(Exit.SAVE, str(error)) from error
    return store.uri(path)


def notes(run_id: str, metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return the S3 object metadata of the model, which identifies a copy of the object."""
    found = {
        "run-id": run_id,
        "world-size": metadata["worldSize"],
        "steps": metadata["steps"],
        "data-sha256": metadata["data"]["sha256"],
        "revision": metadata.get("revision"),
    }
    return {name: str(value) for name, value in found.items() if value is not None}


def _write(file: Path, weights: Mapping[str, Tensor]) -> tuple[int, str]:
    """Write the tensors to `file`. Return its bytes and SHA-256. Raise StoreError."""
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
        raise from_os_error("write the model to", str(file.parent), error) from error
    return stream.count, stream.hash.hexdigest()


@contextmanager
def _folder(scratch: Path | None) -> Iterator[Path]:
    try:
        made = folder(scratch, "model")
    except OSError as error:
        raise from_os_error("write the model to", str(scratch or "a temporary directory"), error) from error
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _json(document: Mapping[str, Any]) -> bytes:
    return (json.dumps(document, indent=2, sort_keys=True) + "\n").encode()
