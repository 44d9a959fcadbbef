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
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer import contract
from trainer.contract import Exit, TrainerError
from trainer.scratch import folder
from trainer.stores import BYTES, HashedFile, StoreError, destination, os_errors

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
        raise TrainerError(error.code, message) from error
    return store.uri(path)


def check_tensors(state: Mapping[str, object]) -> None:
    """Check before the training that the state of a model can be saved, in a checkpoint or as the finished model.

    Raises:
        TrainerError: A value is not a tensor.
    """
    for name, value in state.items():
        if not hasattr(value, "data_ptr"):
            raise TrainerError(
                Exit.CONFIGURATION,
                f"model: {name!r} of its state is a {type(value).__name__}; it must be a tensor, also what "
                "get_extra_state returns",
            )


def save(
    uri: str,
    run_id: str,
    weights: Mapping[str, Tensor],
    metadata: Mapping[str, Any],
    scratch: Path | None = None,
) -> str:
    """Write the model, its metadata and the pointer, in this order. Return the URI of the model.

    `scratch` is a local directory with room for the model; by default the one for temporary files.

    Raises:
        TrainerError: It can't be written.
    """
    store = destination(uri)
    path = f"{run_id}/{contract.MODEL_FILE}"
    try:
        with os_errors("write the model to", scratch or "a temporary directory"):
            made = folder(scratch, "model")
        try:
            file = made / contract.MODEL_FILE
            size, digest = _write(file, weights)
            store.send(file, path, BYTES, {"sha256": digest, **notes(run_id, metadata)})
        finally:
            shutil.rmtree(made, ignore_errors=True)
        model = {"uri": store.uri(path), "bytes": size, "sha256": digest}
        described = _json({**metadata, "model": model})
        store.put(f"{run_id}/{contract.METADATA_FILE}", described, JSON, {"run-id": run_id})
        # The path is relative to the pointer, so that a copy of the whole directory works.
        pointer = {"runId": run_id, "createdAt": metadata["createdAt"], "model": {"path": path, **model}}
        store.put(contract.LATEST_FILE, _json(pointer), JSON, {"run-id": run_id})
    except StoreError as error:
        raise TrainerError(error.code, str(error)) from error
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

    with os_errors("write the model to", file.parent), HashedFile(file) as stream:
        try:
            torch.save({name: tensor.detach().cpu() for name, tensor in weights.items()}, stream)
        except (OSError, RuntimeError) as error:
            if stream.error is None:
                raise
            raise stream.error from error
    return file.stat().st_size, stream.hash.hexdigest()


def _json(document: Mapping[str, Any]) -> bytes:
    return (json.dumps(document, indent=2, sort_keys=True) + "\n").encode()
