"""Write one checkpoint, and delete old checkpoints and the files of failed saves.

Each rank writes its own files and hashes them on the way; rank 0 writes the manifest last. Files for a directory are
written there. Files for a bucket are written to a scratch directory of the node, and each is one upload. The entry
point is `Writer`, an argument of `torch.distributed.checkpoint.save` that can be sent to another process.
"""

from __future__ import annotations

import io
import os
import shutil
import time
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from trainer import scratch as scratches
from trainer.checkpoint import layout
from trainer.checkpoint.layout import MANIFEST, File, Manifest
from trainer.checkpoint.owner import OwnClaim, Owner
from trainer.stores import HashedFile, Store, StoreError, os_errors, sync_directory

METADATA = ".metadata"
# An NFS client may show an old listing for 30 s (acdirmin, man 5 nfs).
SEEN_SECONDS, POLL_SECONDS = 35.0, 1.0


@dataclass(frozen=True)
class Prefix:
    """The prefix of the file names of one process."""

    prefix: str


@dataclass(frozen=True)
class Written:
    """A file that a process wrote, for rank 0."""

    name: str
    file: File


class Writer(FileSystemWriter):
    """Write one step. `finish` only writes the manifest if rank 0 sees all files and still owns the store.

    Args:
        store: Where the checkpoint goes.
        heading: The manifest without its files.
        save_id: The prefix of the names of the data files.
        scratch: Where the files for a bucket wait for their upload. `discard()` removes them.
        own_claim: The claim to check before the manifest is written.

    Attributes:
        bytes: The size of the checkpoint, in rank 0 after `finish`.
    """

    bytes = 0
    _own: Path | None = None

    def __init__(
        self,
        store: Store,
        heading: Manifest,
        save_id: str,
        scratch: Path,
        own_claim: OwnClaim | None = None,
    ) -> None:
        self.folder = layout.name(heading.step)
        self.is_remote = store.local(self.folder) is None
        self.place = store.local(self.folder) or scratch
        # With copy-ahead, torch would use CUDA here, although the data is already in CPU memory.
        super().__init__(self.place, per_thread_copy_ahead=0)
        self.store, self.heading, self.own_claim = store, heading, own_claim
        self.data_prefix = save_id
        self.fs: Hashing = Hashing()

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        with os_errors("save", self.place):
            if self.is_remote:  # not in the constructor, because this may be another process
                self._own = scratches.folder(self.place, "save")
                self.place = self._own / self.folder
                self.path = self.place
            self.place.mkdir(parents=True, exist_ok=True)
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return [
            replace(plan, storage_data=Prefix(f"{self.data_prefix}-{rank}-"))
            for rank, plan in enumerate(plans)
        ]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        try:
            results: list[Any] = super().write_data(plan, planner).value()
            self._sync()
        except Exception as error:
            if self.fs.error is None:
                raise
            # The error that torch raises does not name the cause.
            with os_errors("save", self.place):
                raise self.fs.error from error
        for name, file in self.fs.written.items():
            if self.is_remote:
                self.store.send(self.place / name, f"{self.folder}/{name}")
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
        tables = [[each for each in some if not isinstance(each, Written)] for some in results]
        super().finish(metadata, tables)
        self._sync()
        if self.is_remote:
            self.store.send(self.place / METADATA, f"{self.folder}/{METADATA}")
        self._check_seen(written)
        self._check_owner()
        files = {name: file for each in written for name, file in each.items()}
        files[METADATA] = self.fs.written[f"{METADATA}.tmp"]
        manifest = replace(self.heading, files=files)
        body = manifest.encode()
        self.store.put(f"{self.folder}/{MANIFEST}", body, "application/json")
        self.bytes = len(body) + sum(file.bytes for file in files.values())

    def discard(self) -> None:
        """Remove the local files. Can be called again."""
        if self._own is not None:
            shutil.rmtree(self._own, ignore_errors=True)

    def storage_meta(self) -> StorageMeta:
        return StorageMeta(save_id=self.save_id)  # without a local path

    def _check_owner(self) -> None:
        if self.own_claim is not None and not self.own_claim.is_newest(self.store):
            raise StoreError(f"cannot save {self.store.uri(self.folder)}: it was taken over")

    def _check_seen(self, written: list[dict[str, File]]) -> None:
        """Raise StoreError if this process does not see the files of the others."""
        until = time.monotonic() + SEEN_SECONDS
        while complaint := self._unseen(written):
            if time.monotonic() >= until:
                raise StoreError(f"cannot save {self.store.uri(self.folder)}: {complaint}")
            time.sleep(POLL_SECONDS)

    def _unseen(self, written: list[dict[str, File]]) -> str | None:
        listing = self.store.list(f"{self.folder}/")
        return layout.unseen(written, layout.by_step(listing).get(self.heading.step, {}))

    def _sync(self) -> None:
        if not self.is_remote:
            for place in (self.place, self.place.parent):
                sync_directory(place)


class Hashing(FileSystem):
    """The file system of DCP. It hashes what is written, and keeps the first error."""

    def __init__(self) -> None:
        self.written: dict[str, File] = {}
        self.error: OSError | None = None

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Generator[io.IOBase, None, None]:  # noqa: ARG002
        try:
            with HashedFile(Path(path)) as stream:
                try:
                    yield stream
                finally:
                    self.error = self.error or stream.error
            self.written[Path(path).name] = File(Path(path).stat().st_size, stream.hash.hexdigest())
        except OSError as error:
            self.error = self.error or error
            raise


def one_line(error: BaseException) -> str:
    """Return in one line why a save or a load failed: the reason of the first process that failed."""
    failures: Mapping[int, Any] = getattr(error, "failures", {})
    for rank, (each, _) in sorted(failures.items()):
        return f"process {rank}: {one_line(each)}"
    text = " ".join(str(error).split())
    return text if isinstance(error, StoreError) else f"{type(error).__name__}: {text}"


class Cleaner:
    """Delete checkpoints in a store, in rank 0. Check first that no other job took over (`owner` is None in tests)."""

    def __init__(self, store: Store, keep: int, owner: Owner | None) -> None:
        self._store, self._keep, self._owner = store, keep, owner

    def clear(self, step: int) -> None:
        """Delete the folder of a step. Raise StoreError, also if another job took over."""
        files = layout.by_step(self._store.list(f"{layout.name(step)}/")).get(step, {})
        self._delete(step, files)

    def clear_unfinished(self, step: int) -> None:
        """Delete the files of a failed save. A checkpoint with a manifest stays: only the response was lost."""
        with suppress(StoreError):
            if step not in layout.finished(self._store.list(f"{layout.name(step)}/")):
                self.clear(step)

    def surplus(self, newest_good: int, damaged: Collection[int]) -> Iterator[tuple[int, StoreError]]:
        """Delete surplus checkpoints. Yield each step that could not be deleted, and the error.

        Raises:
            StoreError: The store can't be listed.
        """
        listing = self._store.list("step-")
        steps = layout.by_step(listing)
        for step in layout.surplus(listing, newest_good, self._keep, damaged):
            try:
                self._delete(step, steps[step])
            except StoreError as error:
                yield step, error

    def _delete(self, step: int, files: Iterable[str]) -> None:
        paths = layout.in_order_of_deletion(step, files)
        if not paths:
            return
        if self._owner is not None and (self._owner.lost or not self._owner.own_claim.is_newest(self._store)):
            place = self._store.uri(layout.name(step))
            raise StoreError(f"cannot delete {place}: it was taken over")
        self._store.delete(paths)
