"""Reads what DCP wrote, without running what is in it.

DCP keeps its table of contents as a pickle, and a pickle may call anything. Of this one only the few classes are made
that such a table needs; the tensors themselves are read by `torch.load(weights_only=True)`, as DCP does.
"""

from __future__ import annotations

import pickle
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata

# What torch 2.15 writes for tensors: torch/distributed/checkpoint/metadata.py and filesystem.py
TABLE = "torch.distributed.checkpoint.metadata"
ALLOWED = {
    *((TABLE, name) for name in ("ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta")),
    *((TABLE, name) for name in ("TensorProperties", "TensorStorageMetadata", "_MEM_FORMAT_ENCODING")),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch.serialization", "_get_layout"),
    ("torch", "Size"),
}


class Reader(FileSystemReader):
    """A FileSystemReader whose table of contents is data alone. Raises UnpicklingError for any other."""

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
