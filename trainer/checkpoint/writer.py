"""Writes one checkpoint, and deletes old checkpoints and the files of failed saves.

Each rank writes its own files and hashes them on the way; rank 0 writes the manifest last. Files for a directory are
written there. Files for a bucket are written to a scratch directory of the node, and each is one upload. `Writer` is an
argument of `torch.distributed.checkpoint.save`, and small enough to be sent to another process.
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
from trainer.checkpoint.owner import Held, Owner
from trainer.stores import Store, StoreError
from trainer.stores.directory import sync_directory
from trainer.stores.protocol import Hashed, of_system

METADATA = ".metadata"
# A client of NFS may show an older listing for 30 s (acdirmin, man 5 nfs).
SEEN_SECONDS, LOOK_SECONDS = 35.0, 1.0


@dataclass(frozen=True)
class Prefix:
    """How the names of one process's files begin."""

    prefix: str


@dataclass(frozen=True)
class Written:
    """What a process tells rank 0 of one of its files."""

    name: str
    file: File


class Writer(FileSystemWriter):
    """One save of one step. `heading` is the manifest but for its files; `save_id` is in every data file's name.

    `held` is looked at again before the manifest is written: who was taken over meanwhile finishes nothing. Nor is
    anything finished of which rank 0 does not see all files. `bytes` is, in rank 0 after `finish`, the size of all.
    For a bucket the process that writes makes itself a directory in `scratch`, which `discard()` removes.
    """

    bytes = 0
    _own: Path | None = None

    def __init__(
        self, store: Store, heading: Manifest, save_id: str, scratch: Path, held: Held | None = None
    ) -> None:
        self.folder = layout.name(heading.step)
        self.is_remote = store.local(self.folder) is None
        self.place = store.local(self.folder) or scratch
        # With copy-ahead torch would use CUDA here, though what is written lies in memory already.
        super().__init__(self.place, per_thread_copy_ahead=0)
        self.store, self.heading, self.held = store, heading, held
        self.data_prefix = save_id
        self.fs: Hashing = Hashing()

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        try:
            if self.is_remote:  # here and not before: this may be another process
                self._own = scratches.folder(self.place, "save")
                self.place = self._own / self.folder
                self.path = self.place
            self.place.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise of_system("save", str(self.place), error) from error
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
            # What torch makes of a write that fails does not name the cause.
            raise of_system("save", str(self.place), self.fs.error) from error
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
        """Nothing more is written: remove what waits on this machine. Can be repeated."""
        if self._own is not None:
            shutil.rmtree(self._own, ignore_errors=True)

    def storage_meta(self) -> StorageMeta:
        return StorageMeta(save_id=self.save_id)  # and no path of this machine

    def _check_owner(self) -> None:
        if self.held is not None and not self.held.is_newest(self.store):
            raise StoreError(f"cannot save {self.store.uri(self.folder)}: it was taken over", "refused")

    def _check_seen(self, written: list[dict[str, File]]) -> None:
        """Raises StoreError when what the others wrote is not where this process would read it."""
        until = time.monotonic() + SEEN_SECONDS
        while complaint := self._unseen(written):
            if time.monotonic() >= until:
                raise StoreError(f"cannot save {self.store.uri(self.folder)}: {complaint}", "failed")
            time.sleep(LOOK_SECONDS)

    def _unseen(self, written: list[dict[str, File]]) -> str | None:
        listing = self.store.list(f"{self.folder}/")
        return layout.unseen(written, layout.by_step(listing).get(self.heading.step, {}))

    def _sync(self) -> None:
        if not self.is_remote:
            for place in (self.place, self.place.parent):
                sync_directory(place)


class Hashing(FileSystem):
    """DCP's file system; what is written through it is hashed, and the first error is kept."""

    def __init__(self) -> None:
        self.written: dict[str, File] = {}
        self.error: OSError | None = None

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Generator[io.IOBase, None, None]:
        try:
            with Path(path).open(mode) as file:
                stream = Hashed(file)
                try:
                    yield stream
                finally:
                    self.error = self.error or stream.error
            self.written[Path(path).name] = File(stream.count, stream.hash.hexdigest())
        except OSError as error:
            self.error = self.error or error
            raise


def one_line(error: BaseException) -> str:
    """Why a save or a load failed, in one line: of several processes' reasons the first one's."""
    failures: Mapping[int, Any] = getattr(error, "failures", {})
    for rank, (each, _) in sorted(failures.items()):
        return f"process {rank}: {one_line(each)}"
    text = " ".join(str(error).split())
    return text if isinstance(error, StoreError) else f"{type(error).__name__}: {text}"


class Cleaner:
    """Deletes in one store, for rank 0. `owner` is its claim, None where nobody else can come.

    Before each deletion the claim is looked at: what lies there belongs to whoever took the place over.
    """

    def __init__(self, store: Store, keep: int, owner: Owner | None) -> None:
        self._store, self._keep, self._owner = store, keep, owner

    def clear(self, step: int) -> None:
        """Remove all that lies in a step's folder. Raises StoreError, also when the place was taken over."""
        files = layout.by_step(self._store.list(f"{layout.name(step)}/")).get(step, {})
        self._delete(step, files)

    def clear_unfinished(self, step: int) -> None:
        """After a failure: a full disk has room again. A manifest whose answer was lost may be there; it stays."""
        with suppress(StoreError):
            if step not in layout.finished(self._store.list(f"{layout.name(step)}/")):
                self.clear(step)

    def surplus(self, newest_good: int, damaged: Collection[int]) -> Iterator[tuple[int, StoreError]]:
        """Keep as many as are to be kept. Gives each step that could not be deleted, and why.

        Raises StoreError when the store cannot be listed.
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
        if self._owner is not None and (self._owner.lost or not self._owner.held.is_newest(self._store)):
            place = self._store.uri(layout.name(step))
            raise StoreError(f"cannot delete {place}: it was taken over", "refused")
        self._store.delete(paths)
