"""Write one checkpoint, and delete old checkpoints and the files of failed saves.

Each rank writes its own files and hashes them on the way; rank 0 writes the manifest last. Files for a directory are
written there. Files for a bucket are written to a scratch directory of the node, and each is one upload. The entry
point is `write`. It only needs arguments that can be sent to another process.
"""

from __future__ import annotations

import io
import os
import shutil
import time
from collections.abc import Collection, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException  # a BaseException
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from trainer import scratch as scratches
from trainer.checkpoint import layout
from trainer.checkpoint.layout import MANIFEST, File, Manifest
from trainer.checkpoint.owner import newest_generation
from trainer.stores import HashedFile, Store, StoreError, os_errors, sync_directory

METADATA = ".metadata"
# An NFS client may show an old listing for 30 s (acdirmin, man 5 nfs).
SEEN_SECONDS, POLL_SECONDS = 35.0, 1.0


class SaveFailed(Exception):
    """A checkpoint was not written. The message is one line, and all processes of the group raise this."""


def write(state: dict[str, torch.Tensor], writer: Writer, group: dist.ProcessGroup | None = None) -> int:
    """Write one checkpoint. Return its bytes in rank 0 when it is durable.

    All processes of the gloo `group` (by default of the world) call this together.

    Raises:
        SaveFailed: It failed in one process. All processes raise this.
    """
    try:
        save(state, storage_writer=writer, process_group=group)
    except (Exception, CheckpointException) as error:
        raise SaveFailed(one_line(error)) from error
    finally:
        writer.discard()
    return writer.bytes


def one_line(error: BaseException) -> str:
    """Return in one line why a save or a load failed: the reason of the first process that failed."""
    failures: Mapping[int, Any] = getattr(error, "failures", {})
    for rank, (each, _) in sorted(failures.items()):
        return f"process {rank}: {one_line(each)}"
    text = " ".join(str(error).split())
    return text if isinstance(error, (SaveFailed, StoreError)) else f"{type(error).__name__}: {text}"


@dataclass(frozen=True)
class Written:
    """A file that a process wrote, for rank 0."""

    name: str
    file: File


class Writer(FileSystemWriter):
    """The steps of one save for DCP. The manifest is only written if rank 0 sees all files and still owns the store.

    `manifest` is without its files, `save_id` is the prefix of the data files, and `generation` the own claim, which is
    checked before the manifest is written. Files for a bucket wait in `scratch` until `discard()`.

    If `failure` says why this process has no state to write, the save fails in all processes. Rank 0 knows `bytes`, the
    size of the checkpoint, after `finish`.
    """

    failure: str | None = None
    bytes = 0
    _own: Path | None = None

    def __init__(
        self,
        store: Store,
        manifest: Manifest,
        save_id: str,
        scratch: Path,
        generation: int | None = None,
    ) -> None:
        self.folder = layout.name(manifest.step)
        self.is_remote = store.local(self.folder) is None
        # With copy-ahead, torch would use CUDA here, although the data is already in CPU memory.
        super().__init__(store.local(self.folder) or scratch, per_thread_copy_ahead=0)
        self.store, self.manifest, self.generation = store, manifest, generation
        self.data_prefix = save_id
        self.fs: Hashing = Hashing()

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        if self.failure is not None:
            raise StoreError(self.failure)
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        # In rank 0, before any process writes: files of a failed save, or a damaged checkpoint.
        delete_step(self.store, self.manifest.step, self.generation)
        return [
            replace(plan, storage_data=SimpleNamespace(prefix=f"{self.data_prefix}-{rank}-"))
            for rank, plan in enumerate(plans)
        ]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        with os_errors("save", self.path):
            if self.is_remote:
                self._own = scratches.folder(Path(self.path), "save")
                self.path = self._own / self.folder
            Path(self.path).mkdir(parents=True, exist_ok=True)
            try:
                results: list[Any] = super().write_data(plan, planner).value()
                self._sync()
            except Exception as error:
                if self.fs.error is None:
                    raise
                raise self.fs.error from error  # the error that torch raises does not name the cause
        for name, file in self.fs.written.items():
            self._send(name)
            results.append(Written(name, file))
        future: Future[list[WriteResult]] = Future()
        future.set_result(results)
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        written = [
            {each.name: each.file for each in some if isinstance(each, Written)}
            for some in cast(list[list[Any]], results)
        ]
        self._check_owner()
        super().finish(
            metadata, [[each for each in some if not isinstance(each, Written)] for some in results]
        )
        self._sync()
        self._send(METADATA)
        self._check_seen(written)
        self._check_owner()
        files = {name: file for each in written for name, file in each.items()}
        files[METADATA] = self.fs.written[f"{METADATA}.tmp"]
        body = replace(self.manifest, files=files).encode()
        self.store.put(f"{self.folder}/{MANIFEST}", body, "application/json")
        self.bytes = len(body) + sum(file.bytes for file in files.values())

    def discard(self) -> None:
        """Remove the local files. Can be called again."""
        if self._own is not None:
            shutil.rmtree(self._own, ignore_errors=True)

    def storage_meta(self) -> StorageMeta:
        return StorageMeta(save_id=self.save_id)  # without a local path

    def _check_owner(self) -> None:
        _check_claim(self.generation, self.store, "save", self.manifest.step)

    def _check_seen(self, written: list[dict[str, File]]) -> None:
        """Raise StoreError if this process does not see the files of the others."""
        until = time.monotonic() + SEEN_SECONDS
        while problem := self._unseen(written):
            if time.monotonic() >= until:
                raise StoreError(
                    f"cannot save {self.store.uri(self.folder)}: {problem}: all nodes must share this place"
                )
            time.sleep(POLL_SECONDS)

    def _unseen(self, written: list[dict[str, File]]) -> str | None:
        sizes = layout.by_step(self.store.list(f"{self.folder}/")).get(self.manifest.step, {})
        problems = ((rank, layout.torn(files, sizes)) for rank, files in enumerate(written))
        return next((f"process {rank}'s file {problem}" for rank, problem in problems if problem), None)

    def _send(self, name: str) -> None:
        if self.is_remote:
            self.store.send(Path(self.path) / name, f"{self.folder}/{name}")

    def _sync(self) -> None:
        if not self.is_remote:
            for place in (Path(self.path), Path(self.path).parent):
                sync_directory(place)


class Hashing(FileSystem):
    """The file system of DCP. It hashes what is written, and keeps the first error."""

    def __init__(self) -> None:
        self.written: dict[str, File] = {}
        self.error: OSError | None = None

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Generator[io.IOBase, None, None]:  # noqa: ARG002
        file = Path(path)
        try:
            with HashedFile(file) as stream:
                try:
                    yield stream
                finally:
                    self.error = self.error or stream.error
            self.written[file.name] = File(file.stat().st_size, stream.hash.hexdigest())
        except OSError as error:
            self.error = self.error or error
            raise


def delete_step(store: Store, step: int, generation: int | None, *, only_unfinished: bool = False) -> None:
    """Delete the folder of a step; with `only_unfinished` not if it has a manifest.

    Raises:
        StoreError: The store failed, or another job took over.
    """
    files = layout.by_step(store.list(f"{layout.name(step)}/")).get(step, {})
    if files and not (only_unfinished and MANIFEST in files):
        _check_claim(generation, store, "delete", step)
        # The manifest first, so that a partly deleted checkpoint does not count.
        names = sorted(files, key=lambda name: name != MANIFEST)
        store.delete([f"{layout.name(step)}/{name}" for name in names])


def delete_surplus(
    store: Store, newest_good: int, keep: int, damaged: Collection[int], generation: int | None
) -> Iterator[tuple[int, StoreError]]:
    """Delete surplus checkpoints. Yield each step that could not be deleted, and the error.

    Raises:
        StoreError: The store can't be listed.
    """
    for step in layout.surplus(store.list("step-"), newest_good, keep, damaged):
        try:
            delete_step(store, step, generation)
        except StoreError as error:
            yield step, error


def delete_unfinished(store: Store, step: int, generation: int | None) -> None:
    """Delete the files of a failed save. A checkpoint with a manifest stays: only the response was lost."""
    with suppress(StoreError):
        delete_step(store, step, generation, only_unfinished=True)


def _check_claim(generation: int | None, store: Store, verb: str, step: int) -> None:
    """Raise StoreError if another job took over the store."""
    if generation is not None and newest_generation(store) != generation:
        raise StoreError(f"cannot {verb} {store.uri(layout.name(step))}: it was taken over")
