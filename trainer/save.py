"""What a finished training leaves: the model and its metadata, in a bucket or a directory."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trainer import contract
from trainer.contract import Exit, TrainerError
from trainer.stores import BYTES, StoreError, destination

if TYPE_CHECKING:
    from torch import Tensor


def model_bytes(state: Mapping[str, Tensor]) -> bytes:
    """What `torch.load(..., weights_only=True)` reads: tensors on the CPU and nothing else."""
    import torch

    buffer = io.BytesIO()
    torch.save({name: tensor.detach().cpu() for name, tensor in state.items()}, buffer)
    return buffer.getvalue()


def save(uri: str, run_id: str, model: bytes, metadata: Mapping[str, Any]) -> str:
    """Write the model, then its metadata, under `<uri>/<run id>/`. Returns the model's URI; raises TrainerError."""
    target = destination(uri)
    digest = hashlib.sha256(model).hexdigest()
    place = f"{run_id}/{contract.MODEL_FILE}"
    notes = {"run-id": run_id, "sha256": digest, "world-size": str(metadata["worldSize"])}
    described = {**metadata, "model": {"uri": target.uri(place), "bytes": len(model), "sha256": digest}}
    text = json.dumps(described, indent=2, sort_keys=True) + "\n"
    try:
        target.put(place, model, BYTES, notes)
        target.put(
            f"{run_id}/{contract.METADATA_FILE}", text.encode(), "application/json", {"run-id": run_id}
        )
    except StoreError as error:
        raise TrainerError(Exit.SAVE, str(error)) from error
    return target.uri(place)
