"""Find the newest complete checkpoint, and read it. The entry points are `newest` and `read`.

All processes call them together, and each checks a share of the files. A damaged checkpoint is logged and skipped. A
store that fails, another model or other data end the run, because a start from step 0 could lose days of work.
"""

from __future__ import annotations

import errno
import hashlib
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException  # a BaseException
from torch.optim import Optimizer

from trainer.checkpoint import layout
from trainer.checkpoint.layout import MANIFEST, Fingerprint, Manifest
from trainer.checkpoint.state import blank, fingerprint, restore
from trainer.checkpoint.writer import one_line
from trainer.contract import Exit, TrainerError
from trainer.distributed import from_first
from trainer.process import Process
from trainer.scratch import name as scratch_name
from trainer.stores import MissingError, Store, StoreError

T = TypeVar("T")
PIECE_BYTES = 2**20


@dataclass(frozen=True)
class Found:
    """A complete checkpoint. `directory` has its files; `damaged` are newer steps that are not complete."""

    manifest: Manifest
    directory: Path
    damaged: tuple[int, ...]
    is_copy: bool

    def forget(self) -> None:
        """Remove the local copy of a checkpoint in a bucket."""
        if self.is_copy:
            shutil.rmtree(self.directory.parent, ignore_errors=True)


@dataclass(frozen=True)
class Share:
    """The part of the files that this process checks.

    In a shared directory, each process checks one of `size` parts. In a bucket, it checks one of `local_size` parts,
    because each node needs a copy of all files.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int


def newest(
    store: Store,
    group: dist.ProcessGroup,
    share: Share,
    *,
    model: Fingerprint,
    data_digest: str,
    scratch: Path | None = None,
    log_line: Callable[[str], None] = print,
) -> Found | None:
    """Return the newest complete checkpoint; None if there are no checkpoints.

    Args:
        store: Where the checkpoints are.
        group: A gloo group of all processes.
        share: The part of the files that this process checks.
        model: The fingerprint of the tensors of the model.
        data_digest: The digest of the data.
        scratch: Where the files of a bucket are copied to.
        log_line: Prints a line.

    Raises:
        TrainerError: The store failed, the checkpoint is of another model or other data, or all are damaged. All
            processes raise this.
    """
    finder = _Finder(store, group, share, scratch or Path(tempfile.gettempdir()), log_line)
    damaged: list[int] = []
    for step in finder.steps():
        manifest, complaint = finder.manifest(step)
        if manifest is not None:
            _check(store, manifest, model, data_digest)
            directory, complaint = finder.verify(manifest)
            if complaint is None:
                return Found(manifest, directory, tuple(damaged), finder.is_remote)
        finder.log(f"checkpoint=damaged step={step} reason={complaint}")
        damaged.append(step)
    if damaged:
        raise TrainerError(
            Exit.CONFIGURATION,
            f"checkpoints: all {len(damaged)} in {store.uri('')} are damaged, so the run can't resume. "
            "Use another place or remove them to start at step 0",
        )
    return None


def read(found: Found, model: nn.Module, optimizer: Optimizer, group: dist.ProcessGroup) -> None:
    """Read a checkpoint into the model and its optimizer, before its first step. Raise TrainerError."""
    state = blank(model, optimizer)
    if mismatch := layout.difference(found.manifest.fingerprint, fingerprint(state)):
        raise TrainerError(Exit.CONFIGURATION, f"checkpoint {found.directory}: {mismatch}")
    try:
        restore(state, found.directory, group)
    except (Exception, CheckpointException) as error:
        raise TrainerError(
            Exit.SAVE, f"cannot read checkpoint {found.directory}: {one_line(error)}"
        ) from error


def _check(store: Store, manifest: Manifest, model: Fingerprint, data_digest: str) -> None:
    place = store.uri(layout.name(manifest.step))
    saved = {name: each for name, each in manifest.fingerprint.items() if name.startswith("model.")}
    if mismatch := layout.difference(saved, model):
        raise TrainerError(Exit.CONFIGURATION, f"checkpoint {place} is of another model: {mismatch}")
    if manifest.data_digest != data_digest:
        raise TrainerError(
            Exit.CONFIGURATION,
            f"checkpoint {place} is of other data: SHA-256 {manifest.data_digest}, this run's is {data_digest}",
        )


class _Finder:
    """The steps of `newest`. All processes call each method together, and get the same result or error."""

    def __init__(
        self,
        store: Store,
        group: dist.ProcessGroup,
        share: Share,
        scratch: Path,
        log_line: Callable[[str], None],
    ) -> None:
        self._store, self._group, self._share, self._log_line = store, group, share, log_line
        self._listing: dict[str, int] = {}
        self._copies = scratch
        self.is_remote = store.local("") is None

    def steps(self) -> list[int]:
        """Return the finished steps, the newest first."""

        def listed() -> list[int]:
            self._listing = self._store.list("step-")
            return layout.finished(self._listing)

        return self._first(listed)

    def manifest(self, step: int) -> tuple[Manifest | None, str | None]:
        """Return the manifest of a step, or what is wrong with it or with the sizes of its files."""

        def read_manifest() -> tuple[Manifest | None, str | None]:
            try:
                manifest = Manifest.decode(self._store.read(f"{layout.name(step)}/{MANIFEST}"))
            except ValueError as error:
                return None, str(error)
            complaint = layout.torn(manifest, step, layout.by_step(self._listing)[step])
            return (None, complaint) if complaint else (manifest, None)

        return self._first(read_manifest)

    def verify(self, manifest: Manifest) -> tuple[Path, str | None]:
        """Hash all files. Return their local directory, and the first problem or None."""
        folder = layout.name(manifest.step)
        share = self._share
        rank, size = (share.local_rank, share.local_size) if self.is_remote else (share.rank, share.size)
        directory = self._store.local(folder) or self._copies / self._copy() / folder
        names = sorted(manifest.files, key=lambda name: (-manifest.files[name].bytes, name))
        complaint, failure = None, None
        try:
            for name in names[rank::size]:
                if self.is_remote:
                    directory.mkdir(parents=True, exist_ok=True)
                    self._store.fetch(f"{folder}/{name}", directory / name)
                found = _sha256(directory / name)
                if found is None:
                    complaint = f"{name} cannot be read"
                elif found != manifest.files[name].sha256:
                    complaint = (
                        f"{name} has SHA-256 {found[:12]}, expected {manifest.files[name].sha256[:12]}"
                    )
                if complaint:
                    break
        except MissingError as error:
            complaint = str(error)
        except StoreError as error:
            failure = str(error)
        except OSError as error:
            failure = f"cannot keep a copy in {directory}: {error.strerror or error}"
        gathered: list[tuple[str | None, str | None]] = [(None, None)] * dist.get_world_size(self._group)
        dist.all_gather_object(gathered, (complaint, failure), group=self._group)
        for _, failed in gathered:
            if failed:
                self._remove(directory)
                raise TrainerError(Exit.SAVE, f"checkpoints: {failed}")
        first = next((each for each, _ in gathered if each), None)
        if first:
            self._remove(directory)
        return directory, first

    def log(self, line: str) -> None:
        """Log a line, in rank 0."""
        if self._share.rank == 0:
            self._log_line(line)

    def _copy(self) -> str:
        """Return the name of the directory of the copy, which the first process of this node chooses."""
        gathered = [""] * dist.get_world_size(self._group)
        dist.all_gather_object(gathered, scratch_name("restore", Process.own()), group=self._group)
        return gathered[self._share.rank - self._share.local_rank]

    def _remove(self, directory: Path) -> None:
        if self.is_remote:
            dist.barrier(group=self._group)
            shutil.rmtree(directory.parent, ignore_errors=True)

    def _first(self, work: Callable[[], T]) -> T:
        """Do `work` in rank 0. All return its result or raise the same TrainerError."""

        def done() -> T:
            try:
                return work()
            except StoreError as error:
                raise TrainerError(Exit.SAVE, f"checkpoints: {error}") from error

        return from_first(done, self._group)


def _sha256(file: Path) -> str | None:
    """Return the hash of a file, None if it is missing or unreadable. Raise OSError for other errors."""
    total = hashlib.sha256()
    try:
        with file.open("rb") as source:
            while piece := source.read(PIECE_BYTES):
                total.update(piece)
    except OSError as error:
        if error.errno in (errno.EIO, errno.ENOENT):
            return None
        raise
    return total.hexdigest()
