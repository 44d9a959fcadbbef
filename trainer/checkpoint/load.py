"""Finds the newest checkpoint that is whole, and reads it: all processes together, each its share of the checking.

What is damaged is named and passed over. What cannot be known (a listing that fails) and what does not fit (another
model, other data) ends the run: training from zero where a checkpoint is may cost days.
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
from trainer.stores import Store, StoreError

T = TypeVar("T")
PIECE_BYTES = 2**20


@dataclass(frozen=True)
class Found:
    """A checkpoint that is whole. `directory` has its files; `damaged` are newer ones that are not whole."""

    manifest: Manifest
    directory: Path
    damaged: tuple[int, ...]
    is_copy: bool

    def forget(self) -> None:
        """Remove the copy that was made of a bucket's objects."""
        if self.is_copy:
            shutil.rmtree(self.directory.parent, ignore_errors=True)


@dataclass(frozen=True)
class Share:
    """Which part of the files this process looks at.

    Of a shared directory every process takes one of `size` parts; of a bucket one of `local_size`, for every machine
    needs a copy of everything.
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
    say: Callable[[str], None] = print,
) -> Found | None:
    """The newest checkpoint that is whole; None where there is none. `model` is the fingerprint of its tensors.

    Raises TrainerError in all processes, with one line, when the store fails, when the checkpoint is of another model
    or of other data, and when there are finished checkpoints of which none is whole.
    """
    finder = _Finder(store, group, share, scratch or Path(tempfile.gettempdir()), say)
    damaged: list[int] = []
    for step in finder.steps():
        manifest, complaint = finder.manifest(step)
        if manifest is not None:
            _check(store, manifest, model, data_digest)
            directory, complaint = finder.verify(manifest)
            if complaint is None:
                return Found(manifest, directory, tuple(damaged), finder.is_remote)
        finder.tell(f"checkpoint=damaged step={step} reason={complaint}")
        damaged.append(step)
    if damaged:
        raise TrainerError(
            Exit.CONFIGURATION,
            f"checkpoints: none of the {len(damaged)} in {store.uri('')} is whole; expected one to go on from. "
            "Name another place, or remove them, to begin at step 0",
        )
    return None


def read(found: Found, model: nn.Module, optimizer: Optimizer, group: dist.ProcessGroup) -> None:
    """Put a checkpoint into the model and its optimizer, which has not stepped yet. Raises TrainerError."""
    state = blank(model, optimizer)
    if told := layout.difference(found.manifest.fingerprint, fingerprint(state)):
        raise TrainerError(Exit.CONFIGURATION, f"checkpoint {found.directory}: {told}")
    try:
        restore(state, found.directory, group)
    except (Exception, CheckpointException) as error:
        raise TrainerError(
            Exit.SAVE, f"cannot read checkpoint {found.directory}: {one_line(error)}"
        ) from error


def _check(store: Store, manifest: Manifest, model: Fingerprint, data_digest: str) -> None:
    place = store.uri(layout.name(manifest.step))
    saved = {name: each for name, each in manifest.fingerprint.items() if name.startswith("model.")}
    if told := layout.difference(saved, model):
        raise TrainerError(Exit.CONFIGURATION, f"checkpoint {place} is of another model: {told}")
    if manifest.data_digest != data_digest:
        raise TrainerError(
            Exit.CONFIGURATION,
            f"checkpoint {place} is of other data: SHA-256 {manifest.data_digest}, this run's is {data_digest}",
        )


class _Finder:
    """The steps of `newest`, each done by all processes together and ending alike in all of them."""

    def __init__(
        self, store: Store, group: dist.ProcessGroup, share: Share, scratch: Path, say: Callable[[str], None]
    ) -> None:
        self._store, self._group, self._share, self._say = store, group, share, say
        self._listing: dict[str, int] = {}
        self._copies = scratch
        self.is_remote = store.local("") is None

    def steps(self) -> list[int]:
        """The finished steps, the newest first."""

        def listed() -> list[int]:
            self._listing = self._store.list("step-")
            return layout.finished(self._listing)

        return self._first(listed)

    def manifest(self, step: int) -> tuple[Manifest | None, str | None]:
        """What the step's manifest says, or what is wrong with it or with the sizes of its files."""

        def looked() -> tuple[Manifest | None, str | None]:
            try:
                manifest = Manifest.decode(self._store.read(f"{layout.name(step)}/{MANIFEST}"))
            except ValueError as error:
                return None, str(error)
            complaint = layout.torn(manifest, step, layout.by_step(self._listing)[step])
            return (None, complaint) if complaint else (manifest, None)

        return self._first(looked)

    def verify(self, manifest: Manifest) -> tuple[Path, str | None]:
        """Hash all files. Returns where they lie on this machine, and the first that is not as it was written."""
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
        except StoreError as error:
            complaint = str(error) if error.why == "missing" else None
            failure = None if complaint else str(error)
        except OSError as error:
            failure = f"cannot keep a copy in {directory}: {error.strerror or error}"
        told: list[tuple[str | None, str | None]] = [(None, None)] * dist.get_world_size(self._group)
        dist.all_gather_object(told, (complaint, failure), group=self._group)
        for _, failed in told:
            if failed:
                self._remove(directory)
                raise TrainerError(Exit.SAVE, f"checkpoints: {failed}")
        first = next((each for each, _ in told if each), None)
        if first:
            self._remove(directory)
        return directory, first

    def tell(self, line: str) -> None:
        """Say it once."""
        if self._share.rank == 0:
            self._say(line)

    def _copy(self) -> str:
        """The directory's name: that of the first process of this machine, for all here share the copy."""
        told = [""] * dist.get_world_size(self._group)
        dist.all_gather_object(told, scratch_name("restore", Process.own()), group=self._group)
        return told[self._share.rank - self._share.local_rank]

    def _remove(self, directory: Path) -> None:
        if self.is_remote:
            dist.barrier(group=self._group)
            shutil.rmtree(directory.parent, ignore_errors=True)

    def _first(self, work: Callable[[], T]) -> T:
        """Rank 0 does it, all have the result, or the same TrainerError."""

        def done() -> T:
            try:
                return work()
            except StoreError as error:
                raise TrainerError(Exit.SAVE, f"checkpoints: {error}") from error

        return from_first(done, self._group)


def _sha256(file: Path) -> str | None:
    """None for what the disk cannot give any more. Raises OSError for what is not the file's fault."""
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
