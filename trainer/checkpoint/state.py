"""The content of a checkpoint: the tensors of a model and its optimizer by name; and a safe reader.

The names are the same with DistributedDataParallel, FSDP2, `torch.compile`, or none of them. The optimizer's other
values (learning rate, betas) are settings of the run, and are not loaded from a checkpoint.

DCP stores its table of contents as a pickle, which could call any function. `Reader` only allows the few classes that
such a table needs. The tensors are read with `torch.load(weights_only=True)`, as in DCP.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from trainer.checkpoint.layout import Tensor

MODEL, OPTIMIZER = "model.", "optimizer."
State = dict[str, torch.Tensor]


def model_tensors(model: nn.Module) -> State:
    """Return the parameters and buffers of the model, without a copy. Tied weights appear once, by their first name.

    Raises:
        TypeError: The state dict of the model has a value that is not a tensor.
    """
    found: State = {}
    seen: set[tuple[object, ...]] = set()
    for name, value in get_model_state_dict(model).items():
        tensor = _tensor(MODEL + name, value)
        # Tied weights would be written twice, and they are the largest matrix of a language model.
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        place = (local.data_ptr(), local.dtype, local.shape, local.stride())
        if local.numel() and place in seen:
            continue
        seen.add(place)
        found[MODEL + name] = tensor
    return found


def gather(model: nn.Module, optimizer: Optimizer) -> State:
    """Return all tensors of model and optimizer, without a copy.

    Raises:
        ValueError: The optimizer has no state yet. Before the first step, torch would create it with an extra step.
    """
    if not optimizer.state:
        raise ValueError("the optimizer has no state before its first step")
    found = model_tensors(model)
    state = cast(dict[str, dict[str, object]], get_optimizer_state_dict(model, optimizer)["state"])
    for name, values in state.items():
        for key, value in values.items():
            found[f"{OPTIMIZER}{name}.{key}"] = _tensor(f"{OPTIMIZER}{name}.{key}", value)
    return found


def blank(model: nn.Module, optimizer: Optimizer) -> State:
    """Like `gather`, but create the state of an optimizer before its first step, for `restore` to overwrite."""
    get_optimizer_state_dict(model, optimizer)
    return gather(model, optimizer)


def fingerprint(state: State) -> dict[str, Tensor]:
    """Return shapes and dtypes of the full tensors, also if they are sharded."""
    return {
        name: Tensor(tuple(each.shape), str(each.dtype).removeprefix("torch."))
        for name, each in state.items()
    }


def storage_sizes(state: State) -> list[int]:
    """Return the bytes of each storage of this process's tensors, which a copy needs."""
    sizes: dict[int, int] = {}
    for each in state.values():
        storage = (each.to_local() if isinstance(each, DTensor) else each).untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
    return list(sizes.values())


def restore(state: State, directory: Path, group: dist.ProcessGroup) -> None:
    """Read the files of a checkpoint into these tensors, in place. All processes of the gloo group call this together.

    Raises:
        CheckpointException: It failed in one process. All processes raise this.
    """
    load(state, storage_reader=Reader(directory), process_group=group)


def _tensor(name: str, value: object) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{name}: a checkpoint can only have tensors, found {type(value).__name__}")
    return value


# The classes that torch 2.15 writes for tensors: torch/distributed/checkpoint/metadata.py and filesystem.py
TABLE = "torch.distributed.checkpoint.metadata"
ALLOWED = {
    *((TABLE, name) for name in ("ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta")),
    *((TABLE, name) for name in ("TensorProperties", "TensorStorageMetadata", "_MEM_FORMAT_ENCODING")),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch.serialization", "_get_layout"),
    ("torch", "Size"),
}


class Reader(FileSystemReader):
    """A FileSystemReader that raises UnpicklingError for a table of contents with other classes than ALLOWED."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:  # noqa: ARG002
        with self.fs.create_stream(self.fs.concat_path(self.path, ".metadata"), "rb") as file:
            metadata = _Tables(file).load()
        if not isinstance(metadata, Metadata):
            raise pickle.UnpicklingError(f"the table of contents is a {type(metadata).__name__}")
        for name, each in metadata.state_dict_metadata.items():
            if not isinstance(each, TensorStorageMetadata):
                raise pickle.UnpicklingError(f"{name} is not a tensor")
        if metadata.storage_meta is None:
            metadata.storage_meta = StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata


class _Tables(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        found = getattr(torch, name, None) if module == "torch" else None
        if (module, name) in ALLOWED or isinstance(found, torch.dtype):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"a table of contents does not need {module}.{name}")
