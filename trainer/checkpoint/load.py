"""Find the newest complete checkpoint, and read it at any world size. The entry points are `newest` and `read`.

All processes call them together, and each checks a share of the files. A damaged checkpoint, or one that the disk
can't read, is logged and skipped. A store that fails, another model or other data end the run, because a start from
step 0 could lose days of work.

DCP stores its metadata as a pickle, which could call any function. `Reader` only allows the few classes that metadata
needs. The tensors are read with `torch.load(weights_only=True)`, as in DCP.
"""

from __future__ import annotations

import errno
import hashlib
import pickle
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException  # a BaseException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.optim import Optimizer

from trainer.checkpoint import layout
from trainer.checkpoint.layout import MANIFEST, Fingerprint, Manifest
from trainer.checkpoint.state import MODEL, fingerprint, gather, without_unsaved
from trainer.checkpoint.write import one_line
from trainer.contract import Exit, TrainerError
from trainer.distributed import from_first, gather_objects
from trainer.process import Process
from trainer.scratch import name as scratch_name
from trainer.stores import MissingError, Store, StoreError, os_errors
from trainer.world import World

T = TypeVar("T")


@dataclass(frozen=True)
class Problem:
    """Why a checkpoint can't be loaded. `is_unreadable`: the disk failed (EIO), and a later read may succeed."""

    reason: str
    is_unreadable: bool = False


@dataclass(frozen=True)
class Found:
    """A complete checkpoint. `directory` has its files; `damaged` are newer steps that can't be loaded."""

    manifest: Manifest
    directory: Path
    damaged: tuple[int, ...]
    is_copy: bool

    def forget(self) -> None:
        """Remove the local copy of a checkpoint in a bucket."""
        if self.is_copy:
            shutil.rmtree(self.directory.parent, ignore_errors=True)


def newest(
    store: Store,
    group: dist.ProcessGroup,
    world: World,
    *,
    model: Fingerprint,
    data_digest: str,
    scratch: Path | None = None,
    log_line: Callable[[str], None] = print,
) -> Found | None:
    """Return the newest complete checkpoint; None if there are no checkpoints.

    `group` is a gloo group of all processes. The files of a bucket are copied to `scratch`.

    Raises:
        TrainerError: The store failed, the checkpoint is of another model or other data, or none can be loaded. All
            processes raise this.
    """
    listing = _first(lambda: store.list("step-"), group)
    damaged: list[int] = []
    unreadable = ""
    for step, sizes in layout.by_step(listing).items():
        if MANIFEST not in sizes:
            continue
        manifest, problem = _first(partial(_manifest, store, step, sizes), group)
        if manifest is not None:
            _check(store, manifest, model, data_digest)
            copies = scratch or Path(tempfile.gettempdir())
            directory, problem = _verify(store, manifest, group, world, copies)
            if problem is None:
                return Found(manifest, directory, tuple(damaged), store.local("") is None)
        assert problem is not None  # noqa: S101 - otherwise the checkpoint was returned
        if problem.is_unreadable:
            unreadable = unreadable or problem.reason
        if world.rank == 0:
            kind = "unreadable" if problem.is_unreadable else "damaged"
            log_line(f"checkpoint={kind} step={step} reason={problem.reason}")
        damaged.append(step)
    if unreadable:
        raise TrainerError(
            Exit.SAVE,
            f"checkpoints: none of the {len(damaged)} in {store.uri('')} can be loaded: {unreadable}. "
            "Check the file system and start the run again",
        )
    if damaged:
        raise TrainerError(
            Exit.CONFIGURATION,
            f"checkpoints: all {len(damaged)} in {store.uri('')} are damaged, so the run can't resume. "
            "Use another place or remove them to start at step 0",
        )
    return None


def read(found: Found, model: nn.Module, optimizer: Optimizer, group: dist.ProcessGroup) -> None:
    """Read a checkpoint into the model and its optimizer, in place and before its first step.

    Raises:
        TrainerError: It failed in one process. All processes raise this.
    """
    state = without_unsaved(gather(model, optimizer), found.manifest.fingerprint)
    if mismatch := layout.difference(found.manifest.fingerprint, fingerprint(state)):
        raise TrainerError(Exit.CONFIGURATION, f"checkpoint {found.directory}: {mismatch}")
    try:
        load(state, storage_reader=Reader(found.directory), process_group=group)
    except (Exception, CheckpointException) as error:
        raise TrainerError(
            Exit.SAVE, f"cannot read checkpoint {found.directory}: {one_line(error)}"
        ) from error


def _first(work: Callable[[], T], group: dist.ProcessGroup) -> T:
    """Do `work` in rank 0. All return its result or raise the same TrainerError."""

    def done() -> T:
        try:
            return work()
        except StoreError as error:
            raise TrainerError(error.code, f"checkpoints: {error}") from error

    return from_first(done, group)


def _manifest(
    store: Store, step: int, sizes: Mapping[str, int]
) -> tuple[Manifest, None] | tuple[None, Problem]:
    """Return the manifest of a step, or what is wrong with it or with the sizes of its files."""
    try:
        manifest = Manifest.decode(store.read(f"{layout.name(step)}/{MANIFEST}"))
    except ValueError as error:
        return None, Problem(str(error))
    except StoreError as error:
        if not _is_io_error(error):
            raise
        return None, Problem(str(error), is_unreadable=True)
    if manifest.step != step:
        return None, Problem(f"{MANIFEST} is of step {manifest.step}")
    torn = layout.torn(manifest.files, sizes)
    return (None, Problem(torn)) if torn else (manifest, None)


def _check(store: Store, manifest: Manifest, model: Fingerprint, data_digest: str) -> None:
    place = store.uri(layout.name(manifest.step))
    saved = {name: each for name, each in manifest.fingerprint.items() if name.startswith(MODEL)}
    if mismatch := layout.difference(saved, model):
        raise TrainerError(Exit.CONFIGURATION, f"checkpoint {place} is of another model: {mismatch}")
    if manifest.data_digest != data_digest:
        raise TrainerError(
            Exit.CONFIGURATION,
            f"checkpoint {place} is of other data: SHA-256 {manifest.data_digest}, this run's is {data_digest}",
        )


def _verify(
    store: Store, manifest: Manifest, group: dist.ProcessGroup, world: World, copies: Path
) -> tuple[Path, Problem | None]:
    """Hash all files. Return their local directory, and the first problem or None.

    In a shared directory, each process checks its share of the files. In a bucket, it checks its share among the
    processes of its node, because each node needs a copy of all files.
    """
    folder = layout.name(manifest.step)
    directory = store.local(folder)
    rank, size, is_copy = world.rank, world.size, directory is None
    if directory is None:
        rank, size = world.local_rank, world.local_size
        # The first process of this node chooses the name of the copy.
        names = gather_objects(scratch_name("restore", Process.own()), group)
        directory = copies / names[world.rank - world.local_rank] / folder
    problem: Problem | None = None
    failure: StoreError | None = None
    files = sorted(manifest.files, key=lambda name: (-manifest.files[name].bytes, name))
    try:
        for name in files[rank::size]:
            if is_copy:
                with os_errors("keep a copy in", directory):
                    directory.mkdir(parents=True, exist_ok=True)
                store.fetch(f"{folder}/{name}", directory / name)
            problem = _hash_problem(directory / name, manifest.files[name].sha256)
            if problem:
                break
    except MissingError as error:
        problem = Problem(str(error))
    except StoreError as error:
        if is_copy or not _is_io_error(error):
            failure = error
        else:
            problem = Problem(str(error), is_unreadable=True)
    outcomes = gather_objects((problem, failure), group)
    failure = next((each for _, each in outcomes if each), None)
    # A damaged file comes first: it can't be repaired by another read.
    problems = sorted((each for each, _ in outcomes if each), key=lambda each: each.is_unreadable)
    problem = problems[0] if problems else None
    if is_copy and (failure or problem):
        dist.barrier(group=group)
        shutil.rmtree(directory.parent, ignore_errors=True)
    if failure:
        raise TrainerError(failure.code, f"checkpoints: {failure}")
    return directory, problem


def _hash_problem(file: Path, expected: str) -> Problem | None:
    """Return what is wrong with the content of a file; None if nothing is. Raise StoreError if it can't be read."""
    with os_errors("read", file), file.open("rb") as source:
        found = hashlib.file_digest(source, "sha256").hexdigest()
    if found == expected:
        return None
    return Problem(f"{file.name} has SHA-256 {found[:12]}, expected {expected[:12]}")


def _is_io_error(error: StoreError) -> bool:
    """Return whether the disk could not read a file: a bad block, or a file system that fails for a moment."""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EIO


# The classes that torch 2.15 writes for tensors: torch/distributed/checkpoint/metadata.py and filesystem.py
MODULE = "torch.distributed.checkpoint.metadata"
ALLOWED = {
    *((MODULE, name) for name in ("ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta")),
    *((MODULE, name) for name in ("TensorProperties", "TensorStorageMetadata", "_MEM_FORMAT_ENCODING")),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch.serialization", "_get_layout"),
    ("torch", "Size"),
}


class Reader(FileSystemReader):
    """A FileSystemReader that raises UnpicklingError for metadata with other classes than ALLOWED."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:  # noqa: ARG002
        with self.fs.create_stream(self.fs.concat_path(self.path, ".metadata"), "rb") as file:
            metadata = _MetadataUnpickler(file).load()
        if not isinstance(metadata, Metadata):
            raise pickle.UnpicklingError(f"the metadata is a {type(metadata).__name__}")
        for name, each in metadata.state_dict_metadata.items():
            if not isinstance(each, TensorStorageMetadata):
                raise pickle.UnpicklingError(f"{name} is not a tensor")
        if metadata.storage_meta is None:
            metadata.storage_meta = StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata


class _MetadataUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        found = getattr(torch, name, None) if module == "torch" else None
        if (module, name) in ALLOWED or isinstance(found, torch.dtype):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"the metadata contains {module}.{name}; it must contain only tensors")
